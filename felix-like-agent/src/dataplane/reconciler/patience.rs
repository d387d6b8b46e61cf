//! Problems that count only once they last: between two steps of a plugin they are as it should be.

use std::collections::BTreeMap;
use std::time::Duration;

use caracal_model::{Problem, ProblemCode};
use tokio::time::Instant;

use crate::desired::Desired;

/// Longer than a container takes between its interface and its endpoint, in both directions.
const PATIENCE: Duration = Duration::from_secs(30);

/// Since when such a problem is there.
#[derive(Debug, Default)]
pub(super) struct Patience {
    since: BTreeMap<Problem, Instant>,
}

impl Patience {
    /// Takes out of a plan what has not lasted yet, given whether the datastore is fresh: an old
    /// one does not know the containers of now.
    pub(super) fn judge(&mut self, desired: &mut Desired, is_fresh: bool, now: Instant) {
        let mut since = BTreeMap::new();
        desired.problems.retain(|problem| {
            if problem.code != ProblemCode::AgentNoEndpoint {
                return true;
            }
            if !is_fresh {
                return false;
            }
            let first = self.since.get(problem).copied().unwrap_or(now);
            since.insert(problem.clone(), first);
            first + PATIENCE <= now
        });
        self.since = since;
    }

    /// When the next problem has lasted.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let ends = self.since.values().map(|since| *since + PATIENCE);
        ends.filter(|end| *end > now).min()
    }
}

#[cfg(test)]
mod tests {
    use caracal_model::ProblemCode;

    use super::*;
    use crate::problem::problem;

    #[test]
    fn a_problem_counts_once_it_lasts() {
        let mut patience = Patience::default();
        let start = Instant::now();
        let told = |patience: &mut Patience, named: &[&str], is_fresh, after: Duration| {
            let mut desired = Desired::default();
            let reason = || "because".to_owned();
            for name in named {
                let found = problem(ProblemCode::AgentNoEndpoint, name, reason());
                desired.problems.insert(found);
            }
            let other = problem(ProblemCode::AgentNoNode, "a", reason());
            desired.problems.insert(other);
            patience.judge(&mut desired, is_fresh, start + after);
            desired.problems.len() - 1
        };
        let second = Duration::from_secs(1);
        assert_eq!(told(&mut patience, &["x"], true, Duration::ZERO), 0);
        assert_eq!(patience.due(start), Some(start + PATIENCE));
        assert_eq!(told(&mut patience, &["x", "y"], true, PATIENCE - second), 0);
        assert_eq!(told(&mut patience, &["x", "y"], true, PATIENCE), 1);
        let due = patience.due(start + PATIENCE);
        assert_eq!(due, Some(start + PATIENCE * 2 - second));
        // It was away for a moment: from the start.
        assert_eq!(told(&mut patience, &["y"], true, PATIENCE), 0);
        assert_eq!(told(&mut patience, &["x", "y"], true, PATIENCE * 2), 1);
        // A datastore that is away knows nothing of new containers.
        assert_eq!(told(&mut patience, &["x", "y"], false, PATIENCE * 2), 0);
        assert_eq!(patience.due(start + PATIENCE * 2), None);
    }
}
