//! All I/O with the datastore: etcd, or Kubernetes' API. Nothing else in the workspace talks to
//! either.
//!
//! # Order of calls
//!
//! 1. `DatastoreConfig` from the environment, then `open`: a `Datastore`, and no connection yet.
//!    Tests take a [`MemoryStore`], which has the same contract and faults on demand.
//! 2. [`Store::read`] and [`Store::commit`] for single questions: reads at one revision,
//!    transactions that compare what they read.
//! 3. [`spawn_watcher`], or [`spawn_guarded_watcher`] with what a lost or foreign datastore must
//!    not do: lists, then watches, and publishes a [`View`]: the latest `Snapshot` and how far it
//!    may be trusted ([`Freshness`]). Nothing is deleted while it is not fresh.
//!
//! ```
//! use caracal_datastore::{MemoryStore, WatchOptions, spawn_watcher};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let pool = r#"{"metadata":{"name":"p"},"spec":{"cidr":"10.0.0.0/16"}}"#;
//! let revision = store.put("/calico/resources/v3/projectcalico.org/ippools/p", pool);
//!
//! let mut views = spawn_watcher(store.clone(), WatchOptions::default());
//! let view = views.wait_for(|view| view.synced).await?.clone();
//! assert_eq!(view.snapshot.revision, revision);
//! assert_eq!(view.snapshot.pools.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! The feature `testing` has `EtcdServer`, a real etcd, `TestFolder`, which goes with its test, and
//! `TestLog`, the lines that a test logs.

#[cfg(feature = "etcd")]
mod etcd;
mod files;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod kubernetes_pod;
mod memory;
#[cfg(feature = "etcd")]
mod open;
mod ordered;
mod patience;
mod rarely;
mod secret;
mod store;
#[cfg(feature = "testing")]
mod testing;
mod watch;

#[cfg(feature = "etcd")]
pub use etcd::{EtcdConfig, EtcdConfigError, EtcdCredentials, EtcdStore};
pub use files::{
    PUBLIC_MODE, SECRET_MODE, SMALL_FILE, create_file, draft_of, make_folder, open_lock_file,
    open_to_append, put_file, read_file, read_text_file,
};
#[cfg(feature = "kubernetes")]
pub use kubernetes::{KubernetesConfig, KubernetesConfigError, KubernetesStore, introduce_as};
pub use kubernetes_pod::KubernetesPod;
pub use memory::{CommitFault, MemoryStore};
#[cfg(feature = "etcd")]
pub use open::{Datastore, DatastoreConfig, DatastoreConfigError, DatastoreWatch};
pub use ordered::{CommitStep, OrderedCommit, StepResult};
pub use patience::PATIENCE;
pub use rarely::Rarely;
pub use secret::SecretContent;
pub use store::{
    Change, Cursor, FirstPages, Page, PagedStore, PluginAccess, ReadAnswer, Store, StoreError,
    WatchEvent,
};
#[cfg(feature = "testing")]
pub use testing::{EtcdServer, TestFolder, TestLog};
pub use watch::{
    Accept, Accepted, Accepter, DatastoreFault, EndpointReader, Freshness, GuardOptions, StoreId,
    View, WatchOptions, spawn_guarded_watcher, spawn_watcher,
};
