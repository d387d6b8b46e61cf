//! Revised error handling for UPDATE (RFC 7606), attribute by attribute.

use super::super::error::{DecodeError, ErrorHandling, UpdateFault};
use super::super::format::{FamilySet, MessageFormat};
use super::super::update::{DecodedUpdate, UpdateMessage};
use super::super::{Message, decode_message};
use super::{ibgp, update};
use crate::attrs::PathAttrs;
use crate::types::{Asn, Community};
use caracal_model::{Family, Prefix};

const ORIGIN: &[u8] = &[0x40, 1, 1, 0];
const AS_PATH: &[u8] = &[0x40, 2, 6, 2, 1, 0, 0, 0xfc, 0];
const NEXT_HOP: &[u8] = &[0x40, 3, 4, 10, 0, 0, 1];
/// 10.1.0.0/16
const NLRI: &[u8] = &[16, 10, 1];

fn prefix() -> Vec<Prefix> {
    vec!["10.1.0.0/16".parse().unwrap()]
}

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// An announcement of 10.1.0.0/16 with the mandatory attributes and `extra`.
fn with(extra: &[u8]) -> Vec<u8> {
    update(&[], &join(&[ORIGIN, AS_PATH, NEXT_HOP, extra]), NLRI)
}

fn decoded(octets: &[u8], format: &MessageFormat) -> DecodedUpdate {
    match decode_message(octets, format) {
        Ok(Message::Update(decoded)) => decoded,
        other => panic!("{other:?}"),
    }
}

fn discarded(octets: &[u8], format: &MessageFormat) -> PathAttrs {
    let decoded = decoded(octets, format);
    assert_eq!(decoded.faults.len(), 1, "{:?}", decoded.faults);
    assert_eq!(decoded.faults[0].handling, ErrorHandling::AttributeDiscard);
    assert_eq!(decoded.update.announced, prefix());
    decoded.update.attrs.unwrap()
}

fn withdrawn(octets: &[u8]) -> UpdateFault {
    let decoded = decoded(octets, &ibgp());
    assert_eq!(
        decoded.update,
        UpdateMessage {
            withdrawn: prefix(),
            ..UpdateMessage::default()
        }
    );
    assert_eq!(decoded.faults.len(), 1, "{:?}", decoded.faults);
    assert_eq!(decoded.faults[0].handling, ErrorHandling::TreatAsWithdraw);
    decoded.faults[0].fault.clone()
}

/// RFC 4760 §3: NEXT_HOP is not for the prefixes of MP_REACH_NLRI.
#[test]
fn rfc4760_3_next_hop_beside_mp_reach_is_ignored() {
    let reach: &[u8] = &[
        0x80, 14, 26, 0, 2, 1, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 32, 0xfd,
        0, 0, 7,
    ];
    let next_hops: [(&[u8], bool); 4] = [
        (NEXT_HOP, true),
        // 0.0.0.0, an IPv6 address, and the flags of an optional attribute.
        (&[0x40, 3, 4, 0, 0, 0, 0], false),
        (
            &[
                0x40, 3, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
            ],
            false,
        ),
        (&[0xc0, 3, 4, 10, 0, 0, 1], false),
    ];
    for (next_hop, well_formed) in next_hops {
        let attributes = join(&[ORIGIN, AS_PATH, next_hop, reach]);
        let seen = decoded(&update(&[], &attributes, &[]), &ibgp());
        let expected: Prefix = "fd00:7::/32".parse().unwrap();
        assert_eq!(seen.update.announced, [expected], "{next_hop:?}");
        let attrs = seen.update.attrs.unwrap();
        assert_eq!(attrs.next_hop, Some("fd00::1".parse().unwrap()));
        let verdicts: Vec<ErrorHandling> = seen.faults.into_iter().map(|f| f.handling).collect();
        if well_formed {
            assert_eq!(verdicts, []);
        } else {
            assert_eq!(verdicts, [ErrorHandling::AttributeDiscard]);
        }
        // Beside classic prefixes it means them.
        let both = decoded(&update(&[], &attributes, NLRI), &ibgp());
        assert_eq!(both.update.announced.is_empty(), !well_formed);
    }
}

