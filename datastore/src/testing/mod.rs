//! A real etcd for tests, started and stopped by them. Product code must not use this module.
//!
//! Another crate's tests say `caracal-datastore = { workspace = true, features = ["etcd",
//! "testing"] }` under `[dev-dependencies]`, and then:
//!
//! ```no_run
//! use caracal_datastore::EtcdServer;
//!
//! let Some(server) = EtcdServer::start() else { return };
//! let endpoints = [server.endpoint()]; // for EtcdConfig::new
//! # drop(endpoints);
//! ```
//!
//! [`EtcdServer::start`] prints why and returns `None` where the program `etcd` is not installed,
//! unless the environment has `CARACAL_REQUIRE_ETCD`: then it panics. Dropping the server kills the
//! process and removes its files, also while a test panics.

mod certificates;
mod folder;
mod log;
mod server;

pub(crate) use certificates::Certificates;
pub use folder::TestFolder;
pub use log::TestLog;
pub use server::EtcdServer;
