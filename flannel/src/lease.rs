//! The two halves of a lease in etcd: the key names the subnets, the value who has them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_model::{Family, Mac, Prefix, format_mac, parse_mac};
use serde_json::{Map, Value, json};

/// Fields of a lease's value, in flannel's order.
const FIELDS: [&str; 5] = [
    "PublicIP",
    "PublicIPv6",
    "BackendType",
    "BackendData",
    "BackendV6Data",
];

/// Letters of a value that is no JSON of which a reason tells.
const MOST_SHOWN: usize = 200;

/// What stands for a subnet of IPv4 in the keys of networks that have none.
const NO_V4: &str = "0.0.0.0-0";

/// The subnets of one node, at least one, as the end of a lease's key has them: `10.5.72.0-24`,
/// with IPv6 `10.5.72.0-24&fd00:5:1::-64`, and without IPv4 `0.0.0.0-0&fd00:5:1::-64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeSubnets {
    /// The subnet of IPv4.
    pub v4: Option<Prefix>,
    /// That of IPv6.
    pub v6: Option<Prefix>,
}

impl NodeSubnets {
    /// Reads the end of a key; `None` for what flannel does not take for a lease either.
    #[must_use]
    pub fn parse_key(text: &str) -> Option<Self> {
        let prefix = |text: &str, family: Family| {
            let (address, len) = text.rsplit_once('-')?;
            let prefix: Prefix = format!("{address}/{len}").parse().ok()?;
            (prefix.family() == family && !prefix.is_host()).then_some(prefix)
        };
        let (v4, v6) = match text.split_once('&') {
            Some((v4, v6)) => (v4, Some(prefix(v6, Family::Ipv6)?)),
            None => (text, None),
        };
        let v4 = match v6 {
            Some(_) if v4 == NO_V4 => None,
            _ => Some(prefix(v4, Family::Ipv4)?),
        };
        Some(Self { v4, v6 })
    }

    /// The end of the key.
    #[must_use]
    pub fn to_key(&self) -> String {
        let v4 = self.v4.map_or_else(|| NO_V4.to_owned(), |v4| v4.to_key());
        match self.v6 {
            Some(v6) => format!("{v4}&{}", v6.to_key()),
            None => v4,
        }
    }

    /// The subnets, that of IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = Prefix> {
        [self.v4, self.v6].into_iter().flatten()
    }

    /// Where the address of a device that carries both families is from: the first subnet.
    pub(crate) fn first(&self) -> Option<Prefix> {
        self.v4.or(self.v6)
    }

    /// The subnet of a family.
    #[must_use]
    pub const fn subnet(&self, family: Family) -> Option<Prefix> {
        match family {
            Family::Ipv4 => self.v4,
            Family::Ipv6 => self.v6,
        }
    }

    /// True when the two share an address.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> bool {
        let share = |a: Option<Prefix>, b| a.zip(b).is_some_and(|(a, b)| a.overlaps(&b));
        share(self.v4, other.v4) || share(self.v6, other.v6)
    }
}

impl fmt::Display for NodeSubnets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.v4, self.v6) {
            (Some(v4), Some(v6)) => write!(f, "{v4} and {v6}"),
            (v4, v6) => v4.or(v6).map_or(Ok(()), |only| write!(f, "{only}")),
        }
    }
}

/// Why a value is no lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LeaseError(String);

/// A lease's value: which node has the subnets, and what its backend needs to be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetLease {
    /// Address of the node. Flannel writes 0.0.0.0 where there is none.
    pub public_ip: Option<Ipv4Addr>,
    /// Its address of IPv6.
    pub public_ipv6: Option<Ipv6Addr>,
    /// The backend; empty for `udp` and `alloc`.
    pub backend_type: String,
    /// What the backend says of the node.
    pub backend_data: Option<Value>,
    /// The same of its device for IPv6.
    pub backend_v6_data: Option<Value>,
    /// Fields that nobody here knows; they survive.
    pub unknown: Map<String, Value>,
}

