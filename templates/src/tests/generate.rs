//! Arbitrary configurations, within what BIRD can be told.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use caracal_bgp::*;
use caracal_model::{Family, Prefix};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn v4() -> impl Strategy<Value = IpAddr> {
    (1u8..=223, any::<[u8; 3]>())
        .prop_filter("loopback", |(a, _)| *a != 127)
        .prop_map(|(a, [b, c, d])| IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
}

/// Global and unique local addresses; a link-local one means nothing without its interface.
fn v6() -> impl Strategy<Value = IpAddr> {
    (
        select(vec![0x2001u16, 0xfd00, 0x2fff]),
        any::<[u16; 7]>(),
        0usize..7,
    )
        .prop_map(|(first, mut rest, zeros)| {
            rest[..zeros].fill(0);
            let [b, c, d, e, f, g, h] = rest;
            IpAddr::V6(Ipv6Addr::new(first, b, c, d, e, f, g, h))
        })
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![v4(), v6()]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    prop_oneof![
        (v4(), 0u8..=32).prop_map(|(a, len)| Prefix::truncated(a, len)),
        (v6(), 0u8..=128).prop_map(|(a, len)| Prefix::truncated(a, len)),
    ]
}

fn asn() -> impl Strategy<Value = Asn> {
    prop_oneof![Just(64512), Just(65001), 1..=u32::MAX].prop_map(Asn)
}

fn community() -> impl Strategy<Value = AnyCommunity> {
    prop_oneof![
        any::<u32>().prop_map(|c| AnyCommunity::Standard(Community(c))),
        any::<(u32, u32, u32)>().prop_map(|(a, b, c)| AnyCommunity::Large(LargeCommunity(a, b, c))),
        any::<[u8; 8]>().prop_map(|octets| AnyCommunity::Extended(ExtCommunity(octets))),
        // A route target or origin.
        (0u8..3, 2u8..4, any::<[u8; 6]>()).prop_map(|(code, subtype, [a, b, c, d, e, f])| {
            AnyCommunity::Extended(ExtCommunity([code, subtype, a, b, c, d, e, f]))
        }),
    ]
}

fn pattern() -> impl Strategy<Value = PrefixPattern> {
    (prefix(), any::<Index>(), any::<Index>(), 0..3).prop_map(|(prefix, a, b, form)| match form {
        0 => PrefixPattern::exact(prefix),
        1 => PrefixPattern::or_longer(prefix),
        _ => {
            let choices = usize::from(prefix.family().bits() - prefix.len()) + 1;
            let length = |i: Index| prefix.len() + u8::try_from(i.index(choices)).unwrap();
            let (a, b) = (length(a), length(b));
            PrefixPattern {
                prefix,
                min: a.min(b),
                max: a.max(b),
            }
        }
    })
}

/// Names that BIRD can write, keywords, and anything else.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "(Mesh|Node|Global)_[0-9]{1,3}_[0-9]{1,3}(_port_[0-9]{1,5})?",
        "bgp_[a-z.-]{1,10}_(import|export)FilterV[46]",
        "[a-z]{1,4}[0-9]{1,2}",
        select(vec![
            "table",
            "accept",
            "ipv4",
            "bgp_path",
            "RTS_BGP",
            "caracal_peer",
            "all",
            "is_internal",
            "unnamed:1",
            "bgp",
            "on",
            "",
        ])
        .prop_map(str::to_owned),
        "[A-Za-z]{60,70}",
        "\\PC{1,12}",
    ]
}

/// A text that stands in a BIRD string.
fn text() -> impl Strategy<Value = String> {
    "[^\"\\p{Cc}]{0,12}"
}

