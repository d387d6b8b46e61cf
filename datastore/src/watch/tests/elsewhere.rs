//! Effect of pods on other nodes on a node's view, and lists that are read in parts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use caracal_model::{
    AllocationAttribute, Block, BlockOwner, Key, NodeName, Prefix, Snapshot, endpoint_name,
};
use proptest::prelude::*;
use tokio::time::{sleep, timeout};

use super::fixture::{Receiver, SYNC_READS, fresh, key, on_paused_clock, put, third, view};
use crate::memory::MemoryStore;
use crate::watch::{EndpointReader, View, WatchOptions, spawn_watcher};

const BLOCK: &str = "10.1.0.0/29";

fn options(reader: EndpointReader) -> WatchOptions {
    WatchOptions {
        whole_blocks_of: Some("me".into()),
        endpoint_reader: reader,
        ..WatchOptions::default()
    }
}

async fn started(store: &MemoryStore, reader: EndpointReader) -> Receiver {
    let mut receiver = spawn_watcher(store.clone(), options(reader));
    fresh(&mut receiver).await;
    sleep(Duration::from_secs(1)).await;
    receiver.mark_unchanged();
    receiver
}

/// A block with who has its first addresses.
fn put_block(store: &MemoryStore, cidr: &str, owner: &str, nodes: &[&str]) {
    let cidr: Prefix = cidr.parse().unwrap();
    let mut block = Block::new(cidr, Some(&BlockOwner::Host(owner.into())), 1);
    for (ordinal, node) in nodes.iter().enumerate() {
        let mut attribute = AllocationAttribute::default();
        attribute.secondary.insert("node".into(), (*node).into());
        block.attributes.push(attribute);
        block.allocations[ordinal] = Some(ordinal);
    }
    store.put(Key::Block(cidr).to_path(), block.to_json());
}

fn put_endpoint(store: &MemoryStore, name: &str, node: &str, address: &str) {
    let value = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default","labels":{{"a":"b"}}}},"spec":{{"node":"{node}","ipNetworks":["{address}/32"]}}}}"#
    );
    store.put(Key::workload("default", name).to_path(), value);
}

async fn rest(receiver: &Receiver) -> bool {
    sleep(Duration::from_secs(5)).await;
    receiver.has_changed().unwrap()
}

#[tokio::test(start_paused = true)]
async fn watch_9_a_pod_elsewhere_wakes_nobody_and_is_found_by_who_asks() {
    let store = MemoryStore::new();
    put_block(&store, BLOCK, "other", &["other"]);
    let mut receiver = started(&store, EndpointReader::default()).await;

    put_block(&store, BLOCK, "other", &["other", "other"]);
    store.put("/calico/ipam/v2/handle/k8s-pod-network.8f2c41", "{}");
    put_endpoint(&store, "theirs", "other", "10.1.0.1");
    assert!(!rest(&receiver).await, "{:?}", receiver.borrow());
    let seen = receiver.borrow().snapshot.clone();
    assert_eq!(seen.revision, store.revision());
    // A reader that has followed the last wake is in step with later quiet changes; one that has
    // not is behind.
    let woken = receiver.borrow().revision;
    assert!(woken < seen.revision);
    assert_eq!(receiver.borrow().followed(woken), seen.revision);
    assert_eq!(receiver.borrow().followed(woken - 1), woken - 1);
    assert_eq!(
        seen.block_of(&"10.1.0.1".parse().unwrap()).unwrap().in_use,
        2
    );
    assert_eq!((seen.workload_count(), seen.elsewhere.len()), (2, 0));

    store.delete(Key::workload("default", "theirs").to_path());
    put_block(&store, BLOCK, "other", &["other"]);
    assert!(!rest(&receiver).await);
    assert!(receiver.borrow().snapshot.elsewhere.is_empty());

    // The first address that another node borrows leads somewhere else.
    put_block(&store, BLOCK, "other", &["other", "third"]);
    assert!(rest(&receiver).await, "a borrowed address");
    receiver.mark_unchanged();
    // As does another owner, and everything of our own.
    put_block(&store, BLOCK, "third", &["other", "third"]);
    assert!(rest(&receiver).await, "another owner");
    receiver.mark_unchanged();
    put_endpoint(&store, "ours", "me", "10.2.0.1");
    assert!(rest(&receiver).await, "an endpoint of ours");
    receiver.mark_unchanged();
    put_block(&store, "10.2.0.0/29", "me", &["me"]);
    put_block(&store, "10.2.0.0/29", "me", &["me", "me"]);
    assert!(rest(&receiver).await, "a block of ours");
    receiver.mark_unchanged();
    store.delete(Key::Block(BLOCK.parse().unwrap()).to_path());
    assert!(rest(&receiver).await, "a block that is gone");
}

