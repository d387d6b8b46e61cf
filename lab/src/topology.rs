//! The lab's topology file: which segments, routers, nodes and pods a cluster is made of.
//!
//! The file is YAML, every unknown key is refused, and every complaint names line and column. This
//! module knows nothing of namespaces or processes; [`crate::plan`] turns a topology into steps.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use caracal_model::{Family, Prefix};
use serde::{Deserialize, Deserializer, de};
pub(crate) use serde_saphyr::Spanned;

mod check;
mod flannel;
pub(crate) mod kinds;
#[cfg(test)]
mod tests;

pub(crate) use check::Invalid;
pub(crate) use check::{MAX_LAB_NAME, valid_name};
pub(crate) use flannel::{Flannel, Plugin};

/// A cluster as its author wrote it. All cross references were checked by [`Topology::parse`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Topology {
    /// The name of the cluster and, unless another is asked for, of the lab.
    pub name: Spanned<String>,
    /// One sentence for `caracal lab up` to print.
    #[serde(default)]
    pub description: Option<String>,
    /// Network of the nodes.
    #[serde(default = "caracals_network")]
    pub plugin: Spanned<Plugin>,
    /// Configuration of the network with `plugin: flannel`.
    #[serde(default)]
    pub flannel: Option<Spanned<Flannel>>,
    /// Datastore of Calico's data.
    #[serde(default)]
    pub datastore: Datastore,
    /// Proxies between the nodes and etcd.
    #[serde(default)]
    pub etcd: Etcd,
    /// `CALICO_NETWORKING_BACKEND` of all Caracal nodes.
    #[serde(default)]
    pub backend: Backend,
    /// The default pool, of the family of the segments' `cidr`.
    #[serde(default)]
    pub pool: Pool,
    /// The default IPv6 pool beside an IPv4 one, in a dual-stack cluster.
    #[serde(default)]
    pub pool6: Option<Pool>,
    /// Layer-2 segments, one bridge each.
    pub segments: Vec<Segment>,
    /// Routers between segments.
    #[serde(default)]
    pub routers: Vec<Router>,
    /// Cluster nodes and foreign speakers.
    pub nodes: Vec<Node>,
    /// Calico resources put into etcd before the first node starts.
    #[serde(default)]
    pub resources: Vec<Spanned<Resource>>,
}

/// Datastore of Calico's data (`DATASTORE_TYPE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Datastore {
    /// In etcd, by Calico's keys.
    #[default]
    Etcd,
    /// In the Kubernetes API, which the lab's test API server plays over its etcd.
    Kubernetes,
}

/// Ways from the nodes to the lab's etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Etcd {
    /// Number of gRPC proxies (`etcd grpc-proxy`) before it. The nodes know these alone, and each
    /// begins with the next one; 0 = the nodes know etcd.
    pub proxies: u8,
}

/// Method to move packets between nodes (`CALICO_NETWORKING_BACKEND`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// BGP sessions; the name is Calico's.
    #[default]
    Bird,
    /// VXLAN without BGP.
    Vxlan,
    /// Routing is somebody else's job.
    None,
}

impl Backend {
    /// The value of the environment variable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bird => "bird",
            Self::Vxlan => "vxlan",
            Self::None => "none",
        }
    }
}

/// When packets to another node's pods are encapsulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum EncapMode {
    Always,
    /// Only towards nodes in another subnet.
    CrossSubnet,
    #[default]
    Never,
}

impl EncapMode {
    /// The value as Calico writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::CrossSubnet => "CrossSubnet",
            Self::Never => "Never",
        }
    }
}

/// The default pool of a family, created by the first node from `CALICO_IPV4POOL_*` or
/// `CALICO_IPV6POOL_*`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Pool {
    /// Addresses of pods and tunnels.
    #[serde(deserialize_with = "strict_spanned")]
    pub cidr: Spanned<Prefix>,
    /// Length of a block's prefix, 20 to 32 or 116 to 128; by default Calico's 26 or 122.
    pub block_size: Option<Spanned<u8>>,
    /// IP-in-IP through `tunl0`; IPv4 only.
    pub ipip_mode: EncapMode,
    /// VXLAN through `vxlan.calico` or `vxlan-v6.calico`; not together with IPIP.
    pub vxlan_mode: Spanned<EncapMode>,
    /// Masquerade packets that leave the pool; by default for IPv4 only, as Calico does.
    pub nat_outgoing: Option<bool>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            cidr: unspanned(Prefix::v4(Ipv4Addr::new(10, 244, 0, 0), 16)),
            block_size: None,
            ipip_mode: EncapMode::Never,
            vxlan_mode: unspanned(EncapMode::Never),
            nat_outgoing: None,
        }
    }
}

