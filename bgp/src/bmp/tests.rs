#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::ErrorKind;

use bytes::BytesMut;

use super::*;
use crate::fsm::ConnectFailure;
use crate::wire::notification::{CeaseSubcode, NotificationCode};
use crate::wire::{encode_keepalive, encode_open, open::OpenMessage};

/// Octets of the per-peer header (RFC 7854 §4.2).
const PEER_HEADER: usize = 42;
const TIME: BmpTimestamp = BmpTimestamp(Duration::new(0x0102_0304, 5_000));

fn session(remote: &str) -> MonitoredSession {
    let open = |asn| {
        let mut octets = BytesMut::new();
        let open = OpenMessage {
            asn: Asn(asn),
            hold_time: 90,
            router_id: RouterId([10, 0, 0, 1].into()),
            capabilities: vec![],
        };
        encode_open(&open, &mut octets);
        octets.freeze()
    };
    MonitoredSession {
        local: "10.0.0.1:179".parse().unwrap(),
        remote: remote.parse().unwrap(),
        asn: Asn(65001),
        router_id: RouterId([10, 0, 0, 2].into()),
        format: MessageFormat::default(),
        opens: SessionOpens {
            sent: open(64512),
            received: open(65001),
        },
    }
}

fn octets(write: impl FnOnce(&mut BytesMut)) -> Vec<u8> {
    let mut out = BytesMut::new();
    write(&mut out);
    out.to_vec()
}

/// The body of a message after its headers, which are checked.
fn body(octets: &[u8], kind: u8) -> &[u8] {
    assert_eq!(octets[0], 3, "version");
    let len = u32::from_be_bytes(octets[1..5].try_into().unwrap());
    assert_eq!(usize::try_from(len).unwrap(), octets.len(), "length");
    assert_eq!(octets[5], kind, "type");
    &octets[BMP_COMMON_HEADER..]
}

#[test]
fn rfc7854_4_3_initiation_says_who_we_are() {
    let said = octets(|out| encode_bmp_initiation("rr1", "caracal 1", out));
    let expected = [&[0, 1, 0, 9][..], b"caracal 1", &[0, 2, 0, 3], b"rr1"].concat();
    assert_eq!(body(&said, 4), expected);
    // A text longer than MIB-II allows is cut between characters.
    let said = octets(|out| encode_bmp_initiation(&"ä".repeat(200), "", out));
    assert_eq!(body(&said, 4).len(), 4 + 4 + 254);
}

#[test]
fn rfc7854_4_2_the_peer_in_each_message() {
    let keepalive = octets(encode_keepalive);
    let said = |session: &MonitoredSession, view| {
        octets(|out| encode_bmp_route_monitoring(session, view, TIME, &keepalive, out))
    };
    let four = said(&session("10.0.0.2:40000"), PolicyView::PrePolicy);
    let expected = [
        &[0, 0][..],
        &[0; 8],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2],
        &65001u32.to_be_bytes(),
        &[10, 0, 0, 2],
        &[1, 2, 3, 4],
        &5u32.to_be_bytes(),
        &keepalive,
    ]
    .concat();
    assert_eq!(body(&four, 0), expected);
    assert_eq!(expected.len(), PEER_HEADER + 19);
    let six = said(&session("[fd00::2]:40000"), PolicyView::PostPolicy);
    let six = body(&six, 0);
    assert_eq!(six[1], 0xc0, "V and L");
    assert_eq!(
        six[10..26],
        [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    );
    // A socket for both families names IPv4 peers in its own way.
    let mapped = said(&session("[::ffff:10.0.0.2]:40000"), PolicyView::PrePolicy);
    assert_eq!(mapped, four);
}

#[test]
fn rfc7854_4_10_peer_up_has_both_opens() {
    let session = session("10.0.0.2:40000");
    let said = octets(|out| encode_bmp_peer_up(&session, TIME, out));
    let expected = [
        &[0; 12][..],
        &[10, 0, 0, 1],
        &179u16.to_be_bytes(),
        &40000u16.to_be_bytes(),
        &session.opens.sent,
        &session.opens.received,
    ]
    .concat();
    assert_eq!(body(&said, 3)[PEER_HEADER..], expected);
}

