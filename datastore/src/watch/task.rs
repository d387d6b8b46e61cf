//! The watcher task: list, watch, follow; and again when the stream ends.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use caracal_model::{CALICO_ROOT, KeyRange};
use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::absence::Absences;
use super::guard::{DatastoreFault, Guard, GuardOptions, Heard, StoreId};
use super::liveness::Liveness;
use super::outage::{Outage, jittered};
use super::publisher::Publisher;
use super::replica::{self, ListNeed, News, Replica};
use super::{Freshness, View, WatchOptions};
use crate::store::{Cursor, FirstPages, PagedStore, StoreError, WatchEvent};

/// Shortest time from a list to the next one that is not urgent.
const LIST_PAUSE: Duration = Duration::from_secs(10);

/// Why following the datastore broke off.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the watch said nothing for {} ms, not even that it is alive", .0.as_millis())]
    Silent(Duration),
    #[error("the watch ended without an error")]
    Ended,
    #[error("the datastore went back to an older revision while it was read")]
    WentBack,
    #[error("the {what} took longer than {} ms", .limit.as_millis())]
    Timeout { what: &'static str, limit: Duration },
    /// Nobody listens any more; not a failure.
    #[error("nobody listens")]
    Unwatched,
}

pub(super) struct Task<S> {
    store: S,
    options: WatchOptions,
    publisher: Publisher,
    replica: Replica,
    /// Which datastore the last list came from.
    listed: StoreId,
    /// The last revision that a list or the watch told of.
    heard: Option<Heard>,
    /// The watch has told of a revision that the datastore cannot have by now.
    outrun: bool,
    guard: Option<Guard>,
    absences: Absences,
    /// Why the content of the datastore is not accepted, and since when.
    fault: Option<(DatastoreFault, Instant)>,
    /// Orders to obey it all the same.
    orders: mpsc::Receiver<oneshot::Sender<Option<DatastoreFault>>>,
    liveness: Liveness,
    outage: Outage,
    /// Failures since a stream was last heard from.
    failures: u32,
}

impl<S: PagedStore> Task<S> {
    pub(super) fn new(
        store: S,
        options: WatchOptions,
        guard: Option<GuardOptions>,
        orders: mpsc::Receiver<oneshot::Sender<Option<DatastoreFault>>>,
        sender: watch::Sender<View>,
    ) -> Self {
        let accepted = guard.as_ref().and_then(|guard| guard.accepted.as_ref());
        let accepted = accepted.map(|accepted| &accepted.snapshot);
        Self {
            store,
            publisher: Publisher::new(sender, &options),
            replica: Replica::new(
                options.whole_blocks_of.clone(),
                options.endpoint_reader.clone(),
                options.enforces_policy,
                accepted,
            ),
            listed: StoreId::default(),
            heard: None,
            outrun: false,
            absences: Absences::new(options.node_grace, accepted),
            guard: guard.map(Guard::new),
            fault: None,
            orders,
            liveness: Liveness::new(Instant::now()),
            outage: Outage::new(options.log_interval),
            failures: 0,
            options,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let broken = match self.sync_and_follow().await {
                Ok(never) => match never {},
                Err(broken) => broken,
            };
            if matches!(broken, Broken::Unwatched) {
                return;
            }
            let pause = self.broke(&broken);
            if self.attend(tokio::time::sleep(pause)).await.is_err() {
                return;
            }
        }
    }

    async fn sync_and_follow(&mut self) -> Result<Infallible, Broken> {
        // The stream stands before the list begins. Were it opened after the list, a datastore that
        // is restored from a backup in between, and counts on past the list's revision, would go
        // unnoticed.
        let before = self.begin("look at the revision", &[]).await?.revision;
        let mut stream = self.open(before + 1).await?;
        self.list(before).await?;
        let now = Instant::now();
        self.liveness.following(now);
        // The first event may be long in coming.
        self.outage.over(now, self.replica.revision());
        self.publish();
        let mut listed = Instant::now();
        loop {
            match self.attend(stream.next()).await? {
                Some(event) => self.on_event(event?),
                None => return Err(Broken::Ended),
            }
            let lists = match self.replica.need() {
                ListNeed::None => false,
                ListNeed::Later => listed.elapsed() >= LIST_PAUSE,
                ListNeed::Now => true,
            };
            if lists || self.outrun {
                self.list(self.replica.revision()).await?;
                listed = Instant::now();
                self.publish();
            }
        }
    }

    async fn begin(
        &mut self,
        what: &'static str,
        ranges: &[KeyRange],
    ) -> Result<FirstPages, Broken> {
        let store = self.store.clone();
        let limit = self.options.list_timeout;
        let answer = self
            .attend(timeout(limit, store.first_pages(ranges)))
            .await?;
        Ok(answer.map_err(|_| Broken::Timeout { what, limit })??)
    }

