//! The origin check in a table that follows the data.

mod over_nodes;
mod owners;

use super::*;
use crate::origin::{
    OriginMode, OriginRange, OriginRules, OriginUpdate, OwnerIdentity, PrefixOwner,
};
use crate::policy::{Filter, FilterCondition, FilterTerm, FilterVerdict, PrefixPattern};

/// 10.244.0.0/16 in blocks of /24.
fn rules(mode: OriginMode) -> OriginRules {
    let owned = OriginRange::Owned { shortest: 24 };
    OriginRules {
        mode,
        ranges: [("10.244.0.0/16".parse().unwrap(), owned)].into(),
        over_machines: BTreeSet::new(),
    }
}

fn identity(addresses: &[u8], router_ids: &[u8], relays: bool) -> OwnerIdentity {
    let router_id = |n: &u8| RouterId([1, 0, 0, *n].into());
    OwnerIdentity {
        addresses: addresses.iter().map(|n| address(*n)).collect(),
        router_ids: router_ids.iter().map(router_id).collect(),
        relays,
        asn: None,
    }
}

/// Node `n` has this AS, and 10.0.0.N.
fn node_of_as(n: u8, asn: u32) -> OriginUpdate {
    let identity = OwnerIdentity {
        asn: Some(Asn(asn)),
        ..identity(&[n], &[n], false)
    };
    node_is(n, Some(identity))
}

/// Node `n` has this identity now, or is gone.
fn node_is(n: u8, identity: Option<OwnerIdentity>) -> OriginUpdate {
    OriginUpdate {
        identities: vec![(format!("node{n}"), identity)],
        ..OriginUpdate::default()
    }
}

/// The rules, and nodes 2, 3 and 4 with 10.0.0.2, .3 and .4.
fn cluster(mode: OriginMode) -> OriginUpdate {
    let node = |n: u8| (format!("node{n}"), Some(identity(&[n], &[n], false)));
    OriginUpdate {
        rules: Some(rules(mode)),
        identities: [2, 3, 4].map(node).into(),
        ..OriginUpdate::default()
    }
}

/// Block `n` is node `owner`'s, or not any more.
fn held(n: u8, owner: u8, has: bool) -> OriginUpdate {
    OriginUpdate {
        ownership: vec![(prefix(n), PrefixOwner::Named(format!("node{owner}")), has)],
        ..OriginUpdate::default()
    }
}

fn stale(stale: bool) -> OriginUpdate {
    OriginUpdate {
        stale: Some(stale),
        ..OriginUpdate::default()
    }
}

impl Net {
    fn checked(peers: impl IntoIterator<Item = (u8, PeerConfig)>, mode: OriginMode) -> Self {
        let options = RibOptions {
            origins: cluster(mode),
            ..RibOptions::default()
        };
        let config = with_peers(peers);
        let names: Vec<PeerName> = config.peers.keys().cloned().collect();
        let mut net = Self::with_options(config, options);
        for (n, _) in (2..).zip(names) {
            net.up(n);
        }
        net
    }

    fn origins(&mut self, update: OriginUpdate) -> usize {
        let changes = self.rib.set_origins(self.now, update);
        let changed = changes.prefixes.len();
        self.mirror(changes);
        self.check();
        changed
    }

    fn sentence(&self, n: u8) -> String {
        let explained = self.rib.explain(&prefix(n));
        explained.paths[0].status.sentence()
    }
}

fn mesh(mode: OriginMode) -> Net {
    Net::checked([internal_peer(2), internal_peer(3)], mode)
}

/// Whose a next hop is follows from the blocks, too.
#[test]
fn a_next_hop_in_a_block_is_nobodys_as_long_as_the_block_is_there() {
    let mut net = mesh(OriginMode::Enforce);
    let pod: IpAddr = [10, 244, 1, 9].into();
    let mut three = identity(&[3], &[3], false);
    three.addresses.insert(pod);
    net.origins(node_is(3, Some(three)));
    net.origins(held(3, 3, true));
    let through = PathAttrs {
        next_hop: Some(pod),
        ..attrs(3)
    };
    net.announce(3, &[3], through);
    assert_eq!(net.hops(3), [pod]);
    net.origins(held(1, 2, true));
    assert!(net.hops(3).is_empty());
    net.origins(held(1, 2, false));
    assert_eq!(net.hops(3), [pod]);
}

