//! The rules for `iptables-legacy-restore --noflush` and `ip6tables-legacy-restore`: chains of our
//! own, and one jump to each from a built-in chain. A table is one transaction.
//! `iptables-legacy-save` prints rules in just this form, so what is there is compared line by
//! line.

use std::collections::BTreeSet;
use std::fmt::Write;

use caracal_model::{Family, Prefix};

use super::name::{Interfaces, PlainName};
use super::{BFD_PORTS, BgpGuard, FamilyRules, Nat};

/// Chains of the `nat` table.
const POSTROUTING: &str = "caracal-postrouting";
const OUTGOING: &str = "caracal-outgoing";
/// Chains of the `filter` table.
const FORWARD: &str = "caracal-forward";
const INPUT: &str = "caracal-input";
const SENDERS: &str = "caracal-senders";
const BGP: &str = "caracal-bgp";
/// Chain of the `raw` table.
const ANTISPOOF: &str = "caracal-antispoof";

/// Most senders of tunnel packets that are judged: each tunnel packet is compared with one after
/// the other.
pub(crate) const MOST_SENDERS: usize = 256;

/// Desired content of one table.
struct IptablesTable {
    name: &'static str,
    /// Built-in chains and our chains that they jump to.
    jumps: &'static [(&'static str, &'static str)],
    chains: &'static [&'static str],
    rules: Vec<String>,
}

impl IptablesTable {
    /// As printed.
    fn jumps(&self) -> impl Iterator<Item = String> {
        let printed = |(from, to): &(&str, &str)| format!("-A {from} -j {to}");
        self.jumps.iter().map(printed)
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
        jumps: &[("FORWARD", FORWARD)],
        chains: &[FORWARD],
        rules,
    }
}

/// Which packets of a chain the guard of BGP looks at: from a workload to a port of BGP or BFD.
fn bgp_packets(chain: &str, nat: &Nat, guard: &BgpGuard) -> Vec<String> {
    let interfaces = nat.interface_prefixes.iter();
    let interfaces = interfaces.map(|prefix: &PlainName| format!("-i {prefix}+"));
    let sources = guard.sources.iter().map(|prefix| format!("-s {prefix}"));
    let mut lines = Vec::new();
    for from in interfaces.chain(sources) {
        for (protocol, ports) in [
            ("tcp", guard.ports.iter().collect::<Vec<_>>()),
            ("udp", BFD_PORTS.iter().collect()),
        ] {
            lines.extend(ports.into_iter().map(|port| {
                format!("-A {chain} {from} -p {protocol} -m {protocol} --dport {port} -j {BGP}")
            }));
        }
    }
    lines
}

/// Action on packets to the BGP port.
fn bgp_guard(guard: &BgpGuard) -> Vec<String> {
    let host = |address: &std::net::IpAddr| Prefix::host(*address);
    let local = "-m addrtype --dst-type LOCAL";
    let peers = guard.peers.iter();
    let peers = peers.map(|of| format!("-A {BGP} -s {} -j RETURN", host(of)));
    let names = guard.local_peers.iter();
    let names = names.map(|name| format!("-A {BGP} -i {name} {local} -j RETURN"));
    let own = format!("-A {BGP} {local} -j DROP");
    let nodes = guard.nodes.iter();
    let nodes = nodes.map(|of| format!("-A {BGP} -d {} -j DROP", host(of)));
    let routers = guard.routers.iter().flat_map(|router| {
        let sources = guard.masqueraded.iter();
        sources.map(move |from| format!("-A {BGP} -s {from} -d {} -j DROP", host(router)))
    });
    peers
        .chain(names)
        .chain([own])
        .chain(nodes)
        .chain(routers)
        .collect()
}

