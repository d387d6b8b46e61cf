//! `decode(encode(m)) == m`, and packing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::{Bytes, BytesMut};
use caracal_model::{Family, Prefix};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::capability::{
    AddPathMode, AfiSafi, Capability, GracefulRestartCapability, LongLivedFamily,
};
use super::super::format::{FamilySet, MAX_MESSAGE_LEN, MessageFormat};
use super::super::frame_len;
use super::super::notification::{CeaseSubcode, Notification, NotificationCode};
use super::super::open::OpenMessage;
use super::super::refresh::{RefreshKind, RouteRefresh};
use super::super::update::{
    EncodeError, UpdateMessage, encode_announce, encode_end_of_rib, encode_update, encode_withdraw,
};
use super::super::{Message, encode_notification, encode_open, encode_refresh};
use super::{decode_all, ibgp};
use crate::attrs::{Aggregator, AsPath, Origin, PathAttrs, RouteType, Segment, UnknownAttr};
use crate::types::{Asn, ClusterId, Community, LargeCommunity, RouterId};

pub(super) fn prefix(family: Family) -> BoxedStrategy<Prefix> {
    match family {
        Family::Ipv4 => (any::<u32>(), 0u8..=32)
            .prop_map(|(a, len)| Prefix::v4(a.into(), len))
            .boxed(),
        Family::Ipv6 => (any::<u128>(), 0u8..=128)
            .prop_map(|(a, len)| Prefix::v6(a.into(), len))
            .boxed(),
    }
}

fn asn() -> impl Strategy<Value = Asn> {
    prop_oneof![1u32..65536, 1u32..].prop_map(Asn)
}

fn as_path() -> impl Strategy<Value = AsPath> {
    let segment = prop_oneof![
        vec(asn(), 1..6).prop_map(Segment::Sequence),
        vec(asn(), 300..520).prop_map(Segment::Sequence),
        vec(asn(), 1..4).prop_map(Segment::Set),
    ];
    vec(segment, 0..4).prop_map(AsPath::new)
}

/// Host addresses only: others are not next hops.
fn next_hop(family: Family) -> BoxedStrategy<IpAddr> {
    match family {
        Family::Ipv4 => (0x0100_0000u32..0xdfff_ffff)
            .prop_map(|a| Ipv4Addr::from(a).into())
            .boxed(),
        Family::Ipv6 => (1u128..0xfeff << 112)
            .prop_map(|a| IpAddr::from(Ipv6Addr::from(a)))
            .boxed(),
    }
}

fn sorted<T: Ord + std::fmt::Debug>(
    item: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<T>> {
    vec(item, 0..5).prop_map(|mut list| {
        list.sort();
        list.dedup();
        list
    })
}

fn unknown() -> impl Strategy<Value = Vec<UnknownAttr>> {
    let attr = (128u8.., vec(any::<u8>(), 0..300)).prop_map(|(code, value)| UnknownAttr {
        flags: 0xe0,
        code,
        value: Bytes::from(value),
    });
    let only_to_customer = any::<u32>().prop_map(|asn| UnknownAttr::only_to_customer(Asn(asn)));
    vec(prop_oneof![only_to_customer, attr], 0..3).prop_map(|mut list| {
        list.sort_by_key(|attr| attr.code);
        list.dedup_by_key(|attr| attr.code);
        list
    })
}

fn path_attrs(family: Family) -> impl Strategy<Value = PathAttrs> {
    let basics = (
        prop_oneof![
            Just(Origin::Igp),
            Just(Origin::Egp),
            Just(Origin::Incomplete)
        ],
        as_path(),
        next_hop(family),
        proptest::option::of(any::<u32>()),
        proptest::option::of(any::<u32>()),
        any::<bool>(),
        proptest::option::of((asn(), any::<u32>())),
    );
    let more = (
        sorted(any::<u32>().prop_map(Community)),
        sorted(any::<[u8; 8]>()),
        sorted(any::<(u32, u32, u32)>().prop_map(|(a, b, c)| LargeCommunity(a, b, c))),
        proptest::option::of(any::<u32>().prop_map(|id| RouterId(id.into()))),
        vec(any::<u32>().prop_map(|id| ClusterId(id.into())), 0..4),
        unknown(),
        proptest::option::of(any::<u64>()),
    );
    (basics, more).prop_map(move |(basics, more)| PathAttrs {
        origin: basics.0,
        as_path: basics.1,
        next_hop: Some(basics.2),
        link_local_next_hop: more
            .6
            .filter(|_| family == Family::Ipv6)
            .map(|low| Ipv6Addr::from(0xfe80 << 112 | u128::from(low))),
        med: basics.3,
        local_pref: basics.4,
        atomic_aggregate: basics.5,
        aggregator: basics.6.map(|(asn, router)| Aggregator {
            asn,
            router: router.into(),
        }),
        communities: more.0,
        ext_communities: more.1.into(),
        large_communities: more.2.into(),
        originator_id: more.3,
        cluster_list: more.4.into(),
        unknown: more.5.into(),
        route_type: RouteType::default(),
    })
}

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::Ipv4), Just(Family::Ipv6)]
}

