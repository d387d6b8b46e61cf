//! From a BGP next hop or a node's address to a gateway on a link (RFC 4271 §5.1.3, recursive lookup).

use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::names::IfName;
use caracal_model::net::{Family, Prefix};
use foldhash::HashMap;

use super::Planner;
use crate::actual::{Actual, ActualRoute, ActualTarget};
use crate::desired::{NextHop, Target};
use crate::links::Links;
use crate::ownership::{Owner, Ownership, is_tunnel_device};
use crate::paths::PathMtus;
use crate::ways::{Way, Ways};

/// Routes of others in the main table, the ground on which next hops are reached. Our own routes are left
/// out: pods are not a way to nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Underlay {
    /// Longest prefix first, then lowest metric.
    routes: Arc<Vec<(Prefix, u32, NextHop)>>,
    /// What the paths to other nodes carry.
    paths: Arc<PathMtus>,
}

impl Underlay {
    /// The underlay as the kernel has it.
    #[must_use]
    pub fn of(actual: &Actual, ownership: &Ownership) -> Self {
        Self::from_routes(
            actual
                .all_routes()
                .filter(|r| r.tos == 0 && ownership.route(r) == Owner::Foreign)
                .filter_map(|r| Some((r.prefix, r.metric, r.next_hops().first()?.clone())))
                .filter(|(_, _, hop)| !is_tunnel_device(hop.link.as_str())),
        )
    }

    /// An underlay of (prefix, metric, way).
    #[must_use]
    pub fn from_routes(routes: impl IntoIterator<Item = (Prefix, u32, NextHop)>) -> Self {
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

    pub(super) fn paths(&self) -> &PathMtus {
        &self.paths
    }

    /// The ways over these interfaces and routes; our tunnels lead to pods, not to next hops.
    fn ways(&self, links: &Links) -> Ways {
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
            target: ActualTarget::Known(Target::Via(vec![hop.clone()])),
            mtu: None,
            source: None,
        });
        Ways::of(&links, &routes.collect::<Vec<_>>())
    }

    fn lookup(&self, address: IpAddr) -> Option<&(Prefix, u32, NextHop)> {
        self.routes.iter().find(|(p, _, _)| p.contains(address))
    }
}

/// Learned routes that next hops of others may stand on, at most: a cluster's and its routers', not a table of the Internet.
const LEARNED_WAYS: usize = 16_384;

/// How far a route of another BGP peer may help: one step, so that no loop is possible.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    ThroughLearned,
    LinksOnly,
}

impl Planner<'_> {
    /// Every way by which [`Planner::resolve`] finds next hops, for whoever decides between routes.
    pub(super) fn ways(&self) -> Ways {
        let mut ways = self.inputs.underlay.ways(self.inputs.links);
        for own in self.own.values() {
            if let Some(parent) = own.parent.filter(|p| p.up && !p.loopback) {
                let way = Way {
                    gateway: None,
                    link: parent.name.clone(),
                    metric: 0,
                    carrier: parent.carrier,
                    learned: false,
                };
                ways.offer(own.cidr.prefix(), Some(way));
            }
        }
        let outside = self.inputs.learned.iter();
        let outside = outside.filter(|(prefix, _)| self.pools.covering(prefix).is_none());
        let mut known: HashMap<IpAddr, Option<NextHop>> = HashMap::default();
        for (prefix, learned) in outside.take(LEARNED_WAYS) {
            let Some(first) = learned.next_hops.first() else {
                continue;
            };
            let hop = known
                .entry(*first)
                .or_insert_with(|| self.resolve_to(*first, Depth::LinksOnly));
            if let Some(NextHop {
                gateway: Some(gateway),
                link,
                ..
            }) = hop
            {
                let carrier = self.inputs.links.by_name(link.as_str());
                let way = Way {
                    gateway: Some(*gateway),
                    carrier: carrier.is_some_and(|link| link.carrier),
                    link: link.clone(),
                    metric: self.inputs.settings.route_metric(prefix.family()),
                    learned: true,
                };
                ways.offer(*prefix, Some(way));
            }
        }
        ways
    }

    /// The way to an address of another machine: on a link, else through the underlay, else through a learned
    /// route whose own next hop is on a link.
    pub(super) fn resolve(&self, address: IpAddr) -> Option<NextHop> {
        let known = self.resolved.borrow().get(&address).cloned();
        known.unwrap_or_else(|| {
            let hop = self.resolve_to(address, Depth::ThroughLearned);
            self.resolved.borrow_mut().insert(address, hop.clone());
            hop
        })
    }

    fn resolve_to(&self, address: IpAddr, depth: Depth) -> Option<NextHop> {
        let links = self.inputs.links;
        if links.holding(address).is_some() {
            return None;
        }
        if let Some(hop) = self.on_link(address) {
            return Some(hop);
        }
        let underlay = self.inputs.underlay.lookup(address);
        let learned = match depth {
            Depth::ThroughLearned => self.learned_way(address),
            Depth::LinksOnly => None,
        };
        match (underlay, learned) {
            (Some((prefix, ..)), Some((by, hop))) if by.len() > prefix.len() => Some(hop),
            (None, Some((_, hop))) => Some(hop),
            (Some((_, _, hop)), _) if links.by_name(hop.link.as_str()).is_some_and(|l| l.up) => {
                Some(NextHop {
                    gateway: Some(hop.gateway.unwrap_or(address)),
                    link: hop.link.clone(),
                    onlink: true,
                })
            }
            _ => None,
        }
    }

    /// The way to an address in a subnet of ours.
    pub(super) fn on_link(&self, address: IpAddr) -> Option<NextHop> {
        let direct = |link: &IfName| NextHop {
            gateway: Some(address),
            link: link.clone(),
            onlink: true,
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

    /// The longest learned route outside all pools that contains an address, with the way of its next hop.
    fn learned_way(&self, address: IpAddr) -> Option<(Prefix, NextHop)> {
        let bits = Family::of(address).bits();
        (0..=bits).rev().find_map(|len| {
            let prefix = Prefix::truncated(address, len);
            let learned = self.inputs.learned.get(&prefix)?;
            if self.pools.covering(&prefix).is_some() {
                return None;
            }
            let hop = self.resolve_to(*learned.next_hops.first()?, Depth::LinksOnly)?;
            Some((prefix, hop))
        })
    }
}
