//! Path attributes as values: decoded, validated, hashable. One set is shared by all prefixes that were
//! announced with it.
//!
//! Nothing here knows octets (see [`crate::wire`]) or preference (the decision process). Attribute order
//! and encoding form leave no trace, so equal meaning is equal value: communities are kept sorted and
//! unique, an AS path is four-octet whatever the peer speaks (RFC 6793).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;

use crate::types::{AnyCommunity, Asn, ClusterId, Community, LargeCommunity, RouterId};

/// The path attributes of a route (RFC 4271 §5). All prefixes announced with one set share its next hop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathAttrs {
    /// ORIGIN.
    pub origin: Origin,
    /// AS_PATH, merged with AS4_PATH where the peer speaks two octets.
    pub as_path: AsPath,
    /// NEXT_HOP, or the global next hop of MP_REACH_NLRI. `None` only before an own route got one.
    pub next_hop: Option<IpAddr>,
    /// The link-local next hop that may follow the global one (RFC 2545 §3).
    pub link_local_next_hop: Option<Ipv6Addr>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF; present on internal sessions only.
    pub local_pref: Option<u32>,
    /// ATOMIC_AGGREGATE.
    pub atomic_aggregate: bool,
    /// AGGREGATOR, merged with AS4_AGGREGATOR.
    pub aggregator: Option<Aggregator>,
    /// COMMUNITIES (RFC 1997), sorted and unique.
    pub communities: Vec<Community>,
    /// EXTENDED COMMUNITIES (RFC 4360), sorted and unique.
    pub ext_communities: Vec<[u8; 8]>,
    /// LARGE_COMMUNITY (RFC 8092), sorted and unique.
    pub large_communities: Vec<LargeCommunity>,
    /// ORIGINATOR_ID (RFC 4456 §8).
    pub originator_id: Option<RouterId>,
    /// CLUSTER_LIST (RFC 4456 §8), the latest reflector first.
    pub cluster_list: Vec<ClusterId>,
    /// Optional transitive attributes that we pass on without knowing them, sorted by code.
    pub unknown: Vec<UnknownAttr>,
}

impl PathAttrs {
    /// True when the route carries `community`.
    #[must_use]
    pub fn has_community(&self, community: AnyCommunity) -> bool {
        match community {
            AnyCommunity::Standard(c) => self.communities.binary_search(&c).is_ok(),
            AnyCommunity::Large(c) => self.large_communities.binary_search(&c).is_ok(),
        }
    }

    /// Adds `community` unless it is there.
    pub fn add_community(&mut self, community: AnyCommunity) {
        match community {
            AnyCommunity::Standard(c) => insert(&mut self.communities, c),
            AnyCommunity::Large(c) => insert(&mut self.large_communities, c),
        }
    }

    /// Removes `community` if it is there.
    pub fn remove_community(&mut self, community: AnyCommunity) {
        match community {
            AnyCommunity::Standard(c) => self.communities.retain(|seen| *seen != c),
            AnyCommunity::Large(c) => self.large_communities.retain(|seen| *seen != c),
        }
    }
}

/// Inserts into a sorted list without duplicates.
fn insert<T: Ord>(list: &mut Vec<T>, value: T) {
    if let Err(at) = list.binary_search(&value) {
        list.insert(at, value);
    }
}

/// ORIGIN (RFC 4271 §5.1.1). The order is that of preference: lower wins (§9.1.2.2 b).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// 0: interior to the originating AS.
    #[default]
    Igp,
    /// 1: learned via EGP.
    Egp,
    /// 2: learned by some other means.
    Incomplete,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Igp => "IGP",
            Self::Egp => "EGP",
            Self::Incomplete => "Incomplete",
        })
    }
}

/// AGGREGATOR (RFC 4271 §5.1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aggregator {
    /// AS that formed the aggregate.
    pub asn: Asn,
    /// Speaker that formed the aggregate.
    pub router: Ipv4Addr,
}

/// An optional transitive attribute without meaning here, passed on as it came (RFC 4271 §5).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnknownAttr {
    /// Attribute flags as they go out: optional, transitive and partial set, extended length clear.
    pub flags: u8,
    /// Type code.
    pub code: u8,
    /// The value.
    pub value: Bytes,
}

/// AS_PATH: the ASes a route came through, the latest first (RFC 4271 §5.1.2).
///
/// Two neighbouring sequences mean the same as one; [`AsPath::new`] joins them, so that equal paths are
/// equal values however they were cut on the wire.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct AsPath {
    segments: Vec<Segment>,
}

/// A part of an AS path. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// AS_SEQUENCE: ordered.
    Sequence(Vec<Asn>),
    /// AS_SET: unordered, from aggregation.
    Set(Vec<Asn>),
}

impl Segment {
    /// The AS numbers.
    #[must_use]
    pub fn asns(&self) -> &[Asn] {
        match self {
            Self::Sequence(asns) | Self::Set(asns) => asns,
        }
    }
}

impl AsPath {
    /// From segments; empty ones are dropped, neighbouring sequences joined, sets sorted.
    #[must_use]
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> Self {
        let mut joined: Vec<Segment> = Vec::new();
        for segment in segments {
            if segment.asns().is_empty() {
                continue;
            }
            match (joined.last_mut(), segment) {
                (Some(Segment::Sequence(last)), Segment::Sequence(asns)) => last.extend(asns),
                (_, Segment::Set(mut asns)) => {
                    asns.sort_unstable();
                    asns.dedup();
                    joined.push(Segment::Set(asns));
                }
                (_, segment) => joined.push(segment),
            }
        }
        Self { segments: joined }
    }

