//! The stage of the tests: a transactional store of 40 lines for machines, and resources to put
//! into any store.

pub mod actor;

use std::collections::BTreeMap;
use std::fmt;

use caracal_datastore::{CommitStep, StepResult};
use caracal_ipam::{MAX_OPERATIONS, Reading};
use caracal_model::{
    Compare, IpPool, IpamConfig, Key, KeyRange, KeyValue, Kind, Node, NodeSpec, Timestamp, Txn,
    TxnOutcome, TxnWrite,
};

/// 2026-01-05T10:12:00.5Z.
pub const NOW: Timestamp = Timestamp::from_nanos(1_767_607_920_500_000_000);

/// `NOW` plus seconds.
pub fn after(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(NOW.nanos() + seconds * 1_000_000_000)
}

/// etcd's contract, as far as machines see it.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct World {
    pub keys: BTreeMap<String, (i64, Vec<u8>)>,
    pub revision: i64,
    /// True: a store of single objects, in which transactions are ordered writes.
    pub ordered: bool,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ipam = self.keys.iter().filter(|(key, _)| key.contains("/ipam/"));
        for (key, (revision, value)) in ipam {
            writeln!(f, "{key} @{revision} {}", String::from_utf8_lossy(value))?;
        }
        write!(f, "@{}", self.revision)
    }
}

impl World {
    pub fn read(&self, ranges: &[KeyRange]) -> Reading {
        let matches = |range: &KeyRange, key: &str| match range {
            KeyRange::Key(one) => one == key,
            KeyRange::Prefix(prefix) => key.starts_with(prefix.as_str()),
        };
        let list = |range: &KeyRange| {
            let found = self.keys.iter().filter(|(key, _)| matches(range, key));
            found
                .map(|(key, (mod_revision, value))| KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                    mod_revision: *mod_revision,
                })
                .collect()
        };
        Reading {
            revision: self.revision,
            ranges: ranges.iter().map(list).collect(),
        }
    }

    /// One call of an API of single objects, each with compare-and-swap.
    pub fn execute(&mut self, order: &CommitStep) -> StepResult {
        let txn = match order {
            CommitStep::Look(keys) => {
                let keys: Vec<KeyRange> = keys.iter().cloned().map(KeyRange::Key).collect();
                return StepResult::Found(self.read(&keys).ranges.concat());
            }
            CommitStep::Create(key, value) => Txn::new().create(key, value.clone()),
            CommitStep::Replace(key, revision, value) => {
                Txn::new().update(key, *revision, value.clone())
            }
            CommitStep::Delete(key, revision) => Txn::new().delete(key, *revision),
            CommitStep::Done(_) => panic!("the end is no order"),
        };
        match self.commit(&txn) {
            TxnOutcome::Committed(revision) => StepResult::Written(revision),
            TxnOutcome::Conflict => StepResult::Conflict,
        }
    }

    pub fn commit(&mut self, txn: &Txn) -> TxnOutcome {
        // IPAM-5, and etcd's own rules.
        for write in &txn.writes {
            let compared = txn.compare.iter().any(|c| c.key() == write.key());
            assert!(compared, "{} is written without comparison", write.key());
            let times = txn.writes.iter().filter(|w| w.key() == write.key()).count();
            assert_eq!(times, 1, "{} is written twice", write.key());
        }
        let most = txn.compare.len().max(txn.writes.len());
        assert!(
            most <= MAX_OPERATIONS,
            "etcd does not take {most} operations"
        );
        let holds = txn.compare.iter().all(|compare| match compare {
            Compare::Absent(key) => !self.keys.contains_key(key),
            Compare::Unchanged(key, revision) => {
                self.keys.get(key).is_some_and(|(r, _)| r == revision)
            }
        });
        if !holds {
            return TxnOutcome::Conflict;
        }
        self.revision += 1;
        for write in &txn.writes {
            match write {
                TxnWrite::Put(key, value) => {
                    let stored = (self.revision, value.clone());
                    self.keys.insert(key.clone(), stored);
                }
                TxnWrite::Delete(key) => {
                    self.keys.remove(key).expect("deletes what exists");
                }
            }
        }
        TxnOutcome::Committed(self.revision)
    }

    pub fn put(&mut self, (key, value): (String, Vec<u8>)) {
        self.revision += 1;
        self.keys.insert(key, (self.revision, value));
    }

    pub fn with(mut self, entry: (String, Vec<u8>)) -> Self {
        self.put(entry);
        self
    }
}

pub fn pool(name: &str, cidr: &str, block_size: u8) -> (String, Vec<u8>) {
    pool_with(name, cidr, block_size, |_| {})
}

pub fn pool_with(
    name: &str,
    cidr: &str,
    block_size: u8,
    change: impl FnOnce(&mut IpPool),
) -> (String, Vec<u8>) {
    let mut pool = IpPool::new(name, caracal_model::IpPoolSpec::default());
    pool.spec.cidr = cidr.to_owned();
    pool.spec.block_size = block_size;
    change(&mut pool);
    let value = pool.to_json();
    IpPool::from_json(&value).expect("the test's pool is valid");
    (Key::resource(Kind::IpPool, name).to_path(), value)
}

pub fn node(name: &str) -> (String, Vec<u8>) {
    node_with(name, |_| {})
}

pub fn node_with(name: &str, change: impl FnOnce(&mut Node)) -> (String, Vec<u8>) {
    let mut node = Node::new(name, NodeSpec::default());
    change(&mut node);
    (Key::node(&name.into()).to_path(), node.to_json())
}

pub fn config(change: impl FnOnce(&mut IpamConfig)) -> (String, Vec<u8>) {
    let mut config = IpamConfig::default();
    change(&mut config);
    (Key::IpamConfig.to_path(), config.to_json())
}
