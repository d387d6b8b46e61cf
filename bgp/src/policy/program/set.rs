//! Sets: sorted intervals of numbers for everything that has a number, and for prefixes an index by
//! the patterns that cover them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_model::{Family, Prefix};

/// The type of values that stand in a set of intervals. Each value has a number of at most 128
/// bits, and the order of numbers is the order of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetKind {
    /// Numbers.
    Int,
    /// Addresses; IPv4 as `::ffff:A`.
    Ip,
    /// Pairs, as in communities.
    Pair,
    /// Router ids.
    Quad,
    /// Extended communities.
    Extended,
    /// Large communities.
    Large,
    /// Words of an enumeration, by its number.
    Enum(u8),
}

/// The number of an address: IPv4 lies at `::ffff:0:0`.
pub(super) fn address_key(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address of a number.
pub(super) fn key_address(key: u128) -> IpAddr {
    let v6 = Ipv6Addr::from_bits(key);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// A set. Equal sets are equal values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSet {
    /// `[]`, which is of every type.
    Empty,
    /// Intervals, sorted, apart from each other.
    Ranges(SetKind, Box<[(u128, u128)]>),
    /// Patterns of prefixes.
    Prefixes(PrefixSet),
}

impl ValueSet {
    /// A set of intervals in any order.
    #[must_use]
    pub fn ranges(kind: SetKind, mut ranges: Vec<(u128, u128)>) -> Self {
        ranges.sort_unstable();
        let mut joined: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match joined.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => joined.push((low, high)),
            }
        }
        Self::Ranges(kind, joined.into())
    }

    /// True when the value with this number stands in it.
    #[must_use]
    pub(super) fn holds(&self, kind: SetKind, key: u128) -> bool {
        let Self::Ranges(own, ranges) = self else {
            return false;
        };
        let after = ranges.partition_point(|(low, _)| *low <= key);
        let last = after.checked_sub(1).and_then(|at| ranges.get(at));
        *own == kind && last.is_some_and(|(_, high)| key <= *high)
    }
}

/// One element of a set of prefixes: of a destination of length `n`, the first `min(length, n)`
/// bits are those of the prefix, and `n` lies in `min..=max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetPattern {
    /// The prefix; its length need not lie between the two others.
    pub prefix: Prefix,
    /// Shortest length that matches.
    pub min: u8,
    /// Longest length that matches.
    pub max: u8,
}

/// Lengths from 0 to 128, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lengths([u64; 3]);

impl Lengths {
    fn add(&mut self, min: u8, max: u8) {
        for len in min..=max {
            self.0[usize::from(len / 64)] |= 1 << (len % 64);
        }
    }

    const fn has(self, len: u8) -> bool {
        self.0[(len / 64) as usize] & (1 << (len % 64)) != 0
    }
}

/// Prefixes that lie inside `prefix` and have one of these lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    prefix: Prefix,
    lengths: Lengths,
    /// The entry around this one, the narrowest.
    around: Option<u32>,
}

/// Where entries begin, as numbers that are searched in one step each.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Starts {
    /// Address and length.
    V4(Box<[u64]>),
    V6(Box<[(u128, u8)]>),
}

const fn start(address: Ipv4Addr, len: u8) -> u64 {
    (address.to_bits() as u64) << 8 | len as u64
}

impl Starts {
    fn of(entries: &[Entry]) -> Self {
        let v6 = entries
            .iter()
            .filter_map(|entry| match entry.prefix.address() {
                IpAddr::V6(address) => Some((address.to_bits(), entry.prefix.len())),
                IpAddr::V4(_) => None,
            });
        let v6: Box<[(u128, u8)]> = v6.collect();
        if !v6.is_empty() {
            return Self::V6(v6);
        }
        let v4 = entries
            .iter()
            .filter_map(|entry| match entry.prefix.address() {
                IpAddr::V4(address) => Some(start(address, entry.prefix.len())),
                IpAddr::V6(_) => None,
            });
        Self::V4(v4.collect())
    }

