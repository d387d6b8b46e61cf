//! Is what the datastore holds an order, or a fault? A datastore that was emptied, replaced by
//! another cluster's or restored from an old backup would make every node take its routes away.
//! Pure: compares what was accepted last with what is there now.
//!
//! * `GUARD-1`: what is a fault is never published: the last snapshot that was accepted stays, and
//!   the view is stale with the reason.
//! * `GUARD-2`: a fault ends by itself when the data are mended; otherwise somebody accepts what is
//!   there.
//! * `GUARD-3`: the first content that a node ever sees is accepted: a new cluster is empty.

use std::fmt;
use std::sync::Arc;

use caracal_model::{NodeName, ProblemCode, SharedMap, Snapshot, Versioned};
use tokio::time::Instant;

/// Lost things that a reason names at most.
const NAMED: usize = 3;

/// Revisions that a datastore in use may gain in a second: more than an etcd writes with fsync.
const PER_SECOND: i64 = 20_000;
/// And that it may have gained beyond what a watch has told, which lags.
const LAG: i64 = 500_000;
/// Revisions that no datastore gains while a node is down: `etcdutl snapshot restore` is given more
/// than this as `--bump-revision`.
const WHILE_DOWN: i64 = 500_000_000;

/// What was heard last of a datastore.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub(super) revision: i64,
    pub(super) at: Instant,
}

impl Heard {
    /// True for a revision that the datastore cannot have come to since.
    pub(super) fn is_outrun_by(&self, revision: i64, now: Instant) -> bool {
        let seconds = i64::try_from((now - self.at).as_secs()).unwrap_or(i64::MAX);
        let may = seconds.saturating_add(1).saturating_mul(PER_SECOND);
        revision.saturating_sub(self.revision) > may.saturating_add(LAG)
    }
}

/// Which datastore it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreId(pub u64);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Last accepted snapshot, also of an earlier process.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// The content.
    pub snapshot: Arc<Snapshot>,
    /// The datastore's own identity; zero when unknown.
    pub store: StoreId,
    /// The datastore was found to be restored from a backup later, and what it lacks was not
    /// accepted by the time the earlier process ended.
    pub restored: bool,
}

/// Operator's consent to a datastore that differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// Only what is no fault.
    #[default]
    Never,
    /// Everything.
    Always,
    /// Everything of the cluster with this `clusterGUID`.
    Cluster(String),
}

/// Settings of the guard.
#[derive(Clone, Debug)]
pub struct GuardOptions {
    /// The node whose registration must not have vanished.
    pub me: NodeName,
    /// Last accepted snapshot of an earlier process.
    pub accepted: Option<Accepted>,
    /// Operator's consent.
    pub accept: Accept,
}

/// Why the datastore's content is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatastoreFault {
    /// It is another cluster's.
    #[error(
        "the datastore belongs to another cluster: clusterGUID {is}, and this node belongs to {was}"
    )]
    OtherCluster {
        /// The cluster that was accepted.
        was: String,
        /// The cluster whose datastore answers.
        is: String,
    },
    /// It lost at once what is not lost at once.
    #[error("the datastore has lost {0}")]
    Emptied(String),
    /// It was restored or replaced, and lacks what was there.
    #[error("the datastore was restored from a backup or replaced, and lacks {0}")]
    Restored(String),
    /// This node's own resource is not there.
    #[error("this node's own Node resource is gone; it is written again")]
    OwnNode,
}

impl DatastoreFault {
    /// A stable code for metrics and scripts.
    #[must_use]
    pub const fn code(&self) -> ProblemCode {
        match self {
            Self::OtherCluster { .. } => ProblemCode::DatastoreOtherCluster,
            Self::Emptied(_) => ProblemCode::DatastoreEmptied,
            Self::Restored(_) => ProblemCode::DatastoreRestored,
            Self::OwnNode => ProblemCode::DatastoreOwnNode,
        }
    }

    /// True when nothing is to be written into this datastore either: it is not known to be the
    /// cluster's.
    #[must_use]
    pub const fn forbids_writing(&self) -> bool {
        !matches!(self, Self::OwnNode)
    }

    /// Consequence and remedy.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::OwnNode => "nothing is deleted meanwhile",
            _ => {
                "what was accepted last stays in force, nothing is deleted and no address is given out; put the data \
                 back, or order this node to follow it with `caracal datastore accept`"
            }
        }
    }
}

/// The guard's memory.
#[derive(Debug)]
pub(super) struct Guard {
    me: NodeName,
    accept: Accept,
    accepted: Option<Accepted>,
    /// The history of the datastore is another one than that which was accepted.
    restored: bool,
    /// Somebody ordered to accept what is there, whatever it is.
    accept_next: bool,
}

impl Guard {
    pub(super) fn new(options: GuardOptions) -> Self {
        Self {
            me: options.me,
            accept: options.accept,
            restored: options.accepted.as_ref().is_some_and(|a| a.restored),
            accepted: options.accepted,
            accept_next: false,
        }
    }

    /// Notes where a list came from; `outrun`: its revision is one that the datastore cannot have
    /// come to since it was heard last, `None` = it was not heard in this process. What is known of
    /// another history stays until something is accepted.
    pub(super) fn listed(&mut self, store: StoreId, revision: i64, outrun: Option<bool>) {
        if let Some(accepted) = &self.accepted {
            let known = accepted.store != StoreId::default() && store != StoreId::default();
            let other = known && accepted.store != store;
            let jumped =
                outrun.unwrap_or_else(|| revision - accepted.snapshot.revision > WHILE_DOWN);
            self.restored |= other || jumped || revision < accepted.snapshot.revision;
        }
    }

