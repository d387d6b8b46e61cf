//! The datastore that the environment names: etcd, or Kubernetes' API, behind one type. Without the
//! feature `kubernetes` the latter is refused.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
#[cfg(feature = "kubernetes")]
use std::time::Duration;

use caracal_model::{KeyRange, KeyValue, NodeName, Prefix, Timestamp, Txn, TxnOutcome};
use futures_util::{Stream, StreamExt as _, stream::BoxStream};
use serde_json::Value;

use crate::etcd::{EtcdConfig, EtcdConfigError, EtcdStore};
#[cfg(feature = "kubernetes")]
use crate::kubernetes::{KubernetesConfig, KubernetesConfigError, KubernetesStore};
use crate::kubernetes_pod::KubernetesPod;
use crate::secret::SecretContent;
use crate::store::{
    Cursor, FirstPages, Page, PagedStore, PluginAccess, ReadAnswer, Store, StoreError, WatchEvent,
};
use crate::watch::WatchOptions;

/// Requests a second of a node's daemon, other than lists and watches, as kubelet has them. All
/// nodes of a cluster do what they do at the same time after an outage.
#[cfg(feature = "kubernetes")]
const REQUESTS_PER_SECOND: u32 = 50;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatastoreConfigError {
    /// A kind of datastore that is not read.
    #[error(
        "DATASTORE_TYPE={0}: not a kind of datastore; expected etcdv3, with ETCD_ENDPOINTS, or kubernetes"
    )]
    Type(String),
    /// etcd's settings.
    #[error(transparent)]
    Etcd(#[from] EtcdConfigError),
    /// A setting that etcd has nothing for.
    #[error(
        "USE_POD_CIDR={0}: ranges of nodes are in Kubernetes' API; set DATASTORE_TYPE=kubernetes, or take it out"
    )]
    UsePodCidr(String),
    /// The program has no client of Kubernetes' API.
    #[error(
        "DATASTORE_TYPE=kubernetes: this program was built without the client of Kubernetes' API; build it with \
         `cargo build --release -p caracal`, or run an etcd for Calico's data, set DATASTORE_TYPE=etcdv3 and name it \
         in ETCD_ENDPOINTS"
    )]
    NotBuilt,
    /// Those of Kubernetes' API.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Kubernetes(#[from] KubernetesConfigError),
}

/// How to reach the datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatastoreConfig {
    /// `DATASTORE_TYPE=etcdv3`, the default.
    Etcd(Box<EtcdConfig>),
    /// In Kubernetes' API.
    #[cfg(feature = "kubernetes")]
    Kubernetes(Box<KubernetesConfig>),
}

impl DatastoreConfig {
    /// Reads Calico's variables from the environment: `DATASTORE_TYPE`, which is `etcdv3` when it
    /// is not set, and those of [`EtcdConfig`] or `KubernetesConfig`.
    ///
    /// # Errors
    /// The datastore is of no kind that is read here, or its settings contradict one another.
    pub fn from_env() -> Result<Self, DatastoreConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Like [`DatastoreConfig::from_env`] from any source of variables.
    ///
    /// # Errors
    /// As for [`DatastoreConfig::from_env`].
    pub fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, DatastoreConfigError> {
        let kind = lookup("DATASTORE_TYPE").unwrap_or_default();
        match kind.trim() {
            "" | "etcdv3" => {
                let ranges = lookup("USE_POD_CIDR").unwrap_or_default();
                match ranges.trim().to_ascii_lowercase().as_str() {
                    "" | "false" | "f" | "0" => {}
                    _ => return Err(DatastoreConfigError::UsePodCidr(ranges)),
                }
                Ok(Self::Etcd(Box::new(EtcdConfig::from_lookup(lookup)?)))
            }
            #[cfg(not(feature = "kubernetes"))]
            "kubernetes" => Err(DatastoreConfigError::NotBuilt),
            #[cfg(feature = "kubernetes")]
            "kubernetes" => {
                let config = KubernetesConfig::from_lookup(lookup)?;
                Ok(Self::Kubernetes(Box::new(config)))
            }
            other => Err(DatastoreConfigError::Type(other.to_owned())),
        }
    }