    /// How many begin at the prefix or before it; none does that is of the other family.
    fn until(&self, prefix: &Prefix) -> usize {
        let len = prefix.len();
        match (self, prefix.address()) {
            (Self::V4(starts), IpAddr::V4(address)) => {
                let wanted = start(address, len);
                starts.partition_point(|start| *start <= wanted)
            }
            (Self::V6(starts), IpAddr::V6(address)) => {
                let wanted = (address.to_bits(), len);
                starts.partition_point(|start| *start <= wanted)
            }
            (Self::V4(_), IpAddr::V6(_)) | (Self::V6(_), IpAddr::V4(_)) => 0,
        }
    }
}

/// Patterns of prefixes of one family. A question costs one binary search, and a step for each
/// entry that lies around the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixSet {
    /// As written, in order; for people.
    patterns: Box<[SetPattern]>,
    entries: Box<[Entry]>,
    starts: Starts,
}

impl PrefixSet {
    /// The set of these patterns, all of one family.
    #[must_use]
    pub fn new(mut patterns: Vec<SetPattern>) -> Self {
        patterns.sort_unstable();
        patterns.dedup();
        let mut entries: Vec<Entry> = Vec::with_capacity(patterns.len());
        let mut enter = |prefix: Prefix, min: u8, max: u8| {
            let mut lengths = Lengths::default();
            lengths.add(min, max);
            entries.push(Entry {
                prefix,
                lengths,
                around: None,
            });
        };
        for SetPattern { prefix, min, max } in patterns.iter().copied() {
            // A shorter destination has its own bits in common with the pattern: it is one prefix.
            let own = prefix.len();
            for len in min..own.min(max.saturating_add(1)) {
                enter(Prefix::truncated(prefix.address(), len), len, len);
            }
            if own <= max {
                enter(prefix, min.max(own), max);
            }
        }
        entries.sort_unstable_by_key(|entry| entry.prefix);
        entries.dedup_by(|next, kept| {
            let same = next.prefix == kept.prefix;
            if same {
                for (all, more) in kept.lengths.0.iter_mut().zip(next.lengths.0) {
                    *all |= more;
                }
            }
            same
        });
        link(&mut entries);
        Self {
            patterns: patterns.into(),
            starts: Starts::of(&entries),
            entries: entries.into(),
        }
    }

    /// True when some pattern matches.
    #[must_use]
    pub fn matches(&self, prefix: &Prefix) -> bool {
        let mut at = self.starts.until(prefix).checked_sub(1);
        while let Some(entry) = at.and_then(|at| self.entries.get(at)) {
            if entry.lengths.has(prefix.len()) && entry.prefix.covers(prefix) {
                return true;
            }
            at = entry.around.and_then(|around| usize::try_from(around).ok());
        }
        false
    }
}

/// Sorted entries learn which one lies around each.
fn link(entries: &mut [Entry]) {
    let mut open: Vec<u32> = Vec::new();
    for at in 0..entries.len() {
        let prefix = entries[at].prefix;
        let covers = |around: &u32| {
            let entry = usize::try_from(*around).ok().and_then(|at| entries.get(at));
            entry.is_some_and(|entry| entry.prefix.covers(&prefix))
        };
        while open.last().is_some_and(|around| !covers(around)) {
            open.pop();
        }
        entries[at].around = open.last().copied();
        open.extend(u32::try_from(at));
    }
}

impl fmt::Display for SetPattern {
    /// `P`, `P+`, `P-` or `P{MIN,MAX}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (own, bits) = (self.prefix.len(), self.prefix.family().bits());
        match (self.min, self.max) {
            (min, max) if min == own && max == own => write!(f, "{}", self.prefix),
            (min, max) if min == own && max == bits => write!(f, "{}+", self.prefix),
            (0, max) if max == own => write!(f, "{}-", self.prefix),
            (min, max) => write!(f, "{}{{{min},{max}}}", self.prefix),
        }
    }
}

impl fmt::Display for PrefixSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, pattern) in self.patterns.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{pattern}")?;
        }
        f.write_str("]")
    }
}

impl PrefixSet {
    /// The family of all its patterns.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        self.patterns.first().map(|first| first.prefix.family())
    }
}