    /// Accepts the datastore as it is.
    pub(super) const fn accept(&mut self) {
        self.accept_next = true;
    }

    /// Replaces the accepted snapshot by one that differs in nothing that is judged.
    pub(super) fn follow(&mut self, next: &Arc<Snapshot>) {
        if let Some(accepted) = &mut self.accepted {
            accepted.snapshot = Arc::clone(next);
        }
    }

    /// Judges the content. `None`: it is accepted from now on.
    pub(super) fn judge(&mut self, next: &Arc<Snapshot>, store: StoreId) -> Option<DatastoreFault> {
        let fault = self.fault(next);
        if fault.is_none() {
            self.accepted = Some(Accepted {
                snapshot: Arc::clone(next),
                store,
                restored: false,
            });
            self.restored = false;
            self.accept_next = false;
        }
        fault
    }

    fn fault(&self, next: &Snapshot) -> Option<DatastoreFault> {
        let was = &*self.accepted.as_ref()?.snapshot;
        let accepted = self.accept_next
            || match &self.accept {
                Accept::Never => false,
                Accept::Always => true,
                Accept::Cluster(guid) => next.cluster_guid.as_ref().is_some_and(|g| **g == *guid),
            };
        let foreign = || {
            other_cluster(was, next)
                .or_else(|| emptied(was, next, &self.me).map(DatastoreFault::Emptied))
                .or_else(|| {
                    let restored = self.restored || is_rewound(was, next);
                    let lost = restored.then(|| lacking(was, next, &self.me))?;
                    lost.map(DatastoreFault::Restored)
                })
        };
        if !accepted && let Some(fault) = foreign() {
            return Some(fault);
        }
        // Without it nothing can be planned, so also what is accepted waits until it is there.
        let gone = was.nodes.contains_key(&self.me) && !next.nodes.contains_key(&self.me);
        gone.then_some(DatastoreFault::OwnNode)
    }
}

fn other_cluster(was: &Snapshot, next: &Snapshot) -> Option<DatastoreFault> {
    let (was, is) = (was.cluster_guid.as_ref()?, next.cluster_guid.as_ref()?);
    (**was != **is).then(|| DatastoreFault::OtherCluster {
        was: String::clone(was),
        is: String::clone(is),
    })
}

/// Kinds that shrink one by one in a cluster in use, and were emptied at once.
fn emptied(was: &Snapshot, next: &Snapshot, me: &NodeName) -> Option<String> {
    if next.nodes.is_empty() && was.nodes.keys().any(|node| node != me) {
        return Some(format!("all {} nodes", was.nodes.len()));
    }
    let used = || was.blocks.values().filter(|block| block.in_use > 0);
    if next.pools.is_empty() && !was.pools.is_empty() {
        // The last pool of an operator who takes all of them away is empty, or its blocks go first.
        let everything = next.nodes.is_empty() && next.blocks.is_empty();
        if everything || used().next().is_some() {
            return Some(format!("all {} pools", was.pools.len()));
        }
    }
    if next.blocks.is_empty() && !was.blocks.is_empty() {
        let inside = |block: &caracal_model::KnownBlock| {
            let mut addresses = next.endpoint_networks();
            addresses.any(|address| block.cidr.covers(address))
        };
        if used().nth(1).is_some() || used().any(|block| inside(block)) {
            return Some(format!("all {} blocks", was.blocks.len()));
        }
    }
    None
}

/// True when some value is older than the one that was accepted: its history went back, whatever
/// the datastore's revision is. Looks at what differs.
fn is_rewound(was: &Snapshot, next: &Snapshot) -> bool {
    fn older<K: Ord + Clone, V: PartialEq>(
        was: &SharedMap<K, Versioned<V>>,
        next: &SharedMap<K, Versioned<V>>,
    ) -> bool {
        let mut differing = next.changed_since(was).into_iter();
        differing.any(|key| match (was.get(&key), next.get(&key)) {
            (Some(was), Some(is)) => is.revision < was.revision,
            _ => false,
        })
    }
    older(&was.nodes, &next.nodes)
        || older(&was.pools, &next.pools)
        || older(&was.blocks, &next.blocks)
        || older(&was.affinities, &next.affinities)
        || older(&was.workloads, &next.workloads)
}

/// Data that a restored datastore lacks: following it would remove routes.
fn lacking(was: &Snapshot, next: &Snapshot, me: &NodeName) -> Option<String> {
    let nodes = was.nodes.keys().filter(|n| !next.nodes.contains_key(*n));
    let pools = was.pools.keys().filter(|p| !next.pools.contains_key(*p));
    let used = was.blocks.values().filter(|block| block.in_use > 0);
    let blocks = used.filter(|b| next.blocks.get(&b.cidr).is_none_or(|n| n.owner != b.owner));
    let workloads = was.workloads.iter().filter(|(key, workload)| {
        workload.spec.node == me.as_str() && !next.workloads.contains_key(*key)
    });
    let mut lost: Vec<String> = nodes.map(|name| format!("node {name}")).collect();
    lost.extend(pools.map(|name| format!("pool {name}")));
    lost.extend(blocks.map(|block| format!("block {}", block.cidr)));
    lost.extend(workloads.map(|((namespace, name), _)| format!("endpoint {namespace}/{name}")));
    if lost.is_empty() {
        return None;
    }
    let more = lost.len().saturating_sub(NAMED);
    let mut text = lost[..lost.len().min(NAMED)].join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    Some(text)
}
