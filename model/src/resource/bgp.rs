//! BGPConfiguration, BGPPeer and BGPFilter.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{Kind, Resource, ResourceSpec, ValueError, null_default};
use crate::net::Prefix;
use crate::selector::Selector;

/// A BGPConfiguration; `default` for the cluster, `node.NAME` for one node.
pub type BgpConfiguration = Resource<BgpConfigurationSpec>;
/// A BGPPeer.
pub type BgpPeer = Resource<BgpPeerSpec>;
/// A BGPFilter.
pub type BgpFilter = Resource<BgpFilterSpec>;

/// An AS number in a resource: written as a number, read as a number, a decimal text or `HIGH.LOW`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AsNumber(pub u32);

impl AsNumber {
    /// Reads `64512` or `0.64512`.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse() {
            return Some(Self(number));
        }
        let (high, low) = text.split_once('.')?;
        let (high, low): (u16, u16) = (high.parse().ok()?, low.parse().ok()?);
        Some(Self(u32::from(high) << 16 | u32::from(low)))
    }
}

impl fmt::Display for AsNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for AsNumber {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u32(self.0)
    }
}

impl<'de> Deserialize<'de> for AsNumber {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(d)?;
        let number = match &value {
            Value::Number(n) => n.as_u64().and_then(|n| u32::try_from(n).ok()).map(Self),
            Value::String(text) => Self::from_text(text),
            _ => None,
        };
        number.ok_or_else(|| {
            serde::de::Error::custom(format!(
                "AS number {value} is out of range; expected 0 to 4294967295 or HIGH.LOW"
            ))
        })
    }
}

/// A reference to a password in a secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PasswordRef {
    /// `name` and `key` of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeyRef>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Name and key of a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretKeyRef {
    /// Name of the secret.
    #[serde(default)]
    pub name: String,
    /// Key inside the secret.
    #[serde(default)]
    pub key: String,
}

/// `{"cidr": …}` in lists of service ranges.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CidrEntry {
    /// The range; entries without one are ignored.
    #[serde(default)]
    pub cidr: String,
}

/// A named community value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCommunity {
    /// Name that `prefixAdvertisements` refers to.
    #[serde(default)]
    pub name: String,
    /// Value of the community: `AS:VALUE` or `A:B:C`.
    #[serde(default)]
    pub value: String,
}

/// Communities for routes inside a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixAdvertisement {
    /// The range.
    #[serde(default)]
    pub cidr: String,
    /// Values or names.
    #[serde(default, deserialize_with = "null_default")]
    pub communities: Vec<String>,
}

/// `spec` of a BGPConfiguration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpConfigurationSpec {
    /// Default AS number; 64512 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_number: Option<AsNumber>,
    /// Node-to-node mesh; on when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_to_node_mesh_enabled: Option<bool>,
    /// Log level of the speaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_severity_screen: Option<String>,
    /// TCP port of the speakers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen_port: Option<u16>,
    /// `NodeIP` or `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_mode: Option<String>,
    /// Password on all mesh sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_mesh_password: Option<PasswordRef>,
    /// Graceful restart time of mesh sessions, a Go duration such as `120s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_mesh_max_restart_time: Option<String>,
    /// Names for communities, to be used in `prefixAdvertisements`.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub communities: Vec<NamedCommunity>,
    /// Communities by range.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub prefix_advertisements: Vec<PrefixAdvertisement>,
    /// ClusterIP ranges to announce.
    #[serde(
        default,
        rename = "serviceClusterIPs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub service_cluster_ips: Vec<CidrEntry>,
    /// ExternalIP ranges to announce.
    #[serde(
        default,
        rename = "serviceExternalIPs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub service_external_ips: Vec<CidrEntry>,
    /// LoadBalancer ranges to announce.
    #[serde(
        default,
        rename = "serviceLoadBalancerIPs",
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub service_load_balancer_ips: Vec<CidrEntry>,
    /// Component that programs routes to other nodes (Calico's values; overrides
    /// FelixConfiguration).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_cluster_routes: Option<String>,
    /// Kernel metric of a normal route; 1024 when absent.
    #[serde(
        default,
        rename = "ipv4NormalRoutePriority",
        skip_serializing_if = "Option::is_none"
    )]
    pub ipv4_normal_route_priority: Option<u32>,
    /// The same for IPv6.
    #[serde(
        default,
        rename = "ipv6NormalRoutePriority",
        skip_serializing_if = "Option::is_none"
    )]
    pub ipv6_normal_route_priority: Option<u32>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl ResourceSpec for BgpConfigurationSpec {
    const KIND: Kind = Kind::BgpConfiguration;
}