#[test]
fn only_the_owner_of_a_block_may_announce_it() {
    let mut net = mesh(OriginMode::Enforce);
    net.origins(held(1, 2, true));
    net.announce(2, &[1], attrs(2));
    net.announce(3, &[1], attrs(3));
    assert_eq!(net.hops(1), [address(2)]);
    // The right node leaves: the wrong one does not take its place.
    net.withdraw(2, &[1]);
    assert!(net.hops(1).is_empty());
    assert!(
        net.sentence(1).contains("is node2's"),
        "{}",
        net.sentence(1)
    );
    assert_eq!(net.rib.screened().not_owner, 1);
    let status = net.rib.origin_status();
    assert_eq!(status.last_violation, Some((prefix(1), name(3))));
    // The block moves to the other node.
    assert_eq!(net.origins(held(1, 3, true)), 1);
    net.origins(held(1, 2, false));
    assert_eq!(net.hops(1), [address(3)]);
    assert_eq!(net.rib.screened().not_owner, 0);
}

#[test]
fn what_is_not_known_yet_waits_and_is_used_as_soon_as_it_is() {
    let mut net = mesh(OriginMode::Enforce);
    net.announce(2, &[1], attrs(2));
    assert!(net.hops(1).is_empty());
    assert_eq!(net.rib.screened().waiting, 1);
    assert!(net.sentence(1).contains("waits"), "{}", net.sentence(1));
    assert_eq!(net.origins(held(7, 2, true)), 0, "another block");
    assert_eq!(net.origins(held(1, 2, true)), 1);
    assert_eq!(net.hops(1), [address(2)]);
    assert_eq!(net.rib.screened().waiting, 0);
    // An address of the block, known with the block.
    let host: Prefix = "10.244.9.7/32".parse().unwrap();
    let update = UpdateMessage {
        announced: vec![host],
        attrs: Some(attrs(2)),
        ..UpdateMessage::default()
    };
    net.apply(2, update);
    assert_eq!(net.fib.get(&host), None);
    assert_eq!(net.origins(held(9, 2, true)), 1);
    assert!(net.fib.contains_key(&host));
}

#[test]
fn a_wait_is_bounded_and_then_a_problem() {
    let mut net = mesh(OriginMode::Enforce);
    net.announce(2, &[1], attrs(2));
    assert!(net.rib.screen.next_timeout().is_some());
    net.advance(29);
    assert_eq!(net.rib.screened().overdue, 0);
    net.advance(1);
    assert_eq!(net.rib.screened().overdue, 1);
    assert_eq!(net.rib.origin_status().overdue, Some(prefix(1)));
    assert_eq!(net.rib.screen.next_timeout(), None);
    // It still waits, and the problem ends with it.
    net.origins(held(1, 2, true));
    assert_eq!(net.rib.screened().overdue, 0);
    assert_eq!(net.hops(1), [address(2)]);
    // A wait that ends by itself is none.
    net.announce(2, &[5], attrs(2));
    net.withdraw(2, &[5]);
    net.advance(60);
    assert_eq!(net.rib.screened().overdue, 0);
    assert_eq!(net.rib.screen.next_timeout(), None);
}

#[test]
fn routes_in_force_stay_while_their_block_is_not_known_or_the_data_is_stale() {
    let mut net = mesh(OriginMode::Enforce);
    net.origins(held(1, 2, true));
    net.announce(2, &[1], attrs(2));
    // The owner gives the block up first, and withdraws then.
    net.origins(held(1, 2, false));
    assert_eq!(net.hops(1), [address(2)]);
    let other = PathAttrs {
        med: Some(7),
        ..attrs(2)
    };
    net.announce(2, &[1], other);
    assert_eq!(net.hops(1), [address(2)], "it leads where it led");
    net.withdraw(2, &[1]);
    net.announce(2, &[1], attrs(2));
    assert!(net.hops(1).is_empty(), "a new one waits");
    net.origins(held(1, 2, true));

    net.origins(stale(true));
    net.announce(3, &[2], attrs(3));
    net.announce(3, &[1], attrs(3));
    assert_eq!(net.hops(1), [address(2)]);
    assert_eq!(net.rib.screened().waiting, 2);
    assert_eq!(net.rib.screened().not_owner, 0);
    net.origins(stale(false));
    let screened = net.rib.screened();
    assert_eq!((screened.waiting, screened.not_owner), (1, 1));
    net.origins(held(2, 3, true));
    assert_eq!(net.hops(2), [address(3)]);

    // The block changes hands while the data is stale, and the word of it counts once it is not.
    net.origins(stale(true));
    net.origins(held(2, 4, true));
    net.origins(held(2, 3, false));
    assert_eq!(net.hops(2), [address(3)]);
    net.origins(stale(false));
    assert!(net.hops(2).is_empty());
}

