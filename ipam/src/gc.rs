//! The collector's judgement: what may be released although nobody asked. Pure: snapshots,
//! interfaces and the time come in, [`Garbage`]s go out; whoever carries them out does it under
//! their guard.
//!
//! * `GC-1`: an address of a workload goes only with two independent proofs of death: no
//!   WorkloadEndpoint has it, and the interface that was made for it is gone from its node. Only
//!   its own node can see the second. Before it is released its node's kernel is asked for a route
//!   to it: where one leads to an interface that lives, somebody uses the address, whatever the
//!   datastore says.
//! * `GC-2`: a node's data go only when its Node is gone and its lease stood still for its whole
//!   term. A node that never had a lease is left to people (`caracal node delete`), except where
//!   Kubernetes alone makes and deletes Nodes: there a Node that is gone is proof enough. Judged by
//!   [`DeletedNodes`](crate::DeletedNodes), which only the leader ([`Election`](crate::Election))
//!   asks.
//! * `GC-3`: both must have been so at every look for the whole grace period.
//! * `GC-4`: all addresses of a handle go, or none, as far as they lie in blocks that concern the
//!   node: its own, those of nobody, and those in which it uses an address ([`KnownBlock::whole`]).
//!   A handle is one container's, which is on one node.
//! * `GC-5`: the transaction that releases compares its preconditions: the endpoint's key, or Node
//!   and lease.
//! * `GC-6`: an empty block goes after it stood empty and unchanged for the grace period, and never
//!   a node's last one of a family that lies in a pool. A block that nobody owns goes just so,
//!   whoever looks. Addresses that only cool down do not count, and the release waits for them.
//! * `GC-7`: nothing is collected that a value which does not parse is about: an address whose
//!   endpoint it is, a block whose own or whose affinity it is (decision 0174).
//! * `GC-8`: addresses that our CNI plugin made no interface for (tunnels, other main plugins,
//!   Calico's plugin) are never collected from a living node.
//! * `GC-9`: once the collectors have run, nothing that a crash left is held for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use caracal_model::{
    AffinityState, Compare, Doubt, Family, InsertEach, KnownBlock, NodeName, Prefix, Snapshot,
    Versioned,
};

use crate::allocation::{Allocation, Purpose};
use crate::audit::{AddressUse, judge};
use crate::block;
use crate::request::ReleaseTarget;
use crate::users::Users;

/// Data to release that nobody asked to release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Garbage {
    /// All addresses of a workload that is dead.
    Addresses {
        /// Addresses to release.
        targets: Vec<ReleaseTarget>,
        /// Preconditions of the release.
        preconditions: Vec<Compare>,
        /// The interface that must still be gone.
        interfaces: BTreeSet<String>,
        /// The sentence for the log.
        reason: String,
    },
    /// An empty block of this node.
    Block(Prefix),
    /// An empty block of nobody.
    Abandoned(Prefix),
}

/// One allocation under suspicion.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Suspect {
    handle: Option<String>,
    address: std::net::IpAddr,
    sequence: Option<u64>,
}

/// One node's collector: remembers since when something looks dead.
#[derive(Clone, Debug)]
pub struct Collector {
    me: NodeName,
    grace: Duration,
    suspects: BTreeMap<Suspect, Instant>,
    empty: BTreeMap<(Prefix, i64), Instant>,
}

impl Collector {
    /// Nothing is suspect yet.
    #[must_use]
    pub const fn new(me: NodeName, grace: Duration) -> Self {
        Self {
            me,
            grace,
            suspects: BTreeMap::new(),
            empty: BTreeMap::new(),
        }
    }

    /// How many addresses and blocks of this node look dead, but not for long enough yet.
    #[must_use]
    pub fn candidates(&self) -> usize {
        self.suspects.len() + self.empty.len()
    }

    /// Looks at this node's own addresses and blocks. `interfaces` are all of the node's.
    pub fn collectable(
        &mut self,
        now: Instant,
        snapshot: &Snapshot,
        interfaces: &BTreeSet<String>,
    ) -> Vec<Garbage> {
        let users = Users::from_snapshot(snapshot);
        let mut collections = self.dead_workloads(now, snapshot, &users, interfaces);
        collections.extend(self.empty_blocks(now, snapshot));
        collections
    }

