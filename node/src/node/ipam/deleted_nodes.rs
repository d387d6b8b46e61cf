//! What deleted nodes left behind: one of the nodes releases it. Who that is, and what may be
//! released, is decided in [`caracal_ipam`]; here are its reads and writes.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use caracal_datastore::{ReadAnswer, Store};
use caracal_ipam::{Client, Conditional, DeletedNode, DeletedNodes, Election, Lease, ReleaseNode};
use caracal_model::{Compare, KeyRange, KeyValue, NodeName, Snapshot, Timestamp, Txn, TxnOutcome};

use crate::cluster_status::status_path;

/// When something counts as dead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grace {
    /// For how long it has to look so.
    pub(crate) period: Duration,
    /// A Node that is gone is proof enough where it had no lease.
    pub(crate) by_absence: bool,
}

/// This node as a candidate for clearing up after deleted nodes.
#[derive(Debug)]
pub(super) struct NodeRelease<S> {
    store: S,
    client: Client<S>,
    election: Election,
    nodes: DeletedNodes,
    by_absence: bool,
}

impl<S: Store> NodeRelease<S> {
    pub(super) fn new(store: S, me: NodeName, grace: Grace) -> Self {
        Self {
            client: Client::new(store.clone()),
            store,
            election: Election::new(me.clone(), grace.period),
            nodes: DeletedNodes::new(me, grace.period),
            by_absence: grace.by_absence,
        }
    }

    /// Releases what is due when this node leads; how many nodes' it was. `clock` goes on while
    /// this runs, and `failed` gets what could not be released.
    pub(super) async fn run(
        &mut self,
        snapshot: &Snapshot,
        clock: impl Fn() -> (Instant, Timestamp),
        failed: &mut Vec<String>,
    ) -> anyhow::Result<u64> {
        let orphans = self.nodes.orphans(snapshot);
        if orphans.is_empty() && !self.election.has_led() {
            return Ok(0);
        }
        let leader = self.read([Election::KEY.to_owned()]).await?.pop();
        if orphans.is_empty() {
            self.nodes.forget();
            if let Some(txn) = self.election.resign(leader.as_ref()) {
                self.store.commit(&txn).await?;
                tracing::info!("nothing of deleted nodes is left; no node needs to lead");
            }
            return Ok(0);
        }
        let (begun, time) = clock();
        let Some(txn) = self.election.stand(begun, leader.as_ref(), time) else {
            self.nodes.forget();
            return Ok(0);
        };
        if !matches!(self.store.commit(&txn).await?, TxnOutcome::Committed(_)) {
            // Somebody else was faster: who leads is seen the next time.
            return Ok(0);
        }
        if self.election.won(begun) {
            tracing::info!(nodes = ?orphans, "this node clears up after deleted nodes");
        }
        let leases = self.read(orphans.iter().map(Lease::path)).await?;
        let (now, _) = clock();
        let mut due = self.nodes.look_at_leases(now, &leases);
        if self.by_absence {
            due.extend(self.nodes.judge_unleased(now, &orphans, &leases));
        }
        let mut released = 0;
        for deleted in due {
            let (now, time) = clock();
            if !self.election.leads(now) {
                break;
            }
            match self.release(deleted, time).await {
                Ok(()) => released += 1,
                Err(error) => failed.push(format!("not collected: {error:#}")),
            }
        }
        Ok(released)
    }

    async fn read(&self, keys: impl IntoIterator<Item = String>) -> anyhow::Result<Vec<KeyValue>> {
        let ranges: Vec<_> = keys.into_iter().map(KeyRange::Key).collect();
        let ReadAnswer { ranges, .. } = self.store.read(&ranges).await?;
        Ok(ranges.into_iter().flatten().collect())
    }

    async fn release(&self, deleted: DeletedNode, time: Timestamp) -> anyhow::Result<()> {
        let DeletedNode {
            node,
            preconditions,
        } = deleted;
        let machine = Conditional::new(ReleaseNode::new(node.clone(), time), preconditions.clone());
        let left = self.client.drive(machine).await;
        let left = left.with_context(|| format!("what {node} left behind"))?;
        for record in self.read([status_path(&node)]).await? {
            let mut txn = Txn::new().delete(record.key, record.mod_revision);
            txn.compare.extend(preconditions.iter().cloned());
            self.store.commit(&txn).await?;
        }
        // The proof goes last, or a crash in between would make the rest stay for ever.
        let mut txn = Txn::new();
        for compare in preconditions {
            match compare {
                Compare::Unchanged(key, revision) => txn = txn.delete(key, revision),
                absent @ Compare::Absent(_) => txn.compare.push(absent),
            }
        }
        self.store.commit(&txn).await?;
        tracing::info!(%node, addresses = left.addresses.len(), blocks = left.blocks.len(),
            "collected what a dead node left behind");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
