//! What is sent to an unused address of a range of services ends at this node
//! (`serviceLoopPrevention`). Routers have the range from the nodes: what a node does not translate
//! it would give back to them, until its TTL ends.
//!
//! A Service's own address (a range of one) gets nothing: there is no unused one in it. Nor does a
//! range that is not announced itself (`serviceLoadBalancerAggregation: Disabled`). Pods inside
//! a range and the datastore's endpoints are left alone. Where machines are in a range nobody can
//! say which of its addresses are used: there nothing is ended, and the range is named.

use std::net::IpAddr;

use caracal_model::{Prefix, ProblemCode};

use super::Planner;
use crate::settings::ServiceLoops;

/// The guards of the families that have ranges of services.
pub(super) fn plan(planner: &mut Planner<'_>) {
    let inputs = planner.inputs;
    let allowed = inputs.settings.service_loops == ServiceLoops::Disabled;
    let configuration = inputs.snapshot.bgp_default().filter(|_| !allowed);
    let ranges = configuration.into_iter();
    let ranges = ranges.flat_map(|configuration| {
        let spec = &configuration.spec;
        let single =
            |field| field == "serviceLoadBalancerIPs" && !spec.announces_load_balancer_ranges();
        let ranges = spec.service_ranges();
        ranges.filter(move |(field, range)| !range.is_host() && !single(*field))
    });
    for (field, range) in ranges {
        if !planner.family(range.family()) {
            continue;
        }
        if let Some(machines) = machines_in(planner, &range) {
            let reason = format!(
                "{machines} lies in it: what is sent to unused addresses is not ended here (serviceLoopPrevention) and may go round between nodes and routers; take the machines out of the range"
            );
            let subject = format!("{field} {range}");
            planner.problem(ProblemCode::AgentServiceLoops, &subject, reason);
            continue;
        }
        let in_use: Vec<Prefix> = in_use(planner, &range).collect();
        let guard = planner.loops.entry(range.family()).or_default();
        guard.rejects = inputs.settings.service_loops == ServiceLoops::Reject;
        guard.ranges.insert(range);
        guard.in_use.extend(in_use);
    }
}

/// Machines that a range covers: nodes, their subnets, routers.
fn machines_in(planner: &Planner<'_>, range: &Prefix) -> Option<String> {
    let subnet = planner.subnets.iter().find(|subnet| range.covers(subnet));
    if let Some(subnet) = subnet {
        return Some(format!("{subnet}, a subnet of this node's interfaces,"));
    }
    let outside = |address: &IpAddr| planner.pools.covering(&Prefix::host(*address)).is_none();
    let mut nodes = planner.guarded.nodes_in(*range);
    if let Some((address, name)) = nodes.find(|(address, _)| outside(address)) {
        return Some(format!("the address {address} of node {name}"));
    }
    let peers = planner.inputs.snapshot.bgp_peers.values();
    let mut peers = peers.filter_map(|peer| peer.spec.peer_address());
    let peer = peers.find(|(address, _)| range.contains(*address) && outside(address));
    peer.map(|(address, _)| format!("the router {address} of a BGPPeer"))
}

