//! Parts of a resource that its writer does not own: identity, status set by a node, and defaults.

use serde_json::{Map, Value};

use super::rules_of;
use crate::net::Cidr;
use crate::resource::{API_VERSION, Kind};

/// Fields that the datastore's clients set once.
const IDENTITY: [&str; 2] = ["/metadata/uid", "/metadata/creationTimestamp"];

/// Fields of `metadata` that the server side keeps: they stay as they are stored.
const SERVERS_OWN: [&str; 6] = [
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// Fields of `metadata` that `--export` omits.
const NOT_EXPORTED: [&str; 5] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "selfLink",
    "generation",
];

/// Annotations by which an operation that is under way marks a resource.
const MARKS: [&str; 2] = ["caracal.io/topology-transition", "caracal.io/mode-check"];

/// Fields of a Node that the node sets itself: kept where a document leaves them out.
const NODES_OWN: [&str; 11] = [
    "/spec/addresses",
    "/spec/bgp/ipv4Address",
    "/spec/bgp/ipv6Address",
    "/spec/bgp/ipv4IPIPTunnelAddr",
    "/spec/ipv4VXLANTunnelAddr",
    "/spec/ipv6VXLANTunnelAddr",
    "/spec/vxlanTunnelMACAddr",
    "/spec/vxlanTunnelMACAddrV6",
    "/spec/wireguard",
    "/spec/orchRefs",
    "/status",
];

/// Puts in the stored uid and creation time, whatever a document says.
pub(super) fn keep_identity(stored: &Value, document: &mut Value) {
    for pointer in IDENTITY {
        if let Some(value) = stored.pointer(pointer).filter(|v| !v.is_null()) {
            put(document, pointer, value.clone());
        }
    }
}

/// Puts into a document what it leaves out and the stored resource has: uid and creation time
/// (which always stay), what servers keep in `metadata`, the status, marks of operations under way,
/// and what a Node says about itself.
pub(super) fn carry_over(kind: Kind, stored: &Value, document: &mut Value) {
    keep_identity(stored, document);
    let marks = MARKS.map(|mark| format!("/metadata/annotations/{}", mark.replace('/', "~1")));
    let servers = SERVERS_OWN.map(|name| format!("/metadata/{name}"));
    let own = NODES_OWN.iter().filter(|_| kind == Kind::Node);
    let kept = marks.iter().chain(&servers).map(String::as_str);
    for pointer in kept.chain(own.copied()).chain(["/status"]) {
        let Some(value) = stored.pointer(pointer) else {
            continue;
        };
        if document.pointer(pointer).is_none_or(is_empty) {
            put(document, pointer, value.clone());
        }
    }
}

/// Differences between the addresses in a document of a Node and the stored ones: the node sets
/// them, and its sessions use them. One sentence each.
pub(super) fn other_addresses(stored: &Value, document: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for pointer in NODES_OWN {
        let (Some(own), Some(said)) = (stored.pointer(pointer), document.pointer(pointer)) else {
            continue;
        };
        if is_empty(said) || same(said, own) || !own.is_string() {
            continue;
        }
        faults.push(format!(
            "{} {said} is not the node's own {own}, which the node sets itself; leave it out",
            pointer[1..].replace('/', ".")
        ));
    }
    faults
}

/// Fills in what Calico's clients fill in when they write: defaults of fields that are not set.
pub(super) fn defaults(kind: Kind, document: &mut Value) {
    put(document, "/apiVersion", Value::from(API_VERSION));
    put(document, "/kind", Value::from(kind.as_str()));
    if document.get("spec").is_none_or(Value::is_null) {
        put(document, "/spec", Value::Object(Map::new()));
    }
    for rule in rules_of(kind).unwrap_or_default() {
        let Some(default) = rule.default else {
            continue;
        };
        let pointer = format!("/{}", rule.path.replace('.', "/"));
        if document.pointer(&pointer).is_none_or(is_empty) {
            let value = serde_json::from_str(default).expect("invariant: defaults are JSON");
            put(document, &pointer, value);
        }
    }
    match kind {
        Kind::IpPool => block_size(document),
        Kind::WorkloadEndpoint => endpoint_labels(document),
        _ => {}
    }
}

fn block_size(document: &mut Value) {
    let size = document.pointer("/spec/blockSize").and_then(Value::as_u64);
    let cidr = document.pointer("/spec/cidr").and_then(Value::as_str);
    let prefix = cidr.and_then(|text| crate::net::Prefix::parse_strict(text).ok());
    if let (None | Some(0), Some(prefix)) = (size, prefix) {
        let len = crate::resource::default_block_len(prefix.family());
        put(document, "/spec/blockSize", Value::from(len));
    }
}

/// The two labels that Calico's clients set on every endpoint, whatever a document says.
fn endpoint_labels(document: &mut Value) {
    let text = |pointer: &str| {
        let value = document.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let (namespace, orchestrator) = (text("/metadata/namespace"), text("/spec/orchestrator"));
    for (label, value) in [("namespace", namespace), ("orchestrator", orchestrator)] {
        let pointer = format!("/metadata/labels/projectcalico.org~1{label}");
        put(document, &pointer, Value::from(value));
    }
}

/// A resource as somebody would write it into a file: without what the datastore adds.
pub(super) fn export(resource: &mut Value) {
    if let Some(Value::Object(metadata)) = resource.get_mut("metadata") {
        for name in NOT_EXPORTED {
            metadata.shift_remove(name);
        }
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            MARKS
                .iter()
                .for_each(|mark| drop(annotations.shift_remove(*mark)));
        }
    }
    if let Value::Object(fields) = resource {
        fields.shift_remove("status");
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Equal, also where an address is spelled in another way.
fn same(said: &Value, own: &Value) -> bool {
    let address = |value: &Value| value.as_str().and_then(|text| text.parse::<Cidr>().ok());
    said == own || address(said).is_some_and(|said| address(own) == Some(said))
}

/// Sets a field by its JSON pointer; what is no object on the way is left alone, and refused with
/// the value later.
fn put(document: &mut Value, pointer: &str, value: Value) {
    let mut at = document;
    let mut parts = pointer.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        let Value::Object(fields) = at else { return };
        let name = part.replace("~1", "/");
        if parts.peek().is_none() {
            fields.insert(name, value);
            return;
        }
        at = fields.entry(name).or_insert(Value::Null);
    }
}