#[tokio::test(start_paused = true)]
async fn watch_9_an_endpoint_elsewhere_wakes_who_reads_it() {
    let store = MemoryStore::new();
    let etcd: IpAddr = "10.1.0.7".parse().unwrap();
    let reader = EndpointReader::new(|_| false, move |range| range.contains(etcd));
    let mut receiver = started(&store, reader).await;
    put_endpoint(&store, "web", "other", "10.1.0.1");
    assert!(!rest(&receiver).await);
    put_endpoint(&store, "etcd", "other", "10.1.0.7");
    assert!(rest(&receiver).await, "it came");
    receiver.mark_unchanged();
    store.delete(Key::workload("default", "etcd").to_path());
    assert!(rest(&receiver).await, "it is gone");
    receiver.mark_unchanged();
    put_block(&store, "10.1.0.0/29", "other", &["other"]);
    receiver.mark_unchanged();
    assert!(rest(&receiver).await, "a new block");
    receiver.mark_unchanged();
    // The block that holds its address says as much as its endpoint.
    put_block(&store, "10.1.0.0/29", "other", &["other"; 8]);
    assert!(rest(&receiver).await, "its address is given out");
}

/// A block of another node with one pod for each name, and their endpoints.
fn put_pods(store: &MemoryStore, cidr: &str, node: &str, pods: &[&str]) {
    let cidr: Prefix = cidr.parse().unwrap();
    let mut block = Block::new(cidr, Some(&BlockOwner::Host(node.into())), 1);
    for (ordinal, pod) in pods.iter().enumerate() {
        let mut attribute = AllocationAttribute::default();
        for (key, value) in [("node", node), ("namespace", "default"), ("pod", pod)] {
            attribute.secondary.insert(key.into(), value.into());
        }
        block.attributes.push(attribute);
        block.allocations[ordinal] = Some(ordinal);
        let address = cidr.nth(ordinal as u128).unwrap().to_string();
        put_endpoint(store, &endpoint_of(node, pod), node, &address);
    }
    store.put(Key::Block(cidr).to_path(), block.to_json());
}

fn endpoint_of(node: &str, pod: &str) -> String {
    endpoint_name(node, "k8s", pod, "eth0")
}

fn kept(view: &View) -> Vec<&str> {
    view.snapshot.elsewhere.keys().map(|key| &**key).collect()
}

#[tokio::test(start_paused = true)]
async fn watch_10_an_endpoint_that_its_block_accounts_for_is_not_read() {
    let store = MemoryStore::new();
    store.set_page(2);
    put_pods(&store, BLOCK, "other", &["a", "b", "c"]);
    // A value that nobody reads cannot be found wrong.
    let unread = Key::workload("default", &endpoint_of("other", "a")).to_path();
    store.put(unread, "no JSON");
    // Its block was lost before; and one in a block of ours.
    put_endpoint(&store, &endpoint_of("other", "lost"), "other", "10.9.0.1");
    put_pods(&store, "10.2.0.0/29", "me", &["mine"]);
    put_endpoint(&store, &endpoint_of("other", "guest"), "other", "10.2.0.3");
    let mut receiver = spawn_watcher(store.clone(), options(EndpointReader::default()));
    let seen = fresh(&mut receiver).await;
    assert!(seen.snapshot.invalid.is_empty(), "{seen:?}");
    assert_eq!(seen.snapshot.workloads.len(), 1);
    let expected = [
        "default/other-k8s-guest-eth0",
        "default/other-k8s-lost-eth0",
    ];
    assert_eq!(kept(&seen), expected);
    // Blocks, and the keys of the endpoints with two values at a time.
    let (blocks, keys, values) = (0, 2, 2);
    assert_eq!(store.reads(), SYNC_READS + blocks + keys + values);
}

