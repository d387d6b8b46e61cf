//! Kernel state, as read back. Devices are named as in [`crate::kernel_objects`]; an index without
//! a name does not occur, since links are read in the same pass.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use caracal_model::{IfName, Mac, Prefix};

use crate::kernel_objects::{
    FdbKey, ForwardingTarget, NeighbourKey, NextHop, NextHopObject, Route, RouteKey,
};
use crate::links::Links;

/// Where a kernel route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActualTarget {
    /// A target that we write ourselves.
    Known(ForwardingTarget),
    /// Another route type (`unreachable`, `prohibit`, `throw`, …) by its number, or a route with
    /// features that we never write (light-weight tunnels): never ours.
    Other(u8),
}

/// A route of the kernel's main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualRoute {
    /// Destination.
    pub prefix: Prefix,
    /// Priority of the route; of equal prefixes the lowest number wins.
    pub metric: u32,
    /// Type of service; ours have zero.
    pub tos: u8,
    /// Kernel protocol.
    pub protocol: u8,
    /// Where it leads.
    pub target: ActualTarget,
    /// MTU metric.
    pub mtu: Option<u32>,
    /// Source of this machine's own packets (`src`).
    pub source: Option<IpAddr>,
}

impl ActualRoute {
    /// The kernel's key.
    #[must_use]
    pub const fn key(&self) -> RouteKey {
        RouteKey {
            prefix: self.prefix,
            metric: self.metric,
        }
    }

    /// As a route of a kind that we write.
    #[must_use]
    pub fn known(&self) -> Option<Route> {
        match &self.target {
            ActualTarget::Known(target) if self.tos == 0 => Some(Route {
                prefix: self.prefix,
                metric: self.metric,
                protocol: self.protocol,
                target: target.clone(),
                mtu: self.mtu,
                source: self.source,
            }),
            _ => None,
        }
    }

    /// True when it needs no change to be a wanted route.
    #[must_use]
    pub fn satisfies(&self, wanted: &Route) -> bool {
        let same_gateway = matches!(&self.target, ActualTarget::Known(target) if target.same_gateway(&wanted.target));
        same_gateway
            && self.tos == 0
            && self.key() == wanted.key()
            && self.protocol == wanted.protocol
            && self.mtu == wanted.mtu
            && self.source == wanted.source
    }

    /// The next hops; empty for blackholes and foreign kinds.
    #[must_use]
    pub fn next_hops(&self) -> &[NextHop] {
        match &self.target {
            ActualTarget::Known(target) => target.hops(),
            ActualTarget::Other(_) => &[],
        }
    }

    /// The next-hop object that it leads through.
    #[must_use]
    pub const fn object(&self) -> Option<u32> {
        match self.target {
            ActualTarget::Known(ForwardingTarget::Object(id, _)) => Some(id),
            _ => None,
        }
    }

    /// The device of a route with exactly one next hop.
    #[must_use]
    pub fn link(&self) -> Option<&IfName> {
        match self.next_hops() {
            [hop] => Some(&hop.link),
            _ => None,
        }
    }
}

impl From<Route> for ActualRoute {
    fn from(route: Route) -> Self {
        Self {
            prefix: route.prefix,
            metric: route.metric,
            tos: 0,
            protocol: route.protocol,
            target: ActualTarget::Known(route.target),
            mtu: route.mtu,
            source: route.source,
        }
    }
}

/// A next-hop object of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualObject {
    /// Kernel protocol.
    pub protocol: u8,
    /// Gateway and interface; `None` for kinds that we never make (groups, blackholes, …).
    pub hop: Option<NextHop>,
}

/// A neighbour of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActualNeighbour {
    /// MAC address, when it is resolved.
    pub mac: Option<Mac>,
    /// Set by somebody, not learned.
    pub permanent: bool,
}

/// Kernel state, as read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actual {
    /// Interfaces with their addresses.
    pub links: Links,
    /// Routes of the main table by key, in the kernel's order.
    pub routes: BTreeMap<RouteKey, Vec<ActualRoute>>,
    /// Next-hop objects by number.
    pub objects: BTreeMap<u32, ActualObject>,
    /// Neighbour entries by device and address.
    pub neighbours: BTreeMap<NeighbourKey, ActualNeighbour>,
    /// FDB entries of VXLAN devices with a destination.
    pub fdb: BTreeMap<FdbKey, IpAddr>,
    /// Values below `/proc/sys`; those that were asked for.
    pub sysctls: BTreeMap<String, String>,
    /// Fingerprint of our NAT rules; `None` = none are there.
    pub nat: Option<String>,
}

impl Actual {
    /// Adds a route behind those with the same key.
    pub fn push_route(&mut self, route: ActualRoute) {
        self.routes_of(route.key()).push(route);
    }

    /// The routes of a key. There is one, as a rule: room for more would be most of what a large
    /// table takes.
    fn routes_of(&mut self, key: RouteKey) -> &mut Vec<ActualRoute> {
        let room = || Vec::with_capacity(1);
        self.routes.entry(key).or_insert_with(room)
    }

