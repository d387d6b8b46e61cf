//! Changes of configuration against stored routes.

use super::*;
use crate::config::NextHopMode;
use crate::policy::{
    Filter, FilterAction, FilterCondition, FilterTerm, FilterVerdict, PrefixPattern,
};
use crate::types::ClusterId;

fn reject(n: u8) -> Filter {
    let patterns = vec![PrefixPattern::exact(prefix(n))];
    let conditions = vec![FilterCondition::Prefix {
        patterns,
        negated: false,
    }];
    Filter::from(vec![FilterTerm {
        conditions,
        actions: vec![],
        verdict: Some(FilterVerdict::Reject),
    }])
}

fn prefer(local_pref: u32) -> Filter {
    let actions = vec![FilterAction::SetLocalPref(local_pref)];
    Filter::from(vec![FilterTerm {
        conditions: vec![],
        actions,
        verdict: None,
    }])
}

#[test]
fn import_policy_runs_again_over_the_stored_routes() {
    let mut net = Net::mesh([2, 3]);
    net.announce(2, &[1, 2], attrs(2));
    net.announce(3, &[1], attrs(3));
    net.reconfigure(|config| {
        config.filters.insert("in".into(), reject(2));
        config.peers.get_mut(&name(2)).unwrap().import = vec!["in".into()];
    });
    assert_eq!((net.hops(1).len(), net.hops(2).len()), (2, 0));
    net.check();
    net.reconfigure(|config| drop(config.filters.insert("in".into(), prefer(200))));
    assert_eq!(
        (net.hops(1), net.hops(2)),
        (vec![address(2)], vec![address(2)])
    );
    net.check();
    net.reconfigure(|config| config.peers.get_mut(&name(2)).unwrap().import.clear());
    assert_eq!(net.hops(1).len(), 2);
    net.check();
}

#[test]
fn a_change_for_one_peer_says_nothing_to_the_others() {
    let mut net = Net::mesh([2, 3]);
    net.reconfigure(|config| {
        config.originate.insert(prefix(1), Origination::default());
        config.originate.insert(prefix(2), Origination::default());
    });
    let mut new = net.config.clone();
    new.filters.insert("out".into(), reject(2));
    new.peers.get_mut(&name(2)).unwrap().export = vec!["out".into()];
    let changes = net.rib.reconfigure(net.now, &new);
    let peer = net.rib.peer_id(&name(2)).unwrap();
    assert_eq!(
        changes.out,
        [Outbound::Peer {
            peer,
            routes: vec![RouteChange {
                prefix: prefix(2),
                path_id: None,
                attrs: None,
            }]
        }]
    );
    net.config = new;
    net.mirror(changes);
    net.check();
}

/// The route is out of the table before anybody has compared what the old rules and the new ones
/// say of it.
#[test]
fn an_own_route_that_goes_with_a_change_of_export_rules_is_withdrawn() {
    for inline in [0, jobs::INLINE] {
        let mut net = Net::mesh([2, 3]);
        net.in_slices = true;
        net.rib.inline = inline;
        net.reconfigure(|config| {
            config.originate.insert(prefix(1), Origination::default());
            config.originate.insert(prefix(2), Origination::default());
            config.filters.insert("out".into(), reject(7));
            config.peers.get_mut(&name(2)).unwrap().export = vec!["out".into()];
        });
        net.rest(1);
        assert_eq!(net.adj_out_prefixes(2), [prefix(1), prefix(2)]);
        net.reconfigure(|config| {
            config.originate.remove(&prefix(1));
            config.filters.insert("out".into(), reject(8));
        });
        net.rest(1);
        for peer in [2, 3] {
            assert_eq!(net.adj_out_prefixes(peer), [prefix(2)], "peer {peer}");
        }
        net.check();
    }
}

/// The same for a route that its peer has withdrawn, on which nothing has been decided yet.
#[test]
fn a_learned_route_that_goes_before_a_change_of_export_rules_is_withdrawn() {
    let mut net = Net::new(with_peers([internal_peer(2), external_peer(3)]));
    net.up(2);
    net.up(3);
    net.announce(3, &[1, 2], external(3, &[65003]));
    let withdrawn = UpdateMessage {
        withdrawn: vec![prefix(1)],
        ..UpdateMessage::default()
    };
    net.rib.receive(net.now, &name(3), withdrawn);
    net.reconfigure(|config| {
        config.filters.insert("out".into(), reject(7));
        config.peers.get_mut(&name(2)).unwrap().export = vec!["out".into()];
    });
    assert_eq!(net.adj_out_prefixes(2), [prefix(2)]);
    net.check();
}

#[test]
fn an_equal_configuration_does_nothing() {
    let mut net = Net::mesh([2, 3]);
    net.announce(2, &[1], attrs(2));
    assert!(net.rib.reconfigure(net.now, &net.config.clone()).is_empty());
}

