//! Calico's custom resources ⇄ the values that stand in etcd: resources with their metadata, and
//! IPAM's blocks, affinities, handles and settings. Fields that nobody here knows survive both
//! ways.

use caracal_model::{API_VERSION, BlockOwner, Key, Kind, Prefix};
use serde_json::{Map, Value, json};

use super::MappingError;
use super::names;
use super::object_name::ApiGroup;

/// Annotation of v1 objects with the metadata that users gave.
pub(super) const METADATA: &str = "projectcalico.org/metadata";

/// Fields of metadata that belong to the API server and are not part of a resource's value.
const SERVERS: [&str; 4] = ["resourceVersion", "managedFields", "selfLink", "generation"];

/// The value of a resource, from its object.
pub(super) fn resource_value(kind: &str, object: &Value, group: ApiGroup) -> Value {
    let mut value = object.clone();
    value["kind"] = kind.into();
    value["apiVersion"] = API_VERSION.into();
    let metadata = object.get("metadata").and_then(Value::as_object);
    let mut metadata = metadata.cloned().unwrap_or_default();
    for field in SERVERS {
        metadata.remove(field);
    }
    if group == ApiGroup::V1 {
        v1_metadata(&mut metadata);
    }
    value["metadata"] = Value::Object(metadata);
    value
}

/// Lays what the annotation says over the object's own metadata.
fn v1_metadata(metadata: &mut Map<String, Value>) {
    if let Some(uid) = metadata.get("uid").and_then(Value::as_str)
        && let Some(shown) = names::reversed_uid(uid)
    {
        metadata.insert("uid".to_owned(), shown.into());
    }
    let annotations = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut);
    let Some(text) = annotations.and_then(|annotations| annotations.remove(METADATA)) else {
        return;
    };
    let stored = text
        .as_str()
        .and_then(|text| serde_json::from_str::<Value>(text).ok());
    let Some(Value::Object(stored)) = stored else {
        return;
    };
    for field in ["labels", "annotations"] {
        if let Some(Value::Object(users)) = stored.get(field) {
            let merged = metadata.entry(field).or_insert_with(|| json!({}));
            if let Some(merged) = merged.as_object_mut() {
                merged.extend(users.clone());
            }
        }
    }
    if let Some(time) = stored
        .get("creationTimestamp")
        .filter(|time| time.is_string())
    {
        metadata.insert("creationTimestamp".to_owned(), time.clone());
    }
    let empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    metadata.retain(|field, value| {
        !(matches!(field.as_str(), "labels" | "annotations") && empty(value))
    });
}

/// The object of a resource, with what belongs to the server as it was.
pub(super) fn resource_object(
    kind: Kind,
    value: &Value,
    before: Option<&Value>,
    group: ApiGroup,
) -> Value {
    let mut object = value.clone();
    object["kind"] = kind.as_str().into();
    object["apiVersion"] = group.api_version().into();
    let given = value.get("metadata").and_then(Value::as_object);
    let given = given.cloned().unwrap_or_default();
    let mut metadata = servers_metadata(before);
    metadata.insert(
        "name".to_owned(),
        given.get("name").cloned().unwrap_or_default(),
    );
    for field in ["labels", "annotations"] {
        let users = given.get(field).and_then(Value::as_object);
        let mut kept = users.cloned().unwrap_or_default();
        if group == ApiGroup::V1 {
            kept.retain(|key, _| is_shown_outside(key));
        }
        set_map(&mut metadata, field, kept);
    }
    if group == ApiGroup::V1 {
        let mut stored = Map::new();
        for field in ["labels", "annotations", "creationTimestamp"] {
            stored.extend(
                given
                    .get(field)
                    .map(|value| (field.to_owned(), value.clone())),
            );
        }
        let text = Value::Object(stored).to_string();
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        annotations[METADATA] = text.into();
    }
    object["metadata"] = Value::Object(metadata);
    object
}

/// Labels and annotations that v1 objects have in their own metadata as well.
fn is_shown_outside(key: &str) -> bool {
    key.contains("projectcalico.org/") || key.contains("operator.tigera.io/")
}

fn set_map(metadata: &mut Map<String, Value>, field: &str, map: Map<String, Value>) {
    match map.is_empty() {
        true => drop(metadata.remove(field)),
        false => drop(metadata.insert(field.to_owned(), Value::Object(map))),
    }
}

