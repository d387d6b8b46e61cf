//! Deferred routes: they stay as they are because the far end cannot receive yet what the pool's
//! mode sends (AGENT-7): the sender's half of *receive before send*. The receiver's half is that a
//! node names its tunnel address only once the device is up.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::actual::{Actual, ActualRoute};
use crate::desired::Desired;
use crate::kernel_objects::{FdbKey, NeighbourKey, RouteKey};
use crate::ownership::{Owner, is_vxlan_device};

/// Routes of ours to deferred prefixes that lead to the node in question: they work, and
/// they stay.
pub(super) fn routes<'a>(
    desired: &Desired,
    actual: &'a Actual,
) -> BTreeMap<RouteKey, &'a ActualRoute> {
    if desired.deferred.is_empty() {
        return BTreeMap::new();
    }
    let leads = |r: &&ActualRoute| {
        matches!(desired.ownership.route(r), Owner::Ours | Owner::Leftover)
            && desired
                .deferred
                .get(&r.prefix)
                .is_some_and(|node| leads_to(r, *node, actual))
    };
    let routes = actual.all_routes().filter(|r| r.known().is_some());
    routes.filter(leads).map(|r| (r.key(), r)).collect()
}

/// True when a route goes to a node's own address, or to the VTEP behind which it is.
fn leads_to(route: &ActualRoute, node: IpAddr, actual: &Actual) -> bool {
    let [hop] = route.next_hops() else {
        return false;
    };
    let Some(gateway) = hop.gateway else {
        return false;
    };
    if !actual
        .links
        .by_name(hop.link.as_str())
        .is_some_and(|l| l.up)
    {
        return false;
    }
    if !is_vxlan_device(hop.link.as_str()) {
        return gateway == node;
    }
    let link = hop.link.clone();
    let neighbour = NeighbourKey {
        link: link.clone(),
        address: gateway,
    };
    actual
        .neighbours
        .get(&neighbour)
        .and_then(|n| n.mac)
        .and_then(|mac| actual.fdb.get(&FdbKey { link, mac }))
        == Some(&node)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_model::IfName;

    use super::*;
    use crate::actual::ActualNeighbour;
    use crate::diff::{Phase, diff};
    use crate::kernel_objects::{ForwardingTarget, PlannedRoute, Route, RouteKind};
    use crate::links::{Link, Links};
    use crate::op::Op;

    const MAC: [u8; 6] = [0x66, 0, 0, 0, 0, 2];

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn route(gateway: &str, link: &str) -> Route {
        Route {
            prefix: "10.244.2.0/26".parse().unwrap(),
            metric: 0,
            protocol: 80,
            target: ForwardingTarget::via(Some(ip(gateway)), &link.into(), true),
            mtu: None,
            source: None,
        }
    }

    /// Held towards 10.0.0.2; planned meanwhile: unencapsulated through a router.
    fn desired() -> Desired {
        let route = route("10.0.0.254", "eth0");
        let kind = RouteKind::Direct;
        let mut desired = Desired::default();
        desired.deferred.insert(route.prefix, ip("10.0.0.2"));
        desired
            .routes
            .insert(route.prefix, PlannedRoute { route, kind });
        desired
    }

    /// A kernel with a VXLAN device that no pool wants any more, and a route.
    fn kernel(route: Route) -> Actual {
        let mut vxlan = Link::new(7, "vxlan.calico").with_address("10.244.1.1/32".parse().unwrap());
        vxlan.kind = "vxlan".into();
        let mut tunl0 = Link::new(8, "tunl0").with_address("10.244.1.1/32".parse().unwrap());
        tunl0.kind = "ipip".into();
        let links: Links = [Link::new(2, "eth0"), vxlan, tunl0].into_iter().collect();
        let mut actual = Actual {
            links,
            ..Actual::default()
        };
        let link: IfName = "vxlan.calico".into();
        let key = NeighbourKey {
            link: link.clone(),
            address: ip("10.244.2.1"),
        };
        let neighbour = ActualNeighbour {
            mac: Some(MAC),
            permanent: true,
        };
        actual.neighbours.insert(key, neighbour);
        actual.fdb.insert(FdbKey { link, mac: MAC }, ip("10.0.0.2"));
        actual.push_route(route.into());
        actual
    }

    fn ops(actual: &Actual) -> Vec<String> {
        let ops = diff(&desired(), actual, Phase::Synced);
        ops.iter().map(Op::to_string).collect()
    }

    #[test]
    fn agent_7_a_route_that_works_stays_with_its_device() {
        for (gateway, link, other) in [
            ("10.244.2.1", "vxlan.calico", "tunl0"),
            ("10.0.0.2", "tunl0", "vxlan.calico"),
        ] {
            let ops = ops(&kernel(route(gateway, link)));
            assert!(!ops.iter().any(|op| op.contains(link)), "{ops:?}");
            assert!(
                !ops.iter().any(|op| op.contains("10.244.2.0/26")),
                "{ops:?}"
            );
            assert!(ops.iter().any(|op| op.contains(other)), "{ops:?}");
        }
    }

    #[test]
    fn a_route_that_leads_elsewhere_gives_way() {
        let mut moved = kernel(route("10.244.2.1", "vxlan.calico"));
        for remote in moved.fdb.values_mut() {
            *remote = ip("10.0.0.3");
        }
        let mut down = kernel(route("10.0.0.2", "tunl0"));
        down.links.by_name_mut("tunl0").unwrap().up = false;
        let other = kernel(route("10.0.0.3", "eth0"));
        for actual in [moved, down, other] {
            let ops = ops(&actual);
            assert!(
                ops.iter().any(|op| op.contains("via 10.0.0.254 dev eth0")),
                "{ops:?}"
            );
        }
        let mut foreign = route("10.0.0.2", "eth0");
        foreign.protocol = 4;
        let at_once = diff(&desired(), &kernel(foreign.clone()), Phase::Learning);
        assert_eq!(at_once, [], "a foreign route is neither kept nor replaced");
    }

    #[test]
    fn where_there_is_none_the_planned_one_is_written() {
        let mut actual = kernel(route("10.0.0.2", "tunl0"));
        actual.routes.clear();
        let ops = diff(&desired(), &actual, Phase::Learning);
        assert!(matches!(ops.as_slice(), [Op::AddRoute(_)]), "{ops:?}");
    }
}
