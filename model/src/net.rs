//! IP prefixes. A [`Prefix`] is a route's destination and never carries host bits (MODEL-2).

mod outermost;
mod underlay;
mod zone;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use crate::names::IfName;
pub use outermost::{outermost, range_around};
pub use underlay::{Gateway, LocalNetworks, Underlay, UnderlayRoute};
pub use zone::{is_zoned, unzoned, zone, zoned};

/// Address family, IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4, 32-bit addresses.
    Ipv4,
    /// IPv6, 128-bit addresses.
    Ipv6,
}

impl Family {
    /// The number of bits in an address: 32 or 128.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }

    /// The family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    /// `ipv4` or `ipv6`, as in Calico's etcd keys.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// An IP prefix with all host bits zero (MODEL-2). Ordered IPv4 first, then by address, then by
/// length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Ord for Prefix {
    /// Compares addresses as numbers: a derived order compares their octets, which costs maps of
    /// routes several times as much.
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.address, other.address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits(), self.len).cmp(&(b.to_bits(), other.len))
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                (a.to_bits(), self.len).cmp(&(b.to_bits(), other.len))
            }
            (IpAddr::V4(_), IpAddr::V6(_)) => Ordering::Less,
            (IpAddr::V6(_), IpAddr::V4(_)) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Prefix {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Prefix {
    /// One word for IPv4: tables of routes are looked up by prefix, a million times per load.
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.address {
            IpAddr::V4(a) => state.write_u64(u64::from(u32::from(a)) << 8 | u64::from(self.len)),
            IpAddr::V6(a) => {
                state.write_u128(a.into());
                state.write_u8(self.len);
            }
        }
    }
}

/// Why a text or a pair (address, length) is no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// The text is not `ADDRESS/LENGTH`.
    #[error("{0:?} is not a CIDR; expected ADDRESS/LENGTH such as 10.244.0.0/16")]
    Syntax(String),
    /// The length exceeds the family's bits.
    #[error("prefix length {len} is too long for {family}; at most {max}", max = family.bits())]
    Length {
        /// The length in the text.
        len: u8,
        /// Family of the address.
        family: Family,
    },
    /// Host bits are set where a strict prefix is required.
    #[error("{address}/{len} has host bits set; the prefix is {masked}")]
    HostBits {
        /// The address as written.
        address: IpAddr,
        /// The length as written.
        len: u8,
        /// The same with host bits cleared.
        masked: Prefix,
    },
}

const fn mask4(len: u8) -> u32 {
    if len == 0 { 0 } else { u32::MAX << (32 - len) }
}

const fn mask6(len: u8) -> u128 {
    if len == 0 {
        0
    } else {
        u128::MAX << (128 - len)
    }
}

impl Prefix {
    /// The prefix of `len` bits that holds `address`; host bits are cleared.
    ///
    /// # Errors
    /// [`PrefixError::Length`] when `len` exceeds the family's bits.
    pub fn new(address: IpAddr, len: u8) -> Result<Self, PrefixError> {
        let family = Family::of(address);
        if len > family.bits() {
            return Err(PrefixError::Length { len, family });
        }
        Ok(Self::truncated(address, len))
    }

    /// Like [`Prefix::new`], with `len` clamped to the family's bits.
    #[must_use]
    pub fn truncated(address: IpAddr, len: u8) -> Self {
        match address {
            IpAddr::V4(a) => Self::v4(a, len),
            IpAddr::V6(a) => Self::v6(a, len),
        }
    }

    /// An IPv4 prefix; `len` is clamped to 32 and host bits are cleared.
    #[must_use]
    pub fn v4(address: Ipv4Addr, len: u8) -> Self {
        let len = len.min(32);
        let bits = u32::from(address) & mask4(len);
        Self {
            address: IpAddr::V4(bits.into()),
            len,
        }
    }

    /// An IPv6 prefix; `len` is clamped to 128 and host bits are cleared.
    #[must_use]
    pub fn v6(address: Ipv6Addr, len: u8) -> Self {
        let len = len.min(128);
        let bits = u128::from(address) & mask6(len);
        Self {
            address: IpAddr::V6(bits.into()),
            len,
        }
    }

