//! Plans `datastore import`: keys to create, complete or refuse. Pure.

use std::collections::BTreeMap;

use anyhow::Context as _;
use caracal_model::{InsertEach, Key, KeyValue, Kind, Txn};
use serde_json::{Value, json};

/// `kind` of an exported file.
const KIND: &str = "CaracalDatastoreExport";
const VERSION: u64 = 1;

/// Everything of a datastore, by key.
pub(super) type Content = BTreeMap<String, Value>;

/// An exported file.
pub(super) fn file(values: &[KeyValue], from: &str) -> anyhow::Result<Value> {
    let mut list = Vec::new();
    for one in values {
        let value: Value = serde_json::from_slice(&one.value)
            .with_context(|| format!("{} holds no JSON and cannot be exported", one.key))?;
        list.push(json!({"key": one.key, "value": value}));
    }
    Ok(json!({"kind": KIND, "version": VERSION, "from": from, "values": list}))
}

/// Content of an exported file.
pub(super) fn content(file: &Value) -> anyhow::Result<Content> {
    anyhow::ensure!(
        file["kind"] == KIND,
        "it is no export of a datastore: its kind is {}, and `caracal datastore export` writes {KIND:?}",
        file["kind"]
    );
    anyhow::ensure!(
        file["version"] == VERSION,
        "its version is {}, and this program reads {VERSION}",
        file["version"]
    );
    let values = file["values"].as_array().context("it has no values")?;
    let mut content = Content::new();
    for (at, one) in values.iter().enumerate() {
        let key = one["key"]
            .as_str()
            .with_context(|| format!("value {at} has no key"))?;
        anyhow::ensure!(
            key.starts_with("/calico/"),
            "value {at} has the key {key}, which is not one of Calico's"
        );
        content.insert(key.to_owned(), one["value"].clone());
    }
    Ok(content)
}

/// One write of an import.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImportWrite {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) txn: Txn,
}

impl ImportWrite {
    /// True when a value that is there says what is to be written.
    pub(super) fn is_done_by(&self, there: &KeyValue) -> bool {
        let found: Value = serde_json::from_slice(&there.value).unwrap_or_default();
        holds(said(&found), said(&self.value))
    }
}

/// Writes of an import.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ImportPlan {
    /// In this order: the lock first, IPAM's objects last.
    pub(super) orders: Vec<ImportWrite>,
    /// Values that are there already.
    pub(super) same: usize,
    /// Keys that are there with something else; with any of them nothing is written.
    pub(super) other: Vec<String>,
}

/// Compares what is to be imported with what is there. What others make (Nodes and pods, in
/// Kubernetes' API) is completed; nothing else that is there is changed.
pub(super) fn plan(content: &Content, there: &[KeyValue]) -> ImportPlan {
    let there: BTreeMap<&str, &KeyValue> =
        there.iter().map(|kv| (kv.key.as_str(), kv)).insert_each();
    let mut plan = ImportPlan::default();
    let mut keys: Vec<&String> = content.keys().collect();
    keys.sort_by_key(|key| (rank(key), key.as_str()));
    for key in keys {
        let value = &content[key];
        let octets = value.to_string().into_bytes();
        let txn = match there.get(key.as_str()) {
            None => Txn::new().create(key, octets),
            Some(kv) => {
                let found: Value = serde_json::from_slice(&kv.value).unwrap_or_default();
                if holds(said(&found), said(value)) {
                    plan.same += 1;
                    continue;
                }
                if !is_completed(key) {
                    plan.other.push(key.clone());
                    continue;
                }
                Txn::new().update(key, kv.mod_revision, octets)
            }
        };
        plan.orders.push(ImportWrite {
            key: key.clone(),
            value: value.clone(),
            txn,
        });
    }
    plan
}

/// The lock, configurations and pools, Nodes, IPAM, endpoints.
fn rank(key: &str) -> u8 {
    match Key::parse(key) {
        Ok(Key::Resource { kind, .. }) => match kind {
            Kind::ClusterInformation => 0,
            Kind::Node => 2,
            Kind::WorkloadEndpoint => 6,
            _ => 1,
        },
        Ok(Key::Handle(_)) => 3,
        Ok(Key::Block(_)) => 4,
        Ok(Key::Affinity(..)) => 5,
        _ => 1,
    }
}

