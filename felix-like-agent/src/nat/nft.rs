//! The rules as an nftables script: one transaction that replaces one table of our own.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

use caracal_model::net::Prefix;

use super::name::Interfaces;
use super::{BFD_PORTS, BgpGuard, FamilyRules, Nat, digest};

/// Our table, of family `inet`.
pub(crate) const TABLE: &str = "caracal";

/// The script that puts the rules in the place of those before, in one transaction.
#[must_use]
pub(crate) fn script(nat: &Nat) -> String {
    // `delete` fails on a missing table, hence the first line.
    format!(
        "table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n\tchain {} {{\n\t}}\n{}}}\n",
        marker(&nat.fingerprint()),
        rules(nat),
    )
}

/// The script that removes the rules.
#[must_use]
pub(crate) fn removal() -> String {
    format!("table inet {TABLE}\ndelete table inet {TABLE}\n")
}

/// The script that prints our table; fails when there is none.
#[must_use]
pub(crate) fn listing() -> String {
    format!("list table inet {TABLE}\n")
}

/// A chain of somebody else's that drops by policy what is forwarded. Accepting in our own chain
/// does not help against it: a packet has to pass both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocker {
    /// `ip`, `ip6` or `inet`.
    pub family: String,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
}

impl Blocker {
    /// True when it is iptables' own, and so takes rules from iptables.
    #[must_use]
    pub(crate) fn is_iptables(&self, family: &str) -> bool {
        self.family == family && self.table == "filter" && self.chain == "FORWARD"
    }
}

/// The blockers in what `nft -j list chains` prints.
#[must_use]
pub(crate) fn blockers(listing: &str) -> Vec<Blocker> {
    let listing: serde_json::Value = serde_json::from_str(listing).unwrap_or_default();
    let chains = listing["nftables"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|o| &o["chain"]);
    let text =
        |chain: &serde_json::Value, key: &str| chain[key].as_str().unwrap_or_default().to_owned();
    chains
        .filter(|c| c["hook"] == "forward" && c["policy"] == "drop")
        .map(|c| Blocker {
            family: text(c, "family"),
            table: text(c, "table"),
            chain: text(c, "name"),
        })
        .filter(|b| b.table != TABLE)
        .collect()
}

/// Name, without the digest, of the empty chain that holds the checksum of our table as nftables
/// listed it after it was written. Rules that somebody changed are listed differently.
const CHECKSUM: &str = "printed_";

/// The script that adds the checksum chain, given nftables' listing.
#[must_use]
pub(crate) fn checksum_chain(listing: &str) -> String {
    format!("add chain inet {TABLE} {CHECKSUM}{}\n", checksum(listing))
}

/// True when the table is as it was when it was written.
#[must_use]
pub(crate) fn is_untouched(listing: &str) -> bool {
    let mut checksums = checksums(listing);
    checksums.next() == Some(checksum(listing).as_str()) && checksums.next().is_none()
}

fn checksums(listing: &str) -> impl Iterator<Item = &str> {
    listing.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("chain ")?.strip_prefix(CHECKSUM)?;
        name.split_whitespace().next()
    })
}

/// Checksum of a listing without checksum chains, braces and empty lines.
fn checksum(listing: &str) -> String {
    let start = format!("chain {CHECKSUM}");
    let lines = listing.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && *line != "}" && !line.starts_with(&start));
    digest(lines.flat_map(uncounted))
}

/// The line without what a counter has counted.
fn uncounted(line: &str) -> impl Iterator<Item = &str> {
    let mut words = line.split(' ');
    std::iter::from_fn(move || {
        let word = words.next()?;
        match word {
            "packets" | "bytes" => words.next().map(|_| word),
            word => Some(word),
        }
    })
}

/// Name of the empty chain that holds the fingerprint.
fn marker(fingerprint: &str) -> String {
    format!("fingerprint_{fingerprint}")
}

/// The fingerprint in a listing of our table.
#[must_use]
pub(crate) fn fingerprint(listing: &str) -> Option<&str> {
    listing.lines().find_map(|line| {
        let name = line.trim().strip_prefix("chain fingerprint_")?;
        name.split_whitespace().next()
    })
}

