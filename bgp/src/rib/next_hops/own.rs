//! Where routes of our own lead: to gateways on links of ours, or to an address that is looked up.

use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Gateway, IfName, Prefix};

use super::{NextHopTable, ResolvedNextHop};
use crate::attrs::{PathAttrs, RouteType};
use crate::config::{StaticGateway, StaticWay};

impl NextHopTable {
    /// Says where a route of ours leads.
    pub(in crate::rib) fn set_own_way(&mut self, prefix: Prefix, way: &StaticWay) {
        for hop in way.hops() {
            self.track(hop);
        }
        if way.leads_nowhere() {
            self.forget_own_way(&prefix);
        } else {
            self.own_ways.insert(prefix, way.clone());
        }
    }

    /// The route is gone, or leads nowhere.
    pub(in crate::rib) fn forget_own_way(&mut self, prefix: &Prefix) {
        self.own_ways.remove(prefix);
    }

    /// The gateways of a route of ours, or the address that is looked up.
    pub(in crate::rib) fn own_hops(&self, prefix: &Prefix) -> impl Iterator<Item = IpAddr> {
        let way = self.own_ways.get(prefix);
        way.into_iter().flat_map(StaticWay::hops)
    }

    /// The same as they are told: without zones, and unspecified for a link as a whole.
    pub(in crate::rib) fn own_addresses(&self, prefix: &Prefix) -> Vec<IpAddr> {
        match self.own_ways.get(prefix) {
            Some(StaticWay::Via(gateways)) => {
                gateways.iter().map(|gateway| gateway.address).collect()
            }
            _ => self.own_hops(prefix).collect(),
        }
    }

    /// The next hop through which a route of ours leads elsewhere: the first gateway on a link, or
    /// the address that is looked up.
    pub(in crate::rib) fn own_first(&self, prefix: &Prefix) -> Option<IpAddr> {
        match self.own_ways.get(prefix)? {
            StaticWay::Recursive(address) => Some(*address),
            way => {
                let mut hops = way.hops();
                hops.find(|hop| self.link(hop).is_some())
            }
        }
    }

    /// True while a route of ours counts: it leads nowhere, or one of its gateways is on a link.
    pub(in crate::rib) fn has_own_way(&self, prefix: &Prefix) -> bool {
        match self.own_ways.get(prefix) {
            Some(StaticWay::Via(gateways)) if self.is_tracking() => {
                let mut gateways = gateways.iter();
                gateways.any(|gateway| self.link(&gateway.hop()).is_some())
            }
            _ => true,
        }
    }

    /// The link that a gateway is on.
    fn link(&self, gateway: &IpAddr) -> Option<&ResolvedNextHop> {
        let link = self.entries.get(gateway)?.own.as_ref()?;
        (link.gateway.is_none()).then_some(link)
    }

    /// Where packets for a route of ours go. Nowhere while nobody reads the underlay.
    pub(in crate::rib) fn own_gateways(&self, prefix: &Prefix) -> Arc<[Gateway]> {
        match self.own_ways.get(prefix) {
            Some(StaticWay::Recursive(address)) => self.gateways(address, prefix),
            Some(StaticWay::Via(gateways)) => {
                let gateway = |gateway: &StaticGateway| {
                    let interface = self.link(&gateway.hop())?.interface.clone()?;
                    Some(Gateway {
                        address: gateway.address,
                        interface,
                        extra_weight: gateway.extra_weight,
                    })
                };
                gateways.iter().filter_map(gateway).collect()
            }
            Some(_) | None => Arc::default(),
        }
    }

    /// The interface by which a route of ours leaves, and its gateway: of several the one of the
    /// highest weight and the lowest address, as in BIRD.
    pub(in crate::rib) fn own_way(&self, prefix: &Prefix) -> (Option<&str>, Option<IpAddr>) {
        match self.own_ways.get(prefix) {
            Some(StaticWay::Recursive(address)) => self.way(address),
            Some(StaticWay::Via(gateways)) => {
                let on_links = gateways.iter().filter_map(|gateway| {
                    let link = self.link(&gateway.hop())?;
                    Some((gateway.order(), link))
                });
                let Some((order, link)) = on_links.min_by_key(|(order, _)| *order) else {
                    return (None, None);
                };
                let address = Some(order.1).filter(|address| !address.is_unspecified());
                (link.interface.as_ref().map(IfName::as_str), address)
            }
            Some(way) => way.told(),
            None => (None, None),
        }
    }

    /// The one gateway of a route of ours that peers can be told.
    pub(in crate::rib) fn own_gateway(&self, attrs: &PathAttrs, prefix: &Prefix) -> Option<IpAddr> {
        let hop = attrs.next_hop?;
        match attrs.route_type {
            RouteType::Via => Some(hop),
            RouteType::Recursive => {
                let resolved = self.resolved(&hop, prefix)?;
                Some(resolved.gateway.unwrap_or(hop))
            }
            _ => None,
        }
    }
}
