//! Report on a lab: every node's own status, the kernel's routes beside it, and the ping matrix.

use std::collections::BTreeMap;
use std::time::Duration;

use caracal_model::{NodeStatus, PeerStatusJson, Prefix};
use serde::Serialize;

use crate::flannel::FlannelReport;
use crate::ip::{self, RouteKind};
use crate::lab::Lab;
use crate::matrix::Matrix;
use crate::plan::NodeLayout;
use crate::program::Missing;
use crate::topology::NodeKind;

/// A lab at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct LabReport {
    pub lab: String,
    /// Its nodes, in the topology's order.
    pub nodes: Vec<NodeReport>,
    /// Ping matrix; `None` when it was not asked for or there are no pods.
    pub matrix: Option<Matrix>,
    /// The same over IPv6 in a dual-stack lab, where `matrix` is IPv4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matrix6: Option<Matrix>,
}

/// A node at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct NodeReport {
    pub name: String,
    /// Program that runs in it.
    pub kind: &'static str,
    /// Its address with the segment's length.
    pub address: String,
    /// Its IPv6 address beside an IPv4 one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address6: Option<String>,
    pub segment: String,
    /// Is its process there?
    pub running: bool,
    /// Its status; of a foreign speaker only the peers are known.
    pub status: Option<NodeStatus>,
    /// Its own words in a network of flannel's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flannel: Option<FlannelReport>,
    /// Why there is no status.
    pub error: Option<String>,
    /// Routes in its kernel by kind, the underlay's own left out.
    pub routes: BTreeMap<&'static str, usize>,
    /// Number of its pods.
    pub pods: usize,
}

impl NodeReport {
    /// Peers in state Established, and all.
    #[must_use]
    pub fn peers(&self) -> (usize, usize) {
        let peers = self
            .status
            .as_ref()
            .map(|s| s.peers.as_slice())
            .unwrap_or_default();
        (
            peers.iter().filter(|p| p.state == "Established").count(),
            peers.len(),
        )
    }
}

impl LabReport {
    /// Does every node answer, is every session up, and does every ping arrive?
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let node = |n: &NodeReport| {
            let (up, all) = n.peers();
            n.error.is_none() && up == all
        };
        let mut matrices = self.matrices();
        self.nodes.iter().all(node) && matrices.all(Matrix::is_full)
    }

    /// Ping matrices, one of each family that was asked for.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.matrix.iter().chain(&self.matrix6)
    }
}

