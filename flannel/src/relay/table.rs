//! Where packets go: subnets of other nodes, and the addresses of those nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use caracal_model::{Family, InsertEach, Prefix};

/// The subnets of other nodes. A snapshot: another one takes its place when leases change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayTable {
    next_hops: BTreeMap<Prefix, SocketAddr>,
    /// Lengths that subnets of IPv4 and of IPv6 have, the longest first.
    lengths: [Vec<u8>; 2],
    sources: [Option<IpAddr>; 2],
}

const fn place(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}

impl RelayTable {
    /// A table of these subnets. `own` are pairs of a network and this node's subnet in it: answers
    /// come from an address of the network that no machine has.
    ///
    /// Linux drops a packet from the device whose source is an address of its own (`accept_local`),
    /// and one whose source it would reach by another device (`rp_filter`). So it is the network's
    /// first address, or the first one behind the own subnet where that begins with the network.
    #[must_use]
    pub fn new(
        next_hops: BTreeMap<Prefix, SocketAddr>,
        own: impl IntoIterator<Item = (Prefix, Prefix)>,
    ) -> Self {
        let lengths = [Family::Ipv4, Family::Ipv6].map(|family| {
            let subnets = next_hops.keys().filter(|p| p.family() == family);
            let lengths: BTreeSet<u8> = subnets.map(Prefix::len).insert_each();
            lengths.into_iter().rev().collect()
        });
        let mut sources = [None; 2];
        for (network, subnet) in own {
            let first = network.address();
            sources[place(network.family())] = match subnet.contains(first) {
                true => network.nth(subnet.size()),
                false => Some(first),
            };
        }
        Self {
            next_hops,
            lengths,
            sources,
        }
    }

    /// Where the node is that has an address: by the longest subnet.
    #[must_use]
    pub fn next_hop(&self, destination: IpAddr) -> Option<SocketAddr> {
        let mut lengths = self.lengths[place(Family::of(destination))].iter();
        lengths.find_map(|len| {
            let subnet = Prefix::truncated(destination, *len);
            self.next_hops.get(&subnet).copied()
        })
    }

    /// Source of answers of a family.
    #[must_use]
    pub const fn answer_source(&self, family: Family) -> Option<IpAddr> {
        self.sources[place(family)]
    }

    /// How many subnets there are.
    #[must_use]
    pub fn subnets(&self) -> usize {
        self.next_hops.len()
    }

    /// What `newer` means for this table. Until leases are settled nothing goes: subnets that
    /// `newer` lacks stay, unless they share addresses with one that it has (FLANNEL-3).
    #[must_use]
    pub fn follow(&self, mut newer: Self, settled: bool) -> Self {
        if settled {
            return newer;
        }
        let missing = self.next_hops.iter().filter(|(subnet, _)| {
            let mut others = newer.next_hops.keys();
            !others.any(|other| other.overlaps(subnet))
        });
        let missing: Vec<(Prefix, SocketAddr)> = missing.map(|(p, to)| (*p, *to)).collect();
        newer.next_hops.extend(missing);
        let sources = newer.sources;
        Self {
            sources,
            ..Self::new(newer.next_hops, [])
        }
    }
}
