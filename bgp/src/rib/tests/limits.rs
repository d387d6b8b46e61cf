//! Maximum number of prefixes (RFC 4486 §4) and external peers without policy (RFC 8212).

use super::*;
use crate::config::{LimitAction, PrefixLimit, PrefixLimits};
use crate::policy::{Filter, FilterCondition, FilterTerm, FilterVerdict, PrefixPattern};

/// The same limit in each family.
fn both(action: LimitAction, max: u32) -> PrefixLimits {
    let limit = Some(PrefixLimit {
        action,
        ..PrefixLimit::new(max)
    });
    PrefixLimits {
        ipv4: limit,
        ipv6: limit,
    }
}

/// Peer 2 may announce four prefixes.
fn limited(action: LimitAction) -> Net {
    let mut config = with_peers([internal_peer(2), internal_peer(3)]);
    config.peers.get_mut(&name(2)).unwrap().prefix_limits = both(action, 4);
    let mut net = Net::new(config);
    net.up(2);
    net.up(3);
    net
}

/// Of the prefixes of peer 2 up to four may be accepted, and its prefixes 7 and up are not.
fn import_limited(action: LimitAction) -> Net {
    let mut config = with_peers([internal_peer(2), internal_peer(3)]);
    config.filters.insert("low".into(), refuse_from(7));
    let peer = config.peers.get_mut(&name(2)).unwrap();
    peer.import = vec!["low".into()];
    peer.import_limits = both(action, 4);
    let mut net = Net::new(config);
    net.up(2);
    net.up(3);
    net
}

/// Refuses the prefixes `first` to 12.
fn refuse_from(first: u8) -> Filter {
    let pattern = |n| PrefixPattern::exact(prefix(n));
    Filter::from(vec![FilterTerm {
        conditions: vec![FilterCondition::Prefix {
            patterns: (first..13).map(pattern).collect(),
            negated: false,
        }],
        actions: vec![],
        verdict: Some(FilterVerdict::Reject),
    }])
}

/// Why a prefix of the peer is not used; empty: it is.
fn refusal(net: &Net, n: u8) -> String {
    let explained = net.rib.explain(&prefix(n));
    let path = explained.paths.first();
    path.map_or_else(|| "unknown".to_owned(), |path| path.status.sentence())
}

