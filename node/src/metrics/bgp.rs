//! Sessions and routes.
//!
//! A mesh of n nodes has n² sessions, so mesh peers are counted, not listed. Peers with series of
//! their own are the configured ones, at most [`LISTED`], and the [`FLAPPING`] mesh peers whose
//! sessions were established most often.

use std::collections::BTreeMap;

use caracal_bgp::{ErrorKind, PeerStatus, SessionState, SpeakerStatus};

use super::{count, total};
use crate::http::exposition::{MetricFamily, MetricKind, MetricLabels};
use crate::peer_problems;

/// Configured peers with series of their own.
pub(super) const LISTED: usize = 64;
/// Mesh peers with series of their own.
pub(super) const FLAPPING: usize = 10;
/// Kinds of mesh peers: any node, and one that the cluster has elected.
const MESH: [&str; 2] = ["mesh", "reflector"];

/// Whether BGP has started: listening, and everybody was heard once or had ample time.
pub(crate) fn readiness(status: &Result<SpeakerStatus, String>) -> Result<String, String> {
    let status = status.as_ref().map_err(Clone::clone)?;
    if let Some(error) = &status.listen_error {
        return Err(format!("not listening: {error}"));
    }
    let up = status.peers.iter().filter(|p| is_up(p)).count();
    let mut counts = format!("{up} of {} sessions are up", status.peers.len());
    // A peer that is lost is a problem, and no reason to send no traffic: its routes still carry
    // packets.
    if let Some(wrong) = peer_problems::in_short(status) {
        counts = format!("{counts}; {wrong}");
    }
    match status.convergence.reason() {
        None => Ok(counts),
        Some(reason) => Err(format!("{counts}; {reason}")),
    }
}

fn is_up(peer: &PeerStatus) -> bool {
    peer.state == SessionState::Established
}

pub(crate) fn families(status: &SpeakerStatus) -> Vec<MetricFamily> {
    let peers = &status.peers;
    let listed = listed(peers);
    let mut families = vec![
        by_state(peers),
        MetricFamily::new(
            "caracal_bgp_converged",
            MetricKind::Gauge,
            "1 when every peer has sent End-of-RIB since the start, or had time to, and all of it is decided.",
        )
        .value(if status.convergence.converged {
            1.0
        } else {
            0.0
        }),
        MetricFamily::new(
            "caracal_bgp_prefixes",
            MetricKind::Gauge,
            "Prefixes with a path.",
        )
        .value(count(status.rib.prefixes)),
        MetricFamily::new("caracal_bgp_paths", MetricKind::Gauge, "Paths.")
            .value(count(status.rib.paths)),
        MetricFamily::new(
            "caracal_bgp_table_work",
            MetricKind::Gauge,
            "Pieces of long work on the table that are under way.",
        )
        .value(count(status.work.len())),
        MetricFamily::new(
            "caracal_bgp_core_longest_turn_seconds",
            MetricKind::Gauge,
            "The longest time since the start for which the owner of the table heard nobody.",
        )
        .value(status.turns.longest.as_secs_f64()),
        MetricFamily::new(
            "caracal_bgp_core_slow_turns",
            MetricKind::Counter,
            "Times since the start that this took more than 20 ms.",
        )
        .value(total(status.turns.slow)),
        MetricFamily::new(
            "caracal_bgp_updates_received",
            MetricKind::Counter,
            "UPDATEs from all peers that are configured now.",
        )
        .value(total(status.updates.received)),
        MetricFamily::new(
            "caracal_bgp_updates_sent",
            MetricKind::Counter,
            "UPDATEs to all peers that are configured now.",
        )
        .value(total(status.updates.sent)),
    ];
    families.splice(2..2, routes(peers));
    families.push(errors(peers));
    families.extend(screened(status));
    families.extend(of_peers(&listed));
    families
}

/// Numbers of routes over all peers.
fn routes(peers: &[PeerStatus]) -> [MetricFamily; 3] {
    let sum = |of: fn(&PeerStatus) -> usize| count(peers.iter().map(of).sum());
    [
        MetricFamily::new(
            "caracal_bgp_routes_received",
            MetricKind::Gauge,
            "Routes received, over all peers.",
        )
        .upstream("bgp_routes_received")
        .value(sum(|p| p.routes.received)),
        MetricFamily::new(
            "caracal_bgp_routes_accepted",
            MetricKind::Gauge,
            "Routes received that policy accepts, over all peers.",
        )
        .upstream("bgp_routes_accepted")
        .value(sum(|p| p.routes.accepted)),
        MetricFamily::new(
            "caracal_bgp_routes_advertised",
            MetricKind::Gauge,
            "Routes advertised, over all peers.",
        )
        .upstream("bgp_routes_advertised")
        .value(sum(|p| p.routes.advertised)),
    ]
}

/// Errors by kind over all peers; every kind, so that the first error is an increase.
fn errors(peers: &[PeerStatus]) -> MetricFamily {
    let samples = ErrorKind::ALL.iter().map(|kind| {
        let counts = peers.iter().filter_map(|peer| peer.errors.get(kind));
        let labels = vec![("kind", kind.as_str().to_owned())];
        (labels, total(counts.sum::<u64>()))
    });
    MetricFamily::new(
        "caracal_bgp_errors",
        MetricKind::Counter,
        "Errors by kind, over all peers that are configured now.",
    )
    .samples(samples)
}