fn condition() -> impl Strategy<Value = FilterCondition> {
    prop_oneof![
        (vec(pattern(), 1..5), any::<bool>())
            .prop_map(|(patterns, negated)| FilterCondition::Prefix { patterns, negated }),
        community().prop_map(FilterCondition::Community),
        vec(asn(), 0..4).prop_map(FilterCondition::AsPathPrefix),
        (
            vec(asn(), 1..4),
            select(vec![
                AsPathPlace::Anywhere,
                AsPathPlace::End,
                AsPathPlace::Whole
            ])
        )
            .prop_map(|(asns, place)| FilterCondition::AsPath { asns, place }),
        prefix().prop_map(FilterCondition::NextHop),
        select(vec![PeerKind::Internal, PeerKind::External]).prop_map(FilterCondition::PeerKind),
        select(vec![RouteSource::Bgp, RouteSource::Static]).prop_map(FilterCondition::Source),
        text().prop_map(FilterCondition::Interface),
        any::<u32>().prop_map(FilterCondition::LocalPref),
    ]
}

fn action() -> impl Strategy<Value = FilterAction> {
    prop_oneof![
        community().prop_map(FilterAction::AddCommunity),
        community().prop_map(FilterAction::RemoveCommunity),
        any::<u32>().prop_map(FilterAction::SetLocalPref),
        any::<u32>().prop_map(FilterAction::SetMed),
        vec(asn(), 0..4).prop_map(FilterAction::PrependAsPath),
        vec(asn(), 0..4).prop_map(FilterAction::PrependAsPath),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let verdict = of(select(vec![FilterVerdict::Accept, FilterVerdict::Reject]));
    let term = (vec(condition(), 0..4), vec(action(), 0..5), verdict).prop_map(
        |(conditions, actions, verdict)| FilterTerm {
            conditions,
            actions,
            verdict,
        },
    );
    vec(term, 0..4).prop_map(Filter::from)
}

fn origination() -> impl Strategy<Value = Origination> {
    (
        of(address()),
        of(any::<u32>()),
        of(any::<u32>()),
        select(vec![Origin::Igp, Origin::Egp, Origin::Incomplete]),
        vec(any::<u32>().prop_map(Asn), 0..3),
        btree_set(community(), 0..4),
    )
        .prop_map(
            |(next_hop, local_pref, med, origin, as_path, communities)| Origination {
                next_hop,
                local_pref,
                med,
                origin,
                as_path,
                communities: communities.into_iter().collect(),
                way: StaticWay::default(),
                protocol: None,
            },
        )
}

/// A link-local gateway.
fn near(n: u8) -> StaticGateway {
    let address: IpAddr = [0xfe80, 0, 0, 0, 0, 0, 0, n.into()].into();
    StaticGateway {
        interface: Some(format!("eth-{n}.7").into()),
        ..address.into()
    }
}

/// Where a route of the family goes, and the route with it.
fn led((prefix, mut route, n): (Prefix, Origination, u8)) -> (Prefix, Origination) {
    let hop = |n: u8| -> IpAddr {
        match prefix.family() {
            Family::Ipv4 => [10, 0, 0, n].into(),
            Family::Ipv6 => [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into(),
        }
    };
    route.way = match n % 6 {
        0 => StaticWay::Unreachable,
        1 => StaticWay::Prohibit,
        2 if n % 5 == 0 => {
            let address = match n % 2 {
                0 => match prefix.family() {
                    Family::Ipv4 => IpAddr::from([0; 4]),
                    Family::Ipv6 => IpAddr::from([0; 16]),
                },
                _ => hop(n),
            };
            StaticWay::Via(vec![StaticGateway {
                interface: Some(format!("wg-{n}").into()),
                ..address.into()
            }])
        }
        2 if n % 4 == 0 && prefix.family() == Family::Ipv6 => StaticWay::Via(vec![near(n)]),
        2 => StaticWay::Via(vec![hop(n).into()]),
        3 => StaticWay::Via(vec![
            StaticGateway {
                extra_weight: n / 8,
                ..hop(n).into()
            },
            hop(n ^ 1).into(),
        ]),
        4 => StaticWay::Recursive(hop(n)),
        _ => StaticWay::Blackhole,
    };
    if !route.way.leads_nowhere() {
        route.next_hop = None;
    }
    (prefix, route)
}

prop_compose! {
    fn session()(
        ends in prop_oneof![(v4(), v4()), (v6(), v6())],
        has_source in any::<bool>(),
        port in 1u16..,
        remote_as in asn(),
        local_as in of(asn()),
        passive in any::<bool>(),
        disabled in any::<bool>(),
        hold_time in prop_oneof![Just(0u64), 3u64..=65535],
        families in select(vec![vec![Family::Ipv4], vec![Family::Ipv6], vec![Family::Ipv4, Family::Ipv6]]),
        restart in of(0u64..=4095),
    ) -> PeerConfig {
        let mut peer = PeerConfig::new(ends.0, remote_as);
        peer.source = has_source.then_some(ends.1);
        peer.port = port;
        peer.local_as = local_as;
        peer.passive = passive;
        peer.disabled = disabled;
        peer.hold_time = Duration::from_secs(hold_time);
        peer.families = families;
        peer.graceful_restart = restart.map(|s| GracefulRestart { restart_time: Duration::from_secs(s) });
        peer
    }
}

prop_compose! {
    fn options()(
        mut peer in session(),
        range in of((any::<u32>(), 0u8..=32)),
        limits in proptest::array::uniform6(of((any::<u32>(), 0u8..=100, prop_oneof![
            Just(LimitAction::Warn),
            Just(LimitAction::Block),
            Just(LimitAction::Disable),
            any::<u16>().prop_map(|s| LimitAction::Restart(Duration::from_secs(s.into()))),
        ]))),
        require_policy in any::<bool>(),
        rs_client in any::<bool>(),
        role in of(proptest::sample::select(BgpRole::ALL.to_vec())),
        require_roles in any::<bool>(),
        dynamic_name in of("[a-z]{1,8}"),
        preference in prop_oneof![Just(100u16), 11u16..200],
        disable_after in (any::<bool>(), prop_oneof![Just(DisableAfter::ANY_CEASE), 0u16..512]),
        extended_next_hop in any::<bool>(),
        own_ipv4 in of(any::<u32>()),
        own_ipv6 in of(any::<u128>()),
        receive in any::<bool>(),
        send in of(prop_oneof![Just(PathCount::All), any::<u8>().prop_map(PathCount::Best)]),
        long_lived in of(0u64..1 << 24),
        long_lived_partial in any::<bool>(),
        bfd in of((1u32.., 1u8.., any::<bool>())),
    ) -> PeerConfig {
        if let Some((address, len)) = range.filter(|_| peer.address.is_ipv4()) {
            let range = Prefix::v4(address.into(), len);
            peer.address = range.address();
            peer.range = Some(range);
        }
        let limits = limits.map(|limit| {
            limit.map(|(max, warning, action)| PrefixLimit { max, warning, action })
        });
        for (n, family) in peer.families.iter().enumerate() {
            peer.prefix_limits.set(*family, limits[n]);
            peer.import_limits.set(*family, limits[n + 2]);
            peer.export_limits.set(*family, limits[n + 4]);
        }
        peer.require_policy = require_policy;
        peer.rs_client = rs_client;
        peer.role = role;
        peer.dynamic_name = dynamic_name;
        peer.preference = preference;
        let (error, cease) = disable_after;
        peer.disable_after = DisableAfter { error, cease };
        peer.require_roles = require_roles && role.is_some();
        peer.extended_next_hop = extended_next_hop;
        let has = |family| peer.families.contains(&family);
        peer.own_next_hops = OwnNextHops {
            ipv4: own_ipv4.filter(|_| has(Family::Ipv4)).map(Into::into),
            ipv6: own_ipv6.filter(|_| has(Family::Ipv6)).map(Into::into),
        };
        peer.add_path = AddPath { receive, send };
        // Only together with graceful restart (RFC 9494 §4.1).
        peer.long_lived = long_lived.filter(|_| peer.graceful_restart.is_some()).map(Duration::from_secs);
        peer.long_lived_partial = long_lived_partial;
        // BIRD insists on our address for BFD over several hops.
        peer.bfd = bfd.filter(|_| peer.source.is_some()).map(|(interval, multiplier, graceful)| BfdOptions {
            interval: Duration::from_micros(interval.into()),
            multiplier,
            graceful,
        });
        peer
    }
}

prop_compose! {
    fn peer()(
        mut peer in options(),
        cluster in of(any::<u32>()),
        next_hop in select(vec![NextHopMode::Auto, NextHopMode::Own, NextHopMode::Keep]),
        next_hop6 in select(vec![NextHopMode::Auto, NextHopMode::Own, NextHopMode::Keep]),
        enforce_first_as in any::<bool>(),
        ttl in prop_oneof![Just(None), Just(Some(1)), of(any::<u8>())],
        ttl_security in of(any::<u8>()),
        password in of("[!#-~][ !#-~]{0,30}"),
        allow_own_as in prop_oneof![Just(0u8), 1u8..=100],
        kind in prop_oneof![select(vec!["mesh", "global", "node", ""]).prop_map(str::to_owned), text()],
        import in vec(any::<Index>(), 0..3),
        export in vec(any::<Index>(), 0..3),
        link in of("[a-z][a-z0-9.-]{0,14}"),
    ) -> (PeerConfig, Option<ClusterId>, Vec<Index>, Vec<Index>) {
        peer.next_hop = next_hop.into();
        if peer.families.len() > 1 {
            peer.next_hop.ipv6 = next_hop6;
        }
        peer.enforce_first_as = enforce_first_as;
        peer.ttl = ttl;
        peer.ttl_security = ttl_security;
        peer.password = password.map(Password);
        peer.allow_own_as = allow_own_as;
        peer.kind = kind;
        if let (Some(link), IpAddr::V6(address)) = (link, peer.address) {
            let address = address.to_bits() & u128::from(u64::MAX) | 0xfe80 << 112;
            peer.address = Ipv6Addr::from_bits(address).into();
            peer.interface = Some(link.into());
            (peer.ttl, peer.ttl_security) = (Some(1), None);
            (peer.source, peer.bfd) = (None, None);
        }
        (peer, cluster.map(|c| ClusterId(c.into())), import, export)
    }
}

prop_compose! {
    fn station()(
        address in address(),
        port in 1u16..,
        views in any::<[bool; 2]>(),
        statistics in of(any::<u32>()),
        buffer in any::<u32>(),
        system_name in of(name()),
        system_description in of(name()),
    ) -> Station {
        Station {
            address,
            port,
            pre_policy: views[0],
            post_policy: views[1],
            statistics: statistics.map(|s| Duration::from_secs(s.into())),
            buffer: usize::try_from(buffer).unwrap(),
            system_name,
            system_description,
        }
    }
}

prop_compose! {
    /// Any configuration that can be rendered.
    pub(super) fn config()(
        local_as in asn(),
        router_id in 1..=u32::MAX,
        listen in of((of(address()), of(address()), 1u16..)),
        peers in btree_map(name(), peer(), 0..4),
        originate in vec((prefix(), origination(), any::<u8>()).prop_map(led), 0..4),
        filters in btree_map(name(), filter(), 0..4),
        stations in btree_map(name(), station(), 0..3),
    ) -> SpeakerConfig {
        let names: Vec<&String> = filters.keys().collect();
        let pick = |list: &[Index]| {
            list.iter()
                .filter(|_| !names.is_empty())
                .map(|i| names[i.index(names.len())].clone())
                .collect()
        };
        let peers: BTreeMap<PeerName, PeerConfig> = peers
            .into_iter()
            .map(|(name, (mut peer, cluster, import, export))| {
                peer.import = pick(&import);
                peer.export = pick(&export);
                // Only internal peers can be clients (RFC 4456), and BIRD insists.
                let internal = peer.local_as.unwrap_or(local_as) == peer.remote_as;
                peer.client_of = cluster.filter(|_| internal);
                peer.rs_client &= !internal;
                peer.enforce_first_as &= !internal;
                peer.role = peer.role.filter(|_| !internal);
                peer.require_roles &= !internal;
                (name.into(), peer)
            })
            .collect();
        SpeakerConfig {
            local_as,
            router_id: RouterId(router_id.into()),
            listen: listen.map(|(address, second, port)| Listen {
                address,
                // Only beside a first one, as the grammar has it.
                second: second.filter(|_| address.is_some()),
                port,
            }),
            peers,
            originate: originate.into_iter().collect(),
            filters: filters.clone(),
            stations,
        }
    }
}
