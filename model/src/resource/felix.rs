//! FelixConfiguration: the keys that concern routing.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Kind, Resource, ResourceSpec};

/// A FelixConfiguration; `default` for the cluster, `node.NAME` for one node.
pub type FelixConfiguration = Resource<FelixConfigurationSpec>;

/// `spec` of a FelixConfiguration. Absent = Calico's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FelixConfigurationSpec {
    /// Prefix of workload interfaces, `cali`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_prefix: Option<String>,
    /// VXLAN network identifier, 4096.
    #[serde(default, rename = "vxlanVNI", skip_serializing_if = "Option::is_none")]
    pub vxlan_vni: Option<u32>,
    /// VXLAN UDP port, 4789.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vxlan_port: Option<u16>,
    /// MTU of `tunl0`; zero = automatic.
    #[serde(default, rename = "ipipMTU", skip_serializing_if = "Option::is_none")]
    pub ipip_mtu: Option<u32>,
    /// MTU of `vxlan.calico`; zero = automatic.
    #[serde(default, rename = "vxlanMTU", skip_serializing_if = "Option::is_none")]
    pub vxlan_mtu: Option<u32>,
    /// Component that programs routes to other nodes (Calico's values).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_cluster_routes: Option<String>,
    /// `IPPoolsOnly` or `IPPoolsAndHostIPs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat_outgoing_exclusions: Option<String>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl ResourceSpec for FelixConfigurationSpec {
    const KIND: Kind = Kind::FelixConfiguration;
}
