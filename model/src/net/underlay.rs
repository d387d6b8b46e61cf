//! The underlay: the links and routes over which the next hops of BGP are reached (RFC 4271
//! §9.1.2.1).
//!
//! Whoever reads the kernel publishes it, whoever decides between routes resolves next hops over
//! it. What one's own speaker wrote into the forwarding table is not part of it: a next hop that is
//! reached through what it announced is not reached.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::InsertEach;
use serde::{Deserialize, Serialize};

use super::{Family, Prefix};
use crate::names::IfName;

/// How a range of addresses is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderlayRoute {
    /// The interior cost: the kernel's metric, 0 for a subnet of an interface.
    pub metric: u32,
    /// The interface, when it is known.
    pub interface: Option<IfName>,
    /// The gateway; `None` = the address is on the link.
    pub gateway: Option<IpAddr>,
    /// Something is at the other end of the interface. A route without carrier is a last resort: a
    /// path over another one wins, whatever its attributes, and with no other one the path stays in
    /// use, for the cable may come back and nothing would be won by its loss.
    pub carrier: bool,
}

impl Default for UnderlayRoute {
    /// Reachable, metric 0, interface unknown.
    fn default() -> Self {
        Self {
            metric: 0,
            interface: None,
            gateway: None,
            carrier: true,
        }
    }
}

impl fmt::Display for UnderlayRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gateway {
            Some(gateway) => write!(f, "via {gateway}")?,
            None => f.write_str("on the link")?,
        }
        if let Some(interface) = &self.interface {
            write!(f, " dev {interface}")?;
        }
        write!(f, ", metric {}", self.metric)?;
        f.write_str(if self.carrier { "" } else { ", no carrier" })
    }
}

/// The subnets and addresses of this machine: nobody else's route to them is to be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalNetworks {
    /// Subnets of interfaces that are up, without host prefixes.
    pub subnets: BTreeSet<Prefix>,
    /// Addresses of interfaces that are up or down, without link-local ones of IPv6.
    pub addresses: BTreeSet<IpAddr>,
}

/// Where a packet goes: a neighbour on an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Gateway {
    /// Address of the next router, or of the destination itself when it is on the link; unspecified
    /// for whatever is on the link.
    pub address: IpAddr,
    /// Interface that the packet leaves by.
    pub interface: IfName,
    /// Beside others: how much more than one share of the packets it gets.
    #[serde(default, skip_serializing_if = "is_none")]
    pub extra_weight: u8,
}

/// No more than one share.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_none(extra_weight: &u8) -> bool {
    *extra_weight == 0
}

/// The links and the routes of others, by range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// The longest range that contains an address counts. `None`: it cannot be reached.
    pub routes: BTreeMap<Prefix, Option<UnderlayRoute>>,
    /// The answer for all others.
    pub others: Option<UnderlayRoute>,
    /// No BGP route inside these ranges leads to a next hop: pods are no way to nodes.
    pub not_through: BTreeSet<Prefix>,
}

impl Default for Underlay {
    /// Everything can be reached at no cost: nobody has looked.
    fn default() -> Self {
        Self::new([], Some(UnderlayRoute::default()))
    }
}

impl Underlay {
    /// These routes, and the answer for all other addresses.
    #[must_use]
    pub fn new(
        routes: impl IntoIterator<Item = (Prefix, Option<UnderlayRoute>)>,
        others: Option<UnderlayRoute>,
    ) -> Self {
        Self {
            routes: routes.into_iter().insert_each(),
            others,
            not_through: BTreeSet::new(),
        }
    }

    /// Adds a route unless there is a better one for the same range; one with a carrier is better
    /// than one without.
    pub fn offer(&mut self, range: Prefix, route: Option<UnderlayRoute>) {
        match self.routes.entry(range) {
            Entry::Vacant(entry) => {
                entry.insert(route);
            }
            Entry::Occupied(mut entry) => {
                let dead = matches!(entry.get(), Some(known) if !known.carrier);
                if dead && route.as_ref().is_some_and(|route| route.carrier) {
                    entry.insert(route);
                }
            }
        }
    }

    /// How an address is reached; `None`: it cannot be.
    #[must_use]
    pub fn find(&self, address: IpAddr) -> Option<&UnderlayRoute> {
        let bits = Family::of(address).bits();
        let known = (0..=bits)
            .rev()
            .find_map(|len| self.routes.get(&Prefix::truncated(address, len)));
        known.unwrap_or(&self.others).as_ref()
    }

    /// Where packets for a next hop go, by the underlay alone.
    #[must_use]
    pub fn gateway(&self, next_hop: IpAddr) -> Option<Gateway> {
        let route = self.find(next_hop)?;
        Some(Gateway {
            address: route.gateway.unwrap_or(next_hop),
            interface: route.interface.clone()?,
            extra_weight: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn rfc4271_9_1_2_1_the_longest_range_answers() {
        let route = |metric| {
            Some(UnderlayRoute {
                metric,
                ..UnderlayRoute::default()
            })
        };
        let ranges = [
            ("0.0.0.0/0", route(100)),
            ("10.0.0.0/8", route(7)),
            ("10.1.0.0/16", None),
            ("10.1.2.3/32", route(1)),
        ];
        let ranges = ranges.map(|(range, route)| (range.parse().unwrap(), route));
        let underlay = Underlay::new(ranges, None);
        for (address, metric) in [
            ("10.1.2.3", Some(1)),
            ("10.1.2.4", None),
            ("10.2.0.1", Some(7)),
            ("192.0.2.1", Some(100)),
            ("2001:db8::1", None),
        ] {
            let found = underlay.find(address.parse().unwrap());
            assert_eq!(found.map(|route| route.metric), metric, "{address}");
        }
    }

    #[test]
    fn a_gateway_needs_an_interface() {
        let next_hop = "192.0.2.1".parse().unwrap();
        assert_eq!(Underlay::default().gateway(next_hop), None);
        let on = |gateway: Option<&str>| UnderlayRoute {
            interface: Some("eth0".into()),
            gateway: gateway.map(|text| text.parse().unwrap()),
            ..UnderlayRoute::default()
        };
        for (gateway, expected) in [(None, "192.0.2.1"), (Some("10.0.0.254"), "10.0.0.254")] {
            let underlay = Underlay::new([], Some(on(gateway)));
            let found = underlay.gateway(next_hop).unwrap();
            assert_eq!(found.address.to_string(), expected);
            assert_eq!(found.interface.as_str(), "eth0");
        }
    }
}
