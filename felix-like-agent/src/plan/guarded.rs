//! Addresses that no route and no device address of the datastore may cover: etcd's endpoints in
//! use, addresses of nodes, subnets of this node's interfaces. One wrong key would cut the node off
//! from where the right one is read.
//!
//! Prefixes *inside* a subnet of ours are allowed within a pool: pools that are part of the
//! machines' subnet are in use.

use std::net::IpAddr;

use caracal_model::NodeName;
use caracal_model::code::ProblemCode;
use caracal_model::net::{Family, Prefix};

use super::destination::Destination;
use super::{PlanInputs, Planner, nat};
use crate::ownership::is_tunnel_device;

/// Owner of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Etcd,
    Node(NodeName),
}

/// Guarded addresses, in their order.
#[derive(Debug)]
pub(super) struct Guarded {
    addresses: Vec<(IpAddr, Holder)>,
    subnets: Vec<Prefix>,
}

impl Guarded {
    pub(super) fn of(inputs: &PlanInputs<'_>) -> Self {
        let snapshot = inputs.snapshot;
        let mut addresses: Vec<_> = snapshot
            .nodes
            .iter()
            .flat_map(|(name, node)| {
                let all = [Family::Ipv4, Family::Ipv6].map(|family| nat::addresses(node, family));
                all.into_iter()
                    .flatten()
                    .map(move |address| (address, Holder::Node(name.clone())))
            })
            .collect();
        // An etcd in a pod is reached by the routes to pods.
        let endpoints = inputs.lifelines.iter().filter(|address| {
            let host = Prefix::host(**address);
            let in_pool = snapshot
                .pools
                .values()
                .any(|p| p.spec.prefix().covers(&host));
            !in_pool || !snapshot.endpoint_networks().any(|network| *network == host)
        });
        addresses.extend(endpoints.map(|address| (*address, Holder::Etcd)));
        addresses.sort_unstable();
        let links = inputs.links.iter().filter(|link| {
            let name = link.name.as_str();
            link.up && !is_tunnel_device(name) && !inputs.settings.is_workload_interface(name)
        });
        let subnets = links.flat_map(|link| link.addresses.iter().map(|a| a.prefix()));
        let subnets = subnets.filter(|subnet| !subnet.is_host()).collect();
        Self { addresses, subnets }
    }

    /// True when a prefix covers an address of a node, or etcd's.
    pub(super) fn is_over(&self, prefix: &Prefix) -> bool {
        let from = self
            .addresses
            .partition_point(|(a, _)| *a < prefix.address());
        let first = self.addresses.get(from);
        first.is_some_and(|(address, _)| prefix.contains(*address))
    }

    /// First guarded address that a prefix covers, as text. `pooled`: a pool covers the prefix.
    pub(super) fn covered_by(&self, prefix: &Prefix, pooled: bool) -> Option<String> {
        let from = self
            .addresses
            .partition_point(|(a, _)| *a < prefix.address());
        let mut inside = self.addresses[from..].iter();
        if let Some((address, holder)) = inside.next().filter(|(a, _)| prefix.contains(*a)) {
            return Some(match holder {
                Holder::Etcd => format!("etcd's endpoint {address}"),
                Holder::Node(name) => format!("the address {address} of node {name}"),
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
