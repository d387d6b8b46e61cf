//! The network's configuration, `PREFIX/config`: JSON whose key names match whatever their case,
//! and in which unknown keys are ignored.

use std::net::IpAddr;

use caracal_model::{Family, Prefix};
use serde_json::{Map, Value};

use crate::lease::{NodeSubnets, SubnetLease};

/// Flannel's VNI.
pub(crate) const VNI: u32 = 1;
/// Linux's own port of VXLAN, which flannel leaves to the kernel.
pub(crate) const VXLAN_PORT: u16 = 8472;
/// Flannel's port of the backend `udp`.
pub(crate) const UDP_PORT: u16 = 8285;
/// Backends that flannel has and this crate has not.
const MISSING: [&str; 6] = [
    "wireguard",
    "extension",
    "ipsec",
    "tencent-vpc",
    "alivpc",
    "gce",
];

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or no object.
    #[error("it is no JSON object: {0}")]
    Syntax(String),
    /// A field does not hold what it should.
    #[error("{field}: {reason}")]
    Field {
        /// Flannel's name of the field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Flannel knows the backend, and it is not there yet.
    #[error("the backend {0} is not supported; vxlan, ipip, host-gw, udp and alloc are")]
    MissingBackend(String),
    /// Nobody knows the backend.
    #[error("unknown backend type {0:?}; vxlan, ipip, host-gw, udp and alloc are supported")]
    UnknownBackend(String),
}

fn wrong(field: &'static str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Field {
        field,
        reason: reason.into(),
    }
}

/// Options of the backend `vxlan`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanOptions {
    /// VXLAN network identifier, also a part of the device's name.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
    /// MTU of the underlay in octets, before VXLAN's headers; `None` = the interface's.
    pub mtu: Option<u32>,
    /// Nodes on the same link are reached without VXLAN.
    pub direct_routing: bool,
}

impl VxlanOptions {
    /// Those of a configuration that names a VNI alone.
    pub(crate) const fn usual(vni: u32) -> Self {
        Self {
            vni,
            port: VXLAN_PORT,
            mtu: None,
            direct_routing: false,
        }
    }
}

/// How packets travel between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Encapsulated, by the kernel.
    Vxlan(VxlanOptions),
    /// IP in IP, by the kernel; IPv4 alone.
    Ipip {
        /// Nodes on the same link are reached without it.
        direct_routing: bool,
    },
    /// Plain routes over a link that all nodes share.
    HostGw,
    /// In UDP datagrams, by a relay of this process.
    Udp {
        /// UDP port of all nodes.
        port: u16,
    },
    /// Not at all: subnets are given out, somebody else routes.
    Alloc,
}

impl Backend {
    /// `BackendType` of leases; empty where flannel writes none.
    #[must_use]
    pub const fn lease_type(&self) -> &'static str {
        match self {
            Self::Vxlan(_) => "vxlan",
            Self::Ipip { .. } => "ipip",
            Self::HostGw => "host-gw",
            Self::Udp { .. } | Self::Alloc => "",
        }
    }

    /// True when leases do not tell the two apart.
    #[must_use]
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Vxlan(ours), Self::Vxlan(theirs)) => {
                (ours.vni, ours.port) == (theirs.vni, theirs.port)
            }
            _ => self.lease_type() == other.lease_type(),
        }
    }

    /// True for a lease that says nothing else.
    #[must_use]
    pub(crate) fn is_that_of(&self, lease: &SubnetLease) -> bool {
        let same_port = match self {
            Self::Vxlan(options) => lease.port().unwrap_or(VXLAN_PORT) == options.port,
            Self::Ipip { .. } | Self::HostGw | Self::Udp { .. } | Self::Alloc => true,
        };
        self.may_be_that_of(lease) && same_port
    }

    /// True for a lease that says nothing else, and for one that names no port.
    #[must_use]
    pub(crate) fn may_be_that_of(&self, lease: &SubnetLease) -> bool {
        let same_network = match self {
            Self::Vxlan(options) => {
                lease.vni().is_none_or(|vni| vni == options.vni)
                    && lease.port().is_none_or(|port| port == options.port)
            }
            Self::Ipip { .. } | Self::HostGw | Self::Udp { .. } | Self::Alloc => true,
        };
        lease.backend_type == self.lease_type() && same_network
    }
}

