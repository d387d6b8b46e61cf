#![allow(clippy::unwrap_used)]

use caracal_datastore::MemoryStore;
use caracal_ipam::LeaseHolder;
use caracal_model::{AffinityState, Block, BlockAffinity, BlockOwner, Key, Node, NodeSpec};

use super::*;

/// The default.
const PERIOD: Duration = Duration::from_secs(900);
/// Between two looks.
const TICK: Duration = Duration::from_secs(225);

fn clock() -> Timestamp {
    Timestamp::parse_rfc3339("2026-01-05T10:11:12Z").unwrap()
}

/// A cluster, and those of its nodes that run.
struct Cluster {
    store: MemoryStore,
    running: Vec<(&'static str, NodeRelease<MemoryStore>)>,
    begun: Instant,
}

impl Cluster {
    /// Nodes a and b run; c has a block and no Node, and a lease where it is said so.
    fn new(by_absence: bool, leased: bool) -> Self {
        let store = MemoryStore::new();
        for node in ["a", "b"] {
            let value = Node::new(node, NodeSpec::default()).to_json();
            store.put(Key::node(&node.into()).to_path(), value);
        }
        let grace = Grace {
            period: PERIOD,
            by_absence,
        };
        let node = |name: &'static str| (name, NodeRelease::new(store.clone(), name.into(), grace));
        let running = vec![node("a"), node("b")];
        let cluster = Self {
            store,
            running,
            begun: Instant::now(),
        };
        cluster.give_a_block("c");
        if leased {
            let holder = LeaseHolder::default();
            let lease = Lease::renew(&"c".into(), &holder, None, PERIOD, clock());
            cluster.store.apply(&lease).unwrap();
        }
        let status = Txn::new().create(status_path(&"c".into()), b"{}".to_vec());
        cluster.store.apply(&status).unwrap();
        cluster
    }

    fn give_a_block(&self, node: &str) {
        let owner = BlockOwner::Host(node.into());
        let cidr = "10.0.0.0/26".parse().unwrap();
        let block = Block::new(cidr, Some(&owner), 1);
        let confirmed = BlockAffinity::new(AffinityState::Confirmed);
        self.store.put(Key::Block(cidr).to_path(), block.to_json());
        let affinity = Key::Affinity(owner, cidr).to_path();
        self.store.put(affinity, confirmed.to_json());
    }

    /// What a node's watcher knows.
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for kv in self.store.list("/calico/") {
            snapshot.apply(&kv.key, Some(&kv.value), kv.mod_revision);
        }
        snapshot
    }

    /// All that run look once; who released something.
    async fn look(&mut self, after: Duration) -> Vec<&'static str> {
        let mut released = Vec::new();
        for at in 0..self.running.len() {
            let snapshot = self.snapshot();
            let now = self.begun + after;
            let (name, node) = &mut self.running[at];
            if node
                .run(&snapshot, || (now, clock()), &mut Vec::new())
                .await
                .unwrap()
                > 0
            {
                released.push(*name);
            }
        }
        released
    }

    fn leader(&self) -> Option<String> {
        let stored = self.store.get(Election::KEY)?;
        let leader: serde_json::Value = serde_json::from_slice(&stored.value).unwrap();
        leader["node"].as_str().map(str::to_owned)
    }

    /// Keys of IPAM's data and status records: two and one of a node.
    fn left(&self) -> usize {
        ["/calico/ipam/", "/caracal/status/"]
            .map(|p| self.store.list(p).len())
            .iter()
            .sum()
    }
}

#[tokio::test]
async fn a_deleted_nodes_affinity_stays_for_the_grace_period_and_goes_with_it() {
    for (by_absence, leased) in [(true, true), (true, false), (false, true)] {
        let mut cluster = Cluster::new(by_absence, leased);
        // After three minutes it is there; what is looked at four times in 15 minutes is gone then.
        for ticks in 0..4 {
            assert_eq!(cluster.look(TICK * ticks).await, [""; 0]);
            assert_eq!(
                (cluster.left(), cluster.leader()),
                (3, Some("a".to_owned()))
            );
        }
        assert_eq!(cluster.look(PERIOD).await, ["a"]);
        assert_eq!(
            (cluster.left(), cluster.store.get("/caracal/lease/c")),
            (0, None)
        );
        assert_eq!(cluster.look(PERIOD + TICK).await, [""; 0]);
        assert_eq!(cluster.leader(), None, "nothing is left to do");
    }
    // In etcd a node that never had a lease is left to people.
    let mut cluster = Cluster::new(false, false);
    for ticks in 0..9 {
        assert_eq!(cluster.look(TICK * ticks).await, [""; 0]);
    }
    assert_eq!(cluster.left(), 3);
}

#[tokio::test]
async fn one_looks_and_another_takes_over_when_it_dies() {
    let mut cluster = Cluster::new(false, true);
    cluster.look(Duration::ZERO).await;
    cluster.look(TICK).await;
    let (name, _dead) = cluster.running.remove(0);
    assert_eq!(name, "a");
    // It has seen the leader's last write at the second look: half the grace period.
    cluster.look(TICK * 2).await;
    assert_eq!(cluster.leader().unwrap(), "a");
    cluster.look(TICK * 3).await;
    assert_eq!(cluster.leader().unwrap(), "b");
    assert_eq!(cluster.look(TICK * 3 + PERIOD - TICK).await, [""; 0]);
    assert_eq!(cluster.look(TICK * 3 + PERIOD).await, ["b"]);
    assert_eq!(cluster.left(), 0);
}

#[tokio::test]
async fn who_does_not_lead_reads_one_key_and_writes_nothing() {
    let mut cluster = Cluster::new(false, true);
    cluster.look(Duration::ZERO).await;
    let (reads, commits) = (cluster.store.reads(), cluster.store.commits());
    cluster.running.remove(0);
    cluster.look(TICK).await;
    assert_eq!(cluster.store.reads() - reads, 1);
    assert_eq!(cluster.store.commits(), commits);
    // Without a deleted node nobody asks for anything.
    let value = Node::new("c", NodeSpec::default()).to_json();
    cluster.store.put(Key::node(&"c".into()).to_path(), value);
    let reads = cluster.store.reads();
    cluster.look(TICK * 2).await;
    assert_eq!(cluster.store.reads(), reads);
}

#[tokio::test]
async fn who_returns_is_not_released() {
    let mut cluster = Cluster::new(true, true);
    cluster.look(Duration::ZERO).await;
    let stale = cluster.snapshot();
    let value = Node::new("c", NodeSpec::default()).to_json();
    cluster.store.put(Key::node(&"c".into()).to_path(), value);
    let now = cluster.begun + PERIOD;
    let (_, leader) = &mut cluster.running[0];
    let released = leader
        .run(&stale, || (now, clock()), &mut Vec::new())
        .await
        .unwrap();
    assert_eq!((released, cluster.left()), (0, 3));
}