/// Metadata of the object that is there, for the one that replaces it: finalizers, owners, labels.
pub(super) fn servers_metadata(before: Option<&Value>) -> Map<String, Value> {
    let metadata = before.and_then(|object| object.get("metadata")?.as_object().cloned());
    let mut metadata = metadata.unwrap_or_default();
    metadata.remove("managedFields");
    metadata
}

/// An object with a spec of IPAM's.
fn ipam_object(
    kind: &str,
    name: String,
    spec: Map<String, Value>,
    before: Option<&Value>,
    group: ApiGroup,
) -> Value {
    let mut metadata = servers_metadata(before);
    metadata.insert("name".to_owned(), name.into());
    json!({
        "apiVersion": group.api_version(), "kind": kind,
        "metadata": metadata, "spec": spec,
    })
}

fn spec_of(object: &Value) -> Map<String, Value> {
    let spec = object.get("spec").and_then(Value::as_object);
    spec.cloned().unwrap_or_default()
}

fn text_of<'a>(spec: &'a Map<String, Value>, field: &'static str) -> Result<&'a str, MappingError> {
    let text = spec.get(field).and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
        .ok_or(MappingError::Missing(field))
}

fn cidr_of(spec: &Map<String, Value>) -> Result<Prefix, MappingError> {
    let text = text_of(spec, "cidr")?;
    let wrong = |_| MappingError::Field("cidr", text.to_owned());
    text.parse().map_err(wrong)
}

/// `deleted` is text in some objects and a boolean in others.
#[must_use]
pub(crate) fn is_deleted(object: &Value) -> bool {
    match &object["spec"]["deleted"] {
        Value::Bool(deleted) => *deleted,
        Value::String(text) => text == "true",
        _ => false,
    }
}

/// The object marked as deleted, the first of two steps.
#[must_use]
pub(crate) fn marked_deleted(mut object: Value) -> Value {
    let text = object["spec"]["deleted"].is_string();
    object["spec"]["deleted"] = match text {
        true => "true".into(),
        false => true.into(),
    };
    object
}

/// A key and its value, from an object of one of IPAM's collections.
fn block_value(object: &Value) -> Result<(Key, Value), MappingError> {
    let mut spec = spec_of(object);
    let key = Key::Block(cidr_of(&spec)?);
    spec.remove("strictAffinity");
    rename(&mut spec, "affinityClaimTime", "affinity_claim_time");
    Ok((key, Value::Object(spec)))
}

