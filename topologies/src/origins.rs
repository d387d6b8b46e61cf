//! Owners of prefixes for the speaker's origin check: from the snapshot to typed data.
//!
//! A node may announce what lies in a block of a confirmed affinity of its own, and the single
//! addresses of its workloads in blocks of other nodes. Blocks of `virtual:…` affinities belong to
//! no node, and pools of load balancers and the ranges of services are left to their own rules, but
//! for ranges of services inside a pool of workloads, and pools of which nodes still have blocks.
//!
//! A change costs what differs between two snapshots, which share the rest: a node its own
//! identity, and only another BGPPeer looks at all reflectors. The whole is a change from nothing,
//! and so its own oracle.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_bgp::{
    Asn, OriginMode, OriginRange, OriginRules, OriginUpdate, OwnerIdentity, PrefixOwner, RouterId,
};
use caracal_model::{
    AffinityState, BlockAffinity, BlockOwner, Family, InsertEach, IpPool, KnownBlock, Node,
    NodeName, Prefix, SharedMap, Snapshot, Versioned,
};

use crate::common::FAMILIES;
use crate::peers::concerns;
use crate::router_id;

/// Difference between two snapshots for a node; without an old one, everything.
/// `OriginUpdate::stale` is the caller's.
#[must_use]
pub fn origin_update(
    old: Option<&Snapshot>,
    new: &Snapshot,
    (me, mode): (&NodeName, OriginMode),
) -> OriginUpdate {
    let nothing = Snapshot::default();
    let before = old.unwrap_or(&nothing);
    let mut ownership = Vec::new();
    // Blocks that some affinity names now, or no longer.
    let mut named = Vec::new();
    for key in new.affinities.changed_since(&before.affinities) {
        let (was, is) = (before.affinities.get(&key), new.affinities.get(&key));
        if was.is_some() != is.is_some() {
            named.push(key.1);
        }
        let counts = |affinity: Option<&Versioned<BlockAffinity>>| affinity.is_some_and(|a| has(a));
        if counts(was) != counts(is) {
            ownership.push((key.1, owner_of(&key.0), counts(is)));
        }
    }
    for cidr in new.blocks.changed_since(&before.blocks) {
        let was = borrowed(before.blocks.get(&cidr));
        let is = borrowed(new.blocks.get(&cidr));
        let gone = was.difference(&is).map(|guest| (guest, false));
        let come = is.difference(&was).map(|guest| (guest, true));
        ownership.extend(gone.chain(come).map(|((address, node), has)| {
            let owner = PrefixOwner::Named(node.to_string());
            (Prefix::host(*address), owner, has)
        }));
    }
    let mut disabled = new.pools.values().filter(|pool| pool.spec.disabled);
    let differ = old.is_none()
        || moves(&before.pools, &new.pools)
        || moves(&before.bgp_configurations, &new.bgp_configurations)
        || own_addresses(before.nodes.get(me)) != own_addresses(new.nodes.get(me))
        || disabled.any(|pool| {
            let range = pool.spec.prefix();
            named.iter().any(|block| range.covers(block))
        })
        || !new.pools_turned_since(before).is_empty();
    let rules = differ.then(|| rules(new, me, mode));
    let same = old.is_some_and(|old| rules == Some(self::rules(old, me, mode)));
    OriginUpdate {
        rules: rules.filter(|_| !same),
        identities: identities(before, new),
        ownership,
        stale: None,
    }
}

/// The identities that differ between two snapshots.
fn identities(old: &Snapshot, new: &Snapshot) -> Vec<(String, Option<OwnerIdentity>)> {
    let mut names: BTreeSet<NodeName> = new
        .nodes
        .changed_since(&old.nodes)
        .into_iter()
        .insert_each();
    if old.default_asn() != new.default_asn() {
        names.extend(new.nodes.keys().cloned());
    }
    if moves(&old.bgp_peers, &new.bgp_peers) {
        let reflectors = new.nodes.iter().filter(|(_, node)| reflects(node));
        names.extend(reflectors.map(|(name, _)| name.clone()));
    }
    let of = |snapshot: &Snapshot, name: &NodeName| {
        let node = snapshot.nodes.get(name)?;
        let asn = Some(Asn(snapshot.asn_of(node))).filter(|asn| asn.0 != 0);
        Some(OwnerIdentity {
            asn,
            ..identity(name, node, relays(snapshot, name, node))
        })
    };
    let differing = names.into_iter().filter_map(|name| {
        let identity = of(new, &name);
        (identity != of(old, &name)).then(|| (name.to_string(), identity))
    });
    differing.collect()
}

fn moves<K: Ord + Clone, V: PartialEq>(
    old: &SharedMap<K, Versioned<V>>,
    new: &SharedMap<K, Versioned<V>>,
) -> bool {
    !new.changed_since(old).is_empty()
}

