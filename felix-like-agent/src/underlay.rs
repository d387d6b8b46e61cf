//! The underlay of this machine, found in the kernel's interfaces and routes: over it BGP next hops
//! are reached (RFC 4271 §9.1.2.1, §5.1.3).
//!
//! Routes of our own never count: a next hop that is reached through what it announced is not
//! reached. Neither do addresses of this machine: they are no way to anybody.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use caracal_model::{Cidr, IfName, Prefix, Underlay, UnderlayRoute, zone};

use crate::actual::ActualRoute;
use crate::kernel_objects::NextHop;
use crate::links::{Link, Links};

/// Link-local addresses are on every link, so they say nothing about which.
fn link_local() -> Prefix {
    Prefix::v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)
}

fn is_link_local(prefix: &Prefix) -> bool {
    link_local().covers(prefix)
}

/// The route to what is on a link.
pub(crate) fn on_link(link: &Link) -> UnderlayRoute {
    UnderlayRoute {
        metric: 0,
        interface: Some(link.name.clone()),
        gateway: None,
        carrier: link.carrier,
    }
}

/// The underlay of these interfaces and routes. The routes must be those of others. `near`: the
/// links on which next hops are link-local.
#[must_use]
pub(crate) fn underlay_of<'a>(
    links: &Links,
    routes: impl IntoIterator<Item = &'a ActualRoute>,
    near: &BTreeSet<IfName>,
) -> Underlay {
    // One entry for all: each interface of a pod has such an address, and none of them changes
    // anything.
    let mut underlay = Underlay::new([(link_local(), None)], None);
    for link in links.iter() {
        for cidr in &link.addresses {
            let own = Prefix::host(cidr.address);
            if !is_link_local(&own) {
                // No next hop, whatever the routes say.
                underlay.routes.insert(own, None);
            }
        }
    }
    for link in links.iter().filter(|l| l.up && !l.loopback) {
        if near.contains(&link.name) {
            underlay.offer(zone(&link.name), Some(on_link(link)));
        }
        let subnets = link.addresses.iter().map(Cidr::prefix);
        for subnet in subnets.filter(|s| !s.is_host() && !is_link_local(s)) {
            underlay.offer(subnet, Some(on_link(link)));
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
                if let Some(found) = best(links, hops, route.metric) {
                    underlay.offer(route.prefix, Some(found));
                }
            }
            // A range that the kernel drops or refuses is known not to be reached; but the kernel's
            // last resort, a refusing default route, is the same as none.
            _ if route.prefix.len() > 0 => underlay.offer(route.prefix, None),
            _ => {}
        }
    }
    underlay
}

/// Of several equal next hops the first that is up, one with a carrier before others.
fn best(links: &Links, hops: &[NextHop], metric: u32) -> Option<UnderlayRoute> {
    let usable = |hop: &NextHop| {
        let link = links.by_name(hop.link.as_str()).filter(|l| l.up)?;
        Some(UnderlayRoute {
            metric,
            interface: Some(link.name.clone()),
            gateway: hop.gateway,
            carrier: link.carrier,
        })
    };
    let usable: Vec<UnderlayRoute> = hops.iter().filter_map(usable).collect();
    let alive = usable.iter().find(|route| route.carrier);
    alive.or_else(|| usable.first()).cloned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::actual::ActualTarget;
    use crate::kernel_objects::{ForwardingTarget, Route};
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
            target: ForwardingTarget::via(Some(via.parse().unwrap()), &link.into(), false),
            mtu: None,
            source: None,
        })
    }

    #[test]
    fn rfc4271_9_1_2_1_the_longest_range_decides_and_own_addresses_are_no_way() {
        let mut hole = route("198.51.100.0/24", "10.0.0.2", "eth0", 0);
        hole.target = ActualTarget::Known(ForwardingTarget::Blackhole);
        let mut refusing = hole.clone();
        refusing.prefix = "::/0".parse().unwrap();
        let routes = [
            route("192.0.2.0/24", "10.0.1.254", "eth1", 20),
            route("192.0.2.0/24", "10.0.0.254", "eth0", 10),
            route("192.0.2.7/32", "10.0.3.254", "eth3", 0),
            hole,
            refusing,
        ];
        let near = BTreeSet::from(["eth1", "eth3", "eth9"].map(IfName::from));
        let underlay = underlay_of(&links(), &routes, &near);
        let find = |text: &str| {
            underlay.find(text.parse().unwrap()).map(|route| {
                let via = route
                    .gateway
                    .map_or_else(|| "link".to_owned(), |g| g.to_string());
                let link = route.interface.as_ref().unwrap();
                format!("{link} {via} {} {}", route.metric, route.carrier)
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
        let on = |link: &str| {
            let near = caracal_model::zoned("fe80::2".parse().unwrap(), &link.into());
            find(&near.to_string())
        };
        assert_eq!(on("eth1").as_deref(), Some("eth1 link 0 true"));
        for none in ["eth0", "eth3", "eth9"] {
            assert_eq!(on(none), None, "{none}: not asked for, down, not there");
        }
    }

    #[test]
    fn a_route_with_a_carrier_is_better_than_one_without() {
        let two = |a: &str, b: &str| {
            let mut first = route("192.0.2.0/24", "10.0.2.254", a, 0);
            let second = route("192.0.2.0/24", "10.0.1.254", b, 0);
            if let (ActualTarget::Known(ForwardingTarget::Via(hops)), more) =
                (&mut first.target, second.next_hops())
            {
                hops.extend_from_slice(more);
            }
            first
        };
        let link = |routes: &[ActualRoute]| {
            let underlay = underlay_of(&links(), routes, &BTreeSet::new());
            let found = underlay.find("192.0.2.1".parse().unwrap()).cloned();
            found.map(|route| route.interface.unwrap().to_string())
        };
        assert_eq!(link(&[two("eth2", "eth1")]).as_deref(), Some("eth1"));
        assert_eq!(link(&[two("eth3", "eth2")]).as_deref(), Some("eth2"));
        let by_metric = [
            route("192.0.2.0/24", "10.0.2.254", "eth2", 1),
            route("192.0.2.0/24", "10.0.1.254", "eth1", 2),
        ];
        assert_eq!(link(&by_metric).as_deref(), Some("eth1"));
    }

    #[test]
    fn an_interface_of_a_pod_is_no_news() {
        let before = underlay_of(&links(), [], &BTreeSet::new());
        let mut links = links();
        links.insert(Link::new(9, "cali123").with_address("fe80::9/64".parse().unwrap()));
        assert_eq!(underlay_of(&links, [], &BTreeSet::new()), before);
        let default = route("::/0", "fe80::1", "eth0", 0);
        let underlay = underlay_of(&links, &[default], &BTreeSet::new());
        assert_eq!(underlay.find("fe80::9".parse().unwrap()), None);
        assert!(underlay.find("2001:db8::9".parse().unwrap()).is_some());
    }
}
