//! Effect of narrow paths on a plan: the routes that lead over them get an MTU, and new workloads
//! one that fits all paths. Nothing at all where every path carries what the interface sends.
//!
//! A route's MTU is what makes running workloads find out: the kernel answers what is too large
//! with "fragmentation needed" (RFC 1191) or "packet too big" (RFC 8201) instead of sending it into
//! the hole.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::{Family, Node, NodeName, Prefix, ProblemCode};

use super::Planner;
use super::destination::Destination;
use super::encap::{Encap, IPIP_OVERHEAD, Source, VXLAN_OVERHEAD, VXLAN_V6_OVERHEAD, decide};
use crate::kernel_objects::{PlannedRoute, RouteKind};
use crate::paths::PathMtu;

/// Least MTU of IPv4 that anybody is asked to use (RFC 1122 §3.3.3) and that of every IPv6 link
/// (RFC 8200 §5).
const fn least(family: Family) -> u32 {
    match family {
        Family::Ipv4 => 576,
        Family::Ipv6 => 1280,
    }
}

/// Octets that a tunnel adds.
const fn overhead(kind: RouteKind, family: Family) -> u32 {
    match (kind, family) {
        (RouteKind::Ipip, _) => IPIP_OVERHEAD,
        (RouteKind::Vxlan, Family::Ipv4) => VXLAN_OVERHEAD,
        (RouteKind::Vxlan, Family::Ipv6) => VXLAN_V6_OVERHEAD,
        _ => 0,
    }
}

const fn kind(encap: Encap) -> Option<RouteKind> {
    match encap {
        Encap::Direct => Some(RouteKind::Direct),
        Encap::Ipip => Some(RouteKind::Ipip),
        Encap::Vxlan => Some(RouteKind::Vxlan),
        Encap::None => None,
    }
}

/// Finds the narrow paths, and says so.
pub(super) fn plan(planner: &mut Planner<'_>) {
    planner.narrow = narrow(planner);
    for (address, (name, path)) in planner.narrow.clone() {
        complain(planner, name, address, path);
    }
}

/// Fits a route to the narrowest of the paths that it takes.
pub(super) fn fit(on: &Planner<'_>, to: &mut Destination) {
    let Some(planned) = to.route.as_mut().filter(|_| !on.narrow.is_empty()) else {
        return;
    };
    let ends = far_ends(on, planned);
    let paths = ends.iter().filter_map(|end| on.narrow.get(end));
    let family = planned.route.prefix.family();
    let fits = |path: &PathMtu| {
        let room = path.mtu.saturating_sub(overhead(planned.kind, family));
        room.max(least(family))
    };
    if let Some(mtu) = paths.map(|(_, path)| fits(path)).min() {
        let before = planned.route.mtu.unwrap_or(u32::MAX);
        planned.route.mtu = Some(mtu.min(before));
    }
}

pub(super) type Narrow<'a> = BTreeMap<IpAddr, (&'a NodeName, PathMtu)>;

/// The nodes at the ends of narrow paths, by address.
fn narrow<'a>(planner: &Planner<'a>) -> Narrow<'a> {
    let inputs = planner.inputs;
    let paths = inputs.host_routes.paths();
    if !paths.values().any(PathMtu::is_narrow) {
        return BTreeMap::new();
    }
    others(planner)
        .filter_map(|(name, _, address)| {
            let path = paths.get(&address).filter(|path| path.is_narrow())?;
            Some((address, (name, *path)))
        })
        .collect()
}

