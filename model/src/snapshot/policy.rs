//! Policies that are in the datastore. Only which there are is kept, not what they say, unless this
//! node enforces them ([`Snapshot::policy`]).

use std::collections::BTreeSet;

use super::{Problem, Snapshot};
use crate::code::ProblemCode;
use crate::keys::RESOURCES;
use crate::policy::PolicyData;

/// Kinds of policy that are named where nobody here enforces them: plural in keys, and what they
/// are called. Of a policy that is only staged, and of a tier or a set of addresses, nothing is
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
    /// Keeps what policy is made of from now on, and enforces it. Set before the first value.
    #[must_use]
    pub fn with_policy(mut self, enforced: bool) -> Self {
        self.policy = enforced.then(PolicyData::default);
        self
    }

    /// Takes a value over for policy; true when that differs now.
    pub(super) fn apply_to_policy(&mut self, path: &str, value: Option<&[u8]>) -> bool {
        let policy = self.policy.as_mut();
        policy
            .and_then(|policy| policy.apply(path, value))
            .unwrap_or_default()
    }

    /// Values of policy that cannot be understood.
    pub(super) fn misunderstood(&self) -> impl Iterator<Item = Problem> {
        let faults = self.policy.iter().flat_map(PolicyData::faults);
        faults.map(|(subject, reason)| Problem {
            code: ProblemCode::PolicyNotUnderstood,
            subject,
            reason: format!("{reason}; what it may have meant to allow is not let through"),
        })
    }

    /// One problem a kind of policy.
    pub(super) fn unenforced(&self) -> impl Iterator<Item = Problem> {
        POLICY_KINDS.iter().enumerate().filter_map(|(at, (plural, kind))| {
            let all = self.policies.range((at, String::new())..(at + 1, String::new()));
            let enforced = |name: &str| {
                let policy = self.policy.as_ref();
                policy.is_some_and(|policy| policy.enforces(plural, name))
            };
            let all = all.filter(|(_, name)| !enforced(name));
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
                    "{count} {kind} ({}) and nobody here enforces it: {}, so that what it forbids passes; {}run a policy engine beside Caracal, or delete what is not meant any more",
                    names.join(", "),
                    match self.policy {
                        None => "policy is off on this node",
                        Some(_) => "Caracal does not do what it asks for yet",
                    },
                    match self.policy {
                        None => "set CARACAL_POLICY=on, ",
                        Some(_) => "",
                    },
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
    fn of_what_is_enforced_only_the_rest_is_named() {
        let mut snapshot = Snapshot::default().with_policy(true);
        let path = |rest: &str| format!("{}{rest}", RESOURCES);
        let cluster = br#"{"apiVersion":"policy.networking.k8s.io/v1alpha2","spec":{}}"#;
        for (rest, value) in [
            ("networkpolicies/a/one", &b"{\"spec\":{}}"[..]),
            ("globalnetworkpolicies/all", b"{\"spec\":{}}"),
            ("globalnetworkpolicies/kcnp.x", cluster),
            (
                "globalnetworkpolicies/early",
                b"{\"spec\":{\"doNotTrack\":true}}",
            ),
            (
                "hostendpoints/eth0",
                b"{\"spec\":{\"node\":\"a\",\"interfaceName\":\"eth0\"}}",
            ),
            ("hostendpoints/wrong", b"{}"),
        ] {
            assert_eq!(
                snapshot.apply(&path(rest), Some(value), 1),
                Applied::Changed
            );
        }
        let problems = snapshot.problems();
        let reasons: Vec<&str> = problems.iter().map(|p| p.reason.as_str()).collect();
        for (at, wanted) in [
            "2 GlobalNetworkPolicy (early, kcnp.x) and",
            "1 HostEndpoint (wrong) and",
            "spec.node: expected the name of a node",
        ]
        .into_iter()
        .enumerate()
        {
            assert!(reasons[at].starts_with(wanted), "{reasons:?}");
        }
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        let other = b"{\"spec\":{\"ingress\":[{\"action\":\"Allow\",\"more\":1}]}}";
        let applied = snapshot.apply(&path("networkpolicies/a/one"), Some(other), 2);
        assert_eq!(applied, Applied::Changed);
        let problems = snapshot.problems();
        let told = problems
            .iter()
            .find(|p| p.code == ProblemCode::PolicyNotUnderstood && p.subject.contains("a/one"));
        let reason = told.map(|p| p.reason.as_str()).unwrap_or_default();
        assert!(
            reason.starts_with("spec.ingress[0].more: this field"),
            "{reason}"
        );
        // The same again is nothing new.
        let applied = snapshot.apply(&path("networkpolicies/a/one"), Some(other), 3);
        assert_eq!(applied, Applied::Quiet);
    }

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
