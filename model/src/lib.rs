//! The vocabulary of Caracal: prefixes, names, Calico's resources and IPAM data, selectors, etcd
//! keys and the [`Snapshot`] of a datastore at one revision.
//!
//! This crate is pure data. It never opens a socket or a file, never reads a clock, and holds no
//! behaviour beyond parsing, printing, comparing and indexing. Everything is level-triggered: a
//! [`Snapshot`] says what is, never what happened.
//!
//! Invariants, cited by tests:
//!
//! * `MODEL-1`: `serialise(parse(value))` keeps every field this crate does not know.
//! * `MODEL-2`: a [`Prefix`] never has host bits set.
//! * `MODEL-3`: `Key::parse(key.to_path()) == key` for every key of Calico's layout that is
//!   modelled.
//! * `MODEL-4`: a value that does not parse never changes a snapshot's good data; it becomes a
//!   [`Problem`](snapshot::Problem) with key and reason, and the last good value stays.

pub mod announcement;
pub mod code;
pub mod ipam;
pub mod keys;
mod merge_join;
pub mod names;
pub mod net;
pub mod resource;
mod schema;
pub mod selector;
mod shared_map;
pub mod snapshot;
pub mod status;
pub mod time;
pub mod txn;

pub use keys::Key;
pub use merge_join::merge_join;
pub use names::NodeName;
pub use net::{Family, Prefix};
pub use schema::{Schema, Target, WriteRule};
pub use shared_map::SharedMap;
pub use snapshot::Snapshot;