/// The subnets of one family: those of one length from a first to a last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetRange {
    /// All of the cluster's addresses.
    pub network: Prefix,
    /// Prefix length of a node's subnet.
    pub len: u8,
    /// Number of the first subnet, counted from the start of the network.
    pub first: u128,
    /// Number of the last one.
    pub last: u128,
}

impl SubnetRange {
    /// Addresses of a subnet.
    #[must_use]
    pub(crate) fn subnet_size(&self) -> u128 {
        1 << (self.network.family().bits() - self.len)
    }

    /// The subnet with a number; `None` outside of the network.
    #[must_use]
    pub(crate) fn subnet(&self, number: u128) -> Option<Prefix> {
        let address = self.network.nth(number.checked_mul(self.subnet_size())?)?;
        Some(Prefix::truncated(address, self.len))
    }

    fn take_length(&mut self, subnet: Prefix) {
        (self.len, self.first, self.last) = (subnet.len(), 0, u128::MAX);
    }

    /// True for a subnet that a node may have.
    #[must_use]
    pub fn holds(&self, subnet: &Prefix) -> bool {
        let number = self
            .network
            .offset(subnet.address())
            .map(|offset| offset / self.subnet_size());
        subnet.len() == self.len && number.is_some_and(|n| (self.first..=self.last).contains(&n))
    }
}

/// Names of a family's fields.
struct Names {
    network: &'static str,
    len: &'static str,
    min: &'static str,
    max: &'static str,
}

const V4: Names = Names {
    network: "Network",
    len: "SubnetLen",
    min: "SubnetMin",
    max: "SubnetMax",
};
const V6: Names = Names {
    network: "IPv6Network",
    len: "IPv6SubnetLen",
    min: "IPv6SubnetMin",
    max: "IPv6SubnetMax",
};

/// The families of a network; it has at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

impl Families {
    /// True for a family of the network.
    #[must_use]
    pub const fn has(self, family: Family) -> bool {
        match family {
            Family::Ipv4 => self.v4,
            Family::Ipv6 => self.v6,
        }
    }

    /// The family that stands for the network where one is enough.
    #[must_use]
    pub const fn first(self) -> Family {
        match self.v4 {
            true => Family::Ipv4,
            false => Family::Ipv6,
        }
    }
}

/// The configuration of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlannelConfig {
    /// Subnets of IPv4, unless `EnableIPv4` is false.
    pub v4: Option<SubnetRange>,
    /// Subnets of IPv6, where `EnableIPv6` is set.
    pub v6: Option<SubnetRange>,
    /// How packets travel.
    pub backend: Backend,
    /// Wishes that are passed over, with the reason.
    pub notes: Vec<String>,
}

