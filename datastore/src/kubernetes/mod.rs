//! [`KubernetesStore`]: the [`Store`] over Kubernetes' API, where Calico's data are objects.
//!
//! The layers above know keys and values in etcd's form; `mapping` makes objects of them. A
//! transaction becomes Calico's ordered writes ([`OrderedCommit`](crate::OrderedCommit)), each with
//! the resourceVersion or the absence compared by the server, and deletions of IPAM's objects in
//! two steps.
//!
//! * **Revisions.** A resourceVersion is that of one object, or of the list of one kind. The API
//!   servers that there are count them in one row for all kinds of one etcd, which is what a view's
//!   revision is read from. Kinds are listed one after the other, so a snapshot is not of one
//!   moment: the revision of a list is the oldest of them, and what changed since is told by the
//!   watch.
//! * **Watches.** One for each kind that is followed; of pods only this node's unless policies ask
//!   for all, of Nodes metadata only, of handles none. A watch that the server ends goes on from
//!   the last revision that was told; one that is too old (410), or cannot be had again, ends the
//!   stream: the caller lists.
//! * **Liveness.** A watch is silent for minutes when nothing changes. Over HTTP/2 its connection
//!   is pinged, and one object is asked for now and then, from the server's memory; where it is not
//!   pinged, every few seconds.

mod access;
mod api;
mod budget;
mod config;
mod connection;
mod kubeconfig;
mod lines;
mod lists;
mod mapping;
mod plugin_access;
mod pod;
mod program;
mod read;
mod rights;
mod secrets;
mod services;
mod streamed;
mod tls;
mod watch;
mod write;

use std::sync::Arc;

use caracal_model::{KeyRange, KeyValue, NodeName, Prefix, Timestamp, Txn, TxnOutcome};
use futures_util::stream::BoxStream;
use serde_json::Value;

use self::api::Api;
pub use self::config::{KubernetesConfig, KubernetesConfigError};
pub use self::connection::introduce_as;
use self::streamed::StreamedLists;
use self::watch::KubernetesWatch;
use crate::kubernetes_pod::KubernetesPod;
use crate::secret::SecretContent;
use crate::store::{
    Cursor, FirstPages, Page, PagedStore, PluginAccess, ReadAnswer, Store, StoreError,
};

/// A datastore in Kubernetes' API. Clones share the connections.
#[derive(Clone, Debug)]
pub struct KubernetesStore {
    api: Arc<Api>,
    streams: Arc<StreamedLists>,
}

impl KubernetesStore {
    /// A store that reads its files and connects when it is first used.
    #[must_use]
    pub fn new(config: KubernetesConfig) -> Self {
        Self {
            api: Arc::new(Api::new(config)),
            streams: Arc::default(),
        }
    }

    /// The server's address, for messages.
    #[must_use]
    pub fn endpoints(&self) -> &str {
        self.api.server()
    }
}

impl KubernetesStore {
    /// The ranges that kubeadm was told in a field of the ConfigMap.
    async fn cluster_ranges(&self, field: &'static str) -> Result<Vec<Prefix>, StoreError> {
        let ranges = pod::cluster_ranges(&self.api, field).await;
        ranges.map_err(|failure| failure.into_error(self.api.server(), "the ConfigMap"))
    }
}

impl KubernetesStore {
    /// Sets the condition `NetworkUnavailable` of a Node to False, with a reason and a message.
    /// `false`: it was.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn tell_network_is_up(
        &self,
        node: &NodeName,
        now: Timestamp,
        said: (&str, &str),
    ) -> Result<bool, StoreError> {
        let written = write::network_is_up(&self.api, node, now, said).await;
        written.map_err(|failure| failure.into_error(self.api.server(), "the Node"))
    }

    /// Sets annotations of a Node, through its status. Answers with its revision.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn annotate_node(
        &self,
        node: &NodeName,
        annotations: &Value,
    ) -> Result<i64, StoreError> {
        let written = write::annotate_node(&self.api, node, annotations).await;
        written.map_err(|failure| failure.into_error(self.api.server(), "the Node"))
    }
}

impl KubernetesStore {
    /// A kubeconfig for a service account in Caracal's namespace.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn plugin_access(&self, account: &str) -> Result<PluginAccess, StoreError> {
        let issued = plugin_access::issue(&self.api, account).await;
        let what = format!("the service account {account}");
        issued.map_err(|failure| failure.into_error(self.api.server(), &what))
    }
}

impl KubernetesStore {
    /// A pod with its namespace; `None`: there is no such pod.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn pod(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<KubernetesPod>, StoreError> {
        let pod = pod::read(&self.api, namespace, name).await;
        pod.map_err(|failure| failure.into_error(self.api.server(), "the pod"))
    }

    /// The node that a pod runs on; `None`: there is no such pod, or it has none yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn node_of_pod(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<NodeName>, StoreError> {
        let node = pod::node(&self.api, namespace, name).await;
        node.map_err(|failure| failure.into_error(self.api.server(), "the pod"))
    }

    /// The ranges of a Node's pods; `None`: there is no such Node.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn pod_cidrs(
        &self,
        node: &NodeName,
    ) -> Result<Option<Vec<Prefix>>, StoreError> {
        let cidrs = pod::pod_cidrs(&self.api, node).await;
        cidrs.map_err(|failure| failure.into_error(self.api.server(), "the Node"))
    }

    /// A Secret, now and after each change.
    pub(crate) fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> BoxStream<'static, Result<SecretContent, StoreError>> {
        secrets::follow(&self.api, namespace, name)
    }

    /// Each Node's `podCIDRs` are its blocks.
    pub(crate) fn uses_pod_cidr(&self) -> bool {
        self.api.config.use_pod_cidr
    }
}

impl Store for KubernetesStore {
    type Watch = KubernetesWatch;

    async fn read(&self, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
        read::read(&self.api, ranges).await
    }

    async fn pod_ranges(&self) -> Result<Vec<Prefix>, StoreError> {
        self.cluster_ranges(pod::OF_PODS).await
    }

    async fn service_ranges(&self) -> Result<Vec<Prefix>, StoreError> {
        self.cluster_ranges(pod::OF_SERVICES).await
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        write::commit(&self.api, txn).await
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Self::Watch, StoreError> {
        KubernetesWatch::open(&self.api, prefix, revision).await
    }
}

impl PagedStore for KubernetesStore {
    async fn first_pages(&self, ranges: &[KeyRange]) -> Result<FirstPages, StoreError> {
        read::first_pages(&self.api, &self.streams, ranges).await
    }

    async fn next_page(
        &self,
        range: &KeyRange,
        from: &Cursor,
        revision: i64,
    ) -> Result<Page, StoreError> {
        read::next_page(&self.api, &self.streams, range, from, revision).await
    }

    async fn next_keys(
        &self,
        _range: &KeyRange,
        _from: &Cursor,
        _revision: i64,
    ) -> Result<Option<Page>, StoreError> {
        Ok(None)
    }

    async fn values(&self, keys: &[String], _revision: i64) -> Result<Vec<KeyValue>, StoreError> {
        let ranges: Vec<KeyRange> = keys.iter().cloned().map(KeyRange::Key).collect();
        let answer = read::read(&self.api, &ranges).await?;
        Ok(answer.ranges.into_iter().flatten().collect())
    }
}