impl SubnetLease {
    /// Reads a value. Releases of flannel up to 0.14 wrote no `PublicIPv6`.
    ///
    /// # Errors
    /// [`LeaseError`] with a reason.
    pub fn parse(text: &[u8]) -> Result<Self, LeaseError> {
        let value: Value = serde_json::from_slice(text).map_err(|error| {
            let seen = String::from_utf8_lossy(text);
            let seen: String = seen.chars().take(MOST_SHOWN).collect();
            LeaseError(format!("{error}: {seen:?}"))
        })?;
        let Value::Object(mut fields) = value else {
            return Err(LeaseError("it is no JSON object".to_owned()));
        };
        let mut take = |name: &str| fields.shift_remove(name).filter(|value| !value.is_null());
        let [ip, ipv6, backend_type, backend_data, backend_v6_data] = FIELDS.map(&mut take);
        let text = |name: &str, value: &Value| {
            let text = value.as_str().map(str::to_owned);
            text.ok_or_else(|| LeaseError(format!("{name} is no text: {value}")))
        };
        let address =
            |name: &str, text: &str| LeaseError(format!("{name} is no address: {text:?}"));
        if ip.is_none() && ipv6.is_none() {
            return Err(LeaseError("PublicIP is missing".to_owned()));
        }
        let ip = ip.map(|value| text("PublicIP", &value)).transpose()?;
        let ip = ip.map(|text| text.parse().map_err(|_| address("PublicIP", &text)));
        let ip = ip.transpose()?.filter(|ip: &Ipv4Addr| !ip.is_unspecified());
        if ip.is_none() && ipv6.is_none() {
            let reason = "PublicIP is 0.0.0.0, and there is no PublicIPv6".to_owned();
            return Err(LeaseError(reason));
        }
        let ipv6 = ipv6.map(|value| text("PublicIPv6", &value)).transpose()?;
        let backend_type = backend_type.map(|value| text("BackendType", &value));
        Ok(Self {
            public_ip: ip,
            public_ipv6: ipv6
                .map(|text| text.parse().map_err(|_| address("PublicIPv6", &text)))
                .transpose()?,
            backend_type: backend_type.transpose()?.unwrap_or_default(),
            backend_data,
            backend_v6_data,
            unknown: fields,
        })
    }

    /// The value as flannel writes it, and behind it what was not known.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut fields = Map::new();
        let ip = self.public_ip.unwrap_or(Ipv4Addr::UNSPECIFIED);
        fields.insert("PublicIP".to_owned(), json!(ip.to_string()));
        let ipv6 = self.public_ipv6.map(|address| address.to_string());
        fields.insert("PublicIPv6".to_owned(), json!(ipv6));
        if !self.backend_type.is_empty() {
            fields.insert("BackendType".to_owned(), json!(self.backend_type));
        }
        for (name, data) in [
            ("BackendData", &self.backend_data),
            ("BackendV6Data", &self.backend_v6_data),
        ] {
            if let Some(data) = data {
                fields.insert(name.to_owned(), data.clone());
            }
        }
        fields.extend(self.unknown.clone());
        Value::Object(fields).to_string().into_bytes()
    }

    /// The node's address of a family.
    #[must_use]
    pub fn public(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => self.public_ip.map(IpAddr::V4),
            Family::Ipv6 => self.public_ipv6.map(IpAddr::V6),
        }
    }

    /// What the node is called in texts: its address, that of IPv4 before that of IPv6.
    #[must_use]
    pub fn node(&self) -> IpAddr {
        let mut families = [Family::Ipv4, Family::Ipv6].into_iter();
        let address = families.find_map(|family| self.public(family));
        address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED))
    }

    /// True when both are one machine's. Its address of IPv4 says so, where both have one.
    #[must_use]
    pub fn is_of_same_node(&self, other: &Self) -> bool {
        match (self.public_ip, other.public_ip) {
            (Some(a), Some(b)) => a == b,
            _ => self.public_ipv6.is_some() && self.public_ipv6 == other.public_ipv6,
        }
    }

    /// The VNI of the backend vxlan, where the lease names one.
    #[must_use]
    pub(crate) fn vni(&self) -> Option<u32> {
        let mut families = [Family::Ipv4, Family::Ipv6].into_iter();
        families.find_map(|family| self.vtep(family)?.vni)
    }

    /// The port of the backend vxlan, where the lease names one.
    #[must_use]
    pub(crate) fn port(&self) -> Option<u16> {
        let mut families = [Family::Ipv4, Family::Ipv6].into_iter();
        families.find_map(|family| self.vtep(family)?.port)
    }

    /// What the backend vxlan says of a family's device.
    #[must_use]
    pub fn vtep(&self, family: Family) -> Option<Vtep> {
        let data = match family {
            Family::Ipv4 => self.backend_data.as_ref(),
            Family::Ipv6 => self.backend_v6_data.as_ref(),
        };
        Vtep::from_data(data?)
    }
}

