//! Policies that are in the datastore and that nobody here enforces. Only which there are is kept,
//! not what they say.

use std::collections::BTreeSet;

use super::{Problem, Snapshot};
use crate::code::ProblemCode;
use crate::keys::RESOURCES;

/// Kinds of policy that Felix enforces and Caracal does not: plural in keys, and what they are
/// called. Of a policy that is only staged, and of a tier or a set of addresses, nothing is
/// expected without another.
pub const POLICY_KINDS: [(&str, &str); 3] = [
    ("globalnetworkpolicies", "GlobalNetworkPolicy"),
    ("networkpolicies", "NetworkPolicy"),
    ("hostendpoints", "HostEndpoint"),
];

/// Names in a problem.
const NAMED: usize = 3;

/// A policy by its kind's place in [`POLICY_KINDS`] and its name, with its namespace in front where
/// it has one.
pub(super) type Policies = BTreeSet<(usize, String)>;

/// Which policy a path is.
pub(super) fn of_path(path: &str) -> Option<(usize, String)> {
    let (kind, name) = path.strip_prefix(RESOURCES)?.split_once('/')?;
    let at = POLICY_KINDS
        .iter()
        .position(|(plural, _)| *plural == kind)?;
    Some((at, name.to_owned()))
}

impl Snapshot {
    /// One problem a kind of policy.
    pub(super) fn unenforced(&self) -> impl Iterator<Item = Problem> {
        POLICY_KINDS.iter().enumerate().filter_map(|(at, (plural, kind))| {
            let all = self.policies.range((at, String::new())..(at + 1, String::new()));
            let count = all.clone().count();
            let mut names: Vec<&str> = all.take(NAMED).map(|(_, name)| name.as_str()).collect();
            if count == 0 {
                return None;
            }
            if count > NAMED {
                names.push("…");
            }
            Some(Problem {
                code: ProblemCode::PolicyNotEnforced,
                subject: format!("{}{plural}", RESOURCES),
                reason: format!(
                    "{count} {kind} ({}) and nobody here enforces it: Caracal routes and has no policy, so that what a policy forbids passes; run a policy engine beside it, or delete what is not meant any more",
                    names.join(", ")
                ),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Applied;

    #[test]
    fn policies_are_counted_and_named() {
        let mut snapshot = Snapshot::default();
        let path = |rest: &str| format!("{}{rest}", RESOURCES);
        for name in ["d/four", "a/one", "b/two", "c/three"] {
            let applied = snapshot.apply(&path(&format!("networkpolicies/{name}")), Some(b"x"), 1);
            assert_eq!(applied, Applied::Changed);
        }
        snapshot.apply(&path("hostendpoints/eth0"), Some(b"{}"), 2);
        snapshot.apply(&path("stagednetworkpolicies/a/x"), Some(b"{}"), 2);
        snapshot.apply(&path("tiers/default"), Some(b"{}"), 2);
        let problems = snapshot.problems();
        let starts = |at: usize, text: &str| {
            let reason = &problems[at].reason;
            assert!(reason.starts_with(text), "{reason}");
        };
        assert_eq!(problems.len(), 2);
        starts(0, "4 NetworkPolicy (a/one, b/two, c/three, …) and nobody");
        starts(1, "1 HostEndpoint (eth0) and nobody");
        assert_eq!(problems[0].code, ProblemCode::PolicyNotEnforced);
        assert!(!snapshot.is_doubtful());
        snapshot.apply(&path("hostendpoints/eth0"), None, 3);
        assert_eq!(snapshot.problems().len(), 1);
    }
}
