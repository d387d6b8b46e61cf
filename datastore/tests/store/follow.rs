//! The watcher against a real etcd: what networks and operators do to it.

use std::time::{Duration, Instant};

use caracal_datastore::{EtcdConfig, EtcdServer, EtcdStore, View, WatchOptions, spawn_watcher};
use caracal_model::{Txn, TxnWrite};
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use crate::contract::{LIMIT, committed, put, remove};
use crate::proxy::Proxy;

fn store(endpoint: String) -> EtcdStore {
    EtcdStore::new(EtcdConfig {
        request_timeout: Duration::from_secs(10),
        progress_interval: Duration::from_millis(200),
        progress_timeout: Duration::from_secs(20),
        ..EtcdConfig::new([endpoint])
    })
    .unwrap()
}

fn options() -> WatchOptions {
    WatchOptions {
        lagging_after: Duration::from_millis(800),
        reconnect_after: Duration::from_millis(1200),
        stale_after: Duration::from_secs(2),
        ..WatchOptions::default()
    }
}

fn key(name: &str) -> String {
    format!("/calico/resources/v3/projectcalico.org/ippools/{name}")
}

fn pool(third: u8) -> String {
    format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"cidr":"10.0.{third}.0/24"}}}}"#)
}

fn third(view: &View, name: &str) -> Option<u8> {
    let cidr = &view.snapshot.pools.get(name)?.spec.cidr;
    cidr.split('.').nth(2)?.parse().ok()
}

/// The first view that fulfils the condition; all views on the way must fulfil `always`.
async fn view_when(
    receiver: &mut Receiver<View>,
    what: &str,
    always: impl Fn(&View) -> bool,
    wanted: impl Fn(&View) -> bool,
) -> View {
    let mut last = receiver.borrow_and_update().clone();
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !wanted(&last) {
        let changed = tokio::time::timeout_at(deadline, receiver.changed()).await;
        changed
            .unwrap_or_else(|_| panic!("no view with {what}; the last one: {last:?}"))
            .unwrap();
        last = receiver.borrow_and_update().clone();
        assert!(always(&last), "on the way to {what}: {last:?}");
    }
    last
}

async fn view(receiver: &mut Receiver<View>, what: &str, wanted: impl Fn(&View) -> bool) -> View {
    view_when(receiver, what, |_| true, wanted).await
}

#[tokio::test]
async fn it_follows_etcd() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let store = store(server.endpoint());
    put(&store, &key("a"), &pool(1)).await;
    let patient = WatchOptions {
        lagging_after: Duration::from_secs(4),
        reconnect_after: Duration::from_secs(5),
        stale_after: Duration::from_secs(6),
        ..WatchOptions::default()
    };
    let mut receiver = spawn_watcher(store.clone(), patient);
    let first = view(&mut receiver, "fresh", View::is_current).await;
    assert_eq!(third(&first, "a"), Some(1));
    let revision = put(&store, &key("b"), &pool(2)).await;
    let second = view(&mut receiver, "b", |v| third(v, "b") == Some(2)).await;
    assert_eq!(second.snapshot.revision, revision);
    remove(&store, &key("a")).await;
    view(&mut receiver, "no a", |v| third(v, "a").is_none()).await;
    // Quiet for much longer than the limits: progress keeps it fresh.
    let quiet = timeout(
        Duration::from_secs(10),
        receiver.wait_for(|v| !v.is_current()),
    )
    .await;
    assert!(quiet.is_err(), "{:?}", quiet.unwrap().unwrap().freshness);
}

#[tokio::test]
async fn an_etcd_restart_loses_nothing() {
    let Some(mut server) = EtcdServer::start() else {
        return;
    };
    let store = store(server.endpoint());
    put(&store, &key("a"), &pool(1)).await;
    let mut receiver = spawn_watcher(store.clone(), options());
    view(&mut receiver, "fresh", View::is_current).await;
    server.kill();
    let keeps = |v: &View| third(v, "a") == Some(1);
    let lost = view_when(&mut receiver, "stale", keeps, |v| !v.is_current()).await;
    assert_eq!(lost.freshness.as_str(), "stale");
    server.run();
    let start = Instant::now();
    view_when(&mut receiver, "fresh", keeps, View::is_current).await;
    println!("fresh {:?} after etcd served again", start.elapsed());
    put(&store, &key("a"), &pool(2)).await;
    view(&mut receiver, "a = 2", |v| third(v, "a") == Some(2)).await;
}