/// Made by Kubernetes, and completed by us.
fn is_completed(key: &str) -> bool {
    let key = Key::parse(key);
    matches!(
        key,
        Ok(Key::Resource {
            kind: Kind::Node | Kind::WorkloadEndpoint,
            ..
        })
    )
}

/// Content of a value: a resource without its metadata, which servers make.
fn said(value: &Value) -> &Value {
    value.get("spec").unwrap_or(value)
}

/// Everything that `wanted` says is there; a server may have added defaults.
fn holds(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            let there = there.get(key).unwrap_or(&Value::Null);
            holds(there, wanted)
        }),
        (there, wanted) => there == wanted,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const POOL: &str = "/calico/resources/v3/projectcalico.org/ippools/p";
    const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/n";
    const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
    const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.244.0.0-26";

    fn kv(key: &str, value: &Value) -> KeyValue {
        KeyValue {
            key: key.to_owned(),
            value: value.to_string().into_bytes(),
            mod_revision: 7,
        }
    }

    fn pool(cidr: &str) -> Value {
        json!({"metadata": {"name": "p", "uid": "1"}, "spec": {"cidr": cidr}})
    }

    #[test]
    fn what_is_exported_is_read_again() {
        let values = [
            kv(POOL, &pool("10.244.0.0/16")),
            kv(BLOCK, &json!({"cidr": "x"})),
        ];
        let file = file(&values, "etcd").unwrap();
        let content = content(&file).unwrap();
        assert_eq!(content.len(), 2);
        assert_eq!(content[POOL], pool("10.244.0.0/16"));
    }

    #[test]
    fn what_is_no_export_is_refused() {
        for (file, fault) in [
            (json!({"kind": "IPPool"}), "it is no export"),
            (json!({"kind": KIND, "version": 2}), "its version is 2"),
            (json!({"kind": KIND, "version": 1}), "no values"),
            (
                json!({"kind": KIND, "version": 1, "values": [{"key": "/registry/x", "value": 1}]}),
                "not one of Calico's",
            ),
        ] {
            let said = content(&file).unwrap_err().to_string();
            assert!(said.contains(fault), "{said}");
        }
        let mut broken = kv(POOL, &Value::Null);
        broken.value = b"{".to_vec();
        let said = super::file(&[broken], "etcd").unwrap_err().to_string();
        assert!(said.contains(POOL), "{said}");
    }

    #[test]
    fn the_lock_comes_first_and_only_kubernetes_own_objects_are_changed() {
        let mut content = Content::new();
        content.insert(BLOCK.to_owned(), json!({"cidr": "10.244.0.0/26"}));
        content.insert(POOL.to_owned(), pool("10.244.0.0/16"));
        content.insert(NODE.to_owned(), json!({"spec": {"bgp": {"asNumber": 1}}}));
        content.insert(
            CLUSTER.to_owned(),
            json!({"spec": {"datastoreReady": false}}),
        );
        let keys = |plan: &ImportPlan| -> Vec<String> {
            plan.orders.iter().map(|order| order.key.clone()).collect()
        };
        let bare = plan(&content, &[]);
        assert_eq!(keys(&bare), [CLUSTER, POOL, NODE, BLOCK]);

        // Again, with defaults and metadata that the server added, and a Node that is not complete.
        let mut there = pool("10.244.0.0/16");
        there["metadata"]["uid"] = "2".into();
        there["spec"]["nodeSelector"] = "all()".into();
        let node = kv(NODE, &json!({"spec": {}}));
        let again = plan(&content, &[kv(POOL, &there), node.clone()]);
        assert_eq!(again.same, 1);
        assert_eq!(keys(&again), [CLUSTER, NODE, BLOCK]);
        assert_eq!(again.orders[1].txn, {
            let value = content[NODE].to_string().into_bytes();
            Txn::new().update(NODE, 7, value)
        });

        let another = plan(&content, &[kv(POOL, &pool("10.99.0.0/16")), node]);
        assert_eq!(another.other, [POOL]);
    }
}
