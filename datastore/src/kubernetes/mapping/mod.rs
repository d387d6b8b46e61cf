//! Calico's mapping between keys and values as they stand in etcd, and objects of Kubernetes' API.
//! Pure. The layers above know the form of etcd only.

mod custom;
mod lease;
mod names;
mod node;
mod object_name;
mod pod;
mod pod_cidr;
#[cfg(test)]
mod tests;

use caracal_model::{API_VERSION, DocumentKind, Key, KeyValue, Kind};
use serde_json::{Map, Value, json};

pub(super) use self::custom::{is_deleted, marked_deleted};
pub(super) use self::lease::NAMESPACE;
use self::object_name::IPAM_CONFIG;
pub(super) use self::object_name::{AFFINITIES, BLOCKS, HANDLES};
pub(super) use self::object_name::{ApiGroup, Collection, List, ObjectName, PolicyKind, is_in};
pub(super) use self::pod::read_pod;
pub(super) use self::pod_cidr::{ranges as pod_cidrs, remove_tunnels};

/// Before labels of a namespace, where its endpoints inherit them.
const OF_NAMESPACES: &str = "pcns.";

/// Why an object says nothing under a key, or a value cannot be an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MappingError {
    /// A field that names the object is not there.
    #[error("spec.{0} is missing")]
    Missing(&'static str),
    /// A field that names the object cannot be read.
    #[error("spec.{0} cannot be read: {1:?}")]
    Field(&'static str, String),
    /// The value is no JSON object.
    #[error("the value is not a JSON object")]
    NoObject,
    /// There is no such thing in Kubernetes, or it is not ours to write.
    #[error("{0}")]
    NotWritten(&'static str),
}

/// The revision of an object or of a list. Opaque by rule; the API servers that there are count
/// with whole numbers, and 1.35 and later promise it.
pub(super) fn revision(object: &Value) -> i64 {
    let text = object["metadata"]["resourceVersion"].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The keys that an object stands for, with their values; none for a pod without an endpoint.
pub(super) fn values(
    collection: Collection,
    object: &Value,
    group: ApiGroup,
) -> Result<Vec<(Key, Value)>, MappingError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let document = |kind| {
        let key = Key::Document {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        (key, document(kind.names(), object))
    };
    Ok(match collection {
        BLOCKS => vec![custom::block_or_name(object)?],
        AFFINITIES => vec![custom::affinity_or_name(object)?],
        HANDLES => vec![custom::handle_or_name(object)?],
        IPAM_CONFIG => vec![
            (Key::IpamConfig, custom::config_value(object)),
            (
                Key::resource(Kind::IpamConfiguration, name),
                custom::resource_value(Kind::IpamConfiguration.as_str(), object, group),
            ),
        ],
        Collection::Nodes => vec![(Key::resource(Kind::Node, name), node::value(object))],
        Collection::Pods => {
            let endpoint = pod::endpoint(object).into_iter();
            endpoint
                .map(|(namespace, name, value)| (Key::workload(&namespace, &name), value))
                .collect()
        }
        Collection::Namespaces => {
            vec![profile(&format!("kns.{name}"), OF_NAMESPACES, name, object)]
        }
        Collection::ServiceAccounts => {
            let profile_name = format!("ksa.{namespace}.{name}");
            vec![profile(&profile_name, "pcsa.", name, object)]
        }
        Collection::Services => vec![document(DocumentKind::Service)],
        Collection::Endpoints => vec![document(DocumentKind::Endpoints)],
        Collection::EndpointSlices => vec![document(DocumentKind::EndpointSlice)],
        // They have no key of Calico's, or are only named.
        Collection::Leases | Collection::Policies(_) => Vec::new(),
        Collection::Custom(plural) => {
            let kind = Kind::ALL.into_iter().find(|kind| kind.plural() == plural);
            let kind = kind.into_iter();
            kind.map(|kind| {
                let value = custom::resource_value(kind.as_str(), object, group);
                (Key::resource(kind, name), value)
            })
            .collect()
        }
    })
}

/// An object of Kubernetes' own as it is, without what its server adds. In a list it does not say
/// what it is.
fn document((api_version, kind): (&str, &str), object: &Value) -> Value {
    let mut value = object.clone();
    value["apiVersion"] = api_version.into();
    value["kind"] = kind.into();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    value
}

/// A namespace, or an account, as the profile that Calico makes of it. That of a namespace allows
/// what no policy is about.
fn profile(profile: &str, prefix: &str, name: &str, object: &Value) -> (Key, Value) {
    let labels = object["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten();
    let mut applied: Map<String, Value> = labels
        .map(|(label, value)| (format!("{prefix}{label}"), value.clone()))
        .collect();
    applied.insert(format!("{prefix}projectcalico.org/name"), name.into());
    let mut spec = json!({"labelsToApply": applied});
    if prefix == OF_NAMESPACES {
        for direction in ["ingress", "egress"] {
            spec[direction] = json!([{"action": "Allow"}]);
        }
    }
    let value = json!({
        "kind": "Profile", "apiVersion": API_VERSION,
        "metadata": {"name": profile, "creationTimestamp": object["metadata"]["creationTimestamp"]},
        "spec": spec,
    });
    (Key::resource(Kind::Profile, profile), value)
}

/// [`values`] in the form of a store.
pub(super) fn key_values(
    collection: Collection,
    object: &Value,
    group: ApiGroup,
) -> Result<Vec<KeyValue>, MappingError> {
    if let Some(named) = beside_kinds(collection, object, group) {
        return Ok(vec![named]);
    }
    if collection == Collection::Leases {
        return Ok(lease::key_values(object));
    }
    let values = values(collection, object, group)?.into_iter();
    Ok(values
        .map(|(key, value)| KeyValue {
            key: key.to_path(),
            value: value.to_string().into_bytes(),
            mod_revision: revision(object),
        })
        .collect())
}

/// [`key_values`] of a Node whose `podCIDRs` are its blocks.
pub(super) fn key_values_with_pod_cidrs(node: &Value) -> Vec<KeyValue> {
    let name = node["metadata"]["name"].as_str().unwrap_or_default();
    let mut value = node::value(node);
    pod_cidr::add_tunnels(node, &mut value);
    let mut values = vec![(Key::resource(Kind::Node, name), value)];
    values.extend(pod_cidr::blocks(node));
    let values = values.into_iter();
    values
        .map(|(key, value)| KeyValue {
            key: key.to_path(),
            value: value.to_string().into_bytes(),
            mod_revision: revision(node),
        })
        .collect()
}

/// An object of a kind of policy or a set of addresses, which are no [`Kind`]s, under the key that
/// Calico's etcd has for it: a policy of Kubernetes' is one of Calico's own there, by its name.
fn beside_kinds(collection: Collection, object: &Value, group: ApiGroup) -> Option<KeyValue> {
    let (plural, prefix, value) = match collection {
        Collection::Custom(plural) => {
            let kind = object_name::beside_kinds(plural)?;
            let mut value = custom::resource_value(kind, object, group);
            // In it is the name that people gave a policy.
            let kept = object["metadata"]["annotations"].get(custom::METADATA);
            if let Some(kept) = kept {
                value["metadata"]["annotations"][custom::METADATA] = kept.clone();
            }
            (plural, "", value)
        }
        Collection::Policies(kind) => {
            let (plural, prefix) = kind.on_etcd();
            (plural, prefix, document(kind.names(), object))
        }
        _ => return None,
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str();
    let space = namespace.map(|n| format!("{n}/")).unwrap_or_default();
    Some(KeyValue {
        key: format!(
            "{}{plural}/{space}{prefix}{name}",
            caracal_model::resources_prefix()
        ),
        value: value.to_string().into_bytes(),
        mod_revision: revision(object),
    })
}

/// The Lease of a value that is not Calico's.
pub(super) fn lease_object(
    path: &str,
    value: &[u8],
    before: Option<&Value>,
) -> Result<Value, MappingError> {
    lease::object(path, value, custom::servers_metadata(before))
}

/// How a value is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written {
    /// The whole object.
    Object(Value),
    /// A patch of its `status` subresource; `None` when nothing would change.
    StatusPatch(Option<Value>),
}

/// The object to write for a value, given the one that is there.
pub(super) fn written(
    key: &Key,
    value: Option<&[u8]>,
    before: Option<&Value>,
    group: ApiGroup,
) -> Result<Written, MappingError> {
    let value: Option<Value> = match value {
        None => None,
        Some(text) if text.iter().all(u8::is_ascii_whitespace) => Some(json!({})),
        Some(text) => Some(serde_json::from_slice(text).map_err(|_| MappingError::NoObject)?),
    };
    let map = || match &value {
        Some(Value::Object(map)) => Ok(map.clone()),
        _ => Err(MappingError::NoObject),
    };
    Ok(Written::Object(match key {
        Key::Block(cidr) => custom::block_object(cidr, map()?, before, group),
        Key::Affinity(owner, cidr) => custom::affinity_object(owner, cidr, map()?, before, group),
        Key::Handle(id) => custom::handle_object(id, map()?, before, group),
        Key::IpamConfig => custom::config_object(map()?, before, group),
        Key::Resource { kind, name, .. } => match (kind, &value) {
            (Kind::Node, Some(value)) => {
                let before = before.ok_or(MappingError::NotWritten(NO_NODE))?;
                return Ok(Written::StatusPatch(node::patch(value, before)));
            }
            (Kind::WorkloadEndpoint, _) if !pod::is_first_interface(name) => {
                return Err(MappingError::NotWritten(FURTHER));
            }
            (Kind::WorkloadEndpoint, value) => {
                let before = before.ok_or(MappingError::NotWritten(NO_POD))?;
                let meant = value.as_ref().and_then(|v| v["metadata"]["uid"].as_str());
                if meant.is_some_and(|uid| before["metadata"]["uid"] != uid) {
                    return Err(MappingError::NotWritten(REPLACED));
                }
                let patch = pod::patch(value.as_ref(), before);
                return Ok(Written::StatusPatch(Some(patch)));
            }
            (Kind::Profile, _) => return Err(MappingError::NotWritten(NO_PROFILE)),
            (Kind::IpamConfiguration, Some(value)) => {
                let spec = value["spec"].as_object().cloned().unwrap_or_default();
                custom::config_object(spec, before, group)
            }
            (kind, Some(value)) => custom::resource_object(*kind, value, before, group),
            (_, None) => return Err(MappingError::NoObject),
        },
        Key::IpamHost(_) => return Err(MappingError::NotWritten(NO_MARKER)),
        Key::Document { .. } | Key::ServicesCheck => {
            return Err(MappingError::NotWritten(NO_DOCUMENT));
        }
    }))
}

const NO_NODE: &str = "Kubernetes has no Node of that name, and only Kubernetes makes one: a kubelet registers it, or \
                       CALICO_K8S_NODE_REF names another";
const NO_POD: &str = "Kubernetes has no such pod; it may have been replaced";
const FURTHER: &str = "a pod has one endpoint in Kubernetes' API, that of eth0: the annotations of the pod are its, and \
                       nothing else has a place there";
const REPLACED: &str = "the pod of that name is another one by now";
const NO_PROFILE: &str = "profiles are made of Kubernetes' namespaces and accounts; label those";
const NO_MARKER: &str = "Kubernetes has no marker of IPAM's hosts";
const NO_DOCUMENT: &str =
    "services and their endpoints are Kubernetes' own here; nothing has to be placed";

/// The keys that an object stood for before it was marked as deleted, or lost its addresses.
pub(super) fn keys_without_values(
    collection: Collection,
    object: &Value,
    group: ApiGroup,
) -> Vec<String> {
    if collection == Collection::Pods {
        let key = pod::key(object);
        return key.map(|key| key.to_path()).into_iter().collect();
    }
    let values = key_values(collection, object, group).unwrap_or_default();
    values.into_iter().map(|kv| kv.key).collect()
}
