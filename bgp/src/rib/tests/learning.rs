//! From UPDATE to the forwarding table.

use super::*;
use crate::policy::{
    Filter, FilterAction, FilterCondition, FilterTerm, FilterVerdict, PrefixPattern,
};

#[test]
fn announce_replace_withdraw() {
    let mut net = Net::mesh([2]);
    net.announce(2, &[1, 2], attrs(2));
    assert_eq!(net.hops(1), [address(2)]);
    net.announce(2, &[1], attrs(7));
    assert_eq!(
        (net.hops(1), net.hops(2)),
        (vec![address(7)], vec![address(2)])
    );
    net.withdraw(2, &[1, 9]);
    assert_eq!(net.hops(1), [] as [IpAddr; 0]);
    net.check();
    assert_eq!(net.rib.counts().prefixes, 1);
}

#[test]
fn an_announcement_of_the_same_again_changes_nothing() {
    let mut net = Net::mesh([2, 3]);
    net.announce(2, &[1], attrs(2));
    let announced = vec![prefix(1)];
    let again = UpdateMessage {
        announced,
        attrs: Some(attrs(2)),
        ..UpdateMessage::default()
    };
    assert!(net.rib.apply(net.now, &name(2), again).is_empty());
}

#[test]
fn rfc4271_4_3_a_prefix_in_both_lists_is_announced() {
    let mut net = Net::mesh([2]);
    let update = UpdateMessage {
        withdrawn: vec![prefix(1)],
        announced: vec![prefix(1)],
        attrs: Some(attrs(2)),
        ..UpdateMessage::default()
    };
    net.apply(2, update);
    assert_eq!(net.hops(1), [address(2)]);
}

#[test]
fn the_better_path_wins_and_the_other_takes_over() {
    let mut net = Net::mesh([2, 3]);
    net.announce(2, &[1], attrs(2));
    net.announce(
        3,
        &[1],
        PathAttrs {
            local_pref: Some(200),
            ..attrs(3)
        },
    );
    assert_eq!(net.hops(1), [address(3)]);
    assert_eq!(net.fib[&prefix(1)].peer, name(3));
    net.withdraw(3, &[1]);
    assert_eq!(net.hops(1), [address(2)]);
    net.check();
}

#[test]
fn equal_paths_are_one_route_with_all_next_hops() {
    let mut net = Net::mesh([2, 3, 4]);
    for n in [4, 3, 2] {
        net.announce(n, &[1], attrs(n));
        net.check();
    }
    assert_eq!(net.hops(1), [address(2), address(3), address(4)]);
    net.withdraw(3, &[1]);
    assert_eq!(net.hops(1), [address(2), address(4)]);
    net.announce(
        4,
        &[1],
        PathAttrs {
            local_pref: Some(50),
            ..attrs(4)
        },
    );
    assert_eq!(net.hops(1), [address(2)]);
    net.check();
}

#[test]
fn our_own_route_is_not_for_the_forwarding_table_and_beats_learned_ones() {
    let mut net = Net::mesh([2]);
    net.announce(
        2,
        &[1],
        PathAttrs {
            local_pref: Some(4_000_000_000),
            ..attrs(2)
        },
    );
    assert_eq!(net.hops(1), [address(2)]);
    net.reconfigure(|config| drop(config.originate.insert(prefix(1), Origination::default())));
    assert_eq!(net.hops(1), [] as [IpAddr; 0]);
    assert_eq!(net.adj_out_prefixes(2), [prefix(1)]);
    net.reconfigure(|config| drop(config.originate.remove(&prefix(1))));
    assert_eq!(net.hops(1), [address(2)]);
    assert_eq!(net.adj_out_prefixes(2), []);
    net.check();
}

#[test]
fn a_session_without_restart_takes_its_routes_along() {
    let mut net = Net::mesh([2, 3]);
    net.announce(2, &[1, 2], attrs(2));
    net.announce(3, &[2], attrs(3));
    net.down(2, false);
    assert_eq!((net.hops(1), net.hops(2)), (vec![], vec![address(3)]));
    net.apply(
        2,
        UpdateMessage {
            announced: vec![prefix(1)],
            attrs: Some(attrs(2)),
            ..UpdateMessage::default()
        },
    );
    assert_eq!(
        net.hops(1),
        [] as [IpAddr; 0],
        "an UPDATE without a session is not heard"
    );
    net.check();
    assert_eq!(net.rib.counts().paths, 1);
}

fn way(metric: u32) -> Option<UnderlayRoute> {
    Some(UnderlayRoute {
        metric,
        ..UnderlayRoute::default()
    })
}