    /// What the daemon of a node lists and watches, where the store can choose: a watch of etcd
    /// tells of everything. Of pods this node's; Services where their addresses are announced, or
    /// `translates_services`; where it `enforces_policy` all pods, and what else policies ask for.
    #[must_use]
    pub fn for_node(
        self,
        node: &NodeName,
        translates_services: bool,
        enforces_policy: bool,
    ) -> Self {
        match self {
            Self::Etcd(config) => {
                let _everything = (node, translates_services, enforces_policy);
                Self::Etcd(config)
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(mut config) => {
                config.pods_of = Some(node.clone());
                config.enforces_policy = enforces_policy;
                config.follow_services = translates_services;
                config.requests_per_second = REQUESTS_PER_SECOND;
                Self::Kubernetes(config)
            }
        }
    }

    /// Programs that a kubeconfig names for credentials are started: for commands, at whose
    /// terminal somebody may log in.
    #[must_use]
    pub fn with_programs(self) -> Self {
        match self {
            Self::Etcd(config) => Self::Etcd(config),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(mut config) => {
                config.programs = true;
                Self::Kubernetes(config)
            }
        }
    }

    /// Host and port of each endpoint.
    ///
    /// # Errors
    /// A kubeconfig cannot be read, or no way to Kubernetes' API is known.
    pub fn hosts(&self) -> Result<Vec<(String, u16)>, DatastoreConfigError> {
        Ok(match self {
            Self::Etcd(config) => config.hosts().collect(),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(config) => config.hosts()?,
        })
    }

    /// Opens it. Nothing is connected yet.
    ///
    /// # Errors
    /// A setting is missing, malformed, or contradicts another one.
    pub fn open(self) -> Result<Datastore, DatastoreConfigError> {
        Ok(match self {
            Self::Etcd(config) => Datastore::Etcd(EtcdStore::new(*config)?),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(config) => Datastore::Kubernetes(KubernetesStore::new(*config)),
        })
    }
}

/// The datastore of a process. Clones share the connections.
#[derive(Clone, Debug)]
pub enum Datastore {
    /// Transactions over any keys, one revision for everything.
    Etcd(EtcdStore),
    /// In Kubernetes' API.
    #[cfg(feature = "kubernetes")]
    Kubernetes(KubernetesStore),
}

impl Datastore {
    /// Opens what the environment names.
    ///
    /// # Errors
    /// As for [`DatastoreConfig::from_env`] and [`DatastoreConfig::open`].
    pub fn from_env() -> Result<Self, DatastoreConfigError> {
        DatastoreConfig::from_env()?.open()
    }

    /// Kubernetes' API as the environment names it, although the datastore may be another one: in
    /// etcd clusters it has the pods, and the account of their plugin.
    ///
    /// # Errors
    /// As for [`DatastoreConfig::from_env`] and [`DatastoreConfig::open`].
    pub fn kubernetes_from_env() -> Result<Self, DatastoreConfigError> {
        DatastoreConfig::from_lookup(|name| match name {
            "DATASTORE_TYPE" => Some("kubernetes".to_owned()),
            name => std::env::var(name).ok(),
        })?
        .open()
    }