impl Pool {
    /// The family of its addresses.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.cidr.value.family()
    }

    /// Length of a block's prefix.
    #[must_use]
    pub fn block_size(&self) -> u8 {
        let default = match self.family() {
            Family::Ipv4 => 26,
            Family::Ipv6 => 122,
        };
        self.block_size.as_ref().map_or(default, |s| s.value)
    }

    /// Are packets masqueraded that leave the pool?
    #[must_use]
    pub fn nat_outgoing(&self) -> bool {
        self.nat_outgoing
            .unwrap_or_else(|| self.family() == Family::Ipv4)
    }
}

/// A layer-2 segment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Segment {
    /// Also part of the bridge's name, hence at most 12 octets.
    pub name: Spanned<String>,
    /// Its subnet, IPv4 from /8 to /29 or IPv6 from /64 to /124. All segments are of one family.
    #[serde(deserialize_with = "strict_spanned")]
    pub cidr: Spanned<Prefix>,
    /// IPv6 subnet beside the IPv4 one: a dual-stack cluster. All segments have it, or none.
    #[serde(default, deserialize_with = "strict_optional")]
    pub cidr6: Option<Spanned<Prefix>>,
    /// MTU of all links of the segment.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
}

impl Segment {
    /// Its subnets, one of each family.
    pub fn prefixes(&self) -> impl Iterator<Item = Prefix> + '_ {
        let second = self.cidr6.iter().map(|c| c.value);
        std::iter::once(self.cidr.value).chain(second)
    }

    /// Its subnet of a family.
    #[must_use]
    pub fn prefix(&self, family: Family) -> Option<Prefix> {
        self.prefixes().find(|p| p.family() == family)
    }
}

const fn default_mtu() -> u16 {
    1500
}

/// A router: a namespace with a leg in each of several segments, without any pod route.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Router {
    /// Name, unique among routers and nodes.
    pub name: Spanned<String>,
    /// At least two legs.
    pub legs: Vec<Leg>,
}

/// One leg of a router.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Leg {
    /// The segment it stands in.
    pub segment: Spanned<String>,
    /// Its address; by default the highest free one.
    #[serde(default)]
    pub address: Option<Spanned<IpAddr>>,
    /// Its IPv6 address in a dual-stack segment; by default the highest free one.
    #[serde(default)]
    pub address6: Option<Spanned<Ipv6Addr>>,
}

/// A member of the cluster, or a foreign speaker beside it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Node {
    /// Name of the node, its `NODENAME`.
    pub name: Spanned<String>,
    /// The segment its `eth0` stands in.
    pub segment: Spanned<String>,
    /// Its address; by default the lowest free one.
    #[serde(default)]
    pub address: Option<Spanned<IpAddr>>,
    /// Its IPv6 address in a dual-stack segment; by default the lowest free one.
    #[serde(default)]
    pub address6: Option<Spanned<Ipv6Addr>>,
    /// Let the node find its addresses itself (`IP=autodetect`) instead of being told.
    #[serde(default)]
    pub autodetect: bool,
    /// Program that runs in it.
    #[serde(default)]
    pub kind: NodeKind,
    /// `AS`; without it the node takes the cluster's.
    #[serde(default)]
    pub asn: Option<u32>,
    /// Labels of its Node resource.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Makes the node a route reflector.
    #[serde(default, rename = "routeReflectorClusterID")]
    pub route_reflector_cluster_id: Option<Ipv4Addr>,
    /// Pods that run on the node.
    #[serde(default = "no_pods")]
    pub pods: Spanned<Pods>,
    /// More environment for `caracal node`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Configuration text of a foreign speaker.
    #[serde(default)]
    pub config: Option<String>,
}

/// Program in a node's namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// `caracal node`.
    #[default]
    Caracal,
    /// BIRD 2 with `config`, or with what `caracal render` prints for the node.
    Bird2,
    /// `gobgpd` with `config`.
    Gobgp,
    /// Nothing: a namespace with an address, for what a test starts itself.
    Plain,
    /// `caracal flannel`: what the kind `caracal` is with `plugin: flannel`.
    #[serde(skip)]
    Flannel,
}

impl NodeKind {
    /// Does the node count as a member of the cluster, with a Node resource?
    #[must_use]
    pub const fn is_member(self) -> bool {
        matches!(self, Self::Caracal | Self::Bird2)
    }

    /// The word in the file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Caracal => "caracal",
            Self::Bird2 => "bird2",
            Self::Gobgp => "gobgp",
            Self::Plain => "plain",
            Self::Flannel => "flannel",
        }
    }
}

/// The names of a node's pods. The file gives names, or a number for `p1`, `p2` and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods(pub Vec<String>);

/// More pods than this on one node is a typing error; a /26 block holds 64 addresses.
const MAX_PODS: u64 = 250;

