//! What each node publishes of itself for the whole cluster: a status record, where every node and
//! every operator can read it. Shapes, how large it may be, when it is written anew, and what a
//! reader makes of it. The records are written by `node/answers/status_publisher.rs` and read by
//! the commands with `--all-nodes`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use caracal_ipam::Lease;
use caracal_model::{InsertEach, NodeName, NodeStatus, ProblemCode, Timestamp};
use serde::{Deserialize, Serialize};

/// Keys of the records are below this; outside of `/calico/`, so that they wake no watcher of
/// Calico's data.
pub(crate) const STATUSES: &str = "/caracal/status/";

/// Most octets of a record.
const LIMIT: usize = 1024;
/// Sessions that are named in a record.
const NAMED: usize = 8;
/// Octets of a reason that are kept.
const REASON: usize = 96;
/// Shortest time between two records of a node whose state changes.
const SPACING: Duration = Duration::from_secs(10);
/// The same where nothing but the revision has changed.
const REVISION_SPACING: Duration = Duration::from_secs(300);

/// The key of a node's record.
pub(crate) fn status_path(node: &NodeName) -> String {
    format!("{STATUSES}{node}")
}

/// A node's record. Fields may be added; a reader ignores those that it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PublishedStatus {
    /// Version of the program.
    pub(crate) version: String,
    /// When it was written, on the node's clock (RFC 3339).
    pub(crate) written: String,
    /// `fresh`, `lagging`, `stale` or `none`.
    pub(crate) datastore: String,
    /// Revision of the snapshot in use.
    pub(crate) revision: i64,
    /// Phase of the kernel's writer.
    pub(crate) kernel: String,
    /// Kinds of routes to other nodes in the kernel: `direct`, `ipip`, `vxlan`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) encapsulations: BTreeSet<String>,
    /// Sessions by state.
    pub(crate) sessions: BTreeMap<String, usize>,
    /// Sessions that are not Established, although nobody disabled them: as many as fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) down: Vec<DownSession>,
    /// Problems by code.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) problems: BTreeMap<String, usize>,
    /// What the last audit found that counts, by code.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) findings: BTreeMap<String, usize>,
    /// Why the node is not in service, when somebody drains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drain: Option<String>,
    /// Where others ask its console: `https://10.0.0.1:9095`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) console: Option<String>,
    /// Entries of `down`, `problems` and `findings` that did not fit.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) omitted: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// A session that is not up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DownSession {
    pub(crate) peer: String,
    pub(crate) state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
}

impl PublishedStatus {
    /// The record of a node; `findings` are those of its last audit that count, by code, and
    /// `console` is where others reach its console.
    pub(crate) fn from_status(
        status: &NodeStatus,
        findings: BTreeMap<String, usize>,
        console: Option<String>,
    ) -> Self {
        let mut record = Self {
            version: status.version.clone(),
            datastore: status.datastore.state.clone(),
            revision: status.datastore.revision,
            kernel: status.kernel.phase.clone(),
            drain: status.drain.as_deref().map(shortened),
            findings,
            console: console.filter(|_| is_console_served(status)),
            ..Self::default()
        };
        let kinds = status.kernel.routes.iter();
        let to_others = kinds
            .filter(|(kind, n)| **n > 0 && ["direct", "ipip", "vxlan"].contains(&kind.as_str()));
        record.encapsulations = to_others.map(|(kind, _)| kind.clone()).insert_each();
        for peer in &status.peers {
            *record.sessions.entry(peer.state.clone()).or_default() += 1;
            if peer.state == "Established" || peer.disabled {
                continue;
            }
            if record.down.len() == NAMED {
                record.omitted += 1;
                continue;
            }
            record.down.push(DownSession {
                peer: peer.name.clone(),
                state: peer.state.clone(),
                reason: peer.reason.as_deref().map(shortened).unwrap_or_default(),
            });
        }
        for problem in &status.problems {
            *record.problems.entry(problem.code.to_string()).or_default() += 1;
        }
        record.fit();
        record
    }

    /// Leaves out what does not fit, sessions first: how many there are is said in any case.
    fn fit(&mut self) {
        // The time of writing comes later.
        let room = LIMIT - "2026-01-01T00:00:00.000000Z".len();
        while serde_json::to_vec(self).map_or(0, |text| text.len()) > room {
            let left_out = self.down.pop().is_some()
                || self.findings.pop_last().is_some()
                || self.problems.pop_last().is_some();
            if !left_out {
                return;
            }
            self.omitted += 1;
        }
    }

