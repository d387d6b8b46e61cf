//! Fate of the objects that are in the kernel already: the answer of `caracal migrate plan`. Pure:
//! it reads the same two values as [`crate::diff()`], and says in words what the diff would do once
//! everything is known.

use std::collections::BTreeMap;

use caracal_model::{IfName, ProblemCode};

use crate::actual::{Actual, ActualRoute, ActualTarget};
use crate::desired::Desired;
use crate::diff::{Phase, conflicts, diff};
use crate::kernel_objects::{ForwardingTarget, RouteKey, vxlan_device};
use crate::op::Op;
use crate::ownership::{Owner, PROTOCOL_BIRD, is_tunnel_device};
use crate::settings::ROUTE_PROTOCOL;

/// Fate of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// It is as wanted and stays as it is.
    Adopted,
    /// The wanted one takes its place without a gap.
    Replaced,
    /// It is missing and is made.
    Added,
    /// Nothing needs it, and it is known to be Calico's or ours.
    Removed,
    /// Somebody else's, or in doubt: not touched.
    Left,
    /// It has to be deleted and made anew, and packets are lost meanwhile.
    Remade,
}

impl Fate {
    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Adopted => "adopted",
            Self::Replaced => "replaced",
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Left => "left",
            Self::Remade => "remade",
        }
    }
}

/// One object and its fate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdoptionItem {
    /// `device`, `address`, `neighbour`, `fdb`, `route`.
    pub kind: &'static str,
    /// The object as the kernel has it, or as it will be.
    pub object: String,
    /// Fate of the object.
    pub fate: Fate,
    /// Why.
    pub reason: String,
}

impl AdoptionItem {
    /// An item.
    pub fn new(
        kind: &'static str,
        object: impl Into<String>,
        fate: Fate,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            object: object.into(),
            fate,
            reason: reason.into(),
        }
    }
}

/// The fate of every object that is ours, Calico's, or in the place of one of ours.
#[must_use]
pub fn adoption_report(desired: &Desired, actual: &Actual) -> Vec<AdoptionItem> {
    let ops = diff(desired, actual, Phase::Synced);
    let mut items = devices(desired, actual, &ops);
    items.extend(entries(desired, actual, &ops));
    items.extend(routes(desired, actual, &ops));
    items.extend(conflicts(desired, actual).into_iter().map(|problem| {
        let kind = match problem.code {
            ProblemCode::AgentForeignDevice => "device",
            _ => "route",
        };
        AdoptionItem::new(kind, problem.subject, Fate::Left, problem.reason)
    }));
    items
}

fn devices(desired: &Desired, actual: &Actual, ops: &[Op]) -> Vec<AdoptionItem> {
    let mut devices: BTreeMap<IfName, (Fate, String)> = BTreeMap::new();
    for op in ops {
        let (name, fate, reason) = match op {
            Op::AddTunnel(t) => (&t.name, Fate::Added, op.to_string()),
            Op::SetTunnel(t) => (&t.name, Fate::Replaced, format!("in place: {op}")),
            Op::DeleteTunnel(name) => {
                let reason = "no pool uses such a tunnel; it goes 30 s after the last use";
                (name, Fate::Removed, reason.to_owned())
            }
            _ => continue,
        };
        let known = devices.entry(name.clone()).or_insert((fate, reason));
        if known.0 == Fate::Removed && fate == Fate::Added {
            let reason = "it was made with another VNI, port, local address or parent, which the kernel cannot change";
            *known = (Fate::Remade, reason.to_owned());
        }
    }
    let there = actual.links.iter().filter(|l| desired.ownership.tunnel(l));
    for link in there {
        let adopted = || match desired.tunnels.contains_key(&link.name) {
            true => (
                Fate::Adopted,
                "kind, parameters, MAC and MTU are right".to_owned(),
            ),
            false => (
                Fate::Left,
                "the kernel's own device, which no pool uses".to_owned(),
            ),
        };
        devices.entry(link.name.clone()).or_insert_with(adopted);
    }
    devices
        .into_iter()
        .map(|(name, (fate, reason))| AdoptionItem::new("device", name.to_string(), fate, reason))
        .collect()
}