impl<'de> Deserialize<'de> for Pods {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Pods;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    "a number of pods up to {MAX_PODS} or a list of pod names"
                )
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Pods, E> {
                if n > MAX_PODS {
                    return Err(E::invalid_value(de::Unexpected::Unsigned(n), &self));
                }
                Ok(Pods((1..=n).map(|i| format!("p{i}")).collect()))
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Pods, E> {
                match u64::try_from(n) {
                    Ok(n) => self.visit_u64(n),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
                }
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Pods, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = seq.next_element()? {
                    names.push(name);
                }
                Ok(Pods(names))
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// A Calico resource as `calicoctl apply` takes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Resource {
    /// API version, such as `projectcalico.org/v3`.
    #[serde(default)]
    pub api_version: Option<String>,
    /// Kind of the resource, such as `BGPPeer`.
    pub kind: String,
    /// Name, labels and annotations.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The resource's own fields, passed on unseen.
    #[serde(default)]
    pub spec: serde_json::Value,
}

impl Resource {
    /// Name of the resource, its `metadata.name`.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.metadata
            .get("name")
            .and_then(serde_json::Value::as_str)
    }
}

/// Why a topology file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The file cannot be read.
    #[error("cannot read the topology file {path}")]
    Read {
        /// Path of the file.
        path: String,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Not YAML, an unknown key, or a value of the wrong shape.
    #[error("{path} is no topology file")]
    Syntax {
        /// Path of the file.
        path: String,
        /// Names line and column, with the text around them.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// Readable, but it does not describe a network.
    #[error("{path}:{line}:{column}: {reason}")]
    Invalid {
        /// Path of the file.
        path: String,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// What is wrong with it.
        reason: Box<Invalid>,
    },
}

impl Topology {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`TopologyError`], with line and column.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        Ok(Self::load_text(path)?.0)
    }

    /// Like [`Topology::load`]; also gives the text.
    ///
    /// # Errors
    /// [`TopologyError`], with line and column.
    pub fn load_text(path: &Path) -> Result<(Self, String), TopologyError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| TopologyError::Read {
            path: name.clone(),
            source,
        })?;
        Ok((Self::parse(&text, &name)?, text))
    }

    /// Reads and checks a text; `path` is what messages call it.
    ///
    /// # Errors
    /// [`TopologyError`], with line and column.
    pub fn parse(text: &str, path: &str) -> Result<Self, TopologyError> {
        let syntax = |source| TopologyError::Syntax {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let topology: Self = serde_saphyr::from_str(text).map_err(syntax)?;
        let keys: flannel::Keys = serde_saphyr::from_str(text).map_err(syntax)?;
        check::check(&topology, &keys).map_err(|found| TopologyError::Invalid {
            path: path.to_owned(),
            line: found.line,
            column: found.column,
            reason: Box::new(found.reason),
        })?;
        Ok(topology)
    }

    /// The node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.name.value == name)
    }

    /// The families of the cluster: the one of `cidr` first, IPv6 second in a dual-stack cluster.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let first = self.segments.first();
        first.map_or_else(Vec::new, |s| s.prefixes().map(|p| p.family()).collect())
    }

    /// The default pool of a family.
    #[must_use]
    pub fn pool_of(&self, family: Family) -> Option<&Pool> {
        std::iter::once(&self.pool)
            .chain(&self.pool6)
            .find(|p| p.family() == family)
    }

    /// Flannel's network, where the nodes have one.
    #[must_use]
    pub fn flannel(&self) -> Option<&Flannel> {
        self.flannel.as_ref().map(|section| &section.value)
    }

    /// Addresses of pods, with the words for them.
    pub(crate) fn pod_ranges(&self) -> Vec<(Prefix, &'static str)> {
        match self.flannel() {
            Some(flannel) => flannel
                .networks()
                .map(|n| (n, "flannel's network"))
                .collect(),
            None => {
                let pools = std::iter::once(&self.pool).chain(&self.pool6);
                pools.map(|p| (p.cidr.value, "the pool")).collect()
            }
        }
    }

    /// The segment of this name.
    #[must_use]
    pub fn segment(&self, name: &str) -> Option<&Segment> {
        self.segments.iter().find(|s| s.name.value == name)
    }
}

fn caracals_network() -> Spanned<Plugin> {
    unspanned(Plugin::Caracal)
}

fn no_pods() -> Spanned<Pods> {
    unspanned(Pods::default())
}

fn unspanned<T>(value: T) -> Spanned<T> {
    Spanned {
        value,
        referenced: serde_saphyr::Location::UNKNOWN,
        defined: serde_saphyr::Location::UNKNOWN,
    }
}

fn strict_spanned<'de, D: Deserializer<'de>>(d: D) -> Result<Spanned<Prefix>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Strict(#[serde(deserialize_with = "strict")] Prefix);
    fn strict<'de, D: Deserializer<'de>>(d: D) -> Result<Prefix, D::Error> {
        Prefix::parse_strict(&String::deserialize(d)?).map_err(de::Error::custom)
    }
    let spanned = Spanned::<Strict>::deserialize(d)?;
    Ok(Spanned {
        value: spanned.value.0,
        referenced: spanned.referenced,
        defined: spanned.defined,
    })
}

fn strict_optional<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Spanned<Prefix>>, D::Error> {
    strict_spanned(d).map(Some)
}