/// Forwarding, who may speak BGP to nodes, and who may send tunnel packets. The chains are there
/// also when nobody is refused.
fn filter_table(nat: &Nat, rules: &FamilyRules) -> IptablesTable {
    let mut lines = Vec::new();
    if let Some(guard) = &rules.bgp {
        lines.extend(bgp_packets(FORWARD, nat, guard));
        lines.extend(bgp_packets(INPUT, nat, guard));
        lines.extend(bgp_guard(guard));
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
        jumps: &[("FORWARD", FORWARD), ("INPUT", INPUT)],
        chains: &[BGP, FORWARD, INPUT, SENDERS],
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
        jumps: &[("PREROUTING", ANTISPOOF)],
        chains: &[ANTISPOOF],
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
            jumps: &[("POSTROUTING", POSTROUTING)],
            chains: &[OUTGOING, POSTROUTING],
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
        for chain in table.chains {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for ((from, to), jump) in table.jumps.iter().zip(table.jumps()) {
            if !saved_lines(saved, table.name).any(|line| line == jump) {
                let _ = writeln!(text, "-I {from} 1 -j {to}");
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
    let mut text = String::new();
    for table in tables(&empty, &empty.ipv4) {
        let declared: Vec<&str> = table
            .chains
            .iter()
            .copied()
            .filter(|chain| {
                let start = format!(":{chain} ");
                saved_lines(saved, table.name).any(|line| line.starts_with(&start))
            })
            .collect();
        if declared.is_empty() {
            continue;
        }
        let _ = writeln!(text, "*{}", table.name);
        for ((from, to), jump) in table.jumps.iter().zip(table.jumps()) {
            for _ in saved_lines(saved, table.name).filter(|line| *line == jump) {
                let _ = writeln!(text, "-D {from} -j {to}");
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
            .filter(|line| line.contains("caracal-"))
            .collect();
        any |= !ours.is_empty();
        let jumps_once = table
            .jumps()
            .all(|jump| ours.iter().filter(|line| **line == jump).count() == 1);
        let declared: BTreeSet<&str> = ours
            .iter()
            .filter_map(|line| line.strip_prefix(':')?.split(' ').next())
            .collect();
        let in_chains: Vec<&str> = ours
            .iter()
            .copied()
            .filter(|line| line.starts_with("-A caracal-"))
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
            && declared == table.chains.iter().copied().collect()
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
mod tests {
    use super::super::example;
    use super::*;

    const RESTORED: &str = "*nat
:caracal-outgoing - [0:0]
:caracal-postrouting - [0:0]
-I POSTROUTING 1 -j caracal-postrouting
-A caracal-postrouting -s 10.244.0.0/16 -j caracal-outgoing
-A caracal-postrouting ! -s 10.244.3.64/32 -o tunl0 -m addrtype --src-type LOCAL -j MASQUERADE
-A caracal-outgoing -d 10.244.0.0/16 -j RETURN
-A caracal-outgoing -d 10.245.0.0/16 -j RETURN
-A caracal-outgoing -j MASQUERADE
COMMIT
*filter
:caracal-bgp - [0:0]
:caracal-forward - [0:0]
:caracal-input - [0:0]
:caracal-senders - [0:0]
-I FORWARD 1 -j caracal-forward
-I INPUT 1 -j caracal-input
-A caracal-forward -i cali+ -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-forward -i cali+ -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-forward -i cali+ -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-forward -i cali+ -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-forward -s 10.244.0.0/16 -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-forward -s 10.244.0.0/16 -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-forward -s 10.244.0.0/16 -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-forward -s 10.244.0.0/16 -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-input -i cali+ -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-input -i cali+ -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-input -i cali+ -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-input -i cali+ -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-input -s 10.244.0.0/16 -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-input -s 10.244.0.0/16 -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-input -s 10.244.0.0/16 -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-input -s 10.244.0.0/16 -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-bgp -s 10.244.3.80/32 -j RETURN
-A caracal-bgp -i cali123 -m addrtype --dst-type LOCAL -j RETURN
-A caracal-bgp -m addrtype --dst-type LOCAL -j DROP
-A caracal-bgp -d 10.0.0.1/32 -j DROP
-A caracal-bgp -d 10.0.0.2/32 -j DROP
-A caracal-bgp -s 10.244.0.0/16 -d 192.0.2.1/32 -j DROP
-A caracal-forward -i cali+ -j ACCEPT
-A caracal-forward -o cali+ -j ACCEPT
-A caracal-input -p ipencap -j caracal-senders
-A caracal-input -p udp -m udp --dport 4789 -j caracal-senders
-A caracal-senders -s 10.0.0.1/32 -j RETURN
-A caracal-senders -s 192.0.2.0/24 -j RETURN
-A caracal-senders -j DROP
COMMIT
*raw
:caracal-antispoof - [0:0]
-I PREROUTING 1 -j caracal-antispoof
-A caracal-antispoof -i cali+ -p udp -m udp --dport 4789 -j DROP
-A caracal-antispoof -i cali+ -p ipencap -j DROP
-A caracal-antispoof -s 10.244.3.66/32 -i cali123 -j RETURN
-A caracal-antispoof -i cali123 -j DROP
COMMIT
";

    /// As printed by iptables-legacy-save 1.8 after restoring the above.
    const SAVED: &str = "# Generated by iptables-save v1.8.9
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:caracal-bgp - [0:0]
:caracal-forward - [0:0]
:caracal-input - [0:0]
:caracal-senders - [0:0]
-A INPUT -j caracal-input
-A FORWARD -j caracal-forward
-A FORWARD -i docker0 -j ACCEPT
-A caracal-bgp -s 10.244.3.80/32 -j RETURN
-A caracal-bgp -i cali123 -m addrtype --dst-type LOCAL -j RETURN
-A caracal-bgp -m addrtype --dst-type LOCAL -j DROP
-A caracal-bgp -d 10.0.0.1/32 -j DROP
-A caracal-bgp -d 10.0.0.2/32 -j DROP
-A caracal-bgp -s 10.244.0.0/16 -d 192.0.2.1/32 -j DROP
-A caracal-forward -i cali+ -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-forward -i cali+ -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-forward -i cali+ -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-forward -i cali+ -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-forward -s 10.244.0.0/16 -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-forward -s 10.244.0.0/16 -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-forward -s 10.244.0.0/16 -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-forward -s 10.244.0.0/16 -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-forward -i cali+ -j ACCEPT
-A caracal-forward -o cali+ -j ACCEPT
-A caracal-input -i cali+ -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-input -i cali+ -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-input -i cali+ -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-input -i cali+ -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-input -s 10.244.0.0/16 -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-input -s 10.244.0.0/16 -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-input -s 10.244.0.0/16 -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-input -s 10.244.0.0/16 -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-input -p ipencap -j caracal-senders
-A caracal-input -p udp -m udp --dport 4789 -j caracal-senders
-A caracal-senders -s 10.0.0.1/32 -j RETURN
-A caracal-senders -s 192.0.2.0/24 -j RETURN
-A caracal-senders -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:caracal-outgoing - [0:0]
:caracal-postrouting - [0:0]
-A POSTROUTING -j caracal-postrouting
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A caracal-outgoing -d 10.244.0.0/16 -j RETURN
-A caracal-outgoing -d 10.245.0.0/16 -j RETURN
-A caracal-outgoing -j MASQUERADE
-A caracal-postrouting -s 10.244.0.0/16 -j caracal-outgoing
-A caracal-postrouting ! -s 10.244.3.64/32 -o tunl0 -m addrtype --src-type LOCAL -j MASQUERADE
COMMIT
*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:caracal-antispoof - [0:0]
-A PREROUTING -j caracal-antispoof
-A caracal-antispoof -i cali+ -p udp -m udp --dport 4789 -j DROP
-A caracal-antispoof -i cali+ -p ipencap -j DROP
-A caracal-antispoof -s 10.244.3.66/32 -i cali123 -j RETURN
-A caracal-antispoof -i cali123 -j DROP
COMMIT
";

    #[test]
    fn a_policy_that_drops_is_seen() {
        assert!(drops_forward(SAVED));
        assert!(!drops_forward(
            &SAVED.replace("FORWARD DROP", "FORWARD ACCEPT")
        ));
        assert!(!drops_forward(""));
        let nat = example();
        let beside_nftables = SAVED
            .lines()
            .filter(|line| {
                !["-input", "-senders", "-bgp"]
                    .iter()
                    .any(|of| line.contains(of))
            })
            .fold(String::new(), |text, line| text + line + "\n");
        assert_eq!(
            compare_forward(&nat, &beside_nftables),
            RulesComparison::Wanted
        );
        let script = restore_forward(&nat, "");
        assert!(
            script.starts_with("*filter\n") && !script.contains("*nat"),
            "{script}"
        );
    }

    #[test]
    fn the_first_restore_makes_chains_and_jumps() {
        let nat = example();
        assert_eq!(restore(&nat, &nat.ipv4, ""), RESTORED);
        let again = restore(&nat, &nat.ipv4, SAVED);
        assert!(!again.contains("-I "), "the jumps are there:\n{again}");
    }

    #[test]
    fn what_is_there_is_compared_line_by_line() {
        let nat = example();
        let compare = |saved: &str| super::compare(&nat, &nat.ipv4, saved);
        assert_eq!(compare(SAVED), RulesComparison::Wanted);
        assert_eq!(compare(""), RulesComparison::Nothing);
        assert_eq!(
            compare("*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n"),
            RulesComparison::Nothing
        );
        for gone in [
            "-A POSTROUTING -j caracal-postrouting\n",
            "-A caracal-outgoing -d 10.244.0.0/16 -j RETURN\n",
            "-A caracal-forward -i cali+ -j ACCEPT\n",
            "-A INPUT -j caracal-input\n",
            "-A caracal-senders -s 192.0.2.0/24 -j RETURN\n",
            "-A caracal-bgp -d 10.0.0.2/32 -j DROP\n",
            "-A caracal-input -s 10.244.0.0/16 -p tcp -m tcp --dport 179 -j caracal-bgp\n",
            "-A caracal-antispoof -i cali123 -j DROP\n",
        ] {
            assert_eq!(
                compare(&SAVED.replace(gone, "")),
                RulesComparison::Different,
                "{gone}"
            );
        }
        let swapped = SAVED.replace(
            "-A caracal-outgoing -d 10.245.0.0/16 -j RETURN\n-A caracal-outgoing -j MASQUERADE\n",
            "-A caracal-outgoing -j MASQUERADE\n-A caracal-outgoing -d 10.245.0.0/16 -j RETURN\n",
        );
        assert_eq!(compare(&swapped), RulesComparison::Different);
    }

    #[test]
    fn too_many_senders_are_not_judged_one_by_one() {
        let mut nat = example();
        let senders = nat.ipv4.senders.as_mut().unwrap();
        let hosts = (0..=255u8).map(|n| Prefix::v4([10, 0, 1, n].into(), 32));
        senders.from = hosts.collect();
        let of = |nat: &Nat| restore(nat, &nat.ipv4, "");
        assert!(of(&nat).contains("-A caracal-senders -s 10.0.1.255/32 -j RETURN"));
        let senders = nat.ipv4.senders.as_mut().unwrap();
        senders.from.insert(Prefix::v4([10, 0, 2, 0].into(), 32));
        nat.ipv4.bgp = None;
        let text = of(&nat);
        assert!(!text.contains("-A caracal-input") && !text.contains("-A caracal-senders"));
        assert!(text.contains(":caracal-input - [0:0]"));
    }

    #[test]
    fn removal_takes_ours_alone() {
        assert_eq!(
            removal(SAVED),
            "*nat\n-D POSTROUTING -j caracal-postrouting\n-F caracal-outgoing\n-F caracal-postrouting\n-X caracal-outgoing\n-X caracal-postrouting\nCOMMIT\n*filter\n-D FORWARD -j caracal-forward\n-D INPUT -j caracal-input\n-F caracal-bgp\n-F caracal-forward\n-F caracal-input\n-F caracal-senders\n-X caracal-bgp\n-X caracal-forward\n-X caracal-input\n-X caracal-senders\nCOMMIT\n*raw\n-D PREROUTING -j caracal-antispoof\n-F caracal-antispoof\n-X caracal-antispoof\nCOMMIT\n"
        );
        assert_eq!(removal(""), "");
    }
}