impl FlannelConfig {
    /// Reads the value of `PREFIX/config`.
    ///
    /// # Errors
    /// [`ConfigError`], with the field.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let value: Value =
            serde_json::from_slice(text).map_err(|e| ConfigError::Syntax(e.to_string()))?;
        let Value::Object(fields) = &value else {
            return Err(ConfigError::Syntax("another kind of value".to_owned()));
        };
        let fields = Fields(fields);
        let mut notes = Vec::new();
        let v4 = fields.flag("EnableIPv4", true)?;
        let v6 = fields.flag("EnableIPv6", false)?;
        if !v4 && !v6 {
            return Err(wrong(
                "EnableIPv4",
                "it is false, and EnableIPv6 is not set",
            ));
        }
        if fields.flag("EnableNFTables", false)? {
            notes.push("EnableNFTables: it is so in any case".to_owned());
        }
        Ok(Self {
            v4: v4.then(|| range(&fields, &V4, Family::Ipv4)).transpose()?,
            v6: v6.then(|| range(&fields, &V6, Family::Ipv6)).transpose()?,
            backend: backend(&fields, v4, &mut notes)?,
            notes,
        })
    }

    /// The families that the network has.
    #[must_use]
    pub const fn families(&self) -> Families {
        Families {
            v4: self.v4.is_some(),
            v6: self.v6.is_some(),
        }
    }

    /// All addresses of the cluster, those of IPv4 first.
    pub fn networks(&self) -> impl Iterator<Item = Prefix> {
        let ranges = self.v4.iter().chain(&self.v6);
        ranges.map(|range| range.network)
    }

    /// Takes the prefix lengths of subnets from those of a node, and any place in the network for
    /// right: with Kubernetes, which gives subnets out, the configuration does not say.
    pub fn take_lengths(&mut self, subnets: &NodeSubnets) {
        for (range, subnet) in [(&mut self.v4, subnets.v4), (&mut self.v6, subnets.v6)] {
            if let (Some(range), Some(subnet)) = (range, subnet) {
                range.take_length(subnet);
            }
        }
    }

    /// True for subnets that the configuration gives out, in the families that it has.
    #[must_use]
    pub fn holds(&self, subnets: &NodeSubnets) -> bool {
        let holds = |range: &Option<SubnetRange>, subnet: &Option<Prefix>| match (range, subnet) {
            (Some(range), Some(subnet)) => range.holds(subnet),
            (None, None) => true,
            _ => false,
        };
        holds(&self.v4, &subnets.v4) && holds(&self.v6, &subnets.v6)
    }

    /// The subnets of a family.
    #[must_use]
    pub const fn range(&self, family: Family) -> Option<&SubnetRange> {
        match family {
            Family::Ipv4 => self.v4.as_ref(),
            Family::Ipv6 => self.v6.as_ref(),
        }
    }
}

fn range(fields: &Fields<'_>, names: &Names, family: Family) -> Result<SubnetRange, ConfigError> {
    let text = fields.text(names.network)?;
    let text = text.ok_or_else(|| wrong(names.network, "it is missing"))?;
    let network: Prefix = text
        .parse()
        .map_err(|e: caracal_model::PrefixError| wrong(names.network, e.to_string()))?;
    // The largest network length, the length up to which subnets have the usual length, and that.
    let (most, wide, usual) = match family {
        Family::Ipv4 => (28, 22, 24),
        Family::Ipv6 => (124, 62, 64),
    };
    if network.family() != family || network.len() > most {
        return Err(wrong(
            names.network,
            format!("{network} is no {family} network of at most /{most}"),
        ));
    }
    let usual = if network.len() <= wide {
        usual
    } else {
        network.len() + 2
    };
    let len = fields
        .number(names.len)?
        .unwrap_or_else(|| u64::from(usual));
    let longest = family.bits() - 2;
    let len = u8::try_from(len)
        .ok()
        .filter(|len| (network.len() + 2..=longest).contains(len))
        .ok_or_else(|| {
            wrong(
                names.len,
                format!(
                    "{len} is not between {} (the network's length and 2 bits more) and {longest}",
                    network.len() + 2
                ),
            )
        })?;
    let mut range = SubnetRange {
        network,
        len,
        first: 1,
        last: (1 << (len - network.len())) - 1,
    };
    let bound = |name| -> Result<Option<u128>, ConfigError> {
        let Some(text) = fields.text(name)? else {
            return Ok(None);
        };
        let address: IpAddr = text
            .parse()
            .map_err(|_| wrong(name, format!("{text:?} is no address")))?;
        let offset = network
            .offset(address)
            .ok_or_else(|| wrong(name, format!("{address} is not inside {network}")))?;
        if offset % range.subnet_size() != 0 {
            let reason = format!("{address} is not where a subnet of /{len} begins");
            return Err(wrong(name, reason));
        }
        Ok(Some(offset / range.subnet_size()))
    };
    let (first, last) = (bound(names.min)?, bound(names.max)?);
    range.first = first.unwrap_or(range.first);
    range.last = last.unwrap_or(range.last);
    if range.first > range.last {
        return Err(wrong(names.max, format!("it is below {}", names.min)));
    }
    Ok(range)
}

