//! Random histories of a datastore.

use std::time::Duration;

use caracal_model::Snapshot;
use proptest::prelude::*;
use tokio::time::{sleep, timeout};

use super::fixture::{key, on_paused_clock, put};
use crate::memory::MemoryStore;
use crate::watch::{View, WatchOptions, spawn_watcher};

/// Event of a datastore's history.
#[derive(Clone, Debug)]
enum Event {
    Put(u8, u8),
    Delete(u8),
    Wait(u16),
    Cut,
    Stall(bool),
    Unavailable(bool),
    FailRead(u8),
    Compact,
    Backup,
    Restore,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..5_u8, 0..250_u8).prop_map(|(name, value)| Event::Put(name, value)),
        2 => (0..5_u8).prop_map(Event::Delete),
        4 => (0..3000_u16).prop_map(Event::Wait),
        1 => Just(Event::Cut),
        2 => any::<bool>().prop_map(Event::Stall),
        2 => any::<bool>().prop_map(Event::Unavailable),
        1 => (1..4_u8).prop_map(Event::FailRead),
        1 => Just(Event::Compact),
        1 => Just(Event::Backup),
        1 => Just(Event::Restore),
    ]
}

async fn happen(store: &MemoryStore, events: Vec<Event>) {
    let mut backup = store.backup();
    for event in events {
        match event {
            Event::Put(name, value) => {
                put(store, &name.to_string(), value);
            }
            Event::Delete(name) => {
                store.delete(key(&name.to_string()));
            }
            Event::Wait(millis) => sleep(Duration::from_millis(millis.into())).await,
            Event::Cut => store.cut_watches("for the test"),
            Event::Stall(on) => store.stall_watches(on),
            Event::Unavailable(on) => store.set_unavailable(on),
            Event::FailRead(nth) => store.fail_read(nth.into(), "for the test"),
            Event::Compact => store.compact(store.revision()),
            Event::Backup => backup = store.backup(),
            Event::Restore => store.restore(&backup),
        }
    }
    store.stall_watches(false);
    store.set_unavailable(false);
}

proptest! {
    /// WATCH-2, WATCH-3, WATCH-4: whatever happens, the view ends up equal to the datastore.
    #[test]
    fn any_history_ends_in_the_datastores_content(
        events in proptest::collection::vec(event(), 0..60),
        latency in 0..50_u64,
    ) {
        on_paused_clock(async move {
            let store = MemoryStore::new();
            store.set_latency(Duration::from_millis(latency));
            let mut receiver = spawn_watcher(store.clone(), WatchOptions::default());
            happen(&store, events).await;
            let mut expected = Snapshot::default();
            for kv in store.list("/calico/") {
                expected.apply(&kv.key, Some(&kv.value), kv.mod_revision);
            }
            let equal = |v: &View| v.is_current() && v.snapshot.pools == expected.pools;
            let healed = timeout(Duration::from_secs(60), receiver.wait_for(equal))
                .await
                .is_ok();
            assert!(healed, "expected {:?}, seen {:?}", expected.pools, receiver.borrow());
        });
    }
}
