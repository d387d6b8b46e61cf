//! Routes to other nodes from the datastore: each block to its owner, and a host route for each
//! address that another node than the owner uses. With `routeSource: WorkloadIPs` a host route for
//! each workload instead, and for each node's tunnel address: where IPAM is not Calico's there are
//! no blocks.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::{BlockOwner, Family, Key, Node, Prefix, ProblemCode};

use super::destination::Destination;
use super::encap::{Encap, Source, decide};
use super::pools::Pool;
use super::{PlanInputs, Planner, routers};
use crate::kernel_objects::{
    ForwardingTarget, IPIP_DEVICE, NextHop, RouteKind, cluster_metric, vxlan_device,
};

/// Where IPAM is not Calico's: addresses of workloads and tunnels of other nodes, with their nodes
/// and what to say where no pool covers them.
pub(super) type Addresses<'a> = BTreeMap<Prefix, Vec<(&'a str, &'static str)>>;

pub(super) fn addresses<'a>(inputs: &PlanInputs<'a>) -> Addresses<'a> {
    let mut all = Addresses::new();
    if !inputs.settings.workload_routes {
        return all;
    }
    let mut add = |prefix, node, unknown| {
        let of: &mut Vec<_> = all.entry(prefix).or_default();
        of.push((node, unknown));
    };
    // A snapshot that keeps all endpoints whole has other nodes' among its own.
    let whole = inputs.snapshot.workloads.values();
    let whole = whole.map(|w| (w.spec.node.as_str(), w.spec.ip_networks.as_slice()));
    let others = inputs.snapshot.elsewhere.values();
    let others = others.map(|e| (e.node.as_str(), e.networks.as_slice()));
    let elsewhere = whole.chain(others);
    for (node, networks) in elsewhere.filter(|(node, _)| *node != inputs.me.as_str()) {
        for address in networks {
            add(*address, node, "no pool covers this workload");
        }
    }
    // Packets of a node itself to pods come from its tunnel's address, and the answer has to find
    // it.
    for (name, node) in inputs
        .snapshot
        .nodes
        .iter()
        .filter(|(n, _)| *n != inputs.me)
    {
        let vteps = [Family::Ipv4, Family::Ipv6].map(|f| node.spec.vxlan_address(f));
        let ipip = node.spec.ipip_address().map(IpAddr::from);
        for address in vteps.into_iter().chain([ipip]).flatten() {
            let why = "no pool covers this tunnel's address";
            add(Prefix::host(address), name.as_str(), why);
        }
    }
    all
}

/// The prefix as a block of another node's.
pub(super) fn of_block(on: &Planner<'_>, to: &mut Destination, prefix: Prefix) {
    let inputs = on.inputs;
    if inputs.settings.workload_routes || !on.family(prefix.family()) {
        return;
    }
    let Some(block) = inputs.snapshot.blocks.get(&prefix) else {
        return;
    };
    let Some(pool) = on.pools.covering(&prefix) else {
        to.skip("no pool covers this block");
        return;
    };
    if let Some(owner) = block.host().filter(|owner| *owner != inputs.me) {
        to_node(on, to, prefix, pool, owner.as_str());
    }
}

