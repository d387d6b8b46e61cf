//! IPPool: a range of addresses, how it is cut into blocks, and how its traffic travels.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{Kind, Resource, ResourceSpec, ValueError, is_false, null_default};
use crate::net::{Family, Prefix};

/// An IPPool.
pub type IpPool = Resource<IpPoolSpec>;

/// When traffic of a pool is encapsulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum EncapMode {
    /// Not by this encapsulation.
    #[default]
    Never,
    /// Between all nodes.
    Always,
    /// Only between nodes of different subnets.
    CrossSubnet,
}

impl EncapMode {
    /// Reads Calico's spellings, the resource's and the environment's (`off`, `cross-subnet`).
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "" | "never" | "off" => Some(Self::Never),
            "always" => Some(Self::Always),
            "crosssubnet" | "cross-subnet" => Some(Self::CrossSubnet),
            _ => None,
        }
    }
}

impl fmt::Display for EncapMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Never => "Never",
            Self::Always => "Always",
            Self::CrossSubnet => "CrossSubnet",
        })
    }
}

impl<'de> Deserialize<'de> for EncapMode {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = Option::<String>::deserialize(d)?.unwrap_or_default();
        Self::from_text(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "encapsulation mode {text:?} is not known; use Never, Always or CrossSubnet"
            ))
        })
    }
}

/// Permitted use of a pool's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AllowedUse {
    /// Pods.
    Workload,
    /// Addresses of tunnel devices.
    Tunnel,
    /// Addresses of LoadBalancer services.
    LoadBalancer,
}

/// `spec` of an IPPool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpPoolSpec {
    /// The range, as written. [`IpPoolSpec::prefix`] is the parsed form.
    #[serde(default)]
    pub cidr: String,
    /// When IPIP is used. IPv4 only.
    #[serde(default)]
    pub ipip_mode: EncapMode,
    /// When VXLAN is used.
    #[serde(default)]
    pub vxlan_mode: EncapMode,
    /// Masquerade traffic that leaves for addresses outside all pools.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "is_false"
    )]
    pub nat_outgoing: bool,
    /// Prefix length of a block; 26 (IPv4) and 122 (IPv6) when absent or zero.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "is_zero"
    )]
    pub block_size: u8,
    /// No new addresses from here.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "is_false"
    )]
    pub disabled: bool,
    /// Blocks of this pool are not announced.
    #[serde(
        default,
        rename = "disableBGPExport",
        deserialize_with = "null_default",
        skip_serializing_if = "is_false"
    )]
    pub disable_bgp_export: bool,
    /// Which nodes take blocks from here; empty = all.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub node_selector: String,
    /// Which namespaces get addresses from here; empty = all.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub namespace_selector: String,
    /// Uses; empty means Workload and Tunnel.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub allowed_uses: Vec<AllowedUse>,
    /// `Automatic` (default) or `Manual`.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub assignment_mode: String,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(value: &u8) -> bool {
    *value == 0
}

impl Default for IpPoolSpec {
    fn default() -> Self {
        Self {
            cidr: String::new(),
            ipip_mode: EncapMode::Never,
            vxlan_mode: EncapMode::Never,
            nat_outgoing: false,
            block_size: 0,
            disabled: false,
            disable_bgp_export: false,
            node_selector: String::new(),
            namespace_selector: String::new(),
            allowed_uses: Vec::new(),
            assignment_mode: String::new(),
            extra: Map::new(),
        }
    }
}

/// The prefix length of a block where a pool says nothing.
#[must_use]
pub const fn default_block_len(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 26,
        Family::Ipv6 => 122,
    }
}

impl IpPoolSpec {
    /// The range. A pool in a [`crate::Snapshot`] was validated, so this is always its CIDR.
    #[must_use]
    pub fn prefix(&self) -> Prefix {
        Prefix::parse_strict(&self.cidr).unwrap_or_else(|_| Prefix::v4([0, 0, 0, 0].into(), 32))
    }

    /// The prefix length of a block of this pool.
    #[must_use]
    pub fn block_len(&self) -> u8 {
        match self.block_size {
            0 => default_block_len(self.prefix().family()),
            len => len,
        }
    }

    /// True when addresses may be used like this.
    #[must_use]
    pub fn allows(&self, usage: AllowedUse) -> bool {
        if self.allowed_uses.is_empty() {
            return matches!(usage, AllowedUse::Workload | AllowedUse::Tunnel);
        }
        self.allowed_uses.contains(&usage)
    }

    /// True when this pool is for LoadBalancer services alone; it makes no routes.
    #[must_use]
    pub(crate) fn is_load_balancer_only(&self) -> bool {
        self.allowed_uses == [AllowedUse::LoadBalancer]
    }

    /// False when the pool is for explicit requests only.
    #[must_use]
    pub fn is_automatic(&self) -> bool {
        self.assignment_mode.is_empty() || self.assignment_mode == "Automatic"
    }
}

impl ResourceSpec for IpPoolSpec {
    const KIND: Kind = Kind::IpPool;

    fn validate(&self) -> Result<(), ValueError> {
        let no = |text: String| Err(ValueError(text));
        let prefix =
            Prefix::parse_strict(&self.cidr).map_err(|e| ValueError(format!("spec.cidr: {e}")))?;
        let family = prefix.family();
        if self.ipip_mode != EncapMode::Never && self.vxlan_mode != EncapMode::Never {
            return no(
                "spec.ipipMode and spec.vxlanMode are both set; one of them must be Never".into(),
            );
        }
        if family == Family::Ipv6 && self.ipip_mode != EncapMode::Never {
            return no(format!(
                "spec.ipipMode {}: IPIP carries IPv4 only",
                self.ipip_mode
            ));
        }
        let range = if family == Family::Ipv4 {
            20..=32
        } else {
            116..=128
        };
        let len = self.block_len();
        if !range.contains(&len) {
            let (low, high) = (range.start(), range.end());
            return no(format!(
                "spec.blockSize {len}: an {family} block is /{low} to /{high}"
            ));
        }
        if len < prefix.len() {
            return no(format!(
                "spec.blockSize {len}: a block of /{len} is larger than the pool {prefix}"
            ));
        }
        for (field, text) in [
            ("nodeSelector", &self.node_selector),
            ("namespaceSelector", &self.namespace_selector),
        ] {
            if let Err(e) = crate::selector::Selector::parse(text) {
                return no(format!("spec.{field}: {e}"));
            }
        }
        Ok(())
    }
}
