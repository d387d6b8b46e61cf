//! Fixture of the watcher's tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caracal_model::{KeyRange, KeyValue, Txn, TxnOutcome};
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::memory::{MemoryStore, MemoryWatch};
use crate::store::{
    Cursor, FirstPages, Page, PagedStore, ReadAnswer, Store, StoreError, WatchEvent,
};
use crate::watch::{View, WatchOptions, spawn_watcher};

/// To be in sync takes a look at the revision, a list, and one of the endpoints.
pub(super) const SYNC_READS: u64 = 3;

pub(super) type Receiver = watch::Receiver<View>;

pub(super) fn key(name: &str) -> String {
    format!("/calico/resources/v3/projectcalico.org/ippools/{name}")
}

pub(super) fn pool(third: u8) -> String {
    format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"cidr":"10.0.{third}.0/24"}}}}"#)
}

pub(super) fn put(store: &MemoryStore, name: &str, third: u8) -> i64 {
    store.put(key(name), pool(third))
}

/// The third byte of a pool's CIDR.
pub(super) fn third(view: &View, name: &str) -> Option<u8> {
    let cidr = &view.snapshot.pools.get(name)?.spec.cidr;
    cidr.split('.').nth(2)?.parse().ok()
}

/// Runs a history to its end on a clock that stands still while nothing sleeps.
pub(super) fn on_paused_clock<T>(history: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(history)
}

/// A view that fulfils the condition, within an hour of virtual time.
pub(super) async fn view(
    receiver: &mut Receiver,
    what: &str,
    wanted: impl Fn(&View) -> bool,
) -> View {
    let last = receiver.clone();
    let found = timeout(Duration::from_secs(3600), receiver.wait_for(|v| wanted(v))).await;
    match found {
        Ok(view) => view.unwrap().clone(),
        Err(_) => panic!("no view with {what}; the last one: {:?}", last.borrow()),
    }
}

pub(super) async fn fresh(receiver: &mut Receiver) -> View {
    view(receiver, "fresh", View::is_current).await
}

pub(super) async fn started(store: &MemoryStore) -> Receiver {
    let mut receiver = spawn_watcher(store.clone(), WatchOptions::default());
    fresh(&mut receiver).await;
    receiver
}

/// A store whose reads panic once it is broken, and whose watches may come from another member of
/// the cluster.
#[derive(Clone)]
pub(super) struct Fragile {
    pub(super) inner: MemoryStore,
    pub(super) watched: MemoryStore,
    pub(super) broken: Arc<AtomicBool>,
}

impl Fragile {
    pub(super) fn new(inner: &MemoryStore, watched: &MemoryStore) -> Self {
        Self {
            inner: inner.clone(),
            watched: watched.clone(),
            broken: Arc::default(),
        }
    }

    fn reads(&self) -> &MemoryStore {
        assert!(!self.broken.load(Ordering::SeqCst), "broken for the test");
        &self.inner
    }
}

impl Store for Fragile {
    type Watch = MemoryWatch;

    async fn read(&self, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
        self.reads().read(ranges).await
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        self.inner.commit(txn).await
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<MemoryWatch, StoreError> {
        self.watched.watch(prefix, revision).await
    }
}

impl PagedStore for Fragile {
    async fn first_pages(&self, ranges: &[KeyRange]) -> Result<FirstPages, StoreError> {
        self.reads().first_pages(ranges).await
    }

    async fn next_page(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Page, StoreError> {
        self.reads().next_page(range, from, revision).await
    }

    async fn next_keys(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Option<Page>, StoreError> {
        self.reads().next_keys(range, from, revision).await
    }

    async fn values(&self, keys: &[String], revision: i64) -> Result<Vec<KeyValue>, StoreError> {
        self.reads().values(keys, revision).await
    }
}

/// A store whose watch is like that of Kubernetes' API: it says that it is alive without a
/// revision, and where it breaks off it goes on from where the datastore is then, or tells that it
/// cannot.
#[derive(Clone)]
pub(super) struct LikeKubernetes {
    pub(super) inner: MemoryStore,
    pub(super) goes_on: bool,
}

impl Store for LikeKubernetes {
    type Watch = BoxStream<'static, Result<WatchEvent, StoreError>>;

    async fn read(&self, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
        self.inner.read(ranges).await
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        self.inner.commit(txn).await
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Self::Watch, StoreError> {
        let Self { inner, goes_on } = self.clone();
        let (asked, oldest) = (revision, 0);
        let prefix = prefix.to_owned();
        let watch = inner.watch(&prefix, revision).await?;
        let events = stream::unfold(watch, move |mut watch| {
            let (inner, prefix) = (inner.clone(), prefix.clone());
            async move {
                let event = match watch.next().await? {
                    Ok(WatchEvent::Progress(_)) => Ok(WatchEvent::Alive),
                    Ok(event) => Ok(event),
                    Err(_) if goes_on => {
                        let revision = inner.revision();
                        watch = inner.watch(&prefix, revision + 1).await.ok()?;
                        Ok(WatchEvent::Progress(revision))
                    }
                    Err(_) => Err(StoreError::Compacted { asked, oldest }),
                };
                Some((event, watch))
            }
        });
        Ok(events.boxed())
    }
}

impl PagedStore for LikeKubernetes {
    async fn first_pages(&self, ranges: &[KeyRange]) -> Result<FirstPages, StoreError> {
        self.inner.first_pages(ranges).await
    }

    async fn next_page(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Page, StoreError> {
        self.inner.next_page(range, from, revision).await
    }

    async fn next_keys(
        &self,
        _range: &KeyRange,
        _from: &Cursor,
        _revision: i64,
    ) -> Result<Option<Page>, StoreError> {
        Ok(None)
    }

    async fn values(&self, keys: &[String], revision: i64) -> Result<Vec<KeyValue>, StoreError> {
        self.inner.values(keys, revision).await
    }
}
