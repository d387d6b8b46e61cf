//! What has changed between two looks at a node's status: sessions, problems, the datastore, and
//! routes as counts. Looks are cheap and far apart, so that whatever goes to and fro between two of
//! them is told once, as it ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use caracal_model::{NodeStatus, PeerStatusJson, Problem};
use serde::Serialize;

/// Shortest time between two tales of how many routes there are.
const ROUTES_SPACING: Duration = Duration::from_secs(5);
/// The state of a session that is up.
const UP: &str = "Established";

/// Something that has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ConsoleEvent {
    /// A session is in another state.
    Session {
        /// Name of the peer.
        peer: String,
        /// The state before; absent for a peer that is new.
        #[serde(skip_serializing_if = "Option::is_none")]
        before: Option<String>,
        /// The state now; `removed` for a peer that is no longer configured.
        state: String,
        /// Why there is no session.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A problem is new, or over.
    Problem {
        /// Which of the two.
        change: ProblemChange,
        /// Code of the problem.
        code: String,
        /// Subject of the problem.
        subject: String,
        /// What was seen and what follows.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The datastore is followed in another way.
    Datastore {
        /// `fresh`, `lagging`, `stale`.
        state: String,
        /// Why it is not fresh.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A peer has another number of routes.
    Routes {
        /// Name of the peer.
        peer: String,
        /// The numbers before.
        before: RouteCounts,
        /// The numbers now.
        now: RouteCounts,
    },
}

/// What became of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemChange {
    /// It is new.
    Appeared,
    /// It is over.
    Gone,
}

impl ProblemChange {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Appeared => "appeared",
            Self::Gone => "gone",
        }
    }
}

/// How many routes a peer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteCounts {
    /// Prefixes received.
    pub received: usize,
    /// Prefixes accepted.
    pub accepted: usize,
    /// Prefixes advertised.
    pub advertised: usize,
}

impl From<&PeerStatusJson> for RouteCounts {
    fn from(peer: &PeerStatusJson) -> Self {
        Self {
            received: peer.received,
            accepted: peer.accepted,
            advertised: peer.advertised,
        }
    }
}

/// Compares each look with the one before.
#[derive(Debug, Default)]
pub struct EventDiff {
    last: Option<NodeStatus>,
    counted: BTreeMap<String, RouteCounts>,
    counted_at: Option<Instant>,
}

impl EventDiff {
    /// True before the first look.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.last.is_none()
    }

    /// What has changed since the last look. The first look tells what is not well.
    pub fn update(&mut self, status: NodeStatus, now: Instant) -> Vec<ConsoleEvent> {
        let mut events = Vec::new();
        let last = self.last.take();
        datastore(last.as_ref(), &status, &mut events);
        sessions(last.as_ref(), &status, &mut events);
        let before = last.as_ref().map_or(&[][..], |last| &last.problems);
        problems(
            ProblemChange::Appeared,
            &status.problems,
            before,
            &mut events,
        );
        problems(ProblemChange::Gone, before, &status.problems, &mut events);
        self.routes(&status, now, &mut events);
        self.last = Some(status);
        events
    }

    fn routes(&mut self, status: &NodeStatus, now: Instant, events: &mut Vec<ConsoleEvent>) {
        let early = |at: Instant| now.saturating_duration_since(at) < ROUTES_SPACING;
        if self.counted_at.is_some_and(early) {
            return;
        }
        let is_first = self.counted_at.replace(now).is_none();
        let before = std::mem::take(&mut self.counted);
        for peer in &status.peers {
            let counts = RouteCounts::from(peer);
            let known = before.get(&peer.name).copied().unwrap_or_default();
            if !is_first && known != counts {
                events.push(ConsoleEvent::Routes {
                    peer: peer.name.clone(),
                    before: known,
                    now: counts,
                });
            }
            self.counted.insert(peer.name.clone(), counts);
        }
    }
}

fn datastore(last: Option<&NodeStatus>, status: &NodeStatus, events: &mut Vec<ConsoleEvent>) {
    let now = &status.datastore;
    let changed = match last {
        Some(last) => last.datastore.state != now.state,
        None => !["fresh", "none"].contains(&now.state.as_str()),
    };
    if changed {
        events.push(ConsoleEvent::Datastore {
            state: now.state.clone(),
            reason: now.reason.clone(),
        });
    }
}

fn sessions(last: Option<&NodeStatus>, status: &NodeStatus, events: &mut Vec<ConsoleEvent>) {
    let mut before: BTreeMap<&str, &PeerStatusJson> = BTreeMap::new();
    for peer in last.iter().flat_map(|last| &last.peers) {
        before.insert(&peer.name, peer);
    }
    for peer in &status.peers {
        let known = before.remove(peer.name.as_str());
        let is_well = peer.state == UP || peer.disabled;
        let changed = match (known, last) {
            (Some(known), _) => known.state != peer.state,
            (None, Some(_)) => true,
            (None, None) => !is_well,
        };
        if changed {
            events.push(ConsoleEvent::Session {
                peer: peer.name.clone(),
                before: known.map(|known| known.state.clone()),
                state: peer.state.clone(),
                reason: peer.reason.clone(),
            });
        }
    }
    for (name, gone) in before {
        events.push(ConsoleEvent::Session {
            peer: name.to_owned(),
            before: Some(gone.state.clone()),
            state: "removed".to_owned(),
            reason: None,
        });
    }
}

