//! Values and their types, and how BIRD shows them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use caracal_model::{Family, Prefix};

use super::mask::{MaskItem, PathMask};
use super::set::{SetKind, ValueSet, address_key, key_address};
use crate::attrs::{AsPath, SegmentKind};
use crate::types::{Administrator, Community, ExtCommunity, ExtForm, LargeCommunity};

/// An enumeration of the language: the start of its words, BIRD's number of the type, the words
/// with their numbers.
#[derive(Debug)]
pub(super) struct Enumeration {
    /// What its values are, for people.
    pub what: &'static str,
    /// BIRD's number of the type.
    number: u8,
    /// The words.
    pub words: &'static [(&'static str, u8)],
}

/// All enumerations; [`ValueType::Enum`] holds the place in this list.
pub(super) static ENUMERATIONS: [Enumeration; 6] = [
    Enumeration {
        what: "a source (RTS_…)",
        number: 0x30,
        words: &[
            ("RTS_STATIC", 1),
            ("RTS_INHERIT", 2),
            ("RTS_DEVICE", 3),
            ("RTS_STATIC_DEVICE", 4),
            ("RTS_REDIRECT", 5),
            ("RTS_RIP", 6),
            ("RTS_OSPF", 7),
            ("RTS_OSPF_IA", 8),
            ("RTS_OSPF_EXT1", 9),
            ("RTS_OSPF_EXT2", 10),
            ("RTS_BGP", 11),
            ("RTS_PIPE", 12),
            ("RTS_BABEL", 13),
        ],
    },
    Enumeration {
        what: "an origin (ORIGIN_…)",
        number: 0x31,
        words: &[
            ("ORIGIN_IGP", 0),
            ("ORIGIN_EGP", 1),
            ("ORIGIN_INCOMPLETE", 2),
        ],
    },
    Enumeration {
        what: "a scope (SCOPE_…)",
        number: 0x32,
        words: &[
            ("SCOPE_HOST", 0),
            ("SCOPE_LINK", 1),
            ("SCOPE_SITE", 2),
            ("SCOPE_ORGANIZATION", 3),
            ("SCOPE_UNIVERSE", 4),
            ("SCOPE_UNDEFINED", 5),
        ],
    },
    Enumeration {
        what: "a kind of destination (RTD_…)",
        number: 0x34,
        words: &[
            ("RTD_UNICAST", 1),
            ("RTD_BLACKHOLE", 2),
            ("RTD_UNREACHABLE", 3),
            ("RTD_PROHIBIT", 4),
        ],
    },
    Enumeration {
        what: "the state of an origin (ROA_…)",
        number: 0x35,
        words: &[("ROA_UNKNOWN", 0), ("ROA_VALID", 1), ("ROA_INVALID", 2)],
    },
    Enumeration {
        what: "a kind of network (NET_…)",
        number: 0x36,
        words: &[("NET_IP4", 1), ("NET_IP6", 2)],
    },
];

/// Places in [`ENUMERATIONS`].
pub(super) const SOURCE: u8 = 0;
pub(super) const ORIGIN: u8 = 1;
pub(super) const SCOPE: u8 = 2;
pub(super) const DESTINATION: u8 = 3;
pub(super) const ORIGIN_STATE: u8 = 4;
pub(super) const NETWORK: u8 = 5;

/// The type of a value, as far as it is known when a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// Known at run time only.
    Unknown,
    /// No value.
    Void,
    /// True or false.
    Bool,
    /// A number of 32 bits.
    Int,
    /// A string.
    Text,
    /// An address.
    Ip,
    /// A destination.
    Prefix,
    /// Two numbers of 16 bits.
    Pair,
    /// A router id.
    Quad,
    /// An extended community.
    Extended,
    /// A large community.
    Large,
    /// A word of an enumeration.
    Enum(u8),
    /// An AS path.
    Path,
    /// A path mask.
    Mask,
    /// A list of communities.
    Communities,
    /// A list of extended communities.
    ExtCommunities,
    /// A list of large communities.
    LargeCommunities,
    /// `[]`.
    EmptySet,
    /// A set of intervals.
    Set(SetKind),
    /// A set of prefixes.
    PrefixSet,
}

