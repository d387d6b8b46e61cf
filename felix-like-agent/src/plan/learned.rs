//! Routes learned by BGP.
//!
//! Inside a pool, the pool's modes decide ([`decide`]); a route of the datastore's class is
//! skipped. Outside all pools a learned route (from a top-of-rack router, say) goes to its gateway
//! at the normal route metric, so that it never displaces a route of the host's with a lower one.
//!
//! Never written, because they would cut this node or its workloads off:
//!
//! * a prefix inside a subnet of an interface of ours, the subnet itself included: the link knows
//!   better;
//! * an address of our own;
//! * anything inside a range of service addresses, but for what lies in a pool: kube-proxy serves
//!   them on every node, and a range that covers pods must not take their routes;
//! * anything inside an own block, but for an address that the datastore says another node
//!   borrowed.
//!
//! A shorter prefix that covers our addresses or blocks (an aggregate, or 0.0.0.0/0 when BGP
//! announces it) is written: the longer routes beside it win.

use caracal_model::{Prefix, ProblemCode, Snapshot};

use super::destination::Destination;
use super::encap::{Encap, Source, decide};
use super::pools::Pool;
use super::remote::{add_direct, ipip};
use super::{Planner, routers};
use crate::kernel_objects::{ForwardingTarget, NextHop, RouteKind};
use crate::learned::Learned;

pub(super) fn plan(on: &Planner<'_>, to: &mut Destination, prefix: Prefix, learned: &Learned) {
    let services = || on.services.iter().find(|range| range.covers(&prefix));
    let pooled = on.pools.covering(&prefix).is_some();
    if let Some(range) = services().filter(|_| !pooled) {
        to.skip(format!("inside {range}, a range of service addresses"));
    } else if !on.family(prefix.family()) {
        to.skip(format!("{} is off on this node", prefix.family()));
    } else if !refused(on, to, prefix, learned) {
        one(on, to, prefix, learned);
    }
}

/// The ranges of BGPConfiguration `default`; one that does not parse is the topology's problem.
pub(super) fn service_ranges(snapshot: &Snapshot) -> Vec<Prefix> {
    let spec = snapshot.bgp_default().map(|c| &c.spec).into_iter();
    let ranges = spec.flat_map(|spec| spec.service_ranges());
    ranges.map(|(_, range)| range).collect()
}

/// True when a prefix is never taken from BGP; says why.
fn refused(on: &Planner<'_>, to: &mut Destination, prefix: Prefix, learned: &Learned) -> bool {
    let links = on.inputs.links;
    if let Some(subnet) = on.subnets.iter().copied().find(|s| s.covers(&prefix)) {
        to.skip(format!("{subnet} is a subnet of this node's own interface"));
        return true;
    }
    if prefix.is_host() && links.holding(prefix.address()).is_some() {
        to.skip("an address of this node");
        return true;
    }
    // A wrong block of the datastore also arrives by BGP, announced by another node.
    let pooled = on.pools.covering(&prefix).is_some();
    if pooled && on.would_cut(to, prefix, "the learned route to", || prefix.to_string()) {
        return true;
    }
    let Some(block) = on.own_blocks.iter().find(|b| b.covers(&prefix)).copied() else {
        return false;
    };
    if is_borrowed(on, prefix) {
        return false;
    }
    let from = learned.next_hops.first().map(ToString::to_string);
    let reason = format!(
        "another node ({}) announces it, but it is part of our block {block}; the announcement is not used",
        from.as_deref().unwrap_or("without next hop")
    );
    to.problem(
        ProblemCode::AgentOwnBlockAnnounced,
        &prefix.to_string(),
        reason,
    );
    true
}

/// True for one address of our block that another node uses.
fn is_borrowed(on: &Planner<'_>, prefix: Prefix) -> bool {
    let block = on.inputs.snapshot.block_of(&prefix);
    prefix.is_host() && block.is_some_and(|block| block.is_elsewhere(prefix.address()))
}

fn one(on: &Planner<'_>, to: &mut Destination, prefix: Prefix, learned: &Learned) {
    let Some(first) = learned.next_hops.first().copied() else {
        to.skip("learned without a next hop");
        return;
    };
    let Some(pool) = on.pools.covering(&prefix) else {
        outside(on, to, prefix, learned);
        return;
    };
    let same = on.same_subnet(first);
    match decide(pool.ipip, pool.vxlan, same, Source::Bgp, on.sources) {
        Encap::None => {
            // The datastore may have no route for it either, so the reason is worth keeping.
            let reason = format!("routes of pool {} come from the datastore", pool.name);
            to.skip(reason);
        }
        Encap::Ipip => ipip(on, to, prefix, pool, &first.to_string(), first),
        // VXLAN is never BGP's.
        Encap::Vxlan | Encap::Direct => inside(on, to, prefix, pool, learned),
    }
}

fn inside(on: &Planner<'_>, to: &mut Destination, prefix: Prefix, pool: &Pool, learned: &Learned) {
    let hops = hops(learned);
    if hops.is_empty() {
        let sentence = format!(
            "next hop {{}} is neither on a link of this node nor behind a known route: learned routes of {} through it are not installed",
            pool.name
        );
        complain(to, &pool.subject(), &sentence, learned);
    } else {
        let is_router = |hop: &&NextHop| {
            let gateway = hop.gateway;
            gateway.is_some_and(|gateway| !learned.next_hops.contains(&gateway))
        };
        let first = learned.next_hops.first();
        if let (Some(first), Some(hop)) = (first, hops.iter().find(is_router)) {
            routers::warn(on, to, pool, (&first.to_string(), *first), hop);
        }
        add_direct(on, to, prefix, hops);
    }
}

fn outside(on: &Planner<'_>, to: &mut Destination, prefix: Prefix, learned: &Learned) {
    let hops = hops(learned);
    if hops.is_empty() {
        let sentence = "next hop {} is neither on a link of this node nor behind a known route: learned routes through it are not installed";
        complain(to, "BGP", sentence, learned);
        return;
    }
    let metric = on.inputs.settings.route_metric(prefix.family());
    let route = on.route(prefix, metric, ForwardingTarget::Via(hops), None);
    to.add(RouteKind::Direct, route);
}

fn complain(to: &mut Destination, subject: &str, sentence: &str, learned: &Learned) {
    for hop in &learned.next_hops {
        to.warn(
            ProblemCode::AgentNextHopUnreachable,
            subject.to_owned(),
            sentence.to_owned(),
            &hop.to_string(),
        );
    }
}

/// The gateways, sorted.
fn hops(learned: &Learned) -> Vec<NextHop> {
    let mut hops: Vec<NextHop> = learned.gateways.iter().map(NextHop::from).collect();
    hops.sort_unstable();
    hops.dedup();
    hops
}