    /// A path of one sequence; empty when `asns` is.
    #[must_use]
    pub fn sequence(asns: impl Into<Vec<Asn>>) -> Self {
        Self::new([Segment::Sequence(asns.into())])
    }

    /// The segments, the latest first; neighbouring sequences are joined.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// True for a route of our own AS.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The length that the decision process compares: a set counts 1 (RFC 4271 §9.1.2.2 a).
    #[must_use]
    pub fn path_len(&self) -> usize {
        self.segments
            .iter()
            .map(|segment| match segment {
                Segment::Sequence(asns) => asns.len(),
                Segment::Set(_) => 1,
            })
            .sum()
    }

    /// The AS next to us. `None` for an empty path or one that starts with a set.
    #[must_use]
    pub fn first_as(&self) -> Option<Asn> {
        match self.segments.first() {
            Some(Segment::Sequence(asns)) => asns.first().copied(),
            Some(Segment::Set(_)) | None => None,
        }
    }

    /// The AS that originated the route. `None` for an empty path or one that ends with a set.
    #[must_use]
    pub fn origin_as(&self) -> Option<Asn> {
        match self.segments.last() {
            Some(Segment::Sequence(asns)) => asns.last().copied(),
            Some(Segment::Set(_)) | None => None,
        }
    }

    /// How often `asn` stands in the path, sets included.
    #[must_use]
    pub fn contains(&self, asn: Asn) -> usize {
        self.asns().filter(|seen| *seen == asn).count()
    }

    /// All AS numbers, the latest first.
    pub fn asns(&self) -> impl Iterator<Item = Asn> {
        self.segments
            .iter()
            .flat_map(|segment| segment.asns().iter().copied())
    }

    /// True when the path begins with these numbers, in this order, as one sequence.
    #[must_use]
    pub fn starts_with(&self, asns: &[Asn]) -> bool {
        match self.segments.first() {
            Some(Segment::Sequence(path)) => path.starts_with(asns),
            Some(Segment::Set(_)) | None => asns.is_empty(),
        }
    }

    /// Puts `asn` in front (RFC 4271 §5.1.2 b).
    pub fn prepend(&mut self, asn: Asn) {
        if let Some(Segment::Sequence(asns)) = self.segments.first_mut() {
            asns.insert(0, asn);
        } else {
            self.segments.insert(0, Segment::Sequence(vec![asn]));
        }
    }
}

impl fmt::Display for AsPath {
    /// `64512 65001 {65002 65003}`; nothing for an empty path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for segment in &self.segments {
            if !text.is_empty() {
                text.push(' ');
            }
            let asns: Vec<String> = segment.asns().iter().map(ToString::to_string).collect();
            match segment {
                Segment::Sequence(_) => text.push_str(&asns.join(" ")),
                Segment::Set(_) => {
                    text.push('{');
                    text.push_str(&asns.join(" "));
                    text.push('}');
                }
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for AsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asns(numbers: &[u32]) -> Vec<Asn> {
        numbers.iter().copied().map(Asn).collect()
    }

    #[test]
    fn rfc4271_9_1_2_2_a_set_counts_one() {
        let path = AsPath::new([
            Segment::Sequence(asns(&[1, 2, 3])),
            Segment::Set(asns(&[9, 7, 9])),
            Segment::Sequence(asns(&[])),
        ]);
        assert_eq!(path.path_len(), 4);
        assert_eq!(path.to_string(), "1 2 3 {7 9}");
        assert_eq!(path.first_as(), Some(Asn(1)));
        assert_eq!(path.origin_as(), None);
        assert_eq!(path.contains(Asn(9)), 1);
    }

    #[test]
    fn neighbouring_sequences_are_one() {
        let cut = AsPath::new([Segment::Sequence(asns(&[1])), Segment::Sequence(asns(&[2]))]);
        assert_eq!(cut, AsPath::sequence(asns(&[1, 2])));
        assert!(cut.starts_with(&asns(&[1, 2])));
        assert!(!cut.starts_with(&asns(&[2])));
    }

    #[test]
    fn prepending_goes_in_front_of_a_set() {
        let mut path = AsPath::new([Segment::Set(asns(&[5, 6]))]);
        assert_eq!(path.first_as(), None);
        path.prepend(Asn(1));
        path.prepend(Asn(2));
        assert_eq!(path.to_string(), "2 1 {5 6}");
        assert_eq!(path.path_len(), 3);
    }

    #[test]
    fn communities_stay_sorted_and_unique() {
        let mut attrs = PathAttrs::default();
        for text in ["65000:2", "65000:1", "65000:2", "1:2:3"] {
            attrs.add_community(text.parse().expect("a community"));
        }
        assert_eq!(
            attrs.communities,
            [Community::new(65000, 1), Community::new(65000, 2)]
        );
        let standard = AnyCommunity::Standard(Community::new(65000, 2));
        assert!(attrs.has_community(standard));
        attrs.remove_community(standard);
        assert!(!attrs.has_community(standard));
        assert!(attrs.has_community(AnyCommunity::Large(LargeCommunity(1, 2, 3))));
    }
}
