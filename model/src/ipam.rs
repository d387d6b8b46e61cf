//! IPAM values as Calico stores them: block, affinity, handle, configuration. Data only; what may
//! be done with them is the `ipam` crate's.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::names::{HandleId, NodeName};
use crate::net::Prefix;
use crate::resource::{ValueError, null_default};

/// Holder of a block: `host:NODE` or `virtual:NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockOwner {
    /// A node, by its name in Calico.
    Host(NodeName),
    /// Something that is no node; Calico uses `load-balancer`.
    Virtual(String),
}

impl BlockOwner {
    /// Reads `host:NODE` or `virtual:NAME`.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("host", name) if !name.is_empty() => Some(Self::Host(name.into())),
            ("virtual", name) if !name.is_empty() => Some(Self::Virtual(name.to_owned())),
            _ => None,
        }
    }

    /// The node, when it is one.
    #[must_use]
    pub const fn node(&self) -> Option<&NodeName> {
        match self {
            Self::Host(name) => Some(name),
            Self::Virtual(_) => None,
        }
    }
}

impl fmt::Display for BlockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => write!(f, "host:{name}"),
            Self::Virtual(name) => write!(f, "virtual:{name}"),
        }
    }
}

/// An allocation block. Address of ordinal `n` = start of `cidr` + `n`; all ordinals are usable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// All addresses of the block; 2^n of them.
    pub cidr: Prefix,
    /// `host:NODE`, `virtual:NAME` or null.
    #[serde(default)]
    pub affinity: Option<String>,
    /// RFC 3339 time of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_claim_time: Option<String>,
    /// By ordinal: null or an index into `attributes`.
    #[serde(default, deserialize_with = "null_default")]
    pub allocations: Vec<Option<usize>>,
    /// Free ordinals, first in first out: taken from the head, freed to the tail.
    #[serde(default, deserialize_with = "null_default")]
    pub unallocated: Vec<usize>,
    /// Holders of addresses, shared by allocations with equal content.
    #[serde(default, deserialize_with = "null_default")]
    pub attributes: Vec<AllocationAttribute>,
    /// Grows with each change; starts at the creation time in nanoseconds, hence above 2^53.
    #[serde(default, rename = "sequenceNumber", deserialize_with = "null_default")]
    pub sequence_number: u64,
    /// By ordinal as text: the sequence number at its allocation.
    #[serde(
        default,
        rename = "sequenceNumberForAllocation",
        deserialize_with = "null_default"
    )]
    pub sequence_number_for_allocation: BTreeMap<String, u64>,
    /// Marked for deletion.
    #[serde(default, deserialize_with = "null_default")]
    pub deleted: bool,
    /// Ours: a range of a Node's `podCIDRs`, whose addresses `host-local` gives out. It has no
    /// ordinals, and is never stored.
    #[serde(
        default,
        rename = "podCIDR",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub is_pod_cidr: bool,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Attribute of an address that our CNI plugin made an interface for: the interface's name on the
/// host. Only addresses that name it are collected without being asked.
pub const INTERFACE_ATTRIBUTE: &str = "caracal-interface";

/// Attribute beside [`INTERFACE_ATTRIBUTE`]: `NAMESPACE/NAME` of the WorkloadEndpoint.
pub const ENDPOINT_ATTRIBUTE: &str = "caracal-endpoint";

/// Attribute of an address that `caracal-ipam` gave to another main plugin: of its interface
/// nothing is known here, and it has no WorkloadEndpoint.
pub const DELEGATED_ATTRIBUTE: &str = "caracal-delegated";

/// Holder of an address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocationAttribute {
    /// The handle through which the address was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle_id: Option<String>,
    /// `node`, `pod`, `namespace`, `type`, `timestamp`, …
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub secondary: BTreeMap<String, String>,
    /// Set while a released address cools down (RFC 3339).
    #[serde(
        default,
        rename = "releasedAt",
        skip_serializing_if = "Option::is_none"
    )]
    pub released_at: Option<String>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl AllocationAttribute {
    /// The node that uses the address; an allocation without one gets no route.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.secondary.get("node").map(String::as_str)
    }

    /// `ipipTunnelAddress`, `vxlanTunnelAddress`, … for addresses of tunnel devices.
    #[must_use]
    pub fn usage(&self) -> Option<&str> {
        self.secondary.get("type").map(String::as_str)
    }
}