impl ValueType {
    /// For people: `a number`.
    #[must_use]
    pub const fn what(self) -> &'static str {
        match self {
            Self::Unknown => "a value",
            Self::Void => "nothing",
            Self::Bool => "true or false",
            Self::Int => "a number",
            Self::Text => "a string",
            Self::Ip => "an address",
            Self::Prefix => "a prefix",
            Self::Pair => "a pair",
            Self::Quad => "a router id",
            Self::Extended => "an extended community",
            Self::Large => "a large community",
            Self::Enum(place) => ENUMERATIONS[place as usize % ENUMERATIONS.len()].what,
            Self::Path => "an AS path",
            Self::Mask => "a path mask",
            Self::Communities => "a list of communities",
            Self::ExtCommunities => "a list of extended communities",
            Self::LargeCommunities => "a list of large communities",
            Self::EmptySet => "an empty set",
            Self::Set(SetKind::Int) => "a set of numbers",
            Self::Set(SetKind::Ip) => "a set of addresses",
            Self::Set(SetKind::Pair) => "a set of pairs",
            Self::Set(SetKind::Quad) => "a set of router ids",
            Self::Set(SetKind::Extended) => "a set of extended communities",
            Self::Set(SetKind::Large) => "a set of large communities",
            Self::Set(SetKind::Enum(_)) => "a set of words",
            Self::PrefixSet => "a set of prefixes",
        }
    }

    /// True when a value of one type may stand where the other is wanted.
    #[must_use]
    pub fn fits(self, wanted: Self) -> bool {
        self == wanted
            || self == Self::Unknown
            || wanted == Self::Unknown
            || (self == Self::EmptySet && matches!(wanted, Self::Set(_) | Self::PrefixSet))
    }

    /// The type of sets that hold values of this type.
    #[must_use]
    pub const fn set_kind(self) -> Option<SetKind> {
        Some(match self {
            Self::Int => SetKind::Int,
            Self::Ip => SetKind::Ip,
            Self::Pair => SetKind::Pair,
            Self::Quad => SetKind::Quad,
            Self::Extended => SetKind::Extended,
            Self::Large => SetKind::Large,
            Self::Enum(place) => SetKind::Enum(place),
            _ => return None,
        })
    }
}

/// A list of a route as it is at the moment, not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteList {
    /// `bgp_path`
    Path,
    /// `bgp_community`
    Communities,
    /// `bgp_ext_community`
    ExtCommunities,
    /// `bgp_large_community`
    LargeCommunities,
    /// `bgp_cluster_list`
    Clusters,
}

/// A value. A copy costs no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value: an attribute that the route has not, a variable before its first assignment.
    Void,
    /// True or false.
    Bool(bool),
    /// A number.
    Int(u32),
    /// A string.
    Text(Arc<str>),
    /// The interface of the route.
    Interface,
    /// The name of the route's protocol.
    Protocol,
    /// An address.
    Ip(IpAddr),
    /// A destination.
    Prefix(Prefix),
    /// Two numbers of 16 bits.
    Pair(u32),
    /// A router id.
    Quad(u32),
    /// An extended community.
    Extended(ExtCommunity),
    /// A large community.
    Large(LargeCommunity),
    /// A word of an enumeration: its place and number.
    Enum(u8, u8),
    /// An AS path.
    Path(Arc<AsPath>),
    /// A path mask.
    Mask(Arc<PathMask>),
    /// A list of communities, sorted.
    Communities(Arc<[Community]>),
    /// A list of extended communities, sorted.
    ExtCommunities(Arc<[[u8; 8]]>),
    /// A list of large communities, sorted.
    LargeCommunities(Arc<[LargeCommunity]>),
    /// A set.
    Set(Arc<ValueSet>),
    /// A list of the route itself.
    Route(RouteList),
}

