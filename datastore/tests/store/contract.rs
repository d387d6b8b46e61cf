//! The contract of `Store`, as a test of any implementor that starts empty.

use std::time::Duration;

use caracal_datastore::{Change, Store, StoreError, WatchEvent};
use caracal_model::{Compare, KeyRange, KeyValue, Txn, TxnOutcome, TxnWrite};
use futures_util::StreamExt;
use tokio::time::timeout;

/// Nothing in a test takes this long unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Holds a store to its contract. `compact` forgets history up to and including a revision.
pub(crate) async fn keeps<S: Store>(store: &S, compact: impl AsyncFn(i64)) {
    reads_and_writes(store).await;
    conditions(store).await;
    ranges(store).await;
    refusals(store).await;
    watch_tells_history_and_news(store).await;
    watch_loses_nothing_when_cancelled(store).await;
    races_have_one_winner(store).await;
    compaction(store, compact).await;
}

pub(crate) async fn committed<S: Store>(store: &S, txn: &Txn) -> i64 {
    match store.commit(txn).await.unwrap() {
        TxnOutcome::Committed(revision) => revision,
        TxnOutcome::Conflict => panic!("conflict: {txn:?}"),
    }
}

pub(crate) async fn put<S: Store>(store: &S, key: &str, value: &str) -> i64 {
    let mut txn = Txn::new();
    txn.writes.push(TxnWrite::Put(key.into(), value.into()));
    committed(store, &txn).await
}

pub(crate) async fn remove<S: Store>(store: &S, key: &str) -> i64 {
    let mut txn = Txn::new();
    txn.writes.push(TxnWrite::Delete(key.into()));
    committed(store, &txn).await
}

pub(crate) async fn get<S: Store>(store: &S, key: &str) -> Option<KeyValue> {
    let answer = store.read(&[KeyRange::Key(key.into())]).await.unwrap();
    assert_eq!(answer.ranges.len(), 1);
    assert!(answer.ranges[0].len() <= 1);
    answer.ranges[0].first().cloned()
}

pub(crate) async fn revision<S: Store>(store: &S) -> i64 {
    store.read(&[]).await.unwrap().revision
}

/// The next `count` changes; progress does not count.
pub(crate) async fn changes(
    watch: &mut (impl futures_util::Stream<Item = Result<WatchEvent, StoreError>> + Unpin),
    count: usize,
) -> Vec<Change> {
    let mut all = Vec::new();
    while all.len() < count {
        let next = timeout(LIMIT, watch.next()).await;
        match next.unwrap_or_else(|_| panic!("no event; so far {all:?}")) {
            Some(Ok(WatchEvent::Changes(some))) => all.extend(some),
            Some(Ok(WatchEvent::Progress(_) | WatchEvent::Alive)) => {}
            other => panic!("{other:?} after {all:?}"),
        }
    }
    assert_eq!(all.len(), count, "{all:?}");
    all
}

fn change(key: &str, value: Option<&str>, revision: i64) -> Change {
    Change {
        key: key.into(),
        value: value.map(|value| value.as_bytes().to_vec()),
        revision,
    }
}

async fn reads_and_writes<S: Store>(store: &S) {
    let start = revision(store).await;
    assert_eq!(get(store, "/rw/a").await, None);
    let first = committed(store, &Txn::new().create("/rw/a", b"1".to_vec())).await;
    assert_eq!(first, start + 1, "each transaction is one revision");
    let seen = get(store, "/rw/a").await.unwrap();
    assert_eq!(
        (seen.value.as_slice(), seen.mod_revision),
        (&b"1"[..], first)
    );
    let second = committed(store, &Txn::new().update("/rw/a", first, b"2".to_vec())).await;
    assert_eq!(get(store, "/rw/a").await.unwrap().value, b"2");
    let mut both = Txn::new().update("/rw/a", second, b"3".to_vec());
    both = both.create("/rw/b", b"1".to_vec());
    let third = committed(store, &both).await;
    assert_eq!(get(store, "/rw/a").await.unwrap().mod_revision, third);
    assert_eq!(get(store, "/rw/b").await.unwrap().mod_revision, third);
    let fourth = committed(store, &Txn::new().delete("/rw/a", third)).await;
    assert_eq!(fourth, third + 1);
    assert_eq!(get(store, "/rw/a").await, None);
    // An empty value is a value.
    put(store, "/rw/empty", "").await;
    assert_eq!(get(store, "/rw/empty").await.unwrap().value, b"");
}

