//! From the best path to what each peer is told.

use super::*;
use crate::types::{AnyCommunity, ClusterId, Community};

fn cluster(n: u8) -> ClusterId {
    ClusterId([9, 9, 9, n].into())
}

fn client(n: u8) -> (u8, PeerConfig) {
    (
        n,
        PeerConfig {
            client_of: Some(cluster(1)),
            ..internal_peer(n).1
        },
    )
}

fn all_up(peers: impl IntoIterator<Item = (u8, PeerConfig)>) -> Net {
    let peers: Vec<_> = peers.into_iter().collect();
    let numbers: Vec<u8> = peers.iter().map(|(n, _)| *n).collect();
    let mut net = Net::new(with_peers(peers));
    for n in numbers {
        net.up(n);
    }
    net
}

#[test]
fn rfc4271_9_2_internal_routes_do_not_go_to_internal_peers() {
    let mut net = all_up([internal_peer(2), internal_peer(3), external_peer(4)]);
    net.announce(2, &[1], attrs(2));
    assert_eq!(net.adj_out_prefixes(2), []);
    assert_eq!(net.adj_out_prefixes(3), []);
    let sent = net.adj_out(4)[&prefix(1)].clone();
    assert_eq!(sent.as_path.to_string(), "64512");
    assert_eq!((sent.next_hop, sent.local_pref), (Some(address(1)), None));
    net.check();
}

#[test]
fn external_routes_go_to_internal_peers_with_local_pref_and_their_next_hop() {
    let mut net = all_up([internal_peer(2), external_peer(4), external_peer(5)]);
    net.announce(
        4,
        &[1],
        PathAttrs {
            med: Some(7),
            ..external(4, &[65004])
        },
    );
    let inside = net.adj_out(2)[&prefix(1)].clone();
    assert_eq!(
        (inside.next_hop, inside.local_pref),
        (Some(address(4)), Some(100))
    );
    assert_eq!(inside.med, Some(7));
    let outside = net.adj_out(5)[&prefix(1)].clone();
    assert_eq!(outside.as_path.to_string(), "64512 65004");
    assert_eq!(outside.med, None, "RFC 4271 §5.1.4: not to another AS");
    assert_eq!(net.adj_out_prefixes(4), [], "split horizon");
    net.check();
}

#[test]
fn rfc4456_6_reflection() {
    // 2 and 3 are clients, 4 and 5 are not.
    let mut net = all_up([client(2), client(3), internal_peer(4), internal_peer(5)]);
    net.announce(2, &[1], attrs(2));
    net.announce(4, &[2], attrs(4));
    let table = |n: u8| net.adj_out_prefixes(n);
    assert_eq!(
        table(2),
        [prefix(2)],
        "from the non-client; not its own back"
    );
    assert_eq!(table(3), [prefix(1), prefix(2)]);
    assert_eq!(table(4), [prefix(1)]);
    assert_eq!(table(5), [prefix(1)], "not from non-client to non-client");
    let reflected = net.adj_out(5)[&prefix(1)].clone();
    assert_eq!(reflected.originator_id, Some(session(2).router_id));
    assert_eq!(reflected.cluster_list, [cluster(1)]);
    assert_eq!(
        reflected.next_hop,
        Some(address(2)),
        "RFC 4456 §10: next hop is kept"
    );
    assert_eq!(reflected.local_pref, Some(100));
    net.check();
}

#[test]
fn rfc4456_8_the_originator_stays_and_the_cluster_is_prepended() {
    let mut net = all_up([client(2), client(3)]);
    let originator = Some(RouterId([8, 8, 8, 8].into()));
    let from = PathAttrs {
        originator_id: originator,
        cluster_list: vec![cluster(7)].into(),
        ..attrs(2)
    };
    net.announce(2, &[1], from);
    let reflected = net.adj_out(3)[&prefix(1)].clone();
    assert_eq!(reflected.originator_id, originator);
    assert_eq!(reflected.cluster_list, [cluster(1), cluster(7)]);
    let looped = PathAttrs {
        cluster_list: vec![cluster(7), cluster(1)].into(),
        ..attrs(2)
    };
    net.announce(2, &[1], looped);
    assert_eq!(net.adj_out_prefixes(3), []);
    net.check();
}