/// The table's content without the marker.
pub(super) fn rules(nat: &Nat) -> String {
    let mut text = String::new();
    let mut postrouting = String::new();
    let mut antispoof = String::new();
    let mut input = String::new();
    let mut forward = String::new();
    for prefix in &nat.interface_prefixes {
        if let Some(port) = nat.no_vxlan_from_workloads {
            put(
                &mut antispoof,
                format_args!("iifname \"{prefix}*\" udp dport {port} drop"),
            );
        }
        if nat.no_ipip_from_workloads {
            put(
                &mut antispoof,
                format_args!("iifname \"{prefix}*\" meta l4proto 4 drop"),
            );
        }
    }
    for (family, address, rules) in [
        ("ip", "ipv4_addr", &nat.ipv4),
        ("ip6", "ipv6_addr", &nat.ipv6),
    ] {
        masquerading(&mut text, &mut postrouting, family, address, rules);
        tunnels(&mut postrouting, family, rules);
        sources(&mut text, &mut antispoof, family, address, rules);
        if let Some(guard) = &rules.bgp {
            for chain in [&mut input, &mut forward] {
                bgp_packets(chain, nat, guard, family);
            }
            bgp_guard(&mut text, family, address, guard);
        }
        senders(&mut text, &mut input, family, address, rules);
    }
    text.push_str(
        "\tchain antispoof {\n\t\ttype filter hook prerouting priority -300; policy accept;\n",
    );
    text.push_str(&antispoof);
    text.push_str("\t}\n");
    if !input.is_empty() {
        // Behind the reassembly of fragments, which have no ports.
        text.push_str("\tchain input {\n\t\ttype filter hook input priority 0; policy accept;\n");
        text.push_str(&input);
        text.push_str("\t}\n");
    }
    text.push_str(
        "\tchain postrouting {\n\t\ttype nat hook postrouting priority 100; policy accept;\n",
    );
    text.push_str(&postrouting);
    text.push_str(
        "\t}\n\tchain forward {\n\t\ttype filter hook forward priority 0; policy accept;\n",
    );
    text.push_str(&forward);
    for prefix in &nat.interface_prefixes {
        put(&mut text, format_args!("iifname \"{prefix}*\" accept"));
        put(&mut text, format_args!("oifname \"{prefix}*\" accept"));
    }
    text.push_str("\t}\n");
    text
}

fn tunnels(text: &mut String, family: &str, rules: &FamilyRules) {
    for (link, address) in &rules.tunnels {
        put(
            text,
            format_args!(
                "oifname \"{link}\" {family} saddr != {address} fib saddr type local masquerade"
            ),
        );
    }
}

/// From masqueraded pools to where nothing is exempt.
fn masquerading(
    text: &mut String,
    postrouting: &mut String,
    family: &str,
    address: &str,
    rules: &FamilyRules,
) {
    if rules.masquerade.is_empty() {
        return;
    }
    let set = format!("{family}_masquerade");
    let from = matches(text, family, address, "saddr", &set, &rules.masquerade);
    let set = format!("{family}_exempt");
    let exempt = matches(text, family, address, "daddr", &set, &rules.exempt);
    let chain = format!("{family}_outgoing");
    put_at(text, "\t", format_args!("chain {chain} {{"));
    for packets in exempt {
        put(text, format_args!("{packets} return"));
    }
    for translation in outgoing(family, rules) {
        put(text, format_args!("{translation}"));
    }
    put_at(text, "\t", format_args!("}}"));
    let leaving =
        rules
            .leaving_by
            .as_ref()
            .map_or_else(String::new, |interfaces| match interfaces {
                Interfaces::Named(name) => format!("oifname \"{name}\" "),
                Interfaces::Beginning(start) => format!("oifname \"{start}*\" "),
            });
    for packets in from {
        put(postrouting, format_args!("{leaving}{packets} jump {chain}"));
    }
}

