//! Destinations that a change concerns: those of a block, a node, a pool.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_model::{Family, KnownBlock, NodeName, Prefix, Snapshot};

use super::LastPlan;
use crate::plan::{PlanInputs, Planner, nat};

impl LastPlan {
    /// Blocks and addresses of these nodes, and what covers a node's own addresses.
    pub(super) fn add_of_nodes(
        &self,
        was: &Snapshot,
        is: &Snapshot,
        nodes: BTreeSet<&NodeName>,
        prefixes: &mut BTreeSet<Prefix>,
    ) {
        let of = |name: &&NodeName| self.blocks.as_ref().map(|index| index.of_node(name));
        for cidr in nodes.iter().filter_map(of).flatten() {
            let Some(block) = is.blocks.get(cidr) else {
                continue;
            };
            if block.host().is_some_and(|host| nodes.contains(host)) {
                prefixes.insert(*cidr);
            }
            add_guests(block, |node| nodes.contains(node), prefixes);
        }
        let both = nodes
            .iter()
            .flat_map(|name| [was.nodes.get(*name), is.nodes.get(*name)]);
        for node in both.flatten() {
            for family in [Family::Ipv4, Family::Ipv6] {
                for address in nat::addresses(node, family) {
                    let covering = |len| Prefix::truncated(address, len);
                    prefixes.extend((0..=family.bits()).map(covering));
                }
            }
        }
    }

    /// True when learned routes inside these ranges cover nodes: whether nodes are reached by them
    /// depends on the pools.
    pub(super) fn nodes_are_reached_by_pools(
        &self,
        inputs: &PlanInputs<'_>,
        ranges: &[Prefix],
    ) -> bool {
        let mut learned = BTreeSet::new();
        for range in ranges {
            add_learned(inputs, range, &mut learned);
        }
        let guarded = &self.of_nodes.guarded;
        learned.iter().any(|prefix| guarded.is_over(prefix))
    }

    /// VTEPs inside a range that have to be on the link.
    pub(super) fn add_vteps(&self, range: &Prefix, prefixes: &mut BTreeSet<Prefix>) {
        let wanted = self.vteps.users.range(range..).map(|(prefix, _)| *prefix);
        prefixes.extend(wanted.take_while(|prefix| range.contains(prefix.address())));
    }

    /// Everything inside the range of a pool.
    pub(super) fn add_of_pool(
        &self,
        inputs: &PlanInputs<'_>,
        range: &Prefix,
        prefixes: &mut BTreeSet<Prefix>,
    ) {
        let snapshot = inputs.snapshot;
        let blocks = snapshot.blocks.range(range..).map(|(_, block)| block);
        for block in blocks.take_while(|block| range.contains(block.cidr.address())) {
            prefixes.insert(block.cidr);
            add_guests(block, |_| true, prefixes);
        }
        add_learned(inputs, range, prefixes);
        self.add_vteps(range, prefixes);
        // Those of this node's own devices, which are no destinations of their own.
        let skipped = self
            .desired
            .skipped
            .range(range..)
            .map(|(prefix, _)| *prefix);
        prefixes.extend(skipped.take_while(|prefix| range.contains(prefix.address())));
        let own = snapshot.nodes.get(inputs.me).map(|node| &node.spec);
        let vteps = |family| own.and_then(|spec| spec.vxlan_address(family));
        let ipip = own.and_then(|spec| spec.ipip_address()).map(IpAddr::from);
        let devices = [vteps(Family::Ipv4), vteps(Family::Ipv6), ipip];
        prefixes.extend(devices.into_iter().flatten().map(Prefix::host));
    }
}

/// Everything that somebody says something about, sorted.
pub(super) fn destinations(planner: &Planner<'_>) -> Vec<Prefix> {
    let inputs = planner.inputs;
    let mut all: Vec<Prefix> = inputs.snapshot.blocks.keys().copied().collect();
    for block in inputs.snapshot.blocks.values() {
        all.extend(
            block
                .used_elsewhere()
                .map(|(address, _)| Prefix::host(address)),
        );
    }
    all.extend(planner.workloads.keys());
    all.extend(planner.addresses.keys());
    all.extend(planner.desired.skipped.keys());
    all.extend(inputs.learned.keys());
    all.sort_unstable();
    all.dedup();
    all
}

/// Addresses of a block that such nodes use.
pub(super) fn add_guests(
    block: &KnownBlock,
    of: impl Fn(&NodeName) -> bool,
    prefixes: &mut BTreeSet<Prefix>,
) {
    let guests = block.used_elsewhere().filter(|(_, node)| of(node));
    prefixes.extend(guests.map(|(address, _)| Prefix::host(address)));
}

/// Ranges of the pools that are not the same, or make routes as they did not before.
pub(super) fn changed_ranges(was: &Snapshot, is: &Snapshot) -> Vec<Prefix> {
    let names = is.pools.changed_since(&was.pools);
    let both = names
        .iter()
        .flat_map(|name| [was.pools.get(name), is.pools.get(name)]);
    let changed = both.flatten().map(|pool| pool.spec.prefix());
    changed.chain(is.pools_turned_since(was)).collect()
}

/// Adds the prefixes inside another one that BGP learned.
pub(super) fn add_learned(
    inputs: &PlanInputs<'_>,
    within: &Prefix,
    prefixes: &mut BTreeSet<Prefix>,
) {
    let from = inputs.learned.range(within..).map(|(prefix, _)| *prefix);
    prefixes.extend(from.take_while(|prefix| within.contains(prefix.address())));
}
