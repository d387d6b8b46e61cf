//! A topology of flannel's: the network's configuration in the file, and what has no place beside
//! it.

use std::net::IpAddr;

use caracal_flannel::{ConfigError, FlannelConfig};
use caracal_model::{Family, Prefix};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};
use serde_saphyr::{Location, Spanned};

use super::{NodeKind, Topology, strict_optional, strict_spanned};

/// Network of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Plugin {
    /// `caracal node`, with Calico's data.
    #[default]
    Caracal,
    /// `caracal flannel`, with flannel's, and pods on a bridge.
    Flannel,
}

/// Keys that a file with `plugin: flannel` may have, and those of its nodes.
const KEYS: [&str; 8] = [
    "name",
    "description",
    "plugin",
    "flannel",
    "etcd",
    "segments",
    "routers",
    "nodes",
];
const NODE_KEYS: [&str; 7] = [
    "name", "segment", "address", "address6", "kind", "pods", "env",
];

/// Configuration of a flannel network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Flannel {
    /// All of the cluster's IPv4 addresses.
    #[serde(deserialize_with = "strict_spanned")]
    pub network: Spanned<Prefix>,
    /// Prefix length of a node's subnet.
    #[serde(default)]
    subnet_len: Option<Spanned<u32>>,
    /// First and last subnet that a node may have.
    #[serde(default)]
    subnet_min: Option<Spanned<IpAddr>>,
    #[serde(default)]
    subnet_max: Option<Spanned<IpAddr>>,
    /// The same of IPv6, in a dual-stack cluster.
    #[serde(default, deserialize_with = "strict_optional")]
    pub ipv6_network: Option<Spanned<Prefix>>,
    #[serde(default)]
    ipv6_subnet_len: Option<Spanned<u32>>,
    #[serde(default)]
    ipv6_subnet_min: Option<Spanned<IpAddr>>,
    #[serde(default)]
    ipv6_subnet_max: Option<Spanned<IpAddr>>,
    /// How packets travel between nodes.
    pub backend: FlannelBackend,
    /// The daemon masquerades what leaves the network (`--ip-masq`).
    #[serde(default = "yes")]
    pub ip_masq: bool,
}

const fn yes() -> bool {
    true
}

/// How packets travel between nodes, with the options of each backend.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FlannelBackend {
    /// Flannel's name of the backend.
    #[serde(rename = "type")]
    kind: BackendKind,
    #[serde(default)]
    vni: Option<Spanned<u32>>,
    #[serde(default)]
    port: Option<Spanned<u32>>,
    #[serde(default)]
    mtu: Option<Spanned<u32>>,
    #[serde(default)]
    direct_routing: Option<Spanned<bool>>,
}

/// Backends that carry packets of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum BackendKind {
    Vxlan,
    HostGw,
    Ipip,
    Udp,
}

impl BackendKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::HostGw => "host-gw",
            Self::Ipip => "ipip",
            Self::Udp => "udp",
        }
    }

    /// Options of the backend, as in the topology file.
    const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Vxlan => &["vni", "port", "mtu", "directRouting"],
            Self::HostGw => &[],
            Self::Ipip => &["directRouting"],
            Self::Udp => &["port"],
        }
    }
}

/// Fault of a topology with flannel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlannelInvalid {
    /// No network.
    #[error(
        "with plugin: flannel the file needs flannel's network, such as flannel: {{network: 10.5.0.0/16, backend: {{type: vxlan}}}}"
    )]
    Missing,
    /// A network that nobody reads.
    #[error("flannel is read with plugin: flannel alone; set that, or leave flannel out")]
    Unread,
    /// A setting of Calico's network.
    #[error(
        "{key} means nothing to flannel; with plugin: flannel {place} may have {}", .known.join(", ")
    )]
    Foreign {
        /// Key in the topology file.
        key: String,
        /// What has the key.
        place: &'static str,
        /// Keys that it may have.
        known: &'static [&'static str],
    },
    /// A program that knows nothing of flannel's leases.
    #[error(
        "node {node} is of kind {kind}; with plugin: flannel nodes are of kind caracal or plain"
    )]
    Kind { node: String, kind: &'static str },
    /// A variable that the daemon does not read.
    #[error(
        "caracal flannel does not read {name} of node {node}; its variables begin with FLANNELD_ or CARACAL_"
    )]
    Variable { node: String, name: String },
    /// An option of another backend.
    #[error("the backend {backend} has no option {option}; it has {}", list(.known))]
    Option {
        backend: &'static str,
        option: &'static str,
        /// Options that it has.
        known: &'static [&'static str],
    },
    /// One of the two families.
    #[error(
        "either all segments have cidr6 and flannel has ipv6Network, or neither; flannel has no network of IPv6 alone"
    )]
    Families,
    /// A value that flannel does not take; its names of settings.
    #[error(transparent)]
    Value(#[from] ConfigError),
    /// A wish that flannel passes over.
    #[error("{0}")]
    PassedOver(String),
}

