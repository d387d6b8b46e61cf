//! Entry points for hostile input. Each takes any octets, must never panic, and holds what has to
//! be true of the answer. `tests/tests/fuzz.rs` runs the same functions on stable.

use std::collections::BTreeMap;

use bytes::BytesMut;
use caracal_bgp::{
    BfdPacket, BfdSession, BfdTimers, DecodeError, FamilySet, Message, MessageFormat,
    UpdateMessage, decode_message, encode_notification, encode_open, encode_refresh, encode_update,
    frame_len,
};
use caracal_model::{Family, Selector};

/// The length of a message header (RFC 4271 §4.1).
const HEADER: usize = 19;

/// The form of messages, from one octet of input.
fn format(octet: u8) -> MessageFormat {
    let bit = |n: u8| octet & (1 << n) != 0;
    let mut families = FamilySet::NONE;
    if bit(0) {
        families.insert(Family::Ipv6);
    }
    if !bit(1) {
        families.insert(Family::Ipv4);
    }
    let ids = if bit(7) { families } else { FamilySet::NONE };
    MessageFormat {
        four_octet_as: !bit(2),
        internal: !bit(3),
        extended_receive: bit(4),
        extended_send: bit(5),
        extended_next_hop: bit(6),
        families,
        path_ids_in: ids,
        path_ids_out: ids,
    }
}

/// A message of a kind around a body; too long a body is cut.
fn wrap(kind: u8, body: &[u8]) -> Vec<u8> {
    let body = &body[..body.len().min(usize::from(u16::MAX) - HEADER)];
    let len = u16::try_from(HEADER + body.len()).unwrap_or(u16::MAX);
    let mut message = vec![0xff; 16];
    message.extend(len.to_be_bytes());
    message.push(kind);
    message.extend(body);
    message
}

fn refused(error: &DecodeError) {
    assert!(!error.to_string().is_empty(), "a refusal has a sentence");
    let mut answer = BytesMut::new();
    encode_notification(&error.notification(), &mut answer);
    assert!(answer.len() <= 4096, "an answer fits into a message");
    let format = MessageFormat::default();
    assert!(matches!(
        decode_message(&answer, &format),
        Ok(Message::Notification(_))
    ));
}

fn check(octets: &[u8], format: &MessageFormat) {
    let message = match decode_message(octets, format) {
        Ok(message) => message,
        Err(error) => return refused(&error),
    };
    let mut again = BytesMut::new();
    match &message {
        Message::Open(open) => encode_open(open, &mut again),
        Message::RouteRefresh(refresh) => encode_refresh(refresh, &mut again),
        Message::Notification(notification) => encode_notification(notification, &mut again),
        Message::Keepalive => return,
        Message::Update(decoded) => {
            for update in decoded.clone().into_updates() {
                resend(&update, format);
            }
            return;
        }
    }
    let second = decode_message(&again, format);
    assert_eq!(second.as_ref(), Ok(&message), "decode(encode(m)) == m");
}

/// An accepted message can be sent on, and the next speaker finds no fault in it.
fn resend(update: &UpdateMessage, format: &MessageFormat) {
    let mut stream = BytesMut::new();
    let sendable = MessageFormat {
        // We only send what the receiver said it can take; here both are one.
        extended_receive: format.extended_send,
        ..*format
    };
    if encode_update(update, &sendable, &mut stream).is_err() {
        return;
    }
    let mut rest = &stream[..];
    while rest.len() >= HEADER {
        let len = usize::from(u16::from_be_bytes([rest[16], rest[17]]));
        let (message, after) = rest.split_at(len);
        match decode_message(message, &sendable) {
            Ok(Message::Update(decoded)) => assert!(decoded.faults.is_empty(), "{decoded:?}"),
            other => panic!("{other:?} from {update:?}"),
        }
        rest = after;
    }
    assert!(rest.is_empty(), "{} octets left over", rest.len());
}

/// Any octets as one whole message; the first octet chooses the form.
pub fn message(data: &[u8]) {
    if let Some((first, rest)) = data.split_first() {
        check(rest, &format(*first));
    }
}

/// Any octets as the body of an UPDATE; the first octet chooses the form.
pub fn update(data: &[u8]) {
    if let Some((first, body)) = data.split_first() {
        check(&wrap(2, body), &format(*first));
    }
}

