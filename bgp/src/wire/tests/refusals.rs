//! Input that is wrong as a whole, and input that is no BGP at all.

use bytes::BytesMut;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::error::{ErrorHandling, HeaderError};
use super::super::format::MessageFormat;
use super::super::notification::{CeaseSubcode, HeaderSubcode, Notification, NotificationCode};
use super::super::update::{UpdateMessage, encode_update};
use super::super::{Message, decode_message, encode_notification};
use super::{DecodeError, ibgp, message};

fn refused(octets: &[u8]) -> (u8, u8, Vec<u8>) {
    let error = decode_message(octets, &ibgp()).unwrap_err();
    let ErrorHandling::SessionReset(notification) = error.handling() else {
        panic!("{error:?} does not reset");
    };
    let (code, subcode) = notification.code.octets();
    (code, subcode, notification.data.to_vec())
}

#[test]
fn rfc4271_6_1_marker_not_all_ones() {
    let mut octets = message(4, &[]);
    octets[7] = 0;
    assert_eq!(refused(&octets), (1, 1, vec![]));
}

#[test]
fn rfc4271_6_1_length_out_of_range_for_the_type() {
    for (kind, body) in [(1, 9), (2, 3), (3, 1), (4, 1)] {
        let octets = message(kind, &vec![0; body]);
        let len = u8::try_from(19 + body).unwrap();
        assert_eq!(refused(&octets), (1, 2, vec![0, len]), "type {kind}");
    }
    let long = message(2, &[0; 4078]);
    assert_eq!(refused(&long), (1, 2, vec![0x10, 0x01]));
    let extended = MessageFormat {
        extended_receive: true,
        ..ibgp()
    };
    assert!(!matches!(
        decode_message(&long, &extended),
        Err(DecodeError::Header(_))
    ));
}

#[test]
fn rfc8654_4_open_and_keepalive_stay_short() {
    let extended = MessageFormat {
        extended_receive: true,
        ..ibgp()
    };
    let error = decode_message(&message(1, &[0; 4078]), &extended).unwrap_err();
    assert_eq!(
        error,
        DecodeError::Header(HeaderError::Length { kind: 1, len: 4097 })
    );
}

#[test]
fn rfc4271_6_1_type_unknown() {
    assert_eq!(refused(&message(9, &[])), (1, 3, vec![9]));
    assert_eq!(refused(&message(0, &[])), (1, 3, vec![0]));
}

#[test]
fn rfc7313_5_refresh_of_wrong_length_returns_the_message() {
    let octets = message(5, &[0, 1, 0, 1, 99]);
    assert_eq!(refused(&octets), (7, 1, octets));
}

#[test]
fn rfc4271_6_4_a_broken_notification_is_told_apart() {
    let error = decode_message(&message(3, &[6]), &ibgp()).unwrap_err();
    assert!(error.is_in_notification());
    assert!(
        !decode_message(&message(9, &[]), &ibgp())
            .unwrap_err()
            .is_in_notification()
    );
}

#[test]
fn rfc8538_3_1_hard_reset_wraps_the_reason() {
    let inner = Notification::shutdown(CeaseSubcode::AdministrativeShutdown, "moving racks");
    let hard = inner.hard_reset();
    assert_eq!(hard.code, NotificationCode::Cease(CeaseSubcode::HardReset));
    assert_eq!(hard.inner(), Some(inner));
    assert_eq!(
        hard.to_string(),
        "Cease / Hard Reset (Cease / Administrative Shutdown): \"moving racks\""
    );
}

#[test]
fn rfc9003_2_broken_text_is_no_text() {
    let cease = NotificationCode::Cease(CeaseSubcode::AdministrativeShutdown);
    for data in [&[][..], &[0], &[5, b'a'], &[200, 1, 2]] {
        let notification = Notification::with_data(cease, data.to_vec().into());
        assert_eq!(notification.shutdown_text(), None, "{data:?}");
    }
    let notification = Notification::with_data(cease, b"\x03a\x07\xff".to_vec().into());
    assert_eq!(notification.shutdown_text().unwrap(), "a\u{fffd}\u{fffd}");
}

#[test]
fn an_oversized_notification_is_cut() {
    let code = NotificationCode::MessageHeader(HeaderSubcode::BadLength);
    let mut out = BytesMut::new();
    encode_notification(
        &Notification::with_data(code, vec![7; 9000].into()),
        &mut out,
    );
    assert_eq!(out.len(), 4096);
    assert!(matches!(
        decode_message(&out, &ibgp()),
        Ok(Message::Notification(_))
    ));
}

/// A valid stream to damage: all message types.
fn valid_messages() -> Vec<Vec<u8>> {
    let attrs = crate::attrs::PathAttrs {
        next_hop: Some("fd00::1".parse().unwrap()),
        as_path: crate::attrs::AsPath::sequence(vec![crate::types::Asn(1), crate::types::Asn(2)]),
        communities: vec![crate::types::Community(1)],
        ..Default::default()
    };
    let update = UpdateMessage {
        withdrawn: vec!["10.0.0.0/8".parse().unwrap()],
        announced: vec![
            "fd00:1::/64".parse().unwrap(),
            "fd00:2::/128".parse().unwrap(),
        ],
        attrs: Some(attrs),
        ..UpdateMessage::default()
    };
    let mut out = BytesMut::new();
    encode_update(&update, &ibgp(), &mut out).unwrap();
    let mut messages = Vec::new();
    let mut stream = out.as_ref();
    while let Ok(Some(len)) = super::frame_len(stream, 4096) {
        messages.push(stream[..len].to_vec());
        stream = &stream[len..];
    }
    let gr = [64, 6, 0x80, 120, 0, 1, 1, 0x80];
    let mut open = vec![4, 0xfc, 0, 0, 90, 1, 1, 1, 1, 10, 2, 8];
    open.extend(gr);
    messages.push(message(1, &open));
    messages.push(message(3, &[6, 2, 1, b'x']));
    messages.push(message(5, &[0, 1, 0, 1]));
    messages.push(message(4, &[]));
    messages
}

#[test]
fn the_messages_to_damage_are_valid() {
    for octets in valid_messages() {
        decode_message(&octets, &ibgp()).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bodies_never_panic(
        kind in 0u8..7,
        body in vec(any::<u8>(), 0..400),
        four_octet_as: bool,
        internal: bool,
    ) {
        let format = MessageFormat { four_octet_as, internal, ..ibgp() };
        let _ = decode_message(&message(kind, &body), &format);
        let _ = decode_message(&body, &format);
    }

    #[test]
    fn damaged_messages_never_panic(
        which in 0usize..6,
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let messages = valid_messages();
        let mut octets = messages[which % messages.len()].clone();
        for (at, octet) in damage {
            let at = at.index(octets.len());
            octets[at] = octet;
        }
        if let Some(cut) = cut {
            octets.truncate(cut.index(octets.len()) + 1);
            let len = u16::try_from(octets.len()).unwrap().to_be_bytes();
            if octets.len() > 18 {
                octets[16..18].copy_from_slice(&len);
            }
        }
        if let Err(error) = decode_message(&octets, &ibgp()) {
            // Every refusal has an answer and a sentence.
            let _ = error.notification();
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