fn an_update() -> impl Strategy<Value = UpdateMessage> {
    family().prop_flat_map(|family| {
        (
            vec(prefix(family), 0..20),
            vec(prefix(family), 1..20),
            path_attrs(family),
        )
            .prop_map(|(withdrawn, announced, attrs)| UpdateMessage {
                withdrawn,
                announced,
                attrs: Some(attrs),
                ..UpdateMessage::default()
            })
    })
}

fn afi_safi() -> impl Strategy<Value = AfiSafi> {
    prop_oneof![
        family().prop_map(AfiSafi::from),
        any::<(u16, u8)>().prop_map(|(afi, safi)| AfiSafi { afi, safi }),
    ]
}

fn capability() -> impl Strategy<Value = Capability> {
    let graceful = (
        any::<bool>(),
        any::<bool>(),
        0u16..4096,
        vec((afi_safi(), any::<bool>()), 0..4),
    );
    prop_oneof![
        afi_safi().prop_map(Capability::Multiprotocol),
        Just(Capability::RouteRefresh),
        vec((afi_safi(), any::<u16>()), 0..4).prop_map(Capability::ExtendedNextHop),
        Just(Capability::ExtendedMessage),
        graceful.prop_map(|(restarting, notification, restart_time, families)| {
            Capability::GracefulRestart(GracefulRestartCapability {
                restarting,
                notification,
                restart_time,
                families,
            })
        }),
        vec((afi_safi(), any::<u8>().prop_map(AddPathMode::from)), 0..4)
            .prop_map(Capability::AddPath),
        Just(Capability::EnhancedRouteRefresh),
        vec(
            (afi_safi(), any::<bool>(), 0u32..1 << 24).prop_map(
                |(family, forwarding, stale_time)| LongLivedFamily {
                    family,
                    forwarding,
                    stale_time,
                }
            ),
            0..4
        )
        .prop_map(Capability::LongLivedGracefulRestart),
        (128u8.., vec(any::<u8>(), 0..100)).prop_map(|(code, value)| Capability::Unknown {
            code,
            value: value.into()
        }),
    ]
}

fn an_open() -> impl Strategy<Value = OpenMessage> {
    (
        asn(),
        prop_oneof![Just(0u16), 3u16..],
        1u32..,
        vec(capability(), 0..12),
    )
        .prop_map(|(asn, hold_time, id, mut capabilities)| {
            capabilities.push(Capability::FourOctetAs(asn));
            OpenMessage {
                asn,
                hold_time,
                router_id: RouterId(id.into()),
                capabilities,
            }
        })
}

/// Merges a stream of UPDATEs into one.
pub(super) fn merged(messages: Vec<Message>) -> UpdateMessage {
    let mut all = UpdateMessage::default();
    for message in messages {
        let Message::Update(decoded) = message else {
            panic!("{message:?} is no UPDATE")
        };
        assert_eq!(decoded.faults, []);
        for update in decoded.into_updates() {
            all.withdrawn.extend(update.withdrawn);
            all.announced.extend(update.announced);
            all.withdrawn_ids.extend(update.withdrawn_ids);
            all.announced_ids.extend(update.announced_ids);
            if let Some(attrs) = update.attrs {
                assert!(
                    all.attrs.is_none_or(|seen| seen == attrs),
                    "attributes differ"
                );
                all.attrs = Some(attrs);
            }
            all.end_of_rib = all.end_of_rib.or(update.end_of_rib);
        }
    }
    all
}

