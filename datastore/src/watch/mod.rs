//! List and watch: keeps a [`Snapshot`] equal to the datastore and says how much it can be trusted.
//!
//! [`spawn_watcher`] starts the one task that owns the resource maps. It lists all kinds that
//! Caracal reads at one revision, watches from there, and publishes each new [`View`] to a
//! latest-wins channel. Invariants, cited by tests:
//!
//! * `WATCH-1`: a view's snapshot is the datastore's content at one revision, with whole
//!   transactions only.
//! * `WATCH-2`: the view stays usable whatever happens: a new list is compared with what is there,
//!   nothing is ever cleared to be filled again.
//! * `WATCH-3`: a stream that says nothing is given up; freshness falls first to lagging, then to
//!   stale.
//! * `WATCH-4`: after a stream ended, whatever the reason, everything is listed again, and when it
//!   tells of a revision that the datastore cannot have come to. A watch is never resumed, because
//!   a datastore that was restored from a backup counts the same revisions again over another
//!   history. The stream is opened before the list begins, so that it dies with the datastore the
//!   list is of.
//! * `WATCH-5`: the task never ends silently: the view becomes stale with a reason.
//! * `WATCH-7`: with a guard ([`spawn_guarded_watcher`]), what is a [`DatastoreFault`] and no order
//!   is not published: the snapshot that was accepted last stays and the view is stale, until the
//!   data are mended or somebody accepts them.
//! * `WATCH-8`: a Node that vanishes while it has blocks or reflects routes stays in the snapshot
//!   for [`WatchOptions::node_grace`]; [`View::absent`] names it.
//! * `WATCH-9`: what is kept of a value is what somebody reads from it. A change after which
//!   everything that routes and announcements follow from is the same wakes nobody: the view is
//!   replaced all the same, for who looks.
//! * `WATCH-6`: each value that does not parse is logged once with key and reason, and once when it
//!   is corrected.
//!
//! * `WATCH-10`: of other nodes' endpoints those are read and kept that blocks do not account for,
//!   so that each address in use is known from one or the other. When a block is lost that did,
//!   everything is listed again before the loss is published.
//!
//! IPAM handles are neither listed nor kept: they are many and no route depends on them.

mod absence;
mod guard;
mod liveness;
mod outage;
mod publisher;
mod replica;
mod task;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use caracal_model::{Key, Kind, NodeName, Prefix, Problem, ProblemCode, Snapshot, kind_prefix};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

pub use self::guard::{Accept, Accepted, DatastoreFault, GuardOptions, StoreId};
use crate::store::PagedStore;

/// How far a [`View`] can be trusted to be current. While it is not fresh, nothing is to be
/// deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The datastore was heard from a moment ago; the snapshot is what it holds.
    Fresh,
    /// The datastore is reachable as far as we know, but the snapshot may be behind.
    Lagging {
        /// When it was last known to be current.
        since: Instant,
        /// Why it may be behind.
        reason: String,
    },
    /// The datastore is not heard from; or nothing was read yet.
    Stale {
        /// When the snapshot was last known to be current, or when the task started.
        since: Instant,
        /// Why.
        reason: String,
    },
}

impl Freshness {
    /// True only for [`Freshness::Fresh`].
    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        matches!(self, Self::Fresh)
    }

    /// `fresh`, `lagging` or `stale`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Lagging { .. } => "lagging",
            Self::Stale { .. } => "stale",
        }
    }

    /// Why it is not fresh.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Fresh => None,
            Self::Lagging { reason, .. } | Self::Stale { reason, .. } => Some(reason),
        }
    }

    /// Since when it is not fresh.
    #[must_use]
    pub const fn since(&self) -> Option<Instant> {
        match self {
            Self::Fresh => None,
            Self::Lagging { since, .. } | Self::Stale { since, .. } => Some(*since),
        }
    }
}

/// The datastore as last seen.
#[derive(Clone, Debug)]
pub struct View {
    /// All resources at one revision.
    pub snapshot: Arc<Snapshot>,
    /// The snapshot's revision when its readers were last woken: all that anything follows from is
    /// as it was there. The snapshot itself may be newer (`WATCH-9`).
    pub revision: i64,
    /// How many times they were woken for a snapshot.
    pub wakes: u64,
    /// How far it can be trusted.
    pub freshness: Freshness,
    /// True from the first complete list on that is accepted. Before, the snapshot is empty because
    /// nothing was read, or what an earlier process accepted last.
    pub synced: bool,
    /// Why what the datastore holds is not accepted; the snapshot is what was accepted last then.
    pub fault: Option<DatastoreFault>,
    /// Which datastore the snapshot is of.
    pub store: StoreId,
    /// Nodes of the snapshot that the datastore does not hold any more, or without their address:
    /// kept for a while.
    pub absent: Vec<NodeName>,
}