fn others<'a>(planner: &Planner<'a>) -> impl Iterator<Item = (&'a NodeName, &'a Node, IpAddr)> {
    let inputs = planner.inputs;
    let nodes = inputs.snapshot.nodes.iter();
    let others = nodes.filter(move |(name, _)| *name != inputs.me);
    others.flat_map(|(name, node)| {
        [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .filter_map(move |family| Some((name, &**node, node.spec.address(family)?)))
    })
}

/// The nodes that a route leads to.
fn far_ends(planner: &Planner<'_>, planned: &PlannedRoute) -> Vec<IpAddr> {
    let prefix = planned.route.prefix;
    let snapshot = planner.inputs.snapshot;
    match planned.kind {
        RouteKind::Local | RouteKind::Blackhole => return Vec::new(),
        RouteKind::Direct if planner.inputs.learned.contains_key(&prefix) => {
            return planner.inputs.learned[&prefix].next_hops.clone();
        }
        RouteKind::Direct | RouteKind::Ipip | RouteKind::Vxlan => {}
    }
    let Some(block) = snapshot.block_of(&prefix) else {
        return Vec::new();
    };
    let borrower = || {
        let mut elsewhere = block.used_elsewhere();
        elsewhere.find_map(|(address, node)| (Prefix::host(address) == prefix).then_some(node))
    };
    let owner = || block.host();
    let name = if prefix.is_host() { borrower() } else { None }.or_else(owner);
    let node = name.and_then(|name| snapshot.nodes.get(name));
    let address = node.and_then(|node| node.spec.address(prefix.family()));
    address.into_iter().collect()
}

fn complain(planner: &mut Planner<'_>, name: &NodeName, address: IpAddr, path: PathMtu) {
    let reason = format!(
        "packets of more than {} octets do not arrive at {name} ({address}), although this node's interface sends {}: routes to its pods and new pods get MTUs that fit; give the interfaces of all nodes the MTU that the network between them carries",
        path.mtu, path.interface
    );
    planner.problem(ProblemCode::AgentPathMtu, name.as_str(), reason);
}

/// The largest MTU of workloads that fits all narrow paths in use, whatever a pool's mode makes of
/// them. An encapsulation whose MTU somebody has set is left out: what is set is meant.
pub(super) fn workload_limit(planner: &Planner<'_>) -> Option<u32> {
    let settings = planner.inputs.settings;
    let limit = |(address, (_, path)): (&IpAddr, &(&NodeName, PathMtu))| {
        let family = Family::of(*address);
        let same = planner.same_subnet(*address);
        let pools = planner.pools.of_family(family);
        let kinds = pools.filter_map(|pool| {
            let of = |source| decide(pool.ipip, pool.vxlan, same, source, planner.sources);
            let kind = kind(of(Source::Datastore)).or_else(|| kind(of(Source::Bgp)))?;
            let set = match (kind, family) {
                (RouteKind::Ipip, _) => settings.ipip_mtu,
                (RouteKind::Vxlan, Family::Ipv4) => settings.vxlan_mtu,
                (RouteKind::Vxlan, Family::Ipv6) => settings.vxlan_mtu_v6,
                _ => None,
            };
            set.is_none().then_some(kind)
        });
        let room = |kind| path.mtu.saturating_sub(overhead(kind, family));
        kinds.map(room).min().map(|mtu| mtu.max(least(family)))
    };
    planner.narrow.iter().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use crate::paths::PathMtu;
    use crate::plan::HostRoutes;
    use crate::plan::tests::World;

    /// A world in which the path to `c`, 10.0.1.3, carries so much.
    fn narrow(pool: &str, mtu: u32) -> World {
        let mut world = World::new(pool);
        let path = PathMtu {
            mtu,
            interface: 1500,
        };
        let wide = PathMtu {
            mtu: 1500,
            interface: 1500,
        };
        let paths = [("10.0.1.3", path), ("10.0.0.2", wide)];
        let paths = paths.map(|(address, path)| (address.parse().unwrap(), path));
        world.host_routes = HostRoutes::default().with_paths(Arc::new(paths.into()));
        world
    }

    fn mtus(world: &World) -> Vec<(String, Option<u32>)> {
        let desired = world.plan();
        let remote = desired
            .routes
            .values()
            .filter(|p| !p.route.target.links().count().eq(&0));
        remote
            .map(|p| (p.route.prefix.to_string(), p.route.mtu))
            .collect()
    }

    fn problems(world: &World) -> Vec<String> {
        let desired = world.plan();
        let reported = desired
            .problems
            .iter()
            .filter(|p| p.code == "agent.path_mtu");
        reported.map(|p| p.reason.clone()).collect()
    }

    #[test]
    fn only_routes_over_the_narrow_path_say_so() {
        let world = narrow(r#","vxlanMode":"Always""#, 1400);
        let expected = [("10.244.1.0/26", 1450), ("10.244.2.0/26", 1350)];
        let expected = expected.map(|(prefix, mtu)| (prefix.to_owned(), Some(mtu)));
        assert_eq!(mtus(&world), expected);
        let desired = world.plan();
        assert_eq!(desired.workload_mtu, 1350);
        assert_eq!(desired.tunnels["vxlan.calico"].mtu, 1450);
        let reported = problems(&world);
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].starts_with(
            "packets of more than 1400 octets do not arrive at c (10.0.1.3), although this node's interface sends 1500:"
        ));
    }

    #[test]
    fn without_encapsulation_the_path_itself_counts() {
        let mut world = narrow("", 1400);
        for (prefix, hop) in [("10.244.1.0/26", "10.0.0.2"), ("10.244.2.0/26", "10.0.1.3")] {
            world.learn(prefix, hop);
        }
        // `c` is not on a link: a route of somebody's leads there.
        let next_hop = crate::kernel_objects::NextHop {
            gateway: Some("10.0.0.254".parse().unwrap()),
            link: "eth0".into(),
            onlink: true,
            extra_weight: 0,
        };
        let paths = world.host_routes.paths().clone();
        let routes = [("10.0.1.0/24".parse().unwrap(), 0, next_hop)];
        world.host_routes = HostRoutes::from_routes(routes).with_paths(Arc::new(paths));
        let expected = [("10.244.1.0/26", None), ("10.244.2.0/26", Some(1400))];
        let expected = expected.map(|(prefix, mtu)| (prefix.to_owned(), mtu));
        assert_eq!(mtus(&world), expected);
        assert_eq!(world.plan().workload_mtu, 1400);
    }

    #[test]
    fn cross_subnet_pools_count_what_they_use() {
        // `c` is across: VXLAN. `b` is beside us and its path is wide.
        let world = narrow(r#","vxlanMode":"CrossSubnet""#, 1420);
        assert_eq!(world.plan().workload_mtu, 1370);
        let world = narrow(r#","ipipMode":"CrossSubnet""#, 1420);
        assert_eq!(world.plan().workload_mtu, 1400);
    }

    #[test]
    fn what_is_set_is_meant_and_calicos_rule_is_never_exceeded() {
        let mut world = narrow(r#","vxlanMode":"Always""#, 1400);
        world.settings.vxlan_mtu = Some(1440);
        assert_eq!(world.plan().workload_mtu, 1440);
        assert_eq!(
            mtus(&world)[1].1,
            Some(1350),
            "what does not pass does not pass"
        );
        world.settings.vxlan_mtu = Some(1300);
        assert_eq!(mtus(&world)[1].1, Some(1300));
        // A path that is wider than an encapsulation needs it to be.
        let world = narrow(r#","vxlanMode":"Always""#, 1499);
        assert_eq!(world.plan().workload_mtu, 1449);
        let world = narrow(r#","vxlanMode":"Always""#, 300);
        assert_eq!(world.plan().workload_mtu, 576);
    }

    #[test]
    fn wide_and_unknown_paths_change_nothing() {
        let world = narrow(r#","vxlanMode":"Always""#, 1500);
        let unknown = World::new(r#","vxlanMode":"Always""#);
        assert_eq!(world.plan(), unknown.plan());
        assert_eq!(problems(&unknown), [""; 0]);
    }
}
