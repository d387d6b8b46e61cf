//! The client on a datastore in memory and on a real etcd.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::world::{node, pool};
use caracal_datastore::{CommitFault, EtcdConfig, EtcdServer, EtcdStore, MemoryStore, Store};
use caracal_ipam::{AssignError, AssignRequest, Client, ClientError};
use caracal_model::{Txn, TxnOutcome};

fn store(entries: impl IntoIterator<Item = (String, Vec<u8>)>) -> MemoryStore {
    let store = MemoryStore::new();
    for (key, value) in entries {
        store.put(key, value);
    }
    store
}

fn request(host: &str, handle: &str) -> AssignRequest {
    AssignRequest::workload(host.into(), handle.into())
}

#[tokio::test(start_paused = true)]
async fn ipam_11_dual_stack_in_one_transaction_and_back() {
    let store = store([
        pool("v4", "10.0.0.0/16", 26),
        pool("v6", "fd00::/64", 122),
        node("node-a"),
    ]);
    let client = Client::new(store.clone());
    let mut wanted = request("node-a", "net.1");
    (wanted.num_v4, wanted.num_v6) = (2, 1);
    let got = client.auto_assign(wanted).await.unwrap();
    assert_eq!((got.v4.len(), got.v6.len()), (2, 1));
    assert_eq!(got.revision, store.revision());
    assert_eq!(client.check().await.unwrap(), []);
    let held = client.addresses_of(&"net.1".into()).await.unwrap();
    let held: BTreeSet<IpAddr> = held.into_iter().map(|h| h.address).collect();
    assert_eq!(held, got.all().map(|a| a.address).collect());
    let released = client
        .release_by_handle(&"net.1".into(), &[])
        .await
        .unwrap();
    assert_eq!(released.addresses.len(), 3);
    assert_eq!(client.check().await.unwrap(), []);
    assert!(
        client
            .addresses_of(&"net.1".into())
            .await
            .unwrap()
            .is_empty()
    );
    // A release may be repeated.
    let released = client
        .release_by_handle(&"net.1".into(), &[])
        .await
        .unwrap();
    assert!(released.addresses.is_empty());
    assert!(store.list("/calico/ipam/v2/handle/").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_own_block_costs_two_reads_and_a_right_guess_one() {
    let store = store([pool("v4", "10.0.0.0/16", 26), node("node-a")]);
    let client = Client::new(store.clone());
    let first = client
        .auto_assign(request("node-a", "net.1"))
        .await
        .unwrap();
    let (reads, commits) = (store.reads(), store.commits());
    client
        .auto_assign(request("node-a", "net.2"))
        .await
        .unwrap();
    assert_eq!((store.reads() - reads, store.commits() - commits), (2, 1));
    let (reads, commits) = (store.reads(), store.commits());
    let mut guess = request("node-a", "net.3");
    guess.block_hints = vec![first.v4[0].block];
    client.auto_assign(guess).await.unwrap();
    assert_eq!((store.reads() - reads, store.commits() - commits), (1, 1));
    let (reads, commits) = (store.reads(), store.commits());
    let blocks = [first.v4[0].block];
    client
        .release_by_handle(&"net.3".into(), &blocks)
        .await
        .unwrap();
    assert_eq!((store.reads() - reads, store.commits() - commits), (1, 1));
    assert_eq!(client.check().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn ipam_11_an_answer_that_got_lost_is_undone_through_the_handle() {
    let store = store([pool("v4", "10.0.0.0/16", 26), node("node-a")]);
    let client = Client::new(store.clone());
    client
        .auto_assign(request("node-a", "net.1"))
        .await
        .unwrap();
    store.fail_commit(1, CommitFault::AnswerLost);
    let error = client
        .auto_assign(request("node-a", "net.2"))
        .await
        .unwrap_err();
    assert!(
        matches!(error, ClientError::Store(_)) && error.is_transient(),
        "{error}"
    );
    // It was carried out, though nobody heard of it.
    let released = client
        .release_by_handle(&"net.2".into(), &[])
        .await
        .unwrap();
    assert_eq!(released.addresses.len(), 1);
    store.fail_commit(1, CommitFault::Lost);
    client
        .auto_assign(request("node-a", "net.3"))
        .await
        .unwrap_err();
    assert!(
        client
            .addresses_of(&"net.3".into())
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(client.check().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn lost_races_are_repeated_up_to_a_limit_and_final_errors_are_not() {
    let store = store([pool("v4", "10.0.0.0/16", 26), node("node-a")]);
    let client = Client::new(store.clone());
    for nth in 1..=20 {
        store.conflict_on_commit(nth);
    }
    client
        .auto_assign(request("node-a", "net.1"))
        .await
        .unwrap();
    for nth in 1..=200 {
        store.conflict_on_commit(nth);
    }
    let before = store.commits();
    let error = client
        .auto_assign(request("node-a", "net.2"))
        .await
        .unwrap_err();
    assert!(
        matches!(error, ClientError::Contended { attempts: 100 }),
        "{error}"
    );
    assert_eq!(store.commits() - before, 100);
    let (reads, commits) = (store.reads(), store.commits());
    let error = client
        .auto_assign(request("node-x", "net.3"))
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        ClientError::Refused(AssignError::UnknownNode { .. })
    ));
    assert!(!error.is_transient());
    assert_eq!((store.reads() - reads, store.commits() - commits), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn ipam_1_many_tasks_on_three_nodes_in_memory() {
    let store = MemoryStore::new();
    store.set_latency(Duration::from_millis(1));
    for entry in crate::race::stage() {
        store.put(entry.0, entry.1);
    }
    crate::race::run(store, 24, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipam_1_many_tasks_on_three_nodes_on_a_real_etcd() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let config = EtcdConfig::new([server.endpoint()]);
    let store = EtcdStore::new(config).unwrap();
    for (key, value) in crate::race::stage() {
        let txn = Txn::new().create(key, value);
        assert!(matches!(
            store.commit(&txn).await.unwrap(),
            TxnOutcome::Committed(_)
        ));
    }
    crate::race::run(store, 16, 6).await;
}

/// Fair to etcd: who loses a race waits longer each time, so that fifty who change one block do not
/// run away. In virtual time the counts do not depend on the machine, but for what is drawn at
/// random.
#[tokio::test(start_paused = true)]
async fn fifty_clients_on_one_block_lose_few_races() {
    const CLIENTS: u64 = 50;
    const ROUNDS: u64 = 4;
    let store = store([pool("p", "10.0.0.0/26", 26), node("node-a")]);
    store.set_latency(Duration::from_millis(2));
    let start = tokio::time::Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let client = Client::new(store.clone());
        running.spawn(async move {
            for round in 0..ROUNDS {
                let handle = format!("net.{number}.{round}");
                client
                    .auto_assign(request("node-a", &handle))
                    .await
                    .unwrap();
                let released = client.release_by_handle(&handle.as_str().into(), &[]).await;
                assert_eq!(released.unwrap().addresses.len(), 1);
            }
        });
    }
    while let Some(result) = running.join_next().await {
        result.unwrap();
    }
    let pairs = CLIENTS * ROUNDS;
    let lost = store.commits() - 2 * pairs;
    let rate = pairs as f64 / start.elapsed().as_secs_f64();
    println!("{pairs} pairs, {lost} races lost, {rate:.0} pairs a second at 2 ms a request");
    assert!(lost < 16 * pairs, "{lost} lost races for {pairs} pairs");
    assert!(rate > 20.0, "{rate} pairs a second");
}
