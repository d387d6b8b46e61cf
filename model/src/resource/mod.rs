//! Calico's v3 resources: `kind`, `apiVersion`, `metadata`, `spec`, and whatever else a value
//! holds.
//!
//! Fields that this crate does not know survive a read-modify-write (MODEL-1): every level has an
//! `extra` map. Go writes `null` for empty lists and maps, so `null` is read as the default
//! everywhere.

mod bgp;
mod felix;
pub(crate) mod fields;
mod ip_pool;
mod node;
mod workload;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub use bgp::{
    AddCommunity, AsNumber, BgpConfiguration, BgpConfigurationSpec, BgpFilter, BgpFilterOperation,
    BgpFilterRule, BgpFilterSpec, BgpPeer, BgpPeerSpec, CidrEntry, CommunityMatch, NamedCommunity,
    PasswordRef, PrefixAdvertisement, PrefixLength, PrependAsPath, SecretKeyRef, SetPriority,
};
pub use felix::{FelixConfiguration, FelixConfigurationSpec};
pub use fields::{FELIX_FIELDS, FieldEffect, FieldEntry, FieldNote};
pub use ip_pool::{AllowedUse, EncapMode, IpPool, IpPoolSpec, default_block_len};
pub use node::{
    Mac, Node, NodeAddress, NodeBgp, NodeSpec, OrchRef, format_mac, parse_mac, vxlan_mac,
};
pub(crate) use workload::push_endpoint_name;
pub use workload::{
    ALIAS_PREFIX, HOST_END_MAC, WorkloadEndpoint, WorkloadEndpointSpec, container_interface,
    endpoint_name, pod_interface,
};

/// `apiVersion` of every resource in etcd.
pub const API_VERSION: &str = "projectcalico.org/v3";

/// A resource with a typed spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource<S> {
    /// `IPPool`, `Node`, …
    #[serde(default)]
    pub kind: String,
    /// API group and version, always [`API_VERSION`].
    #[serde(default)]
    pub api_version: String,
    /// Name, labels and the rest.
    pub metadata: Metadata,
    /// The specification. Absent or null reads as the default.
    #[serde(
        default = "S::default",
        deserialize_with = "null_default",
        bound(deserialize = "S: DeserializeOwned + Default")
    )]
    pub spec: S,
    /// The status, kept as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl<S: ResourceSpec> Resource<S> {
    /// A new resource of this kind.
    #[must_use]
    pub fn new(name: &str, spec: S) -> Self {
        Self {
            kind: S::KIND.as_str().to_owned(),
            api_version: API_VERSION.to_owned(),
            metadata: Metadata {
                name: name.to_owned(),
                ..Metadata::default()
            },
            spec,
            status: None,
            extra: Map::new(),
        }
    }

    /// Parses and validates a value as it stands in etcd.
    ///
    /// # Errors
    /// [`ValueError`] says what is wrong with which field.
    pub fn from_json(value: &[u8]) -> Result<Self, ValueError> {
        let resource: Self =
            serde_json::from_slice(value).map_err(|e| ValueError(e.to_string()))?;
        resource.spec.validate()?;
        Ok(resource)
    }
}

impl<S: Serialize> Resource<S> {
    /// The value to store. `metadata.resourceVersion` is dropped, as Calico does.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut value = serde_json::to_value(self).expect("a resource is always valid JSON");
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        serde_json::to_vec(&value).expect("a JSON value always serialises")
    }
}

/// A resource's spec: its kind and its rules.
pub trait ResourceSpec: Serialize + DeserializeOwned + Default {
    /// `kind` of resources with this spec.
    const KIND: Kind;

    /// Checks what the types cannot say.
    ///
    /// # Errors
    /// [`ValueError`] with the field and the reason.
    fn validate(&self) -> Result<(), ValueError> {
        Ok(())
    }
}

/// Why a value is refused: one sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(pub String);

