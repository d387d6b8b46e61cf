//! The registry of problems. Who finds something wrong replaces its own set of problems under its
//! name; who shows problems listens to one watch and sees those of all reporters. A reporter never
//! sees or removes the problems of another one.

use std::collections::BTreeMap;

use caracal_model::Problem;
use tokio::sync::watch;

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

    /// The same, and logs those that are new.
    pub(crate) fn warn(&self, found: Vec<Problem>) {
        let known = self.current();
        for problem in found.iter().filter(|problem| !known.contains(problem)) {
            tracing::warn!(code = %problem.code, "{}", problem.reason);
        }
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

    use caracal_model::ProblemCode;

    use super::*;

    fn problem(subject: &str) -> Problem {
        Problem {
            code: ProblemCode::NodeLibDir,
            subject: subject.to_owned(),
            reason: "r".to_owned(),
        }
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
