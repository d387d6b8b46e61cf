//! The same scenario on both datastores: Calico's resources of a lab, read and written as by
//! somebody else (`etcdctl`, `kubectl`), whichever datastore it has.

use caracal_lab::{Datastore, Lab, PodState, error_chain};
use serde_json::{Value, json};

/// Where etcd has resources of a kind, by its plural.
const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";

/// True for a lab whose datastore is Kubernetes' API.
#[must_use]
pub fn is_kubernetes(lab: &Lab) -> bool {
    lab.topology().datastore == Datastore::Kubernetes
}

/// A topology's text with Kubernetes' API as its datastore.
///
/// # Panics
/// When it is no topology.
#[must_use]
pub fn on_kubernetes_datastore(text: &str) -> String {
    let mut topology: Value = serde_saphyr::from_str(text).expect("a topology is YAML");
    topology["datastore"] = json!("kubernetes");
    topology.to_string()
}

/// `kubectl` as the administrator; what it printed.
///
/// # Panics
/// When it fails.
pub fn kubectl(lab: &Lab, arguments: &[&str], stdin: &[u8]) -> String {
    let done = lab.kubectl(arguments, stdin);
    done.unwrap_or_else(|e| panic!("kubectl {arguments:?}: {}", error_chain(&e)))
}

/// In Kubernetes pods are bound to their nodes before their ADD; in etcd nobody knows them before.
///
/// # Panics
/// When `kubectl` fails.
pub fn bind_pods(lab: &Lab, pods: &[PodState]) {
    if !is_kubernetes(lab) {
        return;
    }
    let spec = |pod: &PodState| {
        let containers = json!([{"name": "c", "image": "none"}]);
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{}-{}", pod.node, pod.name), "namespace": "default"},
            "spec": {"nodeName": pod.node, "containers": containers}})
    };
    let items: Vec<_> = pods.iter().map(spec).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    kubectl(lab, &["create", "-f", "-"], list.to_string().as_bytes());
}

/// Deletes the Pod of [`bind_pods`].
///
/// # Panics
/// When `kubectl` fails.
pub fn unbind_pod(lab: &Lab, pod: &PodState) {
    let name = format!("{}-{}", pod.node, pod.name);
    let words = [
        "delete",
        "pod",
        &name,
        "--grace-period=0",
        "--force",
        "--wait=false",
    ];
    kubectl(lab, &words, b"");
}

/// The objects of a kind in all namespaces.
///
/// # Panics
/// When `kubectl` fails.
#[must_use]
pub fn kubernetes_objects(lab: &Lab, kind: &str) -> Vec<Value> {
    let text = kubectl(lab, &["get", kind, "-A", "-o", "json"], b"");
    let mut list: Value = serde_json::from_str(&text).expect("kubectl prints JSON");
    match list["items"].take() {
        Value::Array(items) => items,
        other => panic!("kubectl get {kind}: {other}"),
    }
}

/// One object; `None` when there is none of that name.
///
/// # Panics
/// When `kubectl` fails.
#[must_use]
pub fn kubernetes_object_if_any(lab: &Lab, kind: &str, name: &str) -> Option<Value> {
    let mut found = kubernetes_objects(lab, kind).into_iter();
    found.find(|object| object["metadata"]["name"] == name)
}

/// One object.
///
/// # Panics
/// When there is none of that name.
#[must_use]
pub fn kubernetes_object(lab: &Lab, kind: &str, name: &str) -> Value {
    kubernetes_object_if_any(lab, kind, name).unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn etcdctl(lab: &Lab, arguments: &[&str], stdin: &[u8]) -> String {
    lab.etcdctl(arguments, stdin)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)))
}

/// A resource of Calico's, by the plural of its kind.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn calico_resource(lab: &Lab, plural: &str, name: &str) -> Value {
    let found = calico_resource_if_any(lab, plural, name);
    found.unwrap_or_else(|| panic!("no {plural} {name}"))
}