/// What an object is of when its `spec` does not say it: by its name, with a value that no reader
/// takes, and that says why. So nothing that hangs on it goes (decision 0174).
fn by_name(key: Option<Key>, error: MappingError) -> Result<(Key, Value), MappingError> {
    let value = Value::String(error.to_string());
    key.map(|key| (key, value)).ok_or(error)
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub(super) fn block_or_name(object: &Value) -> Result<(Key, Value), MappingError> {
    block_value(object)
        .or_else(|error| by_name(names::cidr(name_of(object)).map(Key::Block), error))
}

pub(super) fn affinity_or_name(object: &Value) -> Result<(Key, Value), MappingError> {
    affinity_value(object).or_else(|error| by_name(affinity_key(object), error))
}

/// The name of an affinity is its owner's and its CIDR's: what one of both says gives the other.
fn affinity_key(object: &Value) -> Option<Key> {
    let spec = spec_of(object);
    let name = name_of(object);
    let (owner, cidr) = match (text_of(&spec, "node"), cidr_of(&spec)) {
        (Ok(owner), Ok(cidr)) => (owner, cidr),
        (Ok(owner), Err(_)) => {
            let rest = name.strip_prefix(owner)?.strip_prefix('-')?;
            (owner, names::cidr(rest)?)
        }
        (Err(_), Ok(cidr)) => {
            let owner = name.strip_suffix(&names::of_cidr(&cidr))?;
            (owner.strip_suffix('-')?, cidr)
        }
        (Err(_), Err(_)) => return None,
    };
    Some(Key::Affinity(BlockOwner::Host(owner.into()), cidr))
}

pub(super) fn handle_or_name(object: &Value) -> Result<(Key, Value), MappingError> {
    handle_value(object).or_else(|error| {
        let name = name_of(object);
        by_name((!name.is_empty()).then(|| Key::Handle(name.into())), error)
    })
}

pub(super) fn block_object(
    cidr: &Prefix,
    value: Map<String, Value>,
    before: Option<&Value>,
    group: ApiGroup,
) -> Value {
    let mut spec = value;
    rename(&mut spec, "affinity_claim_time", "affinityClaimTime");
    for list in ["allocations", "attributes", "unallocated"] {
        let there = spec.entry(list).or_insert_with(|| json!([]));
        if there.is_null() {
            *there = json!([]);
        }
    }
    // The API takes null for absent where it takes it at all.
    spec.retain(|_, value| !value.is_null());
    spec.entry("strictAffinity").or_insert(false.into());
    ipam_object("IPAMBlock", names::of_cidr(cidr), spec, before, group)
}

fn rename(spec: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = spec.remove(from) {
        spec.insert(to.to_owned(), value);
    }
}

fn affinity_value(object: &Value) -> Result<(Key, Value), MappingError> {
    let mut spec = spec_of(object);
    let cidr = cidr_of(&spec)?;
    let name = text_of(&spec, "node")?;
    let owner = match spec.get("type").and_then(Value::as_str) {
        None | Some("" | "host") => BlockOwner::Host(name.into()),
        Some("virtual") => BlockOwner::Virtual(name.to_owned()),
        Some(other) => return Err(MappingError::Field("type", other.to_owned())),
    };
    for field in ["cidr", "node", "type"] {
        spec.remove(field);
    }
    spec.insert("deleted".to_owned(), is_deleted(object).into());
    Ok((Key::Affinity(owner, cidr), Value::Object(spec)))
}

pub(super) fn affinity_object(
    owner: &BlockOwner,
    cidr: &Prefix,
    value: Map<String, Value>,
    before: Option<&Value>,
    group: ApiGroup,
) -> Value {
    let mut spec = value;
    spec.insert("cidr".to_owned(), cidr.to_string().into());
    spec.insert("node".to_owned(), names::owner_name(owner).into());
    spec.insert("type".to_owned(), names::owner_type(owner).into());
    let deleted = spec.get("deleted").and_then(Value::as_bool) == Some(true);
    let deleted = match group {
        ApiGroup::V1 => Value::String(deleted.to_string()),
        ApiGroup::V3 => deleted.into(),
    };
    spec.insert("deleted".to_owned(), deleted);
    let name = names::of_affinity(owner, cidr);
    let mut object = ipam_object("BlockAffinity", name, spec, before, group);
    for (label, value) in names::affinity_labels(owner, cidr.family()) {
        object["metadata"]["labels"][label] = value.into();
    }
    object
}

fn handle_value(object: &Value) -> Result<(Key, Value), MappingError> {
    let mut spec = spec_of(object);
    let key = Key::Handle(text_of(&spec, "handleID")?.into());
    spec.remove("handleID");
    Ok((key, Value::Object(spec)))
}

pub(super) fn handle_object(
    id: &caracal_model::HandleId,
    value: Map<String, Value>,
    before: Option<&Value>,
    group: ApiGroup,
) -> Value {
    let mut spec = value;
    spec.insert("handleID".to_owned(), id.as_str().into());
    ipam_object("IPAMHandle", names::of_handle(id), spec, before, group)
}

/// Names of IPAM's settings in the object, and in etcd's `ipam/v2/config`.
const SETTINGS: [(&str, &str); 2] = [
    ("strictAffinity", "strict_affinity"),
    ("autoAllocateBlocks", "auto_allocate_blocks"),
];

pub(super) fn config_value(object: &Value) -> Value {
    let mut spec = spec_of(object);
    for (here, etcd) in SETTINGS {
        rename(&mut spec, here, etcd);
    }
    Value::Object(spec)
}

pub(super) fn config_object(
    value: Map<String, Value>,
    before: Option<&Value>,
    group: ApiGroup,
) -> Value {
    let mut spec = value;
    for (here, etcd) in SETTINGS {
        rename(&mut spec, etcd, here);
        spec.entry(here).or_insert(false.into());
    }
    spec.entry("maxBlocksPerHost").or_insert(0.into());
    let kind = match group {
        ApiGroup::V1 => "IPAMConfig",
        ApiGroup::V3 => "IPAMConfiguration",
    };
    ipam_object(kind, "default".to_owned(), spec, before, group)
}
