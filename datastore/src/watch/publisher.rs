//! The only writer of the [`View`]: publishes it, and wakes its readers but for a quiet change.

use std::sync::Arc;
use std::time::Duration;

use caracal_model::{NodeName, Snapshot};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{DatastoreFault, Freshness, StoreId, View, WatchOptions};

pub(super) struct Publisher {
    sender: watch::Sender<View>,
    coalesce_per_key: Duration,
    coalesce_limit: Duration,
    next: Option<Instant>,
}

impl Publisher {
    pub(super) const fn new(sender: watch::Sender<View>, options: &WatchOptions) -> Self {
        Self {
            sender,
            coalesce_per_key: options.coalesce_per_key,
            coalesce_limit: options.coalesce_limit,
            next: None,
        }
    }

    /// Returns when there is no receiver left.
    pub(super) async fn unwatched(&self) {
        self.sender.closed().await;
    }

    /// When the next snapshot may be published.
    pub(super) fn next_slot(&self, now: Instant) -> Instant {
        self.next.unwrap_or(now)
    }

    /// Publishes a snapshot of so many keys that was listed or followed.
    pub(super) fn snapshot(
        &mut self,
        now: Instant,
        snapshot: Arc<Snapshot>,
        keys: usize,
        store: StoreId,
        absent: Vec<NodeName>,
        freshness: Freshness,
    ) {
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        let gap = self.coalesce_per_key.saturating_mul(keys);
        self.next = Some(now + gap.min(self.coalesce_limit));
        self.sender.send_modify(|view| {
            log_transition(&view.freshness, &freshness, snapshot.revision);
            view.revision = snapshot.revision;
            view.wakes += 1;
            view.snapshot = snapshot;
            view.freshness = freshness;
            view.synced = true;
            view.store = store;
            view.absent = absent;
            view.fault = None;
        });
    }

    /// Lets a snapshot be seen that nobody has to be woken for.
    pub(super) fn quiet(&self, snapshot: Arc<Snapshot>) {
        self.sender.send_if_modified(|view| {
            if view.synced {
                view.snapshot = snapshot;
            }
            false
        });
    }

    /// Publishes a fault: the content of the datastore is not accepted.
    pub(super) fn fault(&mut self, fault: &DatastoreFault, freshness: Freshness) {
        self.sender.send_if_modified(|view| {
            if view.fault.as_ref() == Some(fault) && view.freshness == freshness {
                return false;
            }
            log_transition(&view.freshness, &freshness, view.snapshot.revision);
            view.fault = Some(fault.clone());
            view.freshness = freshness;
            true
        });
    }

    /// Publishes how far the view can be trusted, if that changed.
    pub(super) fn freshness(&self, freshness: Freshness) {
        self.sender.send_if_modified(|view| {
            if view.freshness == freshness {
                return false;
            }
            log_transition(&view.freshness, &freshness, view.snapshot.revision);
            view.freshness = freshness;
            true
        });
    }
}

fn log_transition(before: &Freshness, after: &Freshness, revision: i64) {
    if before.as_str() != after.as_str() {
        tracing::debug!(
            revision,
            before = before.as_str(),
            after = after.as_str(),
            reason = after.reason().unwrap_or_default(),
            "freshness"
        );
    }
}

/// The task's end is seen whatever ends it (WATCH-5).
impl Drop for Publisher {
    fn drop(&mut self) {
        if self.sender.receiver_count() == 0 {
            tracing::debug!("the watcher ended: nobody listens");
            return;
        }
        let reason = if std::thread::panicking() {
            tracing::error!("the watcher ended in a panic; the view is stale from now on");
            "the watcher ended in a panic; restart the process"
        } else {
            tracing::warn!("the watcher was stopped; the view is stale from now on");
            "the watcher was stopped"
        };
        self.freshness(Freshness::Stale {
            since: Instant::now(),
            reason: reason.to_owned(),
        });
    }
}
