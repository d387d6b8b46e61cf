//! Automatic route reflection: a full mesh while the cluster is small, and reflectors that the cluster elects
//! from its nodes when it is not.
//!
//! Off unless the BGPConfiguration `default` carries the annotation [`TOPOLOGY`] with the value `auto`; it then
//! stands in for the mesh, and BGPPeers work beside it as they do beside the mesh. The choice is a pure function
//! of the snapshot, so every node computes the same one and no node asks another.
//!
//! * **Zones.** Nodes with one value of the label [`ZONE`] are a zone; nodes without the label are one together.
//!   Each zone with members has [`Tuning::reflectors`] reflectors and one standby. Clients have sessions with all
//!   of them, so the standby is connected before it is needed, and losing all but one costs no path.
//! * **Spread.** Of the nodes that come next in the order, one in a rack (label [`RACK`]) without a reflector of
//!   the zone goes first.
//! * **Sticky.** The order is by age (`creationTimestamp`), so a node that joins displaces nobody; nodes of one
//!   age go by a hash of zone and name. A node in preparation for its end leaves with the label [`AVOID`].
//! * **Back to the mesh.** Below the limit the mesh is back. A cluster that swings around the limit would
//!   re-peer each time; give it a lower [`LIMIT`].
//!
//! Reflectors of one zone share a cluster id (RFC 4456 §7) and are plain peers of all other reflectors. Nodes
//! outside the cluster's AS cannot be clients, and nodes with a `routeReflectorClusterID` are the operator's
//! own reflectors: the election leaves both alone, and [`crate::paths`] tells whether somebody is cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use caracal_bgp::types::{Asn, ClusterId};
use caracal_model::names::NodeName;
use caracal_model::resource::Node;
use caracal_model::snapshot::Snapshot;
use sha2::{Digest, Sha256};

/// Annotation of the BGPConfiguration `default` that switches automatic reflection on: `auto`. Any other
/// value, and none, leave the mesh as `nodeToNodeMeshEnabled` says.
pub const TOPOLOGY: &str = "caracal.io/topology";

/// Annotation with the number of nodes up to which there is a mesh; 50 when absent.
pub const LIMIT: &str = "caracal.io/topology-mesh-limit";

/// Annotation with the number of reflectors of a zone besides the standby; 2 when absent.
pub const REFLECTORS: &str = "caracal.io/topology-reflectors";

/// Label of a node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Label of a node's rack.
pub const RACK: &str = "topology.kubernetes.io/rack";

/// Label of a node that is not to be a reflector, with the value `false`.
pub const AVOID: &str = "caracal.io/reflector";

/// Numbers of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Up to so many nodes there is a mesh.
    pub limit: usize,
    /// Reflectors of a zone, besides the standby.
    pub reflectors: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            limit: 50,
            reflectors: 2,
        }
    }
}

/// What is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Not switched on.
    Off,
    /// Few enough nodes: a mesh.
    Mesh,
    /// Reflectors.
    Reflectors(BTreeMap<String, Zone>),
}

/// The reflectors of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// The cluster id that its reflectors share.
    pub cluster: Option<ClusterId>,
    /// Reflectors in the order of their election; the last one is the standby.
    pub reflectors: Vec<NodeName>,
    /// All other members.
    pub clients: BTreeSet<NodeName>,
}

/// Reads the annotations. `Err` says what is wrong with one; there is no automatic reflection then.
pub fn tuning(snapshot: &Snapshot) -> Result<Option<Tuning>, String> {
    let Some(configuration) = snapshot.bgp_default() else {
        return Ok(None);
    };
    let annotations = &configuration.metadata.annotations;
    match annotations.get(TOPOLOGY).map(String::as_str) {
        None => return Ok(None),
        Some("auto") => {}
        Some(other) => return Err(format!("annotation {TOPOLOGY} {other:?} is not auto")),
    }
    let number = |name: &str, default: usize, least: usize| match annotations.get(name) {
        None => Ok(default),
        Some(text) => match text.parse() {
            Ok(number) if number >= least => Ok(number),
            _ => Err(format!(
                "annotation {name} {text:?} is not a number of at least {least}"
            )),
        },
    };
    let default = Tuning::default();
    Ok(Some(Tuning {
        limit: number(LIMIT, default.limit, 1)?,
        reflectors: number(REFLECTORS, default.reflectors, 1)?,
    }))
}

/// The choice for a cluster. Annotations that cannot be read leave it off; the plan reports them.
#[must_use]
pub fn choose(snapshot: &Snapshot) -> Choice {
    match tuning(snapshot) {
        Ok(Some(tuning)) => elect(snapshot, tuning),
        Ok(None) | Err(_) => Choice::Off,
    }
}

