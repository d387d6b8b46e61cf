//! WATCH-7: what is a fault is held back.

use std::sync::Arc;
use std::time::Duration;

use caracal_model::{Snapshot, TxnWrite};
use tokio::sync::watch;
use tokio::time::timeout;

use super::fixture::{LikeKubernetes, fresh, key, pool, view};
use crate::memory::MemoryStore;
use crate::store::PagedStore;
use crate::watch::{
    Accept, Accepted, Accepter, DatastoreFault, GuardOptions, StoreId, View, WatchOptions,
    spawn_guarded_watcher,
};

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";

fn node(name: &str) -> String {
    format!("{RESOURCES}/nodes/{name}")
}

fn guid(store: &MemoryStore, guid: &str) {
    let value = format!(r#"{{"spec":{{"clusterGUID":"{guid}"}}}}"#);
    store.put(format!("{RESOURCES}/clusterinformations/default"), value);
}

fn named(name: &str) -> String {
    format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{}}}}"#)
}

fn block_path(third: u8) -> String {
    format!("/calico/ipam/v2/assignment/ipv4/block/10.0.{third}.0-30")
}

fn block(third: u8) -> String {
    format!(
        r#"{{"cidr":"10.0.{third}.0/30","affinity":"host:me","allocations":[0,null,null,null],"unallocated":[1,2,3],"attributes":[{{"secondary":{{"node":"me"}}}}]}}"#
    )
}

fn cluster() -> MemoryStore {
    let store = MemoryStore::new();
    guid(&store, "aaaa");
    store.put(node("me"), named("me"));
    store.put(node("other"), named("other"));
    store.put(key("p"), pool(0));
    store.put(block_path(1), block(1));
    store.put(block_path(2), block(2));
    store
}

fn guarded<S: PagedStore>(
    store: &S,
    accepted: Option<Accepted>,
    accept: Accept,
) -> (watch::Receiver<View>, Accepter) {
    let options = WatchOptions {
        whole_blocks_of: Some("me".into()),
        ..WatchOptions::default()
    };
    let guard = GuardOptions {
        me: "me".into(),
        accepted,
        accept,
    };
    spawn_guarded_watcher(store.clone(), options, guard)
}

async fn held(views: &mut watch::Receiver<View>, code: &str) -> View {
    let held = view(views, code, |v| {
        v.fault.as_ref().is_some_and(|fault| fault.code() == code)
    })
    .await;
    assert_eq!(held.freshness.as_str(), "stale");
    assert!(!held.is_current());
    held
}

async fn no_fault_within_a_minute(views: &mut watch::Receiver<View>) {
    let faulty = views.wait_for(|v| v.fault.is_some());
    let seen = timeout(Duration::from_secs(60), faulty).await;
    assert!(seen.is_err(), "a fault: {seen:?}");
}