#[test]
fn rfc7854_4_9_each_end_has_its_reason() {
    let session = session("10.0.0.2:40000");
    let cease = Notification::cease(CeaseSubcode::PeerDeconfigured);
    let pdu = [&[0xff; 16][..], &[0, 21, 3, 6, 3]].concat();
    for (reason, expected) in [
        (
            BmpPeerDown::LocalNotification(cease.clone()),
            [&[1][..], &pdu].concat(),
        ),
        (BmpPeerDown::Local(23), vec![2, 0, 23]),
        (
            BmpPeerDown::RemoteNotification(cease),
            [&[3][..], &pdu].concat(),
        ),
        (BmpPeerDown::Remote, vec![4]),
        (BmpPeerDown::DeConfigured, vec![5]),
    ] {
        let said = octets(|out| encode_bmp_peer_down(&session, TIME, &reason, out));
        assert_eq!(body(&said, 2)[PEER_HEADER..], expected, "{reason:?}");
    }
}

#[test]
fn rfc7854_4_9_the_reason_follows_from_how_the_session_ended() {
    let cease = Notification::cease(CeaseSubcode::AdministrativeReset);
    let expired = Notification::new(NotificationCode::HoldTimerExpired(0));
    let failure = ConnectFailure {
        remote: "10.0.0.2:179".parse().unwrap(),
        cause: ErrorKind::Other,
        text: String::new(),
    };
    for (down, sent, expected) in [
        (
            DownReason::HoldTimerExpired(Duration::from_secs(9)),
            Some(&expired),
            BmpPeerDown::LocalNotification(expired.clone()),
        ),
        (
            DownReason::Notified(cease.clone()),
            None,
            BmpPeerDown::RemoteNotification(cease.clone()),
        ),
        (DownReason::Closed(None), None, BmpPeerDown::Remote),
        (DownReason::Replaced, None, BmpPeerDown::Local(23)),
        (DownReason::Restarting, None, BmpPeerDown::Local(8)),
        (
            DownReason::Bfd { graceful: true },
            None,
            BmpPeerDown::Local(8),
        ),
        (
            DownReason::ConnectFailed(failure),
            None,
            BmpPeerDown::Local(0),
        ),
    ] {
        assert_eq!(BmpPeerDown::new(&down, sent), expected, "{down:?}");
    }
}

#[test]
fn rfc7854_4_8_rfc8671_6_2_numbers_of_a_peer() {
    let numbers = [
        BmpStatistic::AdjRibIn(3),
        BmpStatistic::AdjRibInOf(Family::Ipv6, 5),
        BmpStatistic::AdjRibOut(6),
    ];
    let said = octets(|out| encode_bmp_statistics(&session("10.0.0.2:1"), TIME, &numbers, out));
    let gauge = |kind: u8, value: u64| [&[0, kind, 0, 8][..], &value.to_be_bytes()].concat();
    let expected = [
        3u32.to_be_bytes().to_vec(),
        gauge(7, 3),
        [&[0, 9, 0, 11, 0, 2, 1][..], &5u64.to_be_bytes()].concat(),
        gauge(15, 6),
    ]
    .concat();
    assert_eq!(body(&said, 1)[PEER_HEADER..], expected);
}

#[test]
fn rfc7854_4_5_termination() {
    let said = octets(|out| encode_bmp_termination(BmpTermination::AdministrativelyClosed, out));
    assert_eq!(body(&said, 5), [0, 1, 0, 2, 0, 0]);
}

#[test]
fn rfc7854_4_2_updates_have_four_octet_as_numbers_and_the_peers_path_identifiers() {
    let mut session = session("10.0.0.2:1");
    session.format.path_ids_in.insert(Family::Ipv4);
    let pre = session.update_format(PolicyView::PrePolicy);
    assert!(pre.four_octet_as && pre.path_ids_out.contains(Family::Ipv4));
    assert!(!pre.internal, "an external peer sends no LOCAL_PREF");
    assert!(session.update_format(PolicyView::PostPolicy).internal);
}
