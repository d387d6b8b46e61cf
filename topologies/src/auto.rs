//! Automatic reflectors: a full mesh while the cluster is small, and route reflectors that the
//! cluster elects from its nodes when it is not.
//!
//! Off unless the BGPConfiguration `default` carries the annotation [`TOPOLOGY_ANNOTATION`] with
//! the value `auto`; it then stands in for the mesh, and BGPPeers work beside it as they do beside
//! the mesh. The choice is a pure function of the snapshot, so every node computes the same one and
//! no node asks another.
//!
//! * **Zones.** Nodes with one value of the label [`ZONE_LABEL`] are a zone; nodes without the
//!   label are one together. Each zone with members has [`ReflectorTuning::reflectors`] reflectors
//!   and one standby. Clients have sessions with all of them, so the standby is connected before it
//!   is needed, and losing all but one costs no path.
//! * **Spread.** Of the nodes that come next in the order, one in a rack (label [`RACK_LABEL`])
//!   without a reflector of the zone goes first.
//! * **Sticky.** The order is by age (`creationTimestamp`), so a node that joins displaces nobody;
//!   nodes of one age go by a hash of zone and name. A node in preparation for its end leaves with
//!   the label [`REFLECTOR_LABEL`].
//! * **Levels.** With one level all reflectors of the cluster are peers of each other. With two
//!   ([`LEVELS_ANNOTATION`]) a few nodes stand above the zones and reflect between them: zone
//!   reflectors are their clients, and have sessions with them instead of with all reflectors of
//!   other zones. They are elected first, spread over zones, and belong to no zone.
//! * **Back to the mesh.** Below the limit the mesh is back. A cluster that swings around the limit
//!   would re-peer each time; give it a lower [`MESH_LIMIT_ANNOTATION`].
//!
//! Reflectors of one zone share a cluster id (RFC 4456 §7) and are plain peers of each other. Nodes
//! outside the cluster's AS cannot be clients, and nodes with a `routeReflectorClusterID` are the
//! operator's own reflectors: the election leaves both alone, and [`crate::paths`] tells whether
//! somebody is cut off.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use caracal_bgp::{Asn, ClusterId};
use caracal_model::{InsertEach, Node, NodeName, Snapshot};
use sha2::{Digest, Sha256};

/// Annotation of the BGPConfiguration `default` that switches automatic reflection on: `auto`. Any
/// other value, and none, leave the mesh as `nodeToNodeMeshEnabled` says.
pub const TOPOLOGY_ANNOTATION: &str = "caracal.io/topology";

/// Annotation with the number of nodes up to which there is a mesh; 50 when absent.
pub const MESH_LIMIT_ANNOTATION: &str = "caracal.io/topology-mesh-limit";

/// Annotation with the number of reflectors of a zone besides the standby; 2 when absent.
pub const REFLECTORS_ANNOTATION: &str = "caracal.io/topology-reflectors";

/// Annotation with the number of levels of reflectors: 1 (when absent) or 2. A cluster of one zone
/// has one.
pub const LEVELS_ANNOTATION: &str = "caracal.io/topology-levels";

/// Label of a node's zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Label of a node's rack.
pub const RACK_LABEL: &str = "topology.kubernetes.io/rack";

/// Label of a node that is not to be a reflector, with the value `false`.
pub(crate) const REFLECTOR_LABEL: &str = "caracal.io/reflector";

/// Numbers of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReflectorTuning {
    /// Up to so many nodes there is a mesh.
    pub limit: usize,
    /// Reflectors of a zone, and of the top, besides the standby.
    pub reflectors: usize,
    /// Levels of reflectors: 1 or 2.
    pub levels: usize,
}

impl Default for ReflectorTuning {
    fn default() -> Self {
        Self {
            limit: 50,
            reflectors: 2,
            levels: 1,
        }
    }
}

/// Topology in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyChoice {
    /// Not switched on.
    Off,
    /// Few enough nodes: a mesh.
    Mesh,
    /// Sessions by elected reflectors.
    Reflectors(Reflection),
}

