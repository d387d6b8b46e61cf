//! Elements of the sets of our table: what tells them apart, and how one table becomes another when
//! nothing but elements differs. With thousands of nodes the table is long, and one node that joins
//! is two elements.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::merge_join;

use super::super::{HASH_OF_NOTHING, hashed};
use super::{CHECKSUM, Checksum, FINGERPRINT, Listing, TABLE, Table};
use crate::nat::Nat;

/// One element of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Element<'a> {
    /// An address.
    Address(IpAddr),
    /// An interface.
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
    fn of(text: &'a str) -> Option<Self> {
        let unquoted = |text: &'a str| text.strip_prefix('"')?.strip_suffix('"');
        match text.split_once(" . ") {
            Some((name, address)) => Some(Self::Source(unquoted(name)?, address.parse().ok()?)),
            None => unquoted(text)
                .map(Self::Interface)
                .or_else(|| Some(Self::Address(text.parse().ok()?))),
        }
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
    match Element::of(text) {
        Some(element) => element.hash(set),
        // Somebody else's: it counts, whatever it is.
        None => spread(hashed(set, text.bytes().chain([0xff]))),
    }
}

fn sum(set: &str, elements: &[Element<'_>]) -> u64 {
    let set = hash_of_set(set);
    let hashes = elements.iter().map(|element| element.hash(set));
    hashes.fold(0, u64::wrapping_add)
}

/// Sets with their elements, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sets<'a>(BTreeMap<String, Vec<Element<'a>>>);

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

/// Our table in the kernel, as it was written.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    nat: Arc<Nat>,
    /// The marks in the kernel: the fingerprint, and the checksum in whichever form.
    fingerprint: String,
    mark: String,
    checksum: Checksum,
}

impl Written {
    /// The table that nftables lists, when it is that of `nat` and nobody has changed it.
    #[must_use]
    pub(crate) fn found(listing: &Listing<'_>, nat: &Arc<Nat>) -> Option<Self> {
        let (fingerprint, mark) = (listing.fingerprint()?, listing.mark()?);
        (listing.is_untouched() && listing.is_of(nat)).then(|| Self {
            nat: Arc::clone(nat),
            fingerprint: fingerprint.to_owned(),
            mark: mark.to_owned(),
            checksum: listing.checksum(),
        })
    }

    /// The rules that it is made of.
    pub(crate) const fn nat(&self) -> &Arc<Nat> {
        &self.nat
    }

    /// The table of `nat`, as nftables lists it just after it was written, and the script that
    /// marks it with its checksum.
    #[must_use]
    pub(crate) fn just_now(listing: &Listing<'_>, nat: &Arc<Nat>) -> (Self, String) {
        let checksum = listing.checksum();
        let written = Self {
            nat: Arc::clone(nat),
            fingerprint: nat.fingerprint(),
            mark: checksum.to_string(),
            checksum,
        };
        let script = format!("add chain inet {TABLE} {CHECKSUM}{}\n", written.mark);
        (written, script)
    }

    /// The script, one transaction, that makes the table that of `nat`, and the table afterwards.
    /// `None` where they differ in more than elements of sets.
    #[must_use]
    pub(crate) fn change(&self, nat: &Arc<Nat>) -> Option<(String, Self)> {
        let (was, is) = (Table::of(&self.nat), Table::of(nat));
        if was.text != is.text {
            return None;
        }
        let mut script = String::new();
        let mut elements = self.checksum.elements;
        for (set, now) in &is.sets.0 {
            let before = was.sets.0.get(set)?;
            let both = || merge_join(keys(before), keys(now));
            let gone = both().filter(|(_, was, is)| was.is_some() && is.is_none());
            let gone: Vec<_> = gone.map(|(element, ..)| element).collect();
            let added = both().filter(|(_, was, is)| was.is_none() && is.is_some());
            let added: Vec<_> = added.map(|(element, ..)| element).collect();
            elements = elements
                .wrapping_sub(sum(set, &gone))
                .wrapping_add(sum(set, &added));
            put(&mut script, "delete", set, &gone);
            put(&mut script, "add", set, &added);
        }
        let checksum = Checksum {
            elements,
            ..self.checksum
        };
        let written = Self {
            nat: Arc::clone(nat),
            fingerprint: is.fingerprint(),
            mark: checksum.to_string(),
            checksum,
        };
        put_mark(
            &mut script,
            FINGERPRINT,
            &self.fingerprint,
            &written.fingerprint,
        );
        put_mark(&mut script, CHECKSUM, &self.mark, &written.mark);
        Some((script, written))
    }
}

fn keys<'e, 'a>(
    elements: &'e [Element<'a>],
) -> impl Iterator<Item = (Element<'a>, ())> + use<'e, 'a> {
    elements.iter().map(|element| (*element, ()))
}

fn put(script: &mut String, verb: &str, set: &str, elements: &[Element<'_>]) {
    if elements.is_empty() {
        return;
    }
    let elements: Vec<String> = elements.iter().map(Element::to_string).collect();
    let elements = elements.join(", ");
    writeln!(script, "{verb} element inet {TABLE} {set} {{ {elements} }}")
        .expect("writing to a String does not fail");
}

fn put_mark(script: &mut String, mark: &str, before: &str, now: &str) {
    if before == now {
        return;
    }
    for (verb, value) in [("delete", before), ("add", now)] {
        writeln!(script, "{verb} chain inet {TABLE} {mark}{value}")
            .expect("writing to a String does not fail");
    }
}
