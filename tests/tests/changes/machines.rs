//! Changes of Nodes, and of what IPAM and the plugin keep: those of a program that is mistaken, or
//! by hand.

use std::net::IpAddr;

use caracal_lab::Lab;
use caracal_model::Family;
use caracal_tests::{
    Random, address_of, calico_resource, either, is_kubernetes, kubernetes_objects,
};
use serde_json::{Value, json};

use super::{Change, NODES, Place, Write, etcdctl, field, locked, whole};

/// Fields of a Node's `spec` in etcd, and the annotations that say the same in Kubernetes.
const ANNOTATIONS: [(&str, &str); 8] = [
    ("bgp.ipv4Address", "IPv4Address"),
    ("bgp.ipv6Address", "IPv6Address"),
    ("bgp.asNumber", "ASNumber"),
    ("bgp.routeReflectorClusterID", "RouteReflectorClusterID"),
    ("ipv4VXLANTunnelAddr", "IPv4VXLANTunnelAddr"),
    ("ipv6VXLANTunnelAddr", "IPv6VXLANTunnelAddr"),
    ("vxlanTunnelMACAddr", "VXLANTunnelMACAddr"),
    ("vxlanTunnelMACAddrV6", "VXLANTunnelMACAddrV6"),
];

pub(super) fn node(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let name = *random.of(&NODES);
    let other: IpAddr = address_of(lab, "node2", family);
    let len = either(family, 24, 64);
    let key = |v4, v6| either(family, v4, v6);
    let address = key("bgp.ipv4Address", "bgp.ipv6Address");
    let tunnel = key("ipv4VXLANTunnelAddr", "ipv6VXLANTunnelAddr");
    let mac = key("vxlanTunnelMACAddr", "vxlanTunnelMACAddrV6");
    let pods = lab.state().pods.iter();
    let pod = pods.filter_map(|pod| pod.address_of(family)).next();
    let pod = pod.expect("a pod with an address");
    let (path, to) = random
        .of(&[
            (address, json!(format!("{other}/{len}"))),
            (address, json!(format!("{pod}/{len}"))),
            (address, json!("127.0.0.1/8")),
            (address, json!("here")),
            (address, json!(null)),
            ("bgp.asNumber", json!(64999)),
            ("bgp.routeReflectorClusterID", json!("224.0.0.1")),
            (tunnel, json!(null)),
            (tunnel, json!(pod.to_string())),
            (mac, json!("66:00:00:00:00:01")),
            ("", json!(null)),
        ])
        .clone();
    match path {
        "" => whole(lab, "nodes", name, None),
        path if is_kubernetes(lab) => annotated(lab, name, path, &to),
        path => field(lab, "nodes", name, json!({}), path, &to),
    }
}

fn annotated(lab: &Lab, name: &str, path: &str, to: &Value) -> Change {
    let found = ANNOTATIONS.iter().find(|(field, _)| *field == path);
    let (_, annotation) = found.expect("an annotation says it");
    let before = calico_resource(lab, "nodes", name);
    let mut after = before.clone();
    let annotations = after["metadata"]["annotations"].as_object_mut();
    let annotations = annotations.expect("a Node of Caracal's has annotations");
    let key = format!("projectcalico.org/{annotation}");
    match to {
        Value::Null => drop(annotations.shift_remove(&key)),
        Value::String(text) => drop(annotations.insert(key, json!(text))),
        other => drop(annotations.insert(key, json!(other.to_string()))),
    }
    Change {
        what: format!("Node {name}: {annotation} = {to}"),
        writes: vec![Write {
            place: Place::Resource("nodes", name.to_owned()),
            before: Some(before),
            after: Some(after),
        }],
    }
}

/// IPAM's data and endpoints: deleted, of another owner, or with a value that is none.
pub(super) fn by_hand(random: &mut Random, lab: &Lab, family: Family) -> Change {
    match is_kubernetes(lab) {
        true => object_by_hand(random, lab),
        false => key_by_hand(random, lab, family),
    }
}

fn key_by_hand(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let family = either(family, "ipv4", "ipv6");
    let prefix = (*random.of(&[
        format!("/calico/ipam/v2/assignment/{family}/block/"),
        "/calico/ipam/v2/host/".to_owned(),
        "/calico/ipam/v2/handle/".to_owned(),
        "/calico/resources/v3/projectcalico.org/workloadendpoints/".to_owned(),
    ]))
    .clone();
    let listed = etcdctl(lab, &["get", "--prefix", &prefix, "--keys-only"], "");
    let keys: Vec<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
    if keys.is_empty() {
        return locked(random, lab, Family::Ipv4);
    }
    let key = (*random.of(&keys)).to_owned();
    let before = etcdctl(lab, &["get", &key, "--print-value-only"], "");
    let mut other: Value = serde_json::from_str(&before).unwrap_or_default();
    if prefix.ends_with("/block/") {
        other["affinity"] = json!("host:nobody");
    } else if prefix.ends_with("/host/") {
        other["state"] = json!("pendingDeletion");
    }
    let after = random
        .of(&[
            None,
            Some(json!("{")),
            Some(json!({})),
            Some(json!([1, 2, 3])),
            Some(other),
        ])
        .clone();
    Change {
        what: match &after {
            Some(value) => format!("{key} = {value}"),
            None => format!("{key} is deleted"),
        },
        writes: vec![Write {
            place: Place::Key(key),
            before: Some(json!(before.trim_end())),
            after,
        }],
    }
}

fn object_by_hand(random: &mut Random, lab: &Lab) -> Change {
    let plural = *random.of(&["ipamblocks", "blockaffinities", "ipamhandles", "pods"]);
    let objects = kubernetes_objects(lab, plural);
    if objects.is_empty() {
        return locked(random, lab, Family::Ipv4);
    }
    let before = random.of(&objects).clone();
    let name = before["metadata"]["name"].as_str().unwrap_or_default();
    let choices = match plural {
        "ipamblocks" => vec![
            ("/spec", json!({})),
            ("/spec/affinity", json!("host:nobody")),
            ("/spec/cidr", json!("everything")),
            ("", json!(null)),
        ],
        "blockaffinities" => vec![
            ("/spec", json!({})),
            ("/spec/state", json!("pendingDeletion")),
            ("/spec/node", json!("nobody")),
            ("", json!(null)),
        ],
        "ipamhandles" => vec![("/spec", json!({})), ("", json!(null))],
        _ => vec![("/metadata/annotations", json!({})), ("", json!(null))],
    };
    let (path, to) = random.of(&choices).clone();
    let mut after = before.clone();
    if let Some(value) = after.pointer_mut(path) {
        *value = to.clone();
    }
    Change {
        what: match path {
            "" => format!("{plural} {name} is deleted"),
            path => format!("{plural} {name}: {path} = {to}"),
        },
        writes: vec![Write {
            place: Place::Resource(plural, name.to_owned()),
            before: Some(before),
            after: (!path.is_empty()).then_some(after),
        }],
    }
}
