//! Where leases are: in etcd, or in the annotations of Kubernetes' Nodes. Whoever follows them sees
//! keys and values of etcd's form.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use caracal_datastore::{Datastore, EtcdStore, Store, StoreError, WatchEvent};
use caracal_model::{Key, KeyRange, NodeName, Timestamp, Txn, TxnOutcome, resources_prefix};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use serde_json::{Value, json};

use crate::acquire::{
    Acquire, AcquireError, AcquireInput, AcquireRequest, AcquireStep, FlannelKeys, OwnLease,
};
use crate::config::Families;
use crate::lease::NodeSubnets;
use crate::leases::LeaseTable;
use crate::nodes::{NodeAnnotations, NodeLeases};

/// Reason and message of the Node's condition, flannel's own.
const NETWORK_IS_UP: (&str, &str) = ("FlannelIsUp", "Flannel is running on this node");

/// Why there is no lease, or no news of leases.
#[derive(Debug, thiserror::Error)]
pub enum LeaseStoreError {
    /// It does not answer, or refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no lease to be had.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
}

/// Where leases are.
#[derive(Clone, Debug)]
pub enum LeaseStore {
    /// In etcd.
    Etcd(EtcdStore),
    /// In the annotations of Kubernetes' Nodes.
    Kubernetes(KubernetesNode),
}

/// The Nodes of Kubernetes, one of which is this machine's.
#[derive(Clone, Debug)]
pub struct KubernetesNode {
    /// The API.
    pub store: Datastore,
    /// This machine's Node.
    pub name: NodeName,
    /// Names of annotations.
    pub annotations: NodeAnnotations,
    /// The Node's condition `NetworkUnavailable` is set to False.
    pub sets_condition: bool,
}

