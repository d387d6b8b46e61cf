#![allow(clippy::unwrap_used)]
mod elsewhere;
mod faults;
mod fixture;
mod history;

use std::sync::atomic::Ordering;

use caracal_model::TxnWrite;
use tokio::time::{advance, sleep, timeout};

use self::fixture::{Fragile, SYNC_READS, fresh, key, pool, put, started, third, view};
use super::*;
use crate::memory::MemoryStore;
use crate::testing::TestLog;

#[tokio::test(start_paused = true)]
async fn a_view_follows_the_datastore() {
    let store = MemoryStore::new();
    put(&store, "a", 1);
    let mut receiver = spawn_watcher(store.clone(), WatchOptions::default());
    assert!(!receiver.borrow().synced);
    assert_eq!(receiver.borrow().freshness.as_str(), "stale");
    let first = fresh(&mut receiver).await;
    assert_eq!(third(&first, "a"), Some(1));
    assert_eq!(first.snapshot.revision, store.revision());
    let revision = put(&store, "b", 2);
    let second = view(&mut receiver, "b", |v| third(v, "b") == Some(2)).await;
    assert_eq!(second.snapshot.revision, revision);
    let revision = store.delete(key("a"));
    let last = view(&mut receiver, "no a", |v| third(v, "a").is_none()).await;
    assert_eq!(last.snapshot.revision, revision);
    assert!(last.is_current());
    assert_eq!(store.reads(), SYNC_READS, "changes come through the watch");
}