    /// Puts a route in the place of the first of its key, as a replacement does, or there where
    /// there is none.
    pub(crate) fn replace_route(&mut self, route: ActualRoute) {
        let there = self.routes_of(route.key());
        match there.iter_mut().find(|r| r.tos == 0) {
            Some(first) => *first = route,
            None => there.push(route),
        }
    }

    /// Takes away one route like this. False when there is none.
    pub fn remove_route(&mut self, route: &ActualRoute) -> bool {
        let Entry::Occupied(mut there) = self.routes.entry(route.key()) else {
            return false;
        };
        let Some(index) = there.get().iter().position(|r| r == route) else {
            return false;
        };
        there.get_mut().remove(index);
        if there.get().is_empty() {
            there.remove();
        }
        true
    }

    /// Routes of both families, in the order of their keys.
    pub fn all_routes(&self) -> impl Iterator<Item = &ActualRoute> {
        self.routes.values().flatten()
    }

    /// The routes to exactly this prefix, whatever their metric.
    pub(crate) fn routes_to(&self, prefix: &Prefix) -> impl Iterator<Item = &ActualRoute> {
        let key = |metric| RouteKey {
            prefix: *prefix,
            metric,
        };
        let range = self.routes.range(key(0)..=key(u32::MAX));
        range.flat_map(|(_, routes)| routes)
    }

    /// The route of the main table that packets to a destination take: the longest prefix, of those
    /// the lowest metric, of those the first.
    #[must_use]
    pub fn route_to(&self, destination: &Prefix) -> Option<&ActualRoute> {
        (0..=destination.len()).rev().find_map(|len| {
            let prefix = Prefix::truncated(destination.address(), len);
            self.routes_to(&prefix).find(|route| route.tos == 0)
        })
    }

    /// Makes or changes a next-hop object: each route through it leads where it leads.
    pub(crate) fn put_object(&mut self, object: &NextHopObject) {
        let made = ActualObject {
            protocol: object.protocol,
            hop: Some(object.hop.clone()),
        };
        if self.objects.insert(object.id, made).is_none() {
            return;
        }
        for route in self.routes.values_mut().flatten() {
            if let ActualTarget::Known(ForwardingTarget::Object(id, hop)) = &mut route.target
                && *id == object.id
            {
                *hop = object.hop.clone();
            }
        }
    }

    /// Removes a next-hop object: the kernel removes its routes with it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn remove_object(&mut self, id: u32) {
        self.objects.remove(&id);
        self.routes.retain(|_, routes| {
            routes.retain(|r| r.object() != Some(id));
            !routes.is_empty()
        });
    }

    /// Removes a device: the kernel removes its next-hop objects, routes, neighbours, FDB entries
    /// and addresses with it.
    pub fn remove_link(&mut self, name: &IfName) {
        self.links.remove(name.as_str());
        self.routes.retain(|_, routes| {
            routes.retain(|r| !r.next_hops().iter().any(|hop| hop.link == *name));
            !routes.is_empty()
        });
        let on = |object: &ActualObject| object.hop.as_ref().is_some_and(|h| h.link == *name);
        self.objects.retain(|_, object| !on(object));
        self.neighbours.retain(|key, _| key.link != *name);
        self.fdb.retain(|key, _| key.link != *name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_and_the_lowest_metric_win() {
        let mut actual = Actual::default();
        for (prefix, metric, link) in [
            ("0.0.0.0/0", 0, "eth0"),
            ("10.244.0.0/16", 50, "eth1"),
            ("10.244.0.0/16", 20, "eth2"),
            ("10.244.0.0/26", 9, "eth3"),
        ] {
            actual.push_route(ActualRoute::from(Route {
                prefix: prefix.parse().unwrap(),
                metric,
                protocol: 80,
                target: ForwardingTarget::via(None, &link.into(), false),
                mtu: None,
                source: None,
            }));
        }
        let link = |text: &str| {
            let route = actual.route_to(&text.parse().unwrap())?;
            route.link().map(ToString::to_string)
        };
        assert_eq!(link("10.244.0.1/32").as_deref(), Some("eth3"));
        assert_eq!(link("10.244.0.0/26").as_deref(), Some("eth3"));
        assert_eq!(link("10.244.0.0/24").as_deref(), Some("eth2"));
        assert_eq!(link("10.244.9.1/32").as_deref(), Some("eth2"));
        assert_eq!(link("192.0.2.1/32").as_deref(), Some("eth0"));
        assert_eq!(link("fd00::1/128"), None);
    }

    #[test]
    fn a_key_with_one_route_has_room_for_one() {
        let route = |n: u8| {
            ActualRoute::from(Route {
                prefix: Prefix::v4([10, n, 0, 0].into(), 16),
                metric: 0,
                protocol: 80,
                target: ForwardingTarget::Blackhole,
                mtu: None,
                source: None,
            })
        };
        let mut actual = Actual::default();
        actual.push_route(route(1));
        actual.replace_route(route(2));
        let room: Vec<usize> = actual.routes.values().map(Vec::capacity).collect();
        assert_eq!(room, [1, 1]);
    }
}
