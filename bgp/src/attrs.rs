//! Path attributes as values: decoded, validated, hashable. One set is shared by all prefixes that
//! were announced with it.
//!
//! Nothing here knows octets (see [`crate::wire`]) or preference (the decision process). Attribute
//! order and encoding form leave no trace, so equal meaning is equal value: communities are kept
//! sorted and unique, an AS path is four-octet whatever the peer speaks (RFC 6793).

mod as_path;
mod rare;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use caracal_model::is_zoned;
use serde::{Deserialize, Serialize};

pub use as_path::{AsPath, Segment, SegmentKind};
pub use rare::RareList;

use crate::types::{AnyCommunity, Asn, ClusterId, Community, LargeCommunity, RouterId};

/// The path attributes of a route (RFC 4271 §5). All prefixes announced with one set share its next
/// hop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathAttrs {
    /// ORIGIN (RFC 4271 §5.1.1).
    pub origin: Origin,
    /// AS_PATH, merged with AS4_PATH where the peer speaks two octets.
    pub as_path: AsPath,
    /// NEXT_HOP, or the global next hop of MP_REACH_NLRI. `None` only before an own route got one.
    pub next_hop: Option<IpAddr>,
    /// The link-local next hop that may follow the global one (RFC 2545 §3); zoned when it came
    /// from a peer on a link of ours.
    pub link_local_next_hop: Option<Ipv6Addr>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF; present on internal sessions only.
    pub local_pref: Option<u32>,
    /// ATOMIC_AGGREGATE (RFC 4271 §5.1.6): carried on, never set by us.
    pub atomic_aggregate: bool,
    /// AGGREGATOR, merged with AS4_AGGREGATOR.
    pub aggregator: Option<Aggregator>,
    /// COMMUNITIES (RFC 1997), sorted and unique.
    pub communities: Vec<Community>,
    /// EXTENDED COMMUNITIES (RFC 4360), sorted and unique.
    pub ext_communities: RareList<[u8; 8]>,
    /// LARGE_COMMUNITY (RFC 8092), sorted and unique.
    pub large_communities: RareList<LargeCommunity>,
    /// ORIGINATOR_ID (RFC 4456 §8).
    pub originator_id: Option<RouterId>,
    /// CLUSTER_LIST (RFC 4456 §8), the latest reflector first.
    pub cluster_list: RareList<ClusterId>,
    /// Optional transitive attributes that we pass on without knowing them, and ONLY_TO_CUSTOMER
    /// ([`Self::only_to_customer`]), sorted by code.
    pub unknown: RareList<UnknownAttr>,
    /// What packets meet. It is no attribute of the protocol and stays here.
    pub route_type: RouteType,
}

/// What packets of a route meet, in the words of `ip route`. Only a route of ours is another than
/// [`RouteType::Learned`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RouteType {
    /// The next hop that the route came with.
    #[default]
    Learned,
    /// They are dropped.
    Blackhole,
    /// They are dropped, and the sender is told.
    Unreachable,
    /// They are dropped, and the sender is told that it is forbidden.
    Prohibit,
    /// The gateway in `next_hop`, on one of our links.
    Via,
    /// One of several gateways; `next_hop` is empty.
    Multipath,
    /// Whatever leads to `next_hop`.
    Recursive,
    /// By the kernel's own route to what is on a link.
    Interface,
    /// By a route that another program wrote into the kernel's table.
    Inherited,
}

impl RouteType {
    /// True for a route of ours that is in the kernel's table by itself.
    pub(crate) const fn is_kernels(self) -> bool {
        matches!(self, Self::Interface | Self::Inherited)
    }

    /// True for a route of ours that leads to a gateway.
    pub(crate) const fn is_way(self) -> bool {
        matches!(self, Self::Via | Self::Multipath | Self::Recursive)
    }
}

impl PathAttrs {
    /// NEXT_HOP as filters see it: the gateway of a route of ours is none.
    #[must_use]
    pub(crate) fn bgp_next_hop(&self) -> Option<IpAddr> {
        self.next_hop.filter(|_| !self.route_type.is_way())
    }