    /// Its name in messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd",
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => "Kubernetes' API",
        }
    }

    /// The addresses of its servers, for messages.
    #[must_use]
    pub fn endpoints(&self) -> &str {
        match self {
            Self::Etcd(store) => store.endpoints(),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.endpoints(),
        }
    }

    /// Where an answer that does not come is to be looked for.
    #[must_use]
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "check ETCD_ENDPOINTS",
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => "check KUBECONFIG or K8S_API_ENDPOINT, and the account's rights",
        }
    }

    /// Revisions are of one object or one kind: having heard of a later one does not prove that
    /// everything before it was heard.
    #[must_use]
    pub const fn counts_by_kind(&self) -> bool {
        match self {
            Self::Etcd(_) => false,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => true,
        }
    }

    /// The watcher's times for it: how long a live stream may be silent.
    #[must_use]
    pub fn watch_options(&self) -> WatchOptions {
        match self {
            Self::Etcd(_) => WatchOptions::default(),
            // A dead connection is found after 15 s, and that its watches cannot be opened again
            // after 5 more; with HTTP/1.1 one probe every 10 s, whose answer may take 5 s.
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => WatchOptions {
                lagging_after: Duration::from_secs(20),
                reconnect_after: Duration::from_secs(30),
                stale_after: Duration::from_secs(40),
                ..WatchOptions::default()
            },
        }
    }

    /// Tells that a node's network is up, where somebody waits for that: the condition
    /// `NetworkUnavailable` of Kubernetes' Node, with a reason and a message. `false`: nothing was
    /// to be written.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tell_network_is_up(
        &self,
        node: &NodeName,
        now: Timestamp,
        said: (&str, &str),
    ) -> Result<bool, StoreError> {
        match self {
            Self::Etcd(_) => {
                let _nobody_waits = (node, now, said);
                Ok(false)
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.tell_network_is_up(node, now, said).await,
        }
    }

    /// Sets annotations of Kubernetes' Node through its status, removes those that are null, and
    /// leaves the others. Answers with the Node's revision.
    ///
    /// # Errors
    /// [`StoreError`]; in etcd nothing can be annotated.
    pub async fn annotate_node(
        &self,
        node: &NodeName,
        annotations: &Value,
    ) -> Result<i64, StoreError> {
        match self {
            Self::Etcd(_) => {
                let _none = (node, annotations);
                Err(StoreError::Refused("etcd has no Nodes".to_owned()))
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.annotate_node(node, annotations).await,
        }
    }

    /// The node that a pod of Kubernetes runs on; `None`: there is no such pod, or it has none yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn node_of_pod(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<NodeName>, StoreError> {
        match self {
            Self::Etcd(_) => {
                let _none = (namespace, name);
                Ok(None)
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.node_of_pod(namespace, name).await,
        }
    }

    /// A way to the datastore in the name of a service account, for the CNI plugin; `None` where
    /// there are no such accounts.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn plugin_access(&self, account: &str) -> Result<Option<PluginAccess>, StoreError> {
        match self {
            Self::Etcd(_) => {
                let _none = account;
                Ok(None)
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.plugin_access(account).await.map(Some),
        }
    }

    /// A pod as Kubernetes has it, with its namespace; `None` when there is no such pod, and in
    /// etcd, which has none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pod(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<KubernetesPod>, StoreError> {
        match self {
            Self::Etcd(_) => {
                let _none = (namespace, name);
                Ok(None)
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.pod(namespace, name).await,
        }
    }

    /// The ranges of a Node's pods (`spec.podCIDRs`), for the plugin `host-local`; `None` when
    /// there is no such Node, and in etcd.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pod_cidrs(&self, node: &NodeName) -> Result<Option<Vec<Prefix>>, StoreError> {
        match self {
            Self::Etcd(_) => {
                let _none = node;
                Ok(None)
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.pod_cidrs(node).await,
        }
    }

    /// Nodes are made and deleted by Kubernetes alone, so that one that is gone was deleted there.
    #[must_use]
    pub const fn has_nodes_of_kubernetes(&self) -> bool {
        self.counts_by_kind()
    }

    /// There are Secrets beside Calico's data.
    #[must_use]
    pub const fn has_secrets(&self) -> bool {
        match self {
            Self::Etcd(_) => false,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => true,
        }
    }

    /// A Secret of Kubernetes, now and after each change, for ever; `None` in etcd, which has none.
    #[must_use]
    pub fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Option<BoxStream<'static, Result<SecretContent, StoreError>>> {
        match self {
            Self::Etcd(_) => {
                let _none = (namespace, name);
                None
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => Some(store.secret(namespace, name)),
        }
    }

    /// Each Node's `podCIDRs` are its blocks, and nothing of IPAM is stored (`USE_POD_CIDR`).
    #[must_use]
    pub fn uses_pod_cidr(&self) -> bool {
        match self {
            Self::Etcd(_) => false,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.uses_pod_cidr(),
        }
    }

    /// Says that this machine has these addresses no more: a connection from one of them is given
    /// up.
    pub async fn addresses_gone(&self, gone: &BTreeSet<IpAddr>) {
        match self {
            Self::Etcd(store) => store.addresses_gone(gone).await,
            // Each request has a limit, and a probe finds that nothing is answered.
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => {}
        }
    }
}

/// The watch of a [`Datastore`].
pub struct DatastoreWatch(BoxStream<'static, Result<WatchEvent, StoreError>>);

impl fmt::Debug for DatastoreWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatastoreWatch").finish_non_exhaustive()
    }
}

impl Stream for DatastoreWatch {
    type Item = Result<WatchEvent, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl Store for Datastore {
    type Watch = DatastoreWatch;

    async fn read(&self, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
        match self {
            Self::Etcd(store) => store.read(ranges).await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.read(ranges).await,
        }
    }

    async fn pod_ranges(&self) -> Result<Vec<Prefix>, StoreError> {
        match self {
            Self::Etcd(store) => store.pod_ranges().await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.pod_ranges().await,
        }
    }

    async fn service_ranges(&self) -> Result<Vec<Prefix>, StoreError> {
        match self {
            Self::Etcd(store) => store.service_ranges().await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.service_ranges().await,
        }
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        match self {
            Self::Etcd(store) => store.commit(txn).await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.commit(txn).await,
        }
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Self::Watch, StoreError> {
        let watch = match self {
            Self::Etcd(store) => store.watch(prefix, revision).await?.boxed(),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.watch(prefix, revision).await?.boxed(),
        };
        Ok(DatastoreWatch(watch))
    }
}

impl PagedStore for Datastore {
    async fn first_pages(&self, ranges: &[KeyRange]) -> Result<FirstPages, StoreError> {
        match self {
            Self::Etcd(store) => store.first_pages(ranges).await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.first_pages(ranges).await,
        }
    }

    async fn next_page(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Page, StoreError> {
        match self {
            Self::Etcd(store) => store.next_page(range, from, revision).await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.next_page(range, from, revision).await,
        }
    }

    async fn next_keys(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Option<Page>, StoreError> {
        match self {
            Self::Etcd(store) => store.next_keys(range, from, revision).await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.next_keys(range, from, revision).await,
        }
    }

    async fn values(&self, keys: &[String], revision: i64) -> Result<Vec<KeyValue>, StoreError> {
        match self {
            Self::Etcd(store) => store.values(keys, revision).await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(store) => store.values(keys, revision).await,
        }
    }
}

#[cfg(test)]
mod tests;
