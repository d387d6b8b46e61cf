#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use caracal_bgp::{
    Asn, Convergence, PeerCounts, PeerName, PeerStatus, RibCounts, RouterId, SessionState,
    SpeakerStatus, TurnTimes,
};

use super::bgp;
use crate::http::exposition::{SampleFormat, render};

pub(crate) fn peer(number: usize, kind: &str, up: bool, sessions: u64) -> PeerStatus {
    PeerStatus {
        name: PeerName::from(format!("P{number:05}").as_str()),
        address: "192.0.2.1".parse().unwrap(),
        port: 179,
        remote_as: Asn(64512),
        local_as: Asn(64512),
        kind: kind.to_owned(),
        state: if up {
            SessionState::Established
        } else {
            SessionState::Active
        },
        since: 0,
        warning: None,
        reason: None,
        down_seconds: None,
        refused: false,
        hold_seconds: 90,
        near_limit: None,
        told_all: true,
        disabled: false,
        last_error: None,
        errors: BTreeMap::new(),
        established_count: sessions,
        routes: PeerCounts {
            received: 3,
            accepted: 2,
            advertised: 1,
            stale: false,
        },
        session: None,
        bfd: None,
        pending: 0,
    }
}

pub(crate) fn status(peers: Vec<PeerStatus>, awaited: &[&str]) -> SpeakerStatus {
    SpeakerStatus {
        local_as: Asn(64512),
        router_id: RouterId(std::net::Ipv4Addr::new(192, 0, 2, 9)),
        listen: None,
        listen_error: None,
        peers,
        rib: RibCounts::default(),
        screened: Default::default(),
        origin: Default::default(),
        deferring: false,
        convergence: Convergence {
            converged: awaited.is_empty(),
            awaited: awaited.iter().map(|name| PeerName::from(*name)).collect(),
        },
        stations: vec![],
        work: vec![],
        turns: TurnTimes::default(),
        updates: Default::default(),
    }
}

#[test]
fn five_thousand_mesh_peers_make_no_more_series_than_one() {
    let lines = |peers| {
        let families = bgp::families(&status(peers, &[]));
        render(&families, SampleFormat::OpenMetrics).lines().count()
    };
    let one = lines(vec![peer(0, "mesh", true, 1)]);
    let many = lines((0..5000).map(|n| peer(n, "mesh", true, 1)).collect());
    assert_eq!(one, many);
    let elected = lines((0..5000).map(|n| peer(n, "reflector", true, 1)).collect());
    assert_eq!(one, elected);
    let restless = (0..5000).map(|n| peer(n, "mesh", true, 2)).collect();
    let configured = (0..5000).map(|n| peer(n, "node", true, 2)).collect();
    let per_peer = 5;
    let headers = 2 * 5;
    assert_eq!(lines(restless), one + headers + per_peer * bgp::FLAPPING);
    assert_eq!(lines(configured), one + headers + per_peer * bgp::LISTED);
}

#[test]
fn the_most_restless_mesh_peers_are_named_and_configured_ones_always() {
    let mut peers: Vec<PeerStatus> = (0..20).map(|n| peer(n, "mesh", true, n as u64)).collect();
    peers.push(peer(99, "global", false, 0));
    let text = render(&bgp::families(&status(peers, &[])), SampleFormat::Text);
    assert!(text.contains("caracal_bgp_peer_sessions_total{peer=\"P00019\",type=\"mesh\"} 19\n"));
    assert!(text.contains("peer=\"P00010\""));
    assert!(!text.contains("peer=\"P00009\""), "{text}");
    assert!(text.contains("caracal_bgp_peer_up{peer=\"P00099\",type=\"global\"} 0\n"));
    assert!(text.contains("caracal_bgp_peers{type=\"mesh\",state=\"Established\"} 20\n"));
    assert!(text.contains("caracal_bgp_peers{type=\"global\",state=\"Established\"} 0\n"));
    assert!(text.contains("caracal_bgp_peers{type=\"global\",state=\"Active\"} 1\n"));
    assert!(text.contains("caracal_bgp_routes_received 63\n"));
    assert!(text.contains(
        "caracal_bgp_peer_info{peer=\"P00099\",address=\"192.0.2.1\",type=\"global\",asn=\"64512\",state=\"Active\"} 1\n"
    ));
}

#[test]
fn a_peer_lost_after_the_start_leaves_the_node_ready() {
    let peers = vec![peer(0, "mesh", true, 1), peer(1, "mesh", false, 1)];
    let ready = bgp::readiness(&Ok(status(peers.clone(), &[])));
    assert_eq!(ready.as_deref(), Ok("1 of 2 sessions are up"));
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let waits = bgp::readiness(&Ok(status(peers.clone(), &names))).unwrap_err();
    let text = "1 of 2 sessions are up; waiting for End-of-RIB from a, b, c, d, e and 2 more";
    assert_eq!(waits, text);
    let mut deaf = status(peers, &[]);
    deaf.listen_error = Some("port 179 is taken".to_owned());
    assert!(bgp::readiness(&Ok(deaf)).unwrap_err().contains("port 179"));
}

#[test]
fn errors_are_counted_by_kind_over_all_peers_and_for_the_configured_ones() {
    use caracal_bgp::ErrorKind;
    let with = |mut peer: PeerStatus| {
        peer.errors = [(ErrorKind::TreatAsWithdraw, 20_000)].into();
        peer
    };
    let peers = vec![
        with(peer(1, "mesh", true, 1)),
        with(peer(2, "global", true, 1)),
    ];
    let text = render(
        &bgp::families(&status(peers, &[])),
        SampleFormat::OpenMetrics,
    );
    let line = "caracal_bgp_errors_total{kind=\"treat_as_withdraw\"} 40000";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("caracal_bgp_errors_total{kind=\"bad_open\"} 0"));
    let line = "caracal_bgp_peer_errors_total{peer=\"P00002\",type=\"global\",kind=\"treat_as_withdraw\"} 20000";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains("caracal_bgp_peer_errors_total{peer=\"P00001\""));
}