impl Block {
    /// A new, empty block. `sequence_number` should be the creation time in nanoseconds.
    #[must_use]
    pub fn new(cidr: Prefix, owner: Option<&BlockOwner>, sequence_number: u64) -> Self {
        let size = usize::try_from(cidr.size())
            .unwrap_or(usize::MAX)
            .min(1 << 16);
        Self {
            cidr,
            affinity: owner.map(ToString::to_string),
            affinity_claim_time: None,
            allocations: vec![None; size],
            unallocated: (0..size).collect(),
            attributes: Vec::new(),
            sequence_number,
            sequence_number_for_allocation: BTreeMap::new(),
            deleted: false,
            is_pod_cidr: false,
            extra: Map::new(),
        }
    }

    /// Parses and checks a value as it stands in etcd.
    ///
    /// # Errors
    /// [`ValueError`] names what is out of range.
    pub fn from_json(value: &[u8]) -> Result<Self, ValueError> {
        let block: Self = serde_json::from_slice(value).map_err(|e| ValueError(e.to_string()))?;
        let size = block.allocations.len();
        let without = block.is_pod_cidr && size == 0;
        if !without && u128::try_from(size).ok() != Some(block.cidr.size()) {
            return Err(ValueError(format!(
                "allocations has {size} entries; {} has {} addresses",
                block.cidr,
                block.cidr.size()
            )));
        }
        let count = block.attributes.len();
        if let Some(index) = block.allocations.iter().flatten().find(|i| **i >= count) {
            return Err(ValueError(format!(
                "allocations refers to attribute {index} of {count}"
            )));
        }
        if let Some(ordinal) = block.unallocated.iter().find(|o| **o >= size) {
            return Err(ValueError(format!(
                "unallocated holds ordinal {ordinal} of {size}"
            )));
        }
        if let Some(text) = &block.affinity
            && BlockOwner::from_text(text).is_none()
        {
            return Err(ValueError(format!(
                "affinity {text:?} is not host:NODE or virtual:NAME"
            )));
        }
        Ok(block)
    }

    /// The value to store.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a block is always valid JSON")
    }

    /// The holder.
    #[must_use]
    pub fn owner(&self) -> Option<BlockOwner> {
        self.affinity.as_deref().and_then(BlockOwner::from_text)
    }

    /// The address of an ordinal.
    #[must_use]
    pub fn address(&self, ordinal: usize) -> Option<IpAddr> {
        self.cidr.nth(u128::try_from(ordinal).ok()?)
    }

    /// The ordinal of an address inside the block.
    #[must_use]
    pub fn ordinal(&self, address: IpAddr) -> Option<usize> {
        usize::try_from(self.cidr.offset(address)?).ok()
    }

    /// Allocated addresses with who holds them, cooling ones included.
    pub fn allocated(&self) -> impl Iterator<Item = (usize, IpAddr, &AllocationAttribute)> {
        self.allocations
            .iter()
            .enumerate()
            .filter_map(|(ordinal, index)| {
                Some((
                    ordinal,
                    self.address(ordinal)?,
                    self.attributes.get((*index)?)?,
                ))
            })
    }

    /// Number of allocated addresses, cooling ones included.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.allocations.iter().flatten().count()
    }
}

/// State of an affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AffinityState {
    /// Being claimed; not announced.
    Pending,
    /// Claimed.
    Confirmed,
    /// Being released; still announced by Calico's nodes.
    PendingDeletion,
}

/// Value of an affinity key. An empty value or state is an old, implicitly confirmed affinity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockAffinity {
    /// Whether blocks may be used: only while confirmed.
    #[serde(default = "confirmed", deserialize_with = "empty_is_confirmed")]
    pub state: AffinityState,
    /// Marked for deletion.
    #[serde(default, deserialize_with = "null_default")]
    pub deleted: bool,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

const fn confirmed() -> AffinityState {
    AffinityState::Confirmed
}

fn empty_is_confirmed<'de, D: serde::Deserializer<'de>>(d: D) -> Result<AffinityState, D::Error> {
    match Option::<String>::deserialize(d)?.as_deref() {
        None | Some("" | "confirmed") => Ok(AffinityState::Confirmed),
        Some("pending") => Ok(AffinityState::Pending),
        Some("pendingDeletion") => Ok(AffinityState::PendingDeletion),
        Some(text) => Err(serde::de::Error::custom(format!(
            "affinity state {text:?} is not pending, confirmed or pendingDeletion"
        ))),
    }
}