proptest! {
    #[test]
    fn update(update in an_update(), extended: bool) {
        let format = MessageFormat { extended_send: extended, extended_receive: extended, ..ibgp() };
        let mut out = BytesMut::new();
        match encode_update(&update, &format, &mut out) {
            Ok(()) => prop_assert_eq!(merged(decode_all(&out, &format).unwrap()), update),
            Err(error) => prop_assert!(!extended, "{}", error),
        }
    }

    /// RFC 6793: between two-octet speakers, AS4_PATH and AS4_AGGREGATOR bring back what AS_TRANS
    /// hid.
    #[test]
    fn rfc6793_4_2_update_over_a_two_octet_session(update in an_update()) {
        let format = MessageFormat {
            four_octet_as: false,
            extended_send: true,
            extended_receive: true,
            ..ibgp()
        };
        let mut out = BytesMut::new();
        encode_update(&update, &format, &mut out).unwrap();
        let seen = merged(decode_all(&out, &format).unwrap());
        prop_assert_eq!(seen, update);
    }

    #[test]
    fn open(open in an_open()) {
        let mut out = BytesMut::new();
        encode_open(&open, &mut out);
        prop_assert_eq!(decode_all(&out, &ibgp()).unwrap(), vec![Message::Open(open)]);
    }

    #[test]
    fn notification(code: u8, subcode: u8, data in vec(any::<u8>(), 0..300)) {
        let notification = Notification::with_data(NotificationCode::from_octets(code, subcode), data.into());
        let mut out = BytesMut::new();
        encode_notification(&notification, &mut out);
        prop_assert_eq!(notification.code.octets(), (code, subcode));
        prop_assert_eq!(
            decode_all(&out, &ibgp()).unwrap(),
            vec![Message::Notification(notification)]
        );
    }

    #[test]
    fn refresh(family in afi_safi(), octet in 3u8.., kind in 0usize..4) {
        let kind = [
            RefreshKind::Request,
            RefreshKind::Begin,
            RefreshKind::End,
            RefreshKind::Other(octet),
        ][kind];
        let refresh = RouteRefresh { family, kind };
        let mut out = BytesMut::new();
        encode_refresh(&refresh, &mut out);
        prop_assert_eq!(decode_all(&out, &ibgp()).unwrap(), vec![Message::RouteRefresh(refresh)]);
    }

    /// RFC 9003 §2: 255 octets at most, cut at a character.
    #[test]
    fn rfc9003_2_shutdown_text(text in "\\PC{0,200}") {
        let notification = Notification::shutdown(CeaseSubcode::AdministrativeShutdown, &text);
        let seen = notification.shutdown_text().unwrap_or_default();
        prop_assert!(text.starts_with(&seen));
        prop_assert!(seen.len() > 255 - 4 || seen == text);
        prop_assert_eq!(notification.hard_reset().shutdown_text().unwrap_or_default(), seen);
    }

    #[test]
    fn every_message_fits_and_all_but_the_last_are_full(
        prefixes in vec(prefix(Family::Ipv6), 0..3000),
    ) {
        let mut out = BytesMut::new();
        encode_withdraw(Family::Ipv6, &prefixes, &ibgp(), &mut out);
        let mut stream = out.as_ref();
        while let Some(len) = frame_len(stream, MAX_MESSAGE_LEN).unwrap() {
            stream = &stream[len..];
            prop_assert!(stream.is_empty() || len > MAX_MESSAGE_LEN - 17, "{len} octets");
        }
        prop_assert_eq!(merged(decode_all(&out, &ibgp()).unwrap()).withdrawn, prefixes);
    }
}

#[test]
fn rfc4724_2_end_of_rib_of_each_family() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let mut out = BytesMut::new();
        encode_end_of_rib(family, &mut out);
        let expected = UpdateMessage::end_of_rib(family);
        assert_eq!(merged(decode_all(&out, &ibgp()).unwrap()), expected);
    }
}

#[test]
fn a_thousand_prefixes_with_one_set_take_one_message_and_a_bit() {
    let prefixes: Vec<Prefix> = (0..1000u32)
        .map(|n| Prefix::v4((0x0a00_0000 | n << 8).into(), 24))
        .collect();
    let attrs = PathAttrs {
        next_hop: Some([10, 0, 0, 1].into()),
        ..PathAttrs::default()
    };
    let mut out = BytesMut::new();
    encode_announce(Family::Ipv4, &attrs, &prefixes, &ibgp(), &mut out).unwrap();
    // 4 octets each; 4096 - 23 - (ORIGIN 4 + AS_PATH 3 + NEXT_HOP 7) leaves room for 1014.
    assert_eq!(decode_all(&out, &ibgp()).unwrap().len(), 1);
    assert_eq!(out.len(), 23 + 14 + 4000);
    let both: Vec<Prefix> = prefixes
        .iter()
        .copied()
        .chain(prefixes.iter().copied())
        .collect();
    out.clear();
    encode_announce(Family::Ipv4, &attrs, &both, &ibgp(), &mut out).unwrap();
    assert_eq!(decode_all(&out, &ibgp()).unwrap().len(), 2);
}

#[test]
fn rfc8654_5_attributes_that_fill_a_message_are_refused() {
    let attrs = PathAttrs {
        next_hop: Some([10, 0, 0, 1].into()),
        communities: (0..1100).map(Community).collect(),
        ..PathAttrs::default()
    };
    let prefixes: [Prefix; 1] = ["10.0.0.0/8".parse().unwrap()];
    let mut out = BytesMut::new();
    let refused = encode_announce(Family::Ipv4, &attrs, &prefixes, &ibgp(), &mut out);
    assert!(
        matches!(refused, Err(EncodeError::TooLong { .. })),
        "{refused:?}"
    );
    assert!(out.is_empty());
    let extended = MessageFormat {
        extended_send: true,
        extended_receive: true,
        ..ibgp()
    };
    encode_announce(Family::Ipv4, &attrs, &prefixes, &extended, &mut out).unwrap();
    assert_eq!(
        merged(decode_all(&out, &extended).unwrap()).attrs,
        Some(attrs)
    );
}