#[test]
fn rfc4724_4_2_a_restarting_nodes_block_is_not_taken_over() {
    let mut net = Net::checked([internal_peer(2), external_peer(3)], OriginMode::Enforce);
    net.origins(held(1, 2, true));
    net.announce(2, &[1], attrs(2));
    net.down(2, true);
    assert!(net.fib[&prefix(1)].stale);
    net.announce(3, &[1], external(3, &[65003]));
    assert_eq!(net.hops(1), [address(2)]);
    net.announce(3, &[1], external(9, &[65003]));
    assert_eq!(net.hops(1), [address(2)]);
    net.up(2);
    net.announce(2, &[1], attrs(2));
    net.end_of_rib(2);
    assert_eq!(net.hops(1), [address(2)]);
}

#[test]
fn a_router_of_another_as_announces_nothing_of_the_pool() {
    let mut net = Net::checked([external_peer(2)], OriginMode::Enforce);
    net.origins(held(1, 3, true));
    let all = [
        "10.244.0.0/16",
        "10.244.1.9/32",
        "10.244.77.0/24",
        "10.0.0.0/8",
        "192.168.0.0/16",
    ];
    let update = UpdateMessage {
        announced: all.iter().map(|p| p.parse().unwrap()).collect(),
        attrs: Some(external(200, &[65002])),
        ..UpdateMessage::default()
    };
    net.apply(2, update);
    let used: Vec<Prefix> = net.fib.keys().copied().collect();
    assert_eq!(used, ["192.168.0.0/16".parse().unwrap()]);
    let screened = net.rib.screened();
    assert_eq!((screened.not_owner, screened.waiting), (3, 0));
}

/// An AS for each node, behind a router of another one that is the next hop of what it passes on.
#[test]
fn a_router_between_ases_of_nodes_passes_on_what_they_have() {
    let mut net = Net::checked([external_peer(2)], OriginMode::Enforce);
    net.origins(node_of_as(3, 65103));
    net.origins(node_of_as(4, 65104));
    net.origins(held(1, 3, true));
    net.announce(2, &[1], external(200, &[65002, 65103]));
    assert_eq!(net.hops(1), [address(200)]);
    // The AS of another node, no node's AS, another node as the next hop, and our own AS.
    net.announce(2, &[1], external(200, &[65002, 65104]));
    assert!(net.hops(1).is_empty());
    net.announce(2, &[1], external(200, &[65002]));
    assert!(net.hops(1).is_empty());
    net.announce(2, &[1], external(4, &[65002, 65103]));
    assert!(net.hops(1).is_empty());
    net.announce(2, &[1], external(200, &[65002, 65103]));
    assert_eq!(net.hops(1), [address(200)]);
    // A block that is not known yet waits, as its node's AS is known.
    net.announce(2, &[5], external(200, &[65002, 65104]));
    assert!(net.hops(5).is_empty());
    assert_eq!(net.rib.screened().waiting, 1);
    assert_eq!(net.origins(held(5, 4, true)), 1);
    assert_eq!(net.hops(5), [address(200)]);
    // The node's AS changes, or nobody knows it any more.
    net.origins(node_of_as(3, 65105));
    assert!(net.hops(1).is_empty());
    net.origins(node_of_as(3, 65103));
    assert_eq!(net.hops(1), [address(200)]);
    net.origins(node_is(3, None));
    assert!(net.hops(1).is_empty());
    // A peer of our own AS is no such router.
    let mut net = Net::checked([internal_peer(2)], OriginMode::Enforce);
    net.origins(node_of_as(3, 65103));
    net.origins(held(1, 3, true));
    let received = PathAttrs {
        as_path: AsPath::sequence([Asn(65103)]),
        ..attrs(200)
    };
    net.announce(2, &[1], received.clone());
    assert!(net.hops(1).is_empty());
    // Where the node's AS is ours the path says nothing.
    let origins = &net.rib.screen.origins;
    assert!(origins.passes_owner(&prefix(1), &received, OWN_AS));
    assert!(!origins.passes_owner(&prefix(1), &received, Asn(65103)));
}