/// Addresses, neighbours and FDB entries of tunnel devices.
fn entries(desired: &Desired, actual: &Actual, ops: &[Op]) -> Vec<AdoptionItem> {
    let mut items = Vec::new();
    for link in actual.links.iter() {
        for cidr in &link.addresses {
            if !desired.ownership.address(link, cidr) {
                continue;
            }
            let gone = Op::DeleteAddress(link.name.clone(), *cidr);
            let (fate, reason) = match ops.contains(&gone) {
                true => (Fate::Removed, "IPAM has another address for this tunnel"),
                false => (Fate::Adopted, "this node's tunnel address"),
            };
            let object = format!("{cidr} dev {}", link.name);
            items.push(AdoptionItem::new("address", object, fate, reason));
        }
    }
    for key in actual.neighbours.keys() {
        if desired.neighbours.contains_key(key) && is_tunnel_device(key.link.as_str()) {
            let put = ops
                .iter()
                .any(|op| matches!(op, Op::PutNeighbour(k, _) if k == key));
            items.push(entry("neighbour", key.to_string(), put));
        }
    }
    for key in actual
        .fdb
        .keys()
        .filter(|key| desired.fdb.contains_key(key))
    {
        let put = ops
            .iter()
            .any(|op| matches!(op, Op::PutFdb(k, _) if k == key));
        items.push(entry("fdb", key.to_string(), put));
    }
    for op in ops {
        let (kind, fate, reason) = match op {
            Op::AddAddress(..) => ("address", Fate::Added, "this node's tunnel address"),
            Op::PutNeighbour(key, _) if !actual.neighbours.contains_key(key) => {
                ("neighbour", Fate::Added, "the datastore names it")
            }
            Op::PutFdb(key, _) if !actual.fdb.contains_key(key) => {
                ("fdb", Fate::Added, "the datastore names it")
            }
            Op::DeleteNeighbour(_) => ("neighbour", Fate::Removed, "no node has it"),
            Op::DeleteFdb(..) => ("fdb", Fate::Removed, "no node has it"),
            _ => continue,
        };
        items.push(AdoptionItem::new(kind, op.to_string(), fate, reason));
    }
    items
}

fn entry(kind: &'static str, object: String, put: bool) -> AdoptionItem {
    match put {
        true => AdoptionItem::new(
            kind,
            object,
            Fate::Replaced,
            "the datastore has another value",
        ),
        false => AdoptionItem::new(kind, object, Fate::Adopted, "as the datastore has it"),
    }
}

fn routes(desired: &Desired, actual: &Actual, ops: &[Op]) -> Vec<AdoptionItem> {
    let mut items = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for route in actual.all_routes().filter(|r| is_of_interest(desired, r)) {
        seen.insert(route.prefix);
        let (fate, reason) = fate_of(desired, route, ops);
        items.push(AdoptionItem::new("route", text(route), fate, reason));
    }
    for op in ops {
        if let Op::AddRoute(route) = op
            && !seen.contains(&route.prefix)
        {
            let reason = "the cluster needs it and it is missing";
            items.push(AdoptionItem::new(
                "route",
                route.to_string(),
                Fate::Added,
                reason,
            ));
        }
    }
    items
}

/// Routes of ours, of Calico's, inside a pool, or by a protocol that either of them uses.
fn is_of_interest(desired: &Desired, route: &ActualRoute) -> bool {
    let known = [ROUTE_PROTOCOL, PROTOCOL_BIRD].contains(&route.protocol);
    let pools = &desired.ownership.cluster.pools;
    let kernels_own = route.protocol == 2;
    let inside = pools.iter().any(|(pool, _)| pool.covers(&route.prefix));
    known || (inside && !kernels_own) || desired.ownership.route(route) != Owner::Foreign
}

