//! Elements of the sets of our table, and what tells them apart.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::super::{HASH_OF_NOTHING, hashed};
use crate::nft::{Fields, SetElement};

/// One element of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Element<'a> {
    Address(IpAddr),
    Interface(&'a str),
    /// An interface with a source.
    Source(&'a str, IpAddr),
}

impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Interface(name) => write!(f, "\"{name}\""),
            Self::Source(name, address) => write!(f, "\"{name}\" . {address}"),
        }
    }
}

impl<'a> Element<'a> {
    /// Reads an element as nftables lists it. `None` = it is none of ours.
    fn parse(text: &'a str) -> Option<Self> {
        let unquoted = |text: &'a str| text.strip_prefix('"')?.strip_suffix('"');
        match text.split_once(" . ") {
            Some((name, address)) => Some(Self::Source(unquoted(name)?, address.parse().ok()?)),
            None => unquoted(text)
                .map(Self::Interface)
                .or_else(|| Some(Self::Address(text.parse().ok()?))),
        }
    }

    /// As the kernel has it. `None` = no interface can have its name.
    pub(super) fn as_data(&self) -> Option<SetElement> {
        let key = Fields::default();
        let key = match *self {
            Self::Address(address) => key.address(address),
            Self::Interface(name) => key.interface(name)?,
            Self::Source(name, address) => key.interface(name)?.address(address),
        };
        Some(SetElement { key, data: None })
    }

    /// A number that tells this element of this set from others.
    fn hash(self, of_set: u64) -> u64 {
        let named = |name: &str| hashed(of_set, name.bytes());
        let addressed = |hash, address| match address {
            IpAddr::V4(address) => hashed(hash, address.octets()),
            IpAddr::V6(address) => hashed(hash, address.octets()),
        };
        let hash = match self {
            Self::Address(address) => addressed(of_set, address),
            Self::Interface(name) => named(name),
            Self::Source(name, address) => addressed(hashed(named(name), [0]), address),
        };
        spread(hash)
    }
}

/// Hashes are added up: of FNV, sums of what differs in the last octet alone may well be equal
/// (finaliser of `SplitMix64`).
const fn spread(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

fn hash_of_set(name: &str) -> u64 {
    hashed(HASH_OF_NOTHING, name.bytes().chain([0]))
}

/// The hash of an element as nftables lists it.
pub(super) fn listed_hash(set: &str, text: &str) -> u64 {
    let set = hash_of_set(set);
    match Element::parse(text) {
        Some(element) => element.hash(set),
        // Somebody else's: it counts, whatever it is.
        None => spread(hashed(set, text.bytes().chain([0xff]))),
    }
}

pub(super) fn sum(set: &str, elements: &[Element<'_>]) -> u64 {
    let set = hash_of_set(set);
    let hashes = elements.iter().map(|element| element.hash(set));
    hashes.fold(0, u64::wrapping_add)
}

/// Sets with their elements, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sets<'a>(pub(super) BTreeMap<String, Vec<Element<'a>>>);

impl<'a> Sets<'a> {
    pub(super) fn put(&mut self, set: &str, mut elements: Vec<Element<'a>>) {
        elements.sort_unstable();
        elements.dedup();
        self.0.insert(set.to_owned(), elements);
    }

    /// Writes the elements of a set. Nothing of none, which nftables would not take.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, set: &str) -> fmt::Result {
        let elements = self.0.get(set).map(Vec::as_slice).unwrap_or_default();
        for (at, element) in elements.iter().enumerate() {
            f.write_str(if at == 0 { "\t\telements = { " } else { ", " })?;
            write!(f, "{element}")?;
        }
        f.write_str(if elements.is_empty() { "" } else { " }\n" })
    }

    /// The sum of the elements' hashes: when some come and others go, it follows from those alone.
    pub(super) fn sum(&self) -> u64 {
        let sums = self.0.iter().map(|(name, elements)| sum(name, elements));
        sums.fold(0, u64::wrapping_add)
    }
}
