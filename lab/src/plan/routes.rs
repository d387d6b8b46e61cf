//! Routes of the underlay: shortest paths over segments and routers. Pod routes are never among
//! them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_model::{Family, Prefix};

use super::StaticRoute;
use super::addresses::Addresses;
use crate::topology::{Router, Topology};

/// Segments joined by routers, in one family.
pub(super) struct Graph<'a> {
    topology: &'a Topology,
    addresses: &'a Addresses,
}

impl<'a> Graph<'a> {
    pub(super) fn new(topology: &'a Topology, addresses: &'a Addresses) -> Self {
        Self {
            topology,
            addresses,
        }
    }

    fn leg(&self, router: &str, segment: &str) -> IpAddr {
        self.addresses.legs[&(router.to_owned(), segment.to_owned())]
    }

    /// The next hop towards every segment that is not in `from`, seen from an owner of legs in
    /// `from`.
    fn next_hops(&self, from: &[&'a str], except: Option<&str>) -> BTreeMap<&'a str, IpAddr> {
        let mut hops = BTreeMap::new();
        let mut seen: BTreeSet<&str> = from.iter().copied().collect();
        let mut queue: VecDeque<(&str, Option<IpAddr>)> = from.iter().map(|s| (*s, None)).collect();
        while let Some((segment, hop)) = queue.pop_front() {
            let touches = |r: &&Router| {
                Some(r.name.value.as_str()) != except
                    && r.legs.iter().any(|l| l.segment.value == segment)
            };
            for router in self.topology.routers.iter().filter(touches) {
                let hop = hop.unwrap_or_else(|| self.leg(&router.name.value, segment));
                for leg in &router.legs {
                    let next = leg.segment.value.as_str();
                    if seen.insert(next) {
                        hops.insert(next, hop);
                        queue.push_back((next, Some(hop)));
                    }
                }
            }
        }
        hops
    }

    fn cidr(&self, segment: &str) -> Prefix {
        self.topology
            .segment(segment)
            .and_then(|s| s.prefix(self.addresses.family))
            .expect("invariant: references and families were checked")
    }

    /// Routes of a node: a default route, through an address nobody has where the segment has no
    /// router (proxy ARP for 169.254.1.1 needs some route out of another device), and what it does
    /// not cover.
    pub(super) fn node_routes(&self, segment: &'a str) -> Vec<StaticRoute> {
        let router = self
            .topology
            .routers
            .iter()
            .find(|r| r.legs.iter().any(|l| l.segment.value == segment));
        let default = router.map_or_else(
            || self.addresses.dead[segment],
            |r| self.leg(&r.name.value, segment),
        );
        let mut routes = vec![StaticRoute {
            destination: match self.addresses.family {
                Family::Ipv4 => Prefix::v4(Ipv4Addr::UNSPECIFIED, 0),
                Family::Ipv6 => Prefix::v6(Ipv6Addr::UNSPECIFIED, 0),
            },
            next_hop: default,
        }];
        for (other, next_hop) in self.next_hops(&[segment], None) {
            if next_hop != default {
                routes.push(StaticRoute {
                    destination: self.cidr(other),
                    next_hop,
                });
            }
        }
        routes
    }

    /// Routes of a router to segments it has no leg in.
    pub(super) fn router_routes(&self, router: &'a Router) -> Vec<StaticRoute> {
        let own: Vec<_> = router
            .legs
            .iter()
            .map(|l| l.segment.value.as_str())
            .collect();
        let hops = self.next_hops(&own, Some(&router.name.value));
        hops.into_iter()
            .map(|(segment, next_hop)| StaticRoute {
                destination: self.cidr(segment),
                next_hop,
            })
            .collect()
    }
}
