//! The task that follows the leases of all nodes and renews ours.

use std::sync::Arc;
use std::time::Duration;

use caracal_datastore::{StoreError, WatchEvent};
use caracal_model::Family;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::acquire::{AcquireRequest, DeviceMac, OwnLease};
use crate::leases::{LeaseTable, LeaseView};
use crate::source::{LeaseSource, LeaseStore, LeaseStoreError, acquire_lease};

/// Pauses between attempts: from the first, doubled up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Pause before a renewal that failed is tried again.
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// How leases are followed.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// What this node wants.
    pub request: AcquireRequest,
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
    let view = LeaseView {
        own,
        leases: LeaseTable::new(options.request.keys.clone()),
        revision: 0,
        connected: false,
        settled: false,
        twin: None,
    };
    let (sender, receiver) = watch::channel(Arc::new(view.clone()));
    let follower = Follower {
        renew_at: Instant::now() + options.renew_after,
        source: LeaseSource::new(store, &options.request),
        options,
        view,
        sender,
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
}

impl Follower {
    async fn run(mut self) {
        let mut pause = PAUSES.0;
        while !self.sender.is_closed() {
            match self.follow().await {
                Ok(()) => pause = PAUSES.0,
                Err(error) => {
                    if self.view.connected || pause == PAUSES.0 {
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
        self.view.leases.replace(values);
        self.view.revision = revision;
        if !self.holds_own() {
            tracing::warn!(subnets = %self.view.own.subnets, "the own lease is gone; it is taken again");
            self.renew().await?;
            return Ok(());
        }
        self.compare_own();
        let mut watch = self.source.watch(revision).await?;
        self.view.connected = true;
        self.publish();
        let settle_at = Instant::now() + self.options.settle;
        loop {
            tokio::select! {
                () = self.sender.closed() => return Ok(()),
                event = watch.next() => match event {
                    Some(Ok(WatchEvent::Changes(changes))) => {
                        let changes = changes.into_iter().map(|c| (c.key, c.value, c.revision));
                        let changes = self.source.leases(changes.collect());
                        if changes.is_empty() {
                            continue;
                        }
                        for (key, value, revision) in changes {
                            self.view.revision = self.view.revision.max(revision);
                            self.view.leases.change(&key, value.as_deref(), revision);
                        }
                        if !self.holds_own() {
                            tracing::warn!(subnets = %self.view.own.subnets, "the own lease is gone; it is taken again");
                            self.renew().await?;
                            return Ok(());
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
                () = sleep_until(self.renew_at) => {
                    if let Err(error) = self.renew().await {
                        tracing::warn!(%error, "the lease is not renewed; tried again in {} s", RENEW_AGAIN.as_secs());
                        self.renew_at = Instant::now() + RENEW_AGAIN.min(self.options.renew_after);
                    }
                    self.publish();
                }
            }
        }
    }

    /// Takes or renews our lease.
    async fn renew(&mut self) -> Result<(), LeaseStoreError> {
        let mut request = self.options.request.clone();
        request.previous = Some(self.view.own.subnets);
        // The device stands by now, with the address that everybody was told.
        for (mac, family) in request.macs.iter_mut().zip([Family::Ipv4, Family::Ipv6]) {
            if let Some(vtep) = self.view.own.lease.vtep(family) {
                *mac = DeviceMac::Kept(vtep.mac);
            }
        }
        // Not the same choice each time.
        request.seed = request.seed.wrapping_add(self.view.revision.unsigned_abs());
        let own = acquire_lease(&self.source.store, &request).await?;
        if own.subnets != self.view.own.subnets {
            tracing::error!(
                before = %self.view.own.subnets, now = %own.subnets,
                "the subnets of this node have changed: somebody else has those of before. Containers keep their addresses, and are not reached until they are started anew"
            );
        }
        self.view.own = own;
        self.view.twin = None;
        self.renew_at = Instant::now() + self.options.renew_after;
        Ok(())
    }

    /// True while the lease in etcd is this node's.
    fn holds_own(&self) -> bool {
        let own = &self.view.own;
        let there = self.view.leases.get(&own.subnets);
        there.is_some_and(|known| known.lease.public_ip == own.lease.public_ip)
    }

    /// Finds out whether somebody else has written our lease.
    fn compare_own(&mut self) {
        let own = &self.view.own;
        let Some(known) = self.view.leases.get(&own.subnets) else {
            return;
        };
        let foreign = known.revision > own.revision && known.lease != own.lease;
        self.view.twin =
            foreign.then(|| String::from_utf8_lossy(&known.lease.to_json()).into_owned());
    }

    fn publish(&self) {
        self.sender.send_replace(Arc::new(self.view.clone()));
    }
}