fn backend(
    fields: &Fields<'_>,
    has_v4: bool,
    notes: &mut Vec<String>,
) -> Result<Backend, ConfigError> {
    let options = match fields.value("Backend") {
        // What no backend at all means to flannel.
        None | Some(Value::Null) => return Ok(Backend::Udp { port: UDP_PORT }),
        Some(Value::Object(options)) => Fields(options),
        Some(_) => return Err(wrong("Backend", "it is no object")),
    };
    let name = options.text("Type")?.unwrap_or_default().to_lowercase();
    match name.as_str() {
        "vxlan" => {
            for wish in ["Learning", "GBP"] {
                if options.flag(wish, false)? {
                    notes.push(format!("Backend {wish}: not supported, and off"));
                }
            }
            let vni = options.bounded("VNI", 0xff_ffff)?.filter(|vni| *vni != 0);
            let mtu = options.bounded("MTU", u64::from(u16::MAX))?;
            Ok(Backend::Vxlan(VxlanOptions {
                vni: vni.unwrap_or(VNI),
                port: port(&options)?.unwrap_or(VXLAN_PORT),
                mtu: mtu.filter(|mtu| *mtu != 0),
                direct_routing: options.flag("DirectRouting", false)?,
            }))
        }
        "ipip" if !has_v4 => Err(wrong(
            "Backend",
            "ipip carries IPv4 alone, and EnableIPv4 is false",
        )),
        "ipip" => {
            if fields.flag("EnableIPv6", false)? {
                let note = "Backend ipip: it carries IPv4 alone; subnets of IPv6 have no routes";
                notes.push(note.to_owned());
            }
            Ok(Backend::Ipip {
                direct_routing: options.flag("DirectRouting", false)?,
            })
        }
        "host-gw" => Ok(Backend::HostGw),
        "udp" => Ok(Backend::Udp {
            port: port(&options)?.unwrap_or(UDP_PORT),
        }),
        "alloc" => Ok(Backend::Alloc),
        name if MISSING.contains(&name) => Err(ConfigError::MissingBackend(name.to_owned())),
        name => Err(ConfigError::UnknownBackend(name.to_owned())),
    }
}

/// `Port` of a backend; 0 stands for the usual one.
fn port(options: &Fields<'_>) -> Result<Option<u16>, ConfigError> {
    let port = options.bounded("Port", u64::from(u16::MAX))?;
    let port = port.and_then(|port| u16::try_from(port).ok());
    Ok(port.filter(|port| *port != 0))
}

/// A JSON object as Go reads it: names match in any case.
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn value(&self, name: &str) -> Option<&'a Value> {
        let similar = || {
            let mut fields = self.0.iter();
            fields.find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value))
        };
        self.0.get(name).or_else(similar)
    }

    fn flag(&self, name: &'static str, default: bool) -> Result<bool, ConfigError> {
        match self.value(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(set)) => Ok(*set),
            Some(other) => Err(wrong(name, format!("{other} is neither true nor false"))),
        }
    }

    fn text(&self, name: &'static str) -> Result<Option<&'a str>, ConfigError> {
        match self.value(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text).filter(|t| !t.is_empty()).map(|t| &**t)),
            Some(other) => Err(wrong(name, format!("{other} is no text"))),
        }
    }

    fn number(&self, name: &'static str) -> Result<Option<u64>, ConfigError> {
        match self.value(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_u64()
                .map(Some)
                .ok_or_else(|| wrong(name, format!("{value} is no whole number"))),
        }
    }

    fn bounded(&self, name: &'static str, most: u64) -> Result<Option<u32>, ConfigError> {
        let Some(number) = self.number(name)? else {
            return Ok(None);
        };
        u32::try_from(number)
            .ok()
            .filter(|_| number <= most)
            .map(Some)
            .ok_or_else(|| wrong(name, format!("{number} is more than {most}")))
    }
}

#[cfg(test)]
mod tests;
