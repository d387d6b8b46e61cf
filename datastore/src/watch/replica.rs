//! The copy of the datastore: applies lists and changes to a [`Snapshot`]. Pure but for log lines.

use std::sync::Arc;

use caracal_model::{
    Applied, Family, Holders, InvalidValue, Key, KeyRange, KeyValue, Kind, KnownBlock, NodeName,
    POLICY_DATA_KINDS, POLICY_KINDS, Snapshot, Versioned, blocks_prefix, documents_prefix,
    ipam_prefix, kind_prefix, resources_prefix,
};

use super::EndpointReader;
use crate::store::Change;

/// The kinds of resources that a snapshot holds.
const KINDS: [Kind; 9] = [
    Kind::ClusterInformation,
    Kind::Node,
    Kind::IpPool,
    Kind::IpReservation,
    Kind::BgpConfiguration,
    Kind::BgpPeer,
    Kind::BgpFilter,
    Kind::FelixConfiguration,
    Kind::IpamConfiguration,
];

/// The workload endpoints, which are listed after everything else ([`Replica::is_read`]).
pub(super) fn endpoints() -> KeyRange {
    KeyRange::Prefix(kind_prefix(Kind::WorkloadEndpoint))
}

/// Ranges to list: everything else that a snapshot holds and nothing more. What policy is made of
/// only where it is enforced.
pub(super) fn scope(enforces_policy: bool) -> Vec<KeyRange> {
    let ipam = ipam_prefix();
    let mut ranges: Vec<KeyRange> = KINDS
        .into_iter()
        .map(|kind| KeyRange::Prefix(kind_prefix(kind)))
        .collect();
    let of_plural = |plural: &str| KeyRange::Prefix(format!("{}{plural}/", resources_prefix()));
    ranges.extend(POLICY_KINDS.iter().map(|(plural, _)| of_plural(plural)));
    if enforces_policy {
        for plural in POLICY_DATA_KINDS {
            let range = of_plural(plural);
            if range != endpoints() && !ranges.contains(&range) {
                ranges.push(range);
            }
        }
    }
    ranges.extend([
        KeyRange::Prefix(blocks_prefix(Family::Ipv4)),
        KeyRange::Prefix(blocks_prefix(Family::Ipv6)),
        KeyRange::Prefix(format!("{ipam}host/")),
        KeyRange::Prefix(format!("{ipam}virtual/")),
        KeyRange::Key(Key::IpamConfig.to_path()),
        KeyRange::Prefix(documents_prefix()),
    ]);
    ranges
}

/// Changes made by a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) keys: usize,
    /// The revision we were at, when the datastore is at an older one now.
    pub(super) went_back_from: Option<i64>,
}

/// The list that is being read.
#[derive(Debug)]
struct Reading {
    snapshot: Snapshot,
    /// Number of values so far.
    count: usize,
    /// Pods that blocks of other nodes account for.
    holders: Option<Holders>,
}

/// Whether the datastore is to be listed again although the watch goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ListNeed {
    None,
    /// Sometime: an endpoint may be of interest that was not when it came.
    Later,
    /// Before anything is published.
    Now,
}

/// Whether what was published last is what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum News {
    None,
    /// It differs in what is only looked up when somebody asks ([`Applied::Quiet`]).
    Quiet,
    /// Somebody has to know.
    Change,
}

#[derive(Debug)]
pub(super) struct Replica {
    scope: Vec<KeyRange>,
    enforces_policy: bool,
    /// What keys of endpoints begin with.
    endpoints: String,
    snapshot: Arc<Snapshot>,
    reading: Option<Reading>,
    need: ListNeed,
    reader: EndpointReader,
    /// Revision of the last list. What a watch tells up to here is known.
    listed: i64,
    /// The last revision heard of, also of keys that are not ours.
    revision: i64,
    news: News,
}

impl Replica {
    /// Begins with nothing, or with what an earlier process knew: the first list then removes what
    /// is gone, and a value that cannot be read any more keeps the last good one.
    pub(super) fn new(
        whole_blocks_of: Option<NodeName>,
        reader: EndpointReader,
        enforces_policy: bool,
        accepted: Option<&Arc<Snapshot>>,
    ) -> Self {
        let snapshot = accepted.cloned().unwrap_or_else(|| {
            let empty = Snapshot {
                whole_blocks_of,
                ..Snapshot::default()
            };
            Arc::new(empty.with_policy(enforces_policy))
        });
        let mut scope = scope(enforces_policy);
        scope.push(endpoints());
        Self {
            scope,
            enforces_policy,
            endpoints: kind_prefix(Kind::WorkloadEndpoint),
            reading: None,
            need: ListNeed::None,
            reader,
            listed: 0,
            revision: snapshot.revision,
            snapshot,
            news: News::None,
        }
    }

    pub(super) const fn revision(&self) -> i64 {
        self.revision
    }

    /// Nothing while a list has to come first.
    pub(super) fn news(&self) -> News {
        match self.need {
            ListNeed::Now => News::None,
            ListNeed::None | ListNeed::Later => self.news,
        }
    }

    pub(super) const fn need(&self) -> ListNeed {
        self.need
    }

    /// Number of values that are followed.
    pub(super) fn keys(&self) -> usize {
        self.snapshot.len()
    }

    /// The snapshot to publish.
    pub(super) fn take(&mut self) -> Arc<Snapshot> {
        self.news = News::None;
        Arc::clone(&self.snapshot)
    }

    /// A list begins. What is there stays until its end (WATCH-2).
    pub(super) fn begin_list(&mut self) {
        let empty = Snapshot {
            whole_blocks_of: self.snapshot.whole_blocks_of.clone(),
            ..Snapshot::default()
        };
        let empty = empty.with_policy(self.enforces_policy);
        self.reading = Some(Reading {
            snapshot: empty,
            count: 0,
            holders: Some(Holders::default()),
        });
    }

