//! The addresses of all nodes, kept up with the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::InsertEach;
use crate::names::NodeName;
use crate::net::Prefix;
use crate::resource::Node;
use crate::shared_map::SharedMap;
use crate::snapshot::Versioned;

/// Addresses of nodes, those of their tunnels too, with how many nodes have each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeAddresses {
    nodes: SharedMap<NodeName, Versioned<Node>>,
    held: BTreeMap<IpAddr, isize>,
}

fn of_node(node: &Node) -> BTreeSet<IpAddr> {
    let spec = &node.spec;
    spec.machine_addresses()
        .chain(spec.tunnel_addresses())
        .insert_each()
}

impl NodeAddresses {
    /// Takes in the nodes of a snapshot; answers with the addresses that came or went. Costs what
    /// is different.
    pub fn follow(&mut self, nodes: &SharedMap<NodeName, Versioned<Node>>) -> BTreeSet<IpAddr> {
        let mut by: BTreeMap<IpAddr, isize> = BTreeMap::new();
        for name in nodes.changed_since(&self.nodes) {
            for (nodes, one) in [(&self.nodes, -1), (nodes, 1)] {
                let addresses = nodes.get(&name).map(|node| of_node(node));
                for address in addresses.into_iter().flatten() {
                    *by.entry(address).or_default() += one;
                }
            }
        }
        self.nodes = nodes.clone();
        let mut moved = BTreeSet::new();
        for (address, by) in by {
            let held = self.held.entry(address).or_default();
            let was = *held;
            *held += by;
            if (was == 0) != (*held == 0) {
                moved.insert(address);
            }
            if *held == 0 {
                self.held.remove(&address);
            }
        }
        moved
    }

    /// True when some node has an address.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        self.held.contains_key(&address)
    }

    /// The first address of a node in a range.
    #[must_use]
    pub fn first_in(&self, range: &Prefix) -> Option<IpAddr> {
        let first = self.held.range(range.address()..).next()?;
        Some(*first.0).filter(|address| range.contains(*address))
    }
}
