//! What belongs to this node alone: blackholes for own blocks, routes, neighbours and sysctls of
//! local workloads, forwarding.

use caracal_model::Key;
use caracal_model::code::ProblemCode;
use caracal_model::net::{Family, Prefix};
use caracal_model::resource::{WorkloadEndpointSpec, parse_mac};

use super::Planner;
use crate::kernel_objects::{BLACKHOLE_METRIC, NeighbourKey, RouteKind, Target};
use crate::links::Link;
use crate::nat::name::PlainName;

pub(super) fn plan(planner: &mut Planner<'_>) {
    own_blocks(planner);
    let snapshot = planner.inputs.snapshot;
    for workload in snapshot.workloads_of(planner.inputs.me) {
        let name = &workload.metadata.name;
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        endpoint(planner, &format!("{namespace}/{name}"), &workload.spec);
    }
    forwarding(planner);
}

/// A block is ours when its affinity field says so. Addresses of it that nobody has are dropped
/// here, else they would leave by the default route and come back: a loop. A host block gets none,
/// it would stand beside the workload's own route.
fn own_blocks(planner: &mut Planner<'_>) {
    let inputs = planner.inputs;
    for block in inputs.snapshot.blocks.values() {
        if block.host() != Some(inputs.me) {
            continue;
        }
        let key = || Key::Block(block.cidr).to_path();
        if planner.would_cut(block.cidr, "the blackhole of block", key) {
            continue;
        }
        planner.own_blocks.push(block.cidr);
        if block.cidr.is_host() {
            planner.skip(block.cidr, "a block of one address gets no blackhole");
        } else if planner.family(block.cidr.family()) {
            let route = planner.route(block.cidr, BLACKHOLE_METRIC, Target::Blackhole, None);
            planner.add(RouteKind::Blackhole, route);
        }
    }
}

fn endpoint(planner: &mut Planner<'_>, name: &str, spec: &WorkloadEndpointSpec) {
    let inputs = planner.inputs;
    let subject = format!("workload {name}");
    if !inputs.settings.is_workload_interface(&spec.interface_name) {
        let reason = format!(
            "interface {:?} does not start with {}; it is not touched and gets no route",
            spec.interface_name,
            inputs.settings.interface_prefixes.join(" or "),
        );
        planner.problem(ProblemCode::AgentWorkloadInterface, &subject, reason);
        return;
    }
    if PlainName::new(&spec.interface_name).is_none() {
        let reason = format!(
            "interface {:?}: a name that holds more than letters, digits, '.', '_' and '-' may not stand in firewall rules; it is not touched and gets no route",
            spec.interface_name
        );
        planner.problem(ProblemCode::AgentWorkloadInterface, &subject, reason);
        return;
    }
    let Some(link) = inputs.links.by_name(&spec.interface_name) else {
        let reason = format!("interface {} does not exist", spec.interface_name);
        planner.problem(ProblemCode::AgentWorkloadInterface, &subject, reason);
        return;
    };
    for address in &spec.ip_networks {
        address_of(planner, &subject, spec, link, *address);
    }
    interface_sysctls(planner, link, &spec.ip_networks);
}

fn address_of(
    planner: &mut Planner<'_>,
    subject: &str,
    spec: &WorkloadEndpointSpec,
    link: &Link,
    address: Prefix,
) {
    let family = address.family();
    if !planner.family(family) {
        planner.skip(address, format!("{family} is off on this node"));
        return;
    }
    if !link.up {
        planner.skip(address, format!("interface {} is down", link.name));
        return;
    }
    if planner.would_cut(address, "the route to the workload's address", || {
        subject.to_owned()
    }) {
        return;
    }
    let metric = planner.inputs.settings.route_metric(family);
    let target = Target::via(None, &link.name, false);
    if let Some(other) = planner.desired.routes.get(&address)
        && other.kind == RouteKind::Local
        && other.route.target != target
    {
        let reason = format!(
            "{address} is also the address of another workload ({}); only that one gets the route",
            other.route.target
        );
        planner.problem(ProblemCode::AgentDuplicateAddress, subject, reason);
        return;
    }
    let route = planner.route(address, metric, target, None);
    planner.add(RouteKind::Local, route);
    if let (Some(mac), Family::Ipv4, true) = (parse_mac(&spec.mac), family, address.is_host()) {
        let key = NeighbourKey {
            link: link.name.clone(),
            address: address.address(),
        };
        planner.desired.neighbours.insert(key, mac);
    }
}

/// Proxy ARP answers for the gateway that workloads have; see the CNI plugin.
fn interface_sysctls(planner: &mut Planner<'_>, link: &Link, addresses: &[Prefix]) {
    let has = |family: Family| addresses.iter().any(|a| a.family() == family);
    let name = &link.name;
    let rp_filter = planner.inputs.kernel.default_rp_filter.to_string();
    let mut set = |path: String, value: &str| {
        planner.desired.sysctls.insert(path, value.to_owned());
    };
    if has(Family::Ipv4) {
        for (key, value) in [
            ("route_localnet", "1"),
            ("proxy_arp", "1"),
            ("forwarding", "1"),
            ("rp_filter", rp_filter.as_str()),
        ] {
            set(format!("net/ipv4/conf/{name}/{key}"), value);
        }
        // Else the first answer is delayed by up to 0.8 s.
        set(format!("net/ipv4/neigh/{name}/proxy_delay"), "0");
    }
    if has(Family::Ipv6) && planner.family(Family::Ipv6) {
        for (key, value) in [("accept_ra", "0"), ("proxy_ndp", "1"), ("forwarding", "1")] {
            planner
                .desired
                .sysctls
                .insert(format!("net/ipv6/conf/{name}/{key}"), value.to_owned());
        }
    }
}

fn forwarding(planner: &mut Planner<'_>) {
    if !planner.inputs.settings.ip_forwarding {
        return;
    }
    let mut set = |path: &str| {
        planner
            .desired
            .sysctls
            .insert(path.to_owned(), "1".to_owned());
    };
    set("net/ipv4/ip_forward");
    // Turning this on stops the host from accepting router advertisements, hence only when IPv6 is
    // in use.
    if planner.family(Family::Ipv6) && planner.pools.any(Family::Ipv6) {
        planner
            .desired
            .sysctls
            .insert("net/ipv6/conf/all/forwarding".to_owned(), "1".to_owned());
    }
}