impl BlockAffinity {
    /// An affinity in a state.
    #[must_use]
    pub fn new(state: AffinityState) -> Self {
        Self {
            state,
            deleted: false,
            extra: Map::new(),
        }
    }

    /// Parses a value as it stands in etcd.
    ///
    /// # Errors
    /// [`ValueError`] with the reason.
    pub fn from_json(value: &[u8]) -> Result<Self, ValueError> {
        if value.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::new(AffinityState::Confirmed));
        }
        serde_json::from_slice(value).map_err(|e| ValueError(e.to_string()))
    }

    /// The value to store.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an affinity is always valid JSON")
    }
}

/// Value of a handle key: how many addresses are held through it, by block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IpamHandle {
    /// Addresses by block CIDR.
    #[serde(default, deserialize_with = "null_default")]
    pub block: BTreeMap<Prefix, u64>,
    /// Marked for deletion.
    #[serde(default, deserialize_with = "null_default")]
    pub deleted: bool,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl IpamHandle {
    /// Parses a value as it stands in etcd.
    ///
    /// # Errors
    /// [`ValueError`] with the reason.
    pub fn from_json(value: &[u8]) -> Result<Self, ValueError> {
        serde_json::from_slice(value).map_err(|e| ValueError(e.to_string()))
    }

    /// The value to store.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a handle is always valid JSON")
    }
}

/// `/calico/ipam/v2/config`. In an existing object an absent `auto_allocate_blocks` is false; a
/// missing object is [`IpamConfig::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IpamConfig {
    /// Never take addresses from other hosts' blocks.
    #[serde(default, deserialize_with = "null_default")]
    pub strict_affinity: bool,
    /// Claim new blocks when needed.
    #[serde(default, deserialize_with = "null_default")]
    pub auto_allocate_blocks: bool,
    /// Most blocks of a host and family; zero = 20.
    #[serde(
        default,
        rename = "maxBlocksPerHost",
        deserialize_with = "null_default",
        skip_serializing_if = "is_zero"
    )]
    pub max_blocks_per_host: u32,
    /// `Enabled` or `Disabled`: whether a KubeVirt virtual machine keeps its addresses when its pod
    /// goes. Kept and shown; only Calico's CNI plugin knows virtual machines.
    #[serde(
        default,
        rename = "kubeVirtVMAddressPersistence",
        skip_serializing_if = "Option::is_none"
    )]
    pub kube_virt_vm_address_persistence: Option<String>,
    /// Seconds for which a released address is not handed out again.
    #[serde(
        default,
        rename = "ipCooldownSeconds",
        deserialize_with = "null_default",
        skip_serializing_if = "is_zero"
    )]
    pub ip_cooldown_seconds: u32,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl Default for IpamConfig {
    fn default() -> Self {
        Self {
            strict_affinity: false,
            auto_allocate_blocks: true,
            max_blocks_per_host: 0,
            kube_virt_vm_address_persistence: None,
            ip_cooldown_seconds: 0,
            extra: Map::new(),
        }
    }
}

impl IpamConfig {
    /// Parses a value as it stands in etcd.
    ///
    /// # Errors
    /// [`ValueError`] with the reason.
    pub fn from_json(value: &[u8]) -> Result<Self, ValueError> {
        serde_json::from_slice(value).map_err(|e| ValueError(e.to_string()))
    }

    /// The value to store.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the configuration is always valid JSON")
    }
}

/// The handle under which Calico keeps four addresses of each block of a Windows node from
/// everybody. There is no key of this handle.
pub const WINDOWS_RESERVED_HANDLE: &str = "windows-reserved-ipam-handle";

/// Handle of a node's IPIP tunnel address.
#[must_use]
pub fn ipip_handle(node: &NodeName) -> HandleId {
    HandleId::from(format!("ipip-tunnel-addr-{node}"))
}

/// Handle of a node's VXLAN tunnel address, IPv4.
#[must_use]
pub fn vxlan_handle(node: &NodeName) -> HandleId {
    HandleId::from(format!("vxlan-tunnel-addr-{node}"))
}

/// Handle of a node's VXLAN tunnel address, IPv6.
#[must_use]
pub fn vxlan_v6_handle(node: &NodeName) -> HandleId {
    HandleId::from(format!("vxlan-v6-tunnel-addr-{node}"))
}

/// Handle of a node's WireGuard address, IPv4.
#[must_use]
pub fn wireguard_handle(node: &NodeName) -> HandleId {
    HandleId::from(format!("wireguard-tunnel-addr-{node}"))
}