impl Lab {
    /// Asks all nodes at the same time, then pings for as long as `pings` (scaled) where asked for.
    ///
    /// # Errors
    /// [`Missing`] when there is no `ping`.
    pub fn report(&self, pings: Option<Duration>) -> Result<LabReport, Missing> {
        let nodes = std::thread::scope(|scope| {
            let asked: Vec<_> = self
                .layout
                .nodes
                .iter()
                .map(|node| scope.spawn(move || self.node_report(node)))
                .collect();
            asked
                .into_iter()
                .map(|node| match node.join() {
                    Ok(report) => report,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
                .collect()
        });
        let mut matrices = Vec::new();
        if let Some(deadline) = pings.filter(|_| !self.state.pods.is_empty()) {
            for family in self.topology.families() {
                matrices.push(self.ping_matrix_of(family, deadline)?);
            }
        }
        let mut matrices = matrices.into_iter();
        Ok(LabReport {
            lab: self.name().to_string(),
            nodes,
            matrix: matrices.next(),
            matrix6: matrices.next(),
        })
    }

    fn node_report(&self, node: &NodeLayout) -> NodeReport {
        let running = self.node_runs(&node.name);
        let mut flannel = None;
        let asked = match node.kind {
            NodeKind::Plain | NodeKind::Gobgp => Ok(None),
            _ if !running => Err("its process is not running".to_owned()),
            NodeKind::Bird2 => self.bird_status(node).map(Some),
            NodeKind::Flannel => self.flannel_report(node).map(|report| {
                flannel = Some(report);
                None
            }),
            NodeKind::Caracal => self
                .node_status(&node.name)
                .map(Some)
                .map_err(|e| crate::error_chain(&e)),
        };
        let (status, error) = match asked {
            Ok(status) => (status, None),
            Err(error) => (None, Some(error)),
        };
        NodeReport {
            name: node.name.clone(),
            kind: node.kind.as_str(),
            address: format!("{}/{}", node.uplink.address, node.uplink.len),
            address6: node.uplink.address6.map(|(a, len)| format!("{a}/{len}")),
            segment: node.uplink.segment.clone(),
            running,
            status,
            flannel,
            error,
            routes: self.route_counts(&node.netns),
            pods: node.pods.len(),
        }
    }

    /// The subnets of the segments.
    #[must_use]
    pub fn underlay(&self) -> Vec<Prefix> {
        self.topology
            .segments
            .iter()
            .flat_map(crate::topology::Segment::prefixes)
            .collect()
    }

    fn route_counts(&self, netns: &str) -> BTreeMap<&'static str, usize> {
        let underlay = self.underlay();
        let mut counts = BTreeMap::new();
        let families = self.topology.families().into_iter();
        for route in families.flat_map(|f| ip::routes(netns, f).unwrap_or_default()) {
            match route.classify(&underlay) {
                RouteKind::Underlay => {}
                kind => *counts.entry(kind.as_str()).or_insert(0) += 1,
            }
        }
        counts
    }

    fn bird_status(&self, node: &NodeLayout) -> Result<NodeStatus, String> {
        let text = self
            .birdc(&node.name, &["show", "protocols", "all"])
            .map_err(|e| crate::error_chain(&e))?;
        let peers = bird_peers(&text);
        Ok(NodeStatus {
            node: node.name.clone(),
            version: "BIRD".to_owned(),
            peers,
            ..NodeStatus::default()
        })
    }
}

/// The BGP protocols of `birdc show protocols all`.
fn bird_peers(text: &str) -> Vec<PeerStatusJson> {
    let mut peers: Vec<PeerStatusJson> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        if !line.starts_with([' ', '\t']) && !words.is_empty() {
            inside = words.get(1) == Some(&"BGP");
            if inside {
                let name = words[0].to_owned();
                peers.push(PeerStatusJson {
                    name,
                    kind: "bird".to_owned(),
                    ..PeerStatusJson::default()
                });
            }
            continue;
        }
        let Some(peer) = peers.last_mut().filter(|_| inside) else {
            continue;
        };
        match words.as_slice() {
            ["BGP", "state:", state, ..] => peer.state = (*state).to_owned(),
            ["Neighbor", "address:", address, ..] => {
                peer.address = address.split('%').next().and_then(|a| a.parse().ok());
            }
            ["Neighbor", "AS:", asn, ..] => peer.asn = asn.parse().unwrap_or(0),
            ["Last", "error:", reason @ ..] => peer.reason = Some(reason.join(" ")),
            ["Routes:", imported, "imported,", rest @ ..] => {
                peer.accepted = imported.parse().unwrap_or(0);
                peer.received = peer.accepted;
                let exported = rest.iter().position(|w| w.starts_with("exported"));
                let exported = exported.and_then(|i| rest.get(i.checked_sub(1)?));
                peer.advertised = exported.and_then(|n| n.parse().ok()).unwrap_or(0);
            }
            _ => {}
        }
    }
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn birds_words_are_read() {
        let text = "BIRD 2.0.12 ready.
Name       Proto      Table      State  Since         Info
device1    Device     ---        up     12:00:00.000

kernel1    Kernel     master4    up     12:00:00.000
  Channel ipv4
    Routes:         2 imported, 3 exported, 2 preferred

Mesh_10_0_0_11 BGP        ---        up     12:00:01.000  Established
  BGP state:          Established
    Neighbor address: 10.0.0.11
    Neighbor AS:      64512
    Local AS:         64512
  Channel ipv4
    Routes:         1 imported, 0 filtered, 2 exported, 1 preferred

Mesh_10_0_0_12 BGP        ---        start  12:00:01.000  Active        Socket: Connection refused
  BGP state:          Active
    Neighbor address: 10.0.0.12
    Neighbor AS:      64513
    Last error:       Socket: Connection refused
";
        let peers = bird_peers(text);
        assert_eq!(peers.len(), 2);
        assert_eq!(peers[0].name, "Mesh_10_0_0_11");
        assert_eq!(
            (&*peers[0].state, peers[0].accepted, peers[0].advertised),
            ("Established", 1, 2)
        );
        assert_eq!(peers[1].asn, 64513);
        assert_eq!(
            peers[1].reason.as_deref(),
            Some("Socket: Connection refused")
        );
    }
}
