//! Elements of sets and maps, as typed fields. Both of their forms come from the fields: the text
//! of scripts and listings, and the octets that the kernel takes.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Family, Prefix};

use crate::transport::Transport;

/// Octets of an interface's name in a key (`IFNAMSIZ`). The last one ends it.
const INTERFACE: usize = 16;
/// Most fields of a key or value.
const MOST_FIELDS: usize = 4;
/// Octets of the longest field, an address of IPv6 with the length of a range.
const MOST_OCTETS: usize = 17;
/// Between the fields of a key, and between a key and its data, in text.
const AND: &str = " . ";
const LEADS_TO: &str = " : ";
/// Families, as nftables calls them.
const IPV4: &str = "ipv4";
const IPV6: &str = "ipv6";

/// Name of a set or map, which its elements share.
pub(crate) type SetName = Arc<str>;

/// One field of a key or value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Field {
    /// `ipv4_addr`, `ipv6_addr`.
    Address(IpAddr),
    /// More than one address, in a set of intervals.
    Range(Prefix),
    /// `ifname`.
    Interface(InterfaceName),
    /// `nf_proto`.
    Family(Family),
    /// `inet_proto`.
    Protocol(Transport),
    /// `inet_service`.
    Port(u16),
    /// A number of 32 bits that the kernel itself has made, such as a random one.
    Index(u32),
}

/// The name of an interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InterfaceName([u8; INTERFACE - 1]);

impl InterfaceName {
    /// `None` = no interface can have this name.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let mut octets = [0; INTERFACE - 1];
        octets
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        Some(Self(octets))
    }

    pub(crate) fn as_str(&self) -> &str {
        let name = self.0.split(|octet| *octet == 0).next();
        std::str::from_utf8(name.unwrap_or_default()).unwrap_or_default()
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<IpAddr> for Field {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl From<&Prefix> for Field {
    /// A range of one address is an address, as nftables prints it.
    fn from(prefix: &Prefix) -> Self {
        match prefix.is_host() {
            true => Self::Address(prefix.address()),
            false => Self::Range(*prefix),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Range(prefix) => write!(f, "{prefix}"),
            Self::Interface(name) => write!(f, "\"{name}\""),
            Self::Family(Family::Ipv4) => f.write_str(IPV4),
            Self::Family(Family::Ipv6) => f.write_str(IPV6),
            Self::Protocol(protocol) => f.write_str(protocol.as_str()),
            Self::Port(port) => write!(f, "{port}"),
            Self::Index(index) => write!(f, "{index}"),
        }
    }
}

impl Field {
    /// Reads a field as nftables prints it. The first number of a key is a port.
    fn parse(text: &str, has_port: bool) -> Option<Self> {
        if let Some(name) = text.strip_prefix('"') {
            return InterfaceName::new(name.strip_suffix('"')?).map(Self::Interface);
        }
        if let Some(protocol) = Transport::from_word(text) {
            return Some(Self::Protocol(protocol));
        }
        match text {
            IPV4 => return Some(Self::Family(Family::Ipv4)),
            IPV6 => return Some(Self::Family(Family::Ipv6)),
            _ => {}
        }
        if text.contains('/') {
            return text.parse().ok().map(Self::Range);
        }
        let number = match has_port {
            true => text.parse().map(Self::Index),
            false => text.parse().map(Self::Port),
        };
        number.ok().or_else(|| text.parse().ok().map(Self::Address))
    }

    /// The octets that tell this field from others, and how many they are.
    pub(super) fn octets(&self) -> ([u8; MOST_OCTETS], usize) {
        let mut octets = [0; MOST_OCTETS];
        let mut put = |part: &[u8]| {
            octets[..part.len()].copy_from_slice(part);
            part.len()
        };
        let length = match self {
            Self::Address(IpAddr::V4(address)) => put(&address.octets()),
            Self::Address(IpAddr::V6(address)) => put(&address.octets()),
            Self::Range(prefix) => {
                let (address, length) = Self::Address(prefix.address()).octets();
                octets = address;
                octets[length] = prefix.len();
                length + 1
            }
            Self::Interface(name) => put(name.as_str().as_bytes()),
            // `NFPROTO_IPV4`, `NFPROTO_IPV6`.
            Self::Family(Family::Ipv4) => put(&[2]),
            Self::Family(Family::Ipv6) => put(&[10]),
            Self::Protocol(protocol) => put(&[protocol.number()]),
            Self::Port(port) => put(&port.to_be_bytes()),
            Self::Index(index) => put(&index.to_ne_bytes()),
        };
        (octets, length)
    }
}

/// Fields one behind the other: a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fields([Option<Field>; MOST_FIELDS]);

impl<const N: usize> From<[Field; N]> for Fields {
    fn from(fields: [Field; N]) -> Self {
        const { assert!(N <= MOST_FIELDS) };
        Self(std::array::from_fn(|at| fields.get(at).copied()))
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, field) in self.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { AND })?;
            write!(f, "{field}")?;
        }
        Ok(())
    }
}

impl Fields {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Field> {
        self.0.iter().flatten()
    }

