//! Pod → WorkloadEndpoint, and the annotations that the CNI plugin leaves on a pod instead of an
//! endpoint.

use std::collections::BTreeMap;

use caracal_model::{API_VERSION, InsertEach, Key, endpoint_name, pod_interface};
use serde_json::{Map, Value, json};

use crate::kubernetes_pod::KubernetesPod;

const POD_IP: &str = "cni.projectcalico.org/podIP";
const POD_IPS: &str = "cni.projectcalico.org/podIPs";
const CONTAINER: &str = "cni.projectcalico.org/containerID";
const QOS: &str = "qos.projectcalico.org/";
const AMAZON: &str = "vpc.amazonaws.com/pod-ips";

/// The interface whose endpoint a pod stands for.
const FIRST_INTERFACE: &str = "eth0";

/// Label values are at most this long.
const LONGEST_LABEL: usize = 63;

fn annotation<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    let text = pod["metadata"]["annotations"].get(name)?.as_str()?;
    (!text.is_empty()).then_some(text)
}

/// The addresses with their lengths; none of a pod that is over.
fn networks(pod: &Value) -> Vec<String> {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let deleted = pod["metadata"].get("deletionTimestamp").is_some();
    let emptied = pod["metadata"]["annotations"]
        .get(POD_IP)
        .and_then(Value::as_str)
        == Some("");
    if matches!(phase, "Failed" | "Succeeded") || (deleted && emptied) {
        return Vec::new();
    }
    let listed = pod["status"]["podIPs"].as_array().into_iter().flatten();
    let listed: Vec<String> = listed
        .filter_map(|entry| Some(entry["ip"].as_str()?.to_owned()))
        .collect();
    let split = |text: &str| text.split(',').map(|a| a.trim().to_owned()).collect();
    let sources = [
        Some(listed),
        pod["status"]["podIP"].as_str().map(split),
        annotation(pod, POD_IPS).map(split),
        annotation(pod, POD_IP).map(split),
        annotation(pod, AMAZON).map(split),
    ];
    let usable = |source: Vec<String>| -> Vec<String> {
        source.into_iter().filter(|a| !a.is_empty()).collect()
    };
    let mut sources = sources.into_iter().flatten().map(usable);
    let addresses = sources.find(|source| !source.is_empty());
    addresses
        .unwrap_or_default()
        .into_iter()
        .map(with_length)
        .collect()
}

fn with_length(address: String) -> String {
    match (address.contains('/'), address.contains(':')) {
        (true, _) => address,
        (false, false) => format!("{address}/32"),
        (false, true) => format!("{address}/128"),
    }
}

fn account(pod: &Value) -> &str {
    let account = pod["spec"]["serviceAccountName"].as_str();
    account.filter(|name| !name.is_empty()).unwrap_or("default")
}

fn profiles(namespace: &str, account: &str) -> Vec<String> {
    vec![
        format!("kns.{namespace}"),
        format!("ksa.{namespace}.{account}"),
    ]
}

/// The pod's own labels and Calico's.
fn labels(pod: &Value, namespace: &str, account: &str) -> BTreeMap<String, String> {
    let mut labels = texts(&pod["metadata"]["labels"]);
    let mut put = |name: &str, value: &str| {
        labels.insert(format!("projectcalico.org/{name}"), value.to_owned());
    };
    put("namespace", namespace);
    put("orchestrator", "k8s");
    if account.len() < LONGEST_LABEL {
        put("serviceaccount", account);
    }
    labels
}

fn texts(map: &Value) -> BTreeMap<String, String> {
    let map = map.as_object().into_iter().flatten();
    map.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .insert_each()
}

/// Ports of the containers that have a name, or a port of the host, as an endpoint has them.
/// Protocols that Calico does not know are left out.
fn ports(pod: &Value) -> Vec<Value> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let containers = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|field| list(&pod["spec"][field]));
    let ports = containers.flat_map(|container| list(&container["ports"]));
    let of_endpoint = |port: Value| {
        let number = |field: &str| port[field].as_u64().unwrap_or_default();
        let text = |field: &str| port[field].as_str().unwrap_or_default().to_owned();
        let (name, host_port) = (text("name"), number("hostPort"));
        let counts = number("containerPort") != 0 && (host_port != 0 || !name.is_empty());
        let protocol = match text("protocol").as_str() {
            "" => "TCP".to_owned(),
            known @ ("TCP" | "UDP" | "SCTP") => known.to_owned(),
            _ => return None,
        };
        counts.then(|| {
            json!({
                "name": name, "protocol": protocol, "port": number("containerPort"),
                "hostPort": host_port, "hostIP": text("hostIP"),
            })
        })
    };
    ports.filter_map(of_endpoint).collect()
}

