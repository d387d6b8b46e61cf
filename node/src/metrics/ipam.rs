//! Addresses: this node's share of each pool, and how full each pool is.

use std::collections::BTreeMap;

use caracal_model::{InsertEach, NodeName, PoolName, Snapshot};

use super::{POOLS, count, total};
use crate::http::exposition::{MetricFamily, MetricKind};

#[derive(Debug, Default, PartialEq, Eq)]
struct Use {
    /// Blocks of this node.
    blocks: usize,
    /// Addresses of this node.
    mine: usize,
    /// Those of them in blocks of others.
    borrowed: usize,
    /// Addresses of all nodes.
    all: usize,
}

/// Counters of the collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Addresses that look leaked, but not for long enough yet.
    pub(crate) candidates: usize,
    /// Collections carried out since the start.
    pub(crate) reclaimed: u64,
}

/// The families; the first [`POOLS`] pools by name have series.
pub(crate) fn families(
    snapshot: &Snapshot,
    me: &NodeName,
    collected: Collected,
) -> Vec<MetricFamily> {
    let used = by_pool(snapshot, me);
    let pools: Vec<_> = snapshot.pools.iter().take(POOLS).collect();
    let gauge = |name, help, value: &dyn Fn(&Use) -> usize| {
        let samples = pools.iter().map(|(pool, _)| {
            let number = used.get(*pool).map_or(0, value);
            (vec![("ippool", pool.to_string())], count(number))
        });
        MetricFamily::new(name, MetricKind::Gauge, help).samples(samples)
    };
    let sizes = pools.iter().map(|(name, pool)| {
        let size = u64::try_from(pool.spec.prefix().size()).unwrap_or(u64::MAX);
        (vec![("ippool", name.to_string())], total(size))
    });
    vec![
        gauge("caracal_ipam_blocks", "Blocks of this node, by pool.", &|u| u.blocks)
            .upstream("ipam_blocks"),
        gauge(
            "caracal_ipam_allocations_in_use",
            "Addresses that this node uses, by pool.",
            &|u| u.mine,
        )
        .upstream("ipam_allocations_in_use"),
        gauge(
            "caracal_ipam_allocations_borrowed",
            "Addresses that this node uses from blocks of other nodes, by pool.",
            &|u| u.borrowed,
        )
        .upstream("ipam_allocations_borrowed"),
        gauge(
            "caracal_ipam_ippool_allocations",
            "Addresses that all nodes together use, by pool.",
            &|u| u.all,
        ),
        MetricFamily::new("caracal_ipam_ippool_size", MetricKind::Gauge, "Addresses of a pool.")
            .upstream("ipam_ippool_size")
            .samples(sizes),
        MetricFamily::new(
            "caracal_ipam_allocations_gc_candidates",
            MetricKind::Gauge,
            "Addresses and blocks of this node that look dead, but not for long enough to be collected.",
        )
        .upstream("ipam_allocations_gc_candidates")
        .value(count(collected.candidates)),
        MetricFamily::new(
            "caracal_ipam_allocations_gc_reclamations",
            MetricKind::Counter,
            "Collections that this node carried out.",
        )
        .upstream("ipam_allocations_gc_reclamations")
        .value(total(collected.reclaimed)),
    ]
}

fn by_pool<'a>(snapshot: &'a Snapshot, me: &NodeName) -> BTreeMap<&'a PoolName, Use> {
    let own: std::collections::BTreeSet<_> = snapshot
        .affinities_of(me)
        .map(|(cidr, _)| cidr)
        .insert_each();
    let mut pools: BTreeMap<&PoolName, Use> = BTreeMap::new();
    for (cidr, block) in &snapshot.blocks {
        let Some((pool, _)) = snapshot.pool_of(cidr) else {
            continue;
        };
        let used = pools.entry(pool).or_default();
        let mine = block.used_by(me);
        used.all += block.in_use as usize;
        used.mine += mine;
        if own.contains(cidr) {
            used.blocks += 1;
        } else {
            used.borrowed += mine;
        }
    }
    pools
}
