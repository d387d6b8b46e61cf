//! Keeps a Node that vanished while it still has blocks or reflects routes: somebody deleted or
//! overwrote it under a running node, which writes it again within moments. Without this the other
//! nodes would end their sessions with it and cut off its pods until then. Pure: the time comes in
//! as an argument.
//!
//! * `ABSENCE-1`: a Node is kept for [`super::WatchOptions::node_grace`] at most, counted from when
//!   it vanished.
//! * `ABSENCE-2`: a Node without blocks that is no reflector goes at once: that is how `caracal
//!   node delete` and Calico's controllers leave it.
//! * `ABSENCE-3`: a Node that is there again is used as it is now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use caracal_model::{Family, Key, Node, NodeName, Snapshot, Versioned};
use tokio::time::Instant;

/// The Nodes that are kept although they are gone.
#[derive(Debug)]
pub(super) struct Absences {
    grace: Duration,
    /// Last published snapshot.
    last: Arc<Snapshot>,
    /// Since when a Node that is kept is missing.
    since: BTreeMap<NodeName, Instant>,
}

impl Absences {
    pub(super) fn new(grace: Duration, accepted: Option<&Arc<Snapshot>>) -> Self {
        Self {
            grace,
            last: accepted.cloned().unwrap_or_default(),
            since: BTreeMap::new(),
        }
    }

    /// The snapshot to publish: what the datastore holds, with the Nodes that are kept.
    pub(super) fn fill(&mut self, now: Instant, mut next: Arc<Snapshot>) -> Arc<Snapshot> {
        if self.grace.is_zero() {
            return next;
        }
        let last = std::mem::take(&mut self.last);
        let mut kept: Vec<(NodeName, Versioned<Node>)> = Vec::new();
        let mut missing = BTreeMap::new();
        // A Node that is kept differs from what the datastore holds.
        for name in &next.nodes.changed_since(&last.nodes) {
            let is = next.nodes.get(name).map(|is| &**is);
            let Some(was) = last.nodes.get(name).filter(|was| lacks(was, is)) else {
                continue;
            };
            if !is_in_use(name, was, &next) {
                continue;
            }
            let since = self.since.get(name).copied().unwrap_or_else(|| {
                log_kept(name, self.grace);
                now
            });
            if now < since + self.grace {
                missing.insert(name.clone(), since);
                kept.push((name.clone(), Versioned::clone(was)));
            } else {
                tracing::warn!(%name, "the Node did not come back; it is gone now");
            }
        }
        self.since = missing;
        if !kept.is_empty() {
            Arc::make_mut(&mut next).nodes.extend(kept);
        }
        self.last = Arc::clone(&next);
        next
    }

    /// The same for a snapshot with the same Nodes as the last one.
    pub(super) fn follow(&mut self, now: Instant, next: Arc<Snapshot>) -> Arc<Snapshot> {
        if self.since.is_empty() {
            self.last = Arc::clone(&next);
            return next;
        }
        self.fill(now, next)
    }

    /// The Nodes that [`Self::fill`] kept.
    pub(super) fn nodes(&self) -> Vec<NodeName> {
        self.since.keys().cloned().collect()
    }

    /// When the next Node's grace ends.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.since.values().map(|since| *since + self.grace).min()
    }
}

fn log_kept(name: &NodeName, grace: Duration) {
    let (key, seconds) = (Key::node(name).to_path(), grace.as_secs());
    tracing::warn!(
        key,
        seconds,
        "the Node is gone or lost an address, and still has blocks or reflects routes; what was known \
         of it stays in use for a while"
    );
}

/// An address that the Node had is gone, or all of it.
fn lacks(was: &Node, is: Option<&Node>) -> bool {
    let Some(is) = is else { return true };
    let families = [Family::Ipv4, Family::Ipv6];
    let gone = |family| was.spec.cidr(family).is_some() && is.spec.cidr(family).is_none();
    families.into_iter().any(gone)
}

