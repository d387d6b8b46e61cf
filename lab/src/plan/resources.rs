//! Calico documents that are in etcd before the first node starts.

use caracal_model::Family;
use serde_json::{Map, Value, json};

use super::Layout;
use crate::topology::kinds::plural;
use crate::topology::{Resource, Topology};

/// A value for an etcd key. `uid` and `creationTimestamp` are added when it is put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Key in etcd, from its beginning.
    pub key: String,
    /// Resource as JSON.
    pub value: Value,
}

fn key(kind: &str, name: &str) -> String {
    let plural = plural(kind).expect("invariant: kinds were checked");
    format!("/calico/resources/v3/projectcalico.org/{plural}/{name}")
}

fn document(kind: &str, name: &str, metadata: Map<String, Value>, spec: &Value) -> Document {
    let value = json!({
        "kind": kind,
        "apiVersion": "projectcalico.org/v3",
        "metadata": metadata,
        "spec": spec,
    });
    Document {
        key: key(kind, name),
        value,
    }
}

/// The topology's resources, and a Node for every node that cannot or must not be left to register
/// itself: foreign members, and nodes with labels or a reflector's cluster ID.
pub(super) fn documents(topology: &Topology, layout: &Layout) -> Vec<Document> {
    let own = topology.resources.iter().map(|r| resource(&r.value));
    own.chain(topology.nodes.iter().filter_map(|n| node(n, layout)))
        .collect()
}

fn resource(resource: &Resource) -> Document {
    let name = resource.name().expect("invariant: names were checked");
    let spec = if resource.spec.is_null() {
        json!({})
    } else {
        resource.spec.clone()
    };
    document(&resource.kind, name, resource.metadata.clone(), &spec)
}

fn node(node: &crate::topology::Node, layout: &Layout) -> Option<Document> {
    use crate::topology::NodeKind;
    let plain = node.labels.is_empty() && node.route_reflector_cluster_id.is_none();
    if !node.kind.is_member() || (node.kind == NodeKind::Caracal && plain) {
        return None;
    }
    let name = &node.name.value;
    let uplink = &layout
        .node(name)
        .expect("invariant: the layout is of this topology")
        .uplink;
    let mut bgp = json!({});
    let mut addresses = Vec::new();
    for (address, len) in uplink.addresses() {
        let key = match Family::of(address) {
            Family::Ipv4 => "ipv4Address",
            Family::Ipv6 => "ipv6Address",
        };
        let address = format!("{address}/{len}");
        bgp[key] = json!(address);
        addresses.push(json!({ "address": address, "type": "CalicoNodeIP" }));
    }
    if let Some(asn) = node.asn {
        bgp["asNumber"] = json!(asn);
    }
    if let Some(id) = node.route_reflector_cluster_id {
        bgp["routeReflectorClusterID"] = json!(id);
    }
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(name));
    if !node.labels.is_empty() {
        metadata.insert("labels".to_owned(), json!(node.labels));
    }
    let spec = json!({ "addresses": addresses, "bgp": bgp });
    Some(document("Node", name, metadata, &spec))
}