#[tokio::test]
async fn a_half_open_connection_is_noticed_and_replaced() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let proxy = Proxy::start(server.address()).await;
    let direct = store(server.endpoint());
    put(&direct, &key("a"), &pool(1)).await;
    let mut receiver = spawn_watcher(store(proxy.endpoint()), options());
    view(&mut receiver, "fresh", View::is_current).await;

    proxy.freeze();
    let start = Instant::now();
    put(&direct, &key("a"), &pool(2)).await;
    let keeps = |v: &View| third(v, "a") == Some(1);
    let lagging = view_when(&mut receiver, "not fresh", keeps, |v| !v.is_current()).await;
    println!("{} after {:?}", lagging.freshness.as_str(), start.elapsed());
    let stale = |v: &View| v.freshness.as_str() == "stale";
    view_when(&mut receiver, "stale", keeps, stale).await;
    proxy.thaw();
    let healed = view(&mut receiver, "fresh", View::is_current).await;
    assert_eq!(third(&healed, "a"), Some(2));
}

#[tokio::test]
async fn history_that_was_compacted_during_an_outage_is_listed() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let proxy = Proxy::start(server.address()).await;
    let direct = store(server.endpoint());
    for name in ["a", "gone"] {
        put(&direct, &key(name), &pool(1)).await;
    }
    let mut receiver = spawn_watcher(store(proxy.endpoint()), options());
    view(&mut receiver, "fresh", View::is_current).await;
    proxy.freeze();
    remove(&direct, &key("gone")).await;
    let revision = put(&direct, &key("a"), &pool(2)).await;
    let mut client = etcd_client::Client::connect([server.endpoint()], None)
        .await
        .unwrap();
    client.compact(revision, None).await.unwrap();
    view(&mut receiver, "stale", |v| !v.is_current()).await;
    proxy.thaw();
    let usable = |v: &View| !v.snapshot.pools.is_empty();
    let healed = view_when(&mut receiver, "fresh", usable, View::is_current).await;
    assert_eq!(third(&healed, "a"), Some(2));
    assert_eq!(third(&healed, "gone"), None);
    assert_eq!(healed.snapshot.revision, revision);
}

#[tokio::test]
async fn data_restored_from_an_older_copy_counts() {
    let Some(mut server) = EtcdServer::start() else {
        return;
    };
    let store = store(server.endpoint());
    put(&store, &key("a"), &pool(1)).await;
    let copy = server.copy_data();
    server.run();
    timeout(LIMIT, async {
        while caracal_datastore::Store::read(&store, &[]).await.is_err() {}
    })
    .await
    .unwrap();
    for i in 2..20 {
        put(&store, &key("a"), &pool(i)).await;
    }
    put(&store, &key("b"), &pool(1)).await;
    let mut receiver = spawn_watcher(store.clone(), options());
    let before = view(&mut receiver, "fresh", View::is_current).await;
    assert_eq!(third(&before, "a"), Some(19));
    server.restore_data(&copy);
    let keeps = |v: &View| third(v, "a") == Some(19);
    view_when(&mut receiver, "stale", keeps, |v| !v.is_current()).await;
    server.run();
    let restored = view(&mut receiver, "fresh", View::is_current).await;
    assert_eq!(third(&restored, "a"), Some(1));
    assert_eq!(third(&restored, "b"), None);
    assert!(restored.snapshot.revision < before.snapshot.revision);
    put(&store, &key("c"), &pool(3)).await;
    view(&mut receiver, "c", |v| third(v, "c") == Some(3)).await;
}

#[tokio::test]
async fn twenty_thousand_workloads_are_listed_and_followed() {
    const WORKLOADS: usize = 20_000;
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let store = store(server.endpoint());
    let numbers: Vec<usize> = (0..WORKLOADS).collect();
    for chunk in numbers.chunks(128) {
        let mut txn = Txn::new();
        for i in chunk {
            let path = format!(
                "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-pod{i}-eth0"
            );
            let value = format!(
                r#"{{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{{"name":"node--a-k8s-pod{i}-eth0","namespace":"default"}},"spec":{{"orchestrator":"k8s","node":"node-a","containerID":"{i:064x}","pod":"pod{i}","endpoint":"eth0","ipNetworks":["10.{}.{}.{}/32"],"interfaceName":"cali{i:011x}","profiles":["kns.default"]}}}}"#,
                i >> 16,
                i >> 8 & 255,
                i & 255
            );
            txn.writes.push(TxnWrite::Put(path, value.into_bytes()));
        }
        committed(&store, &txn).await;
    }
    let start = Instant::now();
    let mut receiver = spawn_watcher(store.clone(), WatchOptions::default());
    let first = view(&mut receiver, "fresh", View::is_current).await;
    println!("{WORKLOADS} workloads listed in {:?}", start.elapsed());
    assert_eq!(first.snapshot.workloads.len(), WORKLOADS);
    assert!(first.snapshot.invalid.is_empty());
    let start = Instant::now();
    put(&store, &key("a"), &pool(1)).await;
    view(&mut receiver, "a", |v| third(v, "a") == Some(1)).await;
    println!("one change seen after {:?}", start.elapsed());
}
