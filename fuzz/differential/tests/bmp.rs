//! Our messages to a monitoring station (RFC 7854), read by bgpkit-parser.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;
use std::time::Duration;

use bgpkit_parser::models::BgpMessage;
use bgpkit_parser::parser::bmp::messages::{BmpMessage, BmpMessageBody, PeerDownReason, StatsData};
use bgpkit_parser::parser::bmp::parse_bmp_msg;
use bytes::{Bytes, BytesMut};
use caracal_bgp::{
    AsPath, Asn, BmpPeerDown, BmpStatistic, BmpTermination, BmpTimestamp, CeaseSubcode, FamilySet,
    MessageFormat, MonitoredSession, Notification, OpenMessage, PathAttrs, PolicyView, RouterId,
    SessionOpens, UpdateMessage, encode_bmp_initiation, encode_bmp_peer_down, encode_bmp_peer_up,
    encode_bmp_route_monitoring, encode_bmp_statistics, encode_bmp_termination, encode_open,
    encode_update,
};
use caracal_model::Family;

const TIME: BmpTimestamp = BmpTimestamp(Duration::from_millis(1_700_000_000_250));

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
        format: MessageFormat {
            four_octet_as: true,
            families: FamilySet::ALL,
            ..MessageFormat::default()
        },
        opens: SessionOpens {
            sent: open(64512),
            received: open(65001),
        },
    }
}

/// Reads a message back; nothing is left over.
fn read(write: impl FnOnce(&mut BytesMut)) -> BmpMessage {
    let mut octets = BytesMut::new();
    write(&mut octets);
    let mut octets: Bytes = octets.freeze();
    let message = parse_bmp_msg(&mut octets).unwrap();
    assert!(octets.is_empty());
    message
}

#[test]
fn rfc7854_each_message_is_understood() {
    let session = session("10.0.0.2:40000");
    let initiation = read(|out| encode_bmp_initiation("rr1", "caracal", out));
    let BmpMessageBody::InitiationMessage(initiation) = initiation.message_body else {
        panic!("{initiation:?}");
    };
    let texts: Vec<_> = initiation
        .tlvs
        .iter()
        .map(|tlv| tlv.info.as_str())
        .collect();
    assert_eq!(texts, ["caracal", "rr1"]);

    let up = read(|out| encode_bmp_peer_up(&session, TIME, out));
    let peer = up.per_peer_header.unwrap();
    assert_eq!(peer.peer_ip, IpAddr::from([10, 0, 0, 2]));
    assert_eq!(peer.peer_asn.to_u32(), 65001);
    assert_eq!(peer.peer_bgp_id.octets(), [10, 0, 0, 2]);
    assert!(
        (peer.timestamp - 1_700_000_000.25).abs() < 0.001,
        "{peer:?}"
    );
    let BmpMessageBody::PeerUpNotification(up) = up.message_body else {
        panic!("{up:?}");
    };
    assert_eq!((up.local_port, up.remote_port), (179, 40000));
    let asn = |open: &BgpMessage| match open {
        BgpMessage::Open(open) => open.asn.to_u32(),
        other => panic!("{other:?}"),
    };
    assert_eq!((asn(&up.sent_open), asn(&up.received_open)), (64512, 65001));
    assert!(up.tlvs.is_empty());

    let cease = Notification::shutdown(CeaseSubcode::AdministrativeShutdown, "noon");
    for (reason, expected) in [
        (
            BmpPeerDown::LocalNotification(cease.clone()),
            PeerDownReason::LocalSystemClosedNotificationPduFollows,
        ),
        (
            BmpPeerDown::Local(8),
            PeerDownReason::LocalSystemClosedFsmEvenFollows,
        ),
        (
            BmpPeerDown::RemoteNotification(cease),
            PeerDownReason::RemoteSystemClosedNotificationPduFollows,
        ),
        (
            BmpPeerDown::Remote,
            PeerDownReason::RemoteSystemsClosedNoData,
        ),
        (BmpPeerDown::DeConfigured, PeerDownReason::PeerDeConfigured),
    ] {
        let down = read(|out| encode_bmp_peer_down(&session, TIME, &reason, out));
        let BmpMessageBody::PeerDownNotification(down) = down.message_body else {
            panic!("{down:?}");
        };
        assert_eq!(down.reason, expected);
    }

    let numbers = [
        BmpStatistic::AdjRibIn(7),
        BmpStatistic::AdjRibInOf(Family::Ipv6, 5),
        BmpStatistic::AdjRibOut(6),
    ];
    let report = read(|out| encode_bmp_statistics(&session, TIME, &numbers, out));
    let BmpMessageBody::StatsReport(report) = report.message_body else {
        panic!("{report:?}");
    };
    let data: Vec<_> = report.counters.into_iter().map(|c| c.stat_data).collect();
    let expected = [
        StatsData::Gauge(7),
        StatsData::AfiSafiGauge(2, 1, 5),
        StatsData::Gauge(6),
    ];
    assert_eq!(data, expected);

    let end = read(|out| encode_bmp_termination(BmpTermination::AdministrativelyClosed, out));
    assert!(matches!(
        end.message_body,
        BmpMessageBody::TerminationMessage(_)
    ));
}

#[test]
fn rfc7854_routes_are_understood_in_both_views() {
    for (remote, prefix) in [
        ("10.0.0.2:1", "10.1.0.0/16"),
        ("[fd00::2]:1", "2001:db8::/32"),
    ] {
        let session = session(remote);
        for view in [PolicyView::PrePolicy, PolicyView::PostPolicy] {
            let next_hop = session.remote.ip();
            let update = UpdateMessage {
                announced: vec![prefix.parse().unwrap()],
                attrs: Some(PathAttrs {
                    as_path: AsPath::sequence([Asn(65001), Asn(4_200_000_000)]),
                    next_hop: Some(next_hop),
                    ..PathAttrs::default()
                }),
                ..UpdateMessage::default()
            };
            let mut pdu = BytesMut::new();
            encode_update(&update, &session.update_format(view), &mut pdu).unwrap();
            let message = read(|out| encode_bmp_route_monitoring(&session, view, TIME, &pdu, out));
            assert_eq!(message.per_peer_header.unwrap().peer_ip, next_hop);
            let BmpMessageBody::RouteMonitoring(monitoring) = message.message_body else {
                panic!("{message:?}");
            };
            let BgpMessage::Update(update) = monitoring.bgp_message else {
                panic!("no UPDATE");
            };
            let path = update.attributes.as_path().unwrap().to_string();
            assert_eq!(path, "65001 4200000000");
            let reach = update.attributes.get_reachable_nlri();
            let mp = reach.iter().flat_map(|nlri| &nlri.prefixes);
            let prefixes: Vec<_> = update.announced_prefixes.iter().chain(mp).collect();
            assert_eq!(prefixes.len(), 1);
            assert_eq!(prefixes[0].prefix.to_string(), prefix);
        }
    }
}
