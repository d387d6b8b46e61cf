//! How many assignments and releases a second an etcd serves when many clients want them at once,
//! and how many races they lose. Each client has a connection of its own, as CNI plugins have.
//!
//! `cargo run --release -p caracal-ipam --example contention [-- CLIENTS ROUNDS]`, 50 and 20 when
//! not given. Starts an etcd of its own, or uses `ETCD_ENDPOINTS`, whose keys below `/calico/` it
//! deletes.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use caracal_datastore::{EtcdConfig, EtcdServer, EtcdStore, ReadAnswer, Store, StoreError};
use caracal_ipam::{AssignRequest, Client};
use caracal_model::{
    Compare, IpPool, IpPoolSpec, Key, KeyRange, Kind, Node, NodeSpec, Prefix, Txn, TxnOutcome,
    TxnWrite,
};
use tokio::task::JoinSet;

/// Counts what goes over the wire.
#[derive(Clone)]
struct Counted {
    store: EtcdStore,
    wire: Arc<Wire>,
}

#[derive(Default)]
struct Wire {
    reads: AtomicUsize,
    commits: AtomicUsize,
    lost: AtomicUsize,
}

impl Store for Counted {
    type Watch = <EtcdStore as Store>::Watch;

    async fn read(&self, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
        self.wire.reads.fetch_add(1, Ordering::Relaxed);
        self.store.read(ranges).await
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        self.wire.commits.fetch_add(1, Ordering::Relaxed);
        let outcome = self.store.commit(txn).await;
        if matches!(outcome, Ok(TxnOutcome::Conflict)) {
            self.wire.lost.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Self::Watch, StoreError> {
        self.store.watch(prefix, revision).await
    }
}

async fn stage(store: &EtcdStore, nodes: usize) {
    let all = [KeyRange::Prefix("/calico/".to_owned())];
    let stored = store.read(&all).await.unwrap().ranges.remove(0);
    for chunk in stored.chunks(100) {
        let mut txn = Txn::new();
        for stored in chunk {
            let key = stored.key.clone();
            txn.compare
                .push(Compare::Unchanged(key.clone(), stored.mod_revision));
            txn.writes.push(TxnWrite::Delete(key));
        }
        store.commit(&txn).await.unwrap();
    }
    let mut pool = IpPool::new("p", IpPoolSpec::default());
    pool.spec.cidr = "10.0.0.0/16".to_owned();
    pool.spec.block_size = 26;
    let mut txn = Txn::new().create(Key::resource(Kind::IpPool, "p").to_path(), pool.to_json());
    for n in 0..nodes {
        let name = format!("node-{n}");
        let node = Node::new(&name, NodeSpec::default());
        txn = txn.create(Key::node(&name.as_str().into()).to_path(), node.to_json());
    }
    assert!(matches!(
        store.commit(&txn).await.unwrap(),
        TxnOutcome::Committed(_)
    ));
}

/// One client: an assignment and a release, again and again; how long each took.
async fn client(
    store: Counted,
    node: usize,
    number: usize,
    rounds: usize,
    hint: bool,
) -> (Vec<Duration>, Vec<Duration>) {
    let client = Client::new(store);
    let name = format!("node-{node}");
    let (mut assigned, mut released) = (Vec::new(), Vec::new());
    let mut hints: Vec<Prefix> = Vec::new();
    for round in 0..rounds {
        let handle = format!("net.{number}.{round}");
        let mut request = AssignRequest::workload(name.as_str().into(), handle.as_str().into());
        request.block_hints.clone_from(&hints);
        let start = Instant::now();
        let got = client.auto_assign(request).await.unwrap();
        assigned.push(start.elapsed());
        let blocks: Vec<_> = got.all().map(|a| a.block).collect();
        let start = Instant::now();
        client
            .release_by_handle(&handle.as_str().into(), &blocks)
            .await
            .unwrap();
        released.push(start.elapsed());
        if hint {
            hints = blocks;
        }
    }
    (assigned, released)
}

fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    format!(
        "p50 {:>7.1?} p99 {:>7.1?} max {:>7.1?}",
        at(50),
        at(99),
        at(100)
    )
}

async fn measure(endpoint: &str, clients: usize, nodes: usize, rounds: usize, hint: bool) {
    let connect = || EtcdStore::new(EtcdConfig::new([endpoint])).unwrap();
    stage(&connect(), nodes).await;
    let wire = Arc::new(Wire::default());
    let start = Instant::now();
    let mut running = JoinSet::new();
    for number in 0..clients {
        let store = Counted {
            store: connect(),
            wire: Arc::clone(&wire),
        };
        running.spawn(client(store, number % nodes, number, rounds, hint));
    }
    let (mut assigned, mut released) = (Vec::new(), Vec::new());
    while let Some(times) = running.join_next().await {
        let (a, r) = times.unwrap();
        assigned.extend(a);
        released.extend(r);
    }
    let took = start.elapsed();
    let pairs = clients * rounds;
    let per_pair = |counter: &AtomicUsize| counter.load(Ordering::Relaxed) as f64 / pairs as f64;
    println!(
        "{clients} clients on {nodes} nodes: {:.0} pairs/s; for a pair {:.2} reads, {:.2} transactions, of which {:.2} lost",
        pairs as f64 / took.as_secs_f64(),
        per_pair(&wire.reads),
        per_pair(&wire.commits),
        per_pair(&wire.lost),
    );
    println!("  assign  {}", quantiles(assigned));
    println!("  release {}", quantiles(released));
    let findings = Client::new(connect()).check().await.unwrap();
    assert!(findings.iter().all(|f| !f.is_fault()), "{findings:?}");
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(default, |a| a.parse().unwrap());
    let (clients, rounds) = (number(50), number(20));
    let own = std::env::var("ETCD_ENDPOINTS")
        .err()
        .map(|_| EtcdServer::start().expect("etcd"));
    let endpoint = own.as_ref().map_or_else(
        || std::env::var("ETCD_ENDPOINTS").unwrap_or_default(),
        EtcdServer::endpoint,
    );
    measure(&endpoint, 1, 1, rounds * 5, true).await;
    for nodes in [clients, 5, 1] {
        measure(&endpoint, clients, nodes, rounds, false).await;
    }
}