async fn conditions<S: Store>(store: &S) {
    let revision = put(store, "/c/a", "1").await;
    let conflicts = [
        Txn::new().create("/c/a", b"x".to_vec()),
        Txn::new().update("/c/a", revision - 1, b"x".to_vec()),
        Txn::new().update("/c/none", revision, b"x".to_vec()),
        Txn::new().delete("/c/a", revision + 1),
        // One that does not hold spoils all.
        Txn::new()
            .update("/c/a", revision, b"x".to_vec())
            .create("/c/a2", b"x".to_vec())
            .delete("/c/none", revision),
    ];
    for txn in conflicts {
        assert_eq!(
            store.commit(&txn).await.unwrap(),
            TxnOutcome::Conflict,
            "{txn:?}"
        );
        assert_eq!(get(store, "/c/a").await.unwrap().mod_revision, revision);
        assert_eq!(get(store, "/c/a2").await, None);
    }
    // A transaction that changes nothing takes no revision.
    assert_eq!(committed(store, &Txn::new()).await, revision);
    assert_eq!(remove(store, "/c/none").await, revision);
    // A key that was never written has revision zero.
    let mut zero = Txn::new();
    zero.compare.push(Compare::Unchanged("/c/none".into(), 0));
    assert_eq!(committed(store, &zero).await, revision);
    // A key that was deleted is absent again.
    let gone = committed(store, &Txn::new().delete("/c/a", revision)).await;
    let back = committed(store, &Txn::new().create("/c/a", b"2".to_vec())).await;
    assert_eq!(back, gone + 1);
    // Conditions on other keys than those written.
    let mut guarded = Txn::new();
    guarded
        .compare
        .push(Compare::Unchanged("/c/a".into(), back));
    guarded
        .writes
        .push(TxnWrite::Put("/c/b".into(), b"1".to_vec()));
    assert_eq!(committed(store, &guarded).await, back + 1);
}

async fn ranges<S: Store>(store: &S) {
    for key in ["/r/b", "/r/a", "/r/a/x", "/r0", "/r/ü", "/r"] {
        put(store, key, key).await;
    }
    let asked = [
        KeyRange::Prefix("/r/".into()),
        KeyRange::Key("/r/a".into()),
        KeyRange::Key("/r/none".into()),
        KeyRange::Prefix("/r/none/".into()),
    ];
    let answer = store.read(&asked).await.unwrap();
    let keys: Vec<Vec<&str>> = answer
        .ranges
        .iter()
        .map(|range| range.iter().map(|kv| kv.key.as_str()).collect())
        .collect();
    assert_eq!(
        keys,
        [
            vec!["/r/a", "/r/a/x", "/r/b", "/r/ü"],
            vec!["/r/a"],
            vec![],
            vec![]
        ]
    );
    assert_eq!(answer.revision, revision(store).await);
    // More ranges than etcd takes in a transaction.
    let many: Vec<KeyRange> = (0..300).map(|_| KeyRange::Key("/r/b".into())).collect();
    let answer = store.read(&many).await.unwrap();
    assert_eq!(answer.ranges.len(), 300);
    assert!(answer.ranges.iter().all(|range| range.len() == 1));
    // The empty prefix is everything.
    let all = store
        .read(&[KeyRange::Prefix(String::new())])
        .await
        .unwrap();
    assert!(all.ranges[0].len() > 6);
    assert!(all.ranges[0].is_sorted_by(|a, b| a.key < b.key));
}

async fn refusals<S: Store>(store: &S) {
    let before = revision(store).await;
    let mut twice = Txn::new();
    let mut many = Txn::new();
    for i in 0..129 {
        many = many.create(format!("/no/{i}"), b"x".to_vec());
        if i < 2 {
            twice
                .writes
                .push(TxnWrite::Put("/no/twice".into(), b"x".to_vec()));
        }
    }
    let large = Txn::new().create("/no/large", vec![b'x'; 1_700_000]);
    for (what, txn) in [("twice", twice), ("many", many), ("large", large)] {
        let error = store.commit(&txn).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)), "{what}: {error:?}");
        assert!(!error.is_transient());
    }
    assert_eq!(revision(store).await, before);
    let full = (0..128).fold(Txn::new(), |txn, i| {
        txn.create(format!("/ok/{i:03}"), vec![b'x'; 4000])
    });
    assert_eq!(committed(store, &full).await, before + 1);
}