    /// The /32 or /128 of one address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self {
            address,
            len: Family::of(address).bits(),
        }
    }

    /// The first address; host bits are zero.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The length in bits. A prefix has no emptiness, hence no `is_empty`.
    #[must_use]
    #[allow(
        clippy::len_without_is_empty,
        reason = "a prefix length is not a container length"
    )]
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// Family of the addresses.
    #[must_use]
    pub const fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// True for a /32 or /128.
    #[must_use]
    pub const fn is_host(&self) -> bool {
        self.len == self.family().bits()
    }

    /// True when `address` lies inside; false across families.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(p), IpAddr::V4(a)) => u32::from(a) & mask4(self.len) == u32::from(p),
            (IpAddr::V6(p), IpAddr::V6(a)) => u128::from(a) & mask6(self.len) == u128::from(p),
            _ => false,
        }
    }

    /// True when `other` is equal to or more specific than `self`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.len <= other.len && self.contains(other.address)
    }

    /// True when the two share an address.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Number of addresses, saturating at `u128::MAX` for `::/0`.
    #[must_use]
    pub fn size(&self) -> u128 {
        1u128
            .checked_shl(u32::from(self.family().bits() - self.len))
            .unwrap_or(u128::MAX)
    }

    /// The address at offset `n` from the start; `None` past the end.
    #[must_use]
    pub fn nth(&self, n: u128) -> Option<IpAddr> {
        if n >= self.size() {
            return None;
        }
        Some(match self.address {
            IpAddr::V4(a) => IpAddr::V4((u32::from(a) + u32::try_from(n).ok()?).into()),
            IpAddr::V6(a) => IpAddr::V6((u128::from(a) + n).into()),
        })
    }

    /// The offset of `address` from the start; `None` outside.
    #[must_use]
    pub fn offset(&self, address: IpAddr) -> Option<u128> {
        if !self.contains(address) {
            return None;
        }
        match (self.address, address) {
            (IpAddr::V4(p), IpAddr::V4(a)) => Some(u128::from(u32::from(a) - u32::from(p))),
            (IpAddr::V6(p), IpAddr::V6(a)) => Some(u128::from(a) - u128::from(p)),
            _ => None,
        }
    }

    /// Parses and refuses host bits, as Calico's pool validation does.
    ///
    /// # Errors
    /// Any [`PrefixError`].
    pub fn parse_strict(text: &str) -> Result<Self, PrefixError> {
        let net = Cidr::from_str(text)?;
        let masked = net.prefix();
        if masked.address != net.address {
            return Err(PrefixError::HostBits {
                address: net.address,
                len: net.len,
                masked,
            });
        }
        Ok(masked)
    }

    /// The form in Calico's etcd keys: only the slash becomes a dash, `10.244.3.64-26`.
    #[must_use]
    pub fn to_key(&self) -> String {
        format!("{}-{}", self.address, self.len)
    }

    /// Reads [`Prefix::to_key`]'s form. Host bits are masked, as Calico does before writing.
    ///
    /// # Errors
    /// [`PrefixError`] when the text is not `ADDRESS-LENGTH`.
    pub(crate) fn from_key(text: &str) -> Result<Self, PrefixError> {
        let (address, len) = text
            .rsplit_once('-')
            .ok_or_else(|| PrefixError::Syntax(text.to_owned()))?;
        Self::from_str(&format!("{address}/{len}"))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Through `pad` so that tables can align it.
        f.pad(&format!("{}/{}", self.address, self.len))
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    /// Parses `ADDRESS/LENGTH`; host bits are cleared. A bare address is a host prefix.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        Ok(Cidr::from_str(text)?.prefix())
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        Self::from_str(&text).map_err(serde::de::Error::custom)
    }
}

/// An address together with its subnet's prefix length (`10.10.0.5/24`): an interface address, so
/// host bits are kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The address, with its host bits.
    pub address: IpAddr,
    /// Length of the subnet's prefix, in bits.
    pub len: u8,
}

impl Cidr {
    /// The subnet.
    #[must_use]
    pub fn prefix(&self) -> Prefix {
        Prefix::truncated(self.address, self.len)
    }
}

