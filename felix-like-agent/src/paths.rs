//! MTUs of the paths to other nodes, found by probing: which path is due when, and the search for
//! the largest packet that arrives (RFC 4821, RFC 8899 §5: packetization layer path MTU discovery).
//! Pure: packets are sent by the shell, and time is an argument.
//!
//! A path is called narrow only when small packets are answered and large ones are not, again and
//! again: where nothing is answered nothing is known, and what is not known changes nothing.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use caracal_model::SharedMap;
use serde::{Deserialize, Serialize};

/// Known path MTUs, by the other node's address.
pub type PathMtus = BTreeMap<IpAddr, PathMtu>;

/// Known MTU of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMtu {
    /// The largest packet that arrives, in octets.
    pub mtu: u32,
    /// MTU of the interface that it was found with: nothing larger was tried.
    pub interface: u32,
}

impl PathMtu {
    /// True when the path carries less than the interface sends.
    #[must_use]
    pub const fn is_narrow(&self) -> bool {
        self.mtu < self.interface
    }
}

/// How a search ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathVerdict {
    /// Not even small packets are answered, or not always.
    Unknown,
    /// The largest size that is answered.
    Mtu(u32),
}

/// Next step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// Send an echo of so many octets and say whether it was answered.
    Probe(u32),
    /// It is over.
    Done(PathVerdict),
}

/// Large packets that must get no answer while small ones beside them get theirs.
const CONFIRMATIONS: u8 = 3;

/// Small packets without an answer after which nothing is concluded.
const TRIES: u8 = 3;

/// The search on one path.
#[derive(Clone, Debug)]
pub struct MtuSearch {
    small: u32,
    ceiling: u32,
    /// MTU found on another path: likely this path's too.
    guess: Option<u32>,
    stage: SearchStage,
}

#[derive(Clone, Copy, Debug)]
enum SearchStage {
    /// A small packet; large ones were silent so often, and small ones in a row.
    Small(u8, u8),
    /// The largest packet; large ones were silent so often.
    Large(u8),
    /// `good` passes and `bad` does not.
    Halve {
        good: u32,
        bad: u32,
    },
    /// One more than what passes, once more.
    Verify {
        good: u32,
    },
    Done(PathVerdict),
}

impl MtuSearch {
    /// Between a small packet and the largest that the interface sends.
    #[must_use]
    pub const fn new(small: u32, ceiling: u32, guess: Option<u32>) -> Self {
        Self {
            small,
            ceiling,
            guess,
            stage: SearchStage::Small(0, 0),
        }
    }

    /// Next step of the search.
    #[must_use]
    pub fn step(&self) -> SearchStep {
        SearchStep::Probe(match self.stage {
            SearchStage::Small(..) => self.small,
            SearchStage::Large(_) => self.ceiling,
            SearchStage::Halve { good, bad } => self.between(good, bad),
            SearchStage::Verify { good } => good + 1,
            SearchStage::Done(verdict) => return SearchStep::Done(verdict),
        })
    }

    /// Takes the answer to the last step.
    pub fn heard(&mut self, answered: bool) {
        self.stage = match (self.stage, answered) {
            (SearchStage::Small(_, small), false) if small + 1 >= TRIES => {
                SearchStage::Done(PathVerdict::Unknown)
            }
            (SearchStage::Small(large, small), false) => SearchStage::Small(large, small + 1),
            (SearchStage::Small(large, _), true) if large >= CONFIRMATIONS => {
                self.halve(self.small, self.ceiling)
            }
            (SearchStage::Small(large, _), true) => SearchStage::Large(large),
            (SearchStage::Large(_), true) => SearchStage::Done(PathVerdict::Mtu(self.ceiling)),
            (SearchStage::Large(silent), false) => SearchStage::Small(silent + 1, 0),
            (SearchStage::Halve { good, bad }, true) => self.halve(self.between(good, bad), bad),
            (SearchStage::Halve { good, bad }, false) => self.halve(good, self.between(good, bad)),
            (SearchStage::Verify { good }, false) => SearchStage::Done(PathVerdict::Mtu(good)),
            // A packet was lost on the way here.
            (SearchStage::Verify { good }, true) => self.halve(good + 1, self.ceiling),
            (SearchStage::Done(verdict), _) => SearchStage::Done(verdict),
        };
    }

    const fn halve(&self, good: u32, bad: u32) -> SearchStage {
        if bad > good + 1 {
            SearchStage::Halve { good, bad }
        } else if good == self.ceiling {
            SearchStage::Done(PathVerdict::Mtu(good))
        } else {
            SearchStage::Verify { good }
        }
    }

