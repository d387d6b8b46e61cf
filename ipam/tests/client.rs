//! The client on a datastore in memory.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, missing_docs)]

mod world;

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_datastore::MemoryStore;
use caracal_ipam::{AssignRequest, Client};
use world::{node, pool};

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
    guess.likely_blocks = vec![first.v4[0].block];
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