    /// Takes a part of the list over.
    pub(super) fn listed(&mut self, values: Vec<KeyValue>) {
        let Some(reading) = &mut self.reading else {
            return;
        };
        reading.count += values.len();
        for kv in values {
            let (holders, revision) = (&mut reading.holders, kv.mod_revision);
            reading
                .snapshot
                .apply_noting(&kv.key, Some(&kv.value), revision, holders);
        }
    }

    /// Everything but the endpoints is read; true when they are to be read whole, because something
    /// follows from those of other nodes.
    pub(super) fn reads_all_endpoints(&mut self) -> bool {
        let Some(reading) = &mut self.reading else {
            return false;
        };
        let all = self.reader.reads_all(&reading.snapshot);
        reading.snapshot.all_endpoints = all;
        // Without a node of its own it keeps all of them, and policies ask for all labels.
        all || reading.snapshot.whole_blocks_of.is_none() || self.enforces_policy
    }

    /// Whether the value of an endpoint is to be read: that of another node's pod that its block
    /// accounts for is not.
    pub(super) fn is_read(&self, key: &str) -> bool {
        let holders = self.reading.as_ref().and_then(|r| r.holders.as_ref());
        let place = key.strip_prefix(self.endpoints.as_str());
        match (holders, place) {
            (Some(holders), Some(place)) => !holders.include(place),
            _ => true,
        }
    }

    /// The list is complete: from now on it is what there is.
    pub(super) fn end_list(&mut self, revision: i64) -> Listed {
        let (mut next, keys) = match self.reading.take() {
            Some(reading) => (reading.snapshot, reading.count),
            None => (Snapshot::default(), 0),
        };
        next.keep_last_good(&self.snapshot);
        next.share(&self.snapshot);
        next.revision = revision;
        for (path, entry) in &next.invalid {
            let before = self.snapshot.invalid.get(path);
            if before.map(|before| &before.reason) != Some(&entry.reason) {
                log_invalid(path, entry);
            }
        }
        for path in self.snapshot.invalid.keys() {
            if !next.invalid.contains_key(path) {
                tracing::info!(key = path, revision, "the value was corrected or removed");
            }
        }
        let listed = Listed {
            keys,
            went_back_from: (revision < self.revision).then_some(self.revision),
        };
        self.snapshot = Arc::new(next);
        self.listed = revision;
        self.revision = revision;
        self.need = ListNeed::None;
        self.news = News::Change;
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
        }
    }

    fn is_in_scope(&self, path: &str) -> bool {
        self.scope.iter().any(|range| match range {
            KeyRange::Key(key) => path == key,
            KeyRange::Prefix(prefix) => path.starts_with(prefix.as_str()),
        })
    }

    fn apply(&mut self, path: &str, value: Option<&[u8]>, revision: i64) {
        let fault = self.snapshot.invalid.get(path).map(|e| e.reason.clone());
        let was_read = self.reader.reads(&self.snapshot, path);
        let block = block_at(&self.snapshot, path).cloned();
        let snapshot = Arc::make_mut(&mut self.snapshot);
        let news = match snapshot.apply(path, value, revision) {
            Applied::Ignored => return,
            Applied::Quiet if was_read => News::Change,
            Applied::Quiet => match self.reader.reads(snapshot, path) {
                true => News::Change,
                false => News::Quiet,
            },
            Applied::Changed => {
                match (fault, value) {
                    (None, _) => {}
                    (Some(_), Some(_)) => {
                        tracing::info!(key = path, revision, "the value was corrected");
                    }
                    (Some(_), None) => {
                        tracing::info!(key = path, revision, "the invalid value was removed");
                    }
                }
                News::Change
            }
            Applied::Invalid(reason) => {
                if fault.as_ref() != Some(&reason)
                    && let Some(entry) = snapshot.invalid.get(path)
                {
                    log_invalid(path, entry);
                }
                News::Change
            }
        };
        self.news = self.news.max(news);
        let all = self.reader.reads_all(&self.snapshot);
        let need = match block.map(|was| (was, block_at(&self.snapshot, path))) {
            _ if all != self.snapshot.all_endpoints => ListNeed::Now,
            Some((was, is)) => need_after(&was, is),
            None => ListNeed::None,
        };
        self.need = self.need.max(need);
    }
}

fn block_at<'a>(snapshot: &'a Snapshot, path: &str) -> Option<&'a Versioned<KnownBlock>> {
    match Key::parse(path) {
        Ok(Key::Block(cidr)) => snapshot.blocks.get(&cidr),
        _ => None,
    }
}

/// A block accounted for endpoints that were therefore not kept. Does it still?
fn need_after(was: &KnownBlock, is: Option<&Versioned<KnownBlock>>) -> ListNeed {
    match is {
        _ if was.whole().is_some() || was.workloads() == 0 => ListNeed::None,
        // Pods are there and their block is lost.
        None => ListNeed::Now,
        Some(is) if is.owner != was.owner => ListNeed::Now,
        // This node has begun to use it.
        Some(is) if is.whole().is_some() => ListNeed::Later,
        Some(_) => ListNeed::None,
    }
}

fn log_invalid(path: &str, entry: &InvalidValue) {
    let (revision, reason) = (entry.revision, &entry.reason);
    let consequence = match entry.kept_last_good {
        true => "the last good value stays in use",
        false => "the value is ignored until it is corrected",
    };
    tracing::warn!(key = path, revision, %reason, "invalid value; {consequence}");
}