    /// The address that packets are sent to: a link-local next hop whose link is known before the
    /// one that is told to others.
    pub(crate) fn way(&self) -> Option<IpAddr> {
        let near = self.link_local_next_hop.filter(|near| is_zoned(*near));
        near.map(IpAddr::V6).or(self.next_hop)
    }

    /// ONLY_TO_CUSTOMER (RFC 9234 §5): the AS that told a customer, a peer or a client of a route
    /// server. It is rare, and kept as octets.
    #[must_use]
    pub fn only_to_customer(&self) -> Option<Asn> {
        let mut kept = self.unknown.iter();
        let kept = kept.find(|attr| attr.code == ONLY_TO_CUSTOMER)?;
        let octets = <[u8; 4]>::try_from(&*kept.value).ok()?;
        Some(Asn(u32::from_be_bytes(octets)))
    }

    /// Sets ONLY_TO_CUSTOMER, or takes it away.
    pub(crate) fn set_only_to_customer(&mut self, asn: Option<Asn>) {
        self.unknown.edit(|list| {
            list.retain(|attr| attr.code != ONLY_TO_CUSTOMER);
            if let Some(asn) = asn {
                let at = list.partition_point(|attr| attr.code < ONLY_TO_CUSTOMER);
                list.insert(at, UnknownAttr::only_to_customer(asn));
            }
        });
    }

    /// Octets of memory that the set takes, about.
    #[must_use]
    pub(crate) fn octets(&self) -> usize {
        let unknown = self.unknown.iter();
        let unknown: usize = unknown.map(|a| size_of_val(a) + a.value.len()).sum();
        size_of_val(self)
            + self.as_path.octets()
            + size_of_val(&*self.communities)
            + size_of_val(&*self.ext_communities)
            + size_of_val(&*self.large_communities)
            + size_of_val(&*self.cluster_list)
            + unknown
    }

    /// True when the route carries `community`.
    #[must_use]
    pub(crate) fn has_community(&self, community: AnyCommunity) -> bool {
        match community {
            AnyCommunity::Standard(c) => self.communities.binary_search(&c).is_ok(),
            AnyCommunity::Large(c) => self.large_communities.binary_search(&c).is_ok(),
            AnyCommunity::Extended(c) => self.ext_communities.binary_search(&c.0).is_ok(),
        }
    }

    /// Adds `community` unless it is there.
    pub fn add_community(&mut self, community: AnyCommunity) {
        match community {
            AnyCommunity::Standard(c) => insert(&mut self.communities, c),
            AnyCommunity::Large(c) => self.large_communities.edit(|list| insert(list, c)),
            AnyCommunity::Extended(c) => self.ext_communities.edit(|list| insert(list, c.0)),
        }
    }

    /// Removes `community` if it is there.
    pub(crate) fn remove_community(&mut self, community: AnyCommunity) {
        match community {
            AnyCommunity::Standard(c) => self.communities.retain(|seen| *seen != c),
            AnyCommunity::Large(c) => self
                .large_communities
                .edit(|list| list.retain(|seen| *seen != c)),
            AnyCommunity::Extended(c) => self
                .ext_communities
                .edit(|list| list.retain(|seen| *seen != c.0)),
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
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
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
    /// Attribute type code (RFC 4271 §4.3).
    pub code: u8,
    /// Octets of the attribute's value.
    pub value: Bytes,
}

/// Type code of ONLY_TO_CUSTOMER (RFC 9234 §5).
pub(crate) const ONLY_TO_CUSTOMER: u8 = 35;
/// Optional and transitive (RFC 4271 §4.3).
const OPTIONAL_TRANSITIVE: u8 = 0xc0;

impl UnknownAttr {
    /// ONLY_TO_CUSTOMER, as octets.
    pub(crate) fn only_to_customer(asn: Asn) -> Self {
        Self {
            flags: OPTIONAL_TRANSITIVE,
            code: ONLY_TO_CUSTOMER,
            value: Bytes::copy_from_slice(&asn.0.to_be_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_takes_144_octets() {
        // A million routes can have a hundred thousand sets, and each is in memory as received and
        // as sent.
        assert_eq!(size_of::<PathAttrs>(), 144);
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