#[test]
fn what_is_refused_for_long_is_a_problem_until_it_goes() {
    let mut net = Net::checked([internal_peer(2), external_peer(3)], OriginMode::Enforce);
    net.origins(held(1, 2, true));
    net.announce(2, &[1], attrs(2));
    net.announce(3, &[1, 2], external(200, &[65003]));
    net.advance(29);
    assert_eq!(net.rib.origin_status().refused, None);
    net.advance(1);
    assert_eq!(net.rib.screened().refused, 2);
    let (seen, peer, why) = net.rib.origin_status().refused.unwrap();
    assert_eq!((seen, peer), (prefix(1), name(3)));
    assert!(why.contains("is node2's"), "{why}");
    // It goes, while the owner's stays; the other one turns out to be the router's own business.
    net.withdraw(3, &[1]);
    assert_eq!(net.hops(1), [address(2)]);
    assert_eq!(net.rib.screened().refused, 1);
    let seen = net.rib.origin_status().refused.unwrap().0;
    assert_eq!(seen, prefix(2));
    net.origins(OriginUpdate {
        ownership: vec![(prefix(2), PrefixOwner::Free, true)],
        ..OriginUpdate::default()
    });
    assert_eq!(net.rib.screened().refused, 0);
    assert_eq!(net.rib.origin_status().refused, None);
    // A route that is there for a moment is no problem.
    net.announce(3, &[1], external(200, &[65003]));
    net.announce(3, &[1], external(2, &[65003]));
    net.advance(60);
    assert_eq!(net.rib.screened().refused, 0);
    assert_eq!(net.rib.screen.next_timeout(), None);
}

/// Nodes with ASes of their own tell each other what they have learned of others: refused, and
/// nothing is wrong.
#[test]
fn what_nodes_of_other_ases_pass_on_is_refused_and_no_problem() {
    let mut net = Net::checked([external_peer(2)], OriginMode::Enforce);
    net.origins(node_of_as(3, 65103));
    net.origins(node_of_as(2, 65002));
    net.origins(held(1, 3, true));
    net.announce(2, &[1], external(2, &[65002, 65103]));
    assert!(net.hops(1).is_empty());
    net.advance(60);
    assert_eq!(net.rib.screened().not_owner, 1);
    assert_eq!(net.rib.screened().refused, 0);
}

#[test]
fn a_filter_that_names_the_range_admits_a_peer_and_one_that_accepts_all_does_not() {
    let pattern = PrefixPattern::or_longer("10.244.0.0/16".parse().unwrap());
    let named = vec![FilterCondition::Prefix {
        patterns: vec![pattern],
        negated: false,
    }];
    for (conditions, expected) in [(named, 1), (vec![], 0)] {
        let term = FilterTerm {
            conditions,
            actions: vec![],
            verdict: Some(FilterVerdict::Accept),
        };
        let mut config = with_peers([external_peer(2)]);
        let filter = Filter::from(vec![term]);
        config.filters.insert("in".to_owned(), filter);
        let peer = config.peers.get_mut(&name(2)).unwrap();
        peer.import.push("in".to_owned());
        let options = RibOptions {
            origins: cluster(OriginMode::Enforce),
            ..RibOptions::default()
        };
        let mut net = Net::with_options(config, options);
        net.up(2);
        net.origins(held(1, 3, true));
        net.announce(2, &[1, 8], external(200, &[65002]));
        assert_eq!(net.fib.len(), expected, "block 8 is nobody's");
    }
    let (n, mut peer) = external_peer(2);
    peer.allow_own_as = 1;
    let mut net = Net::checked([(n, peer)], OriginMode::Enforce);
    net.origins(held(1, 3, true));
    net.announce(2, &[1, 8], external(200, &[65002, OWN_AS.0]));
    assert_eq!(net.hops(1), [address(200)]);
    assert_eq!(net.fib.len(), 1);
}

#[test]
fn log_counts_and_uses_and_off_does_neither() {
    for (mode, violations) in [(OriginMode::Log, 1), (OriginMode::Off, 0)] {
        let mut net = mesh(mode);
        net.origins(held(1, 2, true));
        net.announce(3, &[1], attrs(3));
        net.announce(3, &[6], attrs(3));
        assert_eq!(net.hops(1), [address(3)]);
        assert_eq!(net.hops(6), [address(3)]);
        assert_eq!(net.rib.screened().violations, violations);
    }
}

#[test]
fn rules_that_change_are_run_over_all_routes() {
    let mut net = mesh(OriginMode::Off);
    net.origins(held(1, 2, true));
    net.announce(2, &[1], attrs(2));
    net.announce(3, &[1], attrs(3));
    net.origins(OriginUpdate {
        rules: Some(rules(OriginMode::Enforce)),
        ..OriginUpdate::default()
    });
    assert_eq!(net.rib.screened().not_owner, 1);
    assert_eq!(net.hops(1), [address(2)]);
    // The node gets another address: its routes are valid with it, and what is in use with the old
    // one is not.
    net.origins(node_is(2, Some(identity(&[9], &[2], false))));
    assert!(net.hops(1).is_empty());
    net.announce(2, &[1], attrs(9));
    assert_eq!(net.hops(1), [address(9)]);
}
