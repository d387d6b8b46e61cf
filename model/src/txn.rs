//! Requests to a datastore as values: consistent reads and compare-and-swap transactions. Cores
//! produce these; a shell carries them to etcd.

use std::time::Duration;

/// Keys to read: one key or everything below a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyRange {
    /// This key alone.
    Key(String),
    /// All keys that start with this text.
    Prefix(String),
}

/// A key with its value and the revision of its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The path in etcd.
    pub key: String,
    /// The stored octets, JSON almost always.
    pub value: Vec<u8>,
    /// etcd's ModRevision.
    pub mod_revision: i64,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key does not exist.
    Absent(String),
    /// The key's last change was at this revision.
    Unchanged(String, i64),
}

impl Compare {
    /// The key that is compared.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Absent(key) | Self::Unchanged(key, _) => key,
        }
    }
}

/// A write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnWrite {
    /// Sets a key.
    Put(String, Vec<u8>),
    /// Removes a key.
    Delete(String),
}

impl TxnWrite {
    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

/// All writes happen if all conditions hold, else none. A key is written at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold.
    pub compare: Vec<Compare>,
    /// Done together, in no order.
    pub writes: Vec<TxnWrite>,
}

impl Txn {
    /// An empty transaction.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a key that must not exist.
    #[must_use]
    pub fn create(mut self, key: impl Into<String>, value: Vec<u8>) -> Self {
        let key = key.into();
        self.compare.push(Compare::Absent(key.clone()));
        self.writes.push(TxnWrite::Put(key, value));
        self
    }

    /// Replaces a key that was last changed at `revision`.
    #[must_use]
    pub fn update(mut self, key: impl Into<String>, revision: i64, value: Vec<u8>) -> Self {
        let key = key.into();
        self.compare.push(Compare::Unchanged(key.clone(), revision));
        self.writes.push(TxnWrite::Put(key, value));
        self
    }

    /// Removes a key that was last changed at `revision`.
    #[must_use]
    pub fn delete(mut self, key: impl Into<String>, revision: i64) -> Self {
        let key = key.into();
        self.compare.push(Compare::Unchanged(key.clone(), revision));
        self.writes.push(TxnWrite::Delete(key));
        self
    }
}

/// The answer to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnOutcome {
    /// All conditions held; the writes carry this revision.
    Committed(i64),
    /// A condition did not hold; nothing was written.
    Conflict,
}

/// A value with the lease of etcd's at whose end it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedValue {
    /// Key, value and revision.
    pub stored: KeyValue,
    /// etcd's number of the lease; zero = it stays until somebody deletes it.
    pub lease: i64,
}

/// A transaction whose written values go by themselves after a while.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasedTxn {
    /// Conditions and writes.
    pub txn: Txn,
    /// How long the written values last; `None` = until somebody deletes them.
    pub ttl: Option<Duration>,
    /// One more condition: no key that starts with this text was written after this revision.
    pub unchanged_below: Option<(String, i64)>,
}