impl Value {
    /// Its type.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::Void => ValueType::Void,
            Self::Bool(_) => ValueType::Bool,
            Self::Int(_) => ValueType::Int,
            Self::Text(_) | Self::Interface | Self::Protocol => ValueType::Text,
            Self::Ip(_) => ValueType::Ip,
            Self::Prefix(_) => ValueType::Prefix,
            Self::Pair(_) => ValueType::Pair,
            Self::Quad(_) => ValueType::Quad,
            Self::Extended(_) => ValueType::Extended,
            Self::Large(_) => ValueType::Large,
            Self::Enum(place, _) => ValueType::Enum(*place),
            Self::Path(_) | Self::Route(RouteList::Path) => ValueType::Path,
            Self::Mask(_) => ValueType::Mask,
            Self::Communities(_) | Self::Route(RouteList::Communities | RouteList::Clusters) => {
                ValueType::Communities
            }
            Self::ExtCommunities(_) | Self::Route(RouteList::ExtCommunities) => {
                ValueType::ExtCommunities
            }
            Self::LargeCommunities(_) | Self::Route(RouteList::LargeCommunities) => {
                ValueType::LargeCommunities
            }
            Self::Set(set) => match &**set {
                ValueSet::Empty => ValueType::EmptySet,
                ValueSet::Ranges(kind, _) => ValueType::Set(*kind),
                ValueSet::Prefixes(_) => ValueType::PrefixSet,
            },
        }
    }

    /// The number by which it stands in sets, and by which it is compared.
    #[must_use]
    pub fn key(&self) -> Option<(SetKind, u128)> {
        Some(match self {
            Self::Int(number) => (SetKind::Int, (*number).into()),
            Self::Ip(address) => (SetKind::Ip, address_key(*address)),
            Self::Pair(pair) => (SetKind::Pair, (*pair).into()),
            Self::Quad(quad) => (SetKind::Quad, (*quad).into()),
            Self::Extended(community) => (SetKind::Extended, ext_key(*community)),
            Self::Large(community) => (SetKind::Large, large_key(*community)),
            Self::Enum(place, number) => (SetKind::Enum(*place), (*number).into()),
            _ => return None,
        })
    }
}

pub(super) fn ext_key(community: ExtCommunity) -> u128 {
    u64::from_be_bytes(community.0).into()
}

pub(super) fn large_key(community: LargeCommunity) -> u128 {
    let LargeCommunity(a, b, c) = community;
    u128::from(a) << 64 | u128::from(b) << 32 | u128::from(c)
}

/// The lowest 32 bits.
#[allow(clippy::cast_possible_truncation, reason = "that is what it is for")]
const fn low(key: u128) -> u32 {
    key as u32
}

fn pair(f: &mut fmt::Formatter<'_>, pair: u32) -> fmt::Result {
    write!(f, "({},{})", pair >> 16, pair & 0xffff)
}

fn extended(f: &mut fmt::Formatter<'_>, community: ExtCommunity) -> fmt::Result {
    match community.form() {
        ExtForm::Known(kind, Administrator::As(asn), number) => {
            write!(f, "({}, {asn}, {number})", kind.as_str())
        }
        ExtForm::Known(kind, Administrator::Address(address), number) => {
            write!(f, "({}, {address}, {number})", kind.as_str())
        }
        ExtForm::Generic(first, second) => write!(f, "(generic, {first:#x}, {second:#x})"),
    }
}

fn large(f: &mut fmt::Formatter<'_>, community: LargeCommunity) -> fmt::Result {
    let LargeCommunity(a, b, c) = community;
    write!(f, "({a}, {b}, {c})")
}

fn element(f: &mut fmt::Formatter<'_>, kind: SetKind, key: u128) -> fmt::Result {
    match kind {
        SetKind::Int | SetKind::Enum(_) => write!(f, "{key}"),
        SetKind::Ip => write!(f, "{}", key_address(key)),
        SetKind::Pair => pair(f, low(key)),
        SetKind::Quad => write!(f, "{}", Ipv4Addr::from_bits(low(key))),
        SetKind::Extended => {
            let (first, second) = (low(key >> 32), low(key));
            extended(f, ExtCommunity::generic(first, second))
        }
        SetKind::Large => large(f, LargeCommunity(low(key >> 64), low(key >> 32), low(key))),
    }
}

