//! The rules for `iptables-legacy-restore --noflush` and `ip6tables-legacy-restore`: chains of our
//! own, and one jump to each from a built-in chain. A table is one transaction.
//! `iptables-legacy-save` prints rules in just this form, so what is there is compared line by
//! line.

pub(crate) mod chain;

use std::collections::BTreeSet;
use std::fmt::Write;

use caracal_model::{Family, InsertEach, Prefix};

use super::name::{Interfaces, PlainName};
use super::{BFD_PORTS, BgpGuard, FamilyRules, LoopGuard, Nat};

/// Chains of the `nat` table.
const POSTROUTING: &str = "caracal-postrouting";
const OUTGOING: &str = "caracal-outgoing";
/// Chains of the `filter` table.
const FORWARD: &str = "caracal-forward";
const INPUT: &str = "caracal-input";
const OUTPUT: &str = "caracal-output";
const LOOPS: &str = "caracal-loops";
const SENDERS: &str = "caracal-senders";
const BGP: &str = "caracal-bgp";
const ROUTERS: &str = "caracal-routers";
const NODES: &str = "caracal-nodes";
const TRANSLATED: &str = "caracal-translated";
const BALANCED: &str = "caracal-balanced";
/// Chain of the `raw` table.
const ANTISPOOF: &str = "caracal-antispoof";

/// Most senders of tunnel packets that are judged: each tunnel packet is compared with one after
/// the other.
pub(crate) const MOST_SENDERS: usize = 256;

/// Desired content of one table.
struct IptablesTable {
    name: &'static str,
    /// What the names of our chains begin with.
    ours: &'static str,
    /// Comment on jumps, as a match with a blank behind it; empty = none.
    comment: String,
    /// Built-in chains and our chains that they jump to.
    jumps: Vec<(&'static str, &'static str)>,
    chains: Vec<&'static str>,
    rules: Vec<String>,
}

/// What the names of a node's chains begin with.
const OURS: &str = "caracal-";

