//! Tests of the codec: round trips, errors by RFC, and input that is no BGP at all.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod open;
mod refusals;
mod rfc7606;
mod round_trip;

use bytes::BytesMut;

use super::error::DecodeError;
use super::format::{FamilySet, MAX_MESSAGE_LEN, MessageFormat};
use super::frame_len;
use super::{Message, decode_message};

/// An internal four-octet session of both families.
fn ibgp() -> MessageFormat {
    MessageFormat {
        four_octet_as: true,
        internal: true,
        families: FamilySet::ALL,
        ..MessageFormat::default()
    }
}

/// Cuts `stream` into messages and decodes each.
fn decode_all(mut stream: &[u8], format: &MessageFormat) -> Result<Vec<Message>, DecodeError> {
    let mut messages = Vec::new();
    while let Some(len) = frame_len(stream, format.max_receive())? {
        let (message, rest) = stream.split_at(len);
        messages.push(decode_message(message, format)?);
        stream = rest;
    }
    assert!(stream.is_empty(), "{} octets left over", stream.len());
    Ok(messages)
}

/// A message of type `kind` around `body`.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut octets = vec![0xff; 16];
    octets.extend(u16::try_from(19 + body.len()).unwrap().to_be_bytes());
    octets.push(kind);
    octets.extend(body);
    octets
}

/// The body of an UPDATE from its three parts.
fn update(withdrawn: &[u8], attrs: &[u8], nlri: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(u16::try_from(withdrawn.len()).unwrap().to_be_bytes());
    body.extend(withdrawn);
    body.extend(u16::try_from(attrs.len()).unwrap().to_be_bytes());
    body.extend(attrs);
    body.extend(nlri);
    message(2, &body)
}

#[test]
fn keepalive_is_nineteen_octets() {
    let mut out = BytesMut::new();
    super::encode_keepalive(&mut out);
    assert_eq!(out.as_ref(), message(4, &[]));
    assert_eq!(
        decode_message(&out, &MessageFormat::default()),
        Ok(Message::Keepalive)
    );
}

#[test]
fn frame_len_waits_for_the_header() {
    let keepalive = message(4, &[]);
    assert_eq!(frame_len(&keepalive[..18], MAX_MESSAGE_LEN), Ok(None));
    assert_eq!(frame_len(&keepalive, MAX_MESSAGE_LEN), Ok(Some(19)));
    assert_eq!(frame_len(&[], MAX_MESSAGE_LEN), Ok(None));
}
