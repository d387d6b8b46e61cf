#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use caracal_datastore::{MemoryStore, TestFolder};
use serde_json::json;

use super::*;
use crate::attachment::{EndpointUid, Workload};

/// One that is not there yet, in one that goes with the test.
struct Folder {
    path: PathBuf,
    _kept: TestFolder,
}

impl Folder {
    fn new() -> Self {
        let kept = TestFolder::new("pending releases");
        Self {
            path: kept.join("lib"),
            _kept: kept,
        }
    }
}

fn attachment(container_id: &str) -> Attachment {
    Attachment {
        network: "pods".to_owned(),
        container_id: container_id.to_owned(),
        ifname: "eth0".to_owned(),
        workload: Workload::Container,
        node: "node-a".into(),
        uid: EndpointUid::Fresh,
        wired: true,
    }
}

fn pending_release(attachment: &Attachment) -> PendingRelease {
    PendingRelease {
        handle: Some(attachment.handle()),
        container_id: attachment.container_id.clone(),
        endpoint: Some(attachment.endpoint_key().to_path()),
        left_at: "2026-01-05T10:11:12Z".to_owned(),
    }
}

fn endpoint_of(container_id: &str) -> Vec<u8> {
    json!({"spec": {"containerID": container_id}})
        .to_string()
        .into_bytes()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn none_is_left_where_nothing_was_ever_left() {
    let folder = Folder::new();
    assert_eq!(list_pending_releases(&folder.path).unwrap(), []);
    let replayed = block_on(replay_pending_releases(&MemoryStore::new(), &folder.path)).unwrap();
    assert!(replayed.done.is_empty() && replayed.failed.is_empty() && !replayed.busy);
    assert!(!folder.path.exists(), "looking makes no directory");
}

#[test]
fn cni_4_a_replay_that_fails_keeps_the_note() {
    let folder = Folder::new();
    let store = MemoryStore::new();
    let (one, two) = (attachment("aaaa"), attachment("bbbb"));
    for attachment in [&one, &two] {
        write(&folder.path, attachment, &pending_release(attachment)).unwrap();
        store.put(
            attachment.endpoint_key().to_path(),
            endpoint_of(&attachment.container_id),
        );
    }
    assert_eq!(
        list_pending_releases(&folder.path).unwrap(),
        [pending_release(&one), pending_release(&two)]
    );
    store.set_unavailable(true);
    let replayed = block_on(replay_pending_releases(&store, &folder.path)).unwrap();
    assert_eq!((replayed.done.len(), replayed.failed.len()), (0, 2));
    assert_eq!(list_pending_releases(&folder.path).unwrap().len(), 2);
    store.set_unavailable(false);
    let replayed = block_on(replay_pending_releases(&store, &folder.path)).unwrap();
    assert_eq!(replayed.done, ["aaaa", "bbbb"]);
    assert_eq!(list_pending_releases(&folder.path).unwrap(), []);
    assert_eq!(store.get(&one.endpoint_key().to_path()), None);
}

#[test]
fn cni_3_a_replay_spares_the_endpoint_of_a_newer_container() {
    let folder = Folder::new();
    let store = MemoryStore::new();
    let one = attachment("aaaa");
    write(&folder.path, &one, &pending_release(&one)).unwrap();
    let key = one.endpoint_key().to_path();
    store.put(key.clone(), endpoint_of("newer"));
    assert_eq!(
        block_on(replay_pending_releases(&store, &folder.path))
            .unwrap()
            .done,
        ["aaaa"]
    );
    assert!(store.get(&key).is_some());
}

#[test]
fn cni_5_one_replays_at_a_time() {
    let folder = Folder::new();
    let store = MemoryStore::new();
    let one = attachment("aaaa");
    write(&folder.path, &one, &pending_release(&one)).unwrap();
    let (lock, _) = lock_file(&folder.path).unwrap();
    lock.lock().unwrap();
    assert!(
        block_on(replay_pending_releases(&store, &folder.path))
            .unwrap()
            .busy
    );
    let replayed = block_on(replay_of(&store, &folder.path, &one, Patience::None));
    assert!(
        matches!(replayed, Err(PendingReleaseError::Busy)),
        "{replayed:?}"
    );
    assert_eq!(list_pending_releases(&folder.path).unwrap().len(), 1);
    drop(lock);
    block_on(replay_of(&store, &folder.path, &one, Patience::Endless)).unwrap();
    assert_eq!(list_pending_releases(&folder.path).unwrap(), []);
}

#[test]
fn a_broken_note_is_named_and_does_not_stop_the_others() {
    let folder = Folder::new();
    let store = MemoryStore::new();
    let one = attachment("bbbb");
    write(&folder.path, &one, &pending_release(&one)).unwrap();
    let broken = folder.path.join(DIRECTORY).join("pods.aaaa.json");
    fs::write(&broken, "{").unwrap();
    let replayed = block_on(replay_pending_releases(&store, &folder.path)).unwrap();
    assert_eq!(replayed.done, ["bbbb"]);
    assert!(
        replayed.failed[0]
            .to_string()
            .contains("pods.aaaa.json\" is no pending release")
    );
    assert!(broken.exists());
}

#[tokio::test]
async fn the_lock_is_no_link() {
    let lib = Folder::new();
    let pending_release = PendingRelease {
        handle: None,
        container_id: "8f2c".to_owned(),
        endpoint: None,
        left_at: String::new(),
    };
    write(&lib.path, &attachment("8f2c"), &pending_release).unwrap();
    let victim = lib.path.join("victim");
    std::os::unix::fs::symlink(&victim, lib.path.join(DIRECTORY).join(LOCK)).unwrap();
    let replayed = replay_pending_releases(&MemoryStore::new(), &lib.path).await;
    assert!(replayed.is_err(), "{replayed:?}");
    assert!(!victim.exists());
}