#[test]
fn rfc4456_attributes_do_not_leave_the_as() {
    let mut net = all_up([client(2), external_peer(4)]);
    let originator = Some(RouterId([8, 8, 8, 8].into()));
    let from = PathAttrs {
        originator_id: originator,
        cluster_list: vec![cluster(7)].into(),
        ..attrs(2)
    };
    net.announce(2, &[1], from);
    let sent = net.adj_out(4)[&prefix(1)].clone();
    assert_eq!((sent.originator_id, sent.cluster_list.len()), (None, 0));
}

#[test]
fn own_routes_go_to_everyone_with_our_next_hop() {
    let mut net = all_up([internal_peer(2), external_peer(4)]);
    let own = Origination {
        local_pref: Some(crate::config::CALICO_LOCAL_PREF),
        med: Some(3),
        communities: vec!["65000:1".parse().unwrap()],
        ..Origination::default()
    };
    net.reconfigure(|config| drop(config.originate.insert(prefix(1), own.clone())));
    let inside = net.adj_out(2)[&prefix(1)].clone();
    assert_eq!(
        (inside.next_hop, inside.as_path.path_len()),
        (Some(address(1)), 0)
    );
    assert_eq!(inside.local_pref, Some(2_147_482_623));
    assert_eq!(inside.communities.len(), 1);
    let outside = net.adj_out(4)[&prefix(1)].clone();
    assert_eq!(
        (outside.med, outside.local_pref),
        (Some(3), None),
        "an own MED may go out"
    );
    let elsewhere = Origination {
        next_hop: Some(address(9)),
        ..own
    };
    net.reconfigure(|config| drop(config.originate.insert(prefix(1), elsewhere)));
    assert_eq!(net.adj_out(2)[&prefix(1)].next_hop, Some(address(9)));
    assert_eq!(net.adj_out(4)[&prefix(1)].next_hop, Some(address(1)));
    net.check();
}

#[test]
fn own_routes_with_a_gateway_go_out_as_birds_do() {
    // 2 is inside, 4 and 5 are outside, and 4 is on a link with us.
    let mut net = Net::new(with_peers([
        internal_peer(2),
        external_peer(4),
        external_peer(5),
    ]));
    net.up(2);
    let mut linked = session(4);
    linked.options.link = vec!["10.0.0.0/24".parse().unwrap()];
    net.up_with(4, linked);
    net.up(5);
    let told = |net: &Net| [2, 4, 5].map(|n| net.adj_out(n).get(&prefix(1))?.next_hop);
    let us = Some(address(1));
    let near = Some(address(77));
    let far: Option<IpAddr> = Some([192, 0, 2, 1].into());
    for (way, expected) in [
        (StaticWay::Via(vec![address(77).into()]), [near, near, us]),
        (
            StaticWay::Via(vec![IpAddr::from([192, 0, 2, 1]).into()]),
            [far, us, us],
        ),
        (
            StaticWay::Via(vec![address(77).into(), address(78).into()]),
            [us, us, us],
        ),
        (StaticWay::Recursive(address(77)), [near, near, us]),
        (StaticWay::Unreachable, [us, us, us]),
        // RFC 4271 §5.1.3: not to the gateway itself.
        (
            StaticWay::Via(vec![address(4).into()]),
            [Some(address(4)), None, us],
        ),
    ] {
        net.reconfigure(|config| drop(config.originate.insert(prefix(1), led(way.clone()))));
        assert_eq!(told(&net), expected, "{way:?}");
        assert_eq!(net.adj_out(2)[&prefix(1)].local_pref, Some(100));
        net.check();
    }
}

#[test]
fn rfc4271_5_1_3_never_with_the_peer_as_next_hop() {
    let mut net = all_up([internal_peer(2), internal_peer(3)]);
    let own = Origination {
        next_hop: Some(address(3)),
        ..Origination::default()
    };
    net.reconfigure(|config| drop(config.originate.insert(prefix(1), own)));
    assert_eq!(net.adj_out_prefixes(2), [prefix(1)]);
    assert_eq!(net.adj_out_prefixes(3), []);
    let explained = net.rib.explain(&prefix(1));
    assert_eq!(
        explained.advertised[1].1,
        Advertisement::Withheld(Withheld::PeerIsNextHop)
    );
    net.check();
}

