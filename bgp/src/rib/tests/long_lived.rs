//! Long-lived graceful restart (RFC 9494).

use super::*;
use crate::types::{AnyCommunity, Community};

const RESTART: u64 = 120;
const STALE: u64 = 3600;

fn long_lived(n: u8, forwarding: bool) -> SessionInfo {
    let entry = LongLivedRestart {
        family: Family::Ipv4,
        forwarding,
        time: Duration::from_secs(STALE),
    };
    let options = SessionOptions {
        long_lived: Some(vec![entry]),
        ..SessionOptions::default()
    };
    SessionInfo {
        options,
        ..session(n)
    }
}

fn is_marked(net: &Net, n: u8) -> bool {
    let marker = AnyCommunity::Standard(Community::LLGR_STALE);
    net.fib[&prefix(n)].communities.contains(&marker)
}

/// Peer 2 has announced 1 and 2 (2 with NO_LLGR), 3 and 4 listen, 3 knows LLGR. 2 is gone, and so
/// is the restart time.
fn gone() -> Net {
    let mut net = Net::new(with_peers([
        external_peer(2),
        internal_peer(3),
        internal_peer(4),
    ]));
    net.up_with(2, long_lived(2, true));
    net.up_with(3, long_lived(3, true));
    net.up(4);
    net.announce(2, &[1], external(2, &[65002]));
    let mut never = external(2, &[65002]);
    never.communities = vec![Community::NO_LLGR];
    net.announce(2, &[2], never);
    for n in 2..=4 {
        net.end_of_rib(n);
    }
    net.down(2, true);
    net.advance(RESTART - 1);
    assert_eq!(net.fib.len(), 2);
    assert!(!is_marked(&net, 1), "first comes the restart time");
    assert_eq!(net.adj_out_prefixes(4).len(), 2);
    net.advance(1);
    net.check();
    net
}

#[test]
fn rfc9494_4_2_after_the_restart_time_routes_stay_marked_for_the_stale_time() {
    let mut net = gone();
    assert_eq!(
        net.fib.keys().collect::<Vec<_>>(),
        [&prefix(1)],
        "NO_LLGR goes"
    );
    assert!(is_marked(&net, 1));
    assert!(net.fib[&prefix(1)].stale);
    net.advance(STALE - 1);
    assert_eq!(net.fib.len(), 1);
    net.advance(1);
    assert_eq!(net.fib.len(), 0);
    assert_eq!(net.rib.next_timeout(), None);
    assert_eq!(net.rib.counts().paths, 0);
    net.check();
}

#[test]
fn rfc9494_4_3_only_peers_that_know_the_mark_are_told() {
    let net = gone();
    let marked = net.adj_out(3);
    let expected = vec![Community::LLGR_STALE];
    assert_eq!(marked[&prefix(1)].communities, expected);
    assert!(net.adj_out(4).is_empty());
    let why = net.rib.explain(&prefix(1)).advertised;
    let (_, Advertisement::Withheld(why)) = &why[1] else {
        panic!("{why:?}")
    };
    assert_eq!(*why, Withheld::LongLivedStale);
}

#[test]
fn rfc9494_4_4_any_other_path_is_better() {
    let mut net = gone();
    let mut worse = external(4, &[1, 2, 3, 4]);
    worse.local_pref = Some(1);
    net.announce(4, &[1], worse);
    assert_eq!(net.hops(1), [address(4)]);
    net.withdraw(4, &[1]);
    assert_eq!(net.hops(1), [address(2)]);
    let mut received = attrs(3);
    received.local_pref = Some(4_000_000_000);
    received.communities = vec![Community::LLGR_STALE];
    net.announce(3, &[7], received);
    net.announce(4, &[7], attrs(4));
    assert_eq!(
        net.hops(7),
        [address(4)],
        "also when somebody else marked it"
    );
    net.check();
}

