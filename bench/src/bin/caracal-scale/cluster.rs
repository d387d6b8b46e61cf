//! A cluster as data: nodes in zones with one block each, and the real plan of every node.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, ensure};
use caracal_bgp::SpeakerConfig;
use caracal_model::{AffinityState, BlockAffinity, BlockOwner, Key, NodeName, Prefix, Snapshot};
use caracal_topologies::{
    LEVELS_ANNOTATION, MESH_LIMIT_ANNOTATION, PlanOptions, TOPOLOGY_ANNOTATION, plan,
};
use serde_json::json;

/// Nodes of a zone; a small cluster has four zones.
const ZONE: usize = 100;
const FEW_ZONES: usize = 4;

/// Addresses of nodes start here, blocks there.
const NODES: u32 = u32::from_be_bytes([172, 16, 0, 0]);
const BLOCKS: u32 = u32::from_be_bytes([10, 128, 0, 0]);
const BLOCK_LEN: u8 = 26;

/// Topologies to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// Full mesh: a session between any two nodes.
    Mesh,
    /// Three reflectors for all.
    Flat,
    /// Three reflectors a zone, all reflectors in a mesh.
    Zones,
    /// The same with three reflectors above the zones.
    TwoLevels,
}

impl Shape {
    pub const ALL: [Self; 4] = [Self::Mesh, Self::Flat, Self::Zones, Self::TwoLevels];

    /// Name in tables and plots.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mesh => "mesh",
            Self::Flat => "flat reflectors",
            Self::Zones => "zone reflectors, one level",
            Self::TwoLevels => "zone reflectors, two levels",
        }
    }
}

/// A cluster with its plans.
pub struct PlannedCluster {
    pub shape: Shape,
    /// The plans, in the order of the nodes.
    pub plans: Vec<SpeakerConfig>,
    /// Index of a node by its address.
    pub by_address: BTreeMap<IpAddr, usize>,
}

impl PlannedCluster {
    /// Makes a cluster and plans every node.
    ///
    /// # Errors
    /// When a plan has problems.
    pub fn new(shape: Shape, nodes: usize) -> Result<Self> {
        let snapshot = snapshot(shape, nodes);
        ensure!(snapshot.problems().is_empty(), "{:?}", snapshot.problems());
        let mut plans = Vec::with_capacity(nodes);
        for index in 0..nodes {
            let planned = plan(&snapshot, &name(index), &PlanOptions::default());
            ensure!(planned.problems.is_empty(), "{:?}", planned.problems);
            plans.push(planned.config);
        }
        Ok(Self {
            shape,
            plans,
            by_address: (0..nodes).map(|index| (address(index), index)).collect(),
        })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// True when the node at this index is a route reflector.
    #[must_use]
    pub fn reflects(&self, node: usize) -> bool {
        self.plans[node]
            .peers
            .values()
            .any(|p| p.client_of.is_some())
    }
}

/// The block of a node.
#[must_use]
pub fn block(index: usize) -> Prefix {
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    Prefix::v4(
        Ipv4Addr::from(BLOCKS + (number << (32 - BLOCK_LEN))),
        BLOCK_LEN,
    )
}

/// The node of a block.
#[must_use]
pub fn owner(block: &Prefix) -> Option<usize> {
    let IpAddr::V4(address) = block.address() else {
        return None;
    };
    let offset = u32::from(address).checked_sub(BLOCKS)?;
    usize::try_from(offset >> (32 - BLOCK_LEN)).ok()
}

fn name(index: usize) -> NodeName {
    NodeName::from(format!("n{index:05}"))
}

fn address(index: usize) -> IpAddr {
    let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
    Ipv4Addr::from(NODES + number).into()
}

fn put(snapshot: &mut Snapshot, path: &str, value: &serde_json::Value) {
    snapshot.apply(path, Some(value.to_string().as_bytes()), 1);
}

fn snapshot(shape: Shape, nodes: usize) -> Snapshot {
    let mut all = Snapshot::default();
    let resources = "/calico/resources/v3/projectcalico.org";
    let pool = json!({"metadata": {"name": "p"}, "spec": {"cidr": "10.128.0.0/9", "blockSize": BLOCK_LEN}});
    put(&mut all, &format!("{resources}/ippools/p"), &pool);
    let mut annotations = BTreeMap::new();
    if shape != Shape::Mesh {
        annotations.insert(TOPOLOGY_ANNOTATION, "auto".to_owned());
        annotations.insert(MESH_LIMIT_ANNOTATION, "1".to_owned());
        let levels = if shape == Shape::TwoLevels { 2 } else { 1 };
        annotations.insert(LEVELS_ANNOTATION, levels.to_string());
    }
    let configuration =
        json!({"metadata": {"name": "default", "annotations": annotations}, "spec": {}});
    let path = format!("{resources}/bgpconfigurations/default");
    put(&mut all, &path, &configuration);
    let zones = (nodes / ZONE).max(FEW_ZONES);
    for index in 0..nodes {
        let zone = match shape {
            Shape::Mesh | Shape::Flat => "all".to_owned(),
            Shape::Zones | Shape::TwoLevels => format!("z{:03}", index % zones),
        };
        let name = name(index);
        let created = format!(
            "2026-01-01T{:02}:{:02}:{:02}Z",
            index / 3600,
            index / 60 % 60,
            index % 60
        );
        let node = json!({
            "metadata": {"name": name, "creationTimestamp": created, "labels": {caracal_topologies::ZONE_LABEL: zone}},
            "spec": {"bgp": {"ipv4Address": format!("{}/12", address(index))}},
        });
        put(&mut all, &format!("{resources}/nodes/{name}"), &node);
        let affinity = BlockAffinity::new(AffinityState::Confirmed).to_json();
        let path = Key::Affinity(BlockOwner::Host(name), block(index)).to_path();
        all.apply(&path, Some(&affinity), 1);
    }
    all
}
