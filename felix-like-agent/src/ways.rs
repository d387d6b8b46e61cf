//! Ways to addresses of other machines, found in the kernel's interfaces and routes: the ground on which BGP next hops
//! are reachable (RFC 4271 §9.1.2.1, §5.1.3).
//!
//! Routes of our own never count: a next hop that is reached through what it announced is not reached. Neither
//! do addresses of this machine: they are no way to anybody.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use caracal_model::names::IfName;
use caracal_model::net::{Family, Prefix};

use crate::actual::ActualRoute;
use crate::desired::NextHop;
use crate::links::Links;

/// How a range of addresses is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The gateway; `None` = the addresses are on the link.
    pub gateway: Option<IpAddr>,
    /// The interface.
    pub link: IfName,
    /// The kernel's metric; 0 for a subnet of an interface.
    pub metric: u32,
    /// Something is at the other end of the interface.
    pub carrier: bool,
    /// By a route that BGP itself told us: it may go when another is preferred over it, and this way is gone with it.
    pub learned: bool,
}

impl Way {
    /// As the next hop of a route to somewhere behind `address`.
    #[must_use]
    pub fn towards(&self, address: IpAddr) -> NextHop {
        NextHop {
            gateway: Some(self.gateway.unwrap_or(address)),
            link: self.link.clone(),
            onlink: true,
        }
    }
}

/// Ways by range; the longest range that contains an address counts. `None`: known not to be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways(BTreeMap<Prefix, Option<Way>>);

/// Link-local addresses are on every link, so they say nothing about which.
fn is_link_local(prefix: &Prefix) -> bool {
    Prefix::v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10).covers(prefix)
}

impl Ways {
    /// Ways over these interfaces and routes. The routes must be those of others.
    #[must_use]
    pub fn of<'a>(links: &Links, routes: impl IntoIterator<Item = &'a ActualRoute>) -> Self {
        let mut ways = Self::default();
        for link in links.iter() {
            for cidr in &link.addresses {
                // Not a way, whatever the routes say.
                ways.0.insert(Prefix::host(cidr.address), None);
            }
        }
        for link in links.iter().filter(|l| l.up && !l.loopback) {
            let subnets = link.addresses.iter().map(caracal_model::net::Cidr::prefix);
            for subnet in subnets.filter(|s| !s.is_host() && !is_link_local(s)) {
                let way = Way {
                    gateway: None,
                    link: link.name.clone(),
                    metric: 0,
                    carrier: link.carrier,
                    learned: false,
                };
                ways.offer(subnet, Some(way));
            }
        }
        let mut routes: Vec<&ActualRoute> = routes
            .into_iter()
            .filter(|route| route.tos == 0 && !is_link_local(&route.prefix))
            .collect();
        routes.sort_by_key(|route| (route.prefix, route.metric));
        for route in routes {
            match route.next_hops() {
                // By next-hop objects or not.
                hops @ [_, ..] => {
                    if let Some(way) = best(links, hops, route.metric) {
                        ways.offer(route.prefix, Some(way));
                    }
                }
                // A range that the kernel drops or refuses is known not to be reached; but the kernel's last
                // resort, a refusing default route, is the same as none.
                _ if route.prefix.len() > 0 => ways.offer(route.prefix, None),
                _ => {}
            }
        }
        ways
    }

    /// Adds a way unless there is a better one for the same range; a way with a carrier is better than one without.
    pub fn offer(&mut self, range: Prefix, way: Option<Way>) {
        use std::collections::btree_map::Entry;
        match self.0.entry(range) {
            Entry::Vacant(entry) => {
                entry.insert(way);
            }
            Entry::Occupied(mut entry) => {
                let dead = matches!(entry.get(), Some(known) if !known.carrier);
                if dead && way.as_ref().is_some_and(|way| way.carrier) {
                    entry.insert(way);
                }
            }
        }
    }

    /// The way to an address.
    #[must_use]
    pub fn find(&self, address: IpAddr) -> Option<&Way> {
        let bits = Family::of(address).bits();
        (0..=bits)
            .rev()
            .find_map(|len| self.0.get(&Prefix::truncated(address, len)))?
            .as_ref()
    }

    /// All ranges with their ways.
    pub fn iter(&self) -> impl Iterator<Item = (&Prefix, Option<&Way>)> {
        self.0.iter().map(|(range, way)| (range, way.as_ref()))
    }
}