/// Any octets as the body of an OPEN.
pub fn open(data: &[u8]) {
    check(&wrap(1, data), &MessageFormat::default());
}

/// Any octets as the body of a NOTIFICATION.
pub fn notification(data: &[u8]) {
    check(&wrap(3, data), &MessageFormat::default());
}

/// Any octets as the body of a KEEPALIVE: only the empty one is good.
pub fn keepalive(data: &[u8]) {
    let message = wrap(4, data);
    assert_eq!(
        decode_message(&message, &MessageFormat::default()).is_ok(),
        data.is_empty()
    );
    check(&message, &MessageFormat::default());
}

/// Any octets as the body of a ROUTE-REFRESH.
pub fn refresh(data: &[u8]) {
    check(&wrap(5, data), &MessageFormat::default());
}

/// Any octets as what a connection carries: cut into messages, each of them decoded. The first
/// octet chooses the form, the second where the pieces end in which it arrives.
pub fn stream(data: &[u8]) {
    let [form, step, stream @ ..] = data else {
        return;
    };
    let format = format(*form);
    let cut = |arrived: &[u8]| {
        let mut messages = Vec::new();
        let mut rest = arrived;
        loop {
            match frame_len(rest, format.max_receive()) {
                Ok(Some(len)) if len <= rest.len() => {
                    assert!(len >= HEADER);
                    messages.push(rest[..len].to_vec());
                    rest = &rest[len..];
                }
                Ok(Some(len)) => return (messages, len <= format.max_receive()),
                Ok(None) => return (messages, true),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return (messages, false);
                }
            }
        }
    };
    let (all, _) = cut(stream);
    for message in &all {
        check(message, &format);
    }
    // However the octets arrive, the messages are the same.
    let part = stream.len().min(usize::from(*step));
    let (first, _) = cut(&stream[..part]);
    assert!(all.starts_with(&first));
}

/// Any octets as a BFD packet (RFC 5880 §4.1), heard by a session.
pub fn bfd(data: &[u8]) {
    let packet = match BfdPacket::decode(data) {
        Ok(packet) => packet,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(BfdPacket::decode(&packet.encode()), Ok(packet));
    let now = std::time::Instant::now();
    let timers = BfdTimers {
        interval: std::time::Duration::from_millis(300),
        multiplier: 3,
    };
    let mut session = BfdSession::new(now, 1, timers, 1);
    for _ in 0..3 {
        session.receive(now, &packet);
        while let Some(answer) = session.poll(now) {
            assert_eq!(BfdPacket::decode(&answer.encode()), Ok(answer));
        }
    }
    session.handle_timeout(now);
}

/// Any octets as the path attributes of an UPDATE that announces 10.0.0.0/8.
pub fn attributes(data: &[u8]) {
    let Some((first, list)) = data.split_first() else {
        return;
    };
    let list = &list[..list.len().min(4000)];
    let mut body = vec![0, 0];
    body.extend(u16::try_from(list.len()).unwrap_or_default().to_be_bytes());
    body.extend(list);
    body.extend([8, 10]);
    check(&wrap(2, &body), &format(*first));
}

/// Any octets as the file of a standalone speaker.
pub fn grammar(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let config = match caracal_templates::parse(text) {
        Ok(config) => config,
        Err(error) => {
            let lines = text.matches('\n').count() + 1;
            assert!((1..=lines).contains(&error.line), "{error}");
            assert!(error.report("file").contains("file:"));
            return;
        }
    };
    let options = caracal_templates::Options {
        show_passwords: true,
        ..caracal_templates::Options::default()
    };
    // Some values have no text, such as a next hop of the wrong family; what has one means the same
    // (TEXT-1).
    if let Ok(rendered) = caracal_templates::render(&config, &options) {
        assert_eq!(caracal_templates::parse(&rendered).as_ref(), Ok(&config));
    }
}

/// Any octets as a label selector.
pub fn selector(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match Selector::parse(text) {
        Ok(selector) => {
            let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
            let negated = Selector::Not(Box::new(selector.clone()));
            assert_ne!(selector.matches(&labels), negated.matches(&labels));
        }
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.column));
        }
    }
}