impl From<IpNetwork> for Cidr {
    fn from(net: IpNetwork) -> Self {
        Self {
            address: net.ip(),
            len: net.prefix(),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.address, self.len))
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Cidr {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let syntax = || PrefixError::Syntax(text.to_owned());
        let (address, len) = match text.split_once('/') {
            // Behind the slash `ipnetwork` takes a netmask and a sign, too; Calico does not.
            Some((address, len)) if len.bytes().all(|b| b.is_ascii_digit()) => {
                (address, Some(len.parse().map_err(|_| syntax())?))
            }
            Some(_) => return Err(syntax()),
            None => (text, None),
        };
        match (IpNetwork::from_str(text), len) {
            (Ok(net), _) => Ok(net.into()),
            // It says the same of an address that is none and of a length that is too long.
            (Err(_), Some(len)) => {
                let family = Family::of(address.parse().map_err(|_| syntax())?);
                Err(PrefixError::Length { len, family })
            }
            (Err(_), None) => Err(syntax()),
        }
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        Self::from_str(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn model_2_host_bits_are_cleared() {
        assert_eq!(p("10.1.2.3/24").to_string(), "10.1.2.0/24");
        assert_eq!(p("fd00::1/64").to_string(), "fd00::/64");
        assert_eq!(p("10.1.2.3").to_string(), "10.1.2.3/32");
        assert_eq!(p("0.0.0.0/0").size(), 1 << 32);
        assert_eq!(p("::/0").size(), u128::MAX);
    }

    #[test]
    fn strict_parsing_names_the_masked_prefix() {
        let error = Prefix::parse_strict("10.1.2.3/24").unwrap_err();
        assert_eq!(
            error.to_string(),
            "10.1.2.3/24 has host bits set; the prefix is 10.1.2.0/24"
        );
        assert!(matches!(
            Prefix::parse_strict("10.1.2.0/33"),
            Err(PrefixError::Length { .. })
        ));
        for bad in [
            "",
            "10.1.2/24",
            "10.1.2.0/",
            "10.1.2.0/+8",
            "10.1.2.0/-1",
            "10.1.2.0/255.255.255.0",
            "10.1.2/33",
            "banana",
        ] {
            assert!(
                matches!(Prefix::parse_strict(bad), Err(PrefixError::Syntax(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn keys_keep_dots_and_colons() {
        assert_eq!(p("10.244.3.64/26").to_key(), "10.244.3.64-26");
        assert_eq!(p("fd00:10:244::40/122").to_key(), "fd00:10:244::40-122");
        assert_eq!(
            Prefix::from_key("fd00:10:244::40-122").unwrap(),
            p("fd00:10:244::40/122")
        );
        assert!(Prefix::from_key("10.244.3.64").is_err());
    }

    #[test]
    fn containment() {
        assert!(p("10.0.0.0/8").covers(&p("10.1.0.0/16")));
        assert!(!p("10.1.0.0/16").covers(&p("10.0.0.0/8")));
        assert!(p("10.1.0.0/16").overlaps(&p("10.0.0.0/8")));
        assert!(!p("10.0.0.0/8").contains("fd00::1".parse().unwrap()));
        assert_eq!(
            p("10.0.0.64/26").nth(63),
            Some("10.0.0.127".parse().unwrap())
        );
        assert_eq!(p("10.0.0.64/26").nth(64), None);
        assert_eq!(
            p("10.0.0.64/26").offset("10.0.0.70".parse().unwrap()),
            Some(6)
        );
        assert_eq!(
            p("10.0.0.64/26").offset("10.0.0.128".parse().unwrap()),
            None
        );
    }

    fn prefix(bits: u128, v6: bool, len: u8) -> Prefix {
        if v6 {
            Prefix::v6(bits.into(), len)
        } else {
            Prefix::v4(u32::try_from(bits & 0xffff_ffff).unwrap().into(), len)
        }
    }

    proptest::proptest! {
        #[test]
        fn ordered_by_family_address_and_length(
            a: (u128, bool), b: (u128, bool), near: bool, lens in (0u8..=128, 0u8..=128)
        ) {
            let bits = if near { a.0 ^ (b.0 & 3) } else { b.0 };
            let (a, b) = (prefix(a.0, a.1, lens.0), prefix(bits, b.1, lens.1));
            let order = (a.address(), a.len()).cmp(&(b.address(), b.len()));
            proptest::prop_assert_eq!(a.cmp(&b), order);
            proptest::prop_assert_eq!(a == b, order.is_eq());
        }

        #[test]
        fn text_and_key_round_trip(bits: u128, v6: bool, len in 0u8..=128) {
            let prefix = prefix(bits, v6, len);
            proptest::prop_assert_eq!(prefix.to_string().parse::<Prefix>().unwrap(), prefix);
            proptest::prop_assert_eq!(Prefix::from_key(&prefix.to_key()).unwrap(), prefix);
            proptest::prop_assert_eq!(Prefix::parse_strict(&prefix.to_string()).unwrap(), prefix);
        }
    }
}
