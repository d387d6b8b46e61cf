//! [`Announced`]: a store that says every write before it makes it, and [`Announced::rehearse`]: one that only
//! says it. A rehearsal reads the real store and keeps its writes to itself, so machines run to their end as
//! they would.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use caracal_datastore::store::{ReadAnswer, Store, StoreError};
use caracal_model::txn::{Compare, KeyValue, Range, Txn, TxnOutcome, Write};

type Tell = Arc<dyn Fn(&Write) + Send + Sync>;

/// Writes that were only rehearsed: key, revision, value (`None` = deleted).
type Overlay = BTreeMap<String, (i64, Option<Vec<u8>>)>;

/// A store that announces its writes. One task uses it at a time.
#[derive(Clone)]
pub struct Announced<S> {
    store: S,
    tell: Tell,
    overlay: Option<Arc<Mutex<Overlay>>>,
}

impl<S: fmt::Debug> fmt::Debug for Announced<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announced")
            .field("store", &self.store)
            .field("rehearsal", &self.overlay.is_some())
            .finish_non_exhaustive()
    }
}

impl<S: Store> Announced<S> {
    /// Says each write, then makes it. What another client's change made impossible was said in vain.
    pub fn new(store: S, tell: impl Fn(&Write) + Send + Sync + 'static) -> Self {
        Self {
            store,
            tell: Arc::new(tell),
            overlay: None,
        }
    }

    /// Says each write and makes none.
    pub fn rehearse(store: S, tell: impl Fn(&Write) + Send + Sync + 'static) -> Self {
        Self {
            overlay: Some(Arc::default()),
            ..Self::new(store, tell)
        }
    }

    fn pretend(&self, overlay: &Mutex<Overlay>, txn: &Txn, stored: &ReadAnswer) -> TxnOutcome {
        let mut overlay = overlay.lock().unwrap_or_else(PoisonError::into_inner);
        let revision_of = |key: &str| {
            let kept = stored.ranges.iter().flatten().find(|kv| kv.key == key);
            match overlay.get(key) {
                Some((revision, value)) => value.as_ref().map(|_| *revision),
                None => kept.map(|kv| kv.mod_revision),
            }
        };
        let holds = txn.compare.iter().all(|compare| match compare {
            Compare::Absent(key) => revision_of(key).is_none(),
            Compare::Unchanged(key, revision) => revision_of(key) == Some(*revision),
        });
        if !holds {
            return TxnOutcome::Conflict;
        }
        let latest = overlay.values().map(|(revision, _)| *revision).max();
        let revision = latest.unwrap_or(0).max(stored.revision) + 1;
        for write in &txn.writes {
            (self.tell)(write);
            let (key, value) = match write {
                Write::Put(key, value) => (key, Some(value.clone())),
                Write::Delete(key) => (key, None),
            };
            overlay.insert(key.clone(), (revision, value));
        }
        TxnOutcome::Committed(revision)
    }
}

fn matches(range: &Range, key: &str) -> bool {
    match range {
        Range::Key(one) => one == key,
        Range::Prefix(prefix) => key.starts_with(prefix.as_str()),
    }
}

impl<S: Store> Store for Announced<S> {
    type Watch = S::Watch;

    async fn read(&self, ranges: &[Range]) -> Result<ReadAnswer, StoreError> {
        let mut answer = self.store.read(ranges).await?;
        if let Some(overlay) = &self.overlay {
            let overlay = overlay.lock().unwrap_or_else(PoisonError::into_inner);
            for (range, list) in ranges.iter().zip(&mut answer.ranges) {
                list.retain(|kv| !overlay.contains_key(&kv.key));
                let written = overlay.iter().filter(|(key, _)| matches(range, key));
                list.extend(written.filter_map(|(key, (revision, value))| {
                    Some(KeyValue {
                        key: key.clone(),
                        value: value.clone()?,
                        mod_revision: *revision,
                    })
                }));
                list.sort_by(|a, b| a.key.cmp(&b.key));
            }
        }
        Ok(answer)
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        let Some(overlay) = &self.overlay else {
            txn.writes.iter().for_each(|write| (self.tell)(write));
            return self.store.commit(txn).await;
        };
        let keys: Vec<Range> = txn
            .compare
            .iter()
            .map(|compare| Range::Key(compare.key().to_owned()))
            .collect();
        let stored = self.store.read(&keys).await?;
        Ok(self.pretend(overlay, txn, &stored))
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<S::Watch, StoreError> {
        self.store.watch(prefix, revision).await
    }
}
