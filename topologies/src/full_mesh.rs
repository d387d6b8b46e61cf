//! The full mesh: every node a peer of every other, one session for each address family that both
//! have.
//!
//! Nodes with a cluster id are reflectors and take no part. With automatic reflection
//! ([`crate::auto`]) the mesh is thinned out: a node keeps its sessions with the reflectors of its
//! zone.

use std::collections::BTreeMap;

use caracal_bgp::{GracefulRestart, PeerConfig, PeerName};
use caracal_model::{Key, Kind, ProblemCode};

use crate::Problems;
use crate::auto::TopologyChoice;
use crate::common::{BGP_PORT, FAMILIES, path};
use crate::session::{PlannedSession, password, peer_name, waits_for};
use crate::view::{NodeView, seniority};

/// [`PeerConfig::kind`] of mesh sessions.
const MESH: &str = "mesh";
/// The same of sessions with reflectors that the cluster has elected.
const REFLECTOR: &str = "reflector";

pub(crate) fn sessions(
    view: &NodeView<'_>,
    problems: &mut Problems,
) -> BTreeMap<PeerName, PlannedSession> {
    let mut sessions = BTreeMap::new();
    let wanted = match view.auto {
        TopologyChoice::Off => view.settings.mesh,
        TopologyChoice::Mesh | TopologyChoice::Reflectors(_) => true,
    };
    let excluded = view.options.no_bgp || view.operators_cluster_id().is_some();
    if view.node.is_none() || excluded || !wanted {
        return sessions;
    }
    let elected = view.auto.peers_of(view.name);
    let subject = path(Kind::BgpConfiguration, "default");
    let reference = view.settings.mesh_password.as_ref();
    let Ok(password) = password(view, reference, &subject, problems) else {
        return sessions;
    };
    for family in FAMILIES {
        let Some(own) = view.address(family) else {
            continue;
        };
        let mut by_address = BTreeMap::new();
        for (node_name, node) in view.nodes() {
            let Some(address) = node.spec.address(family) else {
                continue;
            };
            if node_name == view.name || node.spec.cluster_id().is_some() {
                continue;
            }
            if view.is_refused(address) {
                continue;
            }
            let node_path = Key::node(node_name).to_path();
            if address == own {
                problems.note(
                    ProblemCode::NodeSameAddress,
                    node_path,
                    format!("the node has our own address {own}; there is no session with it"),
                );
                continue;
            }
            if elected.as_ref().is_some_and(|e| !e.contains(node_name)) {
                continue;
            }
            let mut peer = PeerConfig::new(address, NodeView::asn_set_by(node).unwrap_or(view.asn));
            peer.port = view.listen_port_of(node_name);
            peer.source = Some(own);
            peer.passive = waits_for(own, address);
            peer.families = vec![family];
            peer.password.clone_from(&password);
            peer.graceful_restart = restart(view);
            peer.client_of = view.auto.client_of(view.name, node_name);
            peer.kind = match view.auto.cluster_of(node_name) {
                Some(_) => REFLECTOR,
                None => MESH,
            }
            .to_owned();
            if let Some((holder, holds)) = by_address.insert(address, (node_name, node)) {
                let is_newcomer = seniority(holder, holds) < seniority(node_name, node);
                let (other, subject) = match is_newcomer {
                    true => (holder, node_path),
                    false => (node_name, Key::node(holder).to_path()),
                };
                problems.note(
                    ProblemCode::NodeSameAddress,
                    subject,
                    format!("{address} is the address of node {other}, which is older; the session is with that one"),
                );
                if is_newcomer {
                    by_address.insert(address, (holder, holds));
                    continue;
                }
            }
            // The port is no part of a mesh peer's name.
            let name = peer_name("Mesh", address, BGP_PORT);
            let mut session = PlannedSession::new(peer, subject.clone());
            session.restart_time = view.settings.mesh_restart_time;
            sessions.insert(name, session);
        }
    }
    sessions
}

fn restart(view: &NodeView<'_>) -> Option<GracefulRestart> {
    Some(
        view.settings
            .mesh_restart_time
            .map_or_else(GracefulRestart::default, |restart_time| GracefulRestart {
                restart_time,
            }),
    )
}