/// The prefix as an address that another node uses: one of somebody else's block, or, without
/// blocks, one of a workload or a tunnel.
pub(super) fn of_address(on: &Planner<'_>, to: &mut Destination, prefix: Prefix) {
    let inputs = on.inputs;
    let family = prefix.family();
    if !on.family(family) {
        return;
    }
    if inputs.settings.workload_routes {
        for (node, unknown) in on.addresses.get(&prefix).into_iter().flatten() {
            match on.pools.covering(&prefix) {
                Some(pool) => to_node(on, to, prefix, pool, node),
                None => to.skip(*unknown),
            }
        }
        return;
    }
    if !prefix.is_host() {
        return;
    }
    let Some(block) = inputs.snapshot.block_of(&prefix) else {
        return;
    };
    // Virtual owners are no place to send packets to.
    if matches!(block.owner, Some(BlockOwner::Virtual(_))) {
        return;
    }
    let Some(pool) = on.pools.covering(&block.cidr) else {
        return;
    };
    for (address, node) in block.used_elsewhere() {
        if address == prefix.address() && node != inputs.me {
            to_node(on, to, prefix, pool, node.as_str());
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
fn remote<'a>(on: &Planner<'a>, name: &'a str, family: Family) -> Option<Remote<'a>> {
    let key = (name, family);
    if let Some(found) = on.remotes.borrow().get(&key) {
        return *found;
    }
    let nodes = &on.inputs.snapshot.nodes;
    let found = nodes.get(name).and_then(|node| {
        let address = node.spec.address(family)?;
        if on.is_refused(address) {
            return None;
        }
        Some(Remote {
            node,
            address,
            same: on.same_subnet(address),
        })
    });
    on.remotes.borrow_mut().insert(key, found);
    found
}

fn to_node<'a>(on: &Planner<'a>, to: &mut Destination, prefix: Prefix, pool: &Pool, name: &'a str) {
    let family = prefix.family();
    let key = || {
        let block = on.inputs.snapshot.block_of(&prefix);
        block.map_or_else(|| prefix.to_string(), |b| Key::Block(b.cidr).to_path())
    };
    if on.would_cut(to, prefix, "the route to", key) {
        return;
    }
    let Some(Remote {
        node,
        address,
        same,
    }) = remote(on, name, family)
    else {
        let nodes = &on.inputs.snapshot.nodes;
        let is_refused = nodes
            .get(name)
            .is_some_and(|n| n.spec.address(family).is_some());
        let why = match is_refused {
            true => format!("the {family} address of {{}} is one of a block for pods"),
            false => format!("no {family} address of {{}} in the datastore"),
        };
        let sentence = format!("{why}: routes of {} to it are not installed", pool.name);
        to.warn(
            ProblemCode::AgentNoNodeAddress,
            pool.subject(),
            sentence,
            name,
        );
        return;
    };
    match decide(pool.ipip, pool.vxlan, same, Source::Datastore, on.sources) {
        // BGP's: see `learned`.
        Encap::None => {}
        Encap::Direct => direct(on, to, prefix, pool, name, address),
        Encap::Ipip => {
            // A node names its tunnel address once its tunnel is up. Until then nothing that works
            // is given up.
            if node.spec.ipip_address().is_none() {
                to.deferred = Some(address);
            }
            ipip(on, to, prefix, pool, name, address);
        }
        Encap::Vxlan => vxlan(on, to, prefix, pool, (name, node), address),
    }
}

fn direct(
    on: &Planner<'_>,
    to: &mut Destination,
    prefix: Prefix,
    pool: &Pool,
    name: &str,
    address: IpAddr,
) {
    if let Some(hop) = on.resolve(address) {
        routers::warn(on, to, pool, (name, address), &hop);
        add_direct(on, to, prefix, vec![hop]);
    } else {
        let sentence = format!(
            "{{}} is neither on a link of this node nor behind a known route: unencapsulated routes of {} to it are not installed",
            pool.name
        );
        to.warn(
            ProblemCode::AgentNextHopUnreachable,
            pool.subject(),
            sentence,
            name,
        );
    }
}

pub(super) fn add_direct(
    on: &Planner<'_>,
    to: &mut Destination,
    prefix: Prefix,
    mut hops: Vec<NextHop>,
) {
    hops.sort_unstable();
    hops.dedup();
    let route = on.route(
        prefix,
        cluster_metric(prefix.family()),
        ForwardingTarget::Via(hops),
        None,
    );
    to.add(RouteKind::Direct, route);
}

/// Through `tunl0` to the node's own address: a device without a remote sends to the route's
/// gateway.
pub(super) fn ipip(
    on: &Planner<'_>,
    to: &mut Destination,
    prefix: Prefix,
    pool: &Pool,
    name: &str,
    address: IpAddr,
) {
    if let Err(reason) = &on.inputs.kernel.ipip {
        let why = format!("this kernel has no ipip module ({reason})");
        let how = "load the module or use VXLAN";
        fall_back(
            on,
            to,
            prefix,
            pool,
            name,
            address,
            (ProblemCode::AgentNoIpip, &why, how),
        );
        return;
    }
    let Some((link, mtu)) = on.tunnel(IPIP_DEVICE) else {
        return;
    };
    let target = ForwardingTarget::via(Some(address), &link, true);
    let metric = cluster_metric(prefix.family());
    let route = on.route(prefix, metric, target, Some(mtu));
    to.add(RouteKind::Ipip, route);
}

fn vxlan(
    on: &Planner<'_>,
    to: &mut Destination,
    prefix: Prefix,
    pool: &Pool,
    (name, node): (&str, &Node),
    address: IpAddr,
) {
    let family = prefix.family();
    if let Err(reason) = &on.inputs.kernel.vxlan {
        let why = format!("this kernel has no vxlan module ({reason})");
        let how = "load the module or use another mode";
        let fault = (ProblemCode::AgentNoVxlan, why.as_str(), how);
        fall_back(on, to, prefix, pool, name, address, fault);
        return;
    }
    let Some(vtep) = node.spec.vxlan_address(family) else {
        let why = "the node has no VXLAN tunnel address in the datastore yet";
        let how = "it gets one when its own Caracal or Calico sees the pool";
        let fault = (ProblemCode::AgentNoVtep, why, how);
        to.deferred = Some(address);
        fall_back(on, to, prefix, pool, name, address, fault);
        return;
    };
    let Some((link, mtu)) = on.tunnel(vxlan_device(family)) else {
        // The missing parent or address was named.
        return;
    };
    // The VTEP itself is on the link: there is nothing to go through.
    let gateway = (prefix != Prefix::host(vtep)).then_some(vtep);
    if gateway.is_some() && family == Family::Ipv6 {
        // IPv6 refuses a gateway that another device's route leads to, "onlink" or not, and until
        // the pool's mode changes the block's own route is one. With the VTEP on the link,
        // replacing that route is one step.
        to.vteps.push(vtep);
    }
    let target = ForwardingTarget::via(gateway, &link, gateway.is_some());
    let route = on.route(prefix, cluster_metric(family), target, Some(mtu));
    to.add(RouteKind::Vxlan, route);
}

/// The prefix as a VTEP that other routes lead through.
pub(super) fn vtep_on_link(on: &Planner<'_>, to: &mut Destination, prefix: Prefix) {
    let vtep = || prefix.to_string().trim_end_matches("/128").to_owned();
    if on.would_cut(to, prefix, "the route to the tunnel address", vtep) {
        return;
    }
    let family = prefix.family();
    let Some((link, mtu)) = on.tunnel(vxlan_device(family)) else {
        return;
    };
    let target = ForwardingTarget::via(None, &link, false);
    let route = on.route(prefix, cluster_metric(family), target, Some(mtu));
    to.add(RouteKind::Vxlan, route);
}

/// The tunnel that the pool wants cannot be used. On a link, or along a route that BGP knows,
/// packets still arrive without it (a cluster without the module then works within a subnet, and a
/// change of mode has no gap); otherwise there is no route. Both are problems.
fn fall_back(
    on: &Planner<'_>,
    to: &mut Destination,
    prefix: Prefix,
    pool: &Pool,
    name: &str,
    address: IpAddr,
    (code, why, how): (ProblemCode, &str, &str),
) {
    let next_hop = on
        .on_link(address)
        .or_else(|| Some(on.inputs.learned.get(&prefix)?.gateways.first()?.into()));
    let wants = match Family::of(address) {
        Family::Ipv4 if code == ProblemCode::AgentNoIpip => "IPIP",
        _ => "VXLAN",
    };
    let state = if next_hop.is_some() {
        "stay unencapsulated"
    } else {
        "are not installed"
    };
    let sentence = format!(
        "pool {} wants {wants}, but {why}: routes to {{}} {state}; {how}",
        pool.name
    );
    to.warn(code, pool.subject(), sentence, name);
    if let Some(hop) = next_hop {
        add_direct(on, to, prefix, vec![hop]);
    }
}
