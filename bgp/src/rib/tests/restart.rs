//! Graceful restart (RFC 4724), both roles.

use proptest::prelude::*;

use super::*;

fn restarted(n: u8, forwarding: bool) -> SessionInfo {
    let families = vec![(Family::Ipv4, forwarding)];
    let time = Duration::from_secs(120);
    let restart = RemoteRestart {
        restarting: true,
        time,
        families,
    };
    SessionInfo {
        graceful_restart: Some(restart),
        ..session(n)
    }
}

/// Peer 2 has announced 1 and 2 and restarts.
fn restarting() -> Net {
    let mut net = Net::mesh([2, 3]);
    net.announce(2, &[1, 2], attrs(2));
    net.end_of_rib(2);
    net.end_of_rib(3);
    net.down(2, true);
    assert_eq!(net.hops(1), [address(2)]);
    assert!(net.fib[&prefix(1)].stale);
    net.check();
    net
}

#[test]
fn rfc4724_4_2_stale_routes_go_when_the_restart_time_is_over() {
    let mut net = restarting();
    assert_eq!(
        net.rib.next_timeout(),
        Some(net.now + Duration::from_secs(120))
    );
    net.advance(119);
    assert_eq!(net.fib.len(), 2);
    net.advance(1);
    assert_eq!(net.fib.len(), 0);
    assert_eq!(net.rib.next_timeout(), None);
    assert_eq!(net.rib.counts().paths, 0);
    net.check();
}

#[test]
fn rfc4724_4_2_end_of_rib_sweeps_what_was_not_announced_again() {
    let mut net = restarting();
    net.advance(60);
    net.up_with(2, restarted(2, true));
    assert_eq!(net.fib.len(), 2);
    net.announce(2, &[1], attrs(2));
    assert!(!net.fib[&prefix(1)].stale);
    assert!(net.fib[&prefix(2)].stale);
    net.advance(100);
    assert_eq!(net.fib.len(), 2, "the restart timer has stopped");
    net.end_of_rib(2);
    assert_eq!(net.fib.keys().collect::<Vec<_>>(), [&prefix(1)]);
    assert_eq!(net.rib.next_timeout(), None);
    net.check();
}

#[test]
fn rfc4724_4_2_without_the_forwarding_bit_stale_routes_go_at_once() {
    let mut net = restarting();
    net.up_with(2, restarted(2, false));
    assert_eq!(net.fib.len(), 0);
    net = restarting();
    net.up_with(
        2,
        SessionInfo {
            graceful_restart: None,
            ..session(2)
        },
    );
    assert_eq!(net.fib.len(), 0);
    net.check();
}

#[test]
fn rfc4724_4_2_restarts_in_a_row_give_stale_routes_no_more_time_than_the_first() {
    let mut net = restarting();
    let kept: Vec<_> = net.fib.keys().copied().collect();
    let end = net.rib.next_timeout().unwrap();
    // A collision, for one: the session comes up and ends before anything was said.
    net.up_with(2, restarted(2, true));
    net.down(2, true);
    assert_eq!(net.fib.keys().copied().collect::<Vec<_>>(), kept);
    assert!(net.fib.values().all(|route| route.stale));
    assert_eq!(net.rib.next_timeout(), Some(end));
    net.check();
    // Nothing is kept for ever, however often it happens.
    net.advance((end - net.now).as_secs() - 1);
    net.up_with(2, restarted(2, true));
    net.announce(2, &[1], attrs(2));
    net.advance(2);
    net.down(2, true);
    assert_eq!(net.fib.keys().collect::<Vec<_>>(), [&prefix(1)]);
    assert!(net.fib[&prefix(1)].stale);
    net.check();
}

#[test]
fn rfc4724_4_2_after_end_of_rib_a_restart_is_the_first_again() {
    let mut net = restarting();
    let end = net.rib.next_timeout().unwrap();
    net.up_with(2, restarted(2, true));
    net.announce(2, &[1], attrs(2));
    net.end_of_rib(2);
    net.advance(10);
    net.down(2, true);
    assert!(net.rib.next_timeout().unwrap() > end);
    net.check();
}

#[test]
fn rfc4724_4_2_a_new_session_before_the_end_of_the_old_one_is_a_restart() {
    let mut net = Net::mesh([2]);
    net.announce(2, &[1], attrs(2));
    net.up_with(2, restarted(2, true));
    assert!(net.fib[&prefix(1)].stale);
}

#[test]
fn a_notification_ends_the_retention() {
    let mut net = restarting();
    net.down(2, false);
    assert_eq!(net.fib.len(), 0);
    assert_eq!(net.rib.next_timeout(), None);
    net.check();
}

#[test]
fn missing_end_of_rib_is_bounded() {
    let mut net = restarting();
    net.up_with(2, restarted(2, true));
    let until = net.rib.next_timeout().unwrap();
    net.advance((until - net.now).as_secs());
    assert_eq!(net.fib.len(), 0);
}

#[test]
fn a_peer_without_the_capability_is_not_waited_for() {
    let mut net = Net::new(with_peers([internal_peer(2)]));
    net.up_with(
        2,
        SessionInfo {
            graceful_restart: None,
            ..session(2)
        },
    );
    net.announce(2, &[1], attrs(2));
    net.down(2, true);
    assert_eq!(net.fib.len(), 0);
}

/// We restart; 2 and 3 are our peers, and we originate 9.
fn we_restart() -> Net {
    let mut config = with_peers([internal_peer(2), external_peer(3)]);
    config.originate.insert(prefix(9), Origination::default());
    Net::with_options(
        config,
        RibOptions {
            restarting: true,
            ..RibOptions::default()
        },
    )
}