fn list(words: &[&str]) -> String {
    match words {
        [] => "none".to_owned(),
        words => words.join(", "),
    }
}

/// A complaint and its place.
pub(super) type Found = (Location, FlannelInvalid);

const fn found(place: &Location, reason: FlannelInvalid) -> Found {
    (*place, reason)
}

/// A setting: its key in the topology file, flannel's name of it, the value, and where it is.
struct Setting<'a> {
    key: &'static str,
    flannels: &'static str,
    value: Value,
    place: &'a Location,
}

fn setting<'a, T>(
    key: &'static str,
    flannels: &'static str,
    value: Option<&'a Spanned<T>>,
    json: impl Fn(&T) -> Value,
) -> Option<Setting<'a>> {
    value.map(|spanned| Setting {
        key,
        flannels,
        value: json(&spanned.value),
        place: &spanned.referenced,
    })
}

impl Flannel {
    /// The networks, that of IPv4 first.
    pub(crate) fn networks(&self) -> impl Iterator<Item = Prefix> + '_ {
        let second = self.ipv6_network.iter().map(|n| n.value);
        std::iter::once(self.network.value).chain(second)
    }

    /// Flannel's name of the backend.
    #[must_use]
    pub(crate) const fn backend(&self) -> &'static str {
        self.backend.kind.as_str()
    }

    fn settings(&self) -> impl Iterator<Item = Setting<'_>> {
        let prefix = |p: &Prefix| json!(p.to_string());
        let number = |n: &u32| json!(n);
        let address = |a: &IpAddr| json!(a);
        [
            setting("network", "Network", Some(&self.network), prefix),
            setting("subnetLen", "SubnetLen", self.subnet_len.as_ref(), number),
            setting("subnetMin", "SubnetMin", self.subnet_min.as_ref(), address),
            setting("subnetMax", "SubnetMax", self.subnet_max.as_ref(), address),
            setting(
                "ipv6Network",
                "IPv6Network",
                self.ipv6_network.as_ref(),
                prefix,
            ),
            setting(
                "ipv6SubnetLen",
                "IPv6SubnetLen",
                self.ipv6_subnet_len.as_ref(),
                number,
            ),
            setting(
                "ipv6SubnetMin",
                "IPv6SubnetMin",
                self.ipv6_subnet_min.as_ref(),
                address,
            ),
            setting(
                "ipv6SubnetMax",
                "IPv6SubnetMax",
                self.ipv6_subnet_max.as_ref(),
                address,
            ),
        ]
        .into_iter()
        .flatten()
    }

    fn options(&self) -> impl Iterator<Item = Setting<'_>> {
        let backend = &self.backend;
        let number = |n: &u32| json!(n);
        let flag = |b: &bool| json!(b);
        let direct = backend.direct_routing.as_ref();
        [
            setting("vni", "VNI", backend.vni.as_ref(), number),
            setting("port", "Port", backend.port.as_ref(), number),
            setting("mtu", "MTU", backend.mtu.as_ref(), number),
            setting("directRouting", "DirectRouting", direct, flag),
        ]
        .into_iter()
        .flatten()
    }

    /// The value of flannel's key `config`.
    #[must_use]
    pub(crate) fn net_conf(&self) -> Value {
        let object = |settings: &mut dyn Iterator<Item = Setting<'_>>| -> Map<String, Value> {
            settings.map(|s| (s.flannels.to_owned(), s.value)).collect()
        };
        let mut config = object(&mut self.settings());
        if self.ipv6_network.is_some() {
            config.insert("EnableIPv6".to_owned(), json!(true));
        }
        let mut backend = Map::new();
        backend.insert("Type".to_owned(), json!(self.backend()));
        backend.extend(object(&mut self.options()));
        config.insert("Backend".to_owned(), Value::Object(backend));
        Value::Object(config)
    }

    /// Flannel's own opinion on it.
    fn check(&self) -> Result<(), Found> {
        let kind = self.backend.kind;
        for option in self.options() {
            if !kind.options().contains(&option.key) {
                let reason = FlannelInvalid::Option {
                    backend: kind.as_str(),
                    option: option.key,
                    known: kind.options(),
                };
                return Err(found(option.place, reason));
            }
        }
        let network = &self.network.referenced;
        match FlannelConfig::parse(self.net_conf().to_string().as_bytes()) {
            Ok(config) => match config.notes.into_iter().next() {
                None => Ok(()),
                Some(note) => Err(found(network, FlannelInvalid::PassedOver(note))),
            },
            Err(error) => {
                let field = match &error {
                    ConfigError::Field { field, .. } => *field,
                    _ => "",
                };
                let mut all = self.settings().chain(self.options());
                let place = all.find(|s| s.flannels == field).map(|s| s.place);
                Err(found(place.unwrap_or(network), error.into()))
            }
        }
    }
}

