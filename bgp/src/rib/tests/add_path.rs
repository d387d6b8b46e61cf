//! Several paths per prefix (RFC 7911), both ways.

use proptest::prelude::*;

use super::*;
use crate::config::{AddPath, PathCount};
use crate::types::ClusterId;

/// Peers 2 and 3 may send several paths, 8 takes so many, 9 one.
fn net(count: PathCount) -> Net {
    let mut config = with_peers([
        external_peer(2),
        external_peer(3),
        internal_peer(8),
        internal_peer(9),
    ]);
    for peer in config.peers.values_mut() {
        peer.add_path = AddPath {
            receive: true,
            send: Some(count),
        };
    }
    let mut net = Net::new(config);
    net.up(2);
    net.up(3);
    net.up(9);
    let options = SessionOptions {
        path_ids_out: vec![Family::Ipv4],
        ..SessionOptions::default()
    };
    net.up_with(
        8,
        SessionInfo {
            options,
            ..session(8)
        },
    );
    net
}

impl Net {
    fn announce_path(&mut self, n: u8, id: u32, to: u8, attrs: PathAttrs) {
        self.apply(
            n,
            UpdateMessage {
                announced: vec![prefix(to)],
                announced_ids: vec![id],
                attrs: Some(attrs),
                ..UpdateMessage::default()
            },
        );
    }

    fn withdraw_path(&mut self, n: u8, id: u32, from: u8) {
        self.apply(
            n,
            UpdateMessage {
                withdrawn: vec![prefix(from)],
                withdrawn_ids: vec![id],
                ..UpdateMessage::default()
            },
        );
    }

    /// The next hops of what peer 8 knows, sorted.
    fn hops_at_8(&self) -> Vec<IpAddr> {
        let id = self.rib.peer_id(&name(8)).unwrap();
        let adj_out = self.adj_out_paths.get(&id).into_iter().flatten();
        let mut hops: Vec<_> = adj_out.filter_map(|(_, attrs)| attrs.next_hop).collect();
        hops.sort_unstable();
        hops
    }
}

#[test]
fn rfc7911_3_paths_of_one_peer_stand_beside_each_other() {
    let mut net = net(PathCount::All);
    for id in [7, 5] {
        let hop = u8::try_from(id).unwrap() + 20;
        net.announce_path(2, id, 1, external(hop, &[65002]));
    }
    let received = net.rib.received(&name(2)).unwrap();
    let ids: Vec<_> = received.iter().map(|route| route.path_id).collect();
    assert_eq!(
        ids,
        [Some(5), Some(7)],
        "the lower identifier is the better"
    );
    assert_eq!(net.hops(1), [address(25), address(27)], "both are in use");
    assert_eq!(net.adj_out(9).len(), 1, "who takes one gets one");
    assert_eq!(net.hops_at_8(), [address(25), address(27)]);
    // The same identifier replaces, another prefix has its own.
    net.announce_path(2, 7, 1, external(30, &[65002, 65009]));
    net.announce_path(2, 7, 2, external(31, &[65002]));
    assert_eq!(net.hops(1), [address(25)]);
    assert_eq!(net.hops_at_8(), [address(25), address(30), address(31)]);
    net.withdraw_path(2, 5, 1);
    net.withdraw_path(2, 99, 1);
    assert_eq!(net.hops(1), [address(30)]);
    net.check();
    net.down(2, false);
    assert_eq!((net.fib.len(), net.hops_at_8().len()), (0, 0));
    assert_eq!(net.rib.counts().paths, 0);
    net.check();
}

#[test]
fn the_best_so_many_are_sent_and_identifiers_stay() {
    let mut net = net(PathCount::Best(2));
    let path = |len: u32| (0..len).map(|_| 65002).collect::<Vec<_>>();
    for (id, len) in [(1, 3), (2, 2), (3, 1)] {
        let hop = u8::try_from(id).unwrap() + 20;
        net.announce_path(2, id, 1, external(hop, &path(len)));
    }
    assert_eq!(net.hops_at_8(), [address(22), address(23)]);
    let eight = net.rib.peer_id(&name(8)).unwrap();
    let ids = |net: &Net| {
        net.adj_out_paths[&eight]
            .keys()
            .map(|(_, id)| *id)
            .collect::<Vec<_>>()
    };
    let before = ids(&net);
    net.announce(3, &[1], external(3, &[65003]));
    assert_eq!(net.hops_at_8(), [address(3), address(23)]);
    net.withdraw(3, &[1]);
    assert_eq!(ids(&net), before, "a path keeps its identifier");
    net.check();
}