#[test]
fn rfc7911_3_each_prefix_has_its_path_identifier() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let mut set = FamilySet::NONE;
        set.insert(family);
        let format = MessageFormat {
            path_ids_in: set,
            path_ids_out: set,
            ..ibgp()
        };
        let prefix = |n: u16| match family {
            Family::Ipv4 => Prefix::v4([10, 0, n.to_be_bytes()[0], n.to_be_bytes()[1]].into(), 32),
            Family::Ipv6 => Prefix::v6([0xfd00, n, 0, 0, 0, 0, 0, 0].into(), 32),
        };
        let next_hop = match family {
            Family::Ipv4 => [10, 0, 0, 1].into(),
            Family::Ipv6 => "fd00::1".parse().unwrap(),
        };
        let update = UpdateMessage {
            withdrawn: vec![prefix(1), prefix(1)],
            withdrawn_ids: vec![1, 0xffff_ffff],
            announced: (0..3000).map(|n| prefix(2 + n / 2)).collect(),
            announced_ids: (0..3000).collect(),
            attrs: Some(PathAttrs {
                next_hop: Some(next_hop),
                ..PathAttrs::default()
            }),
            end_of_rib: None,
        };
        let mut out = BytesMut::new();
        encode_update(&update, &format, &mut out).unwrap();
        let seen = decode_all(&out, &format).unwrap();
        assert!(seen.len() > 2, "several messages");
        assert_eq!(merged(seen), update);
    }
}

#[test]
fn rfc7911_3_an_identifier_that_is_cut_off_is_no_prefix() {
    let format = MessageFormat {
        path_ids_in: FamilySet::ALL,
        ..ibgp()
    };
    let body = |withdrawn: &[u8]| {
        let mut out = BytesMut::new();
        crate::wire::kind::write(&mut out, crate::wire::MessageType::Update, |out| {
            out.extend_from_slice(&[0, u8::try_from(withdrawn.len()).unwrap()]);
            out.extend_from_slice(withdrawn);
            out.extend_from_slice(&[0, 0]);
        });
        decode_all(&out, &format)
    };
    assert!(body(&[0, 0, 0, 1, 8, 10]).is_ok());
    for cut in 1..6 {
        assert!(body(&[0, 0, 0, 1, 8, 10][..cut]).is_err(), "{cut}");
    }
}

#[test]
fn rfc8950_4_ipv4_prefixes_over_an_ipv6_next_hop_need_the_capability() {
    let attrs = PathAttrs {
        next_hop: Some("fd00::1".parse().unwrap()),
        ..PathAttrs::default()
    };
    let prefixes: [Prefix; 1] = ["10.0.0.0/8".parse().unwrap()];
    let mut out = BytesMut::new();
    let refused = encode_announce(Family::Ipv4, &attrs, &prefixes, &ibgp(), &mut out);
    assert!(
        matches!(refused, Err(EncodeError::NextHop { .. })),
        "{refused:?}"
    );
    let extended = MessageFormat {
        extended_next_hop: true,
        ..ibgp()
    };
    encode_announce(Family::Ipv4, &attrs, &prefixes, &extended, &mut out).unwrap();
    let seen = merged(decode_all(&out, &extended).unwrap());
    assert_eq!(
        (seen.announced, seen.attrs),
        (prefixes.to_vec(), Some(attrs))
    );
}

/// RFC 4271 §5.1.5, RFC 4456 §8: some attributes never leave the AS.
#[test]
fn internal_attributes_are_not_sent_to_external_peers() {
    let attrs = PathAttrs {
        next_hop: Some([10, 0, 0, 1].into()),
        local_pref: Some(200),
        originator_id: Some(RouterId([1, 1, 1, 1].into())),
        cluster_list: vec![ClusterId([2, 2, 2, 2].into())].into(),
        ..PathAttrs::default()
    };
    let external = MessageFormat {
        internal: false,
        families: FamilySet::ALL,
        ..ibgp()
    };
    let prefixes: [Prefix; 1] = ["10.0.0.0/8".parse().unwrap()];
    let mut out = BytesMut::new();
    encode_announce(Family::Ipv4, &attrs, &prefixes, &external, &mut out).unwrap();
    let seen = merged(decode_all(&out, &external).unwrap()).attrs.unwrap();
    assert_eq!(
        (seen.local_pref, seen.originator_id, seen.cluster_list.len()),
        (None, None, 0)
    );
}
