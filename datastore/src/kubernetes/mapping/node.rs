//! Kubernetes' Node ⇄ Calico's. What Calico's Node says stands in annotations of Kubernetes';
//! Kubernetes' own labels and addresses are read and never written.

use std::collections::BTreeMap;

use caracal_model::{API_VERSION, InsertEach};
use serde_json::{Map, Value, json};

const PREFIX: &str = "projectcalico.org/";

/// Fields of the value by JSON pointer, and the annotations that hold them.
const FIELDS: [(&str, &str); 13] = [
    ("/spec/bgp/ipv4Address", "IPv4Address"),
    ("/spec/bgp/ipv6Address", "IPv6Address"),
    ("/spec/bgp/asNumber", "ASNumber"),
    ("/spec/bgp/ipv4IPIPTunnelAddr", "IPv4IPIPTunnelAddr"),
    (
        "/spec/bgp/routeReflectorClusterID",
        "RouteReflectorClusterID",
    ),
    ("/spec/ipv4VXLANTunnelAddr", "IPv4VXLANTunnelAddr"),
    ("/spec/vxlanTunnelMACAddr", "VXLANTunnelMACAddr"),
    ("/spec/ipv6VXLANTunnelAddr", "IPv6VXLANTunnelAddr"),
    ("/spec/vxlanTunnelMACAddrV6", "VXLANTunnelMACAddrV6"),
    (
        "/spec/wireguard/interfaceIPv4Address",
        "IPv4WireguardInterfaceAddr",
    ),
    (
        "/spec/wireguard/interfaceIPv6Address",
        "IPv6WireguardInterfaceAddr",
    ),
    ("/status/wireguardPublicKey", "WireguardPublicKey"),
    ("/status/wireguardPublicKeyV6", "WireguardPublicKeyV6"),
];

/// Annotations that hold JSON.
const INTERFACES: &str = "Interfaces";
const LABELS: &str = "labels";
const ANNOTATIONS: &str = "annotations";

fn texts(map: Option<&Value>) -> BTreeMap<String, String> {
    let map = map.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .insert_each()
}

/// A JSON map in an annotation; empty when there is none, or none that can be read.
fn stored(annotations: &BTreeMap<String, String>, name: &str) -> BTreeMap<String, String> {
    let text = annotations.get(&format!("{PREFIX}{name}"));
    let value = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
    texts(value.as_ref())
}

/// Kubernetes' own annotations: those that hold nothing of Calico's.
fn foreign(annotations: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut own = annotations.clone();
    own.retain(|key, _| {
        key.strip_prefix(PREFIX).is_none_or(|name| {
            let mut known = FIELDS.iter().map(|(_, field)| *field);
            !known.any(|field| field == name) && ![INTERFACES, LABELS, ANNOTATIONS].contains(&name)
        })
    });
    own.retain(|key, _| key != "kubectl.kubernetes.io/last-applied-configuration");
    own
}

pub(super) fn put(value: &mut Value, pointer: &str, field: Value) {
    let mut at = value;
    for part in pointer.split('/').skip(1) {
        at = &mut at[part];
    }
    *at = field;
}

/// The value of Calico's Node.
pub(super) fn value(object: &Value) -> Value {
    let name = &object["metadata"]["name"];
    let annotations = texts(object["metadata"].get("annotations"));
    let mut labels = stored(&annotations, LABELS);
    labels.extend(texts(object["metadata"].get("labels")));
    let mut noted = stored(&annotations, ANNOTATIONS);
    noted.extend(foreign(&annotations));
    let mut metadata = json!({
        "name": name,
        "creationTimestamp": object["metadata"]["creationTimestamp"],
        "labels": labels,
        "annotations": noted,
    });
    if let Some(uid) = object["metadata"].get("uid") {
        metadata["uid"] = uid.clone();
    }
    let mut value = json!({
        "kind": "Node", "apiVersion": API_VERSION, "metadata": metadata,
        "spec": {"orchRefs": [{"nodeName": name, "orchestrator": "k8s"}]},
    });
    for (pointer, annotation) in FIELDS {
        let Some(text) = annotations.get(&format!("{PREFIX}{annotation}")) else {
            continue;
        };
        let field: Value = match annotation {
            "ASNumber" => match text.parse::<u32>() {
                Ok(number) => number.into(),
                // 1.10 is a number as well.
                Err(_) => text.as_str().into(),
            },
            _ => text.as_str().into(),
        };
        if field != "" {
            put(&mut value, pointer, field);
        }
    }
    let interfaces = annotations.get(&format!("{PREFIX}{INTERFACES}"));
    if let Some(Ok(list @ Value::Array(_))) = interfaces.map(|text| serde_json::from_str(text)) {
        value["spec"]["interfaces"] = list;
    }
    value["spec"]["addresses"] = addresses(object, &value).into();
    let one = || Some(json!([object["spec"].get("podCIDR")?]));
    if let Some(cidrs) = object["spec"].get("podCIDRs").cloned().or_else(one) {
        value["status"]["podCIDRs"] = cidrs;
    }
    value
}

/// The BGP addresses, then Kubernetes' own.
fn addresses(object: &Value, value: &Value) -> Vec<Value> {
    let entry = |address: &Value, kind: &str| json!({"address": address, "type": kind});
    let bgp = ["/spec/bgp/ipv4Address", "/spec/bgp/ipv6Address"];
    let mut all: Vec<Value> = bgp
        .iter()
        .filter_map(|pointer| Some(entry(value.pointer(pointer)?, "CalicoNodeIP")))
        .collect();
    let own = object["status"]["addresses"].as_array();
    for kind in ["InternalIP", "ExternalIP"] {
        let of_kind = own.into_iter().flatten().filter(|a| a["type"] == kind);
        all.extend(of_kind.map(|a| entry(&a["address"], kind)));
    }
    all
}

/// The patch of `nodes/NAME/status` that makes an object say what a value says; `None` when it does
/// already.
pub(super) fn patch(value: &Value, before: &Value) -> Option<Value> {
    let there = texts(before["metadata"].get("annotations"));
    let mut changed = Map::new();
    let mut set = |name: &str, wanted: Option<String>| {
        let key = format!("{PREFIX}{name}");
        if there.get(&key) != wanted.as_ref() {
            changed.insert(key, wanted.map_or(Value::Null, Value::String));
        }
    };
    for (pointer, annotation) in FIELDS {
        let field = value.pointer(pointer).filter(|field| !field.is_null());
        let text = field.map(|field| match field {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        set(annotation, text.filter(|text| !text.is_empty()));
    }
    let interfaces = value.pointer("/spec/interfaces");
    set(INTERFACES, interfaces.map(Value::to_string));
    // Kubernetes' own labels and annotations are left out, so that they go when they go there.
    let mine = |field: &str, own: &BTreeMap<String, String>| {
        let mut map = texts(value["metadata"].get(field));
        map.retain(|key, text| own.get(key) != Some(text));
        (!map.is_empty()).then(|| json!(map).to_string())
    };
    let labels = texts(before["metadata"].get("labels"));
    set(LABELS, mine("labels", &labels));
    set(ANNOTATIONS, mine("annotations", &foreign(&there)));
    if changed.is_empty() {
        return None;
    }
    Some(json!({"metadata": {
        "annotations": changed,
        "resourceVersion": before["metadata"]["resourceVersion"],
    }}))
}