/// Routes that are refused for their prefix.
fn screened(status: &SpeakerStatus) -> [MetricFamily; 3] {
    let screened = status.screened;
    let now = [
        ("never-routed", screened.never_routed),
        ("not-owner", screened.not_owner),
        ("owner-unknown", screened.waiting),
        ("over-nodes", screened.over_nodes),
    ];
    let reason = |text: &str| vec![("reason", text.to_owned())];
    let seen = [
        ("never-routed", screened.martians),
        ("not-owner", screened.violations),
    ];
    [
        MetricFamily::new(
            "caracal_bgp_routes_screened",
            MetricKind::Gauge,
            "Routes that are refused for their prefix, by reason.",
        )
        .samples(now.map(|(text, number)| (reason(text), count(number)))),
        MetricFamily::new(
            "caracal_bgp_screened",
            MetricKind::Counter,
            "Times that a route was refused for its prefix, or would have been, by reason.",
        )
        .samples(seen.map(|(text, number)| (reason(text), total(number)))),
        MetricFamily::new(
            "caracal_bgp_routes_overdue",
            MetricKind::Gauge,
            "Routes that have waited too long for their owner to become known.",
        )
        .value(count(screened.overdue)),
    ]
}

fn by_state(peers: &[PeerStatus]) -> MetricFamily {
    let mut states: BTreeMap<(String, String), usize> = BTreeMap::new();
    for peer in peers {
        let key = (peer.kind.clone(), peer.state.to_string());
        *states.entry(key).or_default() += 1;
    }
    // A series that is gone is no zero: an alert on sessions that are not up needs both numbers
    // always.
    let kinds: Vec<String> = peers.iter().map(|peer| peer.kind.clone()).collect();
    for kind in kinds {
        let up = SessionState::Established.to_string();
        states.entry((kind, up)).or_default();
    }
    let samples = states
        .into_iter()
        .map(|((kind, state), number)| (vec![("type", kind), ("state", state)], count(number)));
    MetricFamily::new(
        "caracal_bgp_peers",
        MetricKind::Gauge,
        "Peers by type and session state.",
    )
    .samples(samples)
}

/// The peers with series of their own: configured ones by name, then restless mesh peers.
fn listed(peers: &[PeerStatus]) -> Vec<&PeerStatus> {
    let (mesh, configured): (Vec<_>, Vec<_>) = {
        let mesh = |p: &&PeerStatus| MESH.contains(&p.kind.as_str());
        peers.iter().partition(mesh)
    };
    let mut restless: Vec<&PeerStatus> = mesh
        .into_iter()
        .filter(|p| p.established_count > 1)
        .collect();
    restless.sort_by(|a, b| (b.established_count, &a.name).cmp(&(a.established_count, &b.name)));
    let restless = restless.into_iter().take(FLAPPING);
    configured
        .into_iter()
        .take(LISTED)
        .chain(restless)
        .collect()
}

fn of_peers(peers: &[&PeerStatus]) -> Vec<MetricFamily> {
    let labels = |peer: &PeerStatus| -> MetricLabels {
        vec![("peer", peer.name.to_string()), ("type", peer.kind.clone())]
    };
    let of =
        |value: fn(&PeerStatus) -> f64| peers.iter().map(move |peer| (labels(peer), value(peer)));
    vec![
        MetricFamily::new(
            "caracal_bgp_peer",
            MetricKind::Info,
            "Configured peers, and mesh peers whose sessions come and go.",
        )
        .upstream("bgp_peer")
        .samples(peers.iter().map(|peer| (info(peer), 1.0))),
        MetricFamily::new(
            "caracal_bgp_peer_up",
            MetricKind::Gauge,
            "1 when the session is established.",
        )
        .samples(of(|p| if is_up(p) { 1.0 } else { 0.0 })),
        MetricFamily::new(
            "caracal_bgp_peer_sessions",
            MetricKind::Counter,
            "Sessions established since the start.",
        )
        .samples(of(|p| total(p.established_count))),
        MetricFamily::new(
            "caracal_bgp_peer_errors",
            MetricKind::Counter,
            "Errors of a peer by kind; those that have happened.",
        )
        .samples(peers.iter().flat_map(|peer| {
            peer.errors.iter().map(|(kind, count)| {
                let mut labels = labels(peer);
                labels.push(("kind", kind.as_str().to_owned()));
                (labels, total(*count))
            })
        })),
        MetricFamily::new(
            "caracal_bgp_peer_routes_received",
            MetricKind::Gauge,
            "Routes received from a peer.",
        )
        .samples(of(|p| count(p.routes.received))),
        MetricFamily::new(
            "caracal_bgp_peer_routes_advertised",
            MetricKind::Gauge,
            "Routes advertised to a peer.",
        )
        .samples(of(|p| count(p.routes.advertised))),
    ]
}

fn info(peer: &PeerStatus) -> MetricLabels {
    vec![
        ("peer", peer.name.to_string()),
        ("address", peer.address.to_string()),
        ("type", peer.kind.clone()),
        ("asn", peer.remote_as.0.to_string()),
        ("state", peer.state.to_string()),
    ]
}