impl BgpConfigurationSpec {
    /// The ranges of services with the names of the fields that have them. What does not parse is
    /// left out; whoever reads the configuration for a speaker names it.
    pub fn service_ranges(&self) -> impl Iterator<Item = (&'static str, Prefix)> {
        let lists = [
            ("serviceClusterIPs", &self.service_cluster_ips),
            ("serviceExternalIPs", &self.service_external_ips),
            ("serviceLoadBalancerIPs", &self.service_load_balancer_ips),
        ];
        let entries = lists
            .into_iter()
            .flat_map(|(field, list)| list.iter().map(move |entry| (field, entry)));
        entries.filter_map(|(field, entry)| Some((field, entry.cidr.parse().ok()?)))
    }

    /// True when the ranges of `serviceLoadBalancerIPs` are announced themselves; otherwise single
    /// addresses in them are (`serviceLoadBalancerAggregation: Disabled`).
    #[must_use]
    pub fn announces_load_balancer_ranges(&self) -> bool {
        let said = self.extra.get("serviceLoadBalancerAggregation");
        said.and_then(Value::as_str) != Some("Disabled")
    }
}

/// `spec` of a BGPPeer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpPeerSpec {
    /// The node that has this peer.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub node: String,
    /// The nodes that have this peer.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub node_selector: String,
    /// `IP`, `IP:PORT` or `[IP6]:PORT`.
    #[serde(
        default,
        rename = "peerIP",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub peer_ip: String,
    /// Nodes that are the peers.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub peer_selector: String,
    /// AS number of the peer, with `peerIP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_number: Option<AsNumber>,
    /// Our AS number on this session.
    #[serde(
        default,
        rename = "localASNumber",
        skip_serializing_if = "Option::is_none"
    )]
    pub local_as_number: Option<AsNumber>,
    /// External peers: leave NEXT_HOP alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_original_next_hop: Option<bool>,
    /// `Auto`, `Self` or `Keep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop_mode: Option<String>,
    /// TCP MD5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordRef>,
    /// `UseNodeIP` (default) or `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_address: Option<String>,
    /// Graceful restart time, a Go duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restart_time: Option<String>,
    /// Keepalive interval, a Go duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keepalive_time: Option<String>,
    /// How often our AS may stand in a received path.
    #[serde(
        default,
        rename = "numAllowedLocalASNumbers",
        skip_serializing_if = "Option::is_none"
    )]
    pub num_allowed_local_as_numbers: Option<i32>,
    /// Hops with TTL security; zero = off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_security: Option<u8>,
    /// `None` or `BFDIfDirectlyConnected`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_detection_mode: Option<String>,
    /// Gateway through which the peer is reached.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub reachable_by: String,
    /// Names of BGPFilters.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub filters: Vec<String>,
    /// Workloads of this node that are peers.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub local_workload_selector: String,
    /// `Auto` or `Manual`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse_peering: Option<String>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl BgpPeerSpec {
    /// Address and port of `peerIP`; `None` when it is empty or malformed.
    #[must_use]
    pub fn peer_address(&self) -> Option<(IpAddr, Option<u16>)> {
        if let Ok(address) = self.peer_ip.parse::<IpAddr>() {
            return Some((address, None));
        }
        let socket: std::net::SocketAddr = self.peer_ip.parse().ok()?;
        Some((socket.ip(), Some(socket.port())))
    }

    /// True when a node of that name and labels is on the local side.
    #[must_use]
    pub fn is_for(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        if !self.node.is_empty() {
            return self.node == node;
        }
        Selector::parse(&self.node_selector).is_ok_and(|selector| selector.matches(labels))
    }

    /// Which workloads of a node on the local side are its peers; `None` when none are.
    #[must_use]
    pub fn local_workloads(&self) -> Option<Selector> {
        let alone = self.peer_ip.is_empty() && self.peer_selector.is_empty();
        let numbered = self.as_number.is_some_and(|asn| asn.0 != 0);
        if self.local_workload_selector.is_empty() || !alone || !numbered {
            return None;
        }
        Selector::parse(&self.local_workload_selector).ok()
    }
}