fn words(net: &mut Net) -> Vec<String> {
    let words = net.notices.drain(..).map(|notice| match notice {
        Outbound::PrefixLimit { passed, .. } => {
            format!("end {} {:?}", passed.max, passed.restart)
        }
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
fn an_import_limit_counts_what_is_accepted() {
    let mut net = import_limited(LimitAction::Restart(Duration::from_secs(60)));
    net.announce(2, &[7, 8, 9, 10, 11, 12], attrs(2));
    assert_eq!(words(&mut net), [""; 0], "none of them is accepted");
    net.announce(2, &[1, 2, 3, 4], attrs(2));
    assert_eq!(words(&mut net), ["warn 4/4"]);
    net.announce(2, &[5], attrs(2));
    assert_eq!(words(&mut net), ["end 4 Some(60s)"]);
    net.announce(2, &[6], attrs(2));
    assert_eq!(net.rib.peer_counts(&name(2)).unwrap().accepted, 5);
    assert_eq!(words(&mut net), [""; 0], "once");
    net.check();
}

#[test]
fn an_import_limit_holds_for_what_other_filters_let_in() {
    let mut net = import_limited(LimitAction::Disable);
    net.announce(2, &[1, 7, 8, 9, 10], attrs(2));
    assert_eq!(words(&mut net), [""; 0]);
    net.reconfigure(|config| {
        config.filters.insert("low".into(), refuse_from(12));
    });
    assert_eq!(words(&mut net), ["warn 3/4", "end 4 None"]);
    net.check();
}

#[test]
fn an_import_limit_that_blocks_refuses_what_is_new() {
    let mut net = import_limited(LimitAction::Block);
    net.announce(2, &[1, 2, 3, 4, 5], attrs(2));
    assert_eq!(words(&mut net), ["warn 4/4"]);
    assert_eq!(net.fib.len(), 4);
    assert!(
        refusal(&net, 5).contains("import limit"),
        "{}",
        refusal(&net, 5)
    );
    // What is there may change.
    net.announce(2, &[1], external(2, &[65002]));
    assert_eq!(net.fib.len(), 4);
    // Another one has the place that is free; what is shown as refused waits for a look at all.
    net.withdraw(2, &[4]);
    assert!(!net.fib.contains_key(&prefix(5)));
    net.announce(2, &[6], attrs(2));
    assert!(net.fib.contains_key(&prefix(6)));
    net.withdraw(2, &[6]);
    net.reconfigure(|config| {
        let limits = both(LimitAction::Block, 9);
        config.peers.get_mut(&name(2)).unwrap().import_limits = limits;
    });
    assert!(
        net.fib.contains_key(&prefix(5)),
        "another limit is such a look"
    );
    net.check();
}

#[test]
fn a_receive_limit_that_blocks_takes_nothing_new() {
    let mut net = limited(LimitAction::Block);
    net.announce(2, &[1, 2, 3, 4, 5, 6], attrs(2));
    assert_eq!(words(&mut net), ["warn 4/4"]);
    assert_eq!(net.rib.peer_counts(&name(2)).unwrap().received, 4);
    assert_eq!(refusal(&net, 5), "unknown");
    net.announce(2, &[4], external(2, &[65002]));
    assert_eq!(net.fib.len(), 4);
    net.withdraw(2, &[1, 5]);
    net.announce(2, &[6], attrs(2));
    assert!(net.fib.contains_key(&prefix(6)));
    net.check();
}

/// Peer 3 may be sent four prefixes.
fn export_limited(action: LimitAction) -> Net {
    let mut config = with_peers([external_peer(2), internal_peer(3), internal_peer(4)]);
    config.peers.get_mut(&name(3)).unwrap().export_limits = both(action, 4);
    let mut net = Net::new(config);
    for n in 2..=4 {
        net.up(n);
    }
    net
}

#[test]
fn an_export_limit_that_blocks_sends_nothing_new() {
    let mut net = export_limited(LimitAction::Block);
    net.announce(2, &[1, 2, 3], external(2, &[65002]));
    assert_eq!(words(&mut net), ["warn 3/4"]);
    net.announce(2, &[4, 5, 6], external(2, &[65002]));
    assert_eq!(words(&mut net), [""; 0], "the session goes on");
    assert_eq!(
        net.adj_out_prefixes(3),
        [prefix(1), prefix(2), prefix(3), prefix(4)]
    );
    assert_eq!(net.adj_out_prefixes(4).len(), 6, "the others have no limit");
    let explained = net.rib.explain(&prefix(5));
    let kept = Advertisement::Withheld(Withheld::OverLimit);
    assert!(explained.advertised.contains(&(name(3), kept)));
    assert_eq!(sent_of(&net, 3, Family::Ipv4), (4, 2));
    // What is sent may change, and what goes makes room.
    net.announce(2, &[1], external(2, &[65002, 65003]));
    net.withdraw(2, &[2]);
    net.announce(2, &[7, 8], external(2, &[65002]));
    assert_eq!(
        net.adj_out_prefixes(3),
        [prefix(1), prefix(3), prefix(4), prefix(7)]
    );
    assert_eq!(sent_of(&net, 3, Family::Ipv4), (4, 3), "5, 6, and 8");
    // What is gone is not kept back, and what was kept back may have its turn.
    net.withdraw(2, &[1, 5, 6]);
    assert_eq!(sent_of(&net, 3, Family::Ipv4), (3, 1));
    net.announce(2, &[8], external(2, &[65002, 65004]));
    assert_eq!(sent_of(&net, 3, Family::Ipv4), (4, 0));
    net.check();
}

#[test]
fn an_export_limit_ends_the_session_at_the_first_prefix_too_many() {
    for (action, restart) in [
        (LimitAction::Disable, "None"),
        (LimitAction::Restart(Duration::from_secs(60)), "Some(60s)"),
    ] {
        let mut net = export_limited(action);
        // What the peer has sent does not come back to it, and does not count.
        net.announce(3, &[9, 10, 11, 12], attrs(3));
        net.announce(2, &[1, 2, 3, 4], external(2, &[65002]));
        assert_eq!(words(&mut net), ["warn 4/4"]);
        net.announce(2, &[5, 6], external(2, &[65002]));
        assert_eq!(words(&mut net), [format!("end 4 {restart}")]);
        net.announce(2, &[7], external(2, &[65002]));
        assert_eq!(words(&mut net), [""; 0], "once");
        net.down(3, false);
        net.up(3);
        assert_eq!(
            words(&mut net),
            ["warn 4/4".to_owned(), format!("end 4 {restart}")]
        );
    }
}

#[test]
fn an_export_limit_counts_each_path_of_a_peer_that_takes_several() {
    let mut config = with_peers([external_peer(2), external_peer(5), internal_peer(3)]);
    let peer = config.peers.get_mut(&name(3)).unwrap();
    peer.export_limits = both(LimitAction::Block, 3);
    peer.add_path.send = Some(crate::config::PathCount::All);
    let mut net = Net::new(config);
    net.up(2);
    net.up(5);
    let mut several = session(3);
    several.options.path_ids_out = vec![Family::Ipv4];
    net.up_with(3, several);
    net.announce(2, &[1, 2], external(2, &[65002]));
    net.announce(5, &[1, 2], external(5, &[65005]));
    let sent = |net: &Net| sent_of(net, 3, Family::Ipv4);
    assert_eq!(sent(&net), (3, 1), "one path of the second is kept back");
    net.withdraw(2, &[1]);
    assert_eq!(sent(&net), (2, 1));
    net.withdraw(5, &[1]);
    net.announce(5, &[2], external(5, &[65005, 65006]));
    assert_eq!(sent(&net), (2, 0), "both paths of the second");
    net.withdraw(2, &[2]);
    net.withdraw(5, &[2]);
    assert_eq!(sent(&net), (0, 0));
}

/// The number of a peer's routes, and of prefixes of which something is kept back.
fn sent_of(net: &Net, n: u8, family: Family) -> (usize, usize) {
    net.rib.sent_of(net.rib.peer_id(&name(n)).unwrap(), family)
}

/// Prefix `n` of IPv6.
fn v6(n: u8) -> Prefix {
    Prefix::v6([0xfd00, n.into(), 0, 0, 0, 0, 0, 0].into(), 32)
}

fn announce_v6(net: &mut Net, peer: u8, prefixes: std::ops::Range<u8>) {
    let announced = prefixes.map(v6).collect();
    let attrs = PathAttrs {
        next_hop: Some(std::net::Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, 1, peer.into()]).into()),
        ..attrs(peer)
    };
    net.apply(
        peer,
        UpdateMessage {
            announced,
            attrs: Some(attrs),
            ..UpdateMessage::default()
        },
    );
}

/// Two peers with both families, and other limits in each.
fn with_families(change: impl Fn(&mut crate::config::PeerConfig)) -> Net {
    let mut config = with_peers([internal_peer(2), external_peer(3)]);
    for peer in config.peers.values_mut() {
        peer.families = vec![Family::Ipv4, Family::Ipv6];
        peer.own_next_hops.ipv6 = Some([0xfd00, 0, 0, 0, 0, 0, 1, 1].into());
        change(peer);
    }
    let mut net = Net::new(config);
    for n in [2, 3] {
        let families = vec![Family::Ipv4, Family::Ipv6];
        net.up_with(
            n,
            SessionInfo {
                families,
                ..session(n)
            },
        );
    }
    net
}

#[test]
fn each_family_has_a_limit_of_its_own() {
    let two = |four: (LimitAction, u32), six: Option<(LimitAction, u32)>| PrefixLimits {
        ipv4: both(four.0, four.1).ipv4,
        ipv6: six.and_then(|(action, max)| both(action, max).ipv6),
    };
    let limits = two(
        (LimitAction::Block, 2),
        Some((LimitAction::Restart(Duration::from_secs(9)), 5)),
    );
    let mut net = with_families(|peer| peer.prefix_limits = limits);
    net.announce(2, &[1, 2, 3], attrs(2));
    announce_v6(&mut net, 2, 0..5);
    assert_eq!(words(&mut net), ["warn 2/2", "warn 5/5"]);
    assert_eq!(net.fib.len(), 7, "two of IPv4, five of IPv6");
    announce_v6(&mut net, 2, 5..6);
    assert_eq!(words(&mut net), ["end 5 Some(9s)"], "of IPv6");

    // What has no limit in its family is not counted as the other.
    let none = two((LimitAction::Block, 2), None);
    let mut net = with_families(|peer| peer.import_limits = none);
    net.announce(2, &[1, 2, 3], attrs(2));
    announce_v6(&mut net, 2, 0..6);
    assert_eq!(words(&mut net), ["warn 2/2"]);
    assert_eq!(net.fib.len(), 8);

    let mut net = with_families(|peer| peer.export_limits = none);
    net.announce(2, &[1, 2, 3], attrs(2));
    announce_v6(&mut net, 2, 0..6);
    assert_eq!(sent_of(&net, 3, Family::Ipv4), (2, 1));
    assert_eq!(sent_of(&net, 3, Family::Ipv6), (6, 0));
    assert_eq!(words(&mut net), ["warn 2/2"]);
    net.check();
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
