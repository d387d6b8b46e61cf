//! Announcements of a node: its own blocks, the addresses that it borrows from other nodes' blocks,
//! addresses of services, and the export policy for all other routes.
//!
//! Never announced: a block while its affinity is pending (two nodes may be competing for it), and
//! anything of a pool with `disableBGPExport`. A pool that is *disabled* hands out no new
//! addresses, but the workloads that have one keep it, so its blocks stay announced.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_bgp::Origination;
use caracal_bgp::policy::{Action, Condition, Filter, FilterVerdict, PrefixPattern, Source, Term};
use caracal_model::code::ProblemCode;
use caracal_model::ipam::{AffinityState, BlockAffinity};
use caracal_model::net::Prefix;
use caracal_model::{Key, merge_join};

use crate::Problems;
use crate::services::ServiceRoutes;
use crate::view::NodeView;

/// Name of the filter that every peer has as its last on export; Calico's name for the same thing.
pub const EXPORT_FILTER: &str = "calico_export_to_bgp_peers";

/// The routes that a node originates.
pub(crate) fn originate(
    view: &NodeView<'_>,
    services: &ServiceRoutes,
    problems: &mut Problems,
) -> BTreeMap<Prefix, Origination> {
    if view.node.is_none() {
        return BTreeMap::new();
    }
    // In the order of the prefixes, as everything made of it: blocks are many, and none is looked
    // up.
    let held: Vec<_> = view.snapshot.affinities_of(view.name).collect();
    let announced =
        |affinity: &BlockAffinity| affinity.state != AffinityState::Pending && !affinity.deleted;
    let blocks = held
        .iter()
        .filter(|(_, affinity)| announced(affinity))
        .map(|(cidr, _)| *cidr);
    // A node without an address of the family has no peer in it either.
    let services = services.announced.iter().filter_map(|prefix| {
        let next_hop = view.address(prefix.family())?;
        Some((*prefix, attributes(view, prefix, next_hop)))
    });
    let mut routes: Vec<_> = services.collect();
    for prefix in blocks.chain(borrowed(view, &held)) {
        match origination(view, &prefix) {
            Ok(route) => routes.extend(route.map(|route| (prefix, route))),
            Err((code, reason)) => problems.note(code, Key::Block(prefix).to_path(), reason),
        }
    }
    routes.into_iter().collect()
}

/// Addresses of our workloads inside blocks that are not ours. Addresses of tunnel devices are left
/// out: they are reached through the tunnel. So are addresses that cool down after their release.
fn borrowed<'a, T>(
    view: &'a NodeView<'_>,
    held: &'a [(Prefix, T)],
) -> impl Iterator<Item = Prefix> + 'a {
    let held = held.iter().map(|(cidr, _)| (cidr, ()));
    merge_join(held, &view.snapshot.blocks)
        .filter(|(_, held, _)| held.is_none())
        .filter_map(|(_, _, block)| block)
        .flat_map(|block| block.workloads_of(view.name))
        .map(Prefix::host)
}

/// `Ok(None)` when the pool's owner does not want the route announced.
fn origination(
    view: &NodeView<'_>,
    prefix: &Prefix,
) -> Result<Option<Origination>, (ProblemCode, String)> {
    let Some(pool) = view.pool_of(prefix) else {
        let reason = format!("{prefix} lies in no pool; it is not announced until it does");
        return Err((ProblemCode::AnnounceNoPool, reason));
    };
    if pool.spec.disable_bgp_export {
        return Ok(None);
    }
    let family = prefix.family();
    let next_hop: Option<IpAddr> = view.address(family);
    if next_hop.is_none() {
        let reason = format!("{prefix} is not announced: this node has no {family} address");
        return Err((ProblemCode::AnnounceNoAddress, reason));
    }
    Ok(next_hop.map(|next_hop| attributes(view, prefix, next_hop)))
}

fn attributes(view: &NodeView<'_>, prefix: &Prefix, next_hop: IpAddr) -> Origination {
    Origination {
        next_hop: Some(next_hop),
        local_pref: Some(view.settings.local_pref(prefix.family())),
        med: None,
        communities: communities(view, prefix),
    }
}

/// The communities of all ranges that hold the prefix, sorted and unique.
fn communities(view: &NodeView<'_>, prefix: &Prefix) -> Vec<caracal_bgp::AnyCommunity> {
    let all: BTreeSet<_> = view
        .settings
        .advertisements
        .iter()
        .filter(|(range, _)| range.covers(prefix))
        .flat_map(|(_, values)| values.iter().copied())
        .collect();
    all.into_iter().collect()
}

/// Export filter, tried after the peer's own filters: nothing of a pool with `disableBGPExport`;
/// our own originations; routes learned inside the pools (and, on a reflector, inside the service
/// ranges); nothing else. Communities are added to what passes, also to what others originate.
pub(crate) fn export_filter(view: &NodeView<'_>, reflects: bool) -> Filter {
    let mut terms = Vec::new();
    let (hidden, open): (Vec<_>, Vec<_>) = view
        .snapshot
        .pools
        .values()
        .map(|pool| (pool.spec.prefix(), pool.spec.disable_bgp_export))
        .partition(|(_, disabled)| *disabled);
    if let Some(condition) = inside(hidden.into_iter().map(|(prefix, _)| prefix)) {
        terms.push(Term {
            conditions: vec![condition],
            actions: Vec::new(),
            verdict: Some(FilterVerdict::Reject),
        });
    }
    for (range, values) in &view.settings.advertisements {
        terms.push(Term {
            conditions: inside([*range]).into_iter().collect(),
            actions: values.iter().copied().map(Action::AddCommunity).collect(),
            verdict: None,
        });
    }
    terms.push(accept(vec![Condition::Source(Source::Static)]));
    let passed_on = match reflects {
        true => &view.settings.service_ranges[..],
        false => &[],
    };
    let ranges = open.into_iter().map(|(prefix, _)| prefix);
    if let Some(condition) = inside(ranges.chain(passed_on.iter().copied())) {
        terms.push(accept(vec![condition]));
    }
    terms.push(Term {
        conditions: Vec::new(),
        actions: Vec::new(),
        verdict: Some(FilterVerdict::Reject),
    });
    Filter { terms }
}

fn accept(conditions: Vec<Condition>) -> Term {
    Term {
        conditions,
        actions: Vec::new(),
        verdict: Some(FilterVerdict::Accept),
    }
}

/// Matches everything inside the ranges; `None` for no ranges, which no condition can say.
fn inside(ranges: impl IntoIterator<Item = Prefix>) -> Option<Condition> {
    let sorted: BTreeSet<_> = ranges.into_iter().collect();
    let patterns: Vec<_> = sorted.into_iter().map(PrefixPattern::or_longer).collect();
    (!patterns.is_empty()).then_some(Condition::Prefix {
        patterns,
        negated: false,
    })
}
