//! From a node's address to a gateway on a link, and what the speaker resolves BGP next hops over.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Family, IfName, Prefix, SharedMap, Underlay};

use super::pools::Pools;
use super::{PlanInputs, Planner};
use crate::actual::{Actual, ActualRoute, ActualTarget};
use crate::kernel_objects::{ForwardingTarget, NextHop};
use crate::learned::Learned;
use crate::links::Links;
use crate::ownership::{Owner, Ownership, is_tunnel_device};
use crate::paths::PathMtus;
use crate::underlay;

/// Routes of others in the main table, over which next hops are reached. Our own routes are left
/// out: pods are no gateways to nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRoutes {
    /// Longest prefix first, then lowest metric.
    routes: Arc<Vec<(Prefix, u32, NextHop)>>,
    /// Path MTUs to other nodes.
    paths: Arc<PathMtus>,
}

impl HostRoutes {
    /// Those that the kernel has.
    #[must_use]
    pub fn from_kernel(actual: &Actual, ownership: &Ownership) -> Self {
        Self::from_routes(
            actual
                .all_routes()
                .filter(|r| r.tos == 0 && ownership.route(r) == Owner::Foreign)
                .filter_map(|r| Some((r.prefix, r.metric, r.next_hops().first()?.clone())))
                .filter(|(_, _, hop)| !is_tunnel_device(hop.link.as_str())),
        )
    }

    /// Routes of (prefix, metric, next hop).
    #[must_use]
    pub(crate) fn from_routes(routes: impl IntoIterator<Item = (Prefix, u32, NextHop)>) -> Self {
        let mut routes: Vec<_> = routes.into_iter().collect();
        routes.sort_by_key(|(prefix, metric, _)| (std::cmp::Reverse(prefix.len()), *metric));
        Self {
            routes: Arc::new(routes),
            paths: Arc::default(),
        }
    }

    /// The same with what is known of the paths to other nodes.
    #[must_use]
    pub fn with_paths(mut self, paths: Arc<PathMtus>) -> Self {
        self.paths = paths;
        self
    }

    /// True when both are the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same_paths = Arc::ptr_eq(&self.paths, &other.paths) || self.paths == other.paths;
        same_paths && self.has_routes_of(other)
    }

    /// The same, whatever is known of paths.
    pub(super) fn has_routes_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.routes, &other.routes) || self.routes == other.routes
    }

    pub(super) fn paths(&self) -> &PathMtus {
        &self.paths
    }

    /// The underlay of these interfaces and routes; our tunnels lead to pods, not to next hops.
    fn underlay(&self, links: &Links) -> Underlay {
        let links: Links = links
            .iter()
            .filter(|link| !is_tunnel_device(link.name.as_str()))
            .cloned()
            .collect();
        let routes = self.routes.iter().map(|(prefix, metric, hop)| ActualRoute {
            prefix: *prefix,
            metric: *metric,
            tos: 0,
            protocol: 0,
            target: ActualTarget::Known(ForwardingTarget::Via(vec![hop.clone()])),
            mtu: None,
            source: None,
        });
        underlay::underlay_of(&links, &routes.collect::<Vec<_>>(), &BTreeSet::new())
    }

    fn lookup(&self, address: IpAddr) -> Option<&(Prefix, u32, NextHop)> {
        self.routes.iter().find(|(p, _, _)| p.contains(address))
    }
}

impl PlanInputs<'_> {
    /// The underlay that BGP next hops are resolved over; learned routes are no part of it.
    #[must_use]
    pub fn underlay(&self) -> Underlay {
        let mut underlay = self.host_routes.underlay(self.links);
        if let Some(node) = self.snapshot.nodes.get(self.me) {
            for family in [Family::Ipv4, Family::Ipv6] {
                let cidr = node.spec.cidr(family);
                let parent = cidr.and_then(|cidr| self.links.holding(cidr.address));
                let parent = parent.filter(|link| link.up && !link.loopback);
                // The datastore may know a wider subnet than the interface, which then has a host
                // prefix.
                if let (Some(cidr), Some(link)) = (cidr, parent) {
                    underlay.offer(cidr.prefix(), Some(underlay::on_link(link)));
                }
            }
        }
        let pools = Pools::from_snapshot(self.snapshot, self.settings);
        underlay.not_through = pools.iter().map(|pool| pool.prefix).collect();
        underlay
    }

    /// The learned routes with their next hops resolved over the underlay, for forecasts and
    /// simulations in which no speaker does it.
    #[must_use]
    pub fn resolved(&self) -> SharedMap<Prefix, Learned> {
        let underlay = self.underlay();
        let routes = self.learned.iter();
        routes
            .map(|(prefix, learned)| (*prefix, learned.clone().over(&underlay)))
            .collect()
    }
}

impl Planner<'_> {
    /// Next hop to a node's address: on a link, else through a route of somebody else's, or a
    /// longer learned one.
    pub(super) fn resolve(&self, address: IpAddr) -> Option<NextHop> {
        let known = self.resolved.borrow().get(&address).cloned();
        known.unwrap_or_else(|| {
            let hop = self.resolve_to(address);
            self.resolved.borrow_mut().insert(address, hop.clone());
            hop
        })
    }

    fn resolve_to(&self, address: IpAddr) -> Option<NextHop> {
        let links = self.inputs.links;
        if links.holding(address).is_some() {
            return None;
        }
        if let Some(hop) = self.on_link(address) {
            return Some(hop);
        }
        let foreign = self.inputs.host_routes.lookup(address);
        match (foreign, self.learned_route(address)) {
            (Some((prefix, ..)), Some((by, hop))) if by.len() > prefix.len() => Some(hop),
            (None, Some((_, hop))) => Some(hop),
            (Some((_, _, hop)), _) if links.by_name(hop.link.as_str()).is_some_and(|l| l.up) => {
                Some(NextHop {
                    gateway: Some(hop.gateway.unwrap_or(address)),
                    link: hop.link.clone(),
                    onlink: true,
                    extra_weight: 0,
                })
            }
            _ => None,
        }
    }

    /// Next hop to an address in a subnet of ours.
    pub(super) fn on_link(&self, address: IpAddr) -> Option<NextHop> {
        let direct = |link: &IfName| NextHop {
            gateway: Some(address),
            link: link.clone(),
            onlink: true,
            extra_weight: 0,
        };
        if let Some(link) = self.inputs.links.on_link(address)
            && !is_tunnel_device(link.name.as_str())
        {
            return Some(direct(&link.name));
        }
        // The datastore may know a wider subnet than the interface, which then has a host prefix.
        let own = self.own.get(&Family::of(address))?;
        let parent = own.parent.filter(|p| p.up && !p.loopback)?;
        (own.cidr.prefix().contains(address) && own.cidr.address != address)
            .then(|| direct(&parent.name))
    }

    /// The longest learned route outside all pools that contains an address, with its first
    /// gateway.
    fn learned_route(&self, address: IpAddr) -> Option<(Prefix, NextHop)> {
        let bits = Family::of(address).bits();
        (0..=bits).rev().find_map(|len| {
            let prefix = Prefix::truncated(address, len);
            let learned = self.inputs.learned.get(&prefix)?;
            if self.pools.covering(&prefix).is_some() {
                return None;
            }
            Some((prefix, learned.gateways.first()?.into()))
        })
    }
}