    /// True where `caracal status` on the node would say so.
    pub(crate) fn is_healthy(&self) -> bool {
        self.problems.is_empty() && ["fresh", "none"].contains(&self.datastore.as_str())
    }

    /// Number of its sessions that are up, and of all.
    pub(crate) fn established(&self) -> (usize, usize) {
        let up = self.sessions.get("Established").copied();
        (up.unwrap_or_default(), self.sessions.values().sum())
    }

    fn without_revision(&self) -> Self {
        Self {
            revision: 0,
            written: String::new(),
            ..self.clone()
        }
    }
}

fn is_console_served(status: &NodeStatus) -> bool {
    let code = ProblemCode::NodeConsole;
    !status.problems.iter().any(|problem| problem.code == code)
}

/// The beginning of a text.
fn shortened(text: &str) -> String {
    match text
        .char_indices()
        .take_while(|(at, _)| *at < REASON)
        .last()
    {
        Some((at, c)) if at + c.len_utf8() < text.len() => format!("{}…", &text[..at]),
        _ => text.to_owned(),
    }
}

/// When a node writes its record anew: at once at first, after a change at most every
/// [`SPACING`], and not at all while nothing changes.
#[derive(Debug, Default)]
pub(crate) struct PublicationSchedule {
    last: Option<(PublishedStatus, Instant)>,
}

impl PublicationSchedule {
    /// True when `record` is to be written now.
    pub(crate) fn is_due(&self, record: &PublishedStatus, now: Instant) -> bool {
        let Some((last, at)) = &self.last else {
            return true;
        };
        let age = now.saturating_duration_since(*at);
        if last.without_revision() != record.without_revision() {
            return age >= SPACING;
        }
        last.revision != record.revision && age >= REVISION_SPACING
    }

    /// `record` is what is stored now.
    pub(crate) fn written(&mut self, record: PublishedStatus, now: Instant) {
        self.last = Some((record, now));
    }
}

/// State of a node as the cluster sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NodeState {
    /// It has not renewed its lease twice in a row: it does not reach the datastore, or is gone.
    Silent,
    /// It says that something is wrong.
    Degraded,
    /// It was stopped in order.
    Stopped,
    /// It lives and has not published yet: it starts, or is of an older version.
    Unknown,
    /// All is well.
    Healthy,
    /// It has never run Caracal: Calico's, or none yet.
    Foreign,
}

