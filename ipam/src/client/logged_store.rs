//! [`LoggedStore`]: a store that reports every write before it is made, or, in a dry run, instead
//! of making it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use caracal_datastore::{ReadAnswer, Store, StoreError};
use caracal_model::{KeyRange, Txn, TxnOutcome, TxnWrite};

use crate::overlay::Overlay;

type OnWrite = Arc<dyn Fn(&TxnWrite) + Send + Sync>;

/// A store that reports its writes. Clones share the writes of a dry run, because [`Store`] asks
/// for clones; one task uses them at a time.
#[derive(Clone)]
pub struct LoggedStore<S> {
    store: S,
    on_write: OnWrite,
    dry_run: Option<Arc<Mutex<Overlay>>>,
}

impl<S: fmt::Debug> fmt::Debug for LoggedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggedStore")
            .field("store", &self.store)
            .field("dry_run", &self.dry_run.is_some())
            .finish_non_exhaustive()
    }
}

impl<S: Store> LoggedStore<S> {
    /// Reports each write, then makes it. A write whose transaction then loses a race is reported
    /// too.
    pub fn new(store: S, on_write: impl Fn(&TxnWrite) + Send + Sync + 'static) -> Self {
        Self {
            store,
            on_write: Arc::new(on_write),
            dry_run: None,
        }
    }

    /// Reports each write and makes none.
    pub fn dry_run(store: S, on_write: impl Fn(&TxnWrite) + Send + Sync + 'static) -> Self {
        Self {
            dry_run: Some(Arc::default()),
            ..Self::new(store, on_write)
        }
    }
}

impl<S: Store> Store for LoggedStore<S> {
    type Watch = S::Watch;

    async fn read(&self, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
        let mut answer = self.store.read(ranges).await?;
        if let Some(overlay) = &self.dry_run {
            let overlay = overlay.lock().unwrap_or_else(PoisonError::into_inner);
            overlay.lay_over(ranges, &mut answer.ranges);
        }
        Ok(answer)
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        let Some(overlay) = &self.dry_run else {
            txn.writes.iter().for_each(|write| (self.on_write)(write));
            return self.store.commit(txn).await;
        };
        let keys: Vec<KeyRange> = txn
            .compare
            .iter()
            .map(|compare| KeyRange::Key(compare.key().to_owned()))
            .collect();
        let stored = self.store.read(&keys).await?;
        let kept: Vec<_> = stored.ranges.into_iter().flatten().collect();
        let mut overlay = overlay.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = overlay.commit(txn, &kept, stored.revision);
        if matches!(outcome, TxnOutcome::Committed(_)) {
            txn.writes.iter().for_each(|write| (self.on_write)(write));
        }
        Ok(outcome)
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<S::Watch, StoreError> {
        self.store.watch(prefix, revision).await
    }
}
