//! The result of an ADD, in the formats of the versions: 0.x tells the family of each address, 1.1
//! the MTU of each interface. Fields that are not known here pass through, so that a chain of
//! plugins keeps them.

use std::net::IpAddr;

use caracal_model::{Cidr, Family};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::CniVersion;

/// An interface of the result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interface {
    pub name: String,
    /// The hardware address, `ee:ee:ee:ee:ee:ee`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The MTU in octets; from 1.1.0 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The path of the network namespace; absent for an interface of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// An address of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct IpConfig {
    /// The address with the length of its subnet.
    pub address: Cidr,
    /// The gateway of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Index into the interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl IpConfig {
    /// An address without gateway on an interface.
    #[must_use]
    pub(crate) fn new(address: Cidr, interface: Option<usize>) -> Self {
        Self {
            address,
            gateway: None,
            interface,
            extra: Map::new(),
        }
    }
}

/// A route of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Route {
    /// The destination.
    pub dst: Cidr,
    /// The next hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The interfaces; an IPAM plugin has none.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_empty"
    )]
    pub interfaces: Vec<Interface>,
    /// The addresses.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub ips: Vec<IpConfig>,
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_empty"
    )]
    pub routes: Vec<Route>,
    /// Name servers, as they were given to us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<Value>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

fn null_is_empty<'de, D, T>(d: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

impl Outcome {
    /// Reads a result of any supported version: a `prevResult`, or what an IPAM plugin printed.
    ///
    /// # Errors
    /// serde's, with the field.
    pub(crate) fn from_json(value: &Value) -> Result<Self, serde_json::Error> {
        let mut outcome = Self::deserialize(value)?;
        outcome.extra.remove("cniVersion");
        for ip in &mut outcome.ips {
            ip.extra.remove("version");
        }
        Ok(outcome)
    }

    /// Writes the format of a version.
    #[must_use]
    pub(crate) fn to_json(&self, version: CniVersion) -> Value {
        let mut outcome = self.clone();
        if version < CniVersion::V1_1_0 {
            for interface in &mut outcome.interfaces {
                interface.mtu = None;
            }
        }
        if version < CniVersion::V1_0_0 {
            for ip in &mut outcome.ips {
                let family = match Family::of(ip.address.address) {
                    Family::Ipv4 => "4",
                    Family::Ipv6 => "6",
                };
                ip.extra.insert("version".into(), family.into());
            }
        }
        let mut object = Map::new();
        object.insert("cniVersion".into(), version.as_str().into());
        if let Value::Object(fields) =
            serde_json::to_value(&outcome).expect("a result is always valid JSON")
        {
            object.extend(fields);
        }
        Value::Object(object)
    }

    /// Puts what an earlier plugin of the chain made before our own. Our addresses keep pointing at
    /// our interfaces.
    #[must_use]
    pub(crate) fn after(self, previous: Self) -> Self {
        let mut all = previous;
        let offset = all.interfaces.len();
        all.interfaces.extend(self.interfaces);
        all.ips.extend(self.ips.into_iter().map(|mut ip| {
            ip.interface = ip.interface.map(|index| index + offset);
            ip
        }));
        all.routes.extend(self.routes);
        all.dns = self.dns.or(all.dns);
        all
    }

    /// The same with the next hop of each route that leaves it to the plugin: the gateway of an
    /// address of its family, through which it is in the kernel. CHECK of older `bridge` plugins
    /// finds no other route.
    #[must_use]
    pub(crate) fn with_next_hops(mut self) -> Self {
        for route in &mut self.routes {
            let family = Family::of(route.dst.address);
            let mut gateways = self.ips.iter().filter_map(|ip| ip.gateway);
            let gateway = gateways.find(|gateway| Family::of(*gateway) == family);
            route.gw = route.gw.or(gateway);
        }
        self
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ips.iter().map(|ip| ip.address.address)
    }
}
