//! Both implementors of `Store` keep the same contract; etcd also survives what networks and
//! operators do.

#![allow(clippy::unwrap_used, missing_docs)]

mod contract;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "etcd")]
mod follow;
#[cfg(feature = "etcd")]
mod proxy;

use caracal_datastore::MemoryStore;

#[tokio::test]
async fn memory_keeps_the_contract() {
    let store = MemoryStore::new();
    let compacted = store.clone();
    contract::keeps(&store, async |revision| compacted.compact(revision)).await;
}
