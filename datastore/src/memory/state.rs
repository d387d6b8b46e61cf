//! The data of a [`MemoryStore`](super::MemoryStore): keys, history, watchers. Pure: no clock, no
//! waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::task::Waker;

use caracal_model::{Compare, KeyRange, KeyValue, Txn, TxnOutcome, TxnWrite};

use super::fault::Faults;
use crate::store::{Change, Cursor, Page, StoreError};

/// etcd's default limit of operations in a transaction (`--max-txn-ops`).
const MAX_TXN_OPS: usize = 128;

/// etcd's default limit of a request (`--max-request-bytes`).
const MAX_REQUEST_BYTES: usize = 1_572_864;

type Data = BTreeMap<String, (Vec<u8>, i64)>;

/// A copy of a [`MemoryStore`](super::MemoryStore)'s data, to restore later.
#[derive(Clone, Debug)]
pub struct Backup {
    revision: i64,
    compacted: i64,
    data: Data,
    history: BTreeMap<i64, Vec<Change>>,
}

#[derive(Debug)]
pub(super) struct MemoryState {
    pub(super) revision: i64,
    /// Which datastore it is.
    pub(super) cluster: u64,
    /// History up to and including this revision is gone.
    pub(super) compacted: i64,
    /// Value and revision of the last change.
    data: Data,
    /// The same at revisions at which lists are being read.
    frozen: BTreeMap<i64, Data>,
    /// Values in a part of a list.
    pub(super) page: usize,
    /// Changes by revision.
    pub(super) history: BTreeMap<i64, Vec<Change>>,
    pub(super) faults: Faults,
    /// Open watches with whom to wake.
    pub(super) watchers: BTreeMap<u64, Option<Waker>>,
    pub(super) next_watcher: u64,
    pub(super) reads: u64,
    pub(super) commits: u64,
}

impl MemoryState {
    pub(super) fn new() -> Self {
        Self {
            revision: 1,
            cluster: 1,
            compacted: 0,
            data: Data::new(),
            frozen: BTreeMap::new(),
            page: usize::MAX,
            history: BTreeMap::new(),
            faults: Faults::default(),
            watchers: BTreeMap::new(),
            next_watcher: 0,
            reads: 0,
            commits: 0,
        }
    }

    /// Keeps the present content for the parts of a list to come.
    pub(super) fn freeze(&mut self) {
        const KEPT: usize = 4;
        let data = self.data.clone();
        self.frozen.insert(self.revision, data);
        while self.frozen.len() > KEPT {
            self.frozen.pop_first();
        }
    }

    /// A part of a range at a revision that was frozen.
    pub(super) fn page(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Page, StoreError> {
        let gone = StoreError::Compacted {
            asked: revision,
            oldest: self.compacted,
        };
        let data = self.frozen.get(&revision).ok_or(gone)?;
        if revision < self.compacted {
            return Err(StoreError::Compacted {
                asked: revision,
                oldest: self.compacted,
            });
        }
        let mut values = Self::range_of(data, range);
        values.retain(|kv| kv.key.as_bytes() >= from.as_slice());
        let next = values.get(self.page).map(|kv| kv.key.clone().into_bytes());
        values.truncate(self.page);
        Ok(Page { values, next })
    }

    pub(super) fn range(&self, range: &KeyRange) -> Vec<KeyValue> {
        Self::range_of(&self.data, range)
    }

    fn range_of(data: &Data, range: &KeyRange) -> Vec<KeyValue> {
        let answer = |(key, (value, mod_revision)): (&String, &(Vec<u8>, i64))| KeyValue {
            key: key.clone(),
            value: value.clone(),
            mod_revision: *mod_revision,
        };
        match range {
            KeyRange::Key(key) => data.get_key_value(key).map(answer).into_iter().collect(),
            KeyRange::Prefix(prefix) => data
                .range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded))
                .take_while(|(key, _)| key.starts_with(prefix.as_str()))
                .map(answer)
                .collect(),
        }
    }

    pub(super) fn commit(&mut self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        check_limits(txn)?;
        if !txn.compare.iter().all(|compare| self.holds(compare)) {
            return Ok(TxnOutcome::Conflict);
        }
        self.write(&txn.writes);
        Ok(TxnOutcome::Committed(self.revision))
    }

    fn holds(&self, compare: &Compare) -> bool {
        let seen = self.data.get(compare.key()).map_or(0, |(_, rev)| *rev);
        match compare {
            Compare::Absent(_) => seen == 0,
            Compare::Unchanged(_, revision) => seen == *revision,
        }
    }

    /// All writes in one revision. As in etcd, to delete what is not there changes nothing.
    pub(super) fn write(&mut self, writes: &[TxnWrite]) {
        let revision = self.revision + 1;
        let mut changes = Vec::with_capacity(writes.len());
        for write in writes {
            let value = match write {
                TxnWrite::Put(key, value) => {
                    self.data.insert(key.clone(), (value.clone(), revision));
                    Some(value.clone())
                }
                TxnWrite::Delete(key) => {
                    if self.data.remove(key).is_none() {
                        continue;
                    }
                    None
                }
            };
            changes.push(Change {
                key: write.key().to_owned(),
                value,
                revision,
            });
        }
        if !changes.is_empty() {
            self.revision = revision;
            self.history.insert(revision, changes);
            self.wake_all();
        }
    }

    pub(super) fn compact(&mut self, revision: i64) {
        self.compacted = self.compacted.max(revision.min(self.revision));
        self.history = self.history.split_off(&(self.compacted + 1));
        self.wake_all();
    }

    pub(super) fn backup(&self) -> Backup {
        Backup {
            revision: self.revision,
            compacted: self.compacted,
            data: self.data.clone(),
            history: self.history.clone(),
        }
    }

    pub(super) fn restore(&mut self, backup: &Backup) {
        self.revision = backup.revision;
        self.compacted = backup.compacted;
        self.data = backup.data.clone();
        self.frozen.clear();
        self.history = backup.history.clone();
    }

    /// As `etcdutl snapshot restore --bump-revision --mark-compacted` does: the data of the backup,
    /// at a revision above it, and no history before.
    #[cfg(test)]
    pub(super) fn restore_bumped(&mut self, backup: &Backup, by: i64) {
        self.restore(backup);
        self.revision += by;
        self.compacted = self.revision;
        self.history.clear();
    }

    pub(super) fn wake_all(&mut self) {
        for waker in self.watchers.values_mut() {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }
}

/// Limits of etcd, so that tests meet them too.
fn check_limits(txn: &Txn) -> Result<(), StoreError> {
    let refuse = |what: String| Err(StoreError::Refused(what));
    for (what, number) in [
        ("conditions", txn.compare.len()),
        ("writes", txn.writes.len()),
    ] {
        if number > MAX_TXN_OPS {
            return refuse(format!(
                "a transaction has {number} {what}; at most {MAX_TXN_OPS} are allowed"
            ));
        }
    }
    let mut bytes = 0;
    let mut seen = BTreeSet::new();
    for write in &txn.writes {
        if write.key().is_empty() {
            return refuse("a key is empty".to_owned());
        }
        if !seen.insert(write.key()) {
            return refuse(format!("a transaction writes {} twice", write.key()));
        }
        bytes += write.key().len();
        if let TxnWrite::Put(_, value) = write {
            bytes += value.len();
        }
    }
    if bytes > MAX_REQUEST_BYTES {
        return refuse(format!(
            "a transaction has {bytes} bytes; at most {MAX_REQUEST_BYTES} are allowed"
        ));
    }
    Ok(())
}
