#![allow(clippy::unwrap_used)]

use caracal_model::Underlay;

use super::*;
use crate::actual::ActualRoute;
use crate::links::Link;
use crate::underlay;

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn underlay() -> Underlay {
    let links: Links = [
        Link::new(2, "eth0").with_address("10.0.0.1/24".parse().unwrap()),
        Link::new(3, "eth1")
            .with_address("10.0.1.1/24".parse().unwrap())
            .with_address("2001:db8::1/64".parse().unwrap()),
    ]
    .into_iter()
    .collect();
    underlay::underlay_of(&links, [], &BTreeSet::new())
}

fn tables(paths: usize) -> Tables {
    let settings = TableSettings {
        paths,
        ..TableSettings::default()
    };
    Tables::from([(Family::Ipv4, settings.clone()), (Family::Ipv6, settings)])
}

fn learned(next_hops: &[&str]) -> Learned {
    let learned = Learned {
        next_hops: next_hops.iter().map(|h| h.parse().unwrap()).collect(),
        ..Learned::default()
    };
    learned.over(&underlay())
}

fn shown(ops: &[Op]) -> Vec<String> {
    ops.iter().map(ToString::to_string).collect()
}

/// A route in the table.
fn there(text: &str, protocol: u8, metric: u32, link: &str) -> ActualRoute {
    ActualRoute::from(Route {
        prefix: prefix(text),
        metric,
        protocol,
        target: ForwardingTarget::via(Some("10.0.0.9".parse().unwrap()), &link.into(), false),
        mtu: None,
        source: None,
    })
}

#[test]
fn several_next_hops_are_one_route_up_to_the_limit() {
    let p = prefix("192.0.2.0/24");
    let route = learned(&["10.0.1.2", "10.0.0.2", "10.9.9.9", "10.0.0.3"]);
    let ops = |paths| {
        let wanted = [(&p, Some(&route))];
        shown(&changes(&tables(paths), wanted, &Actual::default(), Phase::Learning).0)
    };
    assert_eq!(
        ops(1),
        ["add route 192.0.2.0/24 via 10.0.1.2 dev eth1 onlink proto 81 metric 32"],
        "the best path's"
    );
    assert_eq!(
        ops(2),
        [
            "add route 192.0.2.0/24 via 10.0.0.2 dev eth0 onlink nexthop via 10.0.1.2 dev eth1 onlink proto 81 metric 32"
        ]
    );
}

#[test]
fn gateways_of_other_weights_get_other_shares() {
    let p = prefix("192.0.2.0/24");
    let weighted = |extra_weight| {
        let mut route = learned(&["10.0.0.2", "10.0.0.3"]);
        let mut gateways = route.gateways.to_vec();
        gateways[0].extra_weight = extra_weight;
        route.gateways = gateways.into();
        route
    };
    let ops = |paths, extra_weight, actual: &Actual| {
        let route = weighted(extra_weight);
        let wanted = [(&p, Some(&route))];
        shown(&changes(&tables(paths), wanted, actual, Phase::Learning).0)
    };
    assert_eq!(
        ops(2, 2, &Actual::default()),
        [
            "add route 192.0.2.0/24 via 10.0.0.2 dev eth0 onlink weight 3 nexthop via 10.0.0.3 dev eth0 onlink proto 81 \
             metric 32"
        ]
    );
    assert_eq!(
        ops(1, 2, &Actual::default()),
        ["add route 192.0.2.0/24 via 10.0.0.2 dev eth0 onlink proto 81 metric 32"],
        "one has no share"
    );
}

#[test]
fn rfc8950_a_next_hop_of_the_other_family_is_one_like_any() {
    let p = prefix("192.0.2.0/24");
    let route = learned(&["2001:db8::2"]);
    let (ops, _) = changes(
        &tables(1),
        [(&p, Some(&route))],
        &Actual::default(),
        Phase::Learning,
    );
    assert_eq!(
        shown(&ops),
        ["add route 192.0.2.0/24 via 2001:db8::2 dev eth1 onlink proto 81 metric 32"]
    );
}

#[test]
fn agent_5_only_our_protocol_is_ours_whatever_the_device() {
    let p = prefix("10.244.1.7/32");
    let mut actual = Actual::default();
    for (protocol, link) in [
        (80, "eth0"),
        (12, "tunl0"),
        (3, "vxlan.calico"),
        (3, "cali1"),
        (12, "eth0"),
        (186, "eth0"),
        (81, "eth0"),
    ] {
        actual.push_route(there(
            "10.244.1.7/32",
            protocol,
            u32::from(protocol) + 100,
            link,
        ));
    }
    let (ops, _) = changes(&tables(1), [(&p, None)], &actual, Phase::Synced);
    assert_eq!(
        shown(&ops),
        ["delete route 10.244.1.7/32 via 10.0.0.9 dev eth0 proto 81 metric 181"]
    );
    assert_eq!(removal(&tables(1), &actual), ops);
    // In the place of a foreign route nothing is written.
    let mut taken = Actual::default();
    taken.push_route(there("10.244.1.7/32", 12, 32, "eth0"));
    let route = learned(&["10.0.0.2"]);
    let (ops, _) = changes(&tables(1), [(&p, Some(&route))], &taken, Phase::Synced);
    assert_eq!(shown(&ops), [""; 0]);
}

#[test]
fn agent_4_before_everything_is_known_nothing_is_deleted() {
    let p = prefix("192.0.2.0/24");
    let mut actual = Actual::default();
    actual.push_route(there("192.0.2.0/24", 81, 32, "eth0"));
    let ops = |phase| changes(&tables(1), [(&p, None)], &actual, phase).0;
    assert_eq!(ops(Phase::Learning), []);
    assert_eq!(ops(Phase::Frozen), []);
    assert_eq!(ops(Phase::Synced).len(), 1);
}