#[test]
fn rfc9494_4_2_end_of_rib_ends_it_and_a_repeated_route_is_fresh() {
    let mut net = gone();
    net.advance(100);
    net.up_with(2, long_lived(2, true));
    assert!(is_marked(&net, 1), "until it is announced again");
    net.announce(2, &[1], external(2, &[65002]));
    assert!(!is_marked(&net, 1));
    assert!(!net.fib[&prefix(1)].stale);
    net.end_of_rib(2);
    assert_eq!(net.fib.len(), 1);
    assert_eq!(net.rib.next_timeout(), None);
    net.check();
    let mut net = gone();
    net.up_with(2, long_lived(2, true));
    net.end_of_rib(2);
    assert_eq!(net.fib.len(), 0, "not announced again");
    net.check();
}

#[test]
fn rfc9494_4_2_without_the_forwarding_bit_or_the_capability_they_go_at_once() {
    let mut net = gone();
    net.up_with(2, long_lived(2, false));
    assert_eq!(net.fib.len(), 0);
    let mut net = gone();
    net.up(2);
    assert_eq!(net.fib.len(), 0);
    net.check();
}

#[test]
fn rfc9494_4_2_a_second_loss_does_not_start_the_timer_again() {
    let mut net = gone();
    net.advance(STALE - 500);
    net.up_with(2, long_lived(2, true));
    net.down(2, true);
    assert_eq!(net.fib.len(), 1, "what is kept long outlives a second loss");
    net.advance(499);
    assert_eq!(net.fib.len(), 1);
    net.advance(1);
    assert_eq!(net.fib.len(), 0);
    net.check();
}

#[test]
fn a_change_of_policy_keeps_the_mark() {
    let mut net = gone();
    net.reconfigure(|config| {
        let term = crate::policy::FilterTerm {
            conditions: vec![],
            actions: vec![crate::policy::FilterAction::SetLocalPref(7)],
            verdict: None,
        };
        config
            .filters
            .insert("seven".into(), crate::policy::Filter::from(vec![term]));
        config.peers.get_mut(&name(2)).unwrap().import = vec!["seven".into()];
    });
    assert_eq!(net.fib[&prefix(1)].local_pref, 7);
    assert!(is_marked(&net, 1));
    net.check();
}

#[test]
fn rfc9494_4_6_in_a_partial_deployment_internal_peers_hear_of_a_last_resort() {
    let mut net = gone();
    net.reconfigure(|config| {
        for n in [3, 4] {
            config.peers.get_mut(&name(n)).unwrap().long_lived_partial = true;
        }
        let (name, mut external) = (name(5), external_peer(5).1);
        external.long_lived_partial = true;
        config.peers.insert(name, external);
    });
    net.up(5);
    let partial = net.adj_out(4)[&prefix(1)].clone();
    assert_eq!(partial.local_pref, Some(0));
    assert_eq!(
        partial.communities,
        [Community::LLGR_STALE, Community::NO_EXPORT],
        "it stays inside the AS"
    );
    let whole = net.adj_out(3)[&prefix(1)].clone();
    assert_eq!(
        whole.local_pref,
        Some(100),
        "who knows the mark needs no more"
    );
    assert_eq!(whole.communities, [Community::LLGR_STALE]);
    assert!(net.adj_out(5).is_empty(), "never another AS");
    net.check();

    // LOCAL_PREF of filters does not count for a stale route, and does for a fresh one.
    net.reconfigure(|config| {
        let term = crate::policy::FilterTerm {
            conditions: vec![],
            actions: vec![crate::policy::FilterAction::SetLocalPref(700)],
            verdict: None,
        };
        let filter = crate::policy::Filter::from(vec![term]);
        config.filters.insert("high".into(), filter);
        config.peers.get_mut(&name(4)).unwrap().export = vec!["high".into()];
    });
    assert_eq!(net.adj_out(4)[&prefix(1)].local_pref, Some(0));
    net.up_with(2, long_lived(2, true));
    net.announce(2, &[1], external(2, &[65002]));
    let fresh = net.adj_out(4)[&prefix(1)].clone();
    assert_eq!(fresh.local_pref, Some(700));
    assert!(fresh.communities.is_empty());
    net.check();

    // Without the switch they are told nothing again.
    net.down(2, true);
    net.advance(RESTART);
    assert_eq!(net.adj_out_prefixes(4), [prefix(1)]);
    net.reconfigure(|config| {
        config.peers.get_mut(&name(4)).unwrap().long_lived_partial = false;
    });
    assert!(net.adj_out(4).is_empty());
    net.check();
}
