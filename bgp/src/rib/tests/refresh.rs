//! Route refresh with marks (RFC 7313), both roles.

use super::*;

fn enhanced(n: u8) -> SessionInfo {
    let options = SessionOptions {
        enhanced_refresh: true,
        ..SessionOptions::default()
    };
    SessionInfo {
        options,
        ..session(n)
    }
}

#[test]
fn rfc7313_4_a_request_is_answered_between_marks() {
    let mut config = with_peers([internal_peer(2), internal_peer(3)]);
    for n in 1..=2 {
        config.originate.insert(prefix(n), Origination::default());
    }
    let mut net = Net::new(config);
    net.up_with(2, enhanced(2));
    net.up(3);
    for n in [2, 3] {
        let changes = net.rib.route_refresh(net.now, &name(n), Family::Ipv4);
        net.mirror(changes);
    }
    let two = net.rib.peer_id(&name(2)).unwrap();
    assert_eq!(
        net.refreshes,
        [(two, Family::Ipv4)],
        "3 does not know marks"
    );
    net.check();
}

#[test]
fn rfc7313_4_what_does_not_come_again_goes_with_the_end_mark() {
    let mut net = Net::mesh([3]);
    net.reconfigure(|config| config.peers.extend(with_peers([internal_peer(2)]).peers));
    net.up_with(2, enhanced(2));
    net.announce(2, &[1, 2, 3], attrs(2));
    net.announce(3, &[4], attrs(3));
    let changes = net.rib.refresh_begin(net.now, &name(2), Family::Ipv4);
    net.mirror(changes);
    assert!(!net.fib[&prefix(1)].stale, "in use as before");
    net.announce(2, &[1], attrs(2));
    let mut other = attrs(2);
    other.med = Some(1);
    net.announce(2, &[2], other);
    assert_eq!(net.fib.len(), 4);
    let changes = net.rib.refresh_end(net.now, &name(2), Family::Ipv4);
    net.mirror(changes);
    assert_eq!(
        net.fib.keys().collect::<Vec<_>>(),
        [&prefix(1), &prefix(2), &prefix(4)]
    );
    net.end_of_rib(2);
    net.end_of_rib(3);
    assert_eq!(net.rib.next_timeout(), None);
    net.check();
}

#[test]
fn rfc7313_4_an_end_without_begin_means_nothing_and_a_begin_without_end_ends_by_itself() {
    let mut net = Net::mesh([2]);
    net.end_of_rib(2);
    net.announce(2, &[1, 2], attrs(2));
    let changes = net.rib.refresh_end(net.now, &name(2), Family::Ipv4);
    net.mirror(changes);
    assert_eq!(net.fib.len(), 2);
    let changes = net.rib.refresh_begin(net.now, &name(2), Family::Ipv4);
    net.mirror(changes);
    net.announce(2, &[2], attrs(2));
    net.advance(299);
    assert_eq!(net.fib.len(), 2);
    net.advance(1);
    assert_eq!(net.fib.keys().collect::<Vec<_>>(), [&prefix(2)]);
    net.check();
}

#[test]
fn a_session_that_ends_during_a_refresh_keeps_all_its_routes_for_the_restart() {
    let mut net = Net::mesh([2]);
    net.announce(2, &[1, 2], attrs(2));
    let changes = net.rib.refresh_begin(net.now, &name(2), Family::Ipv4);
    net.mirror(changes);
    net.down(2, true);
    assert_eq!(net.fib.len(), 2);
    net.up(2);
    net.announce(2, &[1], attrs(2));
    net.end_of_rib(2);
    assert_eq!(net.fib.keys().collect::<Vec<_>>(), [&prefix(1)]);
    net.check();
}
