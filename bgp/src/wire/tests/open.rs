//! OPEN and capabilities.

use bytes::BytesMut;

use super::super::capability::{AfiSafi, Capability};
use super::super::error::{ErrorHandling, OpenError};
use super::super::open::OpenMessage;
use super::super::{Message, decode_message, encode_open};
use super::{DecodeError, ibgp, message};
use crate::types::{Asn, RouterId};

/// An OPEN of AS 64512 with these optional parameters, length included.
fn open(parameters: &[u8]) -> Vec<u8> {
    let mut body = vec![4, 0xfc, 0x00, 0, 90, 10, 0, 0, 1];
    body.extend(parameters);
    message(1, &body)
}

fn refused(octets: &[u8]) -> (OpenError, (u8, u8), Vec<u8>) {
    let error = decode_message(octets, &ibgp()).unwrap_err();
    let ErrorHandling::SessionReset(notification) = error.handling() else {
        panic!("{error:?}")
    };
    let DecodeError::Open(error) = error else {
        panic!("{error:?}")
    };
    (
        error,
        notification.code.octets(),
        notification.data.to_vec(),
    )
}

fn decoded(octets: &[u8]) -> OpenMessage {
    match decode_message(octets, &ibgp()) {
        Ok(Message::Open(open)) => open,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rfc4271_6_2_each_refusal_has_its_subcode() {
    let plain = open(&[0]);
    let with = |at: usize, octets: &[u8]| {
        let mut message = plain.clone();
        message[19 + at..19 + at + octets.len()].copy_from_slice(octets);
        message
    };
    assert_eq!(
        refused(&with(0, &[3])),
        (OpenError::Version(3), (2, 1), vec![0, 4])
    );
    assert_eq!(
        refused(&with(1, &[0, 0])),
        (OpenError::AsZero, (2, 2), vec![])
    );
    assert_eq!(
        refused(&with(3, &[0, 1])),
        (OpenError::HoldTime(1), (2, 6), vec![])
    );
    assert_eq!(
        refused(&with(3, &[0, 2])),
        (OpenError::HoldTime(2), (2, 6), vec![])
    );
    assert_eq!(
        refused(&with(5, &[0; 4])),
        (OpenError::RouterIdZero, (2, 3), vec![])
    );
    assert_eq!(
        refused(&open(&[3, 1, 1, 0])),
        (OpenError::Parameter(1), (2, 4), vec![])
    );
    assert_eq!(decoded(&with(3, &[0, 0])).hold_time, 0);
    assert_eq!(decoded(&with(3, &[0, 3])).hold_time, 3);
}

#[test]
fn rfc4271_6_2_parameters_that_do_not_fit() {
    for parameters in [
        &[1][..],
        &[2, 2, 5],
        &[4, 2, 2, 65, 4],
        &[0, 0],
        &[3, 2, 1, 9],
    ] {
        assert_eq!(
            refused(&open(parameters)),
            (OpenError::Cut, (2, 0), vec![]),
            "{parameters:?}"
        );
    }
}

#[test]
fn rfc5492_4_known_capabilities_have_their_length_unknown_ones_any() {
    for (code, value) in [
        (1, &[0, 1, 0][..]),
        (2, &[1]),
        (64, &[0]),
        (65, &[0, 1]),
        (69, &[0, 1, 1]),
    ] {
        let len = u8::try_from(value.len()).unwrap();
        let mut parameters = vec![len + 4, 2, len + 2, code, len];
        parameters.extend(value);
        let (error, codes, _) = refused(&open(&parameters));
        assert_eq!(
            (error, codes),
            (
                OpenError::Capability {
                    code,
                    len: len.into()
                },
                (2, 0)
            )
        );
    }
    let open = decoded(&open(&[5, 2, 3, 200, 1, 7]));
    assert_eq!(
        open.capabilities,
        [Capability::Unknown {
            code: 200,
            value: vec![7].into()
        }]
    );
}

#[test]
fn rfc6793_4_1_the_capability_beats_the_field() {
    let open = decoded(&open(&[8, 2, 6, 65, 4, 0, 1, 0, 0]));
    assert_eq!(open.asn, Asn(65536));
    let zero = super::super::decode_message(&self::open(&[8, 2, 6, 65, 4, 0, 0, 0, 0]), &ibgp());
    assert_eq!(zero, Err(DecodeError::Open(OpenError::AsZero)));
}

#[test]
fn rfc6793_4_2_2_as_trans_in_the_two_octet_field() {
    let open = OpenMessage {
        asn: Asn(4_200_000_000),
        hold_time: 90,
        router_id: RouterId([1, 2, 3, 4].into()),
        capabilities: vec![Capability::FourOctetAs(Asn(4_200_000_000))],
    };
    let mut out = BytesMut::new();
    encode_open(&open, &mut out);
    assert_eq!(out[20..22], 23456u16.to_be_bytes());
    assert_eq!(decoded(&out), open);
}

/// One parameter per capability, as many speakers send them, is the same as one for all.
#[test]
fn rfc5492_4_capabilities_may_come_in_several_parameters() {
    let open = decoded(&open(&[12, 2, 6, 1, 4, 0, 1, 0, 1, 2, 2, 2, 0]));
    assert_eq!(
        open.capabilities,
        [
            Capability::Multiprotocol(AfiSafi { afi: 1, safi: 1 }),
            Capability::RouteRefresh
        ]
    );
}

#[test]
fn rfc9072_2_long_parameters() {
    let capabilities: Vec<Capability> = (0..10u8)
        .map(|n| Capability::Unknown {
            code: 200 + n,
            value: vec![n; 40].into(),
        })
        .collect();
    let open = OpenMessage {
        asn: Asn(1),
        hold_time: 0,
        router_id: RouterId([1, 2, 3, 4].into()),
        capabilities,
    };
    let mut out = BytesMut::new();
    encode_open(&open, &mut out);
    assert_eq!(out[28..30], [255, 255]);
    assert_eq!(decoded(&out), open);
}
