//! The rules as nftables scripts, each one transaction: one replaces the table of our own, another
//! one changes elements of its sets ([`written`]).

mod bgp;
pub(crate) mod blockers;
pub(crate) mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_model::{Family, Prefix};

use super::name::{Interfaces, PlainName};
use super::{FamilyRules, LoopGuard, Nat};
use crate::nft::{FINGERPRINT, Fields, Sets, digest};
use bgp::{balanced_packets, bgp_guard, translated_packets, workloads_packets};

/// Our table, of family `inet`.
pub(crate) const TABLE: &str = "caracal";
/// Stands in the text for the elements of the set that follows.
const ELEMENTS: &str = "\t\telements of ";
/// Behind the filters of others: who refuses a Service without endpoints is asked first.
const BEHIND_FILTERS: u8 = 10;
/// Behind ipvs, which translates in `input` at 98 and 99.
const BEHIND_IPVS: u8 = 110;

/// The script that puts the rules in the place of those before, in one transaction.
#[must_use]
pub(crate) fn script(nat: &Nat) -> String {
    // `delete` fails on a missing table, hence the first line.
    let fingerprint = nat.fingerprint();
    format!(
        "table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n\tchain {FINGERPRINT}{fingerprint} {{\n\t}}\n{}}}\n",
        NftTable::new(nat),
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

/// The table's content without fingerprint and checksum.
#[derive(Debug, Default)]
pub(super) struct NftTable {
    /// All but the elements of sets.
    text: String,
    sets: Sets,
}

impl std::fmt::Display for NftTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in self.text.lines() {
            match line.strip_prefix(ELEMENTS) {
                None => writeln!(f, "{line}")?,
                Some(set) => self.sets.write(f, set)?,
            }
        }
        Ok(())
    }
}

impl NftTable {
    /// Tells tables apart, and is kept by element: when only elements change, it follows from them.
    pub(super) fn fingerprint(&self) -> String {
        let structure = digest(&self.text);
        format!("{structure}{:016x}", self.sets.sum())
    }

    /// Declares a set.
    fn set(&mut self, name: &str, of: &str, keys: Vec<Fields>) {
        let text = &mut self.text;
        put_at(text, "\t", format_args!("set {name} {{"));
        put(text, format_args!("type {of}"));
        put_at(text, ELEMENTS, format_args!("{name}"));
        put_at(text, "\t", format_args!("}}"));
        self.sets.put(name, keys);
    }

    pub(super) fn new(nat: &Nat) -> Self {
        let mut table = Self::default();
        fill(&mut table, nat);
        table
    }
}

fn fill(table: &mut NftTable, nat: &Nat) {
    let mut postrouting = String::new();
    let mut antispoof = String::new();
    let mut input = String::new();
    let mut forward = String::new();
    let mut loops = String::new();
    let (mut balanced_here, mut balanced_on) = (String::new(), String::new());
    for prefix in &nat.interface_prefixes {
        if let Some(port) = nat.no_vxlan_from_workloads {
            // Once more behind translation: a service may lead there.
            for chain in [&mut antispoof, &mut input, &mut balanced_here, &mut forward] {
                put(
                    chain,
                    format_args!("iifname \"{prefix}*\" udp dport {port} drop"),
                );
            }
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
        masquerading(table, &mut postrouting, family, address, rules);
        tunnels(&mut postrouting, family, rules);
        // Once more behind translation, as VXLAN's port.
        for chain in [&mut antispoof, &mut input, &mut balanced_here] {
            loopback(chain, nat, family, rules);
        }
        sources(table, &mut antispoof, family, address, rules);
        if let Some(guard) = &rules.bgp {
            for chain in [&mut input, &mut forward] {
                workloads_packets(chain, nat, guard, family);
                translated_packets(chain, nat, guard, family);
            }
            bgp_guard(table, (family, address), nat, guard);
            workloads_packets(&mut balanced_here, nat, guard, family);
            balanced_packets(&mut balanced_here, nat, guard, family);
            if !guard.peers.is_empty() {
                put(
                    &mut balanced_on,
                    format_args!("{family} saddr @{family}_bgp_peers return"),
                );
            }
            balanced_packets(&mut balanced_on, nat, guard, family);
        }
        senders(table, &mut input, family, address, rules);
        if let Some(guard) = &rules.loops {
            loop_guard(table, (family, address), nat, guard);
            let ranges = guard.ranges.iter();
            ranges.for_each(|range| {
                put(
                    &mut loops,
                    format_args!("{family} daddr {range} jump {family}_loops"),
                );
            });
        }
    }
    let text = &mut table.text;
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
        put(text, format_args!("iifname \"{prefix}*\" accept"));
        put(text, format_args!("oifname \"{prefix}*\" accept"));
    }
    text.push_str("\t}\n");
    balanced_chains(text, &balanced_here, &balanced_on);
    loop_chains(text, &loops);
}