#[test]
fn rfc4271_9_2_what_fits_into_no_message_is_not_claimed_to_be_sent() {
    let mut net = Net::new(with_peers([internal_peer(2), internal_peer(3)]));
    net.up(2);
    let mut long = session(3);
    long.options.extended_messages = true;
    net.up_with(3, long);
    let origination = |communities: u16| Origination {
        communities: (0..communities)
            .map(|n| AnyCommunity::Standard(Community::new(1, n)))
            .collect(),
        ..Origination::default()
    };
    let told = |net: &Net, n: usize| net.rib.explain(&prefix(1)).advertised[n].1.clone();
    let listed = |net: &Net, n: u8| {
        let query = RouteQuery::all(RouteTable::Advertised(name(n)));
        net.rib.route_records(&query, &[prefix(1)], 9).0.len()
    };
    for (communities, fits) in [(1000, true), (1100, false)] {
        let own = origination(communities);
        net.reconfigure(|config| drop(config.originate.insert(prefix(1), own)));
        let withheld = Advertisement::Withheld(Withheld::TooLong);
        assert_eq!(told(&net, 0) == withheld, !fits, "{communities}");
        assert_eq!(listed(&net, 2), usize::from(fits), "{communities}");
        assert!(matches!(told(&net, 1), Advertisement::Sent(_)));
        assert_eq!(listed(&net, 3), 1);
    }
}

#[test]
fn next_hop_modes() {
    use crate::config::NextHopMode::{self, Auto, Keep, Own};
    let mode = |n: u8, next_hop: NextHopMode| {
        (
            n,
            PeerConfig {
                next_hop: next_hop.into(),
                ..internal_peer(n).1
            },
        )
    };
    let outside = |n: u8, next_hop: NextHopMode| {
        (
            n,
            PeerConfig {
                next_hop: next_hop.into(),
                ..external_peer(n).1
            },
        )
    };
    let mut net = all_up([
        mode(2, Auto),
        mode(3, Own),
        mode(4, Keep),
        outside(5, Auto),
        outside(6, Keep),
        external_peer(9),
    ]);
    net.announce(9, &[1], external(9, &[65009]));
    let hops: Vec<_> = (2..=6)
        .map(|n| net.adj_out(n)[&prefix(1)].next_hop)
        .collect();
    let (kept, own) = (Some(address(9)), Some(address(1)));
    assert_eq!(hops, [kept, own, kept, own, kept]);
}

#[test]
fn rfc1997_well_known_communities() {
    let mut net = all_up([client(2), client(3), external_peer(4)]);
    let with = |community: Community| PathAttrs {
        communities: vec![community],
        ..attrs(2)
    };
    use crate::types::Community;
    net.announce(2, &[1], with(Community::NO_EXPORT));
    net.announce(2, &[2], with(Community::NO_ADVERTISE));
    net.announce(2, &[3], with(Community::NO_EXPORT_SUBCONFED));
    assert_eq!(net.adj_out_prefixes(3), [prefix(1), prefix(3)]);
    assert_eq!(net.adj_out_prefixes(4), []);
    assert_eq!(net.fib.len(), 3);
}

#[test]
fn equal_peers_share_one_group_and_one_set() {
    let mut net = all_up([client(2), client(3), client(4), internal_peer(5)]);
    net.announce(2, &[1, 2], attrs(2));
    assert_eq!(net.rib.counts().update_groups, 2);
    let (three, four) = (net.adj_out(3), net.adj_out(4));
    assert!(Arc::ptr_eq(&three[&prefix(1)], &four[&prefix(1)]), "RIB-2");
    assert!(Arc::ptr_eq(&three[&prefix(1)], &three[&prefix(2)]));
    net.down(5, false);
    assert_eq!(net.rib.counts().update_groups, 1);
    net.check();
}

#[test]
fn the_source_of_the_best_path_in_a_group_changes_hands() {
    let mut net = all_up([client(2), client(3), client(4)]);
    net.announce(2, &[1], attrs(2));
    assert_eq!(
        (net.adj_out_prefixes(2), net.adj_out_prefixes(3)),
        (vec![], vec![prefix(1)])
    );
    net.announce(
        3,
        &[1],
        PathAttrs {
            local_pref: Some(200),
            ..attrs(3)
        },
    );
    assert_eq!(
        (net.adj_out_prefixes(2), net.adj_out_prefixes(3)),
        (vec![prefix(1)], vec![])
    );
    assert_eq!(net.adj_out(4)[&prefix(1)].next_hop, Some(address(3)));
    net.check();
}

