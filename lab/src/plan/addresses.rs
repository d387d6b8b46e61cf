//! Addresses of everything that stands in a segment: nodes from the bottom, etcd and routers from the top.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use caracal_model::Prefix;

use crate::topology::Topology;

/// Addresses by owner.
pub(super) struct Addresses {
    /// By node.
    pub(super) nodes: BTreeMap<String, Ipv4Addr>,
    /// By router and segment.
    pub(super) legs: BTreeMap<(String, String), Ipv4Addr>,
    /// By segment.
    pub(super) etcd: BTreeMap<String, Ipv4Addr>,
    /// By segment: an address nobody has, for the default route where there is no router.
    pub(super) dead: BTreeMap<String, Ipv4Addr>,
}

/// The free addresses of one segment.
struct Free {
    cidr: Prefix,
    taken: BTreeSet<Ipv4Addr>,
}

impl Free {
    fn nth(&self, n: u128) -> Ipv4Addr {
        match self.cidr.nth(n) {
            Some(IpAddr::V4(address)) => address,
            _ => unreachable!("invariant: segments are IPv4 and n is below their size"),
        }
    }

    fn take(&mut self, candidates: impl Iterator<Item = u128>) -> Ipv4Addr {
        for n in candidates {
            let address = self.nth(n);
            if self.taken.insert(address) {
                return address;
            }
        }
        unreachable!("invariant: the room of every segment was checked")
    }

    fn lowest(&mut self) -> Ipv4Addr {
        self.take(1..self.cidr.size() - 1)
    }

    fn highest(&mut self) -> Ipv4Addr {
        self.take((1..self.cidr.size() - 1).rev())
    }
}

/// Gives an address to everybody who did not ask for one.
pub(super) fn assign(topology: &Topology) -> Addresses {
    let wanted = topology.nodes.iter().filter_map(|n| n.address.as_ref());
    let legs = topology
        .routers
        .iter()
        .flat_map(|r| &r.legs)
        .filter_map(|l| l.address.as_ref());
    let taken: BTreeSet<_> = wanted.chain(legs).map(|a| a.value).collect();
    let mut addresses = Addresses {
        nodes: BTreeMap::new(),
        legs: BTreeMap::new(),
        etcd: BTreeMap::new(),
        dead: BTreeMap::new(),
    };
    for segment in &topology.segments {
        let name = &segment.name.value;
        let mut free = Free {
            cidr: segment.cidr.value,
            taken: taken.clone(),
        };
        for router in &topology.routers {
            for leg in router.legs.iter().filter(|l| l.segment.value == *name) {
                let address = leg
                    .address
                    .as_ref()
                    .map_or_else(|| free.highest(), |a| a.value);
                addresses
                    .legs
                    .insert((router.name.value.clone(), name.clone()), address);
            }
        }
        addresses.dead.insert(name.clone(), free.highest());
        addresses.etcd.insert(name.clone(), free.highest());
        for node in topology.nodes.iter().filter(|n| n.segment.value == *name) {
            let address = node
                .address
                .as_ref()
                .map_or_else(|| free.lowest(), |a| a.value);
            addresses.nodes.insert(node.name.value.clone(), address);
        }
    }
    addresses
}