fn fate_of(desired: &Desired, route: &ActualRoute, ops: &[Op]) -> (Fate, String) {
    let planned = desired.routes.get(&route.prefix);
    let replaced = |key: RouteKey| {
        ops.iter().find_map(|op| match op {
            Op::ReplaceRoute(new) if new.key() == key => Some(new.to_string()),
            _ => None,
        })
    };
    let by = |new: String| (Fate::Replaced, format!("by {new}"));
    let deleted = ops.contains(&Op::DeleteRoute(route.clone()));
    let owner = desired.ownership.route(route);
    match (owner, planned) {
        (Owner::Foreign, _) => (Fate::Left, foreign(desired, route)),
        (_, Some(planned)) if deleted || owner == Owner::Leftover => {
            by(replaced(route.key()).unwrap_or_else(|| planned.route.to_string()))
        }
        (_, None) if deleted => (
            Fate::Removed,
            "no block and no workload of the cluster needs it".to_owned(),
        ),
        _ => match replaced(route.key()) {
            Some(new) => by(new),
            None if owner == Owner::Leftover => (
                Fate::Left,
                "inside a pool, but not by a way that only Calico writes; remove it by hand if it is stale"
                    .to_owned(),
            ),
            None if planned.is_some_and(|p| route.satisfies(&p.route)) => {
                (Fate::Adopted, "as wanted".to_owned())
            }
            None => (Fate::Left, "it carries packets as it is".to_owned()),
        },
    }
}

fn foreign(desired: &Desired, route: &ActualRoute) -> String {
    let pools = &desired.ownership.cluster.pools;
    let inside = pools.iter().any(|(pool, _)| pool.covers(&route.prefix));
    match (route.protocol, inside) {
        (PROTOCOL_BIRD, false) => "of a BIRD, but outside all pools: not of this cluster",
        (PROTOCOL_BIRD, true) => "of a BIRD, inside a pool, but not in a shape that Calico writes",
        (_, true) => "inside a pool, by a program that is not Calico",
        (_, false) => "by a program that is not Calico",
    }
    .to_owned()
}

fn text(route: &ActualRoute) -> String {
    let target = match &route.target {
        ActualTarget::Known(target) => target.to_string(),
        ActualTarget::Other(kind) => format!("of type {kind}"),
    };
    let (prefix, protocol) = (route.prefix, protocol(route.protocol));
    format!("{prefix} {target} proto {protocol} metric {}", route.metric)
}

fn protocol(number: u8) -> String {
    match number {
        2 => "kernel".to_owned(),
        3 => "boot".to_owned(),
        4 => "static".to_owned(),
        PROTOCOL_BIRD => "bird".to_owned(),
        other => other.to_string(),
    }
}

/// How our routes are handed back to Calico, so that its BIRD and its Felix find what they take for
/// their own.
///
/// Unencapsulated routes and blackholes become BIRD's, each in place. VXLAN routes stay: Felix
/// knows them by their device. Those over IPIP stay for a Calico from 3.33 on, whose Felix writes
/// them with the same protocol as we do, and become BIRD's for an older one.
#[must_use]
pub fn hand_back_ops(actual: &Actual, ipip_is_birds: bool) -> Vec<Op> {
    let mut puts = Vec::new();
    let mut deletes = Vec::new();
    for route in actual.all_routes() {
        let Some(mut new) = route.known() else {
            continue;
        };
        // Neither BIRD nor Felix knows next-hop objects.
        let object = route.object().is_some();
        if object {
            new.target = ForwardingTarget::Via(new.target.hops().to_vec());
        }
        let is_birds = |link: &str| match is_tunnel_device(link) {
            true => ipip_is_birds && link != vxlan_device(new.prefix.family()),
            false => true,
        };
        let to_nodes = route.next_hops().iter().all(|hop| hop.gateway.is_some());
        let all_birds = new.target.links().all(|l| is_birds(l.as_str()));
        if route.protocol != ROUTE_PROTOCOL || !to_nodes || !all_birds {
            if object && route.protocol == ROUTE_PROTOCOL {
                puts.push(Op::ReplaceRoute(new));
            }
            continue;
        }
        new.protocol = PROTOCOL_BIRD;
        if route.next_hops().is_empty() {
            // BIRD's blackholes have the usual metric; another key is another route, so ours goes
            // after it.
            new.metric = crate::kernel_objects::cluster_metric(new.prefix.family());
            if new.metric != route.metric {
                puts.push(Op::AddRoute(new));
                deletes.push(Op::DeleteRoute(route.clone()));
                continue;
            }
        }
        puts.push(Op::ReplaceRoute(new));
    }
    puts.append(&mut deletes);
    puts
}

#[cfg(test)]
mod tests;
