//! Routes to other nodes from the datastore: each block to its owner, and a host route for each
//! address that another node than the owner uses. With `routeSource: WorkloadIPs` a host route for
//! each workload instead, and for each node's tunnel address: where IPAM is not Calico's there are
//! no blocks.

use std::net::IpAddr;

use caracal_model::Key;
use caracal_model::code::ProblemCode;
use caracal_model::ipam::Owner;
use caracal_model::net::{Family, IfName, Prefix};
use caracal_model::resource::Node;

use super::Planner;
use super::encap::{Encap, Source, decide};
use super::pools::Pool;
use crate::kernel_objects::{
    IPIP_DEVICE, NextHop, RouteKind, Target, cluster_metric, vxlan_device,
};

pub(super) fn plan(planner: &mut Planner<'_>) {
    if planner.inputs.settings.workload_routes {
        workloads(planner);
        tunnel_addresses(planner);
    } else {
        blocks(planner);
    }
}

fn workloads(planner: &mut Planner<'_>) {
    let inputs = planner.inputs;
    // A snapshot that keeps all endpoints whole has other nodes' among its own.
    let whole = inputs.snapshot.workloads.values();
    let whole = whole.map(|w| (w.spec.node.as_str(), w.spec.ip_networks.as_slice()));
    let others = inputs.snapshot.elsewhere.values();
    let others = others.map(|e| (e.node.as_str(), e.networks.as_slice()));
    for (node, networks) in whole.chain(others) {
        if node == inputs.me.as_str() {
            continue;
        }
        for address in networks {
            address_of(planner, *address, node, "no pool covers this workload");
        }
    }
}

/// What a node sends to pods itself comes from its tunnel's address, and the answer has to find it.
fn tunnel_addresses(planner: &mut Planner<'_>) {
    let inputs = planner.inputs;
    for (name, node) in &inputs.snapshot.nodes {
        if name == inputs.me {
            continue;
        }
        let vteps = [Family::Ipv4, Family::Ipv6].map(|f| node.spec.vxlan_address(f));
        let ipip = node.spec.ipip_address().map(IpAddr::from);
        for address in vteps.into_iter().chain([ipip]).flatten() {
            let why = "no pool covers this tunnel's address";
            address_of(planner, Prefix::host(address), name.as_str(), why);
        }
    }
}

fn address_of<'a>(planner: &mut Planner<'a>, prefix: Prefix, node: &'a str, unknown: &str) {
    if !planner.family(prefix.family()) {
        return;
    }
    match planner.pools.covering(&prefix).cloned() {
        Some(pool) => to_node(planner, prefix, &pool, node),
        None => planner.skip(prefix, unknown),
    }
}

fn blocks(planner: &mut Planner<'_>) {
    let inputs = planner.inputs;
    for block in inputs.snapshot.blocks.values() {
        if !planner.family(block.cidr.family()) {
            continue;
        }
        let Some(pool) = planner.pools.covering(&block.cidr).cloned() else {
            planner.skip(block.cidr, "no pool covers this block");
            continue;
        };
        match &block.owner {
            // Virtual owners are no place to send packets to.
            Some(Owner::Virtual(_)) => continue,
            Some(Owner::Host(owner)) if owner != inputs.me => {
                to_node(planner, block.cidr, &pool, owner.as_str());
            }
            Some(Owner::Host(_)) | None => {}
        }
        let elsewhere = block.used_elsewhere();
        for (address, node) in elsewhere.filter(|(_, node)| *node != inputs.me) {
            to_node(planner, Prefix::host(address), &pool, node.as_str());
        }
    }
}

/// Another node as routes of one family to it need it.
#[derive(Clone, Copy)]
pub(super) struct Remote<'a> {
    node: &'a Node,
    address: IpAddr,
    /// On our subnet.
    same: bool,
}

/// Looks a node up once for all of its blocks.
fn remote<'a>(planner: &mut Planner<'a>, name: &'a str, family: Family) -> Option<Remote<'a>> {
    let key = (name, family);
    if let Some(found) = planner.remotes.get(&key) {
        return *found;
    }
    let nodes = &planner.inputs.snapshot.nodes;
    let found = nodes.get(name).and_then(|node| {
        let address = node.spec.address(family)?;
        Some(Remote {
            node,
            address,
            same: planner.same_subnet(address),
        })
    });
    planner.remotes.insert(key, found);
    found
}

fn to_node<'a>(planner: &mut Planner<'a>, prefix: Prefix, pool: &Pool, name: &'a str) {
    let family = prefix.family();
    let block = planner.inputs.snapshot.block_of(&prefix);
    let key = || block.map_or_else(|| prefix.to_string(), |b| Key::Block(b.cidr).to_path());
    if planner.would_cut(prefix, "the route to", key) {
        return;
    }
    let Some(Remote {
        node,
        address,
        same,
    }) = remote(planner, name, family)
    else {
        let sentence = format!(
            "no {family} address of {{}} in the datastore: routes of {} to it are not installed",
            pool.name
        );
        planner.warnings.add(
            ProblemCode::AgentNoNodeAddress,
            &subject(pool),
            sentence,
            name,
        );
        return;
    };
    match decide(
        pool.ipip,
        pool.vxlan,
        same,
        Source::Datastore,
        planner.sources,
    ) {
        // BGP's: see `learned`.
        Encap::None => {}
        Encap::Direct => direct(planner, prefix, pool, name, address),
        Encap::Ipip => {
            // A node names its tunnel address once its tunnel is up. Until then nothing that works
            // is given up.
            if node.spec.ipip_address().is_none() {
                planner.desired.held.insert(prefix, address);
            }
            ipip(planner, prefix, pool, name, address);
        }
        Encap::Vxlan => vxlan(planner, prefix, pool, (name, node), address),
    }
}

