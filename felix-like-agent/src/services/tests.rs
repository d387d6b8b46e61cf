//! The plan of services, and the table as a modelled kernel takes it.

#![allow(clippy::unwrap_used)]

mod changes;
mod claims;
mod contests;
mod kernel;
mod listing;
mod planned;
mod refused;
mod theirs;

use std::collections::{BTreeMap, BTreeSet};

use caracal_model::{Applied, NodeName, Snapshot};
use serde_json::{Value, json};

use super::layout::SERVICES_TABLE;
use super::settings::{NodePortAddresses, ServiceNode, ServiceSettings};
use super::table::{ServiceTable, TableChange};
use crate::nft::Transaction;
use kernel::Kernel;

fn snapshot(documents: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let node = json!({"metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": "z"}},
        "spec": {"bgp": {"ipv4Address": "10.0.0.1/24", "ipv6Address": "fd00::1/64"}}});
    let pool = |cidr: &str| json!({"metadata": {"name": "p"}, "spec": {"cidr": cidr}});
    let resources = "/calico/resources/v3/projectcalico.org";
    for (path, value) in [
        ("nodes/a", node),
        ("ippools/p", pool("10.244.0.0/16")),
        ("ippools/q", pool("fd00:244::/64")),
    ] {
        snapshot.apply(
            &format!("{resources}/{path}"),
            Some(value.to_string().as_bytes()),
            1,
        );
    }
    for document in documents {
        put(&mut snapshot, document);
    }
    snapshot
}

fn path(document: &Value) -> String {
    let name = document["metadata"]["name"].as_str().unwrap();
    let kind = match document["kind"].as_str().unwrap() {
        "Service" => "services",
        _ => "endpointslices",
    };
    format!("/calico/caracal/v1/{kind}/shop/{name}")
}

fn put(snapshot: &mut Snapshot, document: &Value) {
    let revision = snapshot.revision + 1;
    let text = document.to_string();
    let applied = snapshot.apply(&path(document), Some(text.as_bytes()), revision);
    assert_eq!(applied, Applied::Changed);
}

/// A Service `web` with this in its spec.
fn service(more: Value) -> Value {
    let mut spec = json!({"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:96::10"],
        "ports": [{"port": 80}]});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let metadata = json!({"name": "web", "namespace": "shop"});
    json!({"kind": "Service", "metadata": metadata, "spec": spec})
}

fn slice(endpoints: Value) -> Value {
    let labels = json!({"kubernetes.io/service-name": "web"});
    json!({"kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"name": "web-1", "namespace": "shop", "labels": labels},
        "ports": [{"name": "", "port": 8080}]})
}

fn endpoint(address: &str, node: &str, more: Value) -> Value {
    let mut value = json!({"addresses": [address], "nodeName": node});
    value
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    value
}

/// Node `a`, with an address beside those of its Node resource.
fn own() -> ServiceNode {
    let node = ServiceNode::new(NodeName::from("a"), ServiceSettings::default());
    ServiceNode {
        addresses: ["10.0.0.1", "fd00::1", "172.16.0.1", "127.0.0.1"]
            .map(|address| address.parse().unwrap())
            .into(),
        ..node
    }
}

/// The table of a node that starts with these documents.
fn table(documents: &[Value]) -> (ServiceTable, Kernel) {
    table_of(&own(), documents)
}

fn table_of(own: &ServiceNode, documents: &[Value]) -> (ServiceTable, Kernel) {
    let mut table = ServiceTable::default();
    let mut kernel = Kernel::default();
    assert_eq!(table.follow(&snapshot(documents), own), None);
    kernel.run(&table.adopt(None));
    (table, kernel)
}

fn map<'a>(kernel: &'a Kernel, set: &str) -> BTreeMap<&'a str, &'a str> {
    let of = kernel.elements.iter().filter(|((of, _), _)| of == set);
    of.map(|((_, key), data)| (key.as_str(), data.as_deref().unwrap_or_default()))
        .collect()
}