/// `metadata` of a resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Unique within the kind, and within the namespace where there is one.
    #[serde(default)]
    pub name: String,
    /// The namespace of a namespaced kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Random UUID set by the creator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// RFC 3339; a zero time is `null`.
    #[serde(default)]
    pub creation_timestamp: Option<String>,
    /// Labels, which selectors look at.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    /// Texts by key, which selectors do not look at.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
    /// Set when a deletion is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The kinds of resource that Caracal reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the variants are Calico's names")]
pub enum Kind {
    Node,
    IpPool,
    IpReservation,
    BgpConfiguration,
    BgpPeer,
    BgpFilter,
    FelixConfiguration,
    WorkloadEndpoint,
    ClusterInformation,
    IpamConfiguration,
    Profile,
    Tier,
    HostEndpoint,
    KubeControllersConfiguration,
    CalicoNodeStatus,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 15] = [
        Self::Node,
        Self::IpPool,
        Self::IpReservation,
        Self::BgpConfiguration,
        Self::BgpPeer,
        Self::BgpFilter,
        Self::FelixConfiguration,
        Self::WorkloadEndpoint,
        Self::ClusterInformation,
        Self::IpamConfiguration,
        Self::Profile,
        Self::Tier,
        Self::HostEndpoint,
        Self::KubeControllersConfiguration,
        Self::CalicoNodeStatus,
    ];

    /// `kind` in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::IpPool => "IPPool",
            Self::IpReservation => "IPReservation",
            Self::BgpConfiguration => "BGPConfiguration",
            Self::BgpPeer => "BGPPeer",
            Self::BgpFilter => "BGPFilter",
            Self::FelixConfiguration => "FelixConfiguration",
            Self::WorkloadEndpoint => "WorkloadEndpoint",
            Self::ClusterInformation => "ClusterInformation",
            Self::IpamConfiguration => "IPAMConfiguration",
            Self::Profile => "Profile",
            Self::Tier => "Tier",
            Self::HostEndpoint => "HostEndpoint",
            Self::KubeControllersConfiguration => "KubeControllersConfiguration",
            Self::CalicoNodeStatus => "CalicoNodeStatus",
        }
    }

    /// The plural in etcd keys.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Node => "nodes",
            Self::IpPool => "ippools",
            Self::IpReservation => "ipreservations",
            Self::BgpConfiguration => "bgpconfigurations",
            Self::BgpPeer => "bgppeers",
            Self::BgpFilter => "bgpfilters",
            Self::FelixConfiguration => "felixconfigurations",
            Self::WorkloadEndpoint => "workloadendpoints",
            Self::ClusterInformation => "clusterinformations",
            Self::IpamConfiguration => "ipamconfigurations",
            Self::Profile => "profiles",
            Self::Tier => "tiers",
            Self::HostEndpoint => "hostendpoints",
            Self::KubeControllersConfiguration => "kubecontrollersconfigurations",
            Self::CalicoNodeStatus => "caliconodestatuses",
        }
    }

    /// True for kinds whose content nothing of Caracal reads: other programs follow them.
    #[must_use]
    pub const fn is_of_others(self) -> bool {
        matches!(
            self,
            Self::Profile
                | Self::Tier
                | Self::HostEndpoint
                | Self::KubeControllersConfiguration
                | Self::CalicoNodeStatus
        )
    }

    /// True when keys have a namespace segment.
    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        matches!(self, Self::WorkloadEndpoint)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// `spec` of an IPReservation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpReservationSpec {
    /// Addresses that are not handed out from now on.
    #[serde(default, rename = "reservedCIDRs", deserialize_with = "null_default")]
    pub reserved_cidrs: Vec<crate::net::Prefix>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl ResourceSpec for IpReservationSpec {
    const KIND: Kind = Kind::IpReservation;
}

/// An IPReservation.
pub type IpReservation = Resource<IpReservationSpec>;

/// Reads `null` as the default: Go writes it for empty lists and maps.
pub(crate) fn null_default<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// True for `false`, to leave out what Go leaves out.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub(crate) const fn is_false(value: &bool) -> bool {
    !*value
}