#[tokio::test(start_paused = true)]
async fn views_of_few_keys_follow_one_another_closely() {
    let store = MemoryStore::new();
    let mut receiver = started(&store).await;
    for i in 1..=5 {
        put(&store, "a", i);
        sleep(Duration::from_millis(2)).await;
        assert_eq!(third(&receiver.borrow_and_update().clone(), "a"), Some(i));
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_change_passes_at_once_and_bursts_coalesce() {
    let store = MemoryStore::new();
    // Four microseconds for each of 50000 keys would be twice the limit.
    let many = (0..50_000).map(|n| TxnWrite::Put(key(&format!("other{n}")), pool(0).into_bytes()));
    store.write(many.collect());
    let mut receiver = started(&store).await;
    sleep(Duration::from_secs(10)).await;
    receiver.mark_unchanged();

    let start = Instant::now();
    put(&store, "a", 0);
    receiver.changed().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);

    let mut times = vec![Instant::now()];
    let writer = store.clone();
    let writing = tokio::spawn(async move {
        for i in 1..=200 {
            put(&writer, "a", i);
            sleep(Duration::from_millis(1)).await;
        }
    });
    while third(&receiver.borrow_and_update().clone(), "a") != Some(200) {
        receiver.changed().await.unwrap();
        times.push(Instant::now());
    }
    writing.await.unwrap();
    // A fifth of a second of changes every millisecond: about ten views, none closer than 20 ms,
    // none later than that.
    assert!((10..=12).contains(&times.len()), "{}", times.len());
    for pair in times.windows(2) {
        let gap = pair[1] - pair[0];
        assert!(gap >= Duration::from_millis(20), "{gap:?}");
        assert!(gap <= Duration::from_millis(22), "{gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn watch_1_views_hold_whole_transactions() {
    let store = MemoryStore::new();
    let mut receiver = started(&store).await;
    let writer = store.clone();
    tokio::spawn(async move {
        for i in 1..=250 {
            let both = ["a", "b"].map(|name| TxnWrite::Put(key(name), pool(i).into_bytes()));
            writer.write(both.to_vec());
            match i {
                100 => writer.cut_watches("for the test"),
                150 => writer.compact(writer.revision()),
                _ => {}
            }
            sleep(Duration::from_millis(37)).await;
        }
    });
    let mut views = 0;
    loop {
        receiver.changed().await.unwrap();
        let view = receiver.borrow_and_update().clone();
        views += 1;
        assert_eq!(third(&view, "a"), third(&view, "b"));
        if third(&view, "a") == Some(250) {
            break;
        }
    }
    assert!(views > 50, "{views}");
}

#[tokio::test(start_paused = true)]
async fn watch_2_compaction_is_listed_and_compared() {
    let store = MemoryStore::new();
    for name in ["a", "b", "gone"] {
        put(&store, name, 1);
    }
    let mut receiver = started(&store).await;
    let before = fresh(&mut receiver).await;
    store.stall_watches(true);
    sleep(Duration::from_secs(1)).await;
    put(&store, "a", 2);
    put(&store, "new", 1);
    store.delete(key("gone"));
    let revision = store.revision();
    store.compact(revision);
    store.stall_watches(false);
    let mut lagged = false;
    let after = loop {
        receiver.changed().await.unwrap();
        let view = receiver.borrow_and_update().clone();
        assert!(view.snapshot.pools.len() >= 3, "{view:?}");
        assert!(view.synced);
        if view.is_current() {
            break view;
        }
        lagged = true;
        assert_eq!(view.freshness.as_str(), "lagging");
        assert!(view.freshness.reason().unwrap().contains("was compacted"));
    };
    assert!(lagged);
    assert_eq!(after.snapshot.revision, revision);
    assert_eq!(third(&after, "a"), Some(2));
    assert_eq!(third(&after, "new"), Some(1));
    assert_eq!(third(&after, "gone"), None);
    // An unchanged value is the same object, not an equal one.
    let b = |view: &View| std::ptr::from_ref(&**view.snapshot.pools.get("b").unwrap());
    assert_eq!(b(&before), b(&after));
    assert_eq!(store.reads(), 2 * SYNC_READS);
}

#[tokio::test(start_paused = true)]
async fn watch_3_a_half_open_stream_is_lagging_then_replaced() {
    let store = MemoryStore::new();
    put(&store, "a", 1);
    let mut receiver = started(&store).await;
    // Quiet is not silent.
    sleep(Duration::from_secs(3600)).await;
    assert!(receiver.borrow().is_current());
    assert_eq!(store.reads(), SYNC_READS);

    store.stall_watches(true);
    let start = Instant::now();
    put(&store, "a", 2);
    let lagging = view(&mut receiver, "lagging", |v| !v.is_current()).await;
    assert_eq!(lagging.freshness.as_str(), "lagging");
    assert!(start.elapsed() >= Duration::from_secs(7) && start.elapsed() <= Duration::from_secs(8));
    assert_eq!(third(&lagging, "a"), Some(1));
    // The new list finds the change although the watch never told.
    let found = view(&mut receiver, "a = 2", |v| third(v, "a") == Some(2)).await;
    assert!(found.is_current());
    assert!(
        start.elapsed() <= Duration::from_secs(13),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(store.watches(), 1, "the dead stream was closed");
}

#[tokio::test(start_paused = true)]
async fn silence_becomes_stale_when_reconnecting_is_slow() {
    let store = MemoryStore::new();
    let options = WatchOptions {
        reconnect_after: Duration::from_secs(60),
        ..WatchOptions::default()
    };
    let mut receiver = spawn_watcher(store.clone(), options);
    fresh(&mut receiver).await;
    store.stall_watches(true);
    let mut words = Vec::new();
    for _ in 0..2 {
        receiver.changed().await.unwrap();
        words.push(receiver.borrow_and_update().freshness.as_str());
    }
    assert_eq!(words, ["lagging", "stale"]);
    store.stall_watches(false);
    fresh(&mut receiver).await;
    assert_eq!(store.reads(), SYNC_READS);
}

#[tokio::test(start_paused = true)]
async fn an_outage_keeps_the_view_and_heals_fast() {
    let store = MemoryStore::new();
    put(&store, "a", 1);
    let mut receiver = started(&store).await;
    store.set_unavailable(true);
    let lost = view(&mut receiver, "stale", |v| !v.freshness.is_fresh()).await;
    assert_eq!(lost.freshness.as_str(), "stale");
    assert!(lost.freshness.reason().unwrap().contains("switched off"));
    assert!(lost.synced);
    assert_eq!(third(&lost, "a"), Some(1));
    let since = lost.freshness.since().unwrap();

    let reads = store.reads();
    sleep(Duration::from_secs(600)).await;
    let tries = store.reads() - reads;
    assert!((300..=620).contains(&tries), "{tries} in 600 s");
    let still = receiver.borrow().clone();
    assert_eq!(
        still.freshness.since(),
        Some(since),
        "since when it is stale does not move"
    );
    assert_eq!(third(&still, "a"), Some(1));

    put(&store, "a", 2);
    store.set_unavailable(false);
    let start = Instant::now();
    let healed = fresh(&mut receiver).await;
    assert_eq!(third(&healed, "a"), Some(2));
    assert!(
        start.elapsed() <= Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn it_starts_while_the_datastore_is_down() {
    let store = MemoryStore::new();
    put(&store, "a", 1);
    store.set_unavailable(true);
    let mut receiver = spawn_watcher(store.clone(), WatchOptions::default());
    let down = view(&mut receiver, "a reason", |v| {
        v.freshness
            .reason()
            .unwrap_or_default()
            .contains("switched off")
    })
    .await;
    assert!(!down.synced);
    assert!(down.snapshot.pools.is_empty());
    store.set_unavailable(false);
    assert_eq!(third(&fresh(&mut receiver).await, "a"), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_halfway_changes_nothing() {
    let store = MemoryStore::new();
    put(&store, "a", 1);
    let mut receiver = started(&store).await;
    for nth in 1..=3 {
        store.fail_read(nth * SYNC_READS, "cut in the middle");
    }
    put(&store, "a", 2);
    store.cut_watches("for the test");
    loop {
        receiver.changed().await.unwrap();
        let view = receiver.borrow_and_update().clone();
        assert_eq!(view.snapshot.pools.len(), 1);
        if view.is_current() && third(&view, "a") == Some(2) {
            break;
        }
    }
    assert_eq!(store.reads(), (1 + 3 + 1) * SYNC_READS);
}

#[tokio::test(start_paused = true)]
async fn watch_4_a_restored_backup_counts_though_it_is_older() {
    let log = TestLog::capture();
    let store = MemoryStore::new();
    put(&store, "a", 1);
    let backup = store.backup();
    put(&store, "a", 2);
    put(&store, "b", 2);
    let mut receiver = started(&store).await;
    store.restore(&backup);
    let mut unsure = false;
    let restored = loop {
        receiver.changed().await.unwrap();
        let view = receiver.borrow_and_update().clone();
        if view.is_current() {
            break view;
        }
        unsure = true;
        assert_eq!(third(&view, "b"), Some(2), "nothing is dropped on doubt");
    };
    assert!(unsure);
    assert_eq!(restored.snapshot.revision, 2);
    assert_eq!(third(&restored, "a"), Some(1));
    assert_eq!(third(&restored, "b"), None);
    assert_eq!(log.count("older revision than before"), 1);
    // And it goes on from there.
    put(&store, "c", 3);
    let next = view(&mut receiver, "c", |v| third(v, "c") == Some(3)).await;
    assert_eq!(next.snapshot.revision, 3);
}

#[tokio::test(start_paused = true)]
async fn watch_4_the_same_revision_with_another_value_is_seen() {
    let store = MemoryStore::new();
    put(&store, "a", 1);
    let backup = store.backup();
    let before = put(&store, "a", 2);
    let mut receiver = started(&store).await;
    store.set_unavailable(true);
    store.restore(&backup);
    assert_eq!(put(&store, "a", 3), before);
    store.set_unavailable(false);
    view(&mut receiver, "a = 3", |v| {
        v.is_current() && third(v, "a") == Some(3)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn watch_4_a_restore_at_any_moment_of_a_sync_is_noticed() {
    // Each call takes a second: the look at the revision, the watch, the list.
    for millis in [500, 1500, 2500, 3500] {
        // The restored datastore may stay behind the old revision or pass it.
        for further in [0, 200] {
            let store = MemoryStore::new();
            put(&store, "a", 1);
            let backup = store.backup();
            for i in 2..100 {
                put(&store, "a", i);
            }
            put(&store, "gone", 1);
            store.set_latency(Duration::from_secs(1));
            let mut receiver = spawn_watcher(store.clone(), WatchOptions::default());
            sleep(Duration::from_millis(millis)).await;
            store.restore(&backup);
            for i in 0..further {
                put(&store, "b", i);
            }
            let last = if further == 0 {
                None
            } else {
                Some(further - 1)
            };
            let right = |v: &View| {
                v.is_current()
                    && third(v, "a") == Some(1)
                    && third(v, "gone").is_none()
                    && third(v, "b") == last
            };
            let start = Instant::now();
            view(&mut receiver, "the restored data", right).await;
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{millis} {further}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_stays_behind_is_not_fresh() {
    let store = MemoryStore::new();
    let backup = store.backup();
    put(&store, "a", 1);
    let lagging = Fragile::new(&store, &MemoryStore::new());
    lagging.watched.restore(&backup);
    let mut receiver = spawn_watcher(lagging, WatchOptions::default());
    fresh(&mut receiver).await;
    let start = Instant::now();
    let late = view(&mut receiver, "not fresh", |v| !v.is_current()).await;
    assert_eq!(late.freshness.as_str(), "lagging");
    assert_eq!(start.elapsed(), Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn watch_5_a_panic_makes_the_view_stale() {
    let inner = MemoryStore::new();
    let store = Fragile::new(&inner, &inner);
    put(&store.inner, "a", 1);
    let mut receiver = spawn_watcher(store.clone(), WatchOptions::default());
    fresh(&mut receiver).await;
    let log = TestLog::capture();
    store.broken.store(true, Ordering::SeqCst);
    store.inner.cut_watches("for the test");
    while receiver.changed().await.is_ok() {}
    let last = receiver.borrow().clone();
    assert_eq!(last.freshness.as_str(), "stale");
    assert!(last.freshness.reason().unwrap().contains("panic"));
    assert_eq!(third(&last, "a"), Some(1));
    assert_eq!(log.count("the watcher ended in a panic"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_when_nobody_listens() {
    let store = MemoryStore::new();
    let receiver = started(&store).await;
    assert_eq!(store.watches(), 1);
    drop(receiver);
    let gone = async {
        while store.watches() > 0 {
            advance(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), gone).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn watch_6_invalid_values_are_logged_once_and_when_corrected() {
    let log = TestLog::capture();
    let store = MemoryStore::new();
    put(&store, "good", 1);
    store.put(key("bad"), "{nonsense");
    let mut receiver = started(&store).await;
    let first = fresh(&mut receiver).await;
    assert!(first.snapshot.is_doubtful());
    assert_eq!(log.count("ippools/bad"), 1);
    assert_eq!(log.count("is ignored until it is corrected"), 1);
    // The same list again says nothing new.
    store.cut_watches("for the test");
    view(&mut receiver, "stale", |v| !v.is_current()).await;
    fresh(&mut receiver).await;
    assert_eq!(log.count("ippools/bad"), 1);
    // A good value that turns bad stays in use.
    store.put(
        key("good"),
        r#"{"metadata":{"name":"good"},"spec":{"cidr":"10.0.0.0/99"}}"#,
    );
    let kept = view(&mut receiver, "two faults", |v| {
        v.snapshot.invalid.len() == 2
    })
    .await;
    assert_eq!(third(&kept, "good"), Some(1));
    assert_eq!(log.count("WARN"), 2 + 1, "two values and the cut stream");
    assert_eq!(log.count("last good value stays in use"), 1);
    put(&store, "good", 2);
    store.delete(key("bad"));
    view(&mut receiver, "no faults", |v| {
        v.snapshot.invalid.is_empty()
    })
    .await;
    assert_eq!(log.count("the value was corrected"), 1);
    assert_eq!(log.count("the invalid value was removed"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_more_and_more_rarely_and_at_its_end() {
    let log = TestLog::capture();
    let store = MemoryStore::new();
    let mut receiver = started(&store).await;
    store.set_unavailable(true);
    sleep(Duration::from_secs(300)).await;
    // At once, and after 30, 90 and 210 s.
    assert_eq!(log.count("cannot be followed"), 4);
    store.set_unavailable(false);
    fresh(&mut receiver).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(log.count("is followed again"), 1);
}

/// It is over with the list, whether anything happens then or not: the next one is told as one.
#[tokio::test(start_paused = true)]
async fn an_outage_is_over_with_the_list() {
    let log = TestLog::capture();
    let store = MemoryStore::new();
    let mut receiver = started(&store).await;
    for lines in [3, 5] {
        store.set_unavailable(true);
        sleep(Duration::from_secs(100)).await;
        store.set_unavailable(false);
        fresh(&mut receiver).await;
        assert_eq!(log.count("cannot be followed"), lines);
    }
    assert_eq!(log.count("is followed again"), 2);
}

#[tokio::test(start_paused = true)]
async fn handles_and_foreign_keys_make_no_views() {
    let store = MemoryStore::new();
    let mut receiver = started(&store).await;
    sleep(Duration::from_secs(1)).await;
    receiver.mark_unchanged();
    for foreign in [
        "/calico/ipam/v2/handle/k8s-pod-network.8f2c41",
        "/calico/ipam/v2/host/node-a",
        "/calico/resources/v3/projectcalico.org/networksets/default/a",
        "/calico/v1/Ready",
        "/registry/pods/a",
    ] {
        store.put(foreign, "{}");
    }
    sleep(Duration::from_secs(10)).await;
    assert!(!receiver.has_changed().unwrap());
    // The next view is at the revision of its own change.
    let revision = put(&store, "a", 1);
    let next = view(&mut receiver, "a", |v| third(v, "a") == Some(1)).await;
    assert_eq!(next.snapshot.revision, revision);
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_watched_is_listed() {
    // Whatever a watch makes of the data, a later list makes the same of it.
    let store = MemoryStore::new();
    let live = started(&store).await;
    put(&store, "a", 1);
    for (path, value) in [
        (
            "resources/v3/projectcalico.org/nodes/n",
            r#"{"metadata":{"name":"n"},"spec":{}}"#,
        ),
        (
            "resources/v3/projectcalico.org/bgpconfigurations/default",
            r#"{"metadata":{"name":"default"},"spec":{"asNumber":64513}}"#,
        ),
        (
            "resources/v3/projectcalico.org/workloadendpoints/default/w",
            r#"{"metadata":{"name":"w"},"spec":{"node":"n"}}"#,
        ),
        ("ipam/v2/assignment/ipv4/block/10.0.1.0-26", "{bad"),
        ("ipam/v2/assignment/ipv6/block/fd00::-122", "{bad"),
        (
            "ipam/v2/host/n/ipv4/block/10.0.1.0-26",
            r#"{"state":"confirmed"}"#,
        ),
        (
            "ipam/v2/virtual/load-balancer/ipv4/block/10.0.1.64-26",
            r#"{"state":"confirmed"}"#,
        ),
        (
            "ipam/v2/config",
            r#"{"strict_affinity":true,"auto_allocate_blocks":true}"#,
        ),
    ] {
        store.put(format!("/calico/{path}"), value);
    }
    sleep(Duration::from_secs(1)).await;
    let followed = live.borrow().snapshot.clone();
    let listed = started(&store).await.borrow().snapshot.clone();
    assert_eq!(*followed, *listed);
    assert_eq!(listed.bgp_configurations.len(), 1);
    assert_eq!(listed.affinities.len(), 2);
    assert_eq!(listed.invalid.len(), 2, "{:?}", listed.invalid);
    assert_eq!(listed.nodes.len(), 1);
    assert_eq!(listed.workloads.len(), 1);
    assert!(listed.ipam_config.is_some());
}