/// The keys of a file or of one of its nodes, with their places.
#[derive(Default)]
pub(super) struct Keys {
    own: Vec<Spanned<String>>,
    nodes: Vec<Self>,
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Keys::default();
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    match key.value.as_str() {
                        "nodes" => keys.nodes = map.next_value()?,
                        _ => {
                            let _passed: de::IgnoredAny = map.next_value()?;
                        }
                    }
                    keys.own.push(key);
                }
                Ok(keys)
            }
        }
        d.deserialize_map(Visitor)
    }
}

impl Keys {
    fn check(&self, place: &'static str, known: &'static [&'static str]) -> Result<(), Found> {
        let foreign = self.own.iter().find(|k| !known.contains(&&*k.value));
        foreign.map_or(Ok(()), |key| {
            let reason = FlannelInvalid::Foreign {
                key: key.value.clone(),
                place,
                known,
            };
            Err(found(&key.referenced, reason))
        })
    }
}

/// Checks what concerns flannel, or its absence, in a file with these keys.
pub(super) fn check(t: &Topology, keys: &Keys) -> Result<(), Found> {
    let flannel = match (t.plugin.value, &t.flannel) {
        (Plugin::Caracal, None) => return Ok(()),
        (Plugin::Caracal, Some(section)) => {
            return Err(found(&section.referenced, FlannelInvalid::Unread));
        }
        (Plugin::Flannel, None) => {
            return Err(found(&t.plugin.referenced, FlannelInvalid::Missing));
        }
        (Plugin::Flannel, Some(section)) => &section.value,
    };
    keys.check("the file", &KEYS)?;
    for node in &keys.nodes {
        node.check("a node", &NODE_KEYS)?;
    }
    for node in &t.nodes {
        let (name, place) = (&node.name.value, &node.name.referenced);
        if !matches!(node.kind, NodeKind::Caracal | NodeKind::Plain) {
            let (node, kind) = (name.clone(), node.kind.as_str());
            return Err(found(place, FlannelInvalid::Kind { node, kind }));
        }
        let reads = |name: &&String| name.starts_with("FLANNELD_") || name.starts_with("CARACAL_");
        if let Some(variable) = node.env.keys().find(|name| !reads(name)) {
            let (node, name) = (name.clone(), variable.clone());
            return Err(found(place, FlannelInvalid::Variable { node, name }));
        }
    }
    let families = [Family::Ipv4, Family::Ipv6];
    if t.families() != families[..flannel.networks().count()] {
        return Err(found(&flannel.network.referenced, FlannelInvalid::Families));
    }
    flannel.check()
}