/// With a range of ports the protocols that have ports go first.
fn outgoing(family: &str, rules: &FamilyRules) -> Vec<String> {
    let plain = rules.outgoing.map_or_else(
        || "masquerade".to_owned(),
        |address| format!("snat {family} to {address}"),
    );
    let with_ports = rules.ports.map(|(first, last)| {
        let range = match rules.outgoing {
            None => format!("masquerade to :{first}-{last}"),
            Some(address) if address.is_ipv6() => {
                format!("snat {family} to [{address}]:{first}-{last}")
            }
            Some(address) => format!("snat {family} to {address}:{first}-{last}"),
        };
        format!("meta l4proto {{ tcp, udp }} {range}")
    });
    with_ports.into_iter().chain([plain]).collect()
}

/// Sources that a workload may use. Neighbour discovery has sources of its own.
fn sources(
    text: &mut String,
    antispoof: &mut String,
    family: &str,
    address: &str,
    rules: &FamilyRules,
) {
    if rules.sources.is_empty() {
        return;
    }
    let names: Vec<String> = rules
        .sources
        .keys()
        .map(|name| format!("\"{name}\""))
        .collect();
    put_at(text, "\t", format_args!("set {family}_workloads {{"));
    put(text, format_args!("type ifname"));
    put(text, format_args!("elements = {{ {} }}", names.join(", ")));
    put_at(text, "\t", format_args!("}}"));
    let pairs = || {
        rules
            .sources
            .iter()
            .flat_map(|(name, of)| of.iter().map(move |p| (name, p)))
    };
    let (hosts, ranges): (Vec<_>, Vec<_>) = pairs().partition(|(_, prefix)| prefix.is_host());
    let hosts: Vec<String> = hosts
        .iter()
        .map(|(name, prefix)| format!("\"{name}\" . {}", prefix.address()))
        .collect();
    put_at(text, "\t", format_args!("set {family}_sources {{"));
    put(text, format_args!("type ifname . {address}"));
    if !hosts.is_empty() {
        put(text, format_args!("elements = {{ {} }}", hosts.join(", ")));
    }
    put_at(text, "\t", format_args!("}}"));
    let neighbours: &[&str] = match family {
        "ip6" => &["::", "fe80::/10"],
        _ => &[],
    };
    let neighbours = neighbours.iter().map(|of| format!("{family} saddr {of}"));
    let ranges = ranges
        .iter()
        .map(|(name, prefix)| format!("iifname \"{name}\" {family} saddr {prefix}"));
    let hosts = format!("iifname . {family} saddr @{family}_sources");
    let chain = format!("{family}_from_workloads");
    let allowed = neighbours.chain([hosts]).chain(ranges);
    nothing_else(text, &chain, allowed);
    put(
        antispoof,
        format_args!(
            "meta nfproto {} iifname @{family}_workloads jump {chain}",
            nfproto(family)
        ),
    );
}

/// Which packets the guard looks at: from a workload to a port of BGP or BFD.
fn bgp_packets(chain: &mut String, nat: &Nat, guard: &BgpGuard, family: &str) {
    let list = |ports: &mut dyn Iterator<Item = &u16>| {
        ports.map(u16::to_string).collect::<Vec<_>>().join(", ")
    };
    let bgp = format!("tcp dport {{ {} }}", list(&mut guard.ports.iter()));
    let bfd = format!("udp dport {{ {} }}", list(&mut BFD_PORTS.iter()));
    let interfaces = nat.interface_prefixes.iter();
    let interfaces =
        interfaces.map(|p| format!("meta nfproto {} iifname \"{p}*\"", nfproto(family)));
    let sources = guard.sources.iter();
    let sources = sources.map(|prefix| format!("{family} saddr {prefix}"));
    for from in interfaces.chain(sources) {
        for ports in [&bgp, &bfd] {
            put(
                chain,
                format_args!("{from} {ports} jump {family}_bgp_guard"),
            );
        }
    }
}

