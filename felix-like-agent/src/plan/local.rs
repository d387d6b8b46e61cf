//! Plan of this node's own objects: blackholes for own blocks, routes, neighbours and sysctls of
//! local workloads, forwarding.

use caracal_model::{
    Family, HOST_END_MAC, Key, Mac, Prefix, ProblemCode, WorkloadEndpointSpec, parse_mac,
};

use super::destination::Destination;
use super::held::unnamed_interfaces;
use super::{PlanInputs, Planner};
use crate::kernel_objects::{BLACKHOLE_METRIC, ForwardingTarget, NeighbourKey, RouteKind};
use crate::links::Link;
use crate::nat::name::PlainName;

/// The workloads of this node by their addresses. Says what is wrong with their interfaces, and
/// what is to be set on these.
pub(super) fn plan(planner: &mut Planner<'_>) {
    let snapshot = planner.inputs.snapshot;
    for workload in snapshot.workloads_of(planner.inputs.me) {
        let name = &workload.metadata.name;
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        endpoint(planner, &format!("{namespace}/{name}"), &workload.spec);
    }
    strangers(planner);
    forwarding(planner);
}

/// Names interfaces at whose other end something lives that the datastore does not know. One that a
/// value which cannot be read may name is not judged.
fn strangers(planner: &mut Planner<'_>) {
    let inputs = planner.inputs;
    let is_pair = |link: &Link| matches!(&*link.kind, "veth" | "netkit");
    for link in unnamed_interfaces(inputs) {
        let is_held = planner.desired.held.interfaces.contains(&link.name);
        if !is_pair(link) || !link.up || !link.carrier || is_held {
            continue;
        }
        let alias = link.alias.as_deref().unwrap_or("somebody's");
        let reason = format!(
            "interface {} ({alias}) leads to a living container, and no endpoint of this node names it: nothing is routed to it",
            link.name
        );
        let subject = format!("interface {}", link.name);
        planner.problem(ProblemCode::AgentNoEndpoint, &subject, reason);
    }
}

/// A workload of this node with one of its addresses.
pub(super) struct Workload<'a> {
    subject: String,
    link: &'a Link,
    mac: Option<Mac>,
}

/// The prefix as a block of this node's: its affinity field says so. Addresses of it that nobody
/// has are dropped here, else they would leave by the default route and come back: a loop. A host
/// block gets none, it would stand beside the workload's own route. Where the whole block is the
/// subnet of a bridge, as on a node that comes from flannel, the bridge's route lies before the
/// blackhole, which covers nothing.
pub(super) fn own_block(on: &Planner<'_>, to: &mut Destination, prefix: Prefix) {
    let block = on.inputs.snapshot.blocks.get(&prefix);
    if block.and_then(|block| block.host()) != Some(on.inputs.me) {
        return;
    }
    let key = || Key::Block(prefix).to_path();
    let mut bridges = on
        .inputs
        .links
        .iter()
        .filter(|l| l.kind == "bridge" && l.up);
    let is_bridged = bridges.any(|l| l.addresses.iter().any(|a| a.prefix() == prefix));
    if !is_bridged && on.would_cut(to, prefix, "the blackhole of block", key) {
        return;
    }
    if prefix.is_host() {
        to.skip("a block of one address gets no blackhole");
    } else if on.family(prefix.family()) {
        let route = on.route(prefix, BLACKHOLE_METRIC, ForwardingTarget::Blackhole, None);
        to.add(RouteKind::Blackhole, route);
    }
}

/// The prefix as an address of workloads of this node.
pub(super) fn workloads(on: &Planner<'_>, to: &mut Destination, prefix: Prefix) {
    for workload in on.workloads.get(&prefix).into_iter().flatten() {
        address_of(on, to, workload, prefix);
    }
}

fn endpoint<'a>(planner: &mut Planner<'a>, name: &str, spec: &'a WorkloadEndpointSpec) {
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
    let Some(link) = interface_of(inputs, spec) else {
        let reason = format!("interface {} does not exist", spec.interface_name);
        planner.problem(ProblemCode::AgentWorkloadInterface, &subject, reason);
        return;
    };
    if link.name.as_str() != spec.interface_name {
        let reason = format!(
            "interface {} is another workload's by its alias, and this one's is called {1}; the route leads to {1}; give both their names back (`ip link set {1} name …`)",
            spec.interface_name, link.name
        );
        planner.problem(ProblemCode::AgentWorkloadInterface, &subject, reason);
    }
    // The pods of CNI plugins know their gateway by this address, ours by a permanent neighbour.
    let of_plugin = matches!(&*spec.orchestrator, "k8s" | "cni") && link.kind == "veth";
    if of_plugin && link.mac.is_some_and(|mac| mac != HOST_END_MAC) {
        let macs = &mut planner.desired.macs;
        macs.insert(link.name.clone(), HOST_END_MAC);
    }
    for address in &spec.ip_networks {
        let workload = Workload {
            subject: subject.clone(),
            link,
            mac: parse_mac(&spec.mac),
        };
        let all = planner.workloads.entry(*address).or_default();
        all.push(workload);
    }
    interface_sysctls(planner, link, &spec.ip_networks);
}

/// The interface of a workload: that of its name, unless both its alias and that of another one say
/// that names were exchanged.
pub(super) fn interface_of<'a>(
    inputs: &PlanInputs<'a>,
    spec: &WorkloadEndpointSpec,
) -> Option<&'a Link> {
    let named = inputs.links.by_name(&spec.interface_name)?;
    let is_of = |link: &Link| link.is_of_container(&spec.container_id);
    if is_of(named) != Some(false) {
        return Some(named);
    }
    let is_usable = |link: &&Link| {
        let name = link.name.as_str();
        inputs.settings.is_workload_interface(name) && PlainName::new(name).is_some()
    };
    let mut others = inputs.links.iter().filter(is_usable);
    others
        .find(|link| is_of(link) == Some(true))
        .or(Some(named))
}

fn address_of(on: &Planner<'_>, to: &mut Destination, workload: &Workload<'_>, address: Prefix) {
    let Workload { subject, link, mac } = workload;
    let family = address.family();
    if !on.family(family) {
        to.skip(format!("{family} is off on this node"));
        return;
    }
    if !link.up {
        to.skip(format!("interface {} is down", link.name));
        return;
    }
    if on.would_cut(to, address, "the route to the workload's address", || {
        subject.clone()
    }) {
        return;
    }
    let metric = on.inputs.settings.route_metric(family);
    let target = ForwardingTarget::via(None, &link.name, false);
    if let Some(other) = &to.route
        && other.kind == RouteKind::Local
        && other.route.target != target
    {
        let reason = format!(
            "{address} is also the address of another workload ({}); only that one gets the route",
            other.route.target
        );
        to.problem(ProblemCode::AgentDuplicateAddress, subject, reason);
        return;
    }
    let route = on.route(address, metric, target, None);
    to.add(RouteKind::Local, route);
    if let (Some(mac), Family::Ipv4, true) = (mac, family, address.is_host()) {
        let key = NeighbourKey {
            link: link.name.clone(),
            address: address.address(),
        };
        to.neighbour = Some((key, *mac));
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
            // Nothing of ours is translated to 127.0.0.1, and a pod has no business there.
            ("route_localnet", "0"),
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
