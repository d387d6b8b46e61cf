//! By what we know a table of ours again: hashes of its content, in names of empty chains. FNV-1a:
//! the same in every build, which the standard library's hasher does not promise.

use std::fmt;

use super::element::{Element, Fields};

/// Start of the name of the empty chain that holds the fingerprint of what a table was made of.
pub(crate) const FINGERPRINT: &str = "fingerprint_";
/// Start of the name of the empty chain that holds the checksum. The checksum is that of the table
/// as nftables listed it after it was written: rules that somebody changed are listed differently.
pub(crate) const CHECKSUM: &str = "printed_";

const OF_NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash of octets behind those that have this one.
fn hashed(hash: u64, octets: impl IntoIterator<Item = u8>) -> u64 {
    octets.into_iter().fold(hash, |hash, octet| {
        (hash ^ u64::from(octet)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A short text that differs when the text does.
pub(crate) fn digest(text: &str) -> String {
    format!("{:016x}", hashed(OF_NOTHING, text.bytes()))
}

/// The hash of lines, word by word.
pub(super) fn of_words<'a>(words: impl IntoIterator<Item = &'a str>) -> u64 {
    let words = words.into_iter();
    words.fold(OF_NOTHING, |hash, word| {
        hashed(hash, word.bytes().chain([b' ']))
    })
}

/// Checksum of a table as nftables lists it, without its marks and counters. In two parts: when
/// only elements of sets change, the checksum afterwards follows from them, and no listing is
/// needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum {
    /// Of all lines but the elements of sets.
    pub(crate) structure: u64,
    /// The sum of the elements' hashes.
    pub(crate) elements: u64,
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.structure, self.elements)
    }
}

/// Hashes of the elements of one set. They are added up, so that a sum follows from the elements
/// that come and go.
#[derive(Clone, Copy)]
pub(crate) struct SetHash(u64);

impl SetHash {
    pub(crate) fn new(set: &str) -> Self {
        Self(hashed(OF_NOTHING, set.bytes().chain([0])))
    }

    /// The sum of these elements' hashes.
    pub(crate) fn sum<'a>(self, keys: impl IntoIterator<Item = &'a Fields>) -> u64 {
        let hashes = keys.into_iter().map(|key| self.of(key));
        hashes.fold(0, u64::wrapping_add)
    }

    fn of(self, key: &Fields) -> u64 {
        let mut hash = self.0;
        for (at, field) in key.iter().enumerate() {
            let (octets, length) = field.octets();
            if at > 0 {
                hash = hashed(hash, [0]);
            }
            hash = hashed(hash, octets.into_iter().take(length));
        }
        spread(hash)
    }

    /// The hash of an element as nftables lists it.
    pub(super) fn listed(self, text: &str) -> u64 {
        match Element::parse(text) {
            Some(Element { key, data: None }) => self.of(&key),
            // Somebody else's: it counts, whatever it is.
            _ => spread(hashed(self.0, text.bytes().chain([0xff]))),
        }
    }
}

/// Of FNV, sums of what differs in the last octet alone may well be equal (finaliser of
/// `SplitMix64`).
const fn spread(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
