//! The lock of the datastore, which Calico sets while data move from one datastore to another.

use serde_json::Value;

use super::{Problem, Snapshot};
use crate::code::ProblemCode;
use crate::keys::Key;
use crate::resource::Kind;

/// What a locked datastore means and what ends it, for every program that says so.
pub const LOCKED: &str = "the datastore is locked (ClusterInformation default, spec.datastoreReady is false), as for a migration: \
     pods get no addresses; `caracal datastore unlock` ends it, once the migration is finished or given up";

/// Whether a ClusterInformation locks the datastore.
#[must_use]
pub fn is_locked(cluster: &Value) -> bool {
    cluster["spec"]["datastoreReady"] == false
}

impl Snapshot {
    /// The lock, as a problem.
    pub(super) fn lock_problem(&self) -> Option<Problem> {
        self.locked.then(|| Problem {
            code: ProblemCode::DatastoreLocked,
            subject: Key::resource(Kind::ClusterInformation, "default").to_path(),
            reason: LOCKED.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_a_problem_until_it_is_taken_away() {
        let path = Key::resource(Kind::ClusterInformation, "default").to_path();
        let mut snapshot = Snapshot::default();
        let mut codes = |value: Option<&str>| {
            snapshot.apply(&path, value.map(str::as_bytes), 1);
            let problems = snapshot.problems().into_iter();
            problems.map(|problem| problem.code).collect::<Vec<_>>()
        };
        let locked = r#"{"spec":{"clusterGUID":"g","datastoreReady":false}}"#;
        assert_eq!(codes(Some(locked)), [ProblemCode::DatastoreLocked]);
        // What cannot be read says nothing of the lock.
        let both = [
            ProblemCode::DatastoreInvalidValue,
            ProblemCode::DatastoreLocked,
        ];
        assert_eq!(codes(Some("{")), both);
        assert_eq!(
            codes(Some(r#"{"spec":{"datastoreReady":true}}"#)),
            Vec::<ProblemCode>::new()
        );
        // Whether a cluster has an identity yet does not matter.
        let bare = r#"{"spec":{"datastoreReady":false}}"#;
        assert_eq!(codes(Some(bare)), [ProblemCode::DatastoreLocked]);
        assert_eq!(codes(None), Vec::<ProblemCode>::new());
        assert_eq!(codes(Some(r#"{"spec":{}}"#)), Vec::<ProblemCode>::new());
    }

    #[test]
    fn a_list_with_a_value_that_cannot_be_read_keeps_the_lock() {
        let path = Key::resource(Kind::ClusterInformation, "default").to_path();
        let (mut before, mut next) = (Snapshot::default(), Snapshot::default());
        before.apply(&path, Some(br#"{"spec":{"datastoreReady":false}}"#), 1);
        next.apply(&path, Some(b"{"), 2);
        next.keep_last_good(&before);
        assert!(next.locked);
    }
}
