//! The task that follows the leases of all nodes and renews ours.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use caracal_datastore::{Rarely, StoreError, WatchEvent};
use caracal_model::Family;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::acquire::{AcquireRequest, DeviceMac, OwnLease};
use crate::leases::{BackendSign, LeaseTable, LeaseView};
use crate::source::{LeaseChange, LeaseSource, LeaseStore, LeaseStoreError, acquire_lease};

/// Pauses between attempts: from the first, doubled up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Pause before a renewal that failed is tried again.
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// Pause before another lease that could not be written is tried again.
const CHANGE_AGAIN: Duration = Duration::from_secs(1);

/// How leases are followed.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// What this node wants: when it changes, the lease is written anew.
    pub request: watch::Receiver<AcquireRequest>,
    /// A lease is renewed this long after it was written.
    pub renew_after: Duration,
    /// etcd must have been followed for so long before anything is deleted.
    pub settle: Duration,
}

/// Starts the task that follows the leases of all nodes and keeps `own`, which was written a moment
/// ago, alive. The first view comes once etcd was read.
///
/// # Panics
/// Outside of a tokio runtime.
#[must_use]
pub fn follow_leases(
    store: LeaseStore,
    options: FollowOptions,
    own: OwnLease,
) -> watch::Receiver<Arc<LeaseView>> {
    let request = options.request.borrow().clone();
    let view = LeaseView {
        own,
        leases: LeaseTable::new(request.keys.clone()),
        revision: 0,
        connected: false,
        settled: false,
        twin: None,
    };
    let (sender, receiver) = watch::channel(Arc::new(view.clone()));
    let follower = Follower {
        renew_at: Instant::now() + options.renew_after,
        settle_at: Instant::now() + options.settle,
        source: LeaseSource::new(store, request.keys.clone(), request.config.families()),
        options,
        view,
        sender,
        is_owed: false,
        is_unanswered: false,
        told: Told::default(),
    };
    tokio::spawn(follower.run());
    receiver
}

struct Follower {
    source: LeaseSource,
    options: FollowOptions,
    view: LeaseView,
    sender: watch::Sender<Arc<LeaseView>>,
    renew_at: Instant,
    settle_at: Instant,
    /// This node wants another lease than it has.
    is_owed: bool,
    /// A renewal got no answer: it may have been written, at a revision that nobody knows.
    is_unanswered: bool,
    told: Told,
}

/// Log lines of an outage.
#[derive(Default)]
struct Told {
    following: Rarely,
    renewing: Rarely,
    lost: Rarely,
}

