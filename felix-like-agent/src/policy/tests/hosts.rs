//! Host endpoints: whose interface is whose, and what becomes of packets there.

use caracal_model::{PolicyEndpoint, Verdict};

use super::super::layout::{EARLY, HOST_IN, HOST_OUT, THROUGH_IN, THROUGH_OUT};
use super::*;
use crate::links::Link;

/// Interfaces of the node: the second one has the address of host endpoints that name none.
const INTERFACES: [&str; 4] = ["eth0", "eth1", "eth2", "lo"];

fn links() -> Links {
    let mut all = Vec::new();
    for (index, name) in (1..).zip(INTERFACES) {
        let link = Link::new(index, name);
        all.push(match name {
            "eth1" => link.with_address("10.0.0.7/24".parse().unwrap()),
            _ => link,
        });
    }
    all.into_iter().collect()
}

fn plan(data: &PolicyData) -> PolicyTable {
    let (me, settings) = (NodeName::from("me"), PolicySettings::default());
    PolicyTable::plan(data, &me, &settings, &links())
}

/// The host endpoint of an interface: the first by name, or else the first of all interfaces.
fn of_interface<'a>(data: &'a PolicyData, interface: &str) -> Option<&'a PolicyEndpoint> {
    let own = || data.host_endpoints().filter(|(_, e)| e.node == "me");
    let is_of = |e: &PolicyEndpoint| match &*e.interface {
        "" => interface == "eth1",
        name => name == interface,
    };
    let named = own()
        .filter(|(_, e)| is_of(e))
        .min_by_key(|(name, _)| *name);
    let others = || {
        own()
            .filter(|(_, e)| e.interface == "*")
            .min_by_key(|(name, _)| *name)
    };
    named.or_else(others).map(|(_, endpoint)| endpoint)
}