impl View {
    /// True when the absence of something in the snapshot proves that it does not exist.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        self.synced && self.freshness.is_fresh()
    }

    /// The revision up to which a reader is in step who has followed the snapshot of `revision`:
    /// from later ones that woke nobody, nothing follows (`WATCH-9`).
    #[must_use]
    pub fn followed(&self, revision: i64) -> i64 {
        match revision >= self.revision {
            true => revision.max(self.snapshot.revision),
            false => revision,
        }
    }

    /// Problems of the data and of the connection.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.snapshot.problems();
        problems.extend(self.fault.as_ref().map(|fault| Problem {
            code: fault.code(),
            subject: "datastore".to_owned(),
            reason: format!("{fault}; {}", fault.remedy()),
        }));
        problems.extend(self.absent_problems());
        problems
    }

    /// One problem for each Node that is kept.
    pub fn absent_problems(&self) -> impl Iterator<Item = Problem> {
        self.absent.iter().map(|node| Problem {
            code: ProblemCode::DatastoreNodeGone,
            subject: Key::node(node).to_path(),
            reason: "the Node was deleted or lost an address, and still has blocks or reflects routes; what was known \
                     of it stays in use for a while, so that a running node can write it again"
                .to_owned(),
        })
    }

    /// True when nothing is to be written: the datastore that answers is not known to be the
    /// cluster's.
    #[must_use]
    pub fn forbids_writing(&self) -> bool {
        self.fault
            .as_ref()
            .is_some_and(DatastoreFault::forbids_writing)
    }
}

/// Orders to follow what the datastore holds although it looks like a fault.
#[derive(Clone, Debug)]
pub struct Accepter(mpsc::Sender<oneshot::Sender<Option<DatastoreFault>>>);

impl Accepter {
    /// Gives the order; answers with the fault that was accepted, `None` when there was none.
    ///
    /// # Errors
    /// The watcher has ended.
    pub async fn accept(&self) -> Result<Option<DatastoreFault>, WatcherEnded> {
        let (answer, wait) = oneshot::channel();
        self.0.send(answer).await.map_err(|_| WatcherEnded)?;
        wait.await.map_err(|_| WatcherEnded)
    }
}

/// The watcher has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the watcher of the datastore has ended")]
pub struct WatcherEnded;

/// Reader of endpoints of other nodes: changes of those wake nobody else.
#[derive(Clone, Default)]
pub struct EndpointReader(Option<Arc<Reads>>);

struct Reads {
    /// Something follows from all of them.
    all: Box<dyn Fn(&Snapshot) -> bool + Send + Sync>,
    /// Something follows from whether a workload has an address of this range.
    range: Box<dyn Fn(&Prefix) -> bool + Send + Sync>,
}

impl std::fmt::Debug for EndpointReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "EndpointReader",
            None => "no EndpointReader",
        })
    }
}

impl EndpointReader {
    /// Something follows from each endpoint while `all` says so, and otherwise from whether a
    /// workload has an address in a range of which `range` says so.
    pub fn new(
        all: impl Fn(&Snapshot) -> bool + Send + Sync + 'static,
        range: impl Fn(&Prefix) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(Reads {
            all: Box::new(all),
            range: Box::new(range),
        })))
    }

    fn reads_all(&self, snapshot: &Snapshot) -> bool {
        self.0.as_ref().is_some_and(|reads| (reads.all)(snapshot))
    }

    /// Whether a path is that of an endpoint elsewhere, or of a block, from which something
    /// follows.
    fn reads(&self, snapshot: &Snapshot, path: &str) -> bool {
        let Some(reads) = &self.0 else { return false };
        let place = path.strip_prefix(&*kind_prefix(Kind::WorkloadEndpoint));
        let Some(place) = place else {
            return matches!(Key::parse(path), Ok(Key::Block(cidr)) if (reads.range)(&cidr));
        };
        snapshot.elsewhere.get(place).is_some_and(|endpoint| {
            let networks = endpoint.networks.as_slice();
            snapshot.all_endpoints || networks.iter().any(|network| (reads.range)(network))
        })
    }
}