impl ResourceSpec for BgpPeerSpec {
    const KIND: Kind = Kind::BgpPeer;

    fn validate(&self) -> Result<(), ValueError> {
        let no = |text: String| Err(ValueError(text));
        if !self.node.is_empty() && !self.node_selector.is_empty() {
            return no("spec.node and spec.nodeSelector exclude each other".into());
        }
        if !self.peer_ip.is_empty() && !self.peer_selector.is_empty() {
            return no("spec.peerIP and spec.peerSelector exclude each other".into());
        }
        if !self.peer_selector.is_empty() && self.as_number.is_some() {
            return no("spec.asNumber goes with spec.peerIP; nodes found by spec.peerSelector have their own".into());
        }
        if !self.peer_ip.is_empty() {
            if self.peer_address().is_none() {
                return no(format!(
                    "spec.peerIP {:?} is not IP, IP:PORT or [IPv6]:PORT",
                    self.peer_ip
                ));
            }
            // RFC 7607: AS 0 is not to be used. Without a number, the peer has to be a node, whose
            // AS is known: that is for the plan to say, which sees the nodes.
            if self.as_number == Some(AsNumber(0)) {
                return no("spec.asNumber 0 is reserved (RFC 7607)".into());
            }
        }
        for (field, text) in [
            ("nodeSelector", &self.node_selector),
            ("peerSelector", &self.peer_selector),
            ("localWorkloadSelector", &self.local_workload_selector),
        ] {
            if let Err(e) = Selector::parse(text) {
                return no(format!("spec.{field}: {e}"));
            }
        }
        if let Some(mode) = self.next_hop_mode.as_deref()
            && !matches!(mode, "" | "Auto" | "Self" | "Keep")
        {
            return no(format!(
                "spec.nextHopMode {mode:?} is not Auto, Self or Keep"
            ));
        }
        Ok(())
    }
}

/// `spec` of a BGPFilter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpFilterSpec {
    /// Rules on export, IPv4.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub export_v4: Vec<BgpFilterRule>,
    /// Rules on import, IPv4.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub import_v4: Vec<BgpFilterRule>,
    /// Rules on export, IPv6.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub export_v6: Vec<BgpFilterRule>,
    /// Rules on import, IPv6.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub import_v6: Vec<BgpFilterRule>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One rule of a BGPFilter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpFilterRule {
    /// Range, together with `matchOperator`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<Prefix>,
    /// `Equal`, `NotEqual`, `In`, `NotIn`.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub match_operator: String,
    /// Bounds on the length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_length: Option<PrefixLength>,
    /// `RemotePeers`.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub source: String,
    /// Interface pattern.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub interface: String,
    /// `eBGP` or `iBGP`.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub peer_type: String,
    /// Communities, at most one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communities: Option<CommunityMatch>,
    /// The path starts with these.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub as_path_prefix: Vec<AsNumber>,
    /// LOCAL_PREF as a kernel metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// `Accept` or `Reject`.
    #[serde(default)]
    pub action: String,
    /// Changes, only with `Accept`.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub operations: Vec<BgpFilterOperation>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Bounds on a prefix length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixLength {
    /// Shortest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u8>,
    /// Longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u8>,
}

/// `communities` of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommunityMatch {
    /// Values of which one must be carried.
    #[serde(default, deserialize_with = "null_default")]
    pub values: Vec<String>,
}

/// One change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpFilterOperation {
    /// Adds this community to the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_community: Option<AddCommunity>,
    /// Prepends to the path.
    #[serde(
        default,
        rename = "prependASPath",
        skip_serializing_if = "Option::is_none"
    )]
    pub prepend_as_path: Option<PrependAsPath>,
    /// Sets LOCAL_PREF as a kernel metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_priority: Option<SetPriority>,
}

/// Value of `addCommunity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddCommunity {
    /// `AS:VALUE` or `A:B:C`.
    #[serde(default)]
    pub value: String,
}

/// Value of `prependASPath`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrependAsPath {
    /// AS numbers, leftmost first.
    #[serde(default)]
    pub prefix: Vec<AsNumber>,
}

/// Value of `setPriority`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetPriority {
    /// A kernel metric.
    #[serde(default)]
    pub value: u32,
}

impl ResourceSpec for BgpFilterSpec {
    const KIND: Kind = Kind::BgpFilter;
}
