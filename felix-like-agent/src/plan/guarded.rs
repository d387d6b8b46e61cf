//! Addresses that no route and no device address of the datastore may cover: etcd's endpoints in
//! use, addresses of nodes, subnets of this node's interfaces. One wrong key would cut the node off
//! from where the right one is read.
//!
//! Prefixes *inside* a subnet of ours are allowed within a pool: pools that are part of the
//! machines' subnet are in use.
//!
//! Inside a block of a pool the pods come first: there a Node's address is the mistake, for whoever
//! may write one Node would take the block from all others (decision 0160). Where the pool lies
//! over this machine's own address the pool is the mistake, and the nodes come first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{Family, Key, Node, NodeName, Prefix, ProblemCode, Snapshot};

use super::destination::Destination;
use super::{PlanInputs, Planner};
use crate::ownership::is_tunnel_device;

/// Where a prefix lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In no pool.
    Outside,
    /// In a pool, and nothing says that pods have it; or in one over this machine's own address.
    Pool,
    /// In a node's block of a pool, or a workload's of this node in one.
    OfPods,
}

/// Guarded addresses, in their order.
#[derive(Clone, Debug)]
pub(super) struct Guarded {
    /// Those of nodes, all that they have, with whose they are.
    nodes: BTreeMap<IpAddr, Vec<NodeName>>,
    /// Those that this node's Node names and an interface of this machine has.
    own: BTreeSet<IpAddr>,
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
        let own = snapshot.nodes.get(inputs.me).map(|node| addresses(node));
        let own = own.into_iter().flatten();
        Self {
            nodes,
            own: own.filter(|a| inputs.links.holding(*a).is_some()).collect(),
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

    /// The addresses of nodes that a prefix covers.
    pub(super) fn nodes_in(&self, prefix: Prefix) -> impl Iterator<Item = (IpAddr, &NodeName)> {
        let inside = self.nodes.range(prefix.address()..);
        let inside = inside.take_while(move |(address, _)| prefix.contains(**address));
        inside.flat_map(|(address, names)| names.iter().map(|name| (*address, name)))
    }

    /// The first guarded address that a prefix covers, with its node; without one it is etcd's.
    fn first_in(&self, prefix: &Prefix) -> Option<(IpAddr, Option<&NodeName>)> {
        let node = self.nodes_in(*prefix).next();
        let node = node.map(|(address, name)| (address, Some(name)));
        let etcd = self.etcd_in(prefix).map(|address| (address, None));
        // Of one address that is both, etcd's is said.
        etcd.into_iter()
            .chain(node)
            .min_by_key(|(address, _)| *address)
    }

    fn etcd_in(&self, prefix: &Prefix) -> Option<IpAddr> {
        let first = self.etcd.range(prefix.address()..).next().copied();
        first.filter(|address| prefix.contains(*address))
    }

    /// True when a prefix covers an address of a node, or etcd's.
    pub(super) fn is_over(&self, prefix: &Prefix) -> bool {
        self.first_in(prefix).is_some()
    }

    /// First guarded address that a prefix covers, as text.
    pub(super) fn covered_by(&self, prefix: &Prefix, place: Place) -> Option<String> {
        let first = match place {
            Place::OfPods => self.etcd_in(prefix).map(|address| (address, None)),
            Place::Pool | Place::Outside => self.first_in(prefix),
        };
        if let Some((address, holder)) = first {
            return Some(match holder {
                None => format!("the datastore's endpoint {address}"),
                Some(name) => format!("the address {address} of node {name}"),
            });
        }
        let pooled = place != Place::Outside;
        let mut subnets = self.subnets.iter();
        let cut =
            |s: &&Prefix| prefix.covers(s) || (!pooled && !prefix.is_host() && s.covers(prefix));
        let subnet = subnets.find(cut)?;
        Some(format!("{subnet}, a subnet of this node's interfaces"))
    }
}

impl Planner<'_> {
    /// Where a prefix lies.
    pub(super) fn place(&self, prefix: &Prefix) -> Place {
        let Some(pool) = self.pools.covering(prefix) else {
            return Place::Outside;
        };
        let mut own = self.guarded.own.iter();
        let is_workload = || self.workloads.contains_key(prefix);
        let is_of_pods = self.is_in_block_of_pods(prefix)
            || is_workload() && !own.any(|own| pool.prefix.contains(*own));
        match is_of_pods {
            true => Place::OfPods,
            false => Place::Pool,
        }
    }

    /// True inside a node's block of a pool, but for pools over this machine.
    fn is_in_block_of_pods(&self, prefix: &Prefix) -> bool {
        let own = self.guarded.own.iter().copied();
        self.inputs.snapshot.block_of_pods(prefix, own).is_some()
    }

    /// True for an address of a node that is one of a block for pods: no machine has it, and it is
    /// no tunnel's end, no sender and no next hop (decision 0160).
    pub(super) fn is_refused(&self, address: IpAddr) -> bool {
        self.is_in_block_of_pods(&Prefix::host(address))
    }

    /// True when a route or a device address of the datastore may not be; names the key as a
    /// problem. Nodes whose addresses lie among those of pods are named, and hinder nothing.
    pub(super) fn would_cut(
        &self,
        to: &mut Destination,
        prefix: Prefix,
        what: &str,
        key: impl FnOnce() -> String,
    ) -> bool {
        let place = self.place(&prefix);
        if let Some(covered) = self.guarded.covered_by(&prefix, place) {
            let reason = format!(
                "{what} {prefix} would cover {covered}; it is not written: correct or delete what asks for it"
            );
            to.skip(format!("it would cover {covered}"));
            to.problem(ProblemCode::AgentWouldCutOff, &key(), reason);
            return true;
        }
        if place == Place::OfPods {
            self.name_nodes(to, prefix);
        }
        false
    }

    /// Names the nodes with an address inside a prefix of pods.
    fn name_nodes(&self, to: &mut Destination, prefix: Prefix) {
        let block = self.inputs.snapshot.block_of(&prefix);
        let owner = block.and_then(|block| Some((block.cidr, block.host()?)));
        for (address, name) in self.guarded.nodes_in(prefix) {
            let pods = match owner {
                Some((cidr, owner)) => format!("block {cidr} of node {owner}"),
                None => "the addresses of this node's workloads".to_owned(),
            };
            let reason = format!(
                "its address {address} is one of {pods}: the routes to these pods stay, none leads to a machine with that address, and it is used for nothing (no session, no tunnel, no next hop); correct the address in the Node"
            );
            let key = Key::node(name).to_path();
            to.problem(ProblemCode::AgentNodeAddressOfPods, &key, reason);
        }
    }
}
