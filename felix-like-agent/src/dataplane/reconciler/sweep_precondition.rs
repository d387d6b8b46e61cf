//! Preconditions of every deletion.

use caracal_model::Snapshot;

use crate::diff::Phase;

/// Whether what is not wanted is known to be unwanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepPrecondition {
    /// The snapshot is in step with the datastore; `Err` says why not.
    pub datastore: Result<(), String>,
    /// Every configured peer sent End-of-RIB, or its timer passed; `Err` says who is waited for.
    pub bgp: Result<(), String>,
}

impl Default for SweepPrecondition {
    fn default() -> Self {
        Self {
            datastore: Err("the datastore was not read yet".to_owned()),
            bgp: Err("BGP has not started yet".to_owned()),
        }
    }
}

impl SweepPrecondition {
    /// Both are sure.
    #[must_use]
    pub const fn met() -> Self {
        Self {
            datastore: Ok(()),
            bgp: Ok(()),
        }
    }

    pub(in crate::dataplane) fn phase(&self, snapshot: &Snapshot) -> (Phase, Option<String>) {
        let wait = |why: &str| (Phase::Learning, Some(format!("nothing is deleted: {why}")));
        match (&self.datastore, &self.bgp) {
            (Err(why), _) | (Ok(()), Err(why)) => wait(why),
            (Ok(()), Ok(())) if snapshot.is_doubtful() => {
                wait("a value in the datastore that routes depend on cannot be read")
            }
            (Ok(()), Ok(())) => (Phase::Synced, None),
        }
    }
}