/// What a range has in common with pods and the datastore. The datastore may well be a Service.
fn in_use<'a>(planner: &'a Planner<'_>, range: &'a Prefix) -> impl Iterator<Item = Prefix> + 'a {
    let pools = planner.pools.iter().map(|pool| pool.prefix);
    let datastore = planner.inputs.lifelines.iter();
    let datastore = datastore.map(|address| Prefix::host(*address));
    pools.chain(datastore).filter(|used| range.overlaps(used))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use caracal_model::Family;

    use super::*;
    use crate::nat::LoopGuard;
    use crate::plan::tests::World;

    const RANGES: &str = r#""serviceClusterIPs":[{"cidr":"10.96.0.0/12"},{"cidr":"fd00:96::/108"}],
        "serviceExternalIPs":[{"cidr":"192.0.2.0/24"},{"cidr":"odd"}],
        "serviceLoadBalancerIPs":[{"cidr":"198.51.100.7/32"},{"cidr":"2001:db8::7/128"}]"#;

    fn guards(world: &World) -> BTreeMap<Family, LoopGuard> {
        let nat = world.plan().nat.unwrap();
        let of = [(Family::Ipv4, &nat.ipv4), (Family::Ipv6, &nat.ipv6)];
        let found = of.map(|(family, rules)| Some((family, rules.loops.clone()?)));
        found.into_iter().flatten().collect()
    }

    fn texts<'a>(prefixes: impl IntoIterator<Item = &'a Prefix>) -> Vec<String> {
        prefixes.into_iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ranges_of_more_than_one_address_are_guarded_in_both_families() {
        let mut world = World::new("");
        assert!(guards(&world).is_empty(), "nothing is announced");
        world.put("bgpconfigurations", "default", RANGES);
        let found = guards(&world);
        let ranges = |family| texts(&found[&family].ranges);
        assert_eq!(ranges(Family::Ipv4), ["10.96.0.0/12", "192.0.2.0/24"]);
        assert_eq!(ranges(Family::Ipv6), ["fd00:96::/108"]);
        assert!(found.values().all(|guard| !guard.rejects));
        world.settings.service_loops = ServiceLoops::Reject;
        assert!(guards(&world).values().all(|guard| guard.rejects));
        world.settings.service_loops = ServiceLoops::Disabled;
        assert!(guards(&world).is_empty());
        world.settings.service_loops = ServiceLoops::Drop;
        world.settings.ipv6 = false;
        assert_eq!(guards(&world).len(), 1);
        world.put("bgpconfigurations", "default", r#""listenPort":179"#);
        assert!(guards(&world).is_empty());
    }

    /// Another cluster may have addresses of it.
    #[test]
    fn a_range_that_is_not_announced_is_not_guarded() {
        let mut world = World::new("");
        let range = r#""serviceLoadBalancerIPs":[{"cidr":"192.0.2.0/24"}]"#;
        for (aggregation, guarded) in [("Enabled", 1), ("Disabled", 0)] {
            let spec = format!(r#"{range},"serviceLoadBalancerAggregation":"{aggregation}""#);
            world.put("bgpconfigurations", "default", &spec);
            assert_eq!(guards(&world).len(), guarded, "{aggregation}");
        }
    }

    #[test]
    fn pods_and_the_datastore_in_a_range_are_left_alone() {
        let mut world = World::new("");
        world.put("bgpconfigurations", "default", RANGES);
        world.pool("inside", "10.100.0.0/16", "");
        world.pool(
            "balancers",
            "192.0.2.0/25",
            r#","allowedUses":["LoadBalancer"]"#,
        );
        world.lifelines = ["10.96.0.1".parse().unwrap(), "10.0.9.9".parse().unwrap()].into();
        let found = guards(&world);
        let in_use = texts(&found[&Family::Ipv4].in_use);
        assert_eq!(in_use, ["10.96.0.1/32", "10.100.0.0/16"]);
    }

    /// Whose addresses they are that are no node's there, nobody knows.
    #[test]
    fn where_machines_are_nothing_is_ended_and_the_range_is_named() {
        for (range, machines) in [
            ("0.0.0.0/0", "127.0.0.0/8, a subnet"),
            ("10.0.0.0/16", "10.0.0.0/24, a subnet"),
            ("10.0.1.0/24", "10.0.1.3 of node c"),
            ("203.0.113.0/24", "the router 203.0.113.9"),
        ] {
            let mut world = World::new("");
            let router = r#""peerIP":"203.0.113.9","asNumber":65001"#;
            world.put("bgppeers", "router", router);
            let spec =
                format!(r#""serviceExternalIPs":[{{"cidr":"{range}"}},{{"cidr":"192.0.2.0/24"}}]"#);
            world.put("bgpconfigurations", "default", &spec);
            let found = guards(&world);
            assert_eq!(texts(&found[&Family::Ipv4].ranges), ["192.0.2.0/24"]);
            let problems = world.plan().problems;
            let problem = problems.iter().find(|p| p.code == "agent.service_loops");
            let problem = problem.unwrap();
            assert_eq!(problem.subject, format!("serviceExternalIPs {range}"));
            assert!(problem.reason.contains(machines), "{problem:?}");
        }
    }
}