    /// GC-1, GC-3, GC-4, GC-7, GC-8.
    fn dead_workloads(
        &mut self,
        now: Instant,
        snapshot: &Snapshot,
        users: &Users,
        interfaces: &BTreeSet<String>,
    ) -> Vec<Garbage> {
        let mut by_handle: BTreeMap<Option<String>, (Vec<Allocation>, bool)> = BTreeMap::new();
        let mut suspects = BTreeMap::new();
        let blocks = snapshot.blocks.values().filter_map(|known| known.whole());
        for allocation in blocks.flat_map(Allocation::in_block) {
            let entry = by_handle.entry(allocation.handle.clone()).or_default();
            if allocation.released_at.is_some() {
                continue;
            }
            let suspect = Suspect {
                handle: allocation.handle.clone(),
                address: allocation.address,
                sequence: allocation.sequence,
            };
            if self.is_dead(&allocation, users, interfaces) {
                let since = self.suspects.get(&suspect).copied().unwrap_or(now);
                entry.1 |= now.duration_since(since) < self.grace;
                suspects.insert(suspect, since);
                entry.0.push(allocation);
            } else {
                entry.1 = true;
            }
        }
        self.suspects = suspects;
        let ripe = by_handle
            .into_values()
            .filter(|(dead, kept)| !dead.is_empty() && !kept);
        ripe.map(|(dead, _)| garbage(&dead, users)).collect()
    }

    fn is_dead(
        &self,
        allocation: &Allocation,
        users: &Users,
        interfaces: &BTreeSet<String>,
    ) -> bool {
        let Some((interface, _)) = allocation.wiring() else {
            return false;
        };
        // A later pod of the same name has an interface of the same name: then it is that pod's.
        let me = self.me.as_str();
        let lives = interfaces.contains(interface) && !users.claims_interface(me, interface);
        allocation.node() == Some(me)
            && allocation.purpose() == Purpose::Workload
            && allocation.handle.is_some()
            && matches!(judge(allocation, users), AddressUse::Leaked(_))
            && !lives
    }

    /// GC-6, GC-7.
    fn empty_blocks(&mut self, now: Instant, snapshot: &Snapshot) -> Vec<Garbage> {
        let mut empty = BTreeMap::new();
        let mut ripe = Vec::new();
        let mut is_ripe = |block: &Versioned<KnownBlock>| {
            let key = (block.cidr, block.revision);
            let since = self.empty.get(&key).copied().unwrap_or(now);
            empty.insert(key, since);
            now.duration_since(since) >= self.grace
        };
        for family in [Family::Ipv4, Family::Ipv6] {
            let own = snapshot.affinities_of(&self.me).filter(|(cidr, affinity)| {
                cidr.family() == family && affinity.state == AffinityState::Confirmed
            });
            let own: Vec<_> = own
                .filter_map(|(cidr, _)| snapshot.blocks.get(&cidr))
                .filter(|block| block.host() == Some(&self.me))
                .collect();
            // The next pod gets an address of the last one, if a pool still gives them out.
            let is_pooled = |block: &KnownBlock| snapshot.pool_of(&block.cidr).is_some();
            let mut rest = own.iter().filter(|block| is_pooled(block)).count();
            for block in own.iter().filter(|block| is_idle(block)) {
                let is_pooled = is_pooled(block);
                if is_ripe(block) && (!is_pooled || rest > 1) {
                    rest -= usize::from(is_pooled);
                    ripe.push(Garbage::Block(block.cidr));
                }
            }
        }
        let doubts = snapshot.doubts();
        let doubtful: BTreeSet<Doubt> = doubts.map(|(_, doubt)| doubt).insert_each();
        let blocks = snapshot.blocks.values();
        for block in blocks.filter(|block| block.owner.is_none() && is_idle(block)) {
            if !doubtful.contains(&Doubt::Range(block.cidr)) && is_ripe(block) {
                ripe.push(Garbage::Abandoned(block.cidr));
            }
        }
        self.empty = empty;
        ripe
    }
}

/// True when nothing is held, or only cools down: whether that is over is seen when the block is
/// released.
fn is_idle(block: &KnownBlock) -> bool {
    block.whole().is_some_and(|block| {
        let mut held = block.allocated();
        block::is_empty(block) || held.all(|(_, _, attribute)| attribute.released_at.is_some())
    })
}

fn garbage(dead: &[Allocation], users: &Users) -> Garbage {
    let mut preconditions: Vec<Compare> = Vec::new();
    let mut interfaces = BTreeSet::new();
    for (interface, key) in dead.iter().filter_map(Allocation::wiring) {
        let compare = users.unchanged(&key);
        if !preconditions.contains(&compare) {
            preconditions.push(compare);
        }
        // One that a later pod of the same name has may be there.
        let node = dead.first().and_then(Allocation::node).unwrap_or_default();
        if !users.claims_interface(node, interface) {
            interfaces.insert(interface.to_owned());
        }
    }
    let addresses: Vec<String> = dead.iter().map(|a| a.address.to_string()).collect();
    let holder = dead.first().map(Allocation::holder).unwrap_or_default();
    Garbage::Addresses {
        targets: dead.iter().map(Allocation::target).collect(),
        preconditions,
        interfaces,
        reason: format!(
            "{} of {holder}: no WorkloadEndpoint has it and its interface is gone",
            addresses.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests;
