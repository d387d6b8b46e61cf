//! Which changes of other nodes a plan follows from. Behind reflectors it is few: a node has
//! sessions with some others, and those that come and go elsewhere change none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_bgp::ClusterId;
use caracal_model::{Family, InsertEach, Node, NodeName, Snapshot};

use crate::auto;
use crate::common::FAMILIES;
use crate::peers::Request;
use crate::settings::BgpSettings;
use crate::view::{PodRanges, unusable};
use crate::{PlanOptions, Problems};

/// False when the plan of a node does not follow from what differs between the nodes of two
/// snapshots, whose BGP resources and configurations are otherwise the same. True in doubt.
pub(crate) fn nodes_concern(
    was: &Snapshot,
    is: &Snapshot,
    own: &NodeName,
    options: &PlanOptions,
) -> bool {
    if was.nodes.is_same(&is.nodes) {
        return false;
    }
    let changed = is.nodes.changed_since(&was.nodes);
    let Some(node) = is.nodes.get(own).filter(|_| !changed.contains(own)) else {
        return true;
    };
    let values: Vec<(&NodeName, &Node)> = [was, is]
        .into_iter()
        .flat_map(|snapshot| {
            let of = |name| Some((name, &**snapshot.nodes.get(name)?));
            changed.iter().filter_map(of)
        })
        .collect();
    let pods = PodRanges::new(is, Some(node));
    values
        .iter()
        .any(|(_, other)| is_problem(node, other, &pods))
        || is_in_mesh(node) && !options.no_bgp && mesh_differs(was, is, own, &changed)
        || is.bgp_peers.iter().any(|(name, peer)| {
            let request = Request::new(name, &peer.spec);
            values
                .iter()
                .any(|(name, other)| request.joins((own, node), (name, other)))
        })
}

/// Whether a plan says something about another node by itself.
fn is_problem(own: &Node, other: &Node, pods: &PodRanges) -> bool {
    let asn = other.spec.bgp.as_ref().and_then(|bgp| bgp.as_number);
    let mut addresses = FAMILIES.iter().filter_map(|family| {
        let address = other.spec.address(*family)?;
        Some((address, own.spec.address(*family)))
    });
    asn.is_some_and(|asn| asn.0 == 0)
        || addresses.any(|(address, own)| {
            unusable(address).is_some() || own == Some(address) || pods.contains(address)
        })
}

/// BGP addresses of nodes of which the blocks say whether they are used; in most clusters none.
pub(crate) fn judged_by_blocks(snapshot: &Snapshot, own: &NodeName) -> BTreeSet<IpAddr> {
    let node = snapshot.nodes.get(own).map(|node| &**node);
    let pods = PodRanges::new(snapshot, node);
    let nodes = snapshot.nodes.values();
    let addresses = nodes.flat_map(|node| FAMILIES.map(|family| node.spec.address(family)));
    let addresses = addresses.flatten();
    addresses
        .filter(|address| pods.contains(*address))
        .insert_each()
}

/// The operator's own reflectors have no mesh sessions.
fn is_in_mesh(own: &Node) -> bool {
    own.spec.cluster_id().is_none()
}

/// Whether other nodes than before, or nodes that changed, are peers in the mesh or by election.
fn mesh_differs(was: &Snapshot, is: &Snapshot, own: &NodeName, changed: &[NodeName]) -> bool {
    match auto::reflector_tuning(is) {
        // Reported by the plan, which has no reflectors then.
        Ok(None) | Err(_) => BgpSettings::from_snapshot(is, own, &mut Problems::default()).mesh,
        Ok(Some(_)) => {
            let (before, after) = (
                Elected::from_snapshot(was, own),
                Elected::from_snapshot(is, own),
            );
            let Some(elected) = after else {
                return true;
            };
            let has_changed = changed.iter().any(|name| elected.peers.contains_key(name));
            has_changed || before != Some(elected)
        }
    }
}

/// What an election is for one node.
#[derive(PartialEq, Eq)]
struct Elected {
    cluster: Option<ClusterId>,
    /// Its peers, and the cluster in which each is its client.
    peers: BTreeMap<NodeName, Option<ClusterId>>,
}

impl Elected {
    /// `None`: there is a mesh.
    fn from_snapshot(snapshot: &Snapshot, own: &NodeName) -> Option<Self> {
        let choice = auto::choose_topology(snapshot);
        let peers: BTreeSet<NodeName> = choice.peers_of(own)?;
        let role = |peer: NodeName| {
            let client_of = choice.client_of(own, &peer);
            (peer, client_of)
        };
        Some(Self {
            cluster: choice.cluster_of(own),
            peers: peers.into_iter().map(role).insert_each(),
        })
    }
}

impl Request<'_> {
    /// True when the resource may make sessions between two nodes, from either side.
    fn joins(&self, own: (&NodeName, &Node), other: (&NodeName, &Node)) -> bool {
        let is_named = |node: &Node| match (&self.remote_side, self.spec.peer_address()) {
            (Some(selector), _) => selector.matches(&node.metadata.labels),
            (None, Some((address, _))) => node.spec.address(Family::of(address)) == Some(address),
            (None, None) => false,
        };
        self.is_local_side(own.0, own.1) && is_named(other.1)
            || is_named(own.1) && self.is_local_side(other.0, other.1)
    }
}

#[cfg(test)]
mod tests;
