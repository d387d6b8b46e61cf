//! Keeps workloads, and what is translated for anybody, off the nodes' BGP, BFD and VXLAN.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;

use super::super::{BFD_PORTS, BgpGuard, Nat};
use super::{NftTable, hosts_in, matches, nfproto, put, put_at};
use crate::nft::Fields;

fn numbers(ports: &BTreeSet<u16>) -> String {
    let ports = ports.iter().map(u16::to_string);
    ports.collect::<Vec<_>>().join(", ")
}

/// Which packets of workloads the guard looks at, behind translation: those to a port of BGP or
/// BFD.
pub(super) fn workloads_packets(chain: &mut String, nat: &Nat, guard: &BgpGuard, family: &str) {
    let protocol = nfproto(family);
    for prefix in &nat.interface_prefixes {
        for (of, ports) in [("tcp", &guard.ports), ("udp", &BTreeSet::from(BFD_PORTS))] {
            put(
                chain,
                format_args!(
                    "meta nfproto {protocol} iifname \"{prefix}*\" {of} dport {{ {} }} jump {family}_bgp_guard",
                    numbers(ports)
                ),
            );
        }
    }
}

/// Ports that nothing translated may go to: BGP's, BFD's, and that of VXLAN.
fn closed_ports<'a>(nat: &Nat, guard: &'a BgpGuard) -> [(&'static str, Cow<'a, BTreeSet<u16>>); 2] {
    let mut udp = BTreeSet::from(BFD_PORTS);
    udp.extend(nat.no_vxlan_from_workloads);
    [
        ("tcp", Cow::Borrowed(&guard.ports)),
        ("udp", Cow::Owned(udp)),
    ]
}

/// What somebody has translated to a closed port, as conntrack knows.
pub(super) fn translated_packets(chain: &mut String, nat: &Nat, guard: &BgpGuard, family: &str) {
    let protocol = nfproto(family);
    for (of, ports) in closed_ports(nat, guard) {
        put(
            chain,
            format_args!(
                "meta nfproto {protocol} {of} dport {{ {} }} ct direction original ct status dnat jump {family}_translated",
                numbers(&ports)
            ),
        );
    }
}

/// What ipvs has translated to a closed port. Conntrack has no word for that, and the address and
/// port that the sender has named.
pub(super) fn balanced_packets(chain: &mut String, nat: &Nat, guard: &BgpGuard, family: &str) {
    let protocol = nfproto(family);
    let mut named = Vec::new();
    for (set, addresses) in [("nodes", &guard.nodes), ("routers", &guard.routers)] {
        if !addresses.is_empty() {
            let set = format!("@{family}_bgp_{set}");
            let to = format!("{family} daddr {set}");
            named.push(format!(
                "{to} ct direction original ct original {family} daddr != {set}"
            ));
        }
    }
    for (of, ports) in closed_ports(nat, guard) {
        let other = ports
            .iter()
            .map(|port| format!(" ct original proto-dst != {port}"))
            .collect::<String>();
        let numbers = numbers(&ports);
        for sent in [format!("ct direction original{other}")]
            .iter()
            .chain(&named)
        {
            put(
                chain,
                format_args!(
                    "meta nfproto {protocol} {of} dport {{ {numbers} }} {sent} jump {family}_translated"
                ),
            );
        }
    }
}

/// Action on these packets.
pub(super) fn bgp_guard(
    table: &mut NftTable,
    (family, address): (&str, &str),
    nat: &Nat,
    guard: &BgpGuard,
) {
    let mut set = |name: &str, field: &str, addresses: &BTreeSet<IpAddr>| {
        let hosts = addresses.iter().map(|at| Fields::from([(*at).into()]));
        hosts_in(
            table,
            family,
            address,
            field,
            &format!("{family}_{name}"),
            hosts.collect(),
        )
    };
    let peers = set("bgp_peers", "saddr", &guard.peers);
    let nodes = set("bgp_nodes", "daddr", &guard.nodes);
    let routers = set("bgp_routers", "daddr", &guard.routers);
    let name = format!("{family}_bgp_masqueraded");
    let from = match routers.is_empty() {
        true => Vec::new(),
        false => matches(table, family, address, "saddr", &name, &guard.masqueraded),
    };
    let text = &mut table.text;
    put_at(text, "\t", format_args!("chain {family}_to_nodes {{"));
    put(text, format_args!("fib daddr type local counter drop"));
    for packets in nodes {
        put(text, format_args!("{packets} counter drop"));
    }
    put_at(text, "\t", format_args!("}}"));
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
    put(text, format_args!("jump {family}_to_nodes"));
    for packets in &routers {
        for source in &from {
            put(text, format_args!("{source} {packets} counter drop"));
        }
    }
    put_at(text, "\t", format_args!("}}"));
    put_at(text, "\t", format_args!("chain {family}_translated {{"));
    // What comes from workloads here was judged by the rules before.
    put(text, format_args!("iifname \"lo\" return"));
    for prefix in &nat.interface_prefixes {
        put(text, format_args!("iifname \"{prefix}*\" return"));
    }
    for packets in &routers {
        let from = packets.replace("daddr", "saddr");
        put(text, format_args!("{from} return"));
    }
    put(text, format_args!("jump {family}_to_nodes"));
    for packets in routers {
        put(text, format_args!("{packets} counter drop"));
    }
    put_at(text, "\t", format_args!("}}"));
}