#[test]
fn a_new_session_is_told_everything_then_end_of_rib() {
    let mut net = all_up([client(2)]);
    net.reconfigure(|config| drop(config.peers.insert(name(3), client(3).1)));
    net.announce(2, &[1, 2], attrs(2));
    let changes = net.rib.peer_up(net.now, &name(3), session(3));
    let id = net.rib.peer_id(&name(3)).unwrap();
    let [Outbound::Peer { peer, routes, .. }, marker] = &changes.out[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((*peer, routes.len()), (id, 2));
    assert_eq!(
        *marker,
        Outbound::EndOfRib {
            peer: id,
            family: Family::Ipv4
        }
    );
}

#[test]
fn rfc2918_refresh_repeats_what_was_told() {
    let mut net = all_up([client(2), client(3)]);
    net.announce(2, &[1, 2], attrs(2));
    let changes = net.rib.route_refresh(net.now, &name(3), Family::Ipv4);
    let [Outbound::Peer { routes, .. }] = &changes.out[..] else {
        panic!("{changes:?}")
    };
    let mut prefixes: Vec<_> = routes.iter().map(|route| route.prefix).collect();
    prefixes.sort_unstable();
    assert_eq!(prefixes, [prefix(1), prefix(2)]);
    assert!(
        net.rib
            .route_refresh(net.now, &name(3), Family::Ipv6)
            .is_empty()
    );
    assert!(
        net.rib
            .route_refresh(net.now, &name(2), Family::Ipv4)
            .is_empty()
    );
}

#[test]
fn a_family_without_own_address_needs_an_explicit_next_hop() {
    let mut net = Net::new(with_peers([external_peer(4)]));
    let families = vec![Family::Ipv4, Family::Ipv6];
    net.up_with(
        4,
        SessionInfo {
            families,
            ..session(4)
        },
    );
    let v6: Prefix = "fd00::/64".parse().unwrap();
    net.reconfigure(|config| drop(config.originate.insert(v6, Origination::default())));
    assert_eq!(net.adj_out_prefixes(4), []);
    let explained = net.rib.explain(&v6);
    assert_eq!(
        explained.advertised[0].1,
        Advertisement::Withheld(Withheld::NoNextHop)
    );
    let next_hop = Some("fd00::1".parse().unwrap());
    let own = Origination {
        next_hop,
        ..Origination::default()
    };
    net.reconfigure(|config| drop(config.originate.insert(v6, own)));
    assert_eq!(net.adj_out(4)[&v6].next_hop, next_hop);
    net.check();
}

#[test]
fn rfc8950_4_an_ipv6_session_can_be_the_next_hop_of_ipv4_routes() {
    let mut config = with_peers([external_peer(4)]);
    config.originate.insert(prefix(1), Origination::default());
    let local_address: IpAddr = "fd00::1".parse().unwrap();
    for extended_next_hop in [false, true] {
        let mut net = Net::new(config.clone());
        let options = SessionOptions {
            extended_next_hop,
            ..SessionOptions::default()
        };
        net.up_with(
            4,
            SessionInfo {
                local_address,
                remote_address: "fd00::4".parse().unwrap(),
                options,
                ..session(4)
            },
        );
        let adj_out = net.adj_out(4);
        let hop = adj_out.get(&prefix(1)).and_then(|attrs| attrs.next_hop);
        assert_eq!(hop, extended_next_hop.then_some(local_address));
        net.check();
    }
}

/// RFC 4760 §3: a session over IPv4 carries IPv6, with an IPv6 address of ours as the next hop; and
/// the other way round.
#[test]
fn rfc4760_3_routes_of_the_other_family_go_with_an_own_next_hop() {
    let v6: Prefix = "2001:db8:9::/48".parse().unwrap();
    let (v4_end, v6_end): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), "fd00::1".parse().unwrap());
    let configured: IpAddr = "fd00::77".parse().unwrap();
    let cases = [(v4_end, v6, v6_end), (v6_end, prefix(1), v4_end)];
    for (local_address, prefix, beside) in cases {
        for n in [4, 6] {
            let mut config = with_peers([external_peer(4), internal_peer(6)]);
            config.originate.insert(prefix, Origination::default());
            let adj_out = |config: &SpeakerConfig, other_address| {
                let mut net = Net::new(config.clone());
                let options = SessionOptions {
                    other_address,
                    ..SessionOptions::default()
                };
                let info = SessionInfo {
                    families: vec![Family::Ipv4, Family::Ipv6],
                    local_address,
                    options,
                    ..session(n)
                };
                net.up_with(n, info);
                net.check();
                let adj_out = net.adj_out(n);
                adj_out.get(&prefix).and_then(|attrs| attrs.next_hop)
            };
            assert_eq!(adj_out(&config, None), None, "{n} {prefix}");
            assert_eq!(adj_out(&config, Some(beside)), Some(beside), "{n} {prefix}");
            // A configured next hop comes before one that was found.
            if prefix == v6 {
                let peers = config.peers.values_mut();
                peers.for_each(|peer| peer.own_next_hops.set(configured));
                assert_eq!(adj_out(&config, None), Some(configured));
                assert_eq!(adj_out(&config, Some(beside)), Some(configured));
            }
        }
    }
}