/// Handle of a node's WireGuard address, IPv6.
#[must_use]
pub fn wireguard_v6_handle(node: &NodeName) -> HandleId {
    HandleId::from(format!("wireguard-v6-tunnel-addr-{node}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BLOCK: &str = r#"{"cidr":"10.244.3.64/30","affinity":"host:node-a","affinity_claim_time":"2026-01-05T10:11:12Z",
      "allocations":[0,null,1,null],"unallocated":[3,1],
      "attributes":[{"handle_id":"ipip-tunnel-addr-node-a","secondary":{"node":"node-a","type":"ipipTunnelAddress"}},
       {"handle_id":"k8s-pod-network.8f2c41","secondary":{"node":"node-a","pod":"web-0"},"alternateOwnerAttrs":{"a":"b"}}],
      "sequenceNumber":1767607872000000003,
      "sequenceNumberForAllocation":{"0":1767607872000000001,"2":18446744073709551615},"deleted":false,"new":[1]}"#;

    #[test]
    fn model_1_a_block_survives_a_round_trip() {
        let block = Block::from_json(BLOCK.as_bytes()).unwrap();
        let before: Value = serde_json::from_str(BLOCK).unwrap();
        let after: Value = serde_json::from_slice(&block.to_json()).unwrap();
        assert_eq!(before, after);
        assert_eq!(block.sequence_number, 1_767_607_872_000_000_003);
        let held: Vec<_> = block
            .allocated()
            .map(|(o, a, t)| (o, a.to_string(), t.node()))
            .collect();
        assert_eq!(
            held,
            [
                (0, "10.244.3.64".into(), Some("node-a")),
                (2, "10.244.3.66".into(), Some("node-a"))
            ]
        );
    }

    #[test]
    fn null_and_missing_fields_are_accepted() {
        let text = r#"{"cidr":"10.0.0.0/30","affinity":null,"allocations":[null,null,null,null],
            "unallocated":[0,1,2,3],"attributes":null}"#;
        let block = Block::from_json(text.as_bytes()).unwrap();
        assert!(block.attributes.is_empty());
        assert_eq!(block.owner(), None);
        for text in [
            "",
            " ",
            r#"{"state":""}"#,
            r#"{"state":"confirmed","deleted":false}"#,
            "{}",
        ] {
            let affinity = BlockAffinity::from_json(text.as_bytes()).unwrap();
            assert_eq!(affinity.state, AffinityState::Confirmed, "{text:?}");
        }
        let affinity = BlockAffinity::from_json(br#"{"state":"pendingDeletion"}"#).unwrap();
        assert_eq!(affinity.state, AffinityState::PendingDeletion);
        assert_eq!(
            affinity.to_json(),
            br#"{"state":"pendingDeletion","deleted":false}"#
        );
    }

    #[test]
    fn a_broken_block_says_what_is_broken() {
        let error = |text: &str| Block::from_json(text.as_bytes()).unwrap_err().0;
        assert_eq!(
            error(r#"{"cidr":"10.0.0.0/30","allocations":[]}"#),
            "allocations has 0 entries; 10.0.0.0/30 has 4 addresses"
        );
        assert_eq!(
            error(r#"{"cidr":"10.0.0.0/31","allocations":[3,null],"attributes":[]}"#),
            "allocations refers to attribute 3 of 0"
        );
        assert_eq!(
            error(r#"{"cidr":"10.0.0.0/31","allocations":[null,null],"affinity":"node-a"}"#),
            "affinity \"node-a\" is not host:NODE or virtual:NAME"
        );
    }

    #[test]
    fn an_existing_config_without_auto_allocate_reads_false() {
        assert!(
            !IpamConfig::from_json(br#"{"strict_affinity":true}"#)
                .unwrap()
                .auto_allocate_blocks
        );
        assert!(IpamConfig::default().auto_allocate_blocks);
        assert_eq!(
            IpamConfig::default().to_json(),
            br#"{"strict_affinity":false,"auto_allocate_blocks":true}"#
        );
    }

    #[test]
    fn handles_map_blocks_to_counts() {
        let handle =
            IpamHandle::from_json(br#"{"block":{"10.244.3.64/30":1},"deleted":false}"#).unwrap();
        assert_eq!(
            handle.block.get(&"10.244.3.64/30".parse().unwrap()),
            Some(&1)
        );
        assert_eq!(
            handle.to_json(),
            br#"{"block":{"10.244.3.64/30":1},"deleted":false}"#
        );
    }
}