/// Of several equal next hops the first that is up, one with a carrier before others.
fn best(links: &Links, hops: &[NextHop], metric: u32) -> Option<Way> {
    let usable = |hop: &NextHop| {
        let link = links.by_name(hop.link.as_str()).filter(|l| l.up)?;
        Some(Way {
            gateway: hop.gateway,
            link: hop.link.clone(),
            metric,
            carrier: link.carrier,
            learned: false,
        })
    };
    let ways: Vec<Way> = hops.iter().filter_map(usable).collect();
    let alive = ways.iter().find(|way| way.carrier);
    alive.or_else(|| ways.first()).cloned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::actual::ActualTarget;
    use crate::desired::Route;
    use crate::desired::Target;
    use crate::links::Link;

    fn links() -> Links {
        let mut pulled = Link::new(4, "eth2").with_address("10.0.2.1/24".parse().unwrap());
        pulled.carrier = false;
        let mut down = Link::new(5, "eth3").with_address("10.0.3.1/24".parse().unwrap());
        down.up = false;
        [
            Link::new(1, "lo").with_address("127.0.0.1/8".parse().unwrap()),
            Link::new(2, "eth0")
                .with_address("10.0.0.1/24".parse().unwrap())
                .with_address("fe80::1/64".parse().unwrap()),
            Link::new(3, "eth1").with_address("10.0.1.1/24".parse().unwrap()),
            pulled,
            down,
        ]
        .into_iter()
        .collect()
    }

    fn route(prefix: &str, via: &str, link: &str, metric: u32) -> ActualRoute {
        ActualRoute::from(Route {
            prefix: prefix.parse().unwrap(),
            metric,
            protocol: 4,
            target: Target::via(Some(via.parse().unwrap()), &link.into(), false),
            mtu: None,
            source: None,
        })
    }

    #[test]
    fn rfc4271_9_1_2_1_the_longest_range_decides_and_own_addresses_are_no_way() {
        let mut hole = route("198.51.100.0/24", "10.0.0.2", "eth0", 0);
        hole.target = ActualTarget::Known(Target::Blackhole);
        let mut refusing = hole.clone();
        refusing.prefix = "::/0".parse().unwrap();
        let routes = [
            route("192.0.2.0/24", "10.0.1.254", "eth1", 20),
            route("192.0.2.0/24", "10.0.0.254", "eth0", 10),
            route("192.0.2.7/32", "10.0.3.254", "eth3", 0),
            hole,
            refusing,
        ];
        let ways = Ways::of(&links(), &routes);
        let find = |text: &str| {
            ways.find(text.parse().unwrap()).map(|way| {
                let via = way
                    .gateway
                    .map_or_else(|| "link".to_owned(), |g| g.to_string());
                format!("{} {via} {} {}", way.link, way.metric, way.carrier)
            })
        };
        assert_eq!(find("10.0.0.2").as_deref(), Some("eth0 link 0 true"));
        assert_eq!(find("10.0.0.1"), None, "our own");
        assert_eq!(find("10.0.2.2").as_deref(), Some("eth2 link 0 false"));
        assert_eq!(find("10.0.3.2"), None, "down");
        assert_eq!(
            find("192.0.2.9").as_deref(),
            Some("eth0 10.0.0.254 10 true")
        );
        assert_eq!(
            find("192.0.2.7").as_deref(),
            Some("eth0 10.0.0.254 10 true"),
            "the longer route is over a link that is down"
        );
        assert_eq!(find("198.51.100.1"), None, "dropped");
        assert_eq!(find("127.0.0.9"), None);
        assert_eq!(find("fe80::2"), None, "on every link");
        assert_eq!(find("203.0.113.1"), None);
    }

    #[test]
    fn a_way_with_a_carrier_is_better_than_one_without() {
        let two = |a: &str, b: &str| {
            let mut first = route("192.0.2.0/24", "10.0.2.254", a, 0);
            let second = route("192.0.2.0/24", "10.0.1.254", b, 0);
            if let (ActualTarget::Known(Target::Via(hops)), more) =
                (&mut first.target, second.next_hops())
            {
                hops.extend_from_slice(more);
            }
            first
        };
        let link = |routes: &[ActualRoute]| {
            let ways = Ways::of(&links(), routes);
            let way = ways.find("192.0.2.1".parse().unwrap()).cloned();
            way.map(|way| way.link.to_string())
        };
        assert_eq!(link(&[two("eth2", "eth1")]).as_deref(), Some("eth1"));
        assert_eq!(link(&[two("eth3", "eth2")]).as_deref(), Some("eth2"));
        let by_metric = [
            route("192.0.2.0/24", "10.0.2.254", "eth2", 1),
            route("192.0.2.0/24", "10.0.1.254", "eth1", 2),
        ];
        assert_eq!(link(&by_metric).as_deref(), Some("eth1"));
    }
}