/// A resource of Calico's; `None` when there is none of that name.
///
/// # Panics
/// When the datastore cannot be asked, or the value is not JSON.
#[must_use]
pub fn calico_resource_if_any(lab: &Lab, plural: &str, name: &str) -> Option<Value> {
    if is_kubernetes(lab) {
        return kubernetes_object_if_any(lab, plural, name);
    }
    let key = format!("{RESOURCES}/{plural}/{name}");
    let text = etcdctl(lab, &["get", &key, "--print-value-only"], b"");
    let value = || serde_json::from_str(&text).unwrap_or_else(|e| panic!("{key}: {e}: {text}"));
    (!text.trim().is_empty()).then(value)
}

/// Writes a resource of Calico's over what is there, as it was read or new.
///
/// # Panics
/// When the datastore does not take it.
pub fn put_calico_resource(lab: &Lab, plural: &str, resource: &Value) {
    try_put_calico_resource(lab, plural, resource).unwrap_or_else(|e| panic!("{e}"));
}

/// The same, where an API server may refuse the value.
///
/// # Errors
/// What the API server says.
///
/// # Panics
/// When what is there cannot be read, or etcd does not take it.
pub fn try_put_calico_resource(lab: &Lab, plural: &str, resource: &Value) -> Result<(), String> {
    let name = resource["metadata"]["name"].as_str().expect("a name");
    if !is_kubernetes(lab) {
        let key = format!("{RESOURCES}/{plural}/{name}");
        let _answer = etcdctl(lab, &["put", &key], resource.to_string().as_bytes());
        return Ok(());
    }
    let mut object = resource.clone();
    // Nodes and Pods are Kubernetes' own.
    if object["apiVersion"] != "v1" {
        object["apiVersion"] = json!("crd.projectcalico.org/v1");
    }
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    for of_the_old in ["uid", "resourceVersion"] {
        metadata.shift_remove(of_the_old);
    }
    let there = kubernetes_object_if_any(lab, plural, name);
    let verb = match there {
        Some(mut there) => {
            metadata.insert(
                "resourceVersion".to_owned(),
                there["metadata"]["resourceVersion"].take(),
            );
            "replace"
        }
        None => "create",
    };
    let done = lab.kubectl(&[verb, "-f", "-"], object.to_string().as_bytes());
    done.map(drop).map_err(|e| error_chain(&e))
}

/// Deletes a resource of Calico's.
///
/// # Panics
/// When the datastore does not.
pub fn delete_calico_resource(lab: &Lab, plural: &str, name: &str) {
    match is_kubernetes(lab) {
        true => kubectl(lab, &["delete", plural, name], b""),
        false => etcdctl(lab, &["del", &format!("{RESOURCES}/{plural}/{name}")], b""),
    };
}

/// The names of all resources of a kind.
///
/// # Panics
/// When the datastore cannot be asked.
#[must_use]
pub(crate) fn resource_names(lab: &Lab, plural: &str) -> Vec<String> {
    if is_kubernetes(lab) {
        let name = |object: Value| object["metadata"]["name"].as_str().map(str::to_owned);
        return kubernetes_objects(lab, plural)
            .into_iter()
            .filter_map(name)
            .collect();
    }
    let folder = format!("{RESOURCES}/{plural}/");
    let keys = etcdctl(lab, &["get", &folder, "--prefix", "--keys-only"], b"");
    let name = |key: &str| key.strip_prefix(&folder).map(str::to_owned);
    keys.lines().filter_map(name).collect()
}

/// Ends the datastore: etcd, or the API server, killed.
///
/// # Panics
/// When it does not end.
pub fn stop_datastore(lab: &mut Lab) {
    let ended = match is_kubernetes(lab) {
        true => lab.kill9_api_server(),
        false => lab.stop_etcd(),
    };
    ended.expect("the datastore ends");
}

/// Starts it again, with what it had.
///
/// # Panics
/// When it does not start.
pub fn start_datastore(lab: &mut Lab) {
    match is_kubernetes(lab) {
        true => lab.start_api_server().map_err(|e| error_chain(&e)),
        false => lab.start_etcd().map_err(|e| error_chain(&e)),
    }
    .unwrap_or_else(|e| panic!("{e}"));
}

/// The port of the datastore's server, for rules that cut it off.
#[must_use]
pub fn datastore_port(lab: &Lab) -> u16 {
    match is_kubernetes(lab) {
        true => caracal_lab::API_PORT,
        false => caracal_lab::ETCD_PORT,
    }
}
