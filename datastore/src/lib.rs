//! All etcd I/O of Caracal. Nothing else in the workspace names etcd.
//!
//! * [`store`]: the [`Store`](store::Store) trait: consistent reads, transactions, watches.

pub mod store;
