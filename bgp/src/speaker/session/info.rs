//! Descriptions of a session: for the table, for monitoring stations, for users.

use std::io;
use std::time::Duration;

use crate::bmp::MonitoredSession;
use crate::config::PeerConfig;
use crate::fsm::{ConnectFailure, Negotiated, SessionUp};
use crate::rib::{LongLivedRestart, RemoteRestart, SessionInfo, SessionOptions};
use crate::speaker::addresses;
use crate::wire::capability::LongLivedFamily;

pub(super) fn connect_failure(peer: &PeerConfig, error: &io::Error) -> ConnectFailure {
    ConnectFailure {
        remote: (peer.address, peer.port).into(),
        cause: error.kind(),
        text: error.to_string(),
    }
}

fn session_options(negotiated: &Negotiated) -> SessionOptions {
    let entry = |entry: &LongLivedFamily| {
        Some(LongLivedRestart {
            family: entry.family.family()?,
            forwarding: entry.forwarding,
            time: Duration::from_secs(entry.stale_time.into()),
        })
    };
    SessionOptions {
        route_refresh: negotiated.route_refresh,
        enhanced_refresh: negotiated.enhanced_refresh,
        extended_next_hop: negotiated.format.extended_next_hop,
        four_octet_as: negotiated.format.four_octet_as,
        extended_messages: negotiated.format.extended_send,
        path_ids_out: negotiated.format.path_ids_out.iter().collect(),
        long_lived: negotiated
            .long_lived
            .as_ref()
            .map(|list| list.iter().filter_map(entry).collect()),
        other_address: None,
        link_local: None,
        link: Vec::new(),
    }
}

/// Description of the session for monitoring stations.
pub(super) fn monitored_session(up: &SessionUp) -> MonitoredSession {
    MonitoredSession {
        local: up.ends.local,
        remote: up.ends.remote,
        asn: up.negotiated.remote_as,
        router_id: up.negotiated.remote_router_id,
        format: up.negotiated.format,
        opens: up.opens.clone(),
    }
}

/// Description of the session for the table.
pub(super) fn session_info(peer: &PeerConfig, up: SessionUp) -> SessionInfo {
    let SessionUp {
        negotiated, ends, ..
    } = up;
    let mut session = SessionInfo {
        families: negotiated.families().iter().collect(),
        router_id: negotiated.remote_router_id,
        local_address: ends.local.ip().to_canonical(),
        remote_address: ends.remote.ip().to_canonical(),
        capabilities: negotiated.in_use(),
        options: session_options(&negotiated),
        graceful_restart: negotiated.graceful_restart.map(|restart| RemoteRestart {
            restarting: restart.restarting,
            time: restart.time,
            families: restart.families,
        }),
    };
    addresses::complete(&mut session, peer, ends);
    session
}
