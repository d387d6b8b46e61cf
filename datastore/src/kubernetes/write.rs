//! Writes: a transaction as the ordered writes of its objects.

use std::collections::BTreeMap;

use caracal_model::{Key, KeyValue, Kind, NodeName, Timestamp, Txn, TxnOutcome};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use http::Method;
use serde_json::{Value, json};

use super::api::{Api, ApiFailure};
use super::lists;
use super::mapping::{self, Collection, MappingError, ObjectName, Written};
use super::read;
use crate::ordered::{CommitStep, OrderedCommit, StepResult};
use crate::store::StoreError;

/// Requests of one look that are under way at a time.
const AT_A_TIME: usize = 8;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const NODES: &str = "/api/v1/nodes";

/// The objects of a transaction as they are known to be.
type Known = BTreeMap<String, Value>;

/// Carries a transaction out. An error that leaves open what was written ends it where it is, as a
/// crash would.
pub(super) async fn commit(api: &Api, txn: &Txn) -> Result<TxnOutcome, StoreError> {
    let mut commit = OrderedCommit::new(txn.clone());
    let mut known = Known::new();
    let mut refused = None;
    let mut result = StepResult::Start;
    loop {
        let order = commit.step(result);
        let done = match &order {
            CommitStep::Done(outcome) => {
                return match refused {
                    Some(reason) => Err(StoreError::Refused(reason)),
                    None => Ok(*outcome),
                };
            }
            CommitStep::Look(keys) => read_objects(api, keys, &mut known)
                .await
                .map(StepResult::Found),
            CommitStep::Create(key, value) => create(api, key, value, &mut known).await,
            CommitStep::Replace(key, revision, value) => {
                replace(api, key, *revision, value, &mut known).await
            }
            CommitStep::Delete(key, revision) => delete(api, key, *revision, &mut known).await,
        };
        result = match done {
            Ok(result) => result,
            // Also what is gone is not as it was said to be.
            Err(ApiFailure::Conflict | ApiFailure::NotFound) => StepResult::Conflict,
            Err(ApiFailure::Refused(reason) | ApiFailure::Unknown(reason)) => {
                refused.get_or_insert(reason);
                StepResult::Refused
            }
            Err(failure) => return Err(failure.into_error(api.server(), "an object")),
        };
    }
}

/// The object that holds a key; a refusal when Kubernetes has none.
fn object_name_of(path: &str) -> Result<ObjectName, ApiFailure> {
    let wrong = || ApiFailure::Refused(format!("Kubernetes has nothing that stands for {path}"));
    ObjectName::from_path(path).ok_or_else(wrong)
}

async fn read_objects(
    api: &Api,
    keys: &[String],
    known: &mut Known,
) -> Result<Vec<KeyValue>, ApiFailure> {
    let group = api.group().await?;
    let ask = |path: String| async move {
        let Ok(name) = object_name_of(&path) else {
            return Ok((path, None));
        };
        let object = read::object(api, &name).await?;
        Ok::<_, ApiFailure>((path, object.map(|object| (name.collection, object))))
    };
    let asked = stream::iter(keys.iter().cloned().map(ask));
    let answers: Vec<_> = asked.buffered(AT_A_TIME).try_collect().await?;
    let mut found = Vec::new();
    for (path, object) in answers {
        let Some((collection, object)) = object else {
            continue;
        };
        let values = lists::key_values(api, collection, &object, group);
        found.extend(values.into_iter().filter(|kv| kv.key == path));
        known.insert(path, object);
    }
    Ok(found)
}

/// How a key's value is written.
async fn written(
    api: &Api,
    path: &str,
    value: Option<&[u8]>,
    known: &mut Known,
) -> Result<(ObjectName, Written), ApiFailure> {
    let name = object_name_of(path)?;
    // Nodes and pods are made by Kubernetes, before we write to them.
    let patched = matches!(name.collection, Collection::Nodes | Collection::Pods);
    if patched && !known.contains_key(path) {
        let object = read::object(api, &name).await?;
        known.extend(object.map(|object| (path.to_owned(), object)));
    }
    let group = api.group().await?;
    let before = known.get(path);
    let own = match (name.collection, before) {
        (Collection::Nodes, Some(node)) if api.config.use_pod_cidr => {
            value.and_then(|value| without_tunnels(node, value))
        }
        _ => None,
    };
    let value = own.as_deref().or(value);
    let written = match (name.collection, Key::parse(path)) {
        (Collection::Leases, _) => {
            let object = mapping::lease_object(path, value.unwrap_or_default(), before);
            object.map(Written::Object)
        }
        (_, Ok(key)) => mapping::written(&key, value, before, group),
        (_, Err(_)) => Err(MappingError::NoObject),
    };
    let written = written.map_err(|error| ApiFailure::Refused(format!("{path}: {error}")))?;
    Ok((name, written))
}

/// A Node's value without what was derived when it was read.
fn without_tunnels(node: &Value, value: &[u8]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(value).ok()?;
    mapping::remove_tunnels(node, &mut value);
    Some(value.to_string().into_bytes())
}

