//! Preconditions of every deletion.

use caracal_model::{NodeName, Snapshot};

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

    /// The phase of a pass. `resolved`: the learned routes are resolved over the present underlay;
    /// one that is not leads nowhere, and would be taken for one that is unwanted. What other
    /// values that cannot be read hold back is their own range ([`crate::held`]).
    pub(in crate::dataplane) fn phase(
        &self,
        snapshot: &Snapshot,
        me: &NodeName,
        resolved: bool,
    ) -> (Phase, Option<String>) {
        let wait = |why: &str| (Phase::Learning, Some(format!("nothing is deleted: {why}")));
        match (&self.datastore, &self.bgp) {
            (Err(why), _) | (Ok(()), Err(why)) => wait(why),
            (Ok(()), Ok(())) if snapshot.doubts_node(me) => {
                wait("this node's own Node in the datastore cannot be read")
            }
            (Ok(()), Ok(())) if !resolved => {
                wait("the learned routes are not all resolved over this machine's links yet")
            }
            (Ok(()), Ok(())) => (Phase::Synced, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_that_are_not_resolved_are_no_reason_to_delete() {
        let (met, snapshot, me) = (SweepPrecondition::met(), Snapshot::default(), "n1".into());
        assert_eq!(met.phase(&snapshot, &me, true).0, Phase::Synced);
        let (phase, why) = met.phase(&snapshot, &me, false);
        assert_eq!(phase, Phase::Learning);
        assert!(why.is_some_and(|why| why.contains("not all resolved")));
    }

    #[test]
    fn without_its_own_node_nothing_is_deleted() {
        let (met, mut snapshot, me) = (SweepPrecondition::met(), Snapshot::default(), "n1".into());
        let nodes = "/calico/resources/v3/projectcalico.org/nodes";
        snapshot.apply(&format!("{nodes}/n2"), Some(b"{nonsense"), 1);
        assert_eq!(met.phase(&snapshot, &me, true).0, Phase::Synced);
        snapshot.apply(&format!("{nodes}/n1"), Some(b"{nonsense"), 2);
        let (phase, why) = met.phase(&snapshot, &me, true);
        assert_eq!(phase, Phase::Learning);
        assert!(why.is_some_and(|why| why.contains("own Node")));
    }
}