#[tokio::test(start_paused = true)]
async fn watch_10_a_block_that_is_lost_leaves_its_endpoints_behind() {
    let store = MemoryStore::new();
    put_pods(&store, BLOCK, "other", &["a", "b"]);
    let mut receiver = started(&store, EndpointReader::default()).await;
    assert!(kept(&receiver.borrow()).is_empty());
    // As it goes in order, the pods before their block, nothing has to be read again.
    put_pods(&store, "10.3.0.0/29", "other", &["c"]);
    sleep(Duration::from_secs(1)).await;
    let reads = store.reads();
    store.delete(Key::workload("default", &endpoint_of("other", "c")).to_path());
    put_block(&store, "10.3.0.0/29", "other", &[]);
    store.delete(Key::Block("10.3.0.0/29".parse().unwrap()).to_path());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(store.reads(), reads);
    // Whoever sees that the block is gone sees the endpoints that have its addresses.
    store.delete(Key::Block(BLOCK.parse().unwrap()).to_path());
    let seen = view(&mut receiver, "no block", |view| {
        view.snapshot.blocks.is_empty()
    })
    .await;
    let expected = ["default/other-k8s-a-eth0", "default/other-k8s-b-eth0"];
    assert_eq!(kept(&seen), expected);
}

#[tokio::test(start_paused = true)]
async fn watch_10_all_endpoints_are_there_as_soon_as_something_follows_from_them() {
    let store = MemoryStore::new();
    put_pods(&store, BLOCK, "other", &["a", "b"]);
    let all = |snapshot: &Snapshot| !snapshot.felix_configurations.is_empty();
    let mut receiver = started(&store, EndpointReader::new(all, |_| false)).await;
    assert!(kept(&receiver.borrow()).is_empty());
    let felix = "/calico/resources/v3/projectcalico.org/felixconfigurations/default";
    store.put(felix, r#"{"metadata":{"name":"default"},"spec":{}}"#);
    let mut seen = receiver.clone();
    let with = view(&mut seen, "the setting", |view| all(&view.snapshot)).await;
    assert_eq!(kept(&with).len(), 2);
    store.delete(felix);
    let without = view(&mut seen, "no setting", |view| !all(&view.snapshot)).await;
    assert!(kept(&without).is_empty());
    drop(receiver.borrow_and_update());
}

#[tokio::test(start_paused = true)]
async fn a_list_in_parts_is_whole_or_nothing() {
    let store = MemoryStore::new();
    store.set_page(2);
    for n in 0..7 {
        put(&store, &n.to_string(), n);
    }
    let mut receiver = spawn_watcher(store.clone(), WatchOptions::default());
    let first = fresh(&mut receiver).await;
    assert_eq!(first.snapshot.pools.len(), 7);
    // A look at the revision, the first parts, three more.
    assert_eq!(store.reads(), SYNC_READS + 3);

    // The third part of the next list fails: nothing has changed, and the list begins anew.
    store.fail_read(4, "for the test");
    store.cut_watches("for the test");
    put(&store, "0", 100);
    store.delete(key("6"));
    loop {
        receiver.changed().await.unwrap();
        let seen = receiver.borrow_and_update().clone();
        if seen.is_current() {
            assert_eq!((third(&seen, "0"), third(&seen, "6")), (Some(100), None));
            break;
        }
        assert_eq!((third(&seen, "0"), third(&seen, "6")), (Some(0), Some(6)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_revision_is_compacted_begins_again() {
    let store = MemoryStore::new();
    store.set_page(2);
    for n in 0..7 {
        put(&store, &n.to_string(), n);
    }
    store.set_latency(Duration::from_millis(10));
    let mut receiver = spawn_watcher(store.clone(), WatchOptions::default());
    // Between the first parts and the last.
    sleep(Duration::from_millis(45)).await;
    assert!(!receiver.borrow().synced);
    put(&store, "7", 7);
    put(&store, "8", 8);
    store.compact(store.revision());
    let seen = view(&mut receiver, "all", |view| view.snapshot.pools.len() == 9).await;
    assert!(seen.synced);
    assert!(store.reads() > 2 * SYNC_READS + 3, "{}", store.reads());
}

/// Data that routes and announcements are made from.
fn leads(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let blocks = snapshot.blocks.values().map(|block| {
        let guests: Vec<_> = block.used_elsewhere().collect();
        let text = format!("{:?} {guests:?} {:?}", block.owner, block.whole());
        (block.cidr.to_string(), text)
    });
    let own = snapshot.workloads.iter();
    let own = own.map(|((_, name), w)| (name.clone(), format!("{:?}", w.spec)));
    blocks.chain(own).collect()
}

#[derive(Clone, Debug)]
enum Event {
    Block(u8, usize, Vec<usize>),
    NoBlock(u8),
    Endpoint(u8, usize),
    NoEndpoint(u8),
    Wait(u16),
    Cut,
    Compact,
}

const NODES: [&str; 3] = ["me", "other", "third"];

fn event() -> impl Strategy<Value = Event> {
    let nodes = proptest::collection::vec(0..3_usize, 0..4);
    prop_oneof![
        6 => (0..3_u8, 0..3_usize, nodes).prop_map(|(b, o, n)| Event::Block(b, o, n)),
        1 => (0..3_u8).prop_map(Event::NoBlock),
        4 => (0..4_u8, 0..3_usize).prop_map(|(e, n)| Event::Endpoint(e, n)),
        2 => (0..4_u8).prop_map(Event::NoEndpoint),
        4 => (0..400_u16).prop_map(Event::Wait),
        1 => Just(Event::Cut),
        1 => Just(Event::Compact),
    ]
}

async fn happen(store: &MemoryStore, event: Event) {
    let cidr = |block: u8| format!("10.1.{block}.0/29");
    let name = |endpoint: u8| Key::workload("default", &format!("e{endpoint}")).to_path();
    match event {
        Event::Block(block, owner, nodes) => {
            let nodes: Vec<_> = nodes.into_iter().map(|node| NODES[node]).collect();
            put_block(store, &cidr(block), NODES[owner], &nodes);
        }
        Event::NoBlock(block) => {
            store.delete(Key::Block(cidr(block).parse().unwrap()).to_path());
        }
        Event::Endpoint(endpoint, node) => {
            let address = format!("10.1.9.{endpoint}");
            put_endpoint(store, &format!("e{endpoint}"), NODES[node], &address);
        }
        Event::NoEndpoint(endpoint) => drop(store.delete(name(endpoint))),
        Event::Wait(millis) => sleep(Duration::from_millis(millis.into())).await,
        Event::Cut => store.cut_watches("for the test"),
        Event::Compact => store.compact(store.revision()),
    }
}

proptest! {
    /// WATCH-9: what is kept of a history is what is kept of a whole read, and who was woken last
    /// knows all that anything follows from.
    #[test]
    fn what_is_kept_of_a_history_is_what_is_kept_of_a_whole_read(
        events in proptest::collection::vec(event(), 0..60),
        page in 1..4_usize,
    ) {
        on_paused_clock(async move {
            let store = MemoryStore::new();
            store.set_page(page);
            let mut receiver = spawn_watcher(store.clone(), options(EndpointReader::default()));
            let mut sleeper = receiver.clone();
            let woken = tokio::spawn(async move {
                let mut last = sleeper.borrow_and_update().snapshot.clone();
                while let Ok(Ok(())) = timeout(Duration::from_secs(40), sleeper.changed()).await {
                    last = sleeper.borrow_and_update().snapshot.clone();
                }
                last
            });
            for event in events {
                happen(&store, event).await;
            }
            sleep(Duration::from_secs(30)).await;
            let seen = view(&mut receiver, "current", View::is_current).await.snapshot;
            let mut expected = Snapshot {
                whole_blocks_of: Some(NodeName::from("me")),
                ..Snapshot::default()
            };
            for kv in store.list("/calico/") {
                expected.apply(&kv.key, Some(&kv.value), kv.mod_revision);
            }
            expected.revision = seen.revision;
            assert_eq!(*seen, expected);
            let woken = woken.await.unwrap();
            assert_eq!(leads(&woken), leads(&expected));
        });
    }
}