#[test]
fn a_prefix_without_a_way_is_told_and_leaves_the_table() {
    let p = prefix("192.0.2.0/24");
    let mut actual = Actual::default();
    actual.push_route(there("192.0.2.0/24", 81, 32, "eth0"));
    let route = learned(&["10.9.9.9"]);
    let (ops, unreachable) = changes(&tables(1), [(&p, Some(&route))], &actual, Phase::Synced);
    assert_eq!(ops.len(), 1);
    assert!(ops[0].is_delete());
    assert_eq!(unreachable, BTreeSet::from([p]));
}

#[test]
fn agent_3_what_was_carried_out_is_in_the_picture() {
    let p = prefix("192.0.2.0/24");
    let mut actual = Actual::default();
    // The first is added, the second replaces it, nothing deletes it.
    for wanted in [
        Some(learned(&["10.0.0.2"])),
        Some(learned(&["10.0.1.2"])),
        None,
    ] {
        let step =
            |actual: &Actual| changes(&tables(2), [(&p, wanted.as_ref())], actual, Phase::Synced).0;
        let ops = step(&actual);
        assert_eq!(ops.len(), 1, "{ops:?}");
        note(&mut actual, &ops[0]);
        assert_eq!(step(&actual), []);
    }
    assert!(actual.routes.is_empty());
}

#[test]
fn a_family_without_a_table_is_not_written() {
    let p = prefix("192.0.2.0/24");
    let mut tables = tables(1);
    tables.remove(&Family::Ipv4);
    let route = learned(&["10.0.0.2"]);
    let (ops, _) = changes(
        &tables,
        [(&p, Some(&route))],
        &Actual::default(),
        Phase::Synced,
    );
    assert_eq!(ops, []);
}

#[test]
fn a_route_of_ours_that_leads_nowhere_is_a_blackhole() {
    let p = prefix("192.0.2.0/24");
    let own = Learned::default();
    let wanted = [(&p, Some(&own))];
    let (ops, unreachable) = changes(&tables(1), wanted, &Actual::default(), Phase::Synced);
    assert!(unreachable.is_empty());
    let [Op::AddRoute(route)] = &ops[..] else {
        panic!("{ops:?}")
    };
    assert_eq!(route.target, ForwardingTarget::Blackhole);
    // Once it is there, nothing is to be done; a learned one takes its place.
    let mut actual = Actual::default();
    note(&mut actual, &ops[0]);
    let again = changes(&tables(1), wanted, &actual, Phase::Synced);
    assert_eq!(again, (vec![], BTreeSet::new()));
    let via = learned(&["10.0.0.2"]);
    let wanted = [(&p, Some(&via))];
    let (ops, _) = changes(&tables(1), wanted, &actual, Phase::Synced);
    assert_eq!(ops.len(), 1, "{ops:?}");
}

#[test]
fn routes_of_others_and_never_our_own() {
    let routes = [
        there("10.1.0.0/16", 4, 0, "eth0"),
        there("10.2.0.0/16", TABLE_PROTOCOL, 32, "eth0"),
        there("10.3.0.0/16", 2, 0, "eth0"),
        there("10.4.0.0/16", 186, 20, "eth0"),
        there("10.5.0.0/16", 12, 20, "eth0"),
        there("10.6.0.0/16", 188, 20, "eth0"),
        there("10.7.0.0/16", 188, 20, "eth0"),
        there("10.7.0.0/16", 4, 10, "eth1"),
        there("fe80::/64", 4, 256, "eth0"),
        there("224.0.0.0/4", 4, 0, "eth0"),
        there("0.0.0.0/0", 16, 100, "eth1"),
    ];
    let mut unreachable = there("10.8.0.0/16", 4, 0, "eth0");
    unreachable.target = ActualTarget::Other(7);
    let mut actual = Actual::default();
    for route in routes.into_iter().chain([unreachable]) {
        actual.push_route(route);
    }
    let seen = |learn, protocol| {
        let settings = TableSettings {
            learn,
            protocol,
            ..TableSettings::default()
        };
        let tables = Tables::from([(Family::Ipv4, settings)]);
        foreigners(&tables, &actual)
    };
    let texts =
        |found: &Foreigners| -> Vec<String> { found.keys().map(ToString::to_string).collect() };
    assert_eq!(seen(None, TABLE_PROTOCOL), Foreigners::new());
    let some = seen(Some(LearnScope::Some), TABLE_PROTOCOL);
    assert_eq!(
        texts(&some),
        ["0.0.0.0/0", "10.1.0.0/16", "10.6.0.0/16", "10.7.0.0/16"]
    );
    let lowest = &some[&prefix("10.7.0.0/16")];
    assert_eq!(lowest.protocol, 4);
    assert_eq!(lowest.interface.as_ref().unwrap().to_string(), "eth1");
    let all = texts(&seen(Some(LearnScope::All), TABLE_PROTOCOL));
    assert_eq!(all.len(), 7, "{all:?}");
    assert!(!all.contains(&"10.2.0.0/16".to_owned()), "ours");
    // Whatever its number is.
    let renumbered = texts(&seen(Some(LearnScope::All), 188));
    assert!(!renumbered.contains(&"10.6.0.0/16".to_owned()));
    // And what a speaker wrote that is gone is nobody's to announce.
    let other = texts(&seen(Some(LearnScope::Some), 90));
    assert!(!other.contains(&"10.2.0.0/16".to_owned()));
}