impl Follower {
    async fn run(mut self) {
        let mut pause = PAUSES.0;
        while !self.sender.is_closed() {
            match self.follow().await {
                Ok(()) => pause = PAUSES.0,
                Err(error) => {
                    let now = Instant::now();
                    if self.told.following.is_due(now, &error.to_string()) {
                        tracing::warn!(%error, "leases are not followed; routes stay as they are");
                    }
                    (self.view.connected, self.view.settled) = (false, false);
                    self.publish();
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    /// Lists, then watches. Ends without an error when the list has to be read again.
    async fn follow(&mut self) -> Result<(), LeaseStoreError> {
        let (revision, list) = self.source.list().await?;
        let values = list
            .iter()
            .filter_map(|(key, value, revision)| Some((&**key, value.as_deref()?, *revision)));
        let before = self.view.leases.backends();
        self.view.leases.replace(values);
        self.view.revision = revision;
        self.unsettle_after(&before);
        if !self.holds_own() {
            return self.take_again().await;
        }
        self.compare_own();
        let mut watch = self.source.watch(revision).await?;
        self.view.connected = true;
        if self.told.following.over() {
            tracing::info!(revision, "leases are followed again");
        }
        self.publish();
        if !self.view.settled {
            self.settle_at = Instant::now() + self.options.settle;
        }
        loop {
            let settle_at = self.settle_at;
            tokio::select! {
                () = self.sender.closed() => return Ok(()),
                event = watch.next() => match event {
                    Some(Ok(WatchEvent::Changes(changes))) => {
                        let changes = changes.into_iter().map(|c| (c.key, c.value, c.revision));
                        let changes = self.source.leases(changes.collect());
                        if changes.is_empty() {
                            continue;
                        }
                        self.take(changes);
                        if !self.holds_own() {
                            return self.take_again().await;
                        }
                        self.compare_own();
                        self.publish();
                    }
                    // An etcd that was set up anew or restored: what it will say is behind us.
                    Some(Ok(WatchEvent::Progress(revision))) if revision < self.view.revision => return Ok(()),
                    Some(Ok(WatchEvent::Progress(_) | WatchEvent::Alive)) => {}
                    None | Some(Err(StoreError::Compacted { .. })) => return Ok(()),
                    Some(Err(error)) => return Err(error.into()),
                },
                () = sleep_until(settle_at), if !self.view.settled => {
                    self.view.settled = true;
                    self.publish();
                }
                Ok(()) = self.options.request.changed() => {
                    self.is_owed = true;
                    self.renew_at = Instant::now();
                }
                () = sleep_until(self.renew_at) => {
                    if let Err(error) = self.renew().await {
                        let pause = match self.is_owed {
                            true => CHANGE_AGAIN,
                            false => RENEW_AGAIN.min(self.options.renew_after),
                        };
                        let now = Instant::now();
                        if self.told.renewing.is_due(now, &error.to_string()) {
                            tracing::warn!(%error, "the lease is not renewed; tried again in {} s", pause.as_secs());
                        }
                        self.renew_at = now + pause;
                    }
                    self.publish();
                }
            }
        }
    }

    /// Takes changes of leases over.
    fn take(&mut self, changes: Vec<LeaseChange>) {
        let before = self.view.leases.backends();
        for (key, value, revision) in changes {
            self.view.revision = self.view.revision.max(revision);
            self.view.leases.change(&key, value.as_deref(), revision);
        }
        self.unsettle_after(&before);
    }

    /// Takes the lease that is gone again. One that cannot be written is missed with each list.
    async fn take_again(&mut self) -> Result<(), LeaseStoreError> {
        let subnets = self.view.own.subnets.to_string();
        if self.told.lost.is_due(Instant::now(), &subnets) {
            tracing::warn!(subnets, "the own lease is gone; it is taken again");
        }
        self.renew().await?;
        self.told.lost.over();
        Ok(())
    }

    /// Takes or renews our lease.
    async fn renew(&mut self) -> Result<(), LeaseStoreError> {
        let mut request = self.options.request.borrow_and_update().clone();
        request.previous = Some(self.view.own.subnets);
        request.written = Some(self.view.own.lease.clone());
        // The device stands by now, with the address that everybody was told.
        if request.config.backend.is_that_of(&self.view.own.lease) {
            for (mac, family) in request.macs.iter_mut().zip([Family::Ipv4, Family::Ipv6]) {
                if let Some(vtep) = self.view.own.lease.vtep(family) {
                    *mac = DeviceMac::Kept(vtep.mac);
                }
            }
        }
        // Not the same choice each time.
        request.seed = request.seed.wrapping_add(self.view.revision.unsigned_abs());
        self.is_unanswered = true;
        let own = acquire_lease(&self.source.store, &request).await?;
        self.is_unanswered = false;
        self.told.renewing.over();
        if own.subnets != self.view.own.subnets {
            tracing::error!(
                before = %self.view.own.subnets, now = %own.subnets,
                "the subnets of this node have changed: somebody else has those of before. Containers keep their addresses, and are not reached until they are started anew"
            );
        }
        let key = request.keys.lease(&own.subnets);
        let before = self.view.leases.backends();
        let value = own.lease.to_json();
        self.view.leases.change(&key, Some(&value), own.revision);
        self.unsettle_after(&before);
        self.view.own = own;
        self.view.twin = None;
        self.is_owed = false;
        self.renew_at = Instant::now() + self.options.renew_after;
        Ok(())
    }

    /// Once the last lease of a backend is gone, its devices stay for a while: not everybody has
    /// heard yet what we have (FLANNEL-7).
    fn unsettle_after(&mut self, before: &BTreeSet<BackendSign>) {
        if before.is_subset(&self.view.leases.backends()) {
            return;
        }
        self.view.settled = false;
        self.settle_at = Instant::now() + self.options.settle;
    }

    /// True while the lease in etcd is this node's.
    fn holds_own(&self) -> bool {
        let own = &self.view.own;
        let there = self.view.leases.get(&own.subnets);
        there.is_some_and(|known| known.lease.is_of_same_node(&own.lease))
    }

    /// Finds out whether somebody else has written our lease. In etcd that makes it newer, also
    /// with the same value: a machine without a device yet takes the MAC address of the lease, too.
    /// A Node of Kubernetes is written for other reasons, so that its value has to differ.
    fn compare_own(&mut self) {
        let own = &self.view.own;
        let Some(known) = self.view.leases.get(&own.subnets) else {
            return;
        };
        let is_told_by_revision =
            matches!(self.source.store, LeaseStore::Etcd(_)) && !self.is_unanswered;
        let differs = is_told_by_revision || known.lease != own.lease;
        let foreign = known.revision > own.revision && differs;
        self.view.twin =
            foreign.then(|| String::from_utf8_lossy(&known.lease.to_json()).into_owned());
    }

    fn publish(&self) {
        self.sender.send_replace(Arc::new(self.view.clone()));
    }
}
