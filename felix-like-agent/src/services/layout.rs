//! The part of our table that does not depend on services: sets, maps and the chains that the
//! kernel calls.
//!
//! A packet to a service is looked up once (`services4`, `services6`: address, protocol, port). The
//! verdict is a chain that all services with as many endpoints share, `pick-N`: a random index
//! below N makes the key of the endpoint. So an endpoint is one element of a map, and a Service has
//! no chain of its own unless clients keep their endpoints.
//!
//! What is not the Services' is asked for first: the way to the datastore (`spared4`, `spared6`)
//! and ports of this node (`kept-ports`) are neither translated nor refused, whatever else the
//! table holds, and nobody is led to its ports for other nodes (`guarded-ports`).
//!
//! No mark is used: what has to be masqueraded is found in postrouting by the address that the
//! packet had at first, which conntrack knows. Marks are Calico's and kube-proxy's.

use std::fmt::Write as _;

use caracal_model::Family;

use crate::nft::digest;
use crate::transport::Transport;

/// Name of the table, of family `inet`.
pub(crate) const SERVICES_TABLE: &str = "caracal-services";
/// An empty chain whose name says of which layout a table is.
pub(super) const MARK: &str = "layout-";
/// Chains in which the address is still that of the service, of this layout and of those before.
pub(super) const CHECKS: [&str; 4] = ["check-senders", "translate", "refuse", "drop-untranslated"];
/// Set of endpoints that are left alone, without the family's digit.
pub(super) const SPARED: &str = "spared";
/// Sets of intervals, without the family's digit.
pub(super) const INTERVALS: [&str; 3] = ["senders", "pods", "ranges"];
/// kube-proxy's translation is at -100: where both are, ours is asked.
const TRANSLATION: i32 = -101;
/// Before translation, where the address is still that of the service.
const SENDERS: i32 = -110;
/// Before kube-proxy's and Calico's source translation, at 100 and 110.
const MASQUERADE: i32 = 99;
/// Before the source is translated: the client is who it is.
const KEEPING: i32 = 98;

/// `4` or `6`: the end of the names of a family's sets.
pub(super) const fn digit(family: Family) -> char {
    match family {
        Family::Ipv4 => '4',
        Family::Ipv6 => '6',
    }
}

