//! The WorkloadEndpoint in the datastore: read together with what an ADD must know, written and
//! removed by compare-and-swap (CNI-3: only the endpoint of the caller's own container is removed).

use std::io;
use std::time::SystemTime;

use caracal_datastore::{KubernetesPod, Store, StoreError};
use caracal_model::{
    Compare, Key, KeyRange, KeyValue, Kind, LOCKED, Mac, Prefix, Timestamp, Txn, TxnOutcome,
    TxnWrite, WorkloadEndpoint,
};
use serde_json::Value;

use crate::attachment::{Attachment, Birth};
use crate::settings::fresh_uid;

/// Retries after lost races.
const TRIES: u32 = 5;

/// Why the endpoint could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The datastore did not answer.
    #[error(
        "cannot reach the datastore; is it up, and are etcd_endpoints or kubernetes.kubeconfig in \
         the network configuration right?"
    )]
    Store(#[source] StoreError),
    /// Nobody registered the node.
    #[error(
        "node {node} is not in the datastore; is the node's process running here, and has it the \
         same name (nodename in the network configuration)?"
    )]
    UnknownNode { node: String },
    /// The cluster is being migrated or is locked.
    #[error("{LOCKED}")]
    Locked,
    /// Others wrote the same key each time.
    #[error("{key} changes faster than it can be written, {TRIES} tries; are two ADDs running?")]
    Contended { key: String },
    /// The addresses of an earlier try were released in the meantime.
    #[error(
        "{key} has changed: the addresses of an earlier try of this ADD were released meanwhile \
         (it was given up for dead, or deleted); the next try takes new ones"
    )]
    Released {
        /// The handle's key.
        key: String,
    },
    /// No randomness.
    #[error("cannot make a UUID")]
    Uid(#[source] io::Error),
}

impl EndpointError {
    /// True when the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::UnknownNode { .. }
            | Self::Locked
            | Self::Contended { .. }
            | Self::Released { .. } => true,
            Self::Uid(_) => false,
        }
    }
}

/// Data that an ADD needs, read at one revision.
#[derive(Debug)]
pub(crate) struct Known {
    endpoint: Option<KeyValue>,
    profile: bool,
    /// The handle, when it exists: addresses of an earlier try.
    pub handle: Option<KeyValue>,
}

impl Known {
    /// The stored endpoint, when there is one that parses.
    #[must_use]
    pub(crate) fn endpoint(&self) -> Option<WorkloadEndpoint> {
        let stored = self.endpoint.as_ref()?;
        WorkloadEndpoint::from_json(&stored.value)
            .inspect_err(|error| tracing::warn!(key = stored.key, %error, "endpoint is unreadable"))
            .ok()
    }

    /// The endpoint, when it is this container's.
    #[must_use]
    pub(crate) fn own_endpoint(&self, attachment: &Attachment) -> Option<WorkloadEndpoint> {
        self.endpoint()
            .filter(|endpoint| endpoint.spec.container_id == attachment.container_id)
    }
}

/// Reads what an ADD must know, and refuses when the node is unknown or the datastore is locked.
///
/// # Errors
/// [`EndpointError`].
pub(crate) async fn read<S: Store>(
    store: &S,
    attachment: &Attachment,
) -> Result<Known, EndpointError> {
    let profile = Key::resource(Kind::Profile, attachment.profile());
    let keys = [
        Key::node(&attachment.node),
        Key::resource(Kind::ClusterInformation, "default"),
        attachment.endpoint_key(),
        Key::Handle(attachment.handle()),
        profile,
    ];
    let ranges = keys.map(|key| KeyRange::Key(key.to_path()));
    let answer = store.read(&ranges).await.map_err(EndpointError::Store)?;
    let mut found = answer
        .ranges
        .into_iter()
        .map(|range| range.into_iter().next());
    let mut next = || found.next().flatten();
    let (node, cluster, endpoint, handle, profile) = (next(), next(), next(), next(), next());
    if cluster.is_some_and(|stored| is_locked(&stored.value)) {
        return Err(EndpointError::Locked);
    }
    if node.is_none() {
        return Err(EndpointError::UnknownNode {
            node: attachment.node.to_string(),
        });
    }
    Ok(Known {
        endpoint,
        profile: profile.is_some(),
        handle,
    })
}

fn is_locked(cluster: &[u8]) -> bool {
    serde_json::from_slice(cluster).is_ok_and(|value: Value| caracal_model::is_locked(&value))
}