#[tokio::test(start_paused = true)]
async fn watch_7_what_is_lost_at_once_is_held_back_until_it_is_mended() {
    let store = cluster();
    let (mut views, _accepter) = guarded(&store, None, Accept::Never);
    let before = fresh(&mut views).await;
    let (me, other) = (node("me"), node("other"));
    let delete = |paths: &[&str]| {
        paths
            .iter()
            .map(|p| TxnWrite::Delete((*p).to_owned()))
            .collect()
    };
    for (lost, code) in [
        (delete(&[&me, &other]), "datastore.emptied"),
        (delete(&[&key("p")]), "datastore.emptied"),
        (
            delete(&[&block_path(1), &block_path(2)]),
            "datastore.emptied",
        ),
        (delete(&[&me]), "datastore.own_node"),
    ] {
        let backup: Vec<_> = store.list("/calico/");
        store.write(lost);
        let held = held(&mut views, code).await;
        assert!(Arc::ptr_eq(&held.snapshot, &views.borrow().snapshot));
        assert_eq!(held.snapshot.nodes.len(), 2);
        assert_eq!(held.snapshot.blocks.len(), before.snapshot.blocks.len());
        assert_eq!(held.forbids_writing(), code != "datastore.own_node");
        let put = backup.into_iter().map(|kv| TxnWrite::Put(kv.key, kv.value));
        store.write(put.collect());
        let mended = view(&mut views, "mended", View::is_current).await;
        assert_eq!(mended.fault, None);
        assert_eq!(mended.snapshot.nodes.len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn watch_7_what_goes_one_by_one_is_an_order() {
    let store = cluster();
    let (mut views, _accepter) = guarded(&store, None, Accept::Never);
    fresh(&mut views).await;
    store.delete(node("other"));
    store.delete(block_path(1));
    // The last address is given back, then the block goes, then the last pool.
    let empty = block(2).replace("[0,null", "[null,null");
    for write in [
        TxnWrite::Put(block_path(2), empty.into_bytes()),
        TxnWrite::Delete(block_path(2)),
        TxnWrite::Delete(key("p")),
    ] {
        view(&mut views, "current", View::is_current).await;
        let revision = store.write(vec![write]);
        view(&mut views, "followed", |v| {
            v.is_current() && v.snapshot.revision == revision
        })
        .await;
    }
    no_fault_within_a_minute(&mut views).await;
}

#[tokio::test(start_paused = true)]
async fn watch_7_another_clusters_datastore_is_followed_only_when_accepted() {
    let store = cluster();
    let (mut views, accepter) = guarded(&store, None, Accept::Never);
    fresh(&mut views).await;
    assert_eq!(accepter.accept().await, Ok(None), "there is no fault");
    guid(&store, "bbbb");
    store.delete(key("p"));
    let fault = held(&mut views, "datastore.other_cluster").await.fault;
    assert_eq!(accepter.accept().await, Ok(fault));
    let followed = view(&mut views, "followed", View::is_current).await;
    assert_eq!(followed.fault, None);
    assert!(followed.snapshot.pools.is_empty());
    // That was said of this one, and of no later one.
    guid(&store, "cccc");
    held(&mut views, "datastore.other_cluster").await;
}

#[tokio::test(start_paused = true)]
async fn watch_7_what_is_accepted_waits_for_the_own_node() {
    let store = cluster();
    let (mut views, accepter) = guarded(&store, None, Accept::Never);
    fresh(&mut views).await;
    let all = store.list("/calico/").into_iter();
    store.write(all.map(|kv| TxnWrite::Delete(kv.key)).collect());
    held(&mut views, "datastore.emptied").await;
    accepter.accept().await.unwrap();
    let waiting = held(&mut views, "datastore.own_node").await;
    assert!(!waiting.forbids_writing());
    assert_eq!(waiting.snapshot.pools.len(), 1, "what was accepted last");
    store.put(node("me"), named("me"));
    let followed = view(&mut views, "followed", View::is_current).await;
    assert_eq!(followed.snapshot.pools.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn watch_7_a_backup_that_lacks_something_is_held_back() {
    let store = cluster();
    let complete = store.backup();
    let (mut views, _accepter) = guarded(&store, None, Accept::Never);
    store.put("/calico/noise", "1");
    fresh(&mut views).await;
    // Nothing is lost by this one.
    store.restore(&complete);
    no_fault_within_a_minute(&mut views).await;
    view(&mut views, "current", View::is_current).await;
    store.put(block_path(3), block(3));
    view(&mut views, "a new block", |v| v.snapshot.blocks.len() == 3).await;
    store.restore(&complete);
    let fault = held(&mut views, "datastore.restored").await.fault;
    assert_eq!(
        fault,
        Some(DatastoreFault::Restored("block 10.0.3.0/30".to_owned()))
    );
    // The same by another member that counts on from there.
    store.put("/calico/noise", "2");
    store.put("/calico/noise", "3");
    held(&mut views, "datastore.restored").await;
    store.put(block_path(3), block(3));
    view(&mut views, "mended", View::is_current).await;
}

/// A restored etcd may count on above what it was before: revisions alone do not tell.
#[tokio::test(start_paused = true)]
async fn watch_7_a_backup_with_a_higher_revision_that_lacks_something_is_held_back() {
    for (modified, by) in [(false, 1_000_000_000), (false, 1_000_000), (true, 100)] {
        let store = cluster();
        let backup = store.backup();
        let (mut views, accepter) = guarded(&store, None, Accept::Never);
        fresh(&mut views).await;
        // Nothing is lost by this one.
        store.restore_bumped(&backup, by);
        no_fault_within_a_minute(&mut views).await;
        view(&mut views, "current", View::is_current).await;
        let backup = store.backup();
        // A pool with a block in use, all of it new.
        store.put(key("q"), pool(3));
        store.put(block_path(3), block(3));
        if modified {
            store.put(node("other"), named("other"));
        }
        view(&mut views, "a new block", |v| v.snapshot.blocks.len() == 3).await;
        store.restore_bumped(&backup, by);
        let held = held(&mut views, "datastore.restored").await;
        let lost = "pool q, block 10.0.3.0/30".to_owned();
        assert_eq!(held.fault, Some(DatastoreFault::Restored(lost)), "{by}");
        assert_eq!(held.snapshot.blocks.len(), 3);
        assert!(held.forbids_writing(), "no address is given out");
        // Nor by the next list, while the writes of others go on.
        store.put("/calico/noise", "1");
        store.restore(&store.backup());
        no_other_view(&mut views).await;
        accepter.accept().await.unwrap();
        let followed = view(&mut views, "followed", View::is_current).await;
        assert_eq!(followed.snapshot.blocks.len(), 2);
    }
}

/// The same of Kubernetes' API over such an etcd, whether its watches are too old then (410) or go
/// on: nobody tells a revision while nothing happens.
#[tokio::test(start_paused = true)]
async fn watch_7_nor_is_one_that_the_watches_of_kubernetes_tell_of() {
    for goes_on in [false, true] {
        let inner = cluster();
        let store = LikeKubernetes {
            inner: inner.clone(),
            goes_on,
        };
        let (mut views, accepter) = guarded(&store, None, Accept::Never);
        fresh(&mut views).await;
        // Nothing is lost by this one.
        inner.restore_bumped(&inner.backup(), 1_000_000_000);
        no_fault_within_a_minute(&mut views).await;
        view(&mut views, "current", View::is_current).await;
        let backup = inner.backup();
        inner.put(key("q"), pool(3));
        inner.put(block_path(3), block(3));
        view(&mut views, "a new block", |v| v.snapshot.blocks.len() == 3).await;
        no_fault_within_a_minute(&mut views).await;
        inner.restore_bumped(&backup, 1_000_000_000);
        let held = held(&mut views, "datastore.restored").await;
        let lost = "pool q, block 10.0.3.0/30".to_owned();
        let lost = DatastoreFault::Restored(lost);
        assert_eq!(held.fault, Some(lost), "it goes on: {goes_on}");
        assert!(held.forbids_writing(), "no address is given out");
        accepter.accept().await.unwrap();
        let followed = view(&mut views, "followed", View::is_current).await;
        assert_eq!(followed.snapshot.blocks.len(), 2);
    }
}

/// Nor by the next process, which has no sign but that the one before it saw one: nothing that is
/// there is older than it was, and no revision is out of reach.
#[tokio::test(start_paused = true)]
async fn watch_7_the_doubt_outlives_the_process() {
    for restored in [false, true] {
        let store = cluster();
        let backup = store.backup();
        store.put(key("q"), pool(3));
        let accepted = Accepted {
            restored,
            ..remembered(&store, 1)
        };
        store.restore_bumped(&backup, 1_000);
        let (mut views, accepter) = guarded(&store, Some(accepted.clone()), Accept::Never);
        if !restored {
            let followed = fresh(&mut views).await;
            assert_eq!(followed.snapshot.pools.len(), 1, "deleted meanwhile");
            continue;
        }
        let held = held(&mut views, "datastore.restored").await;
        let lost = DatastoreFault::Restored("pool q".to_owned());
        assert_eq!(held.fault, Some(lost));
        assert_eq!(held.snapshot, accepted.snapshot);
        accepter.accept().await.unwrap();
        let followed = view(&mut views, "followed", View::is_current).await;
        assert_eq!(followed.snapshot.pools.len(), 1);
        // What was accepted is no doubt any more, and mended data never are.
        let (mut views, _accepter) = guarded(&store, Some(accepted), Accept::Never);
        store.put(key("q"), pool(3));
        assert_eq!(fresh(&mut views).await.snapshot.pools.len(), 2);
    }
}

/// A node that was long without its watch, beside a busy datastore, follows what was deleted.
#[tokio::test(start_paused = true)]
async fn watch_7_a_compacted_history_is_no_backup() {
    let store = cluster();
    store.put(key("q"), pool(3));
    let (mut views, _accepter) = guarded(&store, None, Accept::Never);
    fresh(&mut views).await;
    store.set_unavailable(true);
    tokio::time::sleep(Duration::from_secs(60)).await;
    store.delete(key("q"));
    store.restore_bumped(&store.backup(), 1_000_000);
    store.set_unavailable(false);
    let followed = view(&mut views, "followed", |v| {
        v.is_current() && v.snapshot.pools.len() == 1
    });
    assert_eq!(followed.await.fault, None);
}

/// The fault stays for a minute.
async fn no_other_view(views: &mut watch::Receiver<View>) {
    let other = views.wait_for(|v| v.fault.is_none());
    let seen = timeout(Duration::from_secs(60), other).await;
    assert!(seen.is_err(), "{seen:?}");
}

fn remembered(store: &MemoryStore, id: u64) -> Accepted {
    let mut snapshot = Snapshot {
        whole_blocks_of: Some("me".into()),
        ..Snapshot::default()
    };
    for kv in store.list("/calico/") {
        snapshot.apply(&kv.key, Some(&kv.value), kv.mod_revision);
    }
    Accepted {
        snapshot: Arc::new(snapshot),
        store: StoreId(id),
        restored: false,
    }
}

#[tokio::test(start_paused = true)]
async fn watch_7_what_an_earlier_process_accepted_is_in_use_until_something_is_read() {
    let store = cluster();
    let accepted = remembered(&store, 1);
    store.delete(key("p"));
    store.put(key("q"), pool(7));
    store.set_unavailable(true);
    let (mut views, _accepter) = guarded(&store, Some(accepted.clone()), Accept::Never);
    let stale = views.borrow().clone();
    assert!(!stale.synced && stale.freshness.reason().unwrap().contains("remembers"));
    assert_eq!(stale.snapshot, accepted.snapshot);
    store.set_unavailable(false);
    let current = fresh(&mut views).await;
    let pools: Vec<_> = current.snapshot.pools.keys().map(|p| p.as_str()).collect();
    assert_eq!(pools, ["q"], "what went meanwhile is gone");
}

#[tokio::test(start_paused = true)]
async fn watch_7_a_process_that_starts_beside_an_empty_datastore_keeps_what_was_accepted() {
    let accepted = remembered(&cluster(), 1);
    for (id, accept, followed) in [
        (1, Accept::Never, false),
        (2, Accept::Never, false),
        (2, Accept::Cluster("aaaa".to_owned()), false),
        (1, Accept::Always, true),
    ] {
        let empty = MemoryStore::new();
        empty.set_cluster(id);
        let (mut views, _accepter) = guarded(&empty, Some(accepted.clone()), accept);
        let code = match followed {
            false => "datastore.emptied",
            true => "datastore.own_node",
        };
        let seen = held(&mut views, code).await;
        assert_eq!(seen.snapshot, accepted.snapshot);
    }
    // The cluster's own datastore, set up anew by its owner, who said so.
    let anew = cluster();
    anew.set_cluster(9);
    anew.delete(block_path(1));
    let guid = Accept::Cluster("aaaa".to_owned());
    let (mut views, _accepter) = guarded(&anew, Some(accepted.clone()), guid);
    assert_eq!(fresh(&mut views).await.store, StoreId(9));
    let (mut views, _accepter) = guarded(&anew, Some(accepted), Accept::Never);
    held(&mut views, "datastore.restored").await;
}

#[tokio::test(start_paused = true)]
async fn watch_7_a_value_that_cannot_be_read_at_a_start_keeps_the_one_of_before() {
    let store = cluster();
    let accepted = remembered(&store, 1);
    store.put(key("p"), "nonsense");
    let (mut views, _accepter) = guarded(&store, Some(accepted), Accept::Never);
    let current = fresh(&mut views).await;
    assert_eq!(current.snapshot.pools.len(), 1);
    let invalid = &current.snapshot.invalid[&key("p")];
    assert!(invalid.kept_last_good);
}