/// Times of the watcher, and what it keeps.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The node whose blocks and endpoints are kept whole, see [`Snapshot::whole_blocks_of`];
    /// `None` = all are.
    pub whole_blocks_of: Option<NodeName>,
    /// Reader of endpoints of other nodes.
    pub endpoint_reader: EndpointReader,
    /// What network policy is made of is kept, too ([`Snapshot::policy`]).
    pub enforces_policy: bool,
    /// Silence after which the view is lagging. A live stream is never silent for longer than a few
    /// seconds.
    pub lagging_after: Duration,
    /// Silence after which the stream is given up and opened anew.
    pub reconnect_after: Duration,
    /// Silence after which the view is stale although no error was seen.
    pub stale_after: Duration,
    /// Shortest time between two views that differ in their snapshot, for each key that is
    /// followed: small clusters wait for nothing. The first change after a quiet time passes at
    /// once.
    pub coalesce_per_key: Duration,
    /// Longest such time, however many keys there are.
    pub coalesce_limit: Duration,
    /// For how long a Node that vanished while it is in use stays in the snapshot; zero: not at
    /// all.
    pub node_grace: Duration,
    /// First pause before connecting again; doubles with every failure. Pauses are jittered, so
    /// that a cluster's nodes do not come back all at the same moment.
    pub backoff_min: Duration,
    /// Longest pause before connecting again.
    pub backoff_max: Duration,
    /// Limit for each part of a list.
    pub list_timeout: Duration,
    /// Shortest time between two log lines about a datastore that is down.
    pub log_interval: Duration,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            whole_blocks_of: None,
            endpoint_reader: EndpointReader::default(),
            enforces_policy: false,
            lagging_after: Duration::from_secs(8),
            reconnect_after: Duration::from_secs(12),
            stale_after: Duration::from_secs(20),
            coalesce_per_key: Duration::from_micros(4),
            // What a change costs its readers does not grow with the cluster; this many wakes a
            // second they can bear.
            coalesce_limit: Duration::from_millis(20),
            node_grace: Duration::ZERO,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(2),
            list_timeout: Duration::from_secs(60),
            log_interval: Duration::from_secs(30),
        }
    }
}

/// Starts the watcher on the current tokio runtime. It ends when all receivers are gone.
///
/// The first view is empty, not synced and stale. The task never gives up, whatever the datastore
/// answers. If it were to end in a panic, the last view becomes stale and the channel closes.
#[must_use]
pub fn spawn_watcher<S: PagedStore>(store: S, options: WatchOptions) -> watch::Receiver<View> {
    let (_accepter, orders) = mpsc::channel(1);
    spawn_with(store, options, None, orders)
}

/// The same with a guard: what is a fault and no order is held back. With what an earlier process
/// accepted last, the first view is that, not synced and stale.
#[must_use]
pub fn spawn_guarded_watcher<S: PagedStore>(
    store: S,
    options: WatchOptions,
    guard: GuardOptions,
) -> (watch::Receiver<View>, Accepter) {
    let (accepter, orders) = mpsc::channel(1);
    let views = spawn_with(store, options, Some(guard), orders);
    (views, Accepter(accepter))
}

fn spawn_with<S: PagedStore>(
    store: S,
    options: WatchOptions,
    guard: Option<GuardOptions>,
    orders: mpsc::Receiver<oneshot::Sender<Option<DatastoreFault>>>,
) -> watch::Receiver<View> {
    let accepted = guard.as_ref().and_then(|guard| guard.accepted.clone());
    let (snapshot, store_id, reason) = match accepted {
        None => (
            Arc::default(),
            StoreId::default(),
            "nothing was read yet".to_owned(),
        ),
        Some(accepted) => {
            let reason = format!(
                "nothing was read yet; in use is what this node remembers of revision {}",
                accepted.snapshot.revision
            );
            (accepted.snapshot, accepted.store, reason)
        }
    };
    let (sender, receiver) = watch::channel(View {
        revision: snapshot.revision,
        wakes: 0,
        snapshot,
        freshness: Freshness::Stale {
            since: Instant::now(),
            reason,
        },
        synced: false,
        fault: None,
        store: store_id,
        absent: Vec::new(),
    });
    tokio::spawn(task::Task::new(store, options, guard, orders, sender).run());
    receiver
}