    /// Reads everything at one revision, part by part: what is read is decoded at once and not
    /// kept.
    async fn list(&mut self, least: i64) -> Result<(), Broken> {
        let scope = replica::scope(self.options.enforces_policy);
        let first = self.begin("list", &scope).await?;
        let revision = first.revision;
        if revision < least {
            return Err(Broken::WentBack);
        }
        self.replica.begin_list();
        let store = self.store.clone();
        for (mut page, range) in first.pages.into_iter().zip(&scope) {
            loop {
                self.replica.listed(page.values);
                let Some(next) = page.next else { break };
                page = self.part(store.next_page(range, &next, revision)).await?;
            }
        }
        self.list_endpoints(revision).await?;
        self.take_over(first.cluster, revision);
        Ok(())
    }

    /// Reads the endpoints, of which most are other nodes': of those that blocks account for only
    /// the keys.
    async fn list_endpoints(&mut self, revision: i64) -> Result<(), Broken> {
        let (store, range) = (self.store.clone(), replica::endpoints());
        let mut keys_alone = !self.replica.reads_all_endpoints();
        let mut from = Some(Cursor::new());
        while let Some(cursor) = from {
            let mut page = None;
            if keys_alone {
                page = self
                    .part(store.next_keys(&range, &cursor, revision))
                    .await?;
                keys_alone = page.is_some();
            }
            let (next, values) = match page {
                Some(page) => {
                    let keys = page.values.into_iter().map(|kv| kv.key);
                    let keys: Vec<String> = keys.filter(|k| self.replica.is_read(k)).collect();
                    let values = match keys.is_empty() {
                        true => Vec::new(),
                        false => self.part(store.values(&keys, revision)).await?,
                    };
                    (page.next, values)
                }
                None => {
                    let page = self
                        .part(store.next_page(&range, &cursor, revision))
                        .await?;
                    (page.next, page.values)
                }
            };
            self.replica.listed(values);
            from = next;
        }
        Ok(())
    }