/// The choice with given numbers.
#[must_use]
pub fn elect(snapshot: &Snapshot, tuning: Tuning) -> Choice {
    let default = Asn(snapshot.default_asn());
    let mut zones: BTreeMap<String, Vec<(&NodeName, &Node)>> = BTreeMap::new();
    let mut count = 0;
    for (name, node) in &snapshot.nodes {
        if is_member(node, default) {
            count += 1;
            let zone = label(node, ZONE).unwrap_or_default().to_owned();
            zones.entry(zone).or_default().push((name, node));
        }
    }
    if count <= tuning.limit {
        return Choice::Mesh;
    }
    let zones = zones.into_iter().map(|(zone, members)| {
        let reflectors = ranked(&zone, &members, tuning.reflectors + 1);
        let clients = members
            .iter()
            .map(|(name, _)| (*name).clone())
            .filter(|name| !reflectors.contains(name))
            .collect();
        let elected = Zone {
            cluster: Some(cluster_id(&zone)),
            reflectors,
            clients,
        };
        (zone, elected)
    });
    Choice::Reflectors(zones.collect())
}

/// Members have an address, are in the cluster's AS and are no reflectors of the operator's.
fn is_member(node: &Node, default: Asn) -> bool {
    let bgp = node.spec.bgp.as_ref();
    let own = bgp.and_then(|bgp| bgp.as_number).filter(|asn| asn.0 != 0);
    bgp.is_some_and(|bgp| bgp.ipv4_address.is_some() || bgp.ipv6_address.is_some())
        && own.is_none_or(|asn| Asn(asn.0) == default)
        && node.spec.cluster_id().is_none()
}

fn label<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.metadata.labels.get(name).map(String::as_str)
}

/// The first `count` members in the order of election.
fn ranked(zone: &str, members: &[(&NodeName, &Node)], count: usize) -> Vec<NodeName> {
    let mut order: Vec<_> = members
        .iter()
        .map(|(name, node)| {
            let avoided = label(node, AVOID) == Some("false");
            let leaving = node.metadata.deletion_timestamp.is_some();
            // RFC 3339 in UTC, as Calico writes it, sorts as text; a node without a time is the youngest.
            let created = node.metadata.creation_timestamp.as_deref();
            let age = (created.is_none(), created.unwrap_or_default());
            let digest: [u8; 32] = Sha256::digest(format!("{zone}/{name}")).into();
            ((leaving, avoided, age, digest), *name, *node)
        })
        .collect();
    order.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut elected: Vec<NodeName> = Vec::new();
    let mut racks = BTreeSet::new();
    while elected.len() < count && !order.is_empty() {
        // Another rack is only worth a younger node, never one that is leaving or to be avoided.
        let standing = (order[0].0.0, order[0].0.1);
        let fresh = order
            .iter()
            .take_while(|(key, ..)| (key.0, key.1) == standing)
            .position(|(_, _, node)| label(node, RACK).is_some_and(|rack| !racks.contains(rack)));
        let (_, name, node) = order.remove(fresh.unwrap_or(0));
        racks.extend(label(node, RACK));
        elected.push(name.clone());
    }
    elected
}

/// The cluster id of a zone: in 240.0.0.0/4, where no node has its address.
fn cluster_id(zone: &str) -> ClusterId {
    let digest = Sha256::digest(format!("zone/{zone}"));
    ClusterId(Ipv4Addr::new(
        0xf0 | (digest[0] & 0x0e),
        digest[1],
        digest[2],
        digest[3],
    ))
}

impl Choice {
    /// The cluster id that the election gives a node; `None` when it is no reflector.
    #[must_use]
    pub fn cluster_of(&self, node: &NodeName) -> Option<ClusterId> {
        let Self::Reflectors(zones) = self else {
            return None;
        };
        let zone = zones.values().find(|zone| zone.reflectors.contains(node))?;
        zone.cluster
    }

    /// The nodes that a node has sessions with, in the order of their names; `None` without reflectors.
    #[must_use]
    pub fn peers_of(&self, node: &NodeName) -> Option<BTreeSet<NodeName>> {
        let Self::Reflectors(zones) = self else {
            return None;
        };
        let mut peers = BTreeSet::new();
        for zone in zones.values() {
            if zone.clients.contains(node) {
                peers.extend(zone.reflectors.iter().cloned());
            } else if zone.reflectors.contains(node) {
                peers.extend(zone.clients.iter().cloned());
                peers.extend(zones.values().flat_map(|z| z.reflectors.iter().cloned()));
            }
        }
        peers.remove(node);
        Some(peers)
    }
}
