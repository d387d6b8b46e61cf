//! The copy of the datastore: applies lists and changes to a [`Snapshot`]. Pure but for log lines.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use caracal_model::keys::{self, Key};
use caracal_model::names::NodeName;
use caracal_model::resource::Kind;
use caracal_model::snapshot::Applied;
use caracal_model::snapshot::policy::POLICIES;
use caracal_model::txn::{KeyValue, Range};
use caracal_model::{Family, Snapshot};

use crate::store::{Change, ReadAnswer};

/// The kinds of resources that a snapshot holds.
const KINDS: [Kind; 10] = [
    Kind::ClusterInformation,
    Kind::Node,
    Kind::IpPool,
    Kind::IpReservation,
    Kind::BgpConfiguration,
    Kind::BgpPeer,
    Kind::BgpFilter,
    Kind::FelixConfiguration,
    Kind::WorkloadEndpoint,
    Kind::IpamConfiguration,
];

/// What is listed: everything a snapshot holds and nothing else.
pub(super) fn scope() -> Vec<Range> {
    let ipam = keys::ipam_prefix();
    let mut ranges: Vec<Range> = KINDS
        .into_iter()
        .map(|kind| Range::Prefix(keys::kind_prefix(kind)))
        .collect();
    let policies = POLICIES
        .iter()
        .map(|(plural, _)| Range::Prefix(format!("{}{plural}/", keys::resources_prefix())));
    ranges.extend(policies);
    ranges.extend([
        Range::Prefix(keys::blocks_prefix(Family::Ipv4)),
        Range::Prefix(keys::blocks_prefix(Family::Ipv6)),
        Range::Prefix(format!("{ipam}host/")),
        Range::Prefix(format!("{ipam}virtual/")),
        Range::Key(Key::IpamConfig.to_path()),
        Range::Prefix(keys::documents_prefix()),
    ]);
    ranges
}

/// Which value a key has, without keeping it. The revision alone is not enough: a datastore that was restored
/// counts the same revisions again with other values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    revision: i64,
    hash: u64,
}

/// What a list changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) keys: usize,
    pub(super) changed: usize,
    pub(super) removed: usize,
    /// The revision we were at, when the datastore is at an older one now.
    pub(super) went_back_from: Option<i64>,
}

#[derive(Debug)]
pub(super) struct Replica {
    scope: Vec<Range>,
    known: HashMap<String, Seen>,
    hasher: RandomState,
    snapshot: Arc<Snapshot>,
    /// Revision of the last list. What a watch tells up to here is known.
    listed: i64,
    /// The last revision heard of, also of keys that are not ours.
    revision: i64,
    dirty: bool,
}

impl Replica {
    /// Begins with nothing, or with what an earlier process knew: the first list then removes what is gone, and a value that
    /// cannot be read any more keeps the last good one.
    pub(super) fn new(whole_blocks_of: Option<NodeName>, obeyed: Option<&Arc<Snapshot>>) -> Self {
        let snapshot = obeyed.cloned().unwrap_or_else(|| {
            Arc::new(Snapshot {
                whole_blocks_of,
                ..Snapshot::default()
            })
        });
        // Whatever the values are, they are not those of the list.
        let unlike = |(path, revision)| (path, Seen { revision, hash: 0 });
        Self {
            scope: scope(),
            known: snapshot.paths().map(unlike).collect(),
            hasher: RandomState::new(),
            listed: 0,
            revision: snapshot.revision,
            snapshot,
            dirty: false,
        }
    }

    pub(super) const fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Number of keys that are followed.
    pub(super) fn keys(&self) -> usize {
        self.known.len()
    }

    /// The snapshot to publish.
    pub(super) fn take(&mut self) -> Arc<Snapshot> {
        self.dirty = false;
        Arc::clone(&self.snapshot)
    }

    /// Makes the copy equal to a complete list (WATCH-2).
    pub(super) fn list(&mut self, answer: ReadAnswer) -> Listed {
        let mut listed = Listed {
            went_back_from: (answer.revision < self.revision).then_some(self.revision),
            ..Listed::default()
        };
        let mut before = std::mem::take(&mut self.known);
        for kv in answer.ranges.into_iter().flatten() {
            listed.keys += 1;
            let seen = self.seen(kv.mod_revision, &kv.value);
            let known = before.remove(&kv.key);
            if known != Some(seen) {
                listed.changed += 1;
                self.apply(&kv.key, Some(&kv.value), kv.mod_revision);
            }
            let KeyValue { key, .. } = kv;
            self.known.insert(key, seen);
        }
        for key in before.into_keys() {
            listed.removed += 1;
            self.apply(&key, None, answer.revision);
        }
        self.listed = answer.revision;
        self.revision = answer.revision;
        if self.snapshot.revision != answer.revision {
            Arc::make_mut(&mut self.snapshot).revision = answer.revision;
            self.dirty = true;
        }
        listed
    }

    /// Applies what a watch told.
    pub(super) fn changes(&mut self, changes: Vec<Change>) {
        for change in changes {
            self.revision = self.revision.max(change.revision);
            if change.revision <= self.listed || !self.is_in_scope(&change.key) {
                continue;
            }
            self.apply(&change.key, change.value.as_deref(), change.revision);
            match change.value {
                Some(value) => {
                    let seen = self.seen(change.revision, &value);
                    self.known.insert(change.key, seen);
                }
                None => {
                    self.known.remove(&change.key);
                }
            }
        }
    }

    fn seen(&self, revision: i64, value: &[u8]) -> Seen {
        Seen {
            revision,
            hash: self.hasher.hash_one(value),
        }
    }

    fn is_in_scope(&self, path: &str) -> bool {
        self.scope.iter().any(|range| match range {
            Range::Key(key) => path == key,
            Range::Prefix(prefix) => path.starts_with(prefix.as_str()),
        })
    }

    fn apply(&mut self, path: &str, value: Option<&[u8]>, revision: i64) {
        let snapshot = Arc::make_mut(&mut self.snapshot);
        let fault = snapshot.invalid.get(path).map(|entry| entry.reason.clone());
        let applied = snapshot.apply(path, value, revision);
        match applied {
            Applied::Ignored => return,
            Applied::Changed => match (fault, value) {
                (None, _) => {}
                (Some(_), Some(_)) => {
                    tracing::info!(key = path, revision, "the value was corrected");
                }
                (Some(_), None) => {
                    tracing::info!(key = path, revision, "the invalid value was removed");
                }
            },
            Applied::Invalid(reason) => {
                if fault.as_ref() != Some(&reason) {
                    let kept = snapshot
                        .invalid
                        .get(path)
                        .is_some_and(|entry| entry.kept_last_good);
                    let consequence = if kept {
                        "the last good value stays in use"
                    } else {
                        "the value is ignored until it is corrected"
                    };
                    tracing::warn!(key = path, revision, %reason, "invalid value; {consequence}");
                }
            }
        }
        self.dirty = true;
    }
}