impl IptablesTable {
    /// Built-in chains, and what their rules say.
    fn jumps(&self) -> impl Iterator<Item = (&'static str, String)> {
        let comment = &self.comment;
        let words = move |(from, to): &(&'static str, &str)| (*from, format!("{comment}-j {to}"));
        self.jumps.iter().map(words)
    }
}

fn forward_table(nat: &Nat) -> IptablesTable {
    let mut rules = Vec::new();
    for prefix in &nat.interface_prefixes {
        rules.push(format!("-A {FORWARD} -i {prefix}+ -j ACCEPT"));
        rules.push(format!("-A {FORWARD} -o {prefix}+ -j ACCEPT"));
    }
    IptablesTable {
        name: "filter",
        ours: OURS,
        comment: String::new(),
        jumps: vec![("FORWARD", FORWARD)],
        chains: vec![FORWARD],
        rules,
    }
}

/// The guard of VXLAN's port once more, behind translation: a service may lead there.
fn vxlan_packets(chain: &str, nat: &Nat) -> Vec<String> {
    let prefixes = nat.interface_prefixes.iter();
    let pairs = prefixes.filter_map(|prefix| Some((prefix, nat.no_vxlan_from_workloads?)));
    let rule = |(prefix, port): (&PlainName, u16)| {
        format!("-A {chain} -i {prefix}+ -p udp -m udp --dport {port} -j DROP")
    };
    pairs.map(rule).collect()
}

/// Which packets of a chain the guard of BGP looks at, behind translation: from a workload to a
/// port of BGP or BFD, and whatever somebody has translated to such a port, or to that of VXLAN.
fn guarded_packets(chain: &str, nat: &Nat, guard: &BgpGuard) -> Vec<String> {
    let to = |(protocol, port): (&str, &u16)| format!("-p {protocol} -m {protocol} --dport {port}");
    let tcp = guard.ports.iter().map(|port| ("tcp", port));
    let bfd = BFD_PORTS.iter().map(|port| ("udp", port));
    let ports: Vec<String> = tcp.chain(bfd).map(to).collect();
    let from_workloads = |prefix: &PlainName| {
        let rule = |ports: &String| format!("-A {chain} -i {prefix}+ {ports} -j {BGP}");
        ports.iter().map(rule).collect::<Vec<_>>()
    };
    let from_workloads: Vec<String> = nat
        .interface_prefixes
        .iter()
        .flat_map(from_workloads)
        .collect();
    let vxlan = nat.no_vxlan_from_workloads.iter();
    let vxlan = vxlan.map(|port| to(("udp", port)));
    let anybodys = ports.into_iter().chain(vxlan);
    let anybodys = anybodys.map(|ports| format!("-A {chain} {ports} -j {TRANSLATED}"));
    from_workloads.into_iter().chain(anybodys).collect()
}

/// What ipvs has translated to such a port of another machine: the kernel sends it on without a
/// socket, and conntrack has the port that the sender has named.
fn balanced_packets(nat: &Nat, guard: &BgpGuard) -> Vec<String> {
    let vxlan = nat.no_vxlan_from_workloads.into_iter();
    let udp: BTreeSet<u16> = BFD_PORTS.into_iter().chain(vxlan).insert_each();
    let sent = |(protocol, port): (&str, &u16)| {
        format!("-A {OUTPUT} -p {protocol} -m {protocol} --dport {port} -j {BALANCED}")
    };
    let tcp = guard.ports.iter().map(|port| ("tcp", port));
    let udp = udp.iter().map(|port| ("udp", port));
    let ports: Vec<_> = tcp.chain(udp).collect();
    let direct = ports.iter().map(|(_, port)| port);
    let direct = direct.map(|port| format!("-m conntrack --ctorigdstport {port}"));
    let spared = ["-m owner --socket-exists", "-m conntrack --ctdir REPLY"];
    let spared = spared.into_iter().map(str::to_owned).chain(direct);
    let spared = spared.map(|packets| format!("-A {BALANCED} {packets} -j RETURN"));
    let peers = guard.peers.iter().chain(&guard.routers);
    let peers = peers.map(|of| format!("-A {BALANCED} -s {} -j RETURN", Prefix::host(*of)));
    let routers = guard.routers.iter();
    let routers = routers.map(|of| format!("-A {BALANCED} -d {} -j DROP", Prefix::host(*of)));
    let to_nodes = [format!("-A {BALANCED} -j {NODES}")];
    let sent = ports.iter().copied().map(sent);
    let rules = sent.chain(spared).chain(peers);
    rules.chain(to_nodes).chain(routers).collect()
}

/// Action on these packets.
fn bgp_guard(nat: &Nat, guard: &BgpGuard) -> Vec<String> {
    let host = |address: &std::net::IpAddr| Prefix::host(*address);
    let local = "-m addrtype --dst-type LOCAL";
    let own = format!("-A {NODES} {local} -j DROP");
    let nodes = guard.nodes.iter();
    let nodes = nodes.map(|of| format!("-A {NODES} -d {} -j DROP", host(of)));
    let peers = guard.peers.iter();
    let peers = peers.map(|of| format!("-A {BGP} -s {} -j RETURN", host(of)));
    let names = guard.local_peers.iter();
    let names = names.map(|name| format!("-A {BGP} -i {name} {local} -j RETURN"));
    let routers = guard.routers.iter();
    let routers = routers.map(|of| format!("-A {BGP} -d {} -j {ROUTERS}", host(of)));
    // Pools and routers, not each pool with each router.
    let sources = guard.masqueraded.iter();
    let sources = sources.filter(|_| !guard.routers.is_empty());
    let sources = sources.map(|from| format!("-A {ROUTERS} -s {from} -j DROP"));
    // What comes from workloads here was judged by the rules before.
    let prefixes = nat.interface_prefixes.iter();
    let workloads = prefixes.map(|prefix| format!("-i {prefix}+"));
    let from_routers = guard.routers.iter().map(|of| format!("-s {}", host(of)));
    let untranslated = [
        "-m conntrack ! --ctstate DNAT",
        "-m conntrack --ctdir REPLY",
        "-i lo",
    ];
    let spared = untranslated.into_iter().map(str::to_owned);
    let spared = spared.chain(workloads).chain(from_routers);
    let spared = spared.map(|packets| format!("-A {TRANSLATED} {packets} -j RETURN"));
    let to_routers = guard.routers.iter();
    let to_routers = to_routers.map(|of| format!("-A {TRANSLATED} -d {} -j DROP", host(of)));
    let to_nodes = |chain: &str| format!("-A {chain} -j {NODES}");
    [own]
        .into_iter()
        .chain(nodes)
        .chain(peers)
        .chain(names)
        .chain([to_nodes(BGP)])
        .chain(routers)
        .chain(sources)
        .chain(spared)
        .chain([to_nodes(TRANSLATED)])
        .chain(to_routers)
        .collect()
}

/// What is sent to a range of services, and the action on it. It stands before what others refuse,
/// as Calico's does: iptables has one chain for all, and workloads' packets are accepted in ours.
fn loop_guard(nat: &Nat, guard: &LoopGuard, family: Family) -> Vec<String> {
    let sent = |(chain, leaving): (&str, &str)| {
        let ranges = guard.ranges.iter();
        let rule = |range: &Prefix| format!("-A {chain} -d {range}{leaving} -j {LOOPS}");
        ranges.map(rule).collect::<Vec<_>>()
    };
    let names = nat.interface_prefixes.iter();
    let workloads = names.map(|prefix| format!("-o {prefix}+"));
    let in_use = guard.in_use.iter().map(|used| format!("-d {used}"));
    let spared = ["-m conntrack --ctstate DNAT".to_owned()].into_iter();
    let spared = spared.chain(workloads).chain(in_use);
    let spared = spared.map(|packets| format!("-A {LOOPS} {packets} -j RETURN"));
    let unreachable = match family {
        Family::Ipv4 => "icmp-port-unreachable",
        Family::Ipv6 => "icmp6-port-unreachable",
    };
    let ends = match guard.rejects {
        true => vec![
            format!("-A {LOOPS} -m conntrack --ctstate INVALID -j DROP"),
            format!("-A {LOOPS} -j REJECT --reject-with {unreachable}"),
        ],
        false => vec![format!("-A {LOOPS} -j DROP")],
    };
    let sent = [(FORWARD, ""), (OUTPUT, " ! -o lo")]
        .into_iter()
        .flat_map(sent);
    sent.chain(spared).chain(ends).collect()
}

/// Forwarding, who may speak BGP to nodes, and who may send tunnel packets. The chains are there
/// also when nobody is refused.
fn filter_table(nat: &Nat, rules: &FamilyRules) -> IptablesTable {
    let mut lines = Vec::new();
    for chain in [FORWARD, INPUT] {
        lines.extend(vxlan_packets(chain, nat));
    }
    // Loopback, too: somebody's translation may lead there.
    for prefix in &nat.interface_prefixes {
        let range = rules.loopback.as_ref();
        lines.extend(range.map(|to| format!("-A {INPUT} -d {to} -i {prefix}+ -j DROP")));
    }
    if let Some(guard) = &rules.bgp {
        lines.extend(guarded_packets(FORWARD, nat, guard));
        lines.extend(guarded_packets(INPUT, nat, guard));
        lines.extend(balanced_packets(nat, guard));
        lines.extend(bgp_guard(nat, guard));
    }
    if let Some(guard) = &rules.loops {
        let family = guard.ranges.first().map_or(Family::Ipv4, Prefix::family);
        lines.extend(loop_guard(nat, guard, family));
    }
    lines.extend(forward_table(nat).rules);
    let few = |s: &&super::Senders| !s.from.is_empty() && s.from.len() <= MOST_SENDERS;
    if let Some(senders) = rules.senders.as_ref().filter(few) {
        if senders.ipip {
            lines.push(format!("-A {INPUT} -p ipencap -j {SENDERS}"));
        }
        lines.extend(
            senders
                .vxlan
                .map(|port| format!("-A {INPUT} -p udp -m udp --dport {port} -j {SENDERS}")),
        );
        for source in &senders.from {
            lines.push(format!("-A {SENDERS} -s {source} -j RETURN"));
        }
        lines.push(format!("-A {SENDERS} -j DROP"));
    }
    IptablesTable {
        name: "filter",
        ours: OURS,
        comment: String::new(),
        jumps: vec![("FORWARD", FORWARD), ("INPUT", INPUT), ("OUTPUT", OUTPUT)],
        chains: vec![
            BALANCED, BGP, FORWARD, INPUT, LOOPS, NODES, OUTPUT, ROUTERS, SENDERS, TRANSLATED,
        ],
        rules: lines,
    }
}

/// Sources that a workload may use; neighbour discovery of IPv6 has sources of its own.
fn antispoof_table(nat: &Nat, rules: &FamilyRules) -> IptablesTable {
    let mut lines = Vec::new();
    for prefix in &nat.interface_prefixes {
        if let Some(port) = nat.no_vxlan_from_workloads {
            lines.push(format!(
                "-A {ANTISPOOF} -i {prefix}+ -p udp -m udp --dport {port} -j DROP"
            ));
        }
        if nat.no_ipip_from_workloads {
            lines.push(format!("-A {ANTISPOOF} -i {prefix}+ -p ipencap -j DROP"));
        }
        let range = rules.loopback.as_ref();
        lines.extend(range.map(|to| format!("-A {ANTISPOOF} -d {to} -i {prefix}+ -j DROP")));
    }
    for (link, sources) in &rules.sources {
        let v6 = sources.iter().any(|source| source.family() == Family::Ipv6);
        for discovery in ["::/128", "fe80::/10"].into_iter().filter(|_| v6) {
            lines.push(format!("-A {ANTISPOOF} -s {discovery} -i {link} -j RETURN"));
        }
        for source in sources {
            lines.push(format!("-A {ANTISPOOF} -s {source} -i {link} -j RETURN"));
        }
        lines.push(format!("-A {ANTISPOOF} -i {link} -j DROP"));
    }
    IptablesTable {
        name: "raw",
        ours: OURS,
        comment: String::new(),
        jumps: vec![("PREROUTING", ANTISPOOF)],
        chains: vec![ANTISPOOF],
        rules: lines,
    }
}

fn tables(nat: &Nat, rules: &FamilyRules) -> [IptablesTable; 3] {
    let mut lines = Vec::new();
    let leaving =
        rules
            .leaving_by
            .as_ref()
            .map_or_else(String::new, |interfaces| match interfaces {
                Interfaces::Named(name) => format!(" -o {name}"),
                Interfaces::Beginning(start) => format!(" -o {start}+"),
            });
    for source in &rules.masquerade {
        lines.push(format!(
            "-A {POSTROUTING} -s {source}{leaving} -j {OUTGOING}"
        ));
    }
    for (link, address) in &rules.tunnels {
        let host = Prefix::host(*address);
        lines.push(format!(
            "-A {POSTROUTING} ! -s {host} -o {link} -m addrtype --src-type LOCAL -j MASQUERADE"
        ));
    }
    for exempt in &rules.exempt {
        lines.push(format!("-A {OUTGOING} -d {exempt} -j RETURN"));
    }
    for protocol in ["tcp", "udp"] {
        lines.extend(rules.ports.map(|(first, last)| {
            let target = match rules.outgoing {
                None => format!("MASQUERADE --to-ports {first}-{last}"),
                Some(address) if address.is_ipv6() => {
                    format!("SNAT --to-source [{address}]:{first}-{last}")
                }
                Some(address) => format!("SNAT --to-source {address}:{first}-{last}"),
            };
            format!("-A {OUTGOING} -p {protocol} -j {target}")
        }));
    }
    lines.push(match rules.outgoing {
        None => format!("-A {OUTGOING} -j MASQUERADE"),
        Some(address) => format!("-A {OUTGOING} -j SNAT --to-source {address}"),
    });
    [
        IptablesTable {
            name: "nat",
            ours: OURS,
            comment: String::new(),
            jumps: vec![("POSTROUTING", POSTROUTING)],
            chains: vec![OUTGOING, POSTROUTING],
            rules: lines,
        },
        filter_table(nat, rules),
        antispoof_table(nat, rules),
    ]
}

/// Input for `iptables-legacy-restore --noflush`, given what `iptables-legacy-save` printed. Naming
/// a chain empties or creates it; the jump is added only where it is missing.
#[must_use]
pub(crate) fn restore(nat: &Nat, rules: &FamilyRules, saved: &str) -> String {
    restore_tables(&tables(nat, rules), saved)
}

/// As [`restore`], for the forwarding rules alone: what is needed beside nftables where iptables
/// drops by policy.
#[must_use]
pub(crate) fn restore_forward(nat: &Nat, saved: &str) -> String {
    restore_tables(&[forward_table(nat)], saved)
}

/// True when iptables drops by policy what is forwarded, given what `iptables-save` printed.
#[must_use]
pub(crate) fn drops_forward(saved: &str) -> bool {
    saved_lines(saved, "filter").any(|line| line.starts_with(":FORWARD DROP"))
}

/// Compares our forwarding rules with the output of `iptables-save`.
#[must_use]
pub(crate) fn compare_forward(nat: &Nat, saved: &str) -> RulesComparison {
    compare_tables([forward_table(nat)], saved)
}

fn restore_tables(tables: &[IptablesTable], saved: &str) -> String {
    let mut text = String::new();
    for table in tables {
        let _ = writeln!(text, "*{}", table.name);
        for chain in &table.chains {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for (from, jump) in table.jumps() {
            let line = format!("-A {from} {jump}");
            let there = saved_lines(saved, table.name).filter(|saved| *saved == line);
            let times = there.count();
            if times == 0 {
                let _ = writeln!(text, "-I {from} 1 {jump}");
            }
            // Somebody has added it again and again.
            for _ in 1..times {
                let _ = writeln!(text, "-D {from} {jump}");
            }
        }
        for rule in &table.rules {
            let _ = writeln!(text, "{rule}");
        }
        text.push_str("COMMIT\n");
    }
    text
}

/// Input that removes all of ours, given what `iptables-legacy-save` printed.
#[must_use]
pub(crate) fn removal(saved: &str) -> String {
    let empty = Nat::default();
    remove_tables(&tables(&empty, &empty.ipv4), saved)
}

/// Removes chains, and whatever jumps to them from chains of others.
fn remove_tables(tables: &[IptablesTable], saved: &str) -> String {
    let mut text = String::new();
    for table in tables {
        let lines = || saved_lines(saved, table.name);
        let is_declared = |chain: &&&str| {
            let start = format!(":{chain} ");
            lines().any(|line| line.starts_with(&start))
        };
        let declared: Vec<&str> = table.chains.iter().filter(is_declared).copied().collect();
        if declared.is_empty() {
            continue;
        }
        let _ = writeln!(text, "*{}", table.name);
        for rule in lines().filter_map(|line| line.strip_prefix("-A ")) {
            let from = rule.split(' ').next().unwrap_or_default();
            let to = ["-j", "-g"].map(|word| format!(" {word} "));
            let to = to.iter().find_map(|word| rule.rsplit_once(word.as_str()));
            let to = to.and_then(|(_, to)| to.split(' ').next());
            if to.is_some_and(|to| declared.contains(&to)) && !declared.contains(&from) {
                let _ = writeln!(text, "-D {rule}");
            }
        }
        for chain in &declared {
            let _ = writeln!(text, "-F {chain}");
        }
        for chain in &declared {
            let _ = writeln!(text, "-X {chain}");
        }
        text.push_str("COMMIT\n");
    }
    text
}

/// Result of comparing our rules with the output of `iptables-legacy-save`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RulesComparison {
    /// None of ours.
    Nothing,
    /// Exactly the wanted ones.
    Wanted,
    /// Others.
    Different,
}

/// Compares what was printed with what is wanted.
#[must_use]
pub(crate) fn compare(nat: &Nat, rules: &FamilyRules, saved: &str) -> RulesComparison {
    compare_tables(tables(nat, rules), saved)
}

fn compare_tables(tables: impl IntoIterator<Item = IptablesTable>, saved: &str) -> RulesComparison {
    let mut any = false;
    let mut wanted = true;
    for table in tables {
        let ours: Vec<&str> = saved_lines(saved, table.name)
            .filter(|line| line.contains(table.ours))
            .collect();
        any |= !ours.is_empty();
        let jumps_once = table
            .jumps()
            .map(|(from, jump)| format!("-A {from} {jump}"))
            .all(|jump| ours.iter().filter(|line| **line == jump).count() == 1);
        let declared: BTreeSet<&str> = ours
            .iter()
            .filter_map(|line| line.strip_prefix(':')?.split(' ').next())
            .insert_each();
        let start = format!("-A {}", table.ours);
        let in_chains: Vec<&str> = ours
            .iter()
            .copied()
            .filter(|line| line.starts_with(&start))
            .collect();
        // Order counts inside a chain only, and the chains are printed by name.
        let per_chain = |lines: &[&str], chain: &str| -> Vec<String> {
            let start = format!("-A {chain} ");
            lines
                .iter()
                .filter(|line| line.starts_with(&start))
                .map(|line| (*line).to_owned())
                .collect()
        };
        let expected: Vec<&str> = table.rules.iter().map(String::as_str).collect();
        wanted &= jumps_once
            && declared == table.chains.iter().copied().insert_each()
            && in_chains.len() == expected.len()
            && table
                .chains
                .iter()
                .all(|chain| per_chain(&in_chains, chain) == per_chain(&expected, chain));
    }
    match (any, wanted) {
        (false, _) => RulesComparison::Nothing,
        (true, true) => RulesComparison::Wanted,
        (true, false) => RulesComparison::Different,
    }
}

/// The lines of one table in what `iptables-legacy-save` prints.
fn saved_lines<'a>(saved: &'a str, table: &str) -> impl Iterator<Item = &'a str> {
    let start = format!("*{table}");
    saved
        .lines()
        .skip_while(move |line| *line != start)
        .skip(1)
        .take_while(|line| *line != "COMMIT")
}

#[cfg(test)]
mod tests;