/// Behind ipvs: what ends here, and what it sends on.
fn balanced_chains(text: &mut String, here: &str, on: &str) {
    // What a process sends has a socket of its own.
    let sent_on = "\t\tmeta skuid != 4294967295 return\n";
    for (hook, priority, first, rules) in
        [("input", BEHIND_IPVS, "", here), ("output", 0, sent_on, on)]
    {
        if !rules.is_empty() {
            put_at(text, "\t", format_args!("chain balanced_{hook} {{"));
            put(
                text,
                format_args!("type filter hook {hook} priority {priority}; policy accept;"),
            );
            text.push_str(first);
            text.push_str(rules);
            put_at(text, "\t", format_args!("}}"));
        }
    }
}

fn loop_chains(text: &mut String, loops: &str) {
    for (hook, first) in [("forward", ""), ("output", "\t\toifname \"lo\" return\n")] {
        if !loops.is_empty() {
            let priority = BEHIND_FILTERS;
            put_at(text, "\t", format_args!("chain loops_{hook} {{"));
            put(
                text,
                format_args!("type filter hook {hook} priority {priority}; policy accept;"),
            );
            text.push_str(first);
            text.push_str(loops);
            put_at(text, "\t", format_args!("}}"));
        }
    }
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
    table: &mut NftTable,
    postrouting: &mut String,
    family: &str,
    address: &str,
    rules: &FamilyRules,
) {
    if rules.masquerade.is_empty() {
        return;
    }
    let set = format!("{family}_masquerade");
    let from = matches(table, family, address, "saddr", &set, &rules.masquerade);
    let set = format!("{family}_exempt");
    let exempt = matches(table, family, address, "daddr", &set, &rules.exempt);
    let text = &mut table.text;
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
    table: &mut NftTable,
    antispoof: &mut String,
    family: &str,
    address: &str,
    rules: &FamilyRules,
) {
    if rules.sources.is_empty() {
        return;
    }
    let names = rules.sources.keys();
    let names = names.map(|name| Fields::from([name.into()]));
    table.set(&format!("{family}_workloads"), "ifname", names.collect());
    let pairs = rules.sources.iter();
    let pairs = pairs.flat_map(|(name, of)| of.iter().map(move |prefix| (name, prefix)));
    let (hosts, ranges): (Vec<(&PlainName, _)>, Vec<_>) =
        pairs.partition(|(_, prefix): &(_, &Prefix)| prefix.is_host());
    let hosts = hosts.into_iter();
    let hosts = hosts.map(|(name, host)| Fields::from([name.into(), host.into()]));
    let pair = format!("ifname . {address}");
    table.set(&format!("{family}_sources"), &pair, hosts.collect());
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
    nothing_else(&mut table.text, &chain, allowed);
    put(
        antispoof,
        format_args!(
            "meta nfproto {} iifname @{family}_workloads jump {chain}",
            nfproto(family)
        ),
    );
}

/// Nobody but this machine speaks to its loopback addresses.
fn loopback(chain: &mut String, nat: &Nat, family: &str, rules: &FamilyRules) {
    for prefix in &nat.interface_prefixes {
        if let Some(range) = &rules.loopback {
            put(
                chain,
                format_args!("iifname \"{prefix}*\" {family} daddr {range} drop"),
            );
        }
    }
}