/// True when the owner of an affinity announces its block.
fn has(affinity: &BlockAffinity) -> bool {
    affinity.state != AffinityState::Pending && !affinity.deleted
}

fn owner_of(owner: &BlockOwner) -> PrefixOwner {
    match owner.node() {
        Some(node) => PrefixOwner::Named(node.to_string()),
        None => PrefixOwner::Free,
    }
}

/// Addresses of a block in use by other nodes than its owner.
fn borrowed(block: Option<&Versioned<KnownBlock>>) -> BTreeSet<(IpAddr, &NodeName)> {
    let blocks = block.into_iter();
    blocks
        .flat_map(|block| block.used_elsewhere())
        .insert_each()
}

/// The BGP addresses of a node.
fn own_addresses(node: Option<&Versioned<Node>>) -> Vec<IpAddr> {
    let addresses = |node: &Versioned<Node>| FAMILIES.map(|family| node.spec.address(family));
    node.map(addresses)
        .into_iter()
        .flatten()
        .flatten()
        .collect()
}

fn rules(snapshot: &Snapshot, me: &NodeName, mode: OriginMode) -> OriginRules {
    let pool = |pool: &IpPool| match is_foreign(snapshot, pool) {
        true => OriginRange::Free,
        false => OriginRange::Owned {
            shortest: pool.spec.block_len(),
        },
    };
    let pools = snapshot.pools.values();
    let pools: Vec<_> = pools.map(|p| (p.spec.prefix(), pool(p))).collect();
    // A range of services inside a pool frees nothing of it: what a pod has stays its node's.
    let is_owned = |range: &Prefix| {
        let mut pools = pools.iter();
        pools.any(|(pool, kind)| *kind != OriginRange::Free && pool.covers(range))
    };
    let services = snapshot.bgp_default().into_iter();
    let services = services.flat_map(|c| c.spec.service_ranges());
    let services = services.map(|(_, range)| range);
    let services = services.filter(|range| !is_owned(range));
    let services: Vec<_> = services.map(|range| (range, OriginRange::Free)).collect();
    // A pool over this machine is a mistake, and blocks of it may be over machines, too.
    let own = own_addresses(snapshot.nodes.get(me));
    let is_over_own = |range: &Prefix| own.iter().any(|address| range.contains(*address));
    let over_machines = pools.iter().map(|(range, _)| *range).filter(is_over_own);
    OriginRules {
        mode,
        over_machines: over_machines.insert_each(),
        ranges: services.into_iter().chain(pools).insert_each(),
    }
}

/// True for a pool in which nodes own nothing: one for load balancers alone of which no node has
/// anything any more, and a disabled one without a block, which stands for the pods of another
/// cluster, so that packets to them keep their source.
fn is_foreign(snapshot: &Snapshot, pool: &IpPool) -> bool {
    let range = pool.spec.prefix();
    let mut blocks = snapshot.affinities.keys().map(|(_, block)| block);
    !snapshot.makes_routes(&pool.spec)
        || pool.spec.disabled && !blocks.any(|block| range.covers(block))
}

/// The addresses that a node's routes may have as next hop, and the BGP Identifiers that Calico and
/// we give it.
fn identity(name: &NodeName, node: &Node, relays: bool) -> OwnerIdentity {
    let mut addresses: BTreeSet<IpAddr> = FAMILIES
        .iter()
        .filter_map(|family| node.spec.address(*family))
        .insert_each();
    let listed = node.spec.addresses.iter().filter_map(|entry| {
        let address = entry.address.split('/').next()?;
        address.parse::<IpAddr>().ok()
    });
    addresses.extend(listed);
    let of_address = node.spec.address(Family::Ipv4).and_then(|a| match a {
        IpAddr::V4(address) => Some(RouterId(address)),
        IpAddr::V6(_) => None,
    });
    let router_ids = of_address.into_iter().chain([router_id::hash(name)]);
    OwnerIdentity {
        addresses,
        router_ids: router_ids.insert_each(),
        relays,
        asn: None,
    }
}

fn reflects(node: &Node) -> bool {
    let bgp = node.spec.bgp.as_ref();
    bgp.is_some_and(|bgp| bgp.route_reflector_cluster_id.is_some())
}

/// True for a reflector of which a BGPPeer with `nextHopMode: Self` makes sessions: it puts itself
/// in as next hop of what it reflects. Most clusters have none, so nothing is parsed.
fn relays(snapshot: &Snapshot, name: &NodeName, node: &Node) -> bool {
    let mut peers = snapshot.bgp_peers.values().map(|peer| &peer.spec);
    reflects(node)
        && peers
            .any(|spec| spec.next_hop_mode.as_deref() == Some("Self") && concerns(spec, name, node))
}

#[cfg(test)]
mod tests;