/// New values of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh<'a> {
    /// The pod's addresses.
    pub addresses: &'a [Prefix],
    /// The MAC of the pod's interface.
    pub mac: &'a Mac,
    /// Precondition of the write: the addresses of an earlier try are still held.
    pub precondition: Option<&'a Compare>,
    /// The pod, where Kubernetes was asked.
    pub pod: Option<&'a KubernetesPod>,
}

impl Fresh<'_> {
    fn check(&self, known: &Known) -> Result<(), EndpointError> {
        let Some(Compare::Unchanged(key, revision)) = self.precondition else {
            return Ok(());
        };
        let now = known.handle.as_ref().map(|stored| stored.mod_revision);
        match now == Some(*revision) {
            true => Ok(()),
            false => Err(EndpointError::Released { key: key.clone() }),
        }
    }
}

/// Writes the endpoint, and the profile that it needs when there is none. Answers with the revision
/// of that.
///
/// # Errors
/// [`EndpointError`].
pub(crate) async fn write<S: Store>(
    store: &S,
    attachment: &Attachment,
    fresh: &Fresh<'_>,
    mut known: Known,
) -> Result<i64, EndpointError> {
    for _ in 0..TRIES {
        fresh.check(&known)?;
        let txn = transaction(attachment, fresh, &known)?;
        match store.commit(&txn).await.map_err(EndpointError::Store)? {
            TxnOutcome::Committed(revision) => {
                tracing::debug!(revision, "endpoint written");
                return Ok(revision);
            }
            TxnOutcome::Conflict => known = read(store, attachment).await?,
        }
    }
    Err(EndpointError::Contended {
        key: attachment.endpoint_key().to_path(),
    })
}

fn transaction(
    attachment: &Attachment,
    fresh: &Fresh<'_>,
    known: &Known,
) -> Result<Txn, EndpointError> {
    let now = Timestamp::from(SystemTime::now());
    let uid = || fresh_uid().map_err(EndpointError::Uid);
    let birth = match known.endpoint() {
        Some(previous) => Birth::Update(Box::new(previous)),
        None => Birth::Create { uid: uid()?, now },
    };
    let endpoint = attachment.endpoint(fresh.addresses, fresh.mac, birth, fresh.pod);
    let value = endpoint.to_json();
    let key = attachment.endpoint_key().to_path();
    let mut txn = match &known.endpoint {
        Some(stored) => Txn::new().update(key, stored.mod_revision, value),
        None => Txn::new().create(key, value),
    };
    if !known.profile
        && let Some((key, value)) = attachment.network_profile(uid()?, now)
    {
        txn = txn.create(key.to_path(), value.to_string().into_bytes());
    }
    txn.compare.extend(fresh.precondition.cloned());
    Ok(txn)
}

/// The addresses of the endpoint when it is this container's; else none.
///
/// # Errors
/// [`EndpointError`].
pub(crate) async fn networks_of<S: Store>(
    store: &S,
    key: &Key,
    container_id: &str,
) -> Result<Vec<Prefix>, EndpointError> {
    let range = KeyRange::Key(key.to_path());
    let answer = store.read(&[range]).await.map_err(EndpointError::Store)?;
    let stored = answer.ranges.into_iter().flatten().next();
    let endpoint = stored
        .filter(|stored| is_of_container(&stored.value, container_id))
        .and_then(|stored| WorkloadEndpoint::from_json(&stored.value).ok());
    Ok(endpoint.map(|e| e.spec.ip_networks).unwrap_or_default())
}

/// Removes the endpoint when it is this container's. True when there was one.
///
/// # Errors
/// [`EndpointError`].
pub(crate) async fn remove<S: Store>(
    store: &S,
    key: &Key,
    container_id: &str,
) -> Result<bool, EndpointError> {
    let path = key.to_path();
    for _ in 0..TRIES {
        let answer = store
            .read(&[KeyRange::Key(path.clone())])
            .await
            .map_err(EndpointError::Store)?;
        let Some(stored) = answer.ranges.into_iter().flatten().next() else {
            return Ok(false);
        };
        if !is_of_container(&stored.value, container_id) {
            return Ok(false);
        }
        let txn = Txn {
            compare: vec![Compare::Unchanged(path.clone(), stored.mod_revision)],
            writes: vec![TxnWrite::Delete(path.clone())],
        };
        match store.commit(&txn).await.map_err(EndpointError::Store)? {
            TxnOutcome::Committed(_) => return Ok(true),
            TxnOutcome::Conflict => {}
        }
    }
    Err(EndpointError::Contended { key: path })
}

fn is_of_container(endpoint: &[u8], container_id: &str) -> bool {
    let value: Value = serde_json::from_slice(endpoint).unwrap_or_default();
    value["spec"]["containerID"].as_str() == Some(container_id)
}

#[cfg(test)]
mod tests;
