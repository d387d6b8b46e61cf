//! Addresses of everything that stands in a segment: nodes from the bottom, etcd and routers from
//! the top.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{Family, Prefix};

use crate::topology::{Leg, Node, Topology};

/// A segment is used from both ends; the far end of an IPv6 subnet is not where people look for
/// routers, and its last addresses are reserved for anycast (RFC 2526).
const IPV6_ROOM: u128 = 1 << 16;

/// Addresses of one family by owner.
pub(super) struct Addresses {
    pub(super) family: Family,
    /// Address of each node.
    pub(super) nodes: BTreeMap<String, IpAddr>,
    /// By router and segment.
    pub(super) legs: BTreeMap<(String, String), IpAddr>,
    /// Address of etcd in each segment.
    pub(super) etcd: BTreeMap<String, IpAddr>,
    /// By segment: an address nobody has, for the default route where there is no router.
    pub(super) dead: BTreeMap<String, IpAddr>,
}

/// The free addresses of one segment.
struct Free {
    cidr: Prefix,
    taken: BTreeSet<IpAddr>,
}

impl Free {
    fn take(&mut self, candidates: impl Iterator<Item = u128>) -> IpAddr {
        for n in candidates {
            let address = self
                .cidr
                .nth(n)
                .expect("invariant: candidates are below the segment's size");
            if self.taken.insert(address) {
                return address;
            }
        }
        unreachable!("invariant: the room of every segment was checked")
    }

    fn room(&self) -> std::ops::Range<u128> {
        let size = match self.cidr.family() {
            Family::Ipv4 => self.cidr.size(),
            Family::Ipv6 => self.cidr.size().min(IPV6_ROOM),
        };
        1..size - 1
    }

    fn lowest(&mut self) -> IpAddr {
        self.take(self.room())
    }

    fn highest(&mut self) -> IpAddr {
        self.take(self.room().rev())
    }
}

fn of_node(node: &Node, family: Family) -> Option<IpAddr> {
    let first = node.address.as_ref().map(|a| a.value);
    let second = node.address6.as_ref().map(|a| IpAddr::V6(a.value));
    first
        .into_iter()
        .chain(second)
        .find(|a| Family::of(*a) == family)
}

fn of_leg(leg: &Leg, family: Family) -> Option<IpAddr> {
    let first = leg.address.as_ref().map(|a| a.value);
    let second = leg.address6.as_ref().map(|a| IpAddr::V6(a.value));
    first
        .into_iter()
        .chain(second)
        .find(|a| Family::of(*a) == family)
}

/// Gives an address of a family to everybody who did not ask for one.
pub(super) fn assign(topology: &Topology, family: Family) -> Addresses {
    let wanted = topology.nodes.iter().filter_map(|n| of_node(n, family));
    let legs = topology
        .routers
        .iter()
        .flat_map(|r| &r.legs)
        .filter_map(|l| of_leg(l, family));
    let taken: BTreeSet<_> = wanted.chain(legs).collect();
    let mut addresses = Addresses {
        family,
        nodes: BTreeMap::new(),
        legs: BTreeMap::new(),
        etcd: BTreeMap::new(),
        dead: BTreeMap::new(),
    };
    for segment in &topology.segments {
        let name = &segment.name.value;
        let mut free = Free {
            cidr: segment
                .prefix(family)
                .expect("invariant: the segments have the same families"),
            taken: taken.clone(),
        };
        for router in &topology.routers {
            for leg in router.legs.iter().filter(|l| l.segment.value == *name) {
                let address = of_leg(leg, family).unwrap_or_else(|| free.highest());
                addresses
                    .legs
                    .insert((router.name.value.clone(), name.clone()), address);
            }
        }
        addresses.dead.insert(name.clone(), free.highest());
        addresses.etcd.insert(name.clone(), free.highest());
        for node in topology.nodes.iter().filter(|n| n.segment.value == *name) {
            let address = of_node(node, family).unwrap_or_else(|| free.lowest());
            addresses.nodes.insert(node.name.value.clone(), address);
        }
    }
    addresses
}