/// The word for addresses of a family in expressions of nftables.
pub(super) const fn word(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// Declarations of sets, maps and chains, and the rules.
pub(super) fn layout() -> String {
    let mut text = String::new();
    for family in FAMILIES {
        sets(&mut text, digit(family), word(family));
    }
    text.push_str(
        "set kept-ports { type inet_proto . inet_service; }\n\
         set guarded-ports { type inet_proto . inet_service; }\n\
         chain refusal {\nmeta l4proto tcp reject with tcp reset\n\
         reject with icmpx port-unreachable\n}\n",
    );
    for name in [
        "check-senders",
        "translate",
        "by-sender",
        "refuse",
        "guard",
        "drop-untranslated",
        "keep-clients",
        "translate-source",
    ] {
        writeln!(text, "chain {name} {{").expect(INFALLIBLE);
        for family in FAMILIES {
            rules(&mut text, name, digit(family), word(family));
        }
        text.push_str("}\n");
    }
    let is_new = "ct state new jump";
    let translated = "ct state new ct status dnat jump";
    // What is not part of a connection is not translated either. It is dropped, not refused: a
    // segment outside of its window would reset a connection that lives.
    let leaves = format!("{is_new} refuse\nct state invalid jump drop-untranslated");
    for (kind, hook, priority, rule) in [
        (
            "filter",
            "prerouting",
            SENDERS,
            format!("{is_new} check-senders"),
        ),
        (
            "filter",
            "output",
            SENDERS,
            format!("{is_new} check-senders"),
        ),
        (
            "nat",
            "prerouting",
            TRANSLATION,
            "jump translate".to_owned(),
        ),
        ("nat", "output", TRANSLATION, "jump translate".to_owned()),
        (
            "filter",
            "input",
            0,
            format!("{translated} guard\n{is_new} refuse"),
        ),
        ("filter", "forward", 0, leaves.clone()),
        ("filter", "output", 0, leaves),
        (
            "filter",
            "input",
            KEEPING,
            format!("{translated} keep-clients"),
        ),
        (
            "filter",
            "postrouting",
            KEEPING,
            format!("{translated} keep-clients"),
        ),
        (
            "nat",
            "postrouting",
            MASQUERADE,
            "ct status dnat jump translate-source".to_owned(),
        ),
    ] {
        let name = format!("{hook}{priority}").replace('-', "m");
        writeln!(
            text,
            "chain {kind}-{name} {{\ntype {kind} hook {hook} priority {priority}; policy accept;\n\
             {rule}\n}}"
        )
        .expect(INFALLIBLE);
    }
    text
}

const INFALLIBLE: &str = "writing to a String does not fail";

fn sets(text: &mut String, n: char, ip: &str) {
    let key = format!("ipv{n}_addr . inet_proto . inet_service");
    writeln!(text, "set {SPARED}{n} {{ type {key}; }}").expect(INFALLIBLE);
    for map in ["services", "inside", "outside", "refused", "keep"] {
        writeln!(text, "map {map}{n} {{ type {key} : verdict; }}").expect(INFALLIBLE);
    }
    // A map a protocol: what nft 1.0.6 has written of `th dport` it cannot read back, and where the
    // map says `tcp dport` its rules are for TCP alone.
    for protocol in Transport::ALL.map(Transport::as_str) {
        let index = format!("{ip} daddr . meta l4proto . {protocol} dport . numgen random mod 2");
        for map in ["endpoints", "here"] {
            writeln!(
                text,
                "map {map}{n}-{protocol} {{ typeof {index} : {ip} daddr . {protocol} dport; }}"
            )
            .expect(INFALLIBLE);
        }
    }
    for set in ["masqueraded", "from-node", "limited"] {
        writeln!(text, "set {set}{n} {{ type {key}; }}").expect(INFALLIBLE);
    }
    writeln!(
        text,
        "set senders{n} {{ type {key} . ipv{n}_addr; flags interval; }}\n\
         set hits{n} {{ type {key}; counter; }}\n\
         set hairpin{n} {{ type ipv{n}_addr . ipv{n}_addr; }}\n\
         set cluster-ips{n} {{ type ipv{n}_addr; }}\n\
         set pods{n} {{ type ipv{n}_addr; flags interval; }}\n\
         set ranges{n} {{ type ipv{n}_addr; flags interval; }}"
    )
    .expect(INFALLIBLE);
}

fn rules(text: &mut String, chain: &str, n: char, ip: &str) {
    let key = format!("{ip} daddr . meta l4proto . th dport");
    let first = |rest: &str| {
        // The type of a port is known to nftables only where the protocol is.
        let of = |protocol: Transport| {
            let protocol = protocol.as_str();
            format!(
                "meta l4proto {protocol} ct original {ip} daddr . meta l4proto . \
                 ct original proto-dst {rest}\n"
            )
        };
        Transport::ALL.map(of).concat()
    };
    let masquerade = "masquerade fully-random";
    let spared = format!("{key} @{SPARED}{n} return\n");
    let ports = "meta l4proto . th dport";
    text.push_str(&match chain {
        "check-senders" => {
            format!("{spared}{key} @limited{n} {key} . {ip} saddr != @senders{n} drop\n")
        }
        // The first packet of each connection comes by here.
        "translate" => format!(
            "{spared}{ports} @kept-ports fib daddr type local return\n\
             {key} @hits{n}\n{key} vmap @services{n}\n"
        ),
        // Pods and the node itself reach all endpoints, whatever the policy for those outside.
        "by-sender" => format!(
            "{ip} saddr @pods{n} {key} vmap @inside{n}\n\
             fib saddr type local {key} vmap @inside{n}\n\
             {key} vmap @outside{n}\n"
        ),
        "refuse" => format!(
            "{spared}{key} vmap @refused{n}\n\
             {ip} daddr @cluster-ips{n} goto refusal\n\
             {ip} daddr @ranges{n} drop\n"
        ),
        // The plan knows addresses of nodes; this node may have others.
        "guard" => [
            format!("{ports} @guarded-ports ct original {ip} daddr @cluster-ips{n} drop\n"),
            first(&format!("@masqueraded{n} {ports} @guarded-ports drop")),
            first(&format!("@from-node{n} {ports} @guarded-ports drop")),
        ]
        .concat(),
        "drop-untranslated" => [
            spared,
            format!("{ip} daddr @cluster-ips{n} drop\n"),
            format!("{ip} daddr @ranges{n} drop\n"),
            format!("{key} @masqueraded{n} drop\n"),
            format!("{key} @from-node{n} drop\n"),
            format!("{key} vmap @refused{n}\n"),
        ]
        .concat(),
        "keep-clients" => first(&format!("vmap @keep{n}")),
        _ => [
            format!("{ip} saddr . {ip} daddr @hairpin{n} {masquerade}\n"),
            format!("ct original {ip} daddr @cluster-ips{n} {ip} saddr != @pods{n} {masquerade}\n"),
            first(&format!("@masqueraded{n} {masquerade}")),
            first(&format!("@from-node{n} fib saddr type local {masquerade}")),
        ]
        .concat(),
    });
}

/// The mark of this layout.
pub(super) fn mark() -> String {
    format!("{MARK}{}", digest(&layout()))
}