#[test]
fn rfc4271_9_1_2_1_an_unreachable_next_hop_makes_a_path_ineligible() {
    let mut net = Net::mesh([2, 3]);
    net.announce(
        2,
        &[1],
        PathAttrs {
            local_pref: Some(200),
            ..attrs(2)
        },
    );
    net.announce(3, &[1], attrs(3));
    let unreachable = BTreeMap::from([(Prefix::host(address(2)), None)]);
    let changes = net
        .rib
        .set_underlay(net.now, Underlay::new(unreachable, way(0)));
    assert_eq!(changes.prefixes, [prefix(1)]);
    net.mirror(changes);
    assert_eq!(net.hops(1), [address(3)]);
    assert_eq!(
        net.rib.explain(&prefix(1)).paths[1].status,
        PathStatus::Unreachable
    );
    let cost = BTreeMap::from([(Prefix::host(address(2)), way(5))]);
    let changes = net.rib.set_underlay(net.now, Underlay::new(cost, way(0)));
    net.mirror(changes);
    assert_eq!(net.hops(1), [address(2)]);
}

/// Ways by which the hosts 2 and 3 are reached.
fn ways(two: Option<UnderlayRoute>, three: Option<UnderlayRoute>) -> Underlay {
    let routes = [
        (Prefix::host(address(2)), two),
        (Prefix::host(address(3)), three),
    ];
    Underlay::new(routes, None)
}

fn on(interface: &str, carrier: bool) -> Option<UnderlayRoute> {
    Some(UnderlayRoute {
        interface: Some(interface.into()),
        carrier,
        ..UnderlayRoute::default()
    })
}

#[test]
fn a_way_without_carrier_is_the_last_resort_and_no_loss() {
    let mut net = Net::mesh([2, 3]);
    let better = PathAttrs {
        local_pref: Some(200),
        ..attrs(2)
    };
    net.announce(2, &[1, 2], better);
    net.announce(3, &[1], attrs(3));
    let follow = |net: &mut Net, two, three| {
        let changes = net.rib.set_underlay(net.now, ways(two, three));
        let prefixes = changes.prefixes.clone();
        net.mirror(changes);
        prefixes
    };
    let mut changed = follow(&mut net, on("eth0", true), on("eth1", true));
    changed.sort_unstable();
    assert_eq!(changed, [prefix(1), prefix(2)], "they have gateways now");
    let moved = follow(&mut net, on("eth0", false), on("eth1", true));
    assert_eq!(moved, [prefix(1)], "the other prefix has no other path");
    assert_eq!(net.hops(1), [address(3)]);
    assert_eq!(net.hops(2), [address(2)]);
    let lost = &net.rib.explain(&prefix(1)).paths[1];
    assert_eq!(
        lost.status,
        PathStatus::Lost {
            reason: BestPathReason::Carrier,
            multipath: false
        }
    );
    assert_eq!(
        lost.way.as_ref().map(ToString::to_string).as_deref(),
        Some("on the link dev eth0, metric 0, no carrier")
    );
    assert_eq!(
        follow(&mut net, on("eth0", false), on("eth1", false)),
        [prefix(1)]
    );
    assert_eq!(
        net.hops(1),
        [address(2)],
        "both are without: as if both had one"
    );
    let mut gone = follow(&mut net, None, on("eth1", true));
    gone.sort_unstable();
    assert_eq!(gone, [prefix(1), prefix(2)]);
    assert_eq!(net.hops(2), [] as [IpAddr; 0]);
    follow(&mut net, on("eth0", true), on("eth1", true));
    assert_eq!(
        (net.hops(1), net.hops(2)),
        (vec![address(2)], vec![address(2)])
    );
    net.check();
}

#[test]
fn import_policy_knows_the_interface_and_follows_it() {
    let mut config = with_peers([internal_peer(2)]);
    let uplink = FilterTerm {
        conditions: vec![FilterCondition::Interface("eth*".to_owned())],
        actions: vec![FilterAction::SetLocalPref(500)],
        verdict: Some(FilterVerdict::Accept),
    };
    let rest = FilterTerm {
        conditions: vec![],
        actions: vec![],
        verdict: Some(FilterVerdict::Reject),
    };
    let filter = Filter::from(vec![uplink, rest]);
    config.filters.insert("in".to_owned(), filter);
    for peer in config.peers.values_mut() {
        peer.import = vec!["in".to_owned()];
    }
    let mut net = Net::new(config);
    net.up(2);
    net.announce(2, &[1], attrs(2));
    assert_eq!(net.hops(1), [] as [IpAddr; 0], "nobody knows the interface");
    let follow = |net: &mut Net, two| {
        let changes = net.rib.set_underlay(net.now, ways(two, None));
        net.mirror(changes);
        net.hops(1)
    };
    assert_eq!(follow(&mut net, on("eth0", true)), [address(2)]);
    assert_eq!(follow(&mut net, on("wg0", true)), [] as [IpAddr; 0]);
    assert_eq!(follow(&mut net, on("eth1", true)), [address(2)]);
    net.check();
}