async fn create(
    api: &Api,
    key: &str,
    value: &[u8],
    known: &mut Known,
) -> Result<StepResult, ApiFailure> {
    let object = match written(api, key, Some(value), known).await? {
        (name, Written::StatusPatch(patch)) => {
            return patch_status(api, key, &name, patch, known).await;
        }
        (_, Written::Object(object)) => object,
    };
    let name = object_name_of(key)?;
    let group = api.group().await?;
    let collection = name.collection.path_in(group, name.namespace.as_deref());
    let post = || api.call(Method::POST, &collection, JSON, Some(&object));
    // IPAM's objects are deleted in two steps. Others need not be readable: a node that loses the
    // race for the first pool has no right to get it.
    let is_marked_first =
        [mapping::BLOCKS, mapping::AFFINITIES, mapping::HANDLES].contains(&name.collection);
    let answer = match post().await {
        // The object in the way may be marked for deletion: reading it finishes that.
        Err(ApiFailure::Conflict)
            if is_marked_first && read::object(api, &name).await?.is_none() =>
        {
            post().await?
        }
        answer => answer?,
    };
    Ok(took(key, answer, known))
}

fn took(key: &str, answer: Value, known: &mut Known) -> StepResult {
    let revision = mapping::revision(&answer);
    known.insert(key.to_owned(), answer);
    StepResult::Written(revision)
}

/// The known object, if its last change was at this revision.
fn unchanged<'a>(known: &'a Known, key: &str, revision: i64) -> Result<&'a Value, ApiFailure> {
    let object = known.get(key);
    let object = object.filter(|object| mapping::revision(object) == revision);
    object.ok_or(ApiFailure::Conflict)
}

async fn replace(
    api: &Api,
    key: &str,
    revision: i64,
    value: &[u8],
    known: &mut Known,
) -> Result<StepResult, ApiFailure> {
    unchanged(known, key, revision)?;
    match written(api, key, Some(value), known).await? {
        (name, Written::StatusPatch(patch)) => patch_status(api, key, &name, patch, known).await,
        (name, Written::Object(object)) => {
            let path = name.path(api.group().await?);
            let answer = api.call(Method::PUT, &path, JSON, Some(&object)).await?;
            Ok(took(key, answer, known))
        }
    }
}

async fn patch_status(
    api: &Api,
    key: &str,
    name: &ObjectName,
    patch: Option<Value>,
    known: &mut Known,
) -> Result<StepResult, ApiFailure> {
    let Some(patch) = patch else {
        let revision = known.get(key).map(mapping::revision);
        return Ok(StepResult::Written(revision.unwrap_or_default()));
    };
    let path = format!("{}/status", name.path(api.group().await?));
    let answer = api.call(Method::PATCH, &path, MERGE, Some(&patch)).await?;
    Ok(took(key, answer, known))
}

async fn delete(
    api: &Api,
    key: &str,
    revision: i64,
    known: &mut Known,
) -> Result<StepResult, ApiFailure> {
    let object = unchanged(known, key, revision)?.clone();
    let name = object_name_of(key)?;
    let path = name.path(api.group().await?);
    match Key::parse(key) {
        Ok(Key::Block(_) | Key::Affinity(..) | Key::Handle(_)) => {
            let marked = mapping::marked_deleted(object);
            let marked = api.call(Method::PUT, &path, JSON, Some(&marked)).await?;
            read::finish_deletion(api, &path, &marked).await?;
            known.remove(key);
            Ok(StepResult::Written(mapping::revision(&marked)))
        }
        Ok(Key::Resource {
            kind: Kind::WorkloadEndpoint,
            ..
        }) => {
            let (name, written) = written(api, key, None, known).await?;
            match written {
                Written::StatusPatch(patch) => patch_status(api, key, &name, patch, known).await,
                Written::Object(_) => Ok(StepResult::Conflict),
            }
        }
        Ok(Key::Resource {
            kind: Kind::Node, ..
        }) => Err(ApiFailure::Refused(
            "Nodes are Kubernetes' own: delete it there (kubectl delete node)".to_owned(),
        )),
        Ok(Key::Document { .. }) => Err(ApiFailure::Refused(
            "Services and their endpoints are Kubernetes' own: delete them there (kubectl delete)"
                .to_owned(),
        )),
        _ => {
            let metadata = &object["metadata"];
            let this = json!({
                "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"],
            });
            api.delete(&path, this).await?;
            known.remove(key);
            Ok(StepResult::Written(revision))
        }
    }
}

/// Sets a Node's condition `NetworkUnavailable` to False, unless it is; `said` are reason and
/// message.
pub(super) async fn network_is_up(
    api: &Api,
    node: &NodeName,
    now: Timestamp,
    said: (&str, &str),
) -> Result<bool, ApiFailure> {
    const KIND: &str = "NetworkUnavailable";
    let path = format!("{NODES}/{node}");
    let object = api.get(&path).await?;
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    if conditions.any(|one| one["type"] == KIND && one["status"] == "False") {
        return Ok(false);
    }
    let condition = json!({
        "type": KIND, "status": "False", "reason": said.0, "message": said.1,
        "lastHeartbeatTime": now.rfc3339(), "lastTransitionTime": now.rfc3339(),
    });
    let patch = json!({"status": {"conditions": [condition]}});
    patch_node(api, node, &patch).await?;
    Ok(true)
}

/// Sets annotations of a Node and leaves the others. Answers with the Node's revision.
pub(super) async fn annotate_node(
    api: &Api,
    node: &NodeName,
    annotations: &Value,
) -> Result<i64, ApiFailure> {
    let patch = json!({"metadata": {"annotations": annotations}});
    let answer = patch_node(api, node, &patch).await?;
    Ok(mapping::revision(&answer))
}

async fn patch_node(api: &Api, node: &NodeName, patch: &Value) -> Result<Value, ApiFailure> {
    let path = format!("{NODES}/{node}/status");
    api.call(Method::PATCH, &path, STRATEGIC, Some(patch)).await
}