impl NodeState {
    /// The word in tables.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Degraded => "degraded",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
            Self::Healthy => "healthy",
            Self::Foreign => "foreign",
        }
    }

    /// True where somebody has to look.
    pub(crate) const fn is_wrong(self) -> bool {
        matches!(self, Self::Silent | Self::Degraded)
    }

    /// What a lease and a record say together; `now` is the reader's clock.
    pub(crate) fn judge(
        lease: Option<&Lease>,
        record: Option<&PublishedStatus>,
        now: Timestamp,
    ) -> Self {
        let Some(lease) = lease else {
            return Self::Foreign;
        };
        if lease.stopped {
            return Self::Stopped;
        }
        if lease.is_overdue(now) {
            return Self::Silent;
        }
        match record {
            None => Self::Unknown,
            Some(record) if record.is_healthy() => Self::Healthy,
            Some(_) => Self::Degraded,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_ipam::LeaseHolder;
    use caracal_model::{DatastoreStatus, KernelStatus, PeerStatusJson, Problem, ProblemCode};

    use super::*;

    fn peer(name: &str, state: &str, reason: Option<&str>) -> PeerStatusJson {
        PeerStatusJson {
            name: name.to_owned(),
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
            ..PeerStatusJson::default()
        }
    }

    fn status(peers: Vec<PeerStatusJson>) -> NodeStatus {
        NodeStatus {
            version: "0.1.0".to_owned(),
            datastore: DatastoreStatus {
                state: "fresh".to_owned(),
                revision: 7,
                ..DatastoreStatus::default()
            },
            kernel: KernelStatus {
                phase: "synced".to_owned(),
                routes: [("direct".to_owned(), 3), ("blackhole".to_owned(), 1)].into(),
                ..KernelStatus::default()
            },
            peers,
            ..NodeStatus::default()
        }
    }

    #[test]
    fn a_record_counts_and_names_what_is_down() {
        let mut disabled = peer("Mesh_3", "Idle", None);
        disabled.disabled = true;
        let peers = vec![
            peer("Mesh_1", "Established", None),
            peer("Mesh_2", "Active", Some("connection refused")),
            disabled,
        ];
        let record = PublishedStatus::from_status(&status(peers), BTreeMap::new(), None);
        assert_eq!(record.established(), (1, 3));
        assert_eq!(record.down.len(), 1);
        assert_eq!(record.down[0].reason, "connection refused");
        assert_eq!(record.encapsulations, ["direct".to_owned()].into());
        assert!(record.is_healthy());
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            serde_json::from_str::<PublishedStatus>(&text).unwrap(),
            record
        );
    }

    #[test]
    fn a_record_is_never_larger_than_its_limit_and_says_what_it_leaves_out() {
        let long = "ä".repeat(400);
        let peers = (0..300).map(|n| peer(&format!("Mesh_10_0_{n}_1"), "Active", Some(&long)));
        let mut status = status(peers.collect());
        let problems = ProblemCode::ALL.iter().map(|code| Problem {
            code: *code,
            subject: String::new(),
            reason: long.clone(),
        });
        status.problems = problems.collect();
        let codes = status.problems.len();
        let record = PublishedStatus::from_status(&status, BTreeMap::new(), None);
        let written = PublishedStatus {
            written: "2026-01-01T00:00:00.000000Z".to_owned(),
            ..record.clone()
        };
        let size = serde_json::to_vec(&written).unwrap().len();
        assert!(size <= LIMIT, "{size}");
        let named = record.down.len() + record.problems.len();
        assert_eq!(record.omitted, 300 + codes - named);
        assert_eq!(record.sessions["Active"], 300);
        assert!(!record.is_healthy());
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        for text in [
            "x".repeat(REASON),
            "x".repeat(REASON + 1),
            "ä".repeat(REASON),
        ] {
            let cut = shortened(&text);
            assert!(cut == text || cut.ends_with('…'));
            assert!(cut.len() <= REASON + 3, "{}", cut.len());
        }
        assert_eq!(shortened(""), "");
    }

    #[test]
    fn nothing_is_written_while_nothing_changes() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let record = PublishedStatus::from_status(&status(Vec::new()), BTreeMap::new(), None);
        let mut schedule = PublicationSchedule::default();
        assert!(schedule.is_due(&record, start));
        schedule.written(record.clone(), start);
        assert!(!schedule.is_due(&record, after(100_000)));
        // A change waits until the last record is a little old.
        let worse = PublishedStatus {
            datastore: "stale".to_owned(),
            ..record.clone()
        };
        assert!(!schedule.is_due(&worse, after(9)));
        assert!(schedule.is_due(&worse, after(10)));
        // The revision alone is not worth a write for each of its changes.
        let newer = PublishedStatus {
            revision: 8,
            ..record
        };
        assert!(!schedule.is_due(&newer, after(299)));
        assert!(schedule.is_due(&newer, after(300)));
    }

    #[test]
    fn the_lease_says_who_lives_and_the_record_how() {
        let now = Timestamp::parse_rfc3339("2026-01-01T00:01:00Z").unwrap();
        let lease = |renewed: &str, stopped| Lease {
            node: "n1".into(),
            renewed: renewed.to_owned(),
            seconds: 30,
            holder: LeaseHolder::default(),
            stopped,
        };
        let fresh = lease("2026-01-01T00:00:55Z", false);
        let old = lease("2026-01-01T00:00:05Z", false);
        let ended = lease("2026-01-01T00:00:05Z", true);
        let healthy = PublishedStatus::from_status(&status(Vec::new()), BTreeMap::new(), None);
        let bad = PublishedStatus {
            problems: [("bgp.listen".to_owned(), 1)].into(),
            ..healthy.clone()
        };
        let judge = |lease, record| NodeState::judge(lease, record, now);
        assert_eq!(judge(None, None), NodeState::Foreign);
        assert_eq!(judge(Some(&fresh), None), NodeState::Unknown);
        assert_eq!(judge(Some(&fresh), Some(&healthy)), NodeState::Healthy);
        assert_eq!(judge(Some(&fresh), Some(&bad)), NodeState::Degraded);
        assert_eq!(judge(Some(&old), Some(&healthy)), NodeState::Silent);
        assert_eq!(judge(Some(&ended), Some(&healthy)), NodeState::Stopped);
    }
}