/// Action on packets to the BGP port.
fn bgp_guard(text: &mut String, family: &str, address: &str, guard: &BgpGuard) {
    let mut set = |name: &str, field: &str, addresses: &BTreeSet<IpAddr>| {
        let hosts: Vec<Prefix> = addresses.iter().copied().map(Prefix::host).collect();
        let name = format!("{family}_{name}");
        matches(text, family, address, field, &name, &hosts)
    };
    let peers = set("bgp_peers", "saddr", &guard.peers);
    let nodes = set("bgp_nodes", "daddr", &guard.nodes);
    let routers = set("bgp_routers", "daddr", &guard.routers);
    put_at(text, "\t", format_args!("chain {family}_bgp_guard {{"));
    for packets in peers {
        put(text, format_args!("{packets} return"));
    }
    for name in &guard.local_peers {
        put(
            text,
            format_args!("iifname \"{name}\" fib daddr type local return"),
        );
    }
    put(text, format_args!("fib daddr type local counter drop"));
    for packets in nodes {
        put(text, format_args!("{packets} counter drop"));
    }
    for packets in routers {
        for source in &guard.masqueraded {
            put(
                text,
                format_args!("{family} saddr {source} {packets} counter drop"),
            );
        }
    }
    put_at(text, "\t", format_args!("}}"));
}

/// Tunnel packets to this node come from nodes.
fn senders(
    text: &mut String,
    input: &mut String,
    family: &str,
    address: &str,
    rules: &FamilyRules,
) {
    let Some(senders) = rules.senders.as_ref().filter(|s| !s.from.is_empty()) else {
        return;
    };
    let set = format!("{family}_senders");
    let allowed = matches(text, family, address, "saddr", &set, &senders.from);
    let chain = format!("{family}_tunnel_senders");
    nothing_else(text, &chain, allowed);
    let judged = [
        senders.ipip.then(|| "meta l4proto 4".to_owned()),
        senders.vxlan.map(|port| format!("udp dport {port}")),
    ];
    for packets in judged.into_iter().flatten() {
        put(
            input,
            format_args!("meta nfproto {} {packets} jump {chain}", nfproto(family)),
        );
    }
}

fn nfproto(family: &str) -> &'static str {
    match family {
        "ip6" => "ipv6",
        _ => "ipv4",
    }
}

/// A chain that drops what none of these allows, and counts it.
fn nothing_else(text: &mut String, chain: &str, allowed: impl IntoIterator<Item = String>) {
    put_at(text, "\t", format_args!("chain {chain} {{"));
    for packets in allowed {
        put(text, format_args!("{packets} return"));
    }
    put(text, format_args!("counter drop"));
    put_at(text, "\t", format_args!("}}"));
}

/// Expressions that match a field with one of these prefixes: the addresses stand together in a set
/// of that name, each range stands for itself. Not in a set of intervals: while a transaction is
/// committed, a lookup in one misses what is there before and after (Linux 6.18: a packet in four
/// rewritings, at 14,000 packets a second).
fn matches<'a>(
    text: &mut String,
    family: &str,
    address: &str,
    field: &str,
    set: &str,
    prefixes: impl IntoIterator<Item = &'a Prefix>,
) -> Vec<String> {
    let (hosts, ranges): (Vec<&Prefix>, Vec<_>) = prefixes.into_iter().partition(|p| p.is_host());
    let mut found = Vec::new();
    if !hosts.is_empty() {
        let hosts: Vec<String> = hosts.iter().map(|p| p.address().to_string()).collect();
        put_at(text, "\t", format_args!("set {set} {{"));
        put(text, format_args!("type {address}"));
        put(text, format_args!("elements = {{ {} }}", hosts.join(", ")));
        put_at(text, "\t", format_args!("}}"));
        found.push(format!("{family} {field} @{set}"));
    }
    found.extend(ranges.iter().map(|p| format!("{family} {field} {p}")));
    found
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    put_at(text, "\t\t", line);
}

fn put_at(text: &mut String, indent: &str, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{indent}{line}").expect("writing to a String does not fail");
}

#[cfg(test)]
mod tests;