/// The reflectors of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reflection {
    /// The zones by name.
    pub zones: BTreeMap<String, Zone>,
    /// Reflectors above the zones in the order of their election, the standby last; none with one
    /// level.
    pub top: Vec<NodeName>,
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
pub fn reflector_tuning(snapshot: &Snapshot) -> Result<Option<ReflectorTuning>, String> {
    let Some(configuration) = snapshot.bgp_default() else {
        return Ok(None);
    };
    let annotations = &configuration.metadata.annotations;
    match annotations.get(TOPOLOGY_ANNOTATION).map(String::as_str) {
        None => return Ok(None),
        Some("auto") => {}
        Some(other) => {
            return Err(format!(
                "annotation {TOPOLOGY_ANNOTATION} {other:?} is not auto"
            ));
        }
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
    let default = ReflectorTuning::default();
    Ok(Some(ReflectorTuning {
        limit: number(MESH_LIMIT_ANNOTATION, default.limit, 1)?,
        reflectors: number(REFLECTORS_ANNOTATION, default.reflectors, 1)?,
        levels: match number(LEVELS_ANNOTATION, default.levels, 1)? {
            levels @ 1..=2 => levels,
            more => {
                return Err(format!(
                    "annotation {LEVELS_ANNOTATION} {more} is neither 1 nor 2"
                ));
            }
        },
    }))
}

/// The choice for a cluster. Annotations that cannot be read leave it off; the plan reports them.
#[must_use]
pub fn choose_topology(snapshot: &Snapshot) -> TopologyChoice {
    match reflector_tuning(snapshot) {
        Ok(Some(tuning)) => elect_reflectors(snapshot, tuning),
        Ok(None) | Err(_) => TopologyChoice::Off,
    }
}

/// The choice with given numbers.
#[must_use]
pub(crate) fn elect_reflectors(snapshot: &Snapshot, tuning: ReflectorTuning) -> TopologyChoice {
    let default = Asn(snapshot.default_asn());
    let mut zones: BTreeMap<&str, Vec<(&NodeName, &Node)>> = BTreeMap::new();
    let mut count = 0;
    for (name, node) in &snapshot.nodes {
        if is_member(node, default) {
            count += 1;
            let zone = label(node, ZONE_LABEL).unwrap_or_default();
            zones.entry(zone).or_default().push((name, node));
        }
    }
    if count <= tuning.limit {
        return TopologyChoice::Mesh;
    }
    let top = if tuning.levels > 1 && zones.len() > 1 {
        let all: Vec<_> = zones.values().flatten().copied().collect();
        ranked("", &all, tuning.reflectors + 1, ZONE_LABEL)
    } else {
        Vec::new()
    };
    for members in zones.values_mut() {
        members.retain(|(name, _)| !top.contains(name));
    }
    let zones = zones.into_iter().map(|(zone, members)| {
        let reflectors = ranked(zone, &members, tuning.reflectors + 1, RACK_LABEL);
        let clients = members
            .iter()
            .map(|(name, _)| (*name).clone())
            .filter(|name| !reflectors.contains(name))
            .insert_each();
        let elected = Zone {
            cluster: Some(cluster_id(&format!("zone/{zone}"))),
            reflectors,
            clients,
        };
        (zone.to_owned(), elected)
    });
    TopologyChoice::Reflectors(Reflection {
        zones: zones.insert_each(),
        top,
    })
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

/// A member in the order of election. The hash is for members of one age, and only made for these.
struct Candidate<'a> {
    leaving: bool,
    avoided: bool,
    /// RFC 3339 in UTC, as Calico writes it, sorts as text; a node without a time is the youngest.
    age: (bool, &'a str),
    digest: OnceCell<[u8; 32]>,
    zone: &'a str,
    name: &'a NodeName,
    /// The value of the label over which reflectors are spread.
    place: Option<&'a str>,
}

impl Candidate<'_> {
    const fn standing(&self) -> (bool, bool) {
        (self.leaving, self.avoided)
    }

    fn digest(&self) -> &[u8; 32] {
        let digest = || Sha256::digest(format!("{}/{}", self.zone, self.name)).into();
        self.digest.get_or_init(digest)
    }

    fn compare(&self, other: &Self) -> Ordering {
        let by_age = (self.standing(), self.age).cmp(&(other.standing(), other.age));
        by_age.then_with(|| self.digest().cmp(other.digest()))
    }
}

/// The first `count` members in the order of election, spread over the values of the label
/// `spread`.
fn ranked(zone: &str, members: &[(&NodeName, &Node)], count: usize, spread: &str) -> Vec<NodeName> {
    let candidates = members.iter().map(|(name, node)| {
        let created = node.metadata.creation_timestamp.as_deref();
        Candidate {
            leaving: node.metadata.deletion_timestamp.is_some(),
            avoided: label(node, REFLECTOR_LABEL) == Some("false"),
            age: (created.is_none(), created.unwrap_or_default()),
            digest: OnceCell::new(),
            zone,
            name,
            place: label(node, spread),
        }
    });
    let mut candidates: Vec<Candidate<'_>> = candidates.collect();
    let mut elected: Vec<NodeName> = Vec::new();
    let mut places = BTreeSet::new();
    while elected.len() < count {
        let Some(standing) = candidates.iter().map(Candidate::standing).min() else {
            break;
        };
        let first = |fits: &dyn Fn(&Candidate<'_>) -> bool| {
            let fitting = candidates.iter().enumerate().filter(|(_, c)| fits(c));
            let first = fitting.min_by(|(_, a), (_, b)| a.compare(b));
            first.map(|(at, _)| at)
        };
        // Another place is only worth a younger node, never one that is leaving or to be avoided.
        let fresh = first(&|candidate| {
            let place = candidate.place;
            candidate.standing() == standing && place.is_some_and(|p| !places.contains(p))
        });
        let Some(next) = fresh.or_else(|| first(&|_| true)) else {
            break;
        };
        let next = candidates.swap_remove(next);
        places.extend(next.place);
        elected.push(next.name.clone());
    }
    elected
}

/// The cluster id of a zone or of the top: in 240.0.0.0/4, where no node has its address.
fn cluster_id(of: &str) -> ClusterId {
    let digest = Sha256::digest(of);
    ClusterId(Ipv4Addr::new(
        0xf0 | (digest[0] & 0x0e),
        digest[1],
        digest[2],
        digest[3],
    ))
}

impl TopologyChoice {
    /// The cluster id that the election gives a node; `None` when it is no reflector.
    #[must_use]
    pub(crate) fn cluster_of(&self, node: &NodeName) -> Option<ClusterId> {
        let Self::Reflectors(elected) = self else {
            return None;
        };
        if elected.top.contains(node) {
            return Some(cluster_id("top"));
        }
        let mut zones = elected.zones.values();
        zones.find(|zone| zone.reflectors.contains(node))?.cluster
    }

    /// The cluster in which `peer` is the client of `node`; `None` when it is not.
    #[must_use]
    pub fn client_of(&self, node: &NodeName, peer: &NodeName) -> Option<ClusterId> {
        let Self::Reflectors(elected) = self else {
            return None;
        };
        let client = match elected.top.contains(node) {
            true => !elected.top.contains(peer),
            false => self.cluster_of(peer).is_none(),
        };
        self.cluster_of(node).filter(|_| client)
    }

    /// The nodes that a node has sessions with, in the order of their names; `None` without
    /// reflectors.
    #[must_use]
    pub(crate) fn peers_of(&self, node: &NodeName) -> Option<BTreeSet<NodeName>> {
        let Self::Reflectors(elected) = self else {
            return None;
        };
        let reflectors = || elected.zones.values().flat_map(|z| z.reflectors.iter());
        let mut peers = BTreeSet::new();
        if elected.top.contains(node) {
            peers.extend(elected.top.iter().chain(reflectors()).cloned());
        }
        for zone in elected.zones.values() {
            if zone.clients.contains(node) {
                peers.extend(zone.reflectors.iter().cloned());
            } else if zone.reflectors.contains(node) {
                peers.extend(zone.clients.iter().cloned());
                peers.extend(zone.reflectors.iter().cloned());
                if elected.top.is_empty() {
                    peers.extend(reflectors().cloned());
                } else {
                    peers.extend(elected.top.iter().cloned());
                }
            }
        }
        peers.remove(node);
        Some(peers)
    }
}