/// What the CNI plugin reads of a pod and its namespace.
pub(crate) fn read_pod(pod: &Value, namespace: &Value) -> KubernetesPod {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let within = text(&pod["metadata"]["namespace"]).unwrap_or_default();
    let account = account(pod);
    KubernetesPod {
        uid: text(&pod["metadata"]["uid"]).unwrap_or_default(),
        generate_name: text(&pod["metadata"]["generateName"]).filter(|name| !name.is_empty()),
        labels: labels(pod, &within, account),
        service_account: account.to_owned(),
        profiles: profiles(&within, account),
        ports: ports(pod),
        annotations: texts(&pod["metadata"]["annotations"]),
        namespace_annotations: texts(&namespace["metadata"]["annotations"]),
    }
}

/// Namespace, name and value of a pod's endpoint; `None` when it has none: not bound to a node, in
/// the host's network, without addresses, or over.
pub(super) fn endpoint(pod: &Value) -> Option<(String, String, Value)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let name = text(&pod["metadata"]["name"])?;
    let namespace = text(&pod["metadata"]["namespace"])?;
    let node = text(&pod["spec"]["nodeName"]).filter(|node| !node.is_empty())?;
    if pod["spec"]["hostNetwork"].as_bool() == Some(true) {
        return None;
    }
    let networks = networks(pod);
    if networks.is_empty() {
        return None;
    }
    let account = account(pod);
    let endpoint = endpoint_name(&node, "k8s", &name, FIRST_INTERFACE);
    let mut spec = json!({
        "orchestrator": "k8s", "node": node, "pod": name, "endpoint": FIRST_INTERFACE,
        "ipNetworks": networks,
        "interfaceName": pod_interface("cali", &namespace, &name),
        "profiles": profiles(&namespace, account),
        "serviceAccountName": account,
    });
    let ports = ports(pod);
    if !ports.is_empty() {
        spec["ports"] = ports.into();
    }
    if let Some(container) = annotation(pod, CONTAINER) {
        spec["containerID"] = container.into();
    }
    // Only to be named: nothing here limits what a pod sends.
    for (name, text) in texts(&pod["metadata"]["annotations"]) {
        if let Some(control) = name.strip_prefix(QOS) {
            spec["qosControls"][control] = text.into();
        }
    }
    let value = json!({
        "kind": "WorkloadEndpoint", "apiVersion": API_VERSION,
        "metadata": {
            "name": endpoint, "namespace": namespace, "uid": pod["metadata"]["uid"],
            "creationTimestamp": pod["metadata"]["creationTimestamp"],
            "labels": labels(pod, &namespace, account),
        },
        "spec": spec,
    });
    Some((namespace, endpoint, value))
}

/// The key of the endpoint that a pod has or had.
pub(super) fn key(pod: &Value) -> Option<Key> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let name = text(&pod["metadata"]["name"])?;
    let namespace = text(&pod["metadata"]["namespace"])?;
    let node = text(&pod["spec"]["nodeName"]).filter(|node| !node.is_empty())?;
    let name = endpoint_name(&node, "k8s", &name, FIRST_INTERFACE);
    Some(Key::workload(&namespace, &name))
}

/// True for the name of an endpoint of [`FIRST_INTERFACE`], the only one that a pod stands for.
/// Inside a part of a name dashes are doubled.
pub(super) fn is_first_interface(endpoint: &str) -> bool {
    let parts = endpoint.replace("--", "\u{0}");
    parts.rsplit('-').next() == Some(FIRST_INTERFACE)
}

/// The patch of `pods/NAME/status` for an endpoint that is set, or removed.
pub(super) fn patch(endpoint: Option<&Value>, pod: &Value) -> Value {
    let mut annotations = Map::new();
    match endpoint {
        None => {
            annotations.insert(POD_IP.to_owned(), "".into());
            annotations.insert(POD_IPS.to_owned(), "".into());
        }
        Some(endpoint) => {
            let list = endpoint["spec"]["ipNetworks"].as_array();
            let all: Vec<&str> = list
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let first = all.first().copied().unwrap_or_default();
            annotations.insert(POD_IP.to_owned(), first.into());
            annotations.insert(POD_IPS.to_owned(), all.join(",").into());
            if let Some(container) = endpoint["spec"]["containerID"].as_str() {
                annotations.insert(CONTAINER.to_owned(), container.into());
            }
        }
    }
    json!({"metadata": {"uid": pod["metadata"]["uid"], "annotations": annotations}})
}