    /// Waits for a part of the list.
    async fn part<T>(
        &mut self,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Broken> {
        let limit = self.options.list_timeout;
        let answer = self.attend(timeout(limit, asked)).await?;
        let what = "next part of the list";
        Ok(answer.map_err(|_| Broken::Timeout { what, limit })??)
    }

    async fn open(&mut self, revision: i64) -> Result<S::Watch, Broken> {
        let store = self.store.clone();
        let limit = self.options.list_timeout;
        // One stream over everything, so that a transaction's changes arrive together (WATCH-1).
        let open = timeout(limit, store.watch(CALICO_ROOT, revision));
        Ok(self.attend(open).await?.map_err(|_| Broken::Timeout {
            what: "opening of the watch",
            limit,
        })??)
    }

    fn take_over(&mut self, cluster: u64, revision: i64) {
        self.listed = StoreId(cluster);
        let at = Instant::now();
        let heard = self.heard.replace(Heard { revision, at });
        self.outrun = false;
        if let Some(guard) = &mut self.guard {
            let outrun = heard.map(|heard| heard.is_outrun_by(revision, at));
            guard.listed(self.listed, revision, outrun);
        }
        let listed = self.replica.end_list(revision);
        if let Some(before) = listed.went_back_from {
            tracing::warn!(
                revision,
                before,
                "the datastore is at an older revision than before: it was restored from a backup or \
                 replaced"
            );
        }
        tracing::debug!(revision, keys = listed.keys, "listed the datastore");
    }

    fn on_event(&mut self, event: WatchEvent) {
        let now = Instant::now();
        match event {
            WatchEvent::Changes(changes) => self.replica.changes(changes),
            // A member that lags far behind, or a datastore that was restored between list and
            // watch: it is alive, but will not tell us what we miss. As silent as a dead one.
            WatchEvent::Progress(revision) if revision < self.replica.revision() => {
                return self.tick();
            }
            WatchEvent::Progress(revision) => self.hear(revision, now),
            WatchEvent::Alive => {}
        }
        let told = self.replica.revision();
        if self.heard.is_none_or(|heard| heard.revision < told) {
            self.hear(told, now);
        }
        self.failures = 0;
        self.liveness.heard(now);
        self.outage.over(now, self.replica.revision());
        self.tick();
    }

    /// Notes where the datastore is. One that cannot have come so far is another one, or restored:
    /// its watch went on, and what it lacks is seen in a list.
    fn hear(&mut self, revision: i64, now: Instant) {
        match &self.heard {
            Some(heard) if heard.is_outrun_by(revision, now) => self.outrun = true,
            _ => self.heard = Some(Heard { revision, at: now }),
        }
    }

    /// Notes a failure; says how long to pause.
    fn broke(&mut self, broken: &Broken) -> Duration {
        self.failures += 1;
        let now = Instant::now();
        let reason = broken.to_string();
        if let Broken::Store(StoreError::Compacted { .. }) = broken {
            tracing::info!(%reason, "the watch fell behind; listing again");
            self.liveness.behind(reason);
        } else {
            self.outage.failed(now, &reason);
            self.liveness.lost(reason);
        }
        self.tick();
        let compacted = matches!(broken, Broken::Store(StoreError::Compacted { .. }));
        if compacted && self.failures == 1 {
            return Duration::ZERO;
        }
        let doubled = 1 << (self.failures - 1).min(16);
        let pause = self.options.backoff_min.saturating_mul(doubled);
        jittered(pause.min(self.options.backoff_max))
    }

    /// Waits for something while the view ages and pending changes are published in time.
    async fn attend<T>(&mut self, something: impl Future<Output = T>) -> Result<T, Broken> {
        let mut something = std::pin::pin!(something);
        loop {
            let now = Instant::now();
            if self.liveness.is_dead(now, &self.options) {
                return Err(Broken::Silent(self.options.reconnect_after));
            }
            let ages = self.liveness.next_deadline(now, &self.options);
            let changed = self.replica.news() == News::Change;
            let publishes = changed.then(|| self.publisher.next_slot(now));
            let absent = self.absence_ends();
            let deadline = [ages, publishes, absent].into_iter().flatten().min();
            tokio::select! {
                biased;
                () = self.publisher.unwatched() => return Err(Broken::Unwatched),
                Some(answer) = self.orders.recv() => self.accept(answer),
                outcome = &mut something => return Ok(outcome),
                () = sleep_until(deadline.unwrap_or(now)), if deadline.is_some() => self.tick(),
            }
        }
    }

    /// Somebody says that what is there is to be accepted.
    fn accept(&mut self, answer: oneshot::Sender<Option<DatastoreFault>>) {
        let fault = self.fault.as_ref().map(|(fault, _)| fault.clone());
        if let (Some(fault), Some(guard)) = (&fault, &mut self.guard) {
            tracing::warn!(reason = %fault, "what the datastore holds was accepted and is followed");
            guard.accept();
            self.publish();
        }
        // The caller may have gone.
        let _ = answer.send(fault);
    }

    /// How far the view can be trusted: content that is not accepted makes it stale.
    fn freshness(&self, now: Instant) -> Freshness {
        let freshness = self.liveness.freshness(now, &self.options);
        match (&self.fault, &freshness) {
            (Some((fault, since)), Freshness::Fresh | Freshness::Lagging { .. }) => {
                Freshness::Stale {
                    since: *since,
                    reason: fault.to_string(),
                }
            }
            _ => freshness,
        }
    }

    /// When the grace of a Node that is gone ends; never while nothing of what is there is
    /// followed.
    fn absence_ends(&self) -> Option<Instant> {
        self.absences
            .next_deadline()
            .filter(|_| self.fault.is_none())
    }

    /// Publishes what is due.
    fn tick(&mut self) {
        let now = Instant::now();
        let changed = self.replica.news() == News::Change && self.publisher.next_slot(now) <= now;
        if changed || self.absence_ends().is_some_and(|end| end <= now) {
            self.publish();
            return;
        }
        if self.replica.news() == News::Quiet {
            self.publish_quietly(now);
        }
        self.publisher.freshness(self.freshness(now));
    }

    /// Publishes without waking receivers that wait for a change.
    fn publish_quietly(&mut self, now: Instant) {
        let snapshot = self.replica.take();
        // A snapshot that the guard does not accept is kept back as a whole.
        if self.fault.is_none() {
            if let Some(guard) = &mut self.guard {
                guard.follow(&snapshot);
            }
            let snapshot = self.absences.follow(now, snapshot);
            self.publisher.quiet(snapshot);
        }
    }

    fn publish(&mut self) {
        let now = Instant::now();
        let keys = self.replica.keys();
        let snapshot = self.replica.take();
        let guard = self.guard.as_mut();
        let fault = guard.and_then(|guard| guard.judge(&snapshot, self.listed));
        let before = self.fault.take();
        let Some(fault) = fault else {
            if let Some((fault, since)) = before {
                let seconds = (now - since).as_secs();
                tracing::info!(seconds, was = %fault, "the datastore is accepted again");
            }
            let freshness = self.freshness(now);
            let snapshot = self.absences.fill(now, snapshot);
            let absent = self.absences.nodes();
            self.publisher
                .snapshot(now, snapshot, keys, self.listed, absent, freshness);
            return;
        };
        let since = before.as_ref().map_or(now, |(_, since)| *since);
        if before.is_none_or(|(known, _)| known != fault) {
            let (code, revision) = (fault.code(), self.replica.revision());
            tracing::error!(%code, revision, "{fault}; {}", fault.remedy());
        }
        self.fault = Some((fault.clone(), since));
        let freshness = self.freshness(now);
        self.publisher.fault(&fault, freshness);
    }
}