#[test]
fn rfc4724_4_1_nothing_is_selected_or_announced_before_all_end_of_ribs() {
    let mut net = we_restart();
    net.up(2);
    net.announce(2, &[1], attrs(2));
    net.end_of_rib(2);
    net.up(3);
    assert!(net.rib.is_deferring());
    assert_eq!(net.fib.len(), 0);
    assert_eq!(
        (net.adj_out_prefixes(2).len(), net.markers.len()),
        (0, 0),
        "RIB-4"
    );
    assert_eq!(net.rib.awaited().collect::<Vec<_>>(), [&name(3)]);
    net.announce(3, &[2], external(3, &[65003]));
    net.end_of_rib(3);
    assert!(!net.rib.is_deferring());
    assert_eq!(net.fib.len(), 2);
    assert_eq!(net.adj_out_prefixes(2), [prefix(2), prefix(9)]);
    assert_eq!(net.adj_out_prefixes(3), [prefix(1), prefix(9)]);
    assert_eq!(net.markers.len(), 2);
    assert!(net.rib.awaited().next().is_none());
    net.check();
}

#[test]
fn rfc4724_4_1_the_deferral_ends_without_a_dead_peer() {
    let mut net = we_restart();
    net.up(2);
    net.announce(2, &[1], attrs(2));
    net.end_of_rib(2);
    net.advance(10);
    assert!(!net.rib.is_deferring());
    assert_eq!(net.hops(1), [address(2)]);
    assert_eq!(net.markers.len(), 1);
    assert_eq!(
        net.rib.awaited().collect::<Vec<_>>(),
        [&name(3)],
        "but a sweep still waits for it"
    );
    net.advance(110);
    assert!(net.rib.awaited().next().is_none());
    net.check();
}

#[test]
fn a_peer_that_is_removed_is_not_awaited() {
    let mut net = Net::new(with_peers([internal_peer(2)]));
    assert_eq!(net.rib.awaited().collect::<Vec<_>>(), [&name(2)]);
    net.reconfigure(|config| drop(config.peers.remove(&name(2))));
    assert!(net.rib.awaited().next().is_none());
    net.reconfigure(|config| drop(config.peers.insert(name(3), internal_peer(3).1)));
    assert!(net.rib.awaited().next().is_none(), "the start is over");
}

/// Before the last End-of-RIB: a route of a peer over its own address or over another one, which is
/// reached or not; and work.
#[derive(Clone, Debug)]
enum Before {
    Announce(u8, u8, bool),
    Withdraw(u8, u8),
    Underlay(bool),
    Work(usize, usize),
}

fn before() -> impl Strategy<Value = Before> {
    let peer = 2u8..5;
    let route = 0u8..60;
    prop_oneof![
        8 => (peer.clone(), route.clone(), any::<bool>()).prop_map(|(n, to, far)| Before::Announce(n, to, far)),
        1 => (peer, route).prop_map(|(n, to)| Before::Withdraw(n, to)),
        1 => any::<bool>().prop_map(Before::Underlay),
        1 => (0usize..3, 0usize..4).prop_map(|(times, slots)| Before::Work(times, slots)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// However the work is cut: when the table says that everybody has told everything, the
    /// forwarding side has been told of all that came before the last End-of-RIB.
    #[test]
    fn rfc4724_4_1_whoever_may_sweep_has_heard_of_every_route_before_end_of_rib(
        restarting: bool,
        inline in 0usize..3,
        events in prop::collection::vec(before(), 1..120),
        slots in 1usize..4,
        late in prop::collection::vec((2u8..5, 60u8..90), 0..40),
    ) {
        let options = RibOptions { restarting, ..RibOptions::default() };
        let mut net = Net::with_options(with_peers([2, 3, 4].map(internal_peer)), options);
        net.in_slices = true;
        (net.rib.inline, net.rib.backlog) = (inline, 4 * inline);
        (2..5).for_each(|n| net.up(n));
        let (mut told, mut reached) = (BTreeMap::new(), true);
        for event in events {
            match event {
                Before::Announce(n, to, far) => {
                    net.announce(n, &[to], attrs(if far { 9 } else { n }));
                    told.insert((n, to), far);
                }
                Before::Withdraw(n, to) => {
                    net.withdraw(n, &[to]);
                    told.remove(&(n, to));
                }
                Before::Underlay(there) => {
                    reached = there;
                    let routes = [(Prefix::host(address(9)), there.then(UnderlayRoute::default))];
                    let underlay = Underlay::new(routes, Some(UnderlayRoute::default()));
                    let changes = net.rib.set_underlay(net.now, underlay);
                    net.mirror(changes);
                }
                Before::Work(times, slots) => net.work(times, slots),
            }
            prop_assert!(!net.rib.is_converged());
        }
        let told = told.iter().filter(|(_, far)| reached || !**far);
        let told: BTreeSet<Prefix> = told.map(|((_, to), _)| prefix(*to)).collect();
        (2..5).for_each(|n| net.end_of_rib(n));
        let mut late = late.into_iter();
        while !net.rib.is_converged() {
            prop_assert!(net.rib.has_work(), "{:?}", net.rib.progress());
            // Others come while the work is done.
            if let Some((n, to)) = late.next() {
                net.announce(n, &[to], attrs(n));
            }
            net.work(1, slots);
        }
        let missing: Vec<_> = told.iter().filter(|to| !net.fib.contains_key(*to)).collect();
        prop_assert!(missing.is_empty(), "{missing:?}");
        net.rest(slots);
        prop_assert!(net.rib.is_converged());
    }
}
