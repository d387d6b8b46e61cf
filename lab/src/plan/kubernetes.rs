//! A cluster with its datastore in Kubernetes: the objects that are there before the first node
//! starts. The lab plays kubelets and scheduler: Nodes and Pods are made with the rest.

use caracal_model::Prefix;
use serde_json::{Map, Value, json};

use super::resources::{Document, documents};
use super::{Layout, NodeLayout};
use crate::topology::{Node, Pool, Topology};

/// Accounts and rights as `kubectl apply -k deploy/kubernetes` makes them: the base, and what it
/// patches and adds.
const RIGHTS: [&str; 3] = [
    include_str!("../../../deploy/base/rbac.yaml"),
    include_str!("../../../deploy/kubernetes/node-rights.yaml"),
    include_str!("../../../deploy/kubernetes/rbac.yaml"),
];
/// The account of the nodes.
pub(crate) const ACCOUNT: &str = "caracal-node";
/// The account of the CNI plugin.
pub(crate) const PLUGIN_ACCOUNT: &str = "caracal-cni-plugin";
const GROUP: &str = "crd.projectcalico.org";

/// Everything that the API server makes at its start.
pub(super) fn objects(topology: &Topology, layout: &Layout) -> Vec<Value> {
    let mut objects = rights();
    let nodes = topology.nodes.iter().filter(|n| n.kind.is_member());
    objects.extend(nodes.enumerate().filter_map(|(index, node)| {
        let layout = layout.node(&node.name.value)?;
        let mut object = node_object(node, layout);
        if layout.uses_pod_cidr() {
            object["spec"] = json!({ "podCIDRs": pod_cidrs(topology, index) });
        }
        Some(object)
    }));
    let resources = documents(topology, layout);
    objects.extend(resources.iter().filter_map(resource));
    for node in &layout.nodes {
        objects.extend(node.pods.iter().map(|pod| pod_object(node, &pod.name)));
    }
    objects
}

/// The name of a pod in the cluster: unique in its namespace, not only on its node.
pub(crate) fn pod_name(node: &str, pod: &str) -> String {
    format!("{node}-{pod}")
}

/// Whose kubeconfig a node's CNI plugin has.
pub(crate) fn plugin_kubeconfig(node: &str) -> String {
    format!("{node}-cni")
}

/// Ranges as a controller manager gives them out: of each pool the part of that number, which is
/// 2⁻⁸ of it.
fn pod_cidrs(topology: &Topology, index: usize) -> Vec<Prefix> {
    let pools = std::iter::once(&topology.pool).chain(&topology.pool6);
    let part = |pool: &Pool| {
        let pool = pool.cidr.value;
        let len = pool.len() + 8;
        let size = 1_u128 << (pool.family().bits() - len);
        let start = pool.nth(size * (index as u128 + 1))?;
        Some(Prefix::truncated(start, len))
    };
    pools.filter_map(part).collect()
}

fn pod_object(node: &NodeLayout, pod: &str) -> Value {
    let container = json!({"name": "pod", "image": "none"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod_name(&node.name, pod), "namespace": "default"},
        "spec": {"nodeName": node.name, "containers": [container]},
    })
}

/// A Node as its kubelet makes it; the addresses of Calico's kind come from Caracal, but for
/// members that do not run it.
fn node_object(node: &Node, layout: &NodeLayout) -> Value {
    let mut annotations = Map::new();
    let mut annotate = |key: &str, value: String| {
        annotations.insert(format!("projectcalico.org/{key}"), value.into());
    };
    if node.kind != crate::topology::NodeKind::Caracal {
        for (address, len) in layout.uplink.addresses() {
            let key = if address.is_ipv4() {
                "IPv4Address"
            } else {
                "IPv6Address"
            };
            annotate(key, format!("{address}/{len}"));
        }
        if let Some(number) = node.asn {
            annotate("ASNumber", number.to_string());
        }
    }
    if let Some(id) = node.route_reflector_cluster_id {
        annotate("RouteReflectorClusterID", id.to_string());
    }
    let addresses = layout.uplink.addresses();
    let addresses = addresses.map(|(a, _)| json!({"type": "InternalIP", "address": a.to_string()}));
    let addresses: Vec<_> = addresses.collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node.name.value, "labels": node.labels, "annotations": annotations},
        "status": {"addresses": addresses},
    })
}

/// A resource of the topology file as Calico keeps it in Kubernetes: the same `spec`, and labels
/// and annotations of its author as JSON in one annotation.
fn resource(document: &Document) -> Option<Value> {
    let value = &document.value;
    let kind = match value["kind"].as_str()? {
        // It is made with its cluster's other Nodes.
        "Node" => return None,
        "IPAMConfiguration" => "IPAMConfig",
        kind => kind,
    };
    let metadata = &value["metadata"];
    let mut kept = json!({"creationTimestamp": null});
    for key in ["labels", "annotations"] {
        if let Some(map) = metadata.get(key) {
            kept[key] = map.clone();
        }
    }
    Some(json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {"name": metadata["name"],
            "annotations": {"projectcalico.org/metadata": kept.to_string()}},
        "spec": value["spec"],
    }))
}

/// The accounts of the nodes and of the CNI plugin, with the rights of the manifests.
fn rights() -> Vec<Value> {
    let mut objects: Vec<Value> = Vec::new();
    for text in RIGHTS {
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(text).expect("the manifests are tested to be YAML");
        for document in documents {
            let same = |object: &&mut Value| {
                object["kind"] == document["kind"]
                    && object["metadata"]["name"] == document["metadata"]["name"]
            };
            match objects.iter_mut().find(same) {
                Some(patched) => *patched = document,
                None => objects.push(document),
            }
        }
    }
    objects
}