#[test]
fn export_rules_announce_the_difference() {
    let mut net = Net::new(with_peers([internal_peer(2), external_peer(3)]));
    net.up(2);
    net.up(3);
    net.announce(3, &[1], external(3, &[65003]));
    assert_eq!(net.adj_out(2)[&prefix(1)].next_hop, Some(address(3)));
    net.reconfigure(|config| {
        config.peers.get_mut(&name(2)).unwrap().next_hop = NextHopMode::Own.into();
    });
    assert_eq!(net.adj_out(2)[&prefix(1)].next_hop, Some(address(1)));
    net.check();
}

#[test]
fn a_peer_that_becomes_a_client_gets_and_gives_more() {
    let mut net = Net::mesh([2, 3]);
    net.announce(2, &[1], attrs(2));
    net.announce(3, &[2], attrs(3));
    assert_eq!(net.adj_out_prefixes(3), []);
    let cluster = ClusterId([1, 1, 1, 1].into());
    net.reconfigure(|config| {
        config.peers.get_mut(&name(2)).unwrap().client_of = Some(cluster);
    });
    assert_eq!(
        (net.adj_out_prefixes(2), net.adj_out_prefixes(3)),
        (vec![prefix(2)], vec![prefix(1)])
    );
    net.check();
    net.announce(
        3,
        &[4],
        PathAttrs {
            cluster_list: vec![cluster].into(),
            ..attrs(3)
        },
    );
    assert_eq!(net.hops(4).len(), 0, "our cluster now");
    net.reconfigure(|config| config.peers.get_mut(&name(2)).unwrap().client_of = None);
    assert_eq!(
        (net.adj_out_prefixes(2), net.adj_out_prefixes(3)),
        (vec![], vec![])
    );
    assert_eq!(net.hops(4).len(), 1, "no cluster of ours any more");
    net.check();
}

#[test]
fn a_removed_peer_takes_its_routes_along_and_its_slot_is_reused() {
    let mut net = Net::mesh([2, 3]);
    net.announce(2, &[1], attrs(2));
    let slot = net.rib.peer_id(&name(2)).unwrap();
    net.reconfigure(|config| drop(config.peers.remove(&name(2))));
    net.adj_out.remove(&slot);
    assert_eq!(net.fib.len(), 0);
    net.reconfigure(|config| drop(config.peers.insert(name(4), internal_peer(4).1)));
    assert_eq!(net.rib.peer_id(&name(4)), Some(slot));
    net.check();
}

#[test]
fn a_reset_keeps_the_routes_of_the_same_peer_until_it_is_back() {
    let mut net = Net::mesh([2]);
    net.announce(2, &[1], attrs(2));
    net.reconfigure(|config| {
        config.peers.get_mut(&name(2)).unwrap().hold_time = Duration::from_secs(9);
    });
    net.adj_out.clear();
    assert!(net.fib[&prefix(1)].stale);
    net.up(2);
    net.end_of_rib(2);
    assert_eq!(net.fib.len(), 0);
    net.check();
    net.announce(2, &[1], attrs(2));
    net.reconfigure(|config| config.peers.get_mut(&name(2)).unwrap().remote_as = Asn(65002));
    net.adj_out.clear();
    assert_eq!(net.fib.len(), 0, "another AS is another peer");
    net.check();
}

#[test]
fn a_filter_that_is_not_defined_rejects() {
    let mut config = with_peers([internal_peer(2)]);
    config.peers.get_mut(&name(2)).unwrap().import = vec!["nowhere".into()];
    let mut net = Net::new(config);
    net.up(2);
    net.announce(2, &[1], attrs(2));
    assert_eq!(net.fib.len(), 0);
    assert_eq!(
        net.rib.received(&name(2)).unwrap()[0].status.sentence(),
        "not used: rejected by import policy, term 1 of filter nowhere (not defined)"
    );
    net.reconfigure(|config| drop(config.filters.insert("nowhere".into(), prefer(7))));
    assert_eq!(net.fib[&prefix(1)].local_pref, 7);
    net.check();
}

#[test]
fn rfc4724_2_peers_part_when_others_have_told_everything_and_cover_their_routes() {
    let mut net = Net::mesh([2, 3]);
    let removed = BTreeSet::from([name(2)]);
    net.announce(2, &[1, 2], attrs(2));
    net.announce(3, &[1], attrs(2));
    let impact = net.rib.removal_impact(&removed);
    assert_eq!(impact.incomplete, [name(3)], "no End-of-RIB yet");
    assert_eq!(impact.uncovered, [prefix(2)]);
    net.end_of_rib(3);
    net.announce(3, &[2], attrs(2));
    assert_eq!(net.rib.removal_impact(&removed), RemovalImpact::default());
    // A peer that is restarting covers nothing, and counts as incomplete until it has told
    // everything again.
    net.down(3, true);
    let impact = net.rib.removal_impact(&removed);
    assert_eq!(impact.incomplete, [name(3)]);
    assert_eq!(impact.uncovered, [prefix(1), prefix(2)]);
    net.up(3);
    assert_eq!(net.rib.removal_impact(&removed).incomplete, [name(3)]);
    net.announce(3, &[1, 2], attrs(2));
    net.end_of_rib(3);
    assert_eq!(net.rib.removal_impact(&removed), RemovalImpact::default());
    assert_eq!(
        net.rib.removal_impact(&BTreeSet::new()).incomplete,
        [name(2)]
    );
}
