//! All etcd I/O of Caracal. Nothing else in the workspace names etcd.
//!
//! * [`store`]: the [`Store`](store::Store) trait: consistent reads, transactions, watches.
//! * [`memory`]: a datastore in memory with scriptable faults, for tests.

pub mod memory;
pub mod store;

pub use memory::MemoryStore;
pub use store::Store;
