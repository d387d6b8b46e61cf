//! What the datastore has of a kind, as resources.

use caracal_datastore::Store;
use caracal_model::{
    API_VERSION, BlockOwner, Key, KeyError, KeyRange, KeyValue, ResourceType, handles_prefix,
    ipam_prefix, kind_prefix,
};
use serde_json::{Map, Value, json};

/// Resources that were read.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) resources: Vec<Value>,
    /// Keys whose values are no resources, with the reason.
    pub(crate) unreadable: Vec<(String, String)>,
}

/// Names of the resources of a kind, sorted.
///
/// # Errors
/// The datastore cannot be read.
pub(crate) async fn names_of<S: Store>(
    store: &S,
    kind: ResourceType,
) -> anyhow::Result<Vec<String>> {
    let read = store.read(&[KeyRange::Prefix(prefix(kind, None))]).await?;
    let found = read
        .ranges
        .iter()
        .flat_map(|entries| found(kind, entries).resources);
    let name = |resource: Value| Some(resource["metadata"]["name"].as_str()?.to_owned());
    let mut names: Vec<String> = found.filter_map(name).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Start of the keys of a kind.
pub(crate) fn prefix(target: ResourceType, namespace: Option<String>) -> String {
    match target {
        ResourceType::Resource(kind) => match namespace {
            Some(namespace) => format!("{}{namespace}/", kind_prefix(kind)),
            None => kind_prefix(kind),
        },
        ResourceType::IpamHandle => handles_prefix(),
        ResourceType::IpamBlock | ResourceType::BlockAffinity => ipam_prefix(),
    }
}

pub(crate) fn found(target: ResourceType, entries: &[KeyValue]) -> Found {
    let mut found = Found::default();
    for entry in entries {
        match resource(target, entry) {
            Some(Ok(resource)) => found.resources.push(resource),
            Some(Err(reason)) => found.unreadable.push((entry.key.clone(), reason)),
            None => {}
        }
    }
    found
}

/// An entry as a resource; `None` for what is of another kind.
fn resource(target: ResourceType, entry: &KeyValue) -> Option<Result<Value, String>> {
    let key = match Key::parse(&entry.key) {
        Ok(key) => key,
        Err(KeyError::Foreign) => return None,
        Err(error) => return Some(Err(error.to_string())),
    };
    let parsed = || {
        let value = serde_json::from_slice::<Value>(&entry.value);
        let value = value.map_err(|error| format!("the value is not JSON: {error}"))?;
        match value {
            Value::Object(fields) => Ok(fields),
            other => Err(format!("the value is no mapping: {other}")),
        }
    };
    let made = |name: String, spec: Map<String, Value>| {
        json!({"kind": target.as_str(), "apiVersion": API_VERSION,
            "metadata": {"name": name, "resourceVersion": entry.mod_revision.to_string()},
            "spec": spec})
    };
    let value = match (target, key) {
        (ResourceType::Resource(_), Key::Resource { .. }) => {
            parsed().map(|fields| versioned(Value::Object(fields), entry.mod_revision))
        }
        (ResourceType::IpamBlock, Key::Block(cidr)) => {
            parsed().map(|spec| made(cidr.to_key().replace(['.', ':'], "-"), spec))
        }
        (ResourceType::IpamHandle, Key::Handle(id)) => {
            parsed().map(|spec| made(id.to_string(), spec))
        }
        (ResourceType::BlockAffinity, Key::Affinity(owner, cidr)) => parsed().map(|mut spec| {
            let (kind, name) = match &owner {
                BlockOwner::Host(node) => ("host", node.to_string()),
                BlockOwner::Virtual(name) => ("virtual", name.clone()),
            };
            spec.insert("node".to_owned(), Value::from(name.clone()));
            spec.insert("type".to_owned(), Value::from(kind));
            spec.insert("cidr".to_owned(), Value::from(cidr.to_string()));
            let cidr = cidr.to_key().replace(['.', ':'], "-");
            made(format!("{name}-{cidr}"), spec)
        }),
        _ => return None,
    };
    Some(value)
}

/// A resource as it is read: its version is the revision of its last change.
pub(crate) fn versioned(mut resource: Value, revision: i64) -> Value {
    if let Some(Value::Object(metadata)) = resource.get_mut("metadata") {
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
    }
    resource
}