pub(super) fn subject(pool: &Pool) -> String {
    format!("pool {}", pool.name)
}

fn direct(planner: &mut Planner<'_>, prefix: Prefix, pool: &Pool, name: &str, address: IpAddr) {
    if let Some(hop) = planner.resolve(address) {
        add_direct(planner, prefix, vec![hop]);
    } else {
        let sentence = format!(
            "{{}} is neither on a link of this node nor behind a known route: unencapsulated routes of {} to it are not installed",
            pool.name
        );
        planner.warnings.add(
            ProblemCode::AgentNextHopUnreachable,
            &subject(pool),
            sentence,
            name,
        );
    }
}

pub(super) fn add_direct(planner: &mut Planner<'_>, prefix: Prefix, mut hops: Vec<NextHop>) {
    hops.sort();
    hops.dedup();
    let route = planner.route(
        prefix,
        cluster_metric(prefix.family()),
        Target::Via(hops),
        None,
    );
    planner.add(RouteKind::Direct, route);
}

/// Through `tunl0` to the node's own address: a device without a remote sends to the route's
/// gateway.
pub(super) fn ipip(
    planner: &mut Planner<'_>,
    prefix: Prefix,
    pool: &Pool,
    name: &str,
    address: IpAddr,
) {
    if let Err(reason) = &planner.inputs.kernel.ipip {
        let why = format!("this kernel has no ipip module ({reason})");
        let how = "load the module or use VXLAN";
        fall_back(
            planner,
            prefix,
            pool,
            name,
            address,
            (ProblemCode::AgentNoIpip, &why, how),
        );
        return;
    }
    let Some((link, mtu)) = planner.tunnel(IPIP_DEVICE) else {
        return;
    };
    let target = Target::via(Some(address), &link, true);
    let metric = cluster_metric(prefix.family());
    let route = planner.route(prefix, metric, target, Some(mtu));
    planner.add(RouteKind::Ipip, route);
}

fn vxlan(
    planner: &mut Planner<'_>,
    prefix: Prefix,
    pool: &Pool,
    (name, node): (&str, &Node),
    address: IpAddr,
) {
    let family = prefix.family();
    if let Err(reason) = &planner.inputs.kernel.vxlan {
        let why = format!("this kernel has no vxlan module ({reason})");
        let how = "load the module or use another mode";
        let fault = (ProblemCode::AgentNoVxlan, why.as_str(), how);
        fall_back(planner, prefix, pool, name, address, fault);
        return;
    }
    let Some(vtep) = node.spec.vxlan_address(family) else {
        let why = "the node has no VXLAN tunnel address in the datastore yet";
        let how = "it gets one when its own Caracal or Calico sees the pool";
        let fault = (ProblemCode::AgentNoVtep, why, how);
        planner.desired.held.insert(prefix, address);
        fall_back(planner, prefix, pool, name, address, fault);
        return;
    };
    let Some((link, mtu)) = planner.tunnel(vxlan_device(family)) else {
        // The missing parent or address was named.
        return;
    };
    // The VTEP itself is on the link: there is nothing to go through.
    let gateway = (prefix != Prefix::host(vtep)).then_some(vtep);
    if gateway.is_some() && family == Family::Ipv6 {
        // IPv6 refuses a gateway that another device's route leads to, "onlink" or not, and until
        // the pool's mode changes the block's own route is one. With the VTEP on the link,
        // replacing that route is one step.
        vtep_on_link(planner, vtep, &link, mtu);
    }
    let target = Target::via(gateway, &link, gateway.is_some());
    let route = planner.route(prefix, cluster_metric(family), target, Some(mtu));
    planner.add(RouteKind::Vxlan, route);
}

fn vtep_on_link(planner: &mut Planner<'_>, vtep: IpAddr, link: &IfName, mtu: u32) {
    if planner.would_cut(
        Prefix::host(vtep),
        "the route to the tunnel address",
        || vtep.to_string(),
    ) {
        return;
    }
    let metric = cluster_metric(Family::of(vtep));
    let target = Target::via(None, link, false);
    let route = planner.route(Prefix::host(vtep), metric, target, Some(mtu));
    planner.add(RouteKind::Vxlan, route);
}

/// The tunnel that the pool wants cannot be used. On a link, or along a route that BGP knows,
/// packets still arrive without it (a cluster without the module then works within a subnet, and a
/// change of mode has no gap); otherwise there is no route. Both are problems.
fn fall_back(
    planner: &mut Planner<'_>,
    prefix: Prefix,
    pool: &Pool,
    name: &str,
    address: IpAddr,
    (code, why, how): (ProblemCode, &str, &str),
) {
    let way = planner.on_link(address).or_else(|| {
        Some(
            planner
                .inputs
                .learned
                .get(&prefix)?
                .gateways
                .first()?
                .into(),
        )
    });
    let wants = match Family::of(address) {
        Family::Ipv4 if code == ProblemCode::AgentNoIpip => "IPIP",
        _ => "VXLAN",
    };
    let state = if way.is_some() {
        "stay unencapsulated"
    } else {
        "are not installed"
    };
    let sentence = format!(
        "pool {} wants {wants}, but {why}: routes to {{}} {state}; {how}",
        pool.name
    );
    planner.warnings.add(code, &subject(pool), sentence, name);
    if let Some(hop) = way {
        add_direct(planner, prefix, vec![hop]);
    }
}
