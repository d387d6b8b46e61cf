//! What deleted nodes left behind: whose it is, and when it may be released (GC-2, GC-3, GC-5).
//! Pure: snapshots, leases and the time come in. Only the [`leader`](crate::Election) asks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use caracal_model::{Compare, InsertEach, Key, KeyValue, NodeName, Snapshot};

use crate::lease::Lease;

/// A node whose data may be released, then its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedNode {
    /// Its name.
    pub node: NodeName,
    /// Preconditions of the release.
    pub preconditions: Vec<Compare>,
}

/// Remembers since when nodes look deleted.
#[derive(Clone, Debug)]
pub struct DeletedNodes {
    me: NodeName,
    grace: Duration,
    silent: BTreeMap<NodeName, (i64, Instant)>,
    /// Nodes without a lease, and since when their Nodes are gone.
    unleased: BTreeMap<NodeName, Instant>,
}

impl DeletedNodes {
    /// None is known yet.
    #[must_use]
    pub const fn new(me: NodeName, grace: Duration) -> Self {
        Self {
            me,
            grace,
            silent: BTreeMap::new(),
            unleased: BTreeMap::new(),
        }
    }

    /// Forgets since when nodes look deleted: somebody else looks now.
    pub fn forget(&mut self) {
        self.silent.clear();
        self.unleased.clear();
    }

    /// Nodes that IPAM's data name and that have no Node: their leases have to be read.
    #[must_use]
    pub fn orphans(&self, snapshot: &Snapshot) -> BTreeSet<NodeName> {
        let mut named: BTreeSet<NodeName> = BTreeSet::new();
        for block in snapshot.blocks.values() {
            let unknown = block.nodes().filter(|n| !snapshot.nodes.contains_key(*n));
            named.extend(unknown.cloned());
        }
        let owners = snapshot.affinities.keys();
        named.extend(owners.filter_map(|(owner, _)| owner.node().cloned()));
        named.retain(|node| {
            !snapshot.nodes.contains_key(node)
                && !snapshot.invalid.contains_key(&Key::node(node).to_path())
                && *node != self.me
        });
        named
    }

    /// GC-2: looks at the leases of [`DeletedNodes::orphans`], as just read.
    pub fn look_at_leases(&mut self, now: Instant, leases: &[KeyValue]) -> Vec<DeletedNode> {
        let mut silent = BTreeMap::new();
        let mut dead = Vec::new();
        for stored in leases {
            let Some(lease) = Lease::read(stored) else {
                continue;
            };
            let node = lease.node.clone();
            if stored.key != Lease::path(&node) {
                continue;
            }
            let revision = stored.mod_revision;
            let since = match self.silent.get(&node) {
                Some((seen, since)) if *seen == revision => *since,
                _ => now,
            };
            silent.insert(node.clone(), (revision, since));
            let patience = self.grace.max(Duration::from_secs(lease.seconds));
            if now.duration_since(since) >= patience {
                dead.push(DeletedNode {
                    preconditions: vec![
                        Compare::Absent(Key::node(&node).to_path()),
                        Compare::Unchanged(Lease::path(&node), revision),
                    ],
                    node,
                });
            }
        }
        self.silent = silent;
        dead
    }

    /// GC-2 where Kubernetes makes the Nodes: judges those of [`DeletedNodes::orphans`] that have
    /// no lease, by the leases as just read.
    pub fn judge_unleased(
        &mut self,
        now: Instant,
        orphans: &BTreeSet<NodeName>,
        leases: &[KeyValue],
    ) -> Vec<DeletedNode> {
        let has_lease = |node: &NodeName| leases.iter().any(|kv| kv.key == Lease::path(node));
        let unleased = orphans.iter().filter(|node| !has_lease(node));
        let since = |node: &NodeName| self.unleased.get(node).copied().unwrap_or(now);
        let unleased: BTreeMap<_, _> = unleased.map(|n| (n.clone(), since(n))).insert_each();
        let ripe = unleased
            .iter()
            .filter(|(_, since)| now.duration_since(**since) >= self.grace);
        let dead = ripe.map(|(node, _)| DeletedNode {
            preconditions: vec![
                Compare::Absent(Key::node(node).to_path()),
                Compare::Absent(Lease::path(node)),
            ],
            node: node.clone(),
        });
        let dead = dead.collect();
        self.unleased = unleased;
        dead
    }
}

#[cfg(test)]
mod tests;
