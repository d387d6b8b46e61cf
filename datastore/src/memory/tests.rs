#![allow(clippy::unwrap_used)]
use std::time::Duration;

use caracal_model::{Txn, TxnOutcome};
use futures_util::StreamExt;

use super::*;
use crate::store::{Change, WatchEvent};

fn change(key: &str, value: Option<&str>, revision: i64) -> Change {
    Change {
        key: key.into(),
        value: value.map(|v| v.into()),
        revision,
    }
}

#[tokio::test(start_paused = true)]
async fn scripted_commit_faults_happen_once_and_in_turn() {
    let store = MemoryStore::new();
    store.conflict_on_commit(1);
    store.fail_commit(2, CommitFault::Lost);
    store.fail_commit(3, CommitFault::AnswerLost);
    let create = Txn::new().create("/k", b"v".to_vec());
    assert_eq!(store.commit(&create).await.unwrap(), TxnOutcome::Conflict);
    assert!(store.commit(&create).await.unwrap_err().is_transient());
    assert_eq!(store.get("/k"), None);
    assert!(store.commit(&create).await.unwrap_err().is_transient());
    assert_eq!(store.get("/k").unwrap().mod_revision, 2);
    assert_eq!(store.commit(&create).await.unwrap(), TxnOutcome::Conflict);
    assert_eq!(store.commits(), 4);
}

#[tokio::test(start_paused = true)]
async fn another_writer_can_come_in_between() {
    let store = MemoryStore::new();
    let revision = store.put("/k", "1");
    store.before_commit(1, |store| {
        store.put("/k", "theirs");
    });
    let mine = Txn::new().update("/k", revision, b"mine".to_vec());
    assert_eq!(store.commit(&mine).await.unwrap(), TxnOutcome::Conflict);
    assert_eq!(store.get("/k").unwrap().value, b"theirs");
}

#[tokio::test(start_paused = true)]
async fn a_stalled_watch_says_nothing_then_catches_up() {
    let store = MemoryStore::new();
    let mut watch = store.watch("/", 2).await.unwrap();
    assert_eq!(
        watch.next().await.unwrap().unwrap(),
        WatchEvent::Progress(1)
    );
    store.stall_watches(true);
    store.put("/a", "1");
    let silent = tokio::time::timeout(Duration::from_secs(3600), watch.next()).await;
    assert!(silent.is_err());
    store.stall_watches(false);
    assert_eq!(
        watch.next().await.unwrap().unwrap(),
        WatchEvent::Changes(vec![change("/a", Some("1"), 2)])
    );
    assert_eq!(
        watch.next().await.unwrap().unwrap(),
        WatchEvent::Progress(2)
    );
    assert_eq!(store.watches(), 1);
    drop(watch);
    assert_eq!(store.watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn switched_off_cuts_streams_and_fails_calls() {
    let store = MemoryStore::new();
    let mut watch = store.watch("/", 2).await.unwrap();
    store.set_unavailable(true);
    assert!(watch.next().await.unwrap().unwrap_err().is_transient());
    assert!(watch.next().await.is_none());
    assert!(store.read(&[]).await.is_err());
    assert!(store.watch("/", 2).await.is_err());
    store.set_unavailable(false);
    assert!(store.read(&[]).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_restored_backup_brings_back_an_older_revision() {
    let store = MemoryStore::new();
    store.put("/a", "old");
    let backup = store.backup();
    store.put("/a", "new");
    store.put("/b", "new");
    let mut watch = store.watch("/", 5).await.unwrap();
    store.restore(&backup);
    assert!(watch.next().await.unwrap().is_err());
    let answer = store.read(&[KeyRange::Prefix("/".into())]).await.unwrap();
    assert_eq!(answer.revision, 2);
    assert_eq!(answer.ranges[0].len(), 1);
    assert_eq!(answer.ranges[0][0].value, b"old");
}

#[tokio::test(start_paused = true)]
async fn latency_is_virtual_time() {
    let store = MemoryStore::new();
    store.set_latency(Duration::from_secs(60));
    let start = tokio::time::Instant::now();
    store.read(&[]).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(60));
}