async fn watch_tells_history_and_news<S: Store>(store: &S) {
    let first = put(store, "/w/a", "1").await;
    let mut two = Txn::new().update("/w/a", first, b"2".to_vec());
    two = two.create("/w/b", b"1".to_vec());
    two = two.create("/elsewhere", b"1".to_vec());
    let second = committed(store, &two).await;
    let third = remove(store, "/w/a").await;

    let mut watch = store.watch("/w/", first).await.unwrap();
    let received = changes(&mut watch, 4).await;
    let expected = [
        change("/w/a", Some("1"), first),
        change("/w/a", Some("2"), second),
        change("/w/b", Some("1"), second),
        change("/w/a", None, third),
    ];
    assert_eq!(received, expected);
    let mut later = store.watch("/w/", second).await.unwrap();
    assert_eq!(
        changes(&mut later, 3).await,
        expected[1..],
        "the start is inclusive"
    );

    let fourth = put(store, "/w/c", "new").await;
    put(store, "/w", "not below").await;
    put(store, "/w0", "not below").await;
    for watch in [&mut watch, &mut later] {
        assert_eq!(
            changes(watch, 1).await,
            [change("/w/c", Some("new"), fourth)]
        );
        let quiet = timeout(LIMIT, watch.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(
            matches!(quiet, WatchEvent::Progress(r) if r >= fourth),
            "{quiet:?}"
        );
    }

    // All changes of one revision are one event.
    let whole = (0..100).fold(Txn::new(), |txn, i| {
        txn.create(format!("/w/x{i}"), vec![b'x'; 5000])
    });
    let revision = committed(store, &whole).await;
    let event = loop {
        match timeout(LIMIT, watch.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
        {
            WatchEvent::Progress(_) | WatchEvent::Alive => {}
            WatchEvent::Changes(changes) => break changes,
        }
    };
    assert_eq!(event.len(), 100);
    assert!(event.iter().all(|change| change.revision == revision));
}

async fn watch_loses_nothing_when_cancelled<S: Store>(store: &S) {
    let start = revision(store).await + 1;
    let mut watch = store.watch("/cancel/", start).await.unwrap();
    let writer = store.clone();
    let writing = tokio::spawn(async move {
        for i in 0..50 {
            put(&writer, "/cancel/a", &i.to_string()).await;
        }
    });
    let mut received = Vec::new();
    while received.len() < 50 {
        // Each round polls the watch once or a few times and drops the future.
        let next = tokio::select! {
            next = watch.next() => next,
            () = tokio::task::yield_now() => continue,
        };
        match next.unwrap().unwrap() {
            WatchEvent::Changes(changes) => received.extend(changes),
            WatchEvent::Progress(_) | WatchEvent::Alive => {}
        }
    }
    writing.await.unwrap();
    let values: Vec<String> = received
        .into_iter()
        .map(|change| String::from_utf8(change.value.unwrap()).unwrap())
        .collect();
    assert_eq!(values, (0..50).map(|i| i.to_string()).collect::<Vec<_>>());
}

async fn races_have_one_winner<S: Store>(store: &S) {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 10;
    put(store, "/race", "0").await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut done = 0;
                while done < ROUNDS {
                    let seen = get(&store, "/race").await.unwrap();
                    let number: usize = String::from_utf8(seen.value).unwrap().parse().unwrap();
                    let next = (number + 1).to_string().into_bytes();
                    let txn = Txn::new().update("/race", seen.mod_revision, next);
                    if store.commit(&txn).await.unwrap() != TxnOutcome::Conflict {
                        done += 1;
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let sum = (WRITERS * ROUNDS).to_string();
    assert_eq!(get(store, "/race").await.unwrap().value, sum.as_bytes());
}

async fn compaction<S: Store>(store: &S, compact: impl AsyncFn(i64)) {
    let old = put(store, "/compact/a", "1").await;
    let compacted = put(store, "/compact/a", "2").await;
    let kept = put(store, "/compact/a", "3").await;
    // A watch that is up to date when the compaction comes is not disturbed by it.
    let mut current = store.watch("/compact/", kept).await.unwrap();
    changes(&mut current, 1).await;
    compact(compacted).await;
    for asked in [old, compacted] {
        let mut watch = store.watch("/compact/", asked).await.unwrap();
        let end = loop {
            match timeout(LIMIT, watch.next()).await.unwrap() {
                Some(Ok(WatchEvent::Progress(_) | WatchEvent::Alive)) => {}
                Some(Err(error)) => break error,
                other => panic!("{other:?} from a watch at {asked}"),
            }
        };
        let expected = StoreError::Compacted {
            asked,
            oldest: compacted + 1,
        };
        assert_eq!(end.to_string(), expected.to_string());
        assert!(timeout(LIMIT, watch.next()).await.unwrap().is_none());
    }
    let mut watch = store.watch("/compact/", kept).await.unwrap();
    let received = changes(&mut watch, 1).await;
    assert_eq!(received, [change("/compact/a", Some("3"), kept)]);
    let last = put(store, "/compact/a", "4").await;
    let news = [change("/compact/a", Some("4"), last)];
    assert_eq!(changes(&mut current, 1).await, news);
    assert_eq!(changes(&mut watch, 1).await, news);
    assert_eq!(get(store, "/compact/a").await.unwrap().value, b"4");
}
