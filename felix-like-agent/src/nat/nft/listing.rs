//! What nftables lists: our table, with the marks by which we know it again, and chains of others.

use std::fmt;

use super::super::{HASH_OF_NOTHING, hashed};
use super::elements::listed_hash;
use super::{CHECKSUM, FINGERPRINT, NftTable, TABLE};
use crate::nat::Nat;

/// A chain of somebody else's that drops by policy what is forwarded. Accepting in our own chain
/// does not help against it: a packet has to pass both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocker {
    /// `ip`, `ip6` or `inet`.
    pub family: String,
    /// Table of the chain.
    pub table: String,
    pub chain: String,
}

impl Blocker {
    /// True when it is iptables' own, and so takes rules from iptables.
    #[must_use]
    pub(crate) fn is_iptables(&self, family: &str) -> bool {
        self.family == family && self.table == "filter" && self.chain == "FORWARD"
    }
}

/// The blockers in what `nft -j list chains` prints.
#[must_use]
pub(crate) fn blockers(listing: &str) -> Vec<Blocker> {
    let listing: serde_json::Value = serde_json::from_str(listing).unwrap_or_default();
    let chains = listing["nftables"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|o| &o["chain"]);
    let text =
        |chain: &serde_json::Value, key: &str| chain[key].as_str().unwrap_or_default().to_owned();
    chains
        .filter(|c| c["hook"] == "forward" && c["policy"] == "drop")
        .map(|c| Blocker {
            family: text(c, "family"),
            table: text(c, "table"),
            chain: text(c, "name"),
        })
        .filter(|b| b.table != TABLE)
        .collect()
}

/// Checksum of our table as nftables lists it, without its marks and counters. In two parts: when
/// only elements of sets change, the checksum afterwards follows from them, and no listing is
/// needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum {
    /// Of all lines but the elements of sets.
    pub(super) structure: u64,
    /// The sum of the elements' hashes.
    pub(super) elements: u64,
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.structure, self.elements)
    }
}

/// A listing of our table.
#[derive(Debug)]
pub(crate) struct Listing<'a> {
    fingerprints: Vec<&'a str>,
    marks: Vec<&'a str>,
    checksum: Checksum,
}

impl<'a> Listing<'a> {
    /// Reads what nftables prints.
    #[must_use]
    pub(crate) fn parse(text: &'a str) -> Self {
        let mut listing = Self {
            fingerprints: Vec::new(),
            marks: Vec::new(),
            checksum: Checksum {
                structure: HASH_OF_NOTHING,
                elements: 0,
            },
        };
        let mut set = "";
        let mut lines = lines(text);
        while let Some(line) = lines.next() {
            let chain = line.strip_prefix("chain ");
            let mark = |of: &str| chain?.strip_prefix(of)?.split_whitespace().next();
            if let Some(fingerprint) = mark(FINGERPRINT) {
                listing.fingerprints.push(fingerprint);
            } else if let Some(mark) = mark(CHECKSUM) {
                listing.marks.push(mark);
            } else if let Some(first) = line.strip_prefix("elements = {") {
                let mut part = Some(first);
                while let Some(elements) = part {
                    let last = elements.ends_with('}');
                    listing.add(set, elements.trim_end_matches('}'));
                    part = lines.next_if(|_| !last);
                }
            } else {
                set = line.strip_prefix("set ").unwrap_or(set);
                listing.checksum.structure = uncounted(line)
                    .fold(listing.checksum.structure, |hash, word| {
                        hashed(hash, word.bytes().chain([b' ']))
                    });
            }
        }
        listing
    }

    /// Counts elements of a set.
    fn add(&mut self, set: &str, elements: &str) {
        let set = set.trim_end_matches(" {");
        let elements = elements.split(',').map(str::trim);
        for element in elements.filter(|element| !element.is_empty()) {
            let sum = self.checksum.elements;
            self.checksum.elements = sum.wrapping_add(listed_hash(set, element));
        }
    }

    pub(super) const fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// The checksum of all but the elements of sets and maps.
    #[must_use]
    pub(crate) fn structure(&self) -> String {
        format!("{:016x}", self.checksum.structure)
    }

    /// The checksums with which the table is marked.
    #[must_use]
    pub(crate) fn marks(&self) -> &[&'a str] {
        &self.marks
    }

    /// The checksum with which the table is marked.
    pub(super) fn mark(&self) -> Option<&'a str> {
        self.marks.first().copied()
    }

    /// True when the table is as it was when it was written.
    #[must_use]
    pub(crate) fn is_untouched(&self) -> bool {
        let mark = self.checksum.to_string();
        matches!(self.marks[..], [found] if found == mark) && self.fingerprints.len() == 1
    }

    /// The fingerprint with which the table is marked.
    #[must_use]
    pub(crate) fn fingerprint(&self) -> Option<&'a str> {
        self.fingerprints.first().copied()
    }

    /// True when the table says that it is that of these rules.
    #[must_use]
    pub(crate) fn is_of(&self, nat: &Nat) -> bool {
        let fingerprint = NftTable::new(nat).fingerprint();
        self.fingerprint() == Some(fingerprint.as_str())
    }
}

/// The lines of a listing that say something.
fn lines(listing: &str) -> std::iter::Peekable<impl Iterator<Item = &str>> {
    let lines = listing.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && *line != "}")
        .peekable()
}

/// The line without what a counter has counted.
fn uncounted(line: &str) -> impl Iterator<Item = &str> {
    let mut words = line.split(' ');
    std::iter::from_fn(move || {
        let word = words.next()?;
        match word {
            "packets" | "bytes" => words.next().map(|_| word),
            word => Some(word),
        }
    })
}