impl fmt::Display for ValueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, ranges) = match self {
            Self::Empty => return f.write_str("[]"),
            Self::Prefixes(set) => return set.fmt(f),
            Self::Ranges(kind, ranges) => (*kind, ranges),
        };
        f.write_str("[")?;
        for (index, (first, last)) in ranges.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            element(f, kind, *first)?;
            if first != last {
                f.write_str("..")?;
                element(f, kind, *last)?;
            }
        }
        f.write_str("]")
    }
}

impl fmt::Display for PathMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[= ")?;
        for item in &self.0 {
            match item {
                MaskItem::Any => f.write_str("* ")?,
                MaskItem::One => f.write_str("? ")?,
                MaskItem::More => f.write_str("+ ")?,
                MaskItem::Range(low, high) if low == high => write!(f, "{low} ")?,
                MaskItem::Range(low, high) => write!(f, "{low}..{high} ")?,
                MaskItem::Set(set) => write!(f, "{set} ")?,
            }
        }
        f.write_str("=]")
    }
}

fn list<T: Copy>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    items: &[T],
    one: impl Fn(&mut fmt::Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    write!(f, "({name} ")?;
    for (index, item) in items.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { " " })?;
        one(f, *item)?;
    }
    f.write_str(")")
}

impl fmt::Display for Value {
    /// As BIRD prints it. A list of the route itself has to be taken from it first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Void => f.write_str("(void)"),
            Self::Bool(true) => f.write_str("TRUE"),
            Self::Bool(false) => f.write_str("FALSE"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::Interface => f.write_str("ifname"),
            Self::Protocol => f.write_str("proto"),
            Self::Ip(address) => write!(f, "{address}"),
            Self::Prefix(prefix) => write!(f, "{prefix}"),
            Self::Pair(value) => pair(f, *value),
            Self::Quad(quad) => write!(f, "{}", Ipv4Addr::from_bits(*quad)),
            Self::Extended(community) => extended(f, *community),
            Self::Large(community) => large(f, *community),
            Self::Enum(place, number) => {
                let number_of_type = ENUMERATIONS[usize::from(*place) % ENUMERATIONS.len()].number;
                write!(f, "(enum {number_of_type:x}){number}")
            }
            Self::Path(path) => {
                f.write_str("(path ")?;
                show_path(f, path)?;
                f.write_str(")")
            }
            Self::Mask(mask) => mask.fmt(f),
            Self::Communities(items) => list(f, "clist", items, |f, item| pair(f, item.0)),
            Self::ExtCommunities(items) => list(f, "eclist", items, |f, item| {
                extended(f, ExtCommunity(item))
            }),
            Self::LargeCommunities(items) => list(f, "lclist", items, large),
            Self::Set(set) => set.fmt(f),
            Self::Route(which) => write!(f, "{which:?}"),
        }
    }
}

fn show_path(f: &mut fmt::Formatter<'_>, path: &AsPath) -> fmt::Result {
    let mut first = true;
    for (kind, asns) in path.segments() {
        let (open, close) = match kind {
            SegmentKind::Sequence => ("", ""),
            SegmentKind::Set => ("{", "}"),
        };
        f.write_str(if std::mem::take(&mut first) { "" } else { " " })?;
        f.write_str(open)?;
        for (index, asn) in asns.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " " })?;
            write!(f, "{asn}")?;
        }
        f.write_str(close)?;
    }
    Ok(())
}

/// The kind of network of a prefix, as a value.
pub(super) const fn network(prefix: &Prefix) -> Value {
    match prefix.family() {
        Family::Ipv4 => Value::Enum(NETWORK, 1),
        Family::Ipv6 => Value::Enum(NETWORK, 2),
    }
}