/// What the table says by an interface, or by the family of the packet for all others.
fn decides_at(table: &PolicyTable, maps: [&'static str; 2], at: &str, p: &Packet) -> Option<bool> {
    let named = decides(table, maps[0], at, p);
    let family = Field::Family(Family::of(p.source));
    named.or_else(|| table.decides(maps[1], family, p))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// POL-1 for host endpoints.
    #[test]
    fn the_table_decides_as_the_policies_say_of_hosts(
        steps in random::steps_with_hosts(),
        packets in proptest::collection::vec(packet(), 20),
    ) {
        let mut data = PolicyData::default();
        for step in &steps {
            apply(&mut data, step);
        }
        let table = plan(&data);
        type Judge = fn(&PolicyData, &PolicyEndpoint, PolicyDirection, &Packet) -> Verdict;
        let ways: [(_, Judge, _); 4] = [
            (HOST_IN, PolicyData::judge, PolicyDirection::Ingress),
            (HOST_OUT, PolicyData::judge, PolicyDirection::Egress),
            (THROUGH_IN, PolicyData::judge_forwarded, PolicyDirection::Ingress),
            (THROUGH_OUT, PolicyData::judge_forwarded, PolicyDirection::Egress),
        ];
        for interface in INTERFACES {
            let endpoint = of_interface(&data, interface);
            for p in &packets {
                for (maps, judge, direction) in ways {
                    let judged = endpoint.map(|e| judge(&data, e, direction, p).allowed);
                    let decided = decides_at(&table, maps, interface, p);
                    prop_assert_eq!(decided, judged, "{} {} {:?}", interface, maps[0], p);
                }
                // What nothing has decided goes on.
                let judged = endpoint.map(|e| {
                    let early = data.judge_before_translation(e, p);
                    early.is_none_or(|verdict| verdict.allowed)
                });
                let decided = decides_at(&table, EARLY, interface, p);
                prop_assert_eq!(decided, judged, "{} {} {:?}", interface, EARLY[0], p);
            }
        }
    }
}

/// The order of the kernel's chains, in which a lock-out would be.
#[test]
fn what_is_never_closed_comes_before_host_endpoints() {
    let base = plan(&PolicyData::default()).base;
    let at = |rule: &str| {
        let line = format!("add rule inet {POLICY_TABLE} {rule}");
        let found = base.lines().position(|of| of == line);
        found.unwrap_or_else(|| panic!("{line} is not in\n{base}"))
    };
    for (chain, host, before) in [
        (
            "input",
            "iifname vmap @host-in",
            &[
                "icmpv6 type 130-136 accept",
                "meta l4proto 4 accept",
                "meta l4proto 17 th dport 4789 accept",
                "meta l4proto 17 th dport 3784 accept",
                "meta l4proto 6 th dport 22 accept",
                "meta l4proto 6 th dport 179 accept",
                "ct state established,related accept",
                "iifname vmap @from-pods-to-node",
                "iifname \"cali*\" counter drop",
            ][..],
        ),
        (
            "output",
            "oifname vmap @host-out",
            &[
                "ct state established,related accept",
                "icmpv6 type 130-136 accept",
                "meta l4proto 17 th dport 4789 accept",
                "meta l4proto 6 th dport 2379 accept",
                "meta l4proto 6 th dport 179 accept",
                "oifname \"cali*\" accept",
            ],
        ),
        (
            "output",
            "meta nfproto vmap @host-out-others",
            &["oifname \"lo\" accept"],
        ),
        (
            "input",
            "meta nfproto vmap @host-in-others",
            &["iifname \"lo\" accept"],
        ),
        (
            "forward",
            "goto from-dispatch",
            &[
                "iifname vmap @through-in",
                "meta nfproto vmap @through-in-others",
            ],
        ),
        (
            "prerouting",
            "iifname vmap @early",
            &[
                "ct state established,related accept",
                "icmpv6 type 130-136 accept",
                "meta l4proto 6 th dport 22 accept",
            ],
        ),
        (
            "prerouting",
            "meta nfproto vmap @early-others",
            &["iifname \"lo\" accept"],
        ),
        (
            "input",
            "ct mark and 0x1000 != 0x0 accept",
            &["iifname vmap @from-pods-to-node"],
        ),
        (
            "forward",
            "ct mark and 0x1000 != 0x0 goto from-dispatch",
            &["ct mark and 0x2000 != 0x0 goto revoked"],
        ),
        (
            "leave",
            "accept",
            &[
                "oifname vmap @through-out",
                "meta nfproto vmap @through-out-others",
            ],
        ),
    ] {
        let host = at(&format!("{chain} {host}"));
        for rule in before {
            assert!(at(&format!("{chain} {rule}")) < host, "{chain} {rule}");
        }
    }
}

/// The table of an earlier build has no maps for host endpoints.
#[test]
fn maps_that_are_missing_are_made() {
    let listed = format!(
        "table inet {POLICY_TABLE} {{\n\tmap to-pods {{\n\t\ttype ifname : verdict\n\t}}\n}}\n"
    );
    let (before, _) = PolicyTable::adopt(&listed);
    let [first, ..] = plan(&PolicyData::default()).since(Some(&before));
    let script = first.script(POLICY_TABLE);
    let map = format!("add map inet {POLICY_TABLE} host-in-others {{ type nf_proto : verdict; }}");
    assert!(script.lines().any(|line| line == map), "{script}");
}

#[test]
fn an_interface_is_judged_by_one() {
    let mut data = PolicyData::default();
    for step in [
        random::host("b", ("me", "eth1"), "x"),
        random::host("a", ("me", ""), "x"),
        random::host("c", ("me", "*"), "x"),
        random::host("d", ("me", "*"), "x"),
        random::host("e", ("me", "cali1"), "x"),
        random::host("f", ("other", "eth0"), "x"),
    ] {
        apply(&mut data, &step);
    }
    let table = plan(&data);
    let judged = ["a", "b", "c", "d", "e", "f"].map(|name| table.interfaces_of(name).join(" "));
    assert_eq!(judged, ["eth1", "", "*", "", "", ""]);
    assert!(asks_for_addresses(&data, &"me".into()));
    assert!(!asks_for_addresses(&data, &"other".into()));
}