#[test]
fn loops_and_policy_refuse_with_their_reason() {
    let mut config = with_peers([internal_peer(2), external_peer(3)]);
    let reject = |n: u8| FilterTerm {
        conditions: vec![FilterCondition::Prefix {
            patterns: vec![PrefixPattern::exact(prefix(n))],
            negated: false,
        }],
        actions: vec![],
        verdict: Some(FilterVerdict::Reject),
    };
    let prefer = FilterTerm {
        conditions: vec![],
        actions: vec![FilterAction::SetLocalPref(500)],
        verdict: None,
    };
    config
        .filters
        .insert("in".into(), Filter::from(vec![prefer, reject(9)]));
    config.peers.get_mut(&name(3)).unwrap().import = vec!["in".into()];
    let mut net = Net::new(config);
    net.up(2);
    net.up(3);
    net.announce(3, &[1, 9], external(3, &[65003]));
    net.announce(3, &[2], external(3, &[65003, OWN_AS.0]));
    assert_eq!(net.fib.keys().collect::<Vec<_>>(), [&prefix(1)]);
    assert_eq!(net.fib[&prefix(1)].local_pref, 500);
    assert!(!net.fib[&prefix(1)].internal);
    let received = net.rib.received(&name(3)).unwrap();
    let status: Vec<String> = received
        .iter()
        .map(|route| route.status.sentence())
        .collect();
    assert_eq!(
        status,
        [
            "best: only path",
            "not used: our AS is in the AS path",
            "not used: rejected by import policy, term 2 of filter in"
        ]
    );
    net.check();
}

#[test]
fn a_family_that_was_not_negotiated_is_not_heard() {
    let mut net = Net::mesh([2]);
    let v6: Prefix = "fd00::/64".parse().unwrap();
    net.apply(
        2,
        UpdateMessage {
            announced: vec![v6],
            attrs: Some(attrs(2)),
            ..UpdateMessage::default()
        },
    );
    assert_eq!(net.rib.counts().prefixes, 0);
}

#[test]
fn explain_names_the_rule_by_which_each_path_lost() {
    let mut net = Net::mesh([2, 3, 4]);
    net.announce(
        2,
        &[1],
        PathAttrs {
            local_pref: Some(300),
            ..attrs(2)
        },
    );
    net.announce(
        3,
        &[1],
        PathAttrs {
            local_pref: Some(300),
            ..external(3, &[65001])
        },
    );
    net.announce(4, &[1], attrs(4));
    let host: Prefix = "10.244.1.7/32".parse().unwrap();
    let explained = net.rib.explain(&host);
    assert_eq!(explained.prefix, Some(prefix(1)));
    let lines: Vec<_> = explained
        .paths
        .iter()
        .map(|route| (route.peer.clone().unwrap(), route.status.sentence()))
        .collect();
    assert_eq!(
        lines,
        [
            (name(2), "best: shorter AS_PATH".to_owned()),
            (name(3), "lost: the best has shorter AS_PATH".to_owned()),
            (name(4), "lost: the best has higher LOCAL_PREF".to_owned()),
        ]
    );
    assert_eq!(explained.learned.unwrap().peer, name(2));
    assert_eq!(net.rib.explain(&prefix(200)).prefix, None);
}

#[test]
fn one_own_route_can_be_changed_without_a_configuration() {
    let mut net = Net::mesh([2]);
    let route = Origination {
        med: Some(5),
        ..Origination::default()
    };
    let changes = net.rib.originate(net.now, prefix(1), &route);
    net.mirror(changes);
    assert_eq!(net.adj_out(2)[&prefix(1)].med, Some(5));
    let changes = net.rib.withdraw(net.now, prefix(1));
    net.mirror(changes);
    assert_eq!(net.adj_out_prefixes(2), []);
    assert!(net.rib.withdraw(net.now, prefix(1)).is_empty());
    assert_eq!(net.rib.counts().prefixes, 0);
}

#[test]
fn export_policy_knows_the_interface_of_the_next_hop_and_follows_it() {
    let mut config = with_peers([internal_peer(2), external_peer(4), external_peer(5)]);
    let term = |conditions, verdict| FilterTerm {
        conditions,
        actions: vec![],
        verdict: Some(verdict),
    };
    let uplink = FilterCondition::Interface("eth*".to_owned());
    let filter = Filter::from(vec![
        term(vec![uplink], FilterVerdict::Accept),
        term(vec![], FilterVerdict::Reject),
    ]);
    config.filters.insert("out".to_owned(), filter);
    config.originate.insert(prefix(9), Origination::default());
    config.peers.get_mut(&name(4)).unwrap().export = vec!["out".to_owned()];
    let mut net = Net::new(config);
    for n in [2, 4, 5] {
        net.up(n);
    }
    net.announce(2, &[1], attrs(2));
    assert_eq!(net.adj_out_prefixes(4), [], "nobody knows the interface");
    let follow = |net: &mut Net, two| {
        let changes = net.rib.set_underlay(net.now, ways(two, None));
        net.mirror(changes);
        net.check();
        net.adj_out_prefixes(4)
    };
    // The same cost over another interface: nothing but policy has a reason to look.
    assert_eq!(follow(&mut net, on("eth0", true)), [prefix(1)]);
    assert_eq!(follow(&mut net, on("wg0", true)), []);
    assert_eq!(follow(&mut net, on("eth1", true)), [prefix(1)]);
    assert_eq!(follow(&mut net, None), []);
    assert_eq!(follow(&mut net, on("eth1", true)), [prefix(1)]);
    assert_eq!(net.adj_out_prefixes(5), [prefix(1), prefix(9)]);
}