fn reset(octets: &[u8]) -> (u8, u8) {
    let error = decode_message(octets, &ibgp()).unwrap_err();
    match error.handling() {
        ErrorHandling::SessionReset(notification) => notification.code.octets(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_message_these_tests_break_is_valid() {
    let decoded = decoded(&with(&[]), &ibgp());
    assert_eq!(decoded.faults, []);
    assert_eq!(decoded.update.announced, prefix());
    assert_eq!(
        decoded.update.attrs.unwrap().as_path.first_as(),
        Some(Asn(64512))
    );
}

#[test]
fn rfc7606_7_1_origin() {
    let broken = |origin: &[u8]| update(&[], &join(&[origin, AS_PATH, NEXT_HOP]), NLRI);
    assert_eq!(withdrawn(&broken(&[0x40, 1, 1, 3])), UpdateFault::Origin(3));
    assert!(matches!(
        withdrawn(&broken(&[0x40, 1, 2, 0, 0])),
        UpdateFault::Length { len: 2, .. }
    ));
}

#[test]
fn rfc7606_7_2_as_path() {
    let broken = |path: &[u8]| update(&[], &join(&[ORIGIN, path, NEXT_HOP]), NLRI);
    // An unknown segment type, an overrun, a single octet left, an empty segment, a confederation.
    for path in [
        &[0x40, 2, 6, 5, 1, 0, 0, 0, 1][..],
        &[0x40, 2, 6, 2, 2, 0, 0, 0, 1],
        &[0x40, 2, 2, 2, 0],
        &[0x40, 2, 6, 3, 1, 0, 0, 0, 1],
    ] {
        assert!(
            matches!(withdrawn(&broken(path)), UpdateFault::Segment { .. }),
            "{path:?}"
        );
    }
    let one_left = [0x40, 2, 7, 2, 1, 0, 0, 0, 1, 2];
    assert!(matches!(
        withdrawn(&broken(&one_left)),
        UpdateFault::Length { len: 1, .. }
    ));
}

#[test]
fn rfc7607_2_as_zero() {
    let path = [0x40, 2, 6, 2, 1, 0, 0, 0, 0];
    assert_eq!(
        withdrawn(&update(&[], &join(&[ORIGIN, &path, NEXT_HOP]), NLRI)),
        UpdateFault::AsZero
    );
    let aggregator = [0xc0, 7, 8, 0, 0, 0, 0, 1, 2, 3, 4];
    assert_eq!(discarded(&with(&aggregator), &ibgp()).aggregator, None);
}

#[test]
fn rfc7606_7_3_next_hop() {
    let broken = |next_hop: &[u8]| update(&[], &join(&[ORIGIN, AS_PATH, next_hop]), NLRI);
    let length = withdrawn(&broken(&[0x40, 3, 5, 10, 0, 0, 1, 0]));
    assert!(matches!(length, UpdateFault::Length { len: 5, .. }));
    // RFC 4271 §6.3: not a host address.
    for bad in [[0, 0, 0, 0], [224, 0, 0, 5], [255, 255, 255, 255]] {
        let octets = join(&[&[0x40, 3, 4], &bad]);
        assert_eq!(
            withdrawn(&broken(&octets)),
            UpdateFault::NextHop(bad.into())
        );
    }
}

#[test]
fn rfc7606_7_4_to_7_14_lengths() {
    // (attribute, treat-as-withdraw instead of attribute-discard)
    for (name, octets, withdraw) in [
        ("MULTI_EXIT_DISC", &[0x80, 4, 3, 0, 0, 0][..], true),
        ("LOCAL_PREF", &[0x40, 5, 3, 0, 0, 0], true),
        ("ATOMIC_AGGREGATE", &[0x40, 6, 1, 0], false),
        ("AGGREGATOR", &[0xc0, 7, 6, 0, 1, 1, 2, 3, 4], false),
        ("COMMUNITIES", &[0xc0, 8, 3, 0, 0, 0], true),
        ("COMMUNITIES", &[0xc0, 8, 0], true),
        ("ORIGINATOR_ID", &[0x80, 9, 3, 0, 0, 0], true),
        ("CLUSTER_LIST", &[0x80, 10, 5, 0, 0, 0, 0, 0], true),
        ("EXTENDED COMMUNITIES", &[0xc0, 16, 4, 0, 0, 0, 0], true),
        (
            "LARGE_COMMUNITY",
            &[0xc0, 32, 8, 0, 0, 0, 0, 0, 0, 0, 0],
            true,
        ),
    ] {
        if withdraw {
            assert!(
                matches!(withdrawn(&with(octets)), UpdateFault::Length { .. }),
                "{name}"
            );
        } else {
            discarded(&with(octets), &ibgp());
        }
        let fault = decoded(&with(octets), &ibgp()).faults.remove(0).to_string();
        assert!(fault.starts_with(name), "{fault}");
    }
}

#[test]
fn rfc7606_7_5_7_9_7_10_internal_attributes_from_external_peers_are_discarded() {
    let external = MessageFormat {
        internal: false,
        ..ibgp()
    };
    for octets in [
        &[0x40, 5, 4, 0, 0, 0, 1][..],
        &[0x80, 9, 4, 1, 1, 1, 1],
        &[0x80, 10, 4, 1, 1, 1, 1],
        // Even of impossible length.
        &[0x40, 5, 1, 0],
    ] {
        let attrs = discarded(&with(octets), &external);
        assert_eq!(
            (
                attrs.local_pref,
                attrs.originator_id,
                attrs.cluster_list.len()
            ),
            (None, None, 0)
        );
    }
}

#[test]
fn rfc7606_3_c_flags_that_contradict_the_definition() {
    let origin = [0x80, 1, 1, 0];
    let octets = update(&[], &join(&[&origin, AS_PATH, NEXT_HOP]), NLRI);
    let decoded = decoded(&octets, &ibgp());
    assert_eq!(decoded.update.withdrawn, prefix());
    assert_eq!(decoded.faults[0].fault, UpdateFault::Flags(0x80));
    assert_eq!(
        withdrawn(&with(&[0x40, 4, 4, 0, 0, 0, 1])),
        UpdateFault::Flags(0x40)
    );
}

#[test]
fn rfc7606_3_d_missing_mandatory_attributes() {
    for parts in [[AS_PATH, NEXT_HOP], [ORIGIN, NEXT_HOP], [ORIGIN, AS_PATH]] {
        assert_eq!(
            withdrawn(&update(&[], &join(&parts), NLRI)),
            UpdateFault::Missing
        );
    }
}

#[test]
fn rfc7606_3_g_of_duplicates_the_first_counts() {
    let attrs = discarded(&with(&[0x40, 1, 1, 2]), &ibgp());
    assert_eq!(attrs.origin, crate::attrs::Origin::Igp);
    let unreach = [0x80, 15, 3, 0, 2, 1];
    assert_eq!(reset(&with(&join(&[&unreach, &unreach]))), (3, 1));
}

#[test]
fn rfc7606_4_an_attribute_that_overruns_the_list() {
    for extra in [
        &[0xc0][..],
        &[0xc0, 8],
        &[0xc0, 8, 9, 0],
        &[0xd0, 8, 0],
        &[0xd0, 8, 0, 5, 1],
    ] {
        assert_eq!(withdrawn(&with(extra)), UpdateFault::Overrun, "{extra:?}");
    }
}

#[test]
fn rfc7606_5_2_no_prefixes_to_withdraw() {
    let broken = update(&[], &join(&[&[0x40, 1, 1, 3], AS_PATH, NEXT_HOP]), &[]);
    assert_eq!(reset(&broken), (3, 1));
    // An attribute that is merely discarded is harmless there too.
    let harmless = update(
        &[],
        &join(&[ORIGIN, AS_PATH, NEXT_HOP, &[0x40, 6, 1, 0]]),
        &[],
    );
    assert_eq!(decoded(&harmless, &ibgp()).update, UpdateMessage::default());
}

/// There is nothing in it that could be withdrawn, and nothing that could be hidden.
#[test]
fn rfc7606_3_c_a_marker_with_wrong_flags_is_a_marker_with_a_fault() {
    let marker = |flags| update(&[], &[flags, 15, 3, 0, 2, 1], &[]);
    let good = decoded(&marker(0x80), &ibgp());
    assert!(good.faults.is_empty());
    let wrong = decoded(&marker(0x40), &ibgp());
    assert_eq!(wrong.update, UpdateMessage::end_of_rib(Family::Ipv6));
    assert_eq!(wrong.update, good.update);
    assert_eq!(wrong.faults.len(), 1, "{:?}", wrong.faults);
}

#[test]
fn rfc7606_5_3_prefixes_that_cannot_be_read() {
    for nlri in [&[33, 10, 1, 1, 1, 1][..], &[24, 10, 1], &[16]] {
        assert_eq!(
            reset(&update(&[], &join(&[ORIGIN, AS_PATH, NEXT_HOP]), nlri)),
            (3, 10)
        );
        assert_eq!(reset(&update(nlri, &[], &[])), (3, 10));
    }
}

#[test]
fn rfc4271_6_3_lengths_beyond_the_message() {
    for body in [&[0, 9, 0, 0][..], &[0, 0, 0, 9], &[0, 1, 0, 0]] {
        assert_eq!(reset(&super::message(2, body)), (3, 1));
    }
}

#[test]
fn rfc4271_6_3_unknown_attributes() {
    let well_known = [0x40, 99, 1, 7];
    let error = decode_message(&with(&well_known), &ibgp()).unwrap_err();
    let notification = error.notification();
    assert_eq!(
        (notification.code.octets(), &notification.data[..]),
        ((3, 2), &well_known[..])
    );
    // Optional ones: transitive is passed on with the Partial bit, non-transitive is dropped.
    let attrs = decoded(&with(&[0xc0, 99, 1, 7]), &ibgp())
        .update
        .attrs
        .unwrap();
    assert_eq!((attrs.unknown[0].flags, attrs.unknown[0].code), (0xe0, 99));
    let attrs = decoded(&with(&[0x80, 99, 1, 7]), &ibgp())
        .update
        .attrs
        .unwrap();
    assert_eq!(attrs.unknown, []);
}

/// MP_REACH_NLRI of fd00::/16 with this next hop.
fn reach(next_hop: &[u8], nlri: &[u8]) -> Vec<u8> {
    let mut value = vec![0, 2, 1, u8::try_from(next_hop.len()).unwrap()];
    value.extend(next_hop);
    value.push(0);
    value.extend(nlri);
    join(&[&[0x80, 14, u8::try_from(value.len()).unwrap()], &value])
}

const GLOBAL: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const FD00: &[u8] = &[16, 0xfd, 0];

#[test]
fn rfc7606_7_11_mp_reach() {
    let disable = |octets: &[u8]| decode_message(octets, &ibgp()).unwrap_err();
    for attr in [
        reach(&GLOBAL[..15], FD00),
        reach(&GLOBAL, &[129, 0]),
        reach(&GLOBAL, &[16, 0]),
    ] {
        let error = disable(&update(&[], &join(&[&attr, ORIGIN, AS_PATH]), &[]));
        assert_eq!(
            error.handling(),
            ErrorHandling::AfiSafiDisable(Family::Ipv6)
        );
        assert_eq!(error.notification().code.octets(), (3, 9));
    }
    // Not even the next hop's length can be read.
    let cut = [0x80, 14, 4, 0, 2, 1, 16];
    assert_eq!(reset(&update(&[], &cut, &[])), (3, 9));
    let unreach = [0x80, 15, 2, 0, 2];
    assert_eq!(reset(&update(&[], &unreach, &[])), (3, 9));
    // A next hop that is no host address costs the routes only.
    let octets = update(&[], &join(&[&reach(&[0; 16], FD00), ORIGIN, AS_PATH]), &[]);
    let update = decoded(&octets, &ibgp()).update;
    assert_eq!((update.withdrawn.len(), update.announced.len()), (1, 0));
}

#[test]
fn rfc2545_3_link_local_next_hop() {
    let mut both = GLOBAL.to_vec();
    both.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let octets = update(&[], &join(&[&reach(&both, FD00), ORIGIN, AS_PATH]), &[]);
    let attrs = decoded(&octets, &ibgp()).update.attrs.unwrap();
    assert_eq!(attrs.next_hop, Some("fd00::1".parse().unwrap()));
    assert_eq!(attrs.link_local_next_hop, Some("fe80::9".parse().unwrap()));
    // Without a global one, nothing stands in its place, or the other again; or the other alone.
    let near = &both[16..];
    for hop in [
        [&[0; 16][..], near].concat(),
        [near, near].concat(),
        near.to_vec(),
    ] {
        let octets = update(&[], &join(&[&reach(&hop, FD00), ORIGIN, AS_PATH]), &[]);
        let attrs = decoded(&octets, &ibgp()).update.attrs.unwrap();
        assert_eq!(attrs.next_hop, Some("fe80::9".parse().unwrap()), "{hop:?}");
    }
}

#[test]
fn one_message_for_both_families_is_two_updates() {
    let attrs = join(&[&reach(&GLOBAL, FD00), ORIGIN, AS_PATH, NEXT_HOP]);
    let updates: Vec<UpdateMessage> = decoded(&update(&[8, 11], &attrs, NLRI), &ibgp())
        .into_updates()
        .collect();
    assert_eq!(updates.len(), 2);
    assert_eq!(updates[0].withdrawn, ["11.0.0.0/8".parse().unwrap()]);
    assert_eq!(updates[0].announced, prefix());
    assert_eq!(
        updates[0].attrs.as_ref().unwrap().next_hop,
        Some([10, 0, 0, 1].into())
    );
    assert_eq!(updates[1].announced, ["fd00::/16".parse().unwrap()]);
    assert_eq!(
        updates[1].attrs.as_ref().unwrap().next_hop,
        Some("fd00::1".parse().unwrap())
    );
}

#[test]
fn rfc4760_7_families_that_were_not_negotiated_are_ignored() {
    let octets = update(
        &[],
        &join(&[&reach(&GLOBAL, FD00), ORIGIN, AS_PATH, NEXT_HOP]),
        NLRI,
    );
    let ipv4 = MessageFormat {
        families: [Family::Ipv4].into_iter().collect(),
        ..ibgp()
    };
    assert_eq!(decoded(&octets, &ipv4).update.announced, prefix());
    assert_eq!(decoded(&octets, &ipv4).second, None);
    let ipv6 = MessageFormat {
        families: [Family::Ipv6].into_iter().collect(),
        ..ibgp()
    };
    let update = decoded(&octets, &ipv6).update;
    assert_eq!(update.announced, ["fd00::/16".parse().unwrap()]);
    let none = MessageFormat {
        families: FamilySet::NONE,
        ..ibgp()
    };
    assert_eq!(decoded(&octets, &none).update, UpdateMessage::default());
}

#[test]
fn rfc6793_4_1_as4_path_is_ignored_on_a_four_octet_session() {
    let as4_path = [0xc0, 17, 6, 2, 1, 0, 1, 0, 0];
    let attrs = discarded(&with(&as4_path), &ibgp());
    assert_eq!(attrs.as_path.to_string(), "64512");
}

/// Two-octet session; AS_PATH and AGGREGATOR as given.
fn two_octet(path: &[u8], extra: &[u8]) -> PathAttrs {
    let format = MessageFormat {
        four_octet_as: false,
        ..ibgp()
    };
    let octets = update(&[], &join(&[ORIGIN, path, NEXT_HOP, extra]), NLRI);
    decoded(&octets, &format).update.attrs.unwrap()
}

#[test]
fn rfc6793_4_2_3_merging() {
    // AS_PATH 1 2 TRANS, AS4_PATH 2 65536: 1 was prepended by a two-octet speaker.
    let path = [0x40, 2, 8, 2, 3, 0, 1, 0, 2, 0x5b, 0xa0];
    let as4_path = [0xc0, 17, 10, 2, 2, 0, 0, 0, 2, 0, 1, 0, 0];
    assert_eq!(two_octet(&path, &as4_path).as_path.to_string(), "1 2 65536");
    // A longer AS4_PATH is ignored.
    let short = [0x40, 2, 4, 2, 1, 0, 1];
    assert_eq!(two_octet(&short, &as4_path).as_path.to_string(), "1");
    // A malformed one is discarded (RFC 6793 §6).
    assert_eq!(
        two_octet(&path, &[0xc0, 17, 3, 2, 1, 0])
            .as_path
            .to_string(),
        "1 2 23456"
    );
}

#[test]
fn rfc6793_4_2_3_an_aggregator_of_two_octets_voids_the_as4_attributes() {
    let path = [0x40, 2, 8, 2, 3, 0, 1, 0, 2, 0x5b, 0xa0];
    let as4_path = [0xc0, 17, 10, 2, 2, 0, 0, 0, 2, 0, 1, 0, 0];
    let as4_aggregator = [0xc0, 18, 8, 0, 1, 0, 0, 9, 9, 9, 9];
    let native = [0xc0, 7, 6, 0, 7, 1, 1, 1, 1];
    let attrs = two_octet(&path, &join(&[&native, &as4_path, &as4_aggregator]));
    assert_eq!(attrs.as_path.to_string(), "1 2 23456");
    assert_eq!(attrs.aggregator.unwrap().asn, Asn(7));
    let trans = [0xc0, 7, 6, 0x5b, 0xa0, 1, 1, 1, 1];
    let attrs = two_octet(&path, &join(&[&trans, &as4_path, &as4_aggregator]));
    assert_eq!(attrs.as_path.to_string(), "1 2 65536");
    assert_eq!(attrs.aggregator.unwrap().asn, Asn(65536));
}

#[test]
fn rfc1997_communities_are_a_set() {
    let octets = [0xc0, 8, 12, 0, 2, 0, 2, 0, 1, 0, 1, 0, 2, 0, 2];
    let attrs = decoded(&with(&octets), &ibgp()).update.attrs.unwrap();
    assert_eq!(
        attrs.communities,
        [Community::new(1, 1), Community::new(2, 2)]
    );
}

#[test]
fn bits_beyond_the_prefix_length_do_not_matter() {
    let octets = update(&[12, 0xac, 0x1f], &[], &[]);
    let Ok(Message::Update(decoded)) = decode_message(&octets, &ibgp()) else {
        panic!()
    };
    assert_eq!(decoded.update.withdrawn, ["172.16.0.0/12".parse().unwrap()]);
    assert!(matches!(
        decode_message(&update(&[], &[], &[33]), &ibgp()),
        Err(DecodeError::Update(_))
    ));
}