    /// Reads fields as nftables prints them. `None` = they are none of ours.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut fields = [None; MOST_FIELDS];
        let mut has_port = false;
        for (at, text) in text.split(AND).enumerate() {
            let field = Field::parse(text, has_port)?;
            has_port |= matches!(field, Field::Port(_));
            *fields.get_mut(at)? = Some(field);
        }
        Some(Self(fields))
    }

    /// As the kernel has them: each field fills up whole registers of four octets. `None` = they
    /// are an interval.
    pub(crate) fn octets(&self) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        for field in self.iter() {
            let (octets, length) = field.octets();
            all.extend_from_slice(&octets[..length]);
            match field {
                Field::Range(_) => return None,
                Field::Interface(_) => all.resize(all.len() + INTERFACE - length, 0),
                // It is a key by itself, of one octet.
                Field::Family(_) => {}
                _ => all.resize(all.len().next_multiple_of(4), 0),
            }
        }
        Some(all)
    }
}

/// An element of a set, or of a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Element {
    pub(crate) key: Fields,
    /// `None` in sets.
    pub(crate) data: Option<ElementData>,
}

/// Where an element of a map leads. Small: tables have a hundred thousand elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ElementData {
    /// To an address and port.
    Value(IpAddr, u16),
    /// To this chain.
    Goto(Box<str>),
    Drop,
}

impl From<Fields> for Element {
    fn from(key: Fields) -> Self {
        Self { key, data: None }
    }
}

impl Element {
    pub(crate) const fn leading(key: Fields, data: ElementData) -> Self {
        Self {
            key,
            data: Some(data),
        }
    }

    /// Reads an element as nftables prints it. `None` = it is none of ours.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let Some((key, data)) = text.split_once(LEADS_TO) else {
            return Fields::parse(text).map(Self::from);
        };
        let data = match data.strip_prefix("goto ") {
            Some(chain) => ElementData::Goto(chain.into()),
            None if data == "drop" => ElementData::Drop,
            None => {
                let (address, port) = data.split_once(AND)?;
                ElementData::Value(address.parse().ok()?, port.parse().ok()?)
            }
        };
        Some(Self::leading(Fields::parse(key)?, data))
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        match &self.data {
            None => Ok(()),
            Some(ElementData::Value(address, port)) => write!(f, "{LEADS_TO}{address}{AND}{port}"),
            Some(ElementData::Goto(chain)) => write!(f, "{LEADS_TO}goto {chain}"),
            Some(ElementData::Drop) => write!(f, "{LEADS_TO}drop"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn address(text: &str) -> Field {
        Field::Address(text.parse().unwrap())
    }

    fn interface(name: &str) -> Field {
        Field::Interface(InterfaceName::new(name).unwrap())
    }

    #[test]
    fn fields_fill_up_registers() {
        let tcp = Field::Protocol(Transport::Tcp);
        let port = [
            address("10.96.0.1"),
            tcp,
            Field::Port(0x1234),
            Field::Index(2),
        ];
        let number = 2_u32.to_ne_bytes();
        let expected = [[10, 96, 0, 1], [6, 0, 0, 0], [0x12, 0x34, 0, 0], number];
        assert_eq!(Fields::from(port).octets(), Some(expected.concat()));
        let pair = Fields::from([interface("cali1"), address("fd00::1")]);
        let octets = pair.octets().unwrap();
        assert_eq!(octets.len(), 32);
        assert_eq!(&octets[..8], b"cali1\0\0\0");
        assert!(InterfaceName::new("cali0123456789a").is_some());
        assert_eq!(InterfaceName::new("cali0123456789ab"), None);
        let range: Prefix = "10.0.0.0/8".parse().unwrap();
        assert_eq!(Fields::from([Field::from(&range)]).octets(), None);
        let family = Fields::from([Field::Family(Family::Ipv6)]);
        assert_eq!(family.octets(), Some(vec![10]));
    }

    /// A key of each form that our tables have.
    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "10.0.0.1",
            "fd00::1",
            "\"cali1\"",
            "\"cali1\" . 10.0.0.1",
            "ipv6 : goto host-in-2",
            "10.0.0.0/8",
            "tcp . 80",
            "10.96.0.1 . sctp . 80",
            "10.96.0.1 . udp . 53 . 1 : 10.2.0.9 . 5353",
            "fd00::1 . tcp . 80 . fd01::/64",
            "10.96.0.1 . tcp . 80 : goto pick-endpoints-2",
            "10.96.0.1 . tcp . 80 : drop",
        ] {
            let element = Element::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(element.to_string(), text);
        }
        for text in [
            "10.0.0.1 timeout 9s",
            "10.0.0.1-10.0.0.9",
            "10.0.0.1 : jump x",
            "10.96.0.1 . tcp . 80 : accept",
            "\"cali0123456789ab\"",
            "tcp . 80 . 1 . 2 . 3",
            "",
        ] {
            assert_eq!(Element::parse(text), None, "{text}");
        }
        let host: Prefix = "10.0.0.1/32".parse().unwrap();
        assert_eq!(Field::from(&host), address("10.0.0.1"));
    }
}
