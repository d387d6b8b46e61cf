#![allow(clippy::unwrap_used)]

use caracal_model::{AffinityState, BlockAffinity, BlockOwner, Timestamp};

use super::*;
use crate::lease::LeaseHolder;

const GRACE: Duration = Duration::from_secs(900);

fn me() -> NodeName {
    "node-a".into()
}

fn put(snapshot: &mut Snapshot, path: &str, value: &[u8]) {
    let revision = snapshot.revision + 1;
    snapshot.apply(path, Some(value), revision);
}

/// A node that has an affinity, and no Node.
fn own_a_block(snapshot: &mut Snapshot, node: &str, cidr: &str) {
    let owner = BlockOwner::Host(node.into());
    let affinity = Key::Affinity(owner, cidr.parse().unwrap()).to_path();
    let confirmed = BlockAffinity::new(AffinityState::Confirmed).to_json();
    put(snapshot, &affinity, &confirmed);
}

fn lease_of(node: &str, revision: i64) -> KeyValue {
    let txn = Lease::renew(
        &node.into(),
        &LeaseHolder::default(),
        None,
        GRACE,
        Timestamp::from_nanos(0),
    );
    let [caracal_model::TxnWrite::Put(key, value)] = &txn.writes[..] else {
        panic!("{txn:?}");
    };
    KeyValue {
        key: key.clone(),
        value: value.clone(),
        mod_revision: revision,
    }
}

#[test]
fn gc_2_a_dead_node_is_one_without_node_whose_lease_stands_still() {
    let mut snapshot = Snapshot::default();
    own_a_block(&mut snapshot, "node-a", "10.0.0.0/30");
    own_a_block(&mut snapshot, "node-b", "10.0.0.4/30");
    let mut nodes = DeletedNodes::new(me(), GRACE);
    let orphans = nodes.orphans(&snapshot);
    assert_eq!(orphans, BTreeSet::from(["node-b".into()]));
    let now = Instant::now();
    assert_eq!(nodes.look_at_leases(now, &[lease_of("node-b", 5)]), []);
    // Renewed: the time starts anew.
    assert_eq!(
        nodes.look_at_leases(now + GRACE, &[lease_of("node-b", 6)]),
        []
    );
    let almost = now + GRACE * 2 - Duration::from_secs(1);
    assert_eq!(nodes.look_at_leases(almost, &[lease_of("node-b", 6)]), []);
    let dead = nodes.look_at_leases(now + GRACE * 2, &[lease_of("node-b", 6)]);
    let [
        DeletedNode {
            node,
            preconditions,
        },
    ] = &dead[..]
    else {
        panic!("{dead:?}");
    };
    assert_eq!(node.as_str(), "node-b");
    let absent = Compare::Absent(Key::node(node).to_path());
    assert_eq!(
        preconditions,
        &[
            absent,
            Compare::Unchanged("/caracal/lease/node-b".into(), 6)
        ]
    );
    // No lease proves nothing, nor does one that nobody can read, nor another's.
    let mut nodes = DeletedNodes::new(me(), GRACE);
    let unreadable = KeyValue {
        value: b"x".to_vec(),
        ..lease_of("node-b", 6)
    };
    let other = KeyValue {
        key: "/caracal/lease/node-b".into(),
        ..lease_of("node-c", 6)
    };
    for later in [Duration::ZERO, GRACE * 2] {
        let seen = [unreadable.clone(), other.clone()];
        assert_eq!(nodes.look_at_leases(now + later, &seen), []);
    }
    // A Node that does not parse is there.
    put(&mut snapshot, &Key::node(&"node-b".into()).to_path(), b"{");
    assert!(nodes.orphans(&snapshot).is_empty());
}

#[test]
fn gc_2_where_kubernetes_makes_nodes_one_that_is_gone_needs_no_lease() {
    let mut nodes = DeletedNodes::new(me(), GRACE);
    let orphans = BTreeSet::from(["node-b".into(), "node-c".into()]);
    let now = Instant::now();
    let mut judge = |later, leases: &[KeyValue]| {
        let dead = nodes.judge_unleased(now + later, &orphans, leases);
        let node = |deleted: DeletedNode| (deleted.node.to_string(), deleted.preconditions);
        dead.into_iter().map(node).collect::<Vec<_>>()
    };
    let leased = [lease_of("node-c", 5)];
    assert_eq!(judge(Duration::ZERO, &leased), []);
    assert_eq!(judge(GRACE - Duration::from_secs(1), &leased), []);
    let absent = [
        Compare::Absent(Key::node(&"node-b".into()).to_path()),
        Compare::Absent("/caracal/lease/node-b".into()),
    ];
    assert_eq!(
        judge(GRACE, &leased),
        [("node-b".to_owned(), absent.into())]
    );
    // It wrote a lease after all: the time starts anew when that is gone.
    assert_eq!(
        judge(GRACE, &[lease_of("node-b", 6), lease_of("node-c", 5)]),
        []
    );
    assert_eq!(judge(GRACE * 2, &leased), []);
}

#[test]
fn gc_2_the_longer_of_two_terms_counts() {
    let mut hasty = DeletedNodes::new(me(), Duration::from_secs(10));
    let now = Instant::now();
    hasty.look_at_leases(now, &[lease_of("node-b", 6)]);
    let soon = now + Duration::from_secs(800);
    assert_eq!(hasty.look_at_leases(soon, &[lease_of("node-b", 6)]), []);
    assert_eq!(
        hasty
            .look_at_leases(now + GRACE, &[lease_of("node-b", 6)])
            .len(),
        1
    );
}

#[test]
fn gc_3_who_forgets_counts_anew() {
    let mut nodes = DeletedNodes::new(me(), GRACE);
    let now = Instant::now();
    let orphans = BTreeSet::from(["node-b".into(), "node-c".into()]);
    let leased = [lease_of("node-c", 5)];
    let judge = |nodes: &mut DeletedNodes, later| {
        let silent = nodes.look_at_leases(now + later, &leased).len();
        silent + nodes.judge_unleased(now + later, &orphans, &leased).len()
    };
    assert_eq!(judge(&mut nodes, Duration::ZERO), 0);
    nodes.forget();
    assert_eq!(judge(&mut nodes, GRACE), 0);
    assert_eq!(judge(&mut nodes, GRACE * 2), 2);
}
