//! All etcd I/O of Caracal. Nothing else in the workspace names etcd.
//!
//! * [`store`]: the [`Store`] trait: consistent reads, transactions, watches.
//! * `etcd` (feature `etcd`): the implementor over etcd v3.
//! * [`watch`]: list and watch into a `Snapshot`, with fresh, lagging and stale.
//! * [`memory`]: a datastore in memory with scriptable faults, for tests.
//! * `testing` (feature `testing`): a real etcd for the tests of this and other crates.

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod watch;

#[cfg(feature = "etcd")]
pub use etcd::{EtcdConfig, EtcdStore, PATIENCE};
pub use memory::MemoryStore;
pub use store::Store;
pub use watch::{Freshness, View, WatchOptions};
