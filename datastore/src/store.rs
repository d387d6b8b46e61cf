//! The [`Store`] trait: what Caracal needs of a datastore. Two implementors: etcd, and memory for
//! tests.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use caracal_model::{KeyRange, KeyValue, Prefix, Txn, TxnOutcome};
use futures_util::Stream;

/// A consistent answer to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadAnswer {
    /// Revision at which all ranges were read.
    pub revision: i64,
    /// Which datastore answered: etcd's cluster id. Zero when it does not say.
    pub cluster: u64,
    /// One list for each range, in the order asked, each sorted by key.
    pub ranges: Vec<Vec<KeyValue>>,
}

/// Where a list goes on: a key, or the place after one.
pub type Cursor = Vec<u8>;

/// A part of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its values, sorted by key.
    pub values: Vec<KeyValue>,
    /// Where the range goes on; `None` = this was the last part.
    pub next: Option<Cursor>,
}

/// The beginning of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstPages {
    /// Revision at which all ranges are read, to the end.
    pub revision: i64,
    /// Which datastore answered: etcd's cluster id. Zero when it does not say.
    pub cluster: u64,
    /// The first part of each range, in the order asked.
    pub pages: Vec<Page>,
}

/// A way to the datastore for a program that runs on the host.
#[derive(Clone, PartialEq, Eq)]
pub struct PluginAccess {
    /// A kubeconfig; holds a token.
    pub kubeconfig: String,
    /// The token's lifetime.
    pub lasts: Duration,
}

// Nothing of the token.
impl fmt::Debug for PluginAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginAccess")
            .field("lasts", &self.lasts)
            .finish_non_exhaustive()
    }
}

/// One change, as a watch tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The path.
    pub key: String,
    /// The new value; `None` = deleted.
    pub value: Option<Vec<u8>>,
    /// Revision of the change.
    pub revision: i64,
}

/// Event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// Changes of one or more revisions, in order; all changes of a revision are in one event.
    Changes(Vec<Change>),
    /// The stream is alive and the datastore is at this revision. Changes up to it may still be on
    /// their way: etcd before 3.4.25 answers progress requests ahead of queued events. So it proves
    /// that the connection works, not that everything was told.
    Progress(i64),
    /// The stream is alive, and nothing is known of the datastore's revision.
    Alive,
}

/// Why a datastore did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No connection, or no answer in time. Trying again may help. After a commit it is unknown
    /// whether the writes happened: read before trying again.
    #[error("the datastore at {endpoints} does not answer: {reason}")]
    Unavailable {
        /// Where we asked.
        endpoints: String,
        /// Description of the failure.
        reason: String,
    },
    /// The revision asked for was compacted away; list again.
    #[error("revision {asked} was compacted; the oldest is {oldest}")]
    Compacted {
        /// The revision asked for.
        asked: i64,
        /// The oldest one that is left; zero when unknown.
        oldest: i64,
    },
    /// The datastore refused: authentication, permission, limits. Trying again will not help.
    #[error("the datastore refused: {0}")]
    Refused(String),
}

impl StoreError {
    /// True when the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

/// A datastore with revisions, transactions and watches: etcd v3's contract.
pub trait Store: Clone + Send + Sync + 'static {
    /// The stream of a watch. An error ends it.
    type Watch: Stream<Item = Result<WatchEvent, StoreError>> + Send + Unpin;

    /// Reads all ranges at one revision.
    fn read(
        &self,
        ranges: &[KeyRange],
    ) -> impl Future<Output = Result<ReadAnswer, StoreError>> + Send;

    /// The ranges that the cluster's pods were given when it was made, one of a family; none where
    /// nobody says.
    fn pod_ranges(&self) -> impl Future<Output = Result<Vec<Prefix>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// The ranges that the cluster's Services were given when it was made, one of a family; none
    /// where nobody says.
    fn service_ranges(&self) -> impl Future<Output = Result<Vec<Prefix>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Carries out a transaction.
    fn commit(&self, txn: &Txn) -> impl Future<Output = Result<TxnOutcome, StoreError>> + Send;

    /// Watches everything below `prefix` from `revision` on (inclusive). Progress events arrive
    /// when nothing changes, often enough to notice a dead connection. A watch from a compacted
    /// revision ends with [`StoreError::Compacted`] as its first item. Dropping a pending `next()`
    /// loses nothing.
    fn watch(
        &self,
        prefix: &str,
        revision: i64,
    ) -> impl Future<Output = Result<Self::Watch, StoreError>> + Send;
}

/// A datastore whose lists can be read part by part, so that a large one is never in memory as a
/// whole.
pub trait PagedStore: Store {
    /// The first part of each range, all at one revision. With [`PagedStore::next_page`] it is a
    /// read that never holds more than a part in memory.
    fn first_pages(
        &self,
        ranges: &[KeyRange],
    ) -> impl Future<Output = Result<FirstPages, StoreError>> + Send;

    /// The next part of a range, at the revision of the first; from an empty cursor on the first
    /// one. [`StoreError::Compacted`] when that is gone meanwhile.
    fn next_page(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// The same without the values, which are empty. `None`: the store gives no keys without
    /// values.
    fn next_keys(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> impl Future<Output = Result<Option<Page>, StoreError>> + Send;

    /// The values of some keys, at the revision of a list; those that do not exist are left out.
    fn values(
        &self,
        keys: &[String],
        revision: i64,
    ) -> impl Future<Output = Result<Vec<KeyValue>, StoreError>> + Send;
}