/// Pods, or other nodes' sessions, depend on it.
fn is_in_use(name: &NodeName, was: &Node, next: &Snapshot) -> bool {
    let bgp = was.spec.bgp.as_ref();
    let reflects = bgp.is_some_and(|bgp| bgp.route_reflector_cluster_id.is_some());
    reflects || next.affinities_of(name).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(20);
    const WITH_ADDRESS: &str =
        r#"{"metadata":{"name":"b"},"spec":{"bgp":{"ipv4Address":"10.0.0.2/24"}}}"#;
    const REFLECTOR: &str = r#"{"metadata":{"name":"r"},"spec":{"bgp":{"ipv4Address":"10.0.0.3/24","routeReflectorClusterID":"244.0.0.1"}}}"#;
    const BLOCK: &str = "/calico/ipam/v2/host/b/ipv4/block/10.1.0.0-26";

    fn node(name: &str) -> String {
        Key::node(&name.into()).to_path()
    }

    fn cluster() -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (path, value) in [
            (node("b"), WITH_ADDRESS),
            (node("r"), REFLECTOR),
            (node("empty"), &WITH_ADDRESS.replace("\"b\"", "\"empty\"")),
            (BLOCK.to_owned(), r#"{"state":"confirmed"}"#),
        ] {
            snapshot.apply(&path, Some(value.as_bytes()), 1);
        }
        assert!(snapshot.invalid.is_empty(), "{:?}", snapshot.invalid);
        snapshot
    }

    fn without(snapshot: &Snapshot, paths: &[String]) -> Arc<Snapshot> {
        let mut next = snapshot.clone();
        for path in paths {
            next.apply(path, None, 2);
        }
        Arc::new(next)
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.nodes.keys().map(NodeName::as_str).collect()
    }

    #[test]
    fn absence_1_2_a_node_that_is_in_use_stays_for_its_grace_and_another_goes_at_once() {
        let all = cluster();
        let start = Instant::now();
        let mut absences = Absences::new(GRACE, None);
        let whole = Arc::new(all.clone());
        let filled = absences.fill(start, Arc::clone(&whole));
        assert!(Arc::ptr_eq(&filled, &whole), "nothing is copied");
        assert_eq!(absences.next_deadline(), None);

        let next = without(&all, &[node("b"), node("r"), node("empty")]);
        let filled = absences.fill(start, Arc::clone(&next));
        assert_eq!(names(&filled), ["b", "r"]);
        assert_eq!(absences.nodes(), ["b".into(), "r".into()]);
        // Other changes do not begin the grace anew.
        let later = start + GRACE / 2;
        assert_eq!(names(&absences.fill(later, Arc::clone(&next))), ["b", "r"]);
        assert_eq!(absences.next_deadline(), Some(start + GRACE));
        // Its blocks go: it leaves.
        let left = without(&next, &[BLOCK.to_owned()]);
        assert_eq!(names(&absences.fill(later, left)), ["r"]);
        let ended = absences.fill(start + GRACE, Arc::clone(&next));
        assert_eq!(names(&ended), Vec::<&str>::new());
        assert_eq!(absences.next_deadline(), None);
    }

    #[test]
    fn absence_3_a_node_that_lost_its_address_stays_as_it_was_until_it_is_written_again() {
        let all = cluster();
        let start = Instant::now();
        let mut absences = Absences::new(GRACE, Some(&Arc::new(all.clone())));
        let mut emptied = all.clone();
        let text = r#"{"metadata":{"name":"b"},"spec":{}}"#;
        emptied.apply(&node("b"), Some(text.as_bytes()), 2);
        let filled = absences.fill(start, Arc::new(emptied.clone()));
        assert_eq!(filled.nodes, all.nodes);
        let mut moved = all.clone();
        let text = WITH_ADDRESS.replace("10.0.0.2", "10.0.0.9");
        moved.apply(&node("b"), Some(text.as_bytes()), 3);
        let filled = absences.fill(start, Arc::new(moved.clone()));
        assert_eq!(filled.nodes, moved.nodes);
        assert!(absences.nodes().is_empty());
        // It is never written again: then it has no address.
        absences.fill(start, Arc::new(emptied.clone()));
        let filled = absences.fill(start + GRACE, Arc::new(emptied.clone()));
        assert_eq!(filled.nodes, emptied.nodes);
        let filled = absences.fill(start + GRACE, Arc::new(emptied.clone()));
        assert_eq!(filled.nodes, emptied.nodes);
    }
}