/// The problems of `these` that are none of `those`. Another reason alone makes no other problem.
fn problems(
    change: ProblemChange,
    these: &[Problem],
    those: &[Problem],
    events: &mut Vec<ConsoleEvent>,
) {
    let same = |a: &Problem, b: &Problem| a.code == b.code && a.subject == b.subject;
    for problem in these {
        if those.iter().any(|other| same(problem, other)) {
            continue;
        }
        let entry = problem.code.entry();
        events.push(ConsoleEvent::Problem {
            change,
            code: entry.code.to_owned(),
            subject: problem.subject.clone(),
            reason: problem.reason.clone(),
            remedy: entry.remedy.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use caracal_model::ProblemCode;

    use super::*;

    fn peer(name: &str, state: &str, received: usize) -> PeerStatusJson {
        PeerStatusJson {
            name: name.to_owned(),
            state: state.to_owned(),
            received,
            ..PeerStatusJson::default()
        }
    }

    fn status(peers: &[PeerStatusJson], problems: &[&str]) -> NodeStatus {
        let problem = |subject: &&str| Problem {
            code: ProblemCode::NodeRunDir,
            subject: (*subject).to_owned(),
            reason: "no room".to_owned(),
        };
        let mut status = NodeStatus {
            peers: peers.to_vec(),
            problems: problems.iter().map(problem).collect(),
            ..NodeStatus::default()
        };
        status.datastore.state = "fresh".to_owned();
        status
    }

    /// Events in short.
    fn told(diff: &mut EventDiff, status: NodeStatus, now: Instant) -> Vec<String> {
        let short = |event: ConsoleEvent| match event {
            ConsoleEvent::Session {
                peer,
                before,
                state,
                ..
            } => format!("{peer}: {} → {state}", before.unwrap_or_default()),
            ConsoleEvent::Problem {
                change, subject, ..
            } => format!("{subject} {}", change.as_str()),
            ConsoleEvent::Datastore { state, .. } => state,
            ConsoleEvent::Routes { peer, before, now } => {
                format!("{peer}: {} → {}", before.received, now.received)
            }
        };
        diff.update(status, now).into_iter().map(short).collect()
    }

    #[test]
    fn a_change_is_told_once_and_the_first_look_tells_what_is_not_well() {
        let (mut diff, now) = (EventDiff::default(), Instant::now());
        let (up, down) = (peer("a", "Established", 3), peer("b", "Active", 0));
        let mut off = peer("c", "Idle", 0);
        off.disabled = true;
        let all = [up.clone(), down, off.clone()];
        let first = told(&mut diff, status(&all, &["run"]), now);
        assert_eq!(first, ["b:  → Active", "run appeared"]);
        assert_eq!(told(&mut diff, status(&all, &["run"]), now), [""; 0]);
        let better = [up, peer("b", "Established", 0), off];
        let changed = told(&mut diff, status(&better, &["lib"]), now);
        assert_eq!(
            changed,
            ["b: Active → Established", "lib appeared", "run gone"]
        );
        let fewer = told(&mut diff, status(&better[1..], &["lib"]), now);
        assert_eq!(fewer, ["a: Established → removed"]);
        let more = told(&mut diff, status(&better, &["lib"]), now);
        assert_eq!(more, ["a:  → Established"]);
        let mut stale = status(&better, &["lib"]);
        stale.datastore.state = "stale".to_owned();
        assert_eq!(told(&mut diff, stale, now), ["stale"]);
    }

    #[test]
    fn routes_are_counted_and_told_seldom() {
        let (mut diff, start) = (EventDiff::default(), Instant::now());
        let with = |received| status(&[peer("a", "Established", received)], &[]);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(told(&mut diff, with(1), start), [""; 0]);
        assert_eq!(told(&mut diff, with(2), after(1)), [""; 0]);
        assert_eq!(told(&mut diff, with(9), after(4)), [""; 0]);
        assert_eq!(told(&mut diff, with(7), after(5)), ["a: 1 → 7"]);
        assert_eq!(told(&mut diff, with(7), after(60)), [""; 0]);
    }

    #[test]
    fn events_are_objects_with_their_name() {
        let event = ConsoleEvent::Problem {
            change: ProblemChange::Gone,
            code: "node.run_dir".to_owned(),
            subject: "s".to_owned(),
            reason: "r".to_owned(),
            remedy: "m".to_owned(),
        };
        let text = serde_json::to_string(&event).expect("JSON");
        assert_eq!(
            text,
            r#"{"event":"problem","change":"gone","code":"node.run_dir","subject":"s","reason":"r","remedy":"m"}"#
        );
    }
}