/// A VXLAN device as a lease names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vtep {
    /// VXLAN network identifier; releases of flannel up to 0.13 wrote none.
    pub vni: Option<u32>,
    /// MAC address of the device.
    pub mac: Mac,
    /// UDP port, where it is not Linux's usual one. flanneld writes none and reads none; whoever
    /// hears of this device before the configuration that it is of needs it.
    pub port: Option<u16>,
}

impl Vtep {
    fn from_data(data: &Value) -> Option<Self> {
        let vni = data["VNI"].as_u64().and_then(|vni| u32::try_from(vni).ok());
        let mac = parse_mac(data["VtepMAC"].as_str()?)?;
        let port = data["Port"].as_u64().and_then(|port| port.try_into().ok());
        Some(Self { vni, mac, port })
    }

    /// `BackendData` of a lease.
    #[must_use]
    pub(crate) fn to_data(self) -> Value {
        let mut data = json!({"VNI": self.vni, "VtepMAC": format_mac(&self.mac)});
        if let Some(port) = self.port {
            data["Port"] = json!(port);
        }
        data
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_flannels_octet_for_octet() {
        for text in [
            r#"{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}"#,
            r#"{"PublicIP":"10.0.0.1","PublicIPv6":"fd00::1","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}}"#,
            r#"{"PublicIP":"10.0.0.1","PublicIPv6":null,"BackendType":"host-gw"}"#,
            r#"{"PublicIP":"10.0.0.1","PublicIPv6":null}"#,
            r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::1","BackendType":"host-gw"}"#,
            r#"{"PublicIP":"10.0.0.1","PublicIPv6":null,"BackendType":"host-gw","Later":{"b":1,"a":[2]}}"#,
        ] {
            let lease = SubnetLease::parse(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(lease.to_json()).unwrap(), text);
        }
        let vtep = Vtep {
            vni: Some(1),
            mac: [0xc6, 0xd2, 0x32, 0x6f, 0x8f, 0x44],
            port: None,
        };
        assert_eq!(
            vtep.to_data().to_string(),
            r#"{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}"#
        );
    }

    #[test]
    fn a_lease_of_nobody_is_none() {
        for (text, reason) in [
            (r#"{"PublicIPv6":null}"#, "PublicIP is missing"),
            (
                r#"{"PublicIP":"0.0.0.0","PublicIPv6":null,"BackendType":"host-gw"}"#,
                "PublicIP is 0.0.0.0, and there is no PublicIPv6",
            ),
        ] {
            let error = SubnetLease::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }

    #[test]
    fn old_releases_are_read() {
        let old = br#"{"PublicIP":"10.0.0.1","BackendType":"vxlan","BackendData":{"VtepMAC":"c6:d2:32:6f:8f:44"}}"#;
        let lease = SubnetLease::parse(old).unwrap();
        assert_eq!(lease.public_ipv6, None);
        assert_eq!(lease.vtep(Family::Ipv4).unwrap().vni, None);
        assert_eq!(lease.vtep(Family::Ipv6), None);
    }

    #[test]
    fn what_is_no_lease_says_why() {
        for (text, says) in [
            ("", "EOF"),
            ("7", "no JSON object"),
            ("{}", "PublicIP is missing"),
            (r#"{"PublicIP":7}"#, "PublicIP is no text"),
            (r#"{"PublicIP":"10.0.0.256"}"#, "PublicIP is no address"),
            (
                r#"{"PublicIP":"10.0.0.1","PublicIPv6":"10.0.0.1"}"#,
                "PublicIPv6 is no address",
            ),
        ] {
            let error = SubnetLease::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn keys_are_flannels() {
        let both = NodeSubnets::parse_key("10.5.72.0-24&fd00:5:1::-64").unwrap();
        assert_eq!(both.v4, Some("10.5.72.0/24".parse().unwrap()));
        assert_eq!(both.v6, Some("fd00:5:1::/64".parse().unwrap()));
        assert_eq!(both.to_key(), "10.5.72.0-24&fd00:5:1::-64");
        let alone = NodeSubnets::parse_key("0.0.0.0-0&fd00:5:1::-64").unwrap();
        assert_eq!((alone.v4, alone.v6), (None, both.v6));
        assert_eq!(alone.to_key(), "0.0.0.0-0&fd00:5:1::-64");
        assert!(alone.overlap(&both));
        for text in [
            "",
            "10.5.72.0",
            "10.5.72.7-32",
            "0.0.0.0-0&10.6.0.0-24",
            "fd00::-64",
            "a-24",
            "10.5.0.0-24&10.6.0.0-24",
        ] {
            assert_eq!(NodeSubnets::parse_key(text), None, "{text}");
        }
        // The same subnet under two keys is one subnet.
        let alone = NodeSubnets::parse_key("10.5.72.0-24").unwrap();
        assert!(alone.overlap(&both) && alone != both);
    }

    proptest! {
        #[test]
        fn keys_and_values_come_back(
            v4 in prop::option::of((any::<u32>(), 1u8..32)), v6 in prop::option::of((any::<u128>(), 1u8..128)),
            ip in 1u32.., ipv6: Option<u128>, mac: Option<Mac>, port: Option<u16>, later: Option<u64>,
        ) {
            prop_assume!(v4.is_some() || v6.is_some());
            let subnets = NodeSubnets {
                v4: v4.map(|(address, len)| Prefix::v4(address.into(), len)),
                v6: v6.map(|(address, len)| Prefix::v6(address.into(), len)),
            };
            prop_assert_eq!(NodeSubnets::parse_key(&subnets.to_key()), Some(subnets));
            let lease = SubnetLease {
                public_ip: (ip % 2 == 0 || ipv6.is_none()).then(|| ip.into()),
                public_ipv6: ipv6.map(Into::into),
                backend_type: mac.map(|_| "vxlan".to_owned()).unwrap_or_default(),
                backend_data: mac.map(|mac| Vtep { vni: Some(1), mac, port }.to_data()),
                backend_v6_data: None,
                unknown: later.map(|n| ("Later".to_owned(), json!(n))).into_iter().collect(),
            };
            let read = SubnetLease::parse(&lease.to_json()).unwrap();
            prop_assert_eq!(read.vtep(Family::Ipv4).map(|v| v.mac), mac);
            prop_assert_eq!(read, lease);
        }

        #[test]
        fn no_text_breaks_the_readers(text in ".{0,60}") {
            let _key = NodeSubnets::parse_key(&text);
            let _value = SubnetLease::parse(text.as_bytes());
        }
    }
}
