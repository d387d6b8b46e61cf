//! Addresses that no route and no device address of the datastore may cover: etcd's endpoints in
//! use, addresses of nodes, subnets of this node's interfaces. One wrong key would cut the node off
//! from where the right one is read.
//!
//! Prefixes *inside* a subnet of ours are allowed within a pool: pools that are part of the
//! machines' subnet are in use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{Family, Node, NodeName, Prefix, ProblemCode, Snapshot};

use super::destination::Destination;
use super::{PlanInputs, Planner};
use crate::ownership::is_tunnel_device;

/// Guarded addresses, in their order.
#[derive(Clone, Debug)]
pub(super) struct Guarded {
    /// Those of nodes, all that they have, with whose they are.
    nodes: BTreeMap<IpAddr, Vec<NodeName>>,
    etcd: BTreeSet<IpAddr>,
    subnets: Vec<Prefix>,
}

/// The addresses of a node, but for those of its tunnels, each once.
fn addresses(node: &Node) -> BTreeSet<IpAddr> {
    node.spec.machine_addresses().collect()
}

impl Guarded {
    pub(super) fn new(inputs: &PlanInputs<'_>) -> Self {
        let snapshot = inputs.snapshot;
        let mut nodes: BTreeMap<IpAddr, Vec<NodeName>> = BTreeMap::new();
        for (name, node) in &snapshot.nodes {
            for address in addresses(node) {
                nodes.entry(address).or_default().push(name.clone());
            }
        }
        // An etcd in a pod is reached by the routes to pods.
        let endpoints = inputs.lifelines.iter().filter(|address| {
            let host = Prefix::host(**address);
            let in_pool = snapshot
                .pools
                .values()
                .any(|p| p.spec.prefix().covers(&host));
            let held = snapshot.block_of(&host);
            let held = held.is_some_and(|block| block.is_allocated(**address));
            !in_pool || !(held || snapshot.endpoint_networks().any(|network| *network == host))
        });
        let links = inputs.links.iter().filter(|link| {
            let name = link.name.as_str();
            link.up && !is_tunnel_device(name) && !inputs.settings.is_workload_interface(name)
        });
        let subnets = links.flat_map(|link| link.addresses.iter().map(|a| a.prefix()));
        let subnets = subnets.filter(|subnet| !subnet.is_host()).collect();
        Self {
            nodes,
            etcd: endpoints.copied().collect(),
            subnets,
        }
    }

    /// Follows these nodes of `was` to `is`, where nothing else is different.
    pub(super) fn follow(&mut self, was: &Snapshot, is: &Snapshot, changed: &[NodeName]) {
        for name in changed {
            let of = |snapshot: &Snapshot| snapshot.nodes.get(name).map(|n| addresses(n));
            for address in of(was).into_iter().flatten() {
                let Some(names) = self.nodes.get_mut(&address) else {
                    continue;
                };
                names.retain(|other| other != name);
                if names.is_empty() {
                    self.nodes.remove(&address);
                }
            }
            for address in of(is).into_iter().flatten() {
                let names = self.nodes.entry(address).or_default();
                names.push(name.clone());
                names.sort_unstable();
            }
        }
    }

    /// All addresses of nodes in a family.
    pub(super) fn of_nodes(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        let all = self.nodes.keys().copied();
        all.filter(move |address| Family::of(*address) == family)
    }

    /// The first guarded address that a prefix covers, with its node; without one it is etcd's.
    fn first_in(&self, prefix: &Prefix) -> Option<(IpAddr, Option<&NodeName>)> {
        let etcd = self.etcd.range(prefix.address()..).next();
        let node = self.nodes.range(prefix.address()..).next();
        let node = node.map(|(address, names)| (*address, names.first()));
        let first = etcd.map(|address| (*address, None)).into_iter().chain(node);
        first
            .min_by_key(|(address, _)| *address)
            .filter(|(address, _)| prefix.contains(*address))
    }

    /// True when a prefix covers an address of a node, or etcd's.
    pub(super) fn is_over(&self, prefix: &Prefix) -> bool {
        self.first_in(prefix).is_some()
    }

    /// First guarded address that a prefix covers, as text. `pooled`: a pool covers the prefix.
    pub(super) fn covered_by(&self, prefix: &Prefix, pooled: bool) -> Option<String> {
        if let Some((address, holder)) = self.first_in(prefix) {
            return Some(match holder {
                None => format!("etcd's endpoint {address}"),
                Some(name) => format!("the address {address} of node {name}"),
            });
        }
        let mut subnets = self.subnets.iter();
        let cut =
            |s: &&Prefix| prefix.covers(s) || (!pooled && !prefix.is_host() && s.covers(prefix));
        let subnet = subnets.find(cut)?;
        Some(format!("{subnet}, a subnet of this node's interfaces"))
    }
}

impl Planner<'_> {
    /// True when a route or a device address of the datastore may not be; names the key as a
    /// problem.
    pub(super) fn would_cut(
        &self,
        to: &mut Destination,
        prefix: Prefix,
        what: &str,
        key: impl FnOnce() -> String,
    ) -> bool {
        let pooled = self.pools.covering(&prefix).is_some();
        let Some(covered) = self.guarded.covered_by(&prefix, pooled) else {
            return false;
        };
        let reason = format!(
            "{what} {prefix} would cover {covered}; it is not written: correct or delete the key"
        );
        to.skip(format!("it would cover {covered}"));
        to.problem(ProblemCode::AgentWouldCutOff, &key(), reason);
        true
    }
}