impl KubernetesNode {
    /// The Node as the datastore has it, with its revision.
    ///
    /// # Errors
    /// [`LeaseStoreError`], also when there is no such Node.
    pub async fn read(&self) -> Result<(Value, i64), LeaseStoreError> {
        let key = KeyRange::Key(Key::node(&self.name).to_path());
        let answer = self.store.read(&[key]).await?;
        let stored = answer.ranges.into_iter().flatten().next();
        let node =
            stored.and_then(|kv| Some((serde_json::from_slice(&kv.value).ok()?, kv.mod_revision)));
        node.ok_or_else(|| {
            LeaseStoreError::Acquire(AcquireError::Node {
                node: self.name.to_string(),
                reason: "is not there".to_owned(),
            })
        })
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<OwnLease, LeaseStoreError> {
        let (node, revision) = self.read().await?;
        let claim = self.annotations.claim(&node, revision, request)?;
        let mut own = claim.own;
        if !claim.changed.is_empty() {
            let changed = json!(claim.changed);
            own.revision = self.store.annotate_node(&self.name, &changed).await?;
        }
        if self.sets_condition {
            let now = Timestamp::from(SystemTime::now());
            self.store
                .tell_network_is_up(&self.name, now, NETWORK_IS_UP)
                .await?;
        }
        Ok(own)
    }
}

/// Reads the network's configuration in etcd, `None` when there is none; with the revision at which
/// that was so.
///
/// # Errors
/// [`StoreError`] when etcd does not answer.
pub async fn read_config(
    store: &EtcdStore,
    keys: &FlannelKeys,
) -> Result<(i64, Option<Vec<u8>>), StoreError> {
    let answer = store.read(&[KeyRange::Key(keys.config())]).await?;
    let first = answer.ranges.into_iter().flatten().next();
    Ok((answer.revision, first.map(|stored| stored.value)))
}

/// Waits until the configuration may be another one than at a revision.
///
/// # Errors
/// [`StoreError`] when it cannot be followed.
pub async fn config_changed(
    store: &EtcdStore,
    keys: &FlannelKeys,
    revision: i64,
) -> Result<(), StoreError> {
    let key = keys.config();
    let mut watch = store.watch(&key, revision + 1).await?;
    while let Some(event) = watch.next().await {
        match event {
            Ok(WatchEvent::Changes(changes)) if changes.iter().any(|c| c.key == key) => break,
            // An etcd that was set up anew or restored.
            Ok(WatchEvent::Progress(now)) if now < revision => break,
            Ok(_) => {}
            Err(StoreError::Compacted { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes the network's configuration, so that no node comes anew. False when there was none.
///
/// # Errors
/// [`StoreError`] when etcd does not answer.
pub async fn remove_config(store: &EtcdStore, keys: &FlannelKeys) -> Result<bool, StoreError> {
    remove_key(store, &keys.config()).await
}

/// Gives the lease of a node up. False when there was none.
///
/// # Errors
/// [`LeaseStoreError`].
pub async fn remove_lease(
    store: &LeaseStore,
    keys: &FlannelKeys,
    subnets: &NodeSubnets,
) -> Result<bool, LeaseStoreError> {
    match store {
        LeaseStore::Etcd(store) => Ok(remove_key(store, &keys.lease(subnets)).await?),
        LeaseStore::Kubernetes(node) => {
            let (object, _) = node.read().await?;
            let was_there = node.annotations.is_managed(&object);
            if was_there {
                let none = node.annotations.none();
                node.store.annotate_node(&node.name, &none).await?;
            }
            Ok(was_there)
        }
    }
}

async fn remove_key(store: &EtcdStore, key: &str) -> Result<bool, StoreError> {
    loop {
        let answer = store.read(&[KeyRange::Key(key.to_owned())]).await?;
        let Some(stored) = answer.ranges.into_iter().flatten().next() else {
            return Ok(false);
        };
        let txn = Txn::new().delete(key, stored.mod_revision);
        if let TxnOutcome::Committed(_) = store.commit(&txn).await? {
            return Ok(true);
        }
    }
}

/// Takes or renews the lease of a node. After an error it may have been taken all the same: another
/// call finds it.
///
/// # Errors
/// [`LeaseStoreError`].
pub async fn acquire_lease(
    store: &LeaseStore,
    request: &AcquireRequest,
) -> Result<OwnLease, LeaseStoreError> {
    let lease = match store {
        LeaseStore::Etcd(store) => acquire_in_etcd(store, request).await?,
        LeaseStore::Kubernetes(node) => node.acquire(request).await?,
    };
    tracing::info!(
        subnets = %lease.subnets, rev = lease.revision, reserved = lease.reserved,
        "lease: {}", lease.origin.as_str()
    );
    Ok(lease)
}

async fn acquire_in_etcd(
    store: &EtcdStore,
    request: &AcquireRequest,
) -> Result<OwnLease, LeaseStoreError> {
    let mut machine = Acquire::new(request.clone());
    let mut seen = AcquireInput::Start;
    loop {
        seen = match machine.step(seen) {
            AcquireStep::Read(range) => {
                let (revision, values) = store.read_leased(&range).await?;
                AcquireInput::Read { revision, values }
            }
            AcquireStep::Commit(txn) => match store.commit_leased(&txn).await? {
                TxnOutcome::Committed(revision) => AcquireInput::Committed(revision),
                TxnOutcome::Conflict => AcquireInput::Conflict,
            },
            AcquireStep::Done(lease) => return Ok(lease),
            AcquireStep::Failed(error) => return Err(error.into()),
        };
    }
}

/// The leases of all nodes as they are now, and how long each lasts still where it ends by itself.
///
/// # Errors
/// [`StoreError`] when they cannot be read.
pub async fn list_leases(
    store: LeaseStore,
    keys: FlannelKeys,
    families: Families,
) -> Result<(LeaseTable, BTreeMap<NodeSubnets, Duration>), StoreError> {
    let mut table = LeaseTable::new(keys.clone());
    let mut left = BTreeMap::new();
    if let LeaseStore::Etcd(etcd) = &store {
        let range = KeyRange::Prefix(keys.leases());
        let (_, values) = etcd.read_leased(&range).await?;
        for value in values {
            let stored = value.stored;
            table.change(&stored.key, Some(&stored.value), stored.mod_revision);
            if value.lease != 0
                && let Some(subnets) = keys.subnets(&stored.key)
                && let Some(time) = etcd.lease_left(value.lease).await?
            {
                left.insert(subnets, time);
            }
        }
        return Ok((table, left));
    }
    let (_, list) = LeaseSource::new(store, keys, families).list().await?;
    for (key, value, revision) in list {
        table.change(&key, value.as_deref(), revision);
    }
    Ok((table, left))
}

/// A value of a lease's key, or that there is none any more, with the revision.
pub(crate) type LeaseChange = (String, Option<Vec<u8>>, i64);

/// Lists and changes of leases.
pub(crate) struct LeaseSource {
    pub(crate) store: LeaseStore,
    keys: FlannelKeys,
    /// In Kubernetes.
    nodes: Option<NodeLeases>,
}

impl LeaseSource {
    pub(crate) fn new(store: LeaseStore, keys: FlannelKeys, families: Families) -> Self {
        let nodes = match &store {
            LeaseStore::Etcd(_) => None,
            LeaseStore::Kubernetes(node) => Some(NodeLeases::new(
                node.annotations.clone(),
                keys.clone(),
                families,
            )),
        };
        Self { store, keys, nodes }
    }

    /// All leases, and the revision after which changes follow.
    pub(crate) async fn list(&mut self) -> Result<(i64, Vec<LeaseChange>), StoreError> {
        match &self.store {
            LeaseStore::Etcd(store) => {
                let range = KeyRange::Prefix(self.keys.leases());
                let (revision, values) = store.read_leased(&range).await?;
                let stored = values.into_iter().map(|value| value.stored);
                let list = stored.map(|kv| (kv.key, Some(kv.value), kv.mod_revision));
                Ok((revision, list.collect()))
            }
            LeaseStore::Kubernetes(node) => {
                let answer = node.store.read(&[KeyRange::Prefix(nodes_prefix())]).await?;
                let list = answer.ranges.into_iter().flatten();
                let nodes: Vec<LeaseChange> = list
                    .map(|kv| (kv.key, Some(kv.value), kv.mod_revision))
                    .collect();
                if let Some(nodes) = &mut self.nodes {
                    nodes.clear();
                }
                Ok((answer.revision, self.leases(nodes)))
            }
        }
    }

    /// What follows after a revision.
    pub(crate) async fn watch(
        &self,
        revision: i64,
    ) -> Result<BoxStream<'static, Result<WatchEvent, StoreError>>, StoreError> {
        Ok(match &self.store {
            LeaseStore::Etcd(store) => store
                .watch(&self.keys.leases(), revision + 1)
                .await?
                .boxed(),
            LeaseStore::Kubernetes(node) => node
                .store
                .watch(&nodes_prefix(), revision + 1)
                .await?
                .boxed(),
        })
    }

    /// Changes of leases that changes of what is stored mean.
    pub(crate) fn leases(&mut self, changes: Vec<LeaseChange>) -> Vec<LeaseChange> {
        let Some(nodes) = &mut self.nodes else {
            return changes;
        };
        let mut leases = Vec::new();
        for (key, value, revision) in changes {
            // Only what exists under a Node's own key.
            if key.starts_with(&nodes_prefix()) {
                let changes = nodes.change(&key, value.as_deref());
                leases.extend(
                    changes
                        .into_iter()
                        .map(|(key, value)| (key, value, revision)),
                );
            }
        }
        leases
    }
}

/// Nodes in the datastore's form.
fn nodes_prefix() -> String {
    resources_prefix() + "nodes/"
}
