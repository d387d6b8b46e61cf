//! What is held back, from the values that cannot be read ([`Held`]).

use std::collections::BTreeSet;

use caracal_model::{Doubt, NodeName, Prefix, Snapshot};

use super::PlanInputs;
use crate::held::{Held, OthersBlocks};
use crate::links::Link;

/// What no sweep may take.
pub(super) fn plan(inputs: &PlanInputs<'_>) -> Held {
    let mut held = Held::default();
    for (_, doubt) in inputs.snapshot.doubts() {
        add(&mut held, inputs, doubt);
    }
    if !held.ranges.is_empty() {
        let pools = pools(inputs.snapshot);
        let in_pool = |range: &Prefix| pools.iter().any(|pool| pool.covers(range));
        held.devices |= !held.ranges.iter().all(in_pool);
    }
    held
}

fn add(held: &mut Held, inputs: &PlanInputs<'_>, doubt: Doubt) {
    let snapshot = inputs.snapshot;
    match doubt {
        Doubt::Range(range) => drop(held.ranges.insert(range)),
        Doubt::Pool(_) => {
            held.outside = Some(pools(snapshot));
            (held.devices, held.far_ends) = (true, true);
        }
        Doubt::Node(node) => {
            held.ranges.extend(ranges_of(inputs, &node));
            held.outside = Some(pools(snapshot));
            held.blocks.get_or_insert_with(|| others_blocks(inputs));
            held.far_ends = true;
        }
        Doubt::Endpoint { node, .. } => {
            if node.as_ref().is_none_or(|node| node == inputs.me) {
                let unnamed = unnamed_interfaces(inputs);
                held.interfaces
                    .extend(unnamed.map(|link| link.name.clone()));
            }
            held.addresses |= inputs.settings.workload_routes;
        }
    }
}

fn others_blocks(inputs: &PlanInputs<'_>) -> OthersBlocks {
    OthersBlocks {
        blocks: inputs.snapshot.blocks.clone(),
        me: inputs.me.clone(),
        nodes: inputs.snapshot.nodes.keys().cloned().collect(),
    }
}

fn pools(snapshot: &Snapshot) -> Vec<Prefix> {
    let pools = snapshot.pools.values();
    pools
        .filter(|pool| snapshot.makes_routes(&pool.spec))
        .map(|pool| pool.spec.prefix())
        .collect()
}

/// A node's blocks and the addresses that it uses of others'.
fn ranges_of(inputs: &PlanInputs<'_>, node: &NodeName) -> BTreeSet<Prefix> {
    let mut ranges = BTreeSet::new();
    for block in inputs.snapshot.blocks.values() {
        if block.host() == Some(node) {
            ranges.insert(block.cidr);
        }
        let guests = block.used_elsewhere().filter(|(_, user)| *user == node);
        ranges.extend(guests.map(|(address, _)| Prefix::host(address)));
    }
    if inputs.settings.workload_routes {
        ranges.extend(inputs.snapshot.workload_networks_of(node));
    }
    ranges
}

/// Interfaces of workloads that no endpoint of this node's names.
pub(super) fn unnamed_interfaces<'a>(
    inputs: &PlanInputs<'a>,
) -> impl Iterator<Item = &'a Link> + use<'a> {
    let PlanInputs {
        snapshot,
        me,
        links,
        settings,
        ..
    } = *inputs;
    let workloads = snapshot.workloads_of(me);
    let named: BTreeSet<&str> = workloads
        .map(|workload| workload.spec.interface_name.as_str())
        .collect();
    links.iter().filter(move |link| {
        let name = link.name.as_str();
        settings.is_workload_interface(name) && !named.contains(name)
    })
}

#[cfg(test)]
mod tests;
