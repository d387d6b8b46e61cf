//! [`MemoryStore`]: a datastore in memory with etcd's contract and faults on demand, for tests.
//!
//! It keeps the whole contract of [`Store`]: revisions, atomic transactions, watches with
//! history, compaction. It also does what a real datastore does on a bad day, when told to: see
//! [`CommitFault`]. It uses no clock but tokio's, so it runs under `tokio::time::pause`. It must
//! never be used to hold data that matters: everything is gone with the last handle.

mod fault;
mod state;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use caracal_model::{KeyRange, KeyValue, Txn, TxnOutcome, TxnWrite};

pub use self::fault::CommitFault;
pub(crate) use self::state::Backup;
use self::state::MemoryState;
pub(crate) use self::watch::MemoryWatch;
use crate::store::{Cursor, FirstPages, Page, PagedStore, ReadAnswer, Store, StoreError};

/// Interval of the progress events of a quiet watch.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// A datastore in memory. Clones share the data.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    state: Arc<Mutex<MemoryState>>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty datastore, at revision 1 as a fresh etcd.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Arc::new(Mutex::new(MemoryState::new())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        self.state
            .lock()
            .expect("invariant: no code panics while it holds the lock")
    }

    /// Sets a key without a condition and without faults. Returns the revision.
    pub fn put(&self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> i64 {
        self.write(vec![TxnWrite::Put(key.into(), value.into())])
    }

    /// Removes a key without a condition and without faults. Returns the revision.
    pub fn delete(&self, key: impl Into<String>) -> i64 {
        self.write(vec![TxnWrite::Delete(key.into())])
    }

    /// Carries out writes in one revision, without a condition and without faults. Returns the
    /// revision.
    pub fn write(&self, writes: Vec<TxnWrite>) -> i64 {
        let mut state = self.lock();
        state.write(&writes);
        state.revision
    }

    /// Carries out a transaction at once and without faults.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where etcd would refuse too.
    pub fn apply(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        self.lock().commit(txn)
    }

    /// One key's value with its revision.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<KeyValue> {
        self.lock()
            .range(&KeyRange::Key(key.to_owned()))
            .into_iter()
            .next()
    }

    /// All keys below a prefix, sorted.
    #[must_use]
    pub fn list(&self, prefix: &str) -> Vec<KeyValue> {
        self.lock().range(&KeyRange::Prefix(prefix.to_owned()))
    }

    /// Forgets the history up to and including `revision`; at most up to the current revision.
    pub fn compact(&self, revision: i64) {
        self.lock().compact(revision);
    }

    /// A copy of the data.
    #[must_use]
    pub fn backup(&self) -> Backup {
        self.lock().backup()
    }

    /// Puts the data and the revision of a backup in place, and cuts all watches, as a restart
    /// would.
    pub fn restore(&self, backup: &Backup) {
        let mut state = self.lock();
        state.restore(backup);
        state.faults.cut("restored from a backup (scripted)");
        state.wake_all();
    }

    /// The same with a revision that is so much above that of the backup.
    #[cfg(test)]
    pub(crate) fn restore_bumped(&self, backup: &Backup, by: i64) {
        let mut state = self.lock();
        state.restore_bumped(backup, by);
        state.faults.cut("restored from a backup (scripted)");
        state.wake_all();
    }

    /// The current revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.lock().revision
    }

    /// Makes it another datastore, as a member that was set up anew is one.
    pub fn set_cluster(&self, cluster: u64) {
        self.lock().cluster = cluster;
    }

    /// Sets how many values a part of a list has; as many as there are unless this says else.
    #[cfg(test)]
    pub(crate) fn set_page(&self, values: usize) {
        self.lock().page = values;
    }

    /// How many times [`Store::read`] was called, and the parts of a list were.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.lock().reads
    }

    /// How many times [`Store::commit`] was called.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.lock().commits
    }

    /// How many watches are open.
    #[must_use]
    pub fn watches(&self) -> usize {
        self.lock().watchers.len()
    }

    /// Waits for the scripted latency, then fails if the store is unavailable.
    async fn arrive(&self) -> Result<(), StoreError> {
        let latency = self.lock().faults.latency;
        if latency.is_zero() {
            // Lets other tasks in between, as a network would.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(latency).await;
        }
        self.lock().faults.check_available()
    }
}

impl Store for MemoryStore {
    type Watch = MemoryWatch;

    async fn read(&self, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
        self.lock().reads += 1;
        self.arrive().await?;
        let mut state = self.lock();
        state.faults.next_read()?;
        Ok(ReadAnswer {
            revision: state.revision,
            cluster: state.cluster,
            ranges: ranges.iter().map(|range| state.range(range)).collect(),
        })
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        self.lock().commits += 1;
        self.arrive().await?;
        let (hook, fault) = self.lock().faults.next_commit();
        if let Some(hook) = hook {
            hook(self);
        }
        match fault {
            None => self.apply(txn),
            Some(CommitFault::Conflict) => Ok(TxnOutcome::Conflict),
            Some(CommitFault::Lost) => Err(fault::unavailable("the request was lost (scripted)")),
            Some(CommitFault::AnswerLost) => {
                self.apply(txn)?;
                Err(fault::unavailable("the answer was lost (scripted)"))
            }
            Some(CommitFault::Refused(reason)) => Err(StoreError::Refused(reason)),
        }
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Self::Watch, StoreError> {
        self.arrive().await?;
        Ok(MemoryWatch::open(
            Arc::clone(&self.state),
            prefix.to_owned(),
            revision,
        ))
    }
}

impl PagedStore for MemoryStore {
    async fn first_pages(&self, ranges: &[KeyRange]) -> Result<FirstPages, StoreError> {
        self.lock().reads += 1;
        self.arrive().await?;
        let mut state = self.lock();
        state.faults.next_read()?;
        state.freeze();
        let page = |range| state.page(range, &Cursor::new(), state.revision);
        Ok(FirstPages {
            revision: state.revision,
            cluster: state.cluster,
            pages: ranges.iter().map(page).collect::<Result<_, _>>()?,
        })
    }

    async fn next_page(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Page, StoreError> {
        self.lock().reads += 1;
        self.arrive().await?;
        let mut state = self.lock();
        state.faults.next_read()?;
        state.page(range, from, revision)
    }

    async fn next_keys(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Option<Page>, StoreError> {
        let mut page = self.next_page(range, from, revision).await?;
        page.values.iter_mut().for_each(|kv| kv.value.clear());
        Ok(Some(page))
    }

    async fn values(&self, keys: &[String], revision: i64) -> Result<Vec<KeyValue>, StoreError> {
        self.lock().reads += 1;
        self.arrive().await?;
        let mut state = self.lock();
        state.faults.next_read()?;
        let one = |key: &String| {
            let page = state.page(&KeyRange::Key(key.clone()), &Cursor::new(), revision)?;
            Ok(page.values)
        };
        let found: Result<Vec<_>, StoreError> = keys.iter().map(one).collect();
        Ok(found?.into_iter().flatten().collect())
    }
}
