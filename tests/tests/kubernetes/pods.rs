//! What the plugin reads of pods and their namespaces, also where Calico's data are in etcd:
//! without a pod's labels on its endpoint no policy of Calico's selects it.

use caracal_lab::{Datastore, Lab, PodState, error_chain, wait_until};
use caracal_tests::{
    SECOND, await_settled, exit_code, kubectl, kubernetes_object, more_pods, possible, up,
};
use serde_json::{Value, json};

use super::rights::{put_role, without};
use super::{attached, moves};

const POOL: &str = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: second}\nspec: {cidr: 10.99.0.0/24}\n";

#[test]
fn an_endpoint_in_etcd_says_what_its_pod_is() {
    let scenario = "an_endpoint_in_etcd_says_what_its_pod_is";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    let mut lab = up("kubernetes", "pods");
    await_settled(&lab);
    moves(&mut lab, Datastore::Etcd);
    has_a_token_for_its_plugin(&mut lab);
    let file = lab.folder().kubernetes().join("pool.yaml");
    std::fs::write(&file, POOL).unwrap();
    let (code, said) = exit_code(&lab, "node1", &["apply", "-f", &file.display().to_string()]);
    assert_eq!(code, 0, "{said}");

    let pods = more_pods(&lab, ["node2", "node2", "node3"]);
    let [web, named, absent] = &pods[..] else {
        unreachable!("three pods");
    };
    is_described(&lab, web);
    has_the_address_of_its_annotation(&lab, named);
    let refused = error_chain(&lab.cni("ADD", absent).expect_err("there is no such pod"));
    assert!(refused.contains("Kubernetes has no such pod"), "{refused}");
    let netns: Vec<_> = pods.iter().map(|pod| pod.netns.clone()).collect();
    caracal_lab::delete_namespaces(&netns).unwrap();
}

/// The daemon, whose data are in etcd, asks for a token and writes it where the plugin looks.
fn has_a_token_for_its_plugin(lab: &mut Lab) {
    let file = lab.folder().kubeconfig("node2-cni");
    std::fs::remove_file(&file).unwrap();
    lab.stop_node("node2").unwrap();
    lab.restart_node("node2").unwrap();
    wait_until(60 * SECOND, "the plugin's kubeconfig", || {
        match file.exists() {
            true => Ok(()),
            false => Err("absent".to_owned()),
        }
    })
    .unwrap_or_else(|e| panic!("{e}"));
    await_settled(lab);
}

fn create(lab: &Lab, pod: &PodState, metadata: &Value) {
    let mut metadata = metadata.clone();
    metadata["name"] = format!("{}-{}", pod.node, pod.name).into();
    metadata["namespace"] = "default".into();
    let ports = json!([{"name": "http", "containerPort": 8080}, {"containerPort": 9090}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"nodeName": pod.node, "serviceAccountName": "builder",
            "containers": [{"name": "c", "image": "none", "ports": ports}]},
    });
    kubectl(lab, &["create", "-f", "-"], pod.to_string().as_bytes());
}

/// The endpoint as etcd has it; empty when there is none.
fn endpoint(lab: &Lab, pod: &PodState) -> String {
    let name = format!("{0}-k8s-{0}--{1}-eth0", pod.node, pod.name);
    let key = format!("/calico/resources/v3/projectcalico.org/workloadendpoints/default/{name}");
    let read = lab.etcdctl(&["get", &key, "--print-value-only"], b"");
    read.unwrap_or_else(|e| panic!("{}", error_chain(&e)))
}

fn is_described(lab: &Lab, pod: &PodState) {
    let annotation = "cni.projectcalico.org/ipv4pools=[\"second\"]";
    kubectl(lab, &["annotate", "namespace", "default", annotation], b"");
    create(lab, pod, &json!({"labels": {"role": "db"}}));
    // Policies may select by the namespace's labels, too; nothing is half done without them.
    let role = kubernetes_object(lab, "clusterroles", "caracal-cni-plugin");
    put_role(lab, &without(&role, "namespaces", "get"));
    let refused = error_chain(&lab.cni("ADD", pod).expect_err("a right is missing"));
    assert!(
        refused.contains("cannot get resource \"namespaces\""),
        "{refused}"
    );
    assert_eq!(endpoint(lab, pod), "");
    put_role(lab, &role);
    let address = attached(lab, pod).to_string();
    assert!(
        address.starts_with("10.99.0."),
        "its namespace's pool: {address}"
    );
    lab.cni("CHECK", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let stored: Value = serde_json::from_str(&endpoint(lab, pod)).unwrap();
    let label = |name: &str| stored["metadata"]["labels"][name].clone();
    assert_eq!(label("role"), "db");
    assert_eq!(label("projectcalico.org/namespace"), "default");
    assert_eq!(label("projectcalico.org/serviceaccount"), "builder");
    let spec = &stored["spec"];
    assert_eq!(
        spec["profiles"],
        json!(["kns.default", "ksa.default.builder"])
    );
    assert_eq!(spec["serviceAccountName"], "builder");
    let port =
        json!({"name": "http", "protocol": "TCP", "port": 8080, "hostPort": 0, "hostIP": ""});
    assert_eq!(spec["ports"], json!([port]), "{spec}");
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    assert_eq!(endpoint(lab, pod), "");
}

fn has_the_address_of_its_annotation(lab: &Lab, pod: &PodState) {
    let annotations = json!({"cni.projectcalico.org/ipAddrs": "[\"10.99.0.200\"]"});
    create(lab, pod, &json!({ "annotations": annotations }));
    assert_eq!(attached(lab, pod).to_string(), "10.99.0.200");
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
}