    fn between(&self, good: u32, bad: u32) -> u32 {
        let candidates = self.guess.into_iter().flat_map(|guess| [guess, guess + 1]);
        let likely = candidates.into_iter().find(|c| good < *c && *c < bad);
        likely.unwrap_or_else(|| good.midpoint(bad))
    }
}

/// Between two measurements of a path without cause (RFC 8899 §5.1.1, `PMTU_RAISE_TIMER`), less up
/// to a quarter.
const AGAIN: Duration = Duration::from_secs(600);
/// The same where nothing was answered; twice as long each time, up to the second value.
const UNKNOWN_AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// Between two measurements of a path because routes have changed.
const CHANGED_AGAIN: Duration = Duration::from_secs(15);
/// Measurements because of one event are spread over so long.
const SPREAD: Duration = Duration::from_secs(1);
/// Between the measurements of two paths, less up to a quarter: four to five paths in a second.
const PAUSE: Duration = Duration::from_millis(250);

/// Which path is measured when.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProbeSchedule {
    seed: u64,
    paths: BTreeMap<IpAddr, DueProbe>,
    /// The paths with the MTUs of their interfaces, as they were given last.
    followed: SharedMap<IpAddr, u32>,
    /// Not before.
    rest: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct DueProbe {
    interface: u32,
    at: Instant,
    /// End of the last measurement.
    last: Option<Instant>,
    rounds: u32,
    /// Measurements in a row that ended in silence.
    silent: u32,
}

/// Next work that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Measure this path, from an interface of this MTU.
    Measure(IpAddr, u32),
    /// Nothing before then.
    Wait(Instant),
    /// There is no path.
    Nothing,
}

impl ProbeSchedule {
    /// A schedule whose jitter differs from that of other seeds.
    #[must_use]
    pub(crate) fn new(seed: impl Hash) -> Self {
        Self {
            seed: hash(seed),
            ..Self::default()
        }
    }

    /// Takes the present paths with the MTUs of their interfaces. `moved`: routes have changed.
    pub(crate) fn follow(&mut self, paths: &SharedMap<IpAddr, u32>, moved: bool, now: Instant) {
        let changed = match moved {
            true => paths.keys().copied().collect(),
            false => paths.changed_since(&self.followed),
        };
        for address in self.followed.changed_since(paths) {
            if !paths.contains_key(&address) {
                self.paths.remove(&address);
            }
        }
        self.followed = paths.clone();
        for address in changed {
            let Some(&interface) = paths.get(&address) else {
                continue;
            };
            let soon = now + SPREAD.mul_f64(self.fraction(address, 0));
            let due = self.paths.entry(address).or_insert(DueProbe {
                interface,
                at: soon,
                last: None,
                rounds: 0,
                silent: 0,
            });
            if due.interface != interface {
                (due.interface, due.at) = (interface, due.at.min(soon));
            } else if moved {
                let earliest = due.last.map_or(soon, |last| soon.max(last + CHANGED_AGAIN));
                due.at = due.at.min(earliest);
            }
        }
    }

    /// Next work that is due at `now`.
    #[must_use]
    pub(crate) fn next(&self, now: Instant) -> Next {
        let first = self.paths.iter().min_by_key(|(_, due)| due.at);
        let Some((address, due)) = first else {
            return Next::Nothing;
        };
        let at = self.rest.map_or(due.at, |rest| rest.max(due.at));
        if at > now {
            return Next::Wait(at);
        }
        Next::Measure(*address, due.interface)
    }

    /// A measurement has ended.
    pub(crate) fn done(&mut self, address: IpAddr, verdict: PathVerdict, now: Instant) {
        let rounds = self.paths.get(&address).map_or(0, |due| due.rounds + 1);
        let less = |pause: Duration, part: f64| pause.mul_f64(1.0 - part / 4.0);
        let jitter = self.fraction(address, rounds);
        self.rest = Some(now + less(PAUSE, jitter));
        if let Some(due) = self.paths.get_mut(&address) {
            let pause = match verdict {
                PathVerdict::Unknown => {
                    let doubled = UNKNOWN_AGAIN.0 * 2u32.pow(due.silent.min(8));
                    due.silent += 1;
                    doubled.min(UNKNOWN_AGAIN.1)
                }
                PathVerdict::Mtu(_) => {
                    due.silent = 0;
                    AGAIN
                }
            };
            (due.at, due.last, due.rounds) = (now + less(pause, jitter), Some(now), rounds);
        }
    }

    /// 0 to 1, not the same for two nodes or two rounds.
    fn fraction(&self, address: IpAddr, round: u32) -> f64 {
        let value = hash((self.seed, address, round)) >> 32;
        f64::from(u32::try_from(value).unwrap_or_default()) / f64::from(u32::MAX)
    }
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
