//! The registry of problems. Who finds something wrong replaces its own set of problems under its
//! name; who shows problems listens to one watch and sees those of all reporters. A reporter never
//! sees or removes the problems of another one.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use caracal_datastore::Rarely;
use caracal_model::{Problem, ProblemCode};
use tokio::sync::watch;
use tokio::time::Instant;

/// Problems of a reporter whose last lines are remembered: those that are gone are forgotten first.
const REMEMBERED: usize = 256;

/// The problems of all reporters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reported(BTreeMap<&'static str, Vec<Problem>>);

impl Reported {
    /// All of them, by reporter.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Problem> {
        self.0.values().flatten()
    }

    fn by_reporter(&self, reporter: &str) -> &[Problem] {
        self.0.get(reporter).map_or(&[], Vec::as_slice)
    }
}

/// Where all problems are read.
pub(crate) type Problems = watch::Receiver<Reported>;

/// Hands out reporters and readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry(watch::Sender<Reported>);

impl Registry {
    /// Reporter under a name, which must be nobody else's.
    pub(crate) fn reporter(&self, name: &'static str) -> ProblemReporter {
        ProblemReporter {
            name,
            reported: self.0.clone(),
            told: Mutex::default(),
        }
    }

    /// Reader of all that is reported.
    pub(crate) fn problems(&self) -> Problems {
        self.0.subscribe()
    }
}

/// Replaces what one task has reported.
#[derive(Debug)]
pub(crate) struct ProblemReporter {
    name: &'static str,
    reported: watch::Sender<Reported>,
    /// What was logged of each.
    told: Mutex<BTreeMap<(ProblemCode, String), Rarely>>,
}

impl ProblemReporter {
    /// Replaces what this reporter has reported. Nobody is woken when it is the same.
    pub(crate) fn replace(&self, found: Vec<Problem>) {
        self.reported.send_if_modified(|reported| {
            let changed = reported.by_reporter(self.name) != found;
            if changed && found.is_empty() {
                reported.0.remove(self.name);
            } else if changed {
                reported.0.insert(self.name, found);
            }
            changed
        });
    }

    /// The same, and logs those that are new: one that comes and goes, or whose reason changes with
    /// each try, rarely.
    pub(crate) fn warn(&self, found: Vec<Problem>) {
        let known = self.current();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let key = |problem: &Problem| (problem.code, problem.subject.clone());
        for gone in known.iter().map(key) {
            if !found.iter().any(|problem| key(problem) == gone)
                && let Some(rarely) = told.get_mut(&gone)
            {
                rarely.over();
            }
        }
        for problem in found.iter().filter(|problem| !known.contains(problem)) {
            let rarely = told.entry(key(problem)).or_default();
            if rarely.is_due(Instant::now(), &problem.reason) {
                tracing::warn!(code = %problem.code, "{}", problem.reason);
            }
        }
        if told.len() > REMEMBERED {
            told.retain(|kept, _| found.iter().any(|problem| key(problem) == *kept));
        }
        drop(told);
        self.replace(found);
    }

    /// Last problems of this reporter.
    pub(crate) fn current(&self) -> Vec<Problem> {
        self.reported.borrow().by_reporter(self.name).to_vec()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use caracal_datastore::TestLog;

    use super::*;

    fn problem(subject: &str) -> Problem {
        Problem {
            code: ProblemCode::NodeLibDir,
            subject: subject.to_owned(),
            reason: "r".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_problem_that_comes_and_goes_with_another_reason_each_time_is_told_rarely() {
        let log = TestLog::capture();
        let registry = Registry::default();
        let reporter = registry.reporter("one");
        let fails = |reason: &str| {
            let problem = Problem {
                reason: reason.to_owned(),
                ..problem("a")
            };
            reporter.warn(vec![problem]);
        };
        for _ in 0..1800 {
            for reason in ["no answer", "refused"] {
                fails(reason);
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        }
        // At once, and after 30, 90, 210 s and so on: of an hour.
        let lines = log.count("refused") + log.count("no answer");
        assert!((3..=16).contains(&lines), "{lines}");
        // What begins later is told at once, and what stays is not told again.
        for _ in 0..10 {
            reporter.warn(vec![problem("b")]);
        }
        assert_eq!(log.count(": r code="), 1);
        // One that is gone after each try.
        let before = log.lines("").len();
        for _ in 0..100 {
            fails("gone at once");
            reporter.warn(Vec::new());
        }
        assert_eq!(log.lines("").len() - before, 1);
    }

    #[test]
    fn a_reporter_replaces_its_own_problems_and_no_others() {
        let registry = Registry::default();
        let mut seen = registry.problems();
        let subjects = |seen: &mut Problems| -> Vec<String> {
            let reported = seen.borrow_and_update();
            reported.all().map(|p| p.subject.clone()).collect()
        };
        let (one, other) = (registry.reporter("one"), registry.reporter("other"));
        one.replace(vec![problem("a"), problem("b")]);
        other.warn(vec![problem("c")]);
        assert_eq!(subjects(&mut seen), ["a", "b", "c"]);
        one.replace(vec![problem("b")]);
        assert_eq!(subjects(&mut seen), ["b", "c"]);
        assert_eq!(one.current(), [problem("b")]);
        // The same again wakes nobody; nothing is what a reporter has that finds nothing wrong.
        one.replace(vec![problem("b")]);
        assert!(!seen.has_changed().unwrap());
        one.replace(Vec::new());
        other.replace(Vec::new());
        assert_eq!(subjects(&mut seen), [""; 0]);
        assert!(seen.borrow().0.is_empty());
    }
}
