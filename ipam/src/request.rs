//! Requests to IPAM and their results.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{
    AllocationAttribute, AllowedUse, BlockOwner, Family, HandleId, NodeName, PoolName, Prefix,
};

use caracal_model::Timestamp;

/// Addresses for one workload or device.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignRequest {
    /// The node that will use the addresses.
    pub node: NodeName,
    /// The handle through which they are released again.
    pub handle: HandleId,
    /// How many IPv4 addresses.
    pub num_v4: usize,
    /// How many IPv6 addresses.
    pub num_v6: usize,
    /// `pod`, `namespace`, `type`, …; `node` is added, and for workloads `timestamp`.
    pub attributes: BTreeMap<String, String>,
    /// Use of the addresses.
    pub usage: AllowedUse,
    /// IPv4 pools by name or CIDR; empty = all that select node and namespace.
    pub pools_v4: Vec<String>,
    /// IPv6 pools by name or CIDR.
    pub pools_v6: Vec<String>,
    /// Labels of the pod's namespace. `None`: when the attributes name a namespace, those in its
    /// profile (`namespace.rs`); else there is none.
    pub namespace_labels: Option<BTreeMap<String, String>>,
    /// Most blocks of the node and family; the smaller of this and the configured one counts.
    pub max_blocks: Option<u32>,
    /// Blocks that probably have room, as the caller remembers from last time. They are read
    /// together with everything else and, when they are this node's and not full, save a round
    /// trip. May be wrong.
    pub block_hints: Vec<Prefix>,
    /// Addresses that are in use although their blocks do not say so: they are passed over as
    /// reserved ones are.
    pub in_use: BTreeSet<IpAddr>,
}

impl AssignRequest {
    /// One IPv4 address for a workload.
    #[must_use]
    pub fn workload(node: NodeName, handle: HandleId) -> Self {
        Self {
            node,
            handle,
            num_v4: 1,
            num_v6: 0,
            attributes: BTreeMap::new(),
            usage: AllowedUse::Workload,
            pools_v4: Vec::new(),
            pools_v6: Vec::new(),
            namespace_labels: None,
            max_blocks: None,
            block_hints: Vec::new(),
            in_use: BTreeSet::new(),
        }
    }

    /// How many addresses of a family.
    #[must_use]
    pub const fn count(&self, family: Family) -> usize {
        match family {
            Family::Ipv4 => self.num_v4,
            Family::Ipv6 => self.num_v6,
        }
    }

    /// The pools asked for, of a family.
    #[must_use]
    pub fn pools(&self, family: Family) -> &[String] {
        match family {
            Family::Ipv4 => &self.pools_v4,
            Family::Ipv6 => &self.pools_v6,
        }
    }

    /// Owner of the blocks that this request claims: the node, or Calico's one owner of load
    /// balancer blocks.
    #[must_use]
    pub fn owner(&self) -> BlockOwner {
        owner(&self.node, self.usage)
    }

    /// The namespace whose labels are to be read.
    pub(crate) fn namespace(&self) -> Option<&str> {
        let wanted = self.usage == AllowedUse::Workload && self.namespace_labels.is_none();
        let namespace = self.attributes.get("namespace").filter(|_| wanted);
        namespace.map(String::as_str)
    }

    pub(crate) fn attribute(&self, now: Timestamp) -> AllocationAttribute {
        attribute(&self.node, &self.handle, &self.attributes, self.usage, now)
    }
}

fn owner(node: &NodeName, usage: AllowedUse) -> BlockOwner {
    match usage {
        AllowedUse::LoadBalancer => BlockOwner::Virtual("load-balancer".to_owned()),
        AllowedUse::Workload | AllowedUse::Tunnel => BlockOwner::Host(node.clone()),
    }
}

/// The attribute of an allocation: the caller's, the node (IPAM-6), and the time for workloads.
pub(crate) fn attribute(
    node: &NodeName,
    handle: &HandleId,
    given: &BTreeMap<String, String>,
    usage: AllowedUse,
    now: Timestamp,
) -> AllocationAttribute {
    let mut secondary = given.clone();
    if usage != AllowedUse::LoadBalancer {
        secondary.insert("node".to_owned(), node.to_string());
    }
    if usage == AllowedUse::Workload {
        secondary
            .entry("timestamp".to_owned())
            .or_insert_with(|| now.go_utc());
    }
    AllocationAttribute {
        handle_id: Some(handle.to_string()),
        secondary,
        ..AllocationAttribute::default()
    }
}

/// One explicit address.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignIpRequest {
    /// Address to take, inside a pool.
    pub address: IpAddr,
    /// The node that will use it.
    pub node: NodeName,
    /// The handle through which it is released again.
    pub handle: HandleId,
    /// `pod`, `namespace`, …; `node` and `timestamp` are added.
    pub attributes: BTreeMap<String, String>,
    /// Use of the addresses.
    pub usage: AllowedUse,
}

impl AssignIpRequest {
    /// Owner that claims the block when nobody has it.
    #[must_use]
    pub fn owner(&self) -> BlockOwner {
        owner(&self.node, self.usage)
    }
}

/// An address that is now held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Address that was taken.
    pub address: IpAddr,
    /// Its block. Calico's IPAM result carries this prefix length.
    pub block: Prefix,
    /// Pool whose range covers it.
    pub pool: PoolName,
    /// True when the block belongs to another host.
    pub borrowed: bool,
    /// The allocation's sequence number, for a release that must not hit a later one (IPAM-8).
    pub sequence: u64,
}

/// The answer to an [`AssignRequest`]: exactly as many as asked for (IPAM-11).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// IPv4.
    pub v4: Vec<Assignment>,
    /// IPv6.
    pub v6: Vec<Assignment>,
    /// The etcd revision at which they were taken.
    pub revision: i64,
}

impl Assigned {
    /// All, IPv4 first.
    pub fn all(&self) -> impl Iterator<Item = &Assignment> {
        self.v4.iter().chain(&self.v6)
    }
}

/// An address to release, with what must be true of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseTarget {
    /// Address to release.
    pub address: IpAddr,
    /// It must be held through this handle.
    pub handle: Option<HandleId>,
    /// It must be this very allocation.
    pub sequence: Option<u64>,
}

impl ReleaseTarget {
    /// An address, whoever holds it.
    #[must_use]
    pub const fn any(address: IpAddr) -> Self {
        Self {
            address,
            handle: None,
            sequence: None,
        }
    }
}

/// Result of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// These were held and are not any more.
    pub addresses: Vec<IpAddr>,
    /// These were not held.
    pub unknown: Vec<IpAddr>,
}