#[test]
fn rfc2545_3_on_a_shared_link_our_link_local_address_goes_with_our_own() {
    let mut config = with_peers([external_peer(4), external_peer(5), internal_peer(6)]);
    let v6: Prefix = "2001:db8:9::/48".parse().unwrap();
    config.originate.insert(v6, Origination::default());
    let mut net = Net::new(config);
    let own: IpAddr = "2001:db8::1".parse().unwrap();
    let link_local = Some("fe80::1".parse().unwrap());
    let up = |net: &mut Net, n: u8, link_local| {
        let info = SessionInfo {
            families: vec![Family::Ipv6],
            local_address: own,
            remote_address: format!("2001:db8::{n}").parse().unwrap(),
            options: SessionOptions {
                link_local,
                ..SessionOptions::default()
            },
            ..session(n)
        };
        net.up_with(n, info);
    };
    up(&mut net, 4, link_local);
    up(&mut net, 5, None);
    up(&mut net, 6, link_local);
    let hops = |net: &Net, n: u8, prefix: Prefix| {
        let adj_out = net.adj_out(n)[&prefix].clone();
        (adj_out.next_hop, adj_out.link_local_next_hop)
    };
    assert_eq!(hops(&net, 4, v6), (Some(own), link_local));
    assert_eq!(hops(&net, 5, v6), (Some(own), None), "not on a link");
    // A next hop that is not ours has no address of ours beside it.
    let other: Prefix = "2001:db8:a::/48".parse().unwrap();
    let theirs: IpAddr = "2001:db8::5".parse().unwrap();
    let update = UpdateMessage {
        announced: vec![other],
        attrs: Some(PathAttrs {
            next_hop: Some(theirs),
            ..external(5, &[65005])
        }),
        ..UpdateMessage::default()
    };
    net.apply(5, update);
    assert_eq!(hops(&net, 6, other), (Some(theirs), None));
    assert_eq!(hops(&net, 4, other), (Some(own), link_local));
    net.check();
}

#[test]
fn rfc4360_6_non_transitive_communities_end_at_the_border_of_the_as() {
    let mut net = all_up([external_peer(2), internal_peer(3), external_peer(4)]);
    let target = [0, 2, 0xfc, 0, 0, 0, 0, 1];
    let bandwidth = [0x40, 4, 0xfc, 0, 0, 0, 0, 1];
    let announced = PathAttrs {
        ext_communities: vec![target, bandwidth].into(),
        ..external(2, &[65002])
    };
    net.announce(2, &[1], announced);
    assert_eq!(
        net.adj_out(3)[&prefix(1)].ext_communities,
        [target, bandwidth]
    );
    assert_eq!(net.adj_out(4)[&prefix(1)].ext_communities, [target]);
    net.check();
}

/// RFC 4271 §5.1.6 and §5.1.7: who aggregates nothing takes nothing away either.
#[test]
fn rfc4271_5_1_6_received_aggregates_pass_through() {
    let mut net = all_up([external_peer(2), internal_peer(3), external_peer(4)]);
    let aggregate = PathAttrs {
        atomic_aggregate: true,
        aggregator: Some(crate::attrs::Aggregator {
            asn: Asn(65009),
            router: [9, 9, 9, 9].into(),
        }),
        ..external(2, &[65002])
    };
    net.announce(2, &[1], aggregate.clone());
    for n in [3, 4] {
        let adj_out = net.adj_out(n)[&prefix(1)].clone();
        assert!(adj_out.atomic_aggregate, "{n}");
        assert_eq!(adj_out.aggregator, aggregate.aggregator, "{n}");
    }
    net.check();
}