/// Action on what is sent to a range of services.
fn loop_guard(table: &mut NftTable, (family, address): (&str, &str), nat: &Nat, guard: &LoopGuard) {
    let set = format!("{family}_in_ranges");
    let in_use = matches(table, family, address, "daddr", &set, &guard.in_use);
    let text = &mut table.text;
    put_at(text, "\t", format_args!("chain {family}_loops {{"));
    put(text, format_args!("ct status dnat return"));
    for prefix in &nat.interface_prefixes {
        put(text, format_args!("oifname \"{prefix}*\" return"));
    }
    for packets in in_use {
        put(text, format_args!("{packets} return"));
    }
    if guard.rejects {
        // A segment outside of the window of a connection that lives is no reason to end it.
        put(text, format_args!("ct state invalid counter drop"));
        put(text, format_args!("counter reject"));
    } else {
        put(text, format_args!("counter drop"));
    }
    put_at(text, "\t", format_args!("}}"));
}

/// Tunnel packets to this node come from nodes.
fn senders(
    table: &mut NftTable,
    input: &mut String,
    family: &str,
    address: &str,
    rules: &FamilyRules,
) {
    let Some(senders) = rules.senders.as_ref().filter(|s| !s.from.is_empty()) else {
        return;
    };
    let set = format!("{family}_senders");
    let allowed = matches(table, family, address, "saddr", &set, &senders.from);
    let chain = format!("{family}_tunnel_senders");
    nothing_else(&mut table.text, &chain, allowed);
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

/// As many ranges of one length stand for themselves.
const FEW: usize = 4;

/// Expressions that match a field with one of these prefixes: the addresses stand together in a set
/// of that name, and ranges of one length in a set of their networks, so that there are as many
/// rules with ten pools as with thousands; few of them stand for themselves. Not in a set of
/// intervals: while a transaction is committed, a lookup in one misses what is there before and
/// after (Linux 6.18: a packet in four rewritings, at 14,000 packets a second).
fn matches(
    table: &mut NftTable,
    family: &str,
    address: &str,
    field: &str,
    set: &str,
    prefixes: &BTreeSet<Prefix>,
) -> Vec<String> {
    let (hosts, ranges): (Vec<&Prefix>, Vec<_>) = prefixes.iter().partition(|p| p.is_host());
    let hosts = hosts.into_iter().map(|p| Fields::from([p.into()]));
    let mut found = hosts_in(table, family, address, field, set, hosts.collect());
    let mut by_length: BTreeMap<u8, Vec<&Prefix>> = BTreeMap::new();
    for range in ranges {
        by_length.entry(range.len()).or_default().push(range);
    }
    for (len, ranges) in by_length {
        if ranges.len() <= FEW {
            found.extend(ranges.iter().map(|p| format!("{family} {field} {p}")));
            continue;
        }
        let mask: IpAddr = match ranges[0].family() {
            Family::Ipv4 => Ipv4Addr::from_bits(!(u32::MAX >> len)).into(),
            Family::Ipv6 => Ipv6Addr::from_bits(!(u128::MAX >> len)).into(),
        };
        let networks = ranges.iter().map(|p| Fields::from([p.address().into()]));
        let set = format!("{set}_{len}");
        table.set(&set, address, networks.collect());
        found.push(format!("{family} {field} & {mask} @{set}"));
    }
    found
}

/// An expression that matches a field with these addresses; none without any.
fn hosts_in(
    table: &mut NftTable,
    family: &str,
    address: &str,
    field: &str,
    set: &str,
    hosts: Vec<Fields>,
) -> Vec<String> {
    if hosts.is_empty() {
        return Vec::new();
    }
    table.set(set, address, hosts);
    vec![format!("{family} {field} @{set}")]
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    put_at(text, "\t\t", line);
}

fn put_at(text: &mut String, indent: &str, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{indent}{line}").expect("writing to a String does not fail");
}

#[cfg(test)]
mod tests;
