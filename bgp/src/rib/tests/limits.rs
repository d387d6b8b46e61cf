//! Maximum number of prefixes (RFC 4486 §4) and external peers without policy (RFC 8212).

use super::*;
use crate::config::{LimitAction, PrefixLimit};

/// Peer 2 may announce four prefixes.
fn limited(action: LimitAction) -> Net {
    let mut config = with_peers([internal_peer(2), internal_peer(3)]);
    config.peers.get_mut(&name(2)).unwrap().prefix_limit = Some(PrefixLimit {
        action,
        ..PrefixLimit::new(4)
    });
    let mut net = Net::new(config);
    net.up(2);
    net.up(3);
    net
}

fn words(net: &mut Net) -> Vec<String> {
    let words = net.notices.drain(..).map(|notice| match notice {
        Outbound::PrefixLimit { max, restart, .. } => format!("end {max} {restart:?}"),
        Outbound::PrefixWarning { count, max, .. } => format!("warn {count}/{max}"),
        other => panic!("{other:?}"),
    });
    words.collect()
}

#[test]
fn rfc4486_4_beyond_the_limit_the_session_ends_and_nothing_more_is_taken() {
    let mut net = limited(LimitAction::Restart(Duration::from_secs(60)));
    net.announce(2, &[1, 2], attrs(2));
    assert_eq!(words(&mut net), [""; 0]);
    net.announce(2, &[2, 3], attrs(2));
    assert_eq!(words(&mut net), ["warn 3/4"], "from 75 % on");
    net.announce(2, &[4], attrs(2));
    assert_eq!(
        words(&mut net),
        [""; 0],
        "once, and the limit itself is allowed"
    );
    net.announce(2, &[5], attrs(2));
    assert_eq!(words(&mut net), ["end 4 Some(60s)"]);
    net.announce(2, &[6, 7, 8], attrs(2));
    assert_eq!(words(&mut net), [""; 0]);
    assert_eq!(net.rib.peer_counts(&name(2)).unwrap().received, 5);
    net.down(2, false);
    assert_eq!(net.fib.len(), 0);
    net.up(2);
    net.announce(2, &[1], attrs(2));
    assert_eq!(net.fib.len(), 1, "a new session starts anew");
    net.check();
}

#[test]
fn withdrawn_prefixes_do_not_count_and_other_peers_have_their_own_count() {
    let mut net = limited(LimitAction::Disable);
    for _ in 0..5 {
        net.announce(2, &[1, 2], attrs(2));
        net.withdraw(2, &[1, 2]);
    }
    net.announce(3, &[1, 2, 3, 4, 5, 6], attrs(3));
    assert_eq!(words(&mut net), [""; 0]);
    net.announce(2, &[1, 2, 3, 4, 5], attrs(2));
    assert_eq!(words(&mut net), ["warn 5/4", "end 4 None"]);
    net.check();
}

#[test]
fn a_limit_that_only_warns_takes_the_routes() {
    let mut net = limited(LimitAction::Warn);
    net.announce(2, &[1, 2, 3, 4, 5, 6], attrs(2));
    assert_eq!(words(&mut net), ["warn 6/4"]);
    net.announce(2, &[7], attrs(2));
    assert_eq!((net.fib.len(), words(&mut net).len()), (7, 0));
    net.check();
}

#[test]
fn refused_prefixes_count_and_families_count_apart() {
    let mut net = limited(LimitAction::Disable);
    net.reconfigure(|config| {
        let peer = config.peers.get_mut(&name(2)).unwrap();
        peer.import = vec!["nothing".into()];
        peer.families = vec![Family::Ipv4, Family::Ipv6];
    });
    net.up_with(
        2,
        SessionInfo {
            families: vec![Family::Ipv4, Family::Ipv6],
            ..session(2)
        },
    );
    for n in 0..4u8 {
        let announced = vec![Prefix::v6([0xfd00, n.into(), 0, 0, 0, 0, 0, 0].into(), 32)];
        net.apply(
            2,
            UpdateMessage {
                announced,
                attrs: Some(attrs(2)),
                ..UpdateMessage::default()
            },
        );
    }
    net.announce(2, &[1, 2], attrs(2));
    assert_eq!(words(&mut net), ["warn 3/4"], "of IPv6");
    net.announce(2, &[3, 4, 5], attrs(2));
    assert_eq!(words(&mut net), ["warn 5/4", "end 4 None"], "of IPv4");
    assert_eq!(net.fib.len(), 0);
}

#[test]
fn rfc8212_2_without_policy_nothing_passes_to_or_from_an_external_peer() {
    let mut config = with_peers([external_peer(2), internal_peer(3)]);
    config.originate.insert(prefix(9), Origination::default());
    for peer in config.peers.values_mut() {
        peer.require_policy = true;
    }
    let mut net = Net::new(config);
    net.up(2);
    net.up(3);
    net.announce(2, &[1], external(2, &[65002]));
    net.announce(3, &[2], attrs(3));
    assert_eq!(net.fib.keys().collect::<Vec<_>>(), [&prefix(2)]);
    assert!(net.adj_out(2).is_empty(), "nothing goes out");
    assert_eq!(
        net.adj_out_prefixes(3),
        [prefix(9)],
        "internal peers need none"
    );
    let refused = net.rib.explain(&prefix(1));
    let why = refused.paths[0].status.sentence();
    assert!(why.contains("(no policy, RFC 8212)"), "{why}");
    net.reconfigure(|config| {
        config
            .filters
            .insert("open".into(), crate::policy::Filter::from(vec![]));
        let peer = config.peers.get_mut(&name(2)).unwrap();
        peer.import = vec!["open".into()];
        peer.export = vec!["open".into()];
    });
    assert_eq!(net.adj_out_prefixes(2), [prefix(2), prefix(9)]);
    assert_eq!(net.fib.len(), 2);
    net.check();
}