#[test]
fn a_loser_that_changes_is_told_although_the_best_stays() {
    let mut net = net(PathCount::All);
    net.announce(2, &[1], external(2, &[65002]));
    net.announce(3, &[1], external(3, &[65003, 65009]));
    assert_eq!(net.hops_at_8(), [address(2), address(3)]);
    net.announce(3, &[1], external(33, &[65003, 65009]));
    assert_eq!(net.hops_at_8(), [address(2), address(33)]);
    net.withdraw(3, &[1]);
    assert_eq!(net.hops_at_8(), [address(2)]);
    net.check();
}

#[test]
fn refresh_policy_and_restart_hold_for_several_paths() {
    let mut net = net(PathCount::All);
    net.announce_path(2, 1, 1, external(21, &[65002]));
    net.announce_path(2, 2, 1, external(22, &[65002]));
    let changes = net.rib.route_refresh(net.now, &name(8), Family::Ipv4);
    let [Outbound::Peer { routes, .. }] = &changes.out[..] else {
        panic!("{changes:?}")
    };
    assert_eq!(routes.len(), 2);
    assert!(routes.iter().all(|route| route.path_id.is_some()));
    net.reconfigure(|config| {
        let only = crate::policy::FilterTerm {
            conditions: vec![crate::policy::FilterCondition::NextHop(Prefix::host(
                address(22),
            ))],
            actions: vec![],
            verdict: Some(crate::policy::FilterVerdict::Reject),
        };
        config
            .filters
            .insert("not-22".into(), crate::policy::Filter::from(vec![only]));
        config.peers.get_mut(&name(8)).unwrap().export = vec!["not-22".into()];
    });
    assert_eq!(net.hops_at_8(), [address(21)]);
    net.reconfigure(|config| {
        config.peers.get_mut(&name(8)).unwrap().export.clear();
        config.peers.get_mut(&name(2)).unwrap().import = vec!["not-22".into()];
    });
    assert_eq!(net.hops_at_8(), [address(21)]);
    net.check();
    net.down(2, true);
    assert!(net.fib[&prefix(1)].stale);
    assert_eq!(net.rib.received(&name(2)).unwrap().len(), 2);
    net.up(2);
    net.announce_path(2, 1, 1, external(21, &[65002]));
    net.end_of_rib(2);
    assert_eq!(net.rib.received(&name(2)).unwrap().len(), 1);
    net.check();
}

proptest! {
    /// Whatever comes in whatever order, peers know what the table says, and nothing is left
    /// behind.
    #[test]
    fn any_sequence_of_paths_leaves_the_peers_in_line(
        steps in proptest::collection::vec((2u8..4, 0u32..4, 1u8..3, any::<bool>(), 1usize..4), 1..60),
        count in prop_oneof![Just(PathCount::All), (1u8..4).prop_map(PathCount::Best)],
    ) {
        let mut net = net(count);
        for (peer, id, to, announce, len) in steps {
            if announce {
                let path = vec![65000 + u32::from(peer); len];
                net.announce_path(peer, id, to, external(20 + u8::try_from(id).unwrap(), &path));
            } else {
                net.withdraw_path(peer, id, to);
            }
            net.check();
        }
        net.down(2, false);
        net.down(3, false);
        net.check();
        prop_assert_eq!(net.rib.counts().paths, 0);
    }
}

/// The time of a look at each path is what it takes, not of each path for each path: ten thousand
/// paths to one prefix from one peer and one more to whom all of them are told; then the session
/// ends.
#[test]
fn many_paths_to_one_prefix_go_without_being_looked_for() {
    let mut config = with_peers([internal_peer(7), internal_peer(8)]);
    for n in [7, 8] {
        config.peers.get_mut(&name(n)).unwrap().client_of = Some(ClusterId([1, 1, 1, 1].into()));
    }
    config.peers.get_mut(&name(8)).unwrap().add_path.send = Some(PathCount::All);
    let mut net = Net::new(config);
    net.up(7);
    let options = SessionOptions {
        path_ids_out: vec![Family::Ipv4],
        ..SessionOptions::default()
    };
    net.up_with(
        8,
        SessionInfo {
            options,
            ..session(8)
        },
    );
    let count = 10_000u32;
    net.apply(
        7,
        UpdateMessage {
            announced: vec![prefix(1); count as usize],
            announced_ids: (0..count).collect(),
            attrs: Some(attrs(7)),
            ..UpdateMessage::default()
        },
    );
    assert_eq!(net.rib.counts().paths, count as usize);
    let id = net.rib.peer_id(&name(8)).unwrap();
    assert_eq!(net.adj_out_paths[&id].len(), count as usize);
    let before = crate::rib::table::looked_at();
    net.down(7, false);
    let looked = crate::rib::table::looked_at() - before;
    assert!(
        looked <= 4 * count as usize,
        "{looked} looks for {count} paths"
    );
    assert_eq!(net.rib.counts().paths, 0);
    assert!(net.adj_out_paths[&id].is_empty());
    net.check();
}
