//! A lab with its datastore in Kubernetes, as far as it goes without a node.

use caracal_lab::{Extent, Lab, Topology, UpOptions, call_program, program_command};
use caracal_tests::{SECOND, binary, possible};
use serde_json::Value;

const TOPOLOGY: &str = "\
name: kube
datastore: kubernetes
segments: [{name: lan, cidr: 10.0.0.0/24}]
nodes:
  - {name: n1, segment: lan, pods: [web], labels: {rack: a}}
  - {name: n2, segment: lan, pods: [db]}
resources:
  - kind: IPPool
    metadata: {name: p}
    spec: {cidr: 10.1.0.0/16}";

#[test]
fn a_lab_has_an_api_server_with_its_objects() {
    if !possible("a lab with an API server", &["kubectl", "openssl"]) {
        return;
    }
    let topology = Topology::parse(TOPOLOGY, "kube.yaml").expect("a topology");
    let mut options = UpOptions::test(binary(), "test-kube");
    options.extent = Extent::Network;
    let mut lab = Lab::up(topology, TOPOLOGY, options, &|_| {}).expect("it comes up");
    let get = |lab: &Lab, kind: &str| -> Value {
        let text = lab
            .kubectl(&["get", kind, "-A", "-o", "json"], b"")
            .expect("kubectl");
        serde_json::from_str(&text).expect("JSON")
    };
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().expect("items").iter();
        items
            .map(|i| i["metadata"]["name"].as_str().expect("a name").to_owned())
            .collect()
    };
    let nodes = get(&lab, "nodes");
    assert_eq!(names(&nodes), ["n1", "n2"]);
    assert_eq!(nodes["items"][0]["metadata"]["labels"]["rack"], "a");
    assert_eq!(
        nodes["items"][0]["status"]["addresses"][0]["type"],
        "InternalIP"
    );
    assert_eq!(names(&get(&lab, "pods")), ["n1-web", "n2-db"]);
    assert_eq!(names(&get(&lab, "ippools")), ["p"]);
    assert_eq!(names(&get(&lab, "ipamblocks")), [""; 0]);

    // A node reaches it over TLS, with its own rights and no more.
    let as_node = |arguments: &[&str]| {
        let mut command = program_command("kubectl").expect("kubectl");
        command
            .args(arguments)
            .env("HOME", lab.folder().kubernetes())
            .env("KUBECONFIG", lab.folder().kubeconfig("n1"));
        let netns = lab.layout().node("n1").expect("n1").netns.clone();
        call_program(Some(&netns), &mut command, b"", 30 * SECOND)
    };
    let block = |strict: &str| {
        format!(
            r#"{{"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock",
            "metadata":{{"name":"10-1-0-0-26"}},"spec":{{"cidr":"10.1.0.0/26",{strict}
            "allocations":[null],"attributes":[],"unallocated":[0],
            "sequenceNumber":1767607872000000001}}}}"#
        )
    };
    let path = lab.folder().kubernetes().join("block.json");
    let create = ["create", "-f", &path.display().to_string()];
    std::fs::write(&path, block("")).expect("a file");
    let refused = as_node(&create)
        .expect_err("strictAffinity is required")
        .to_string();
    assert!(
        refused.contains("spec.strictAffinity: Required value"),
        "{refused}"
    );
    std::fs::write(&path, block("\"strictAffinity\":false,")).expect("a file");
    as_node(&create).expect("a node makes blocks");
    let node = as_node(&["get", "node", "n1", "-o", "name"]).expect("a node reads nodes");
    assert_eq!(node, "node/n1\n");
    let refused = as_node(&["delete", "node", "n1"])
        .expect_err("it must not")
        .to_string();
    assert!(
        refused.contains("cannot delete resource \"nodes\""),
        "{refused}"
    );

    lab.kill9_api_server().expect("it is killed");
    lab.kubectl(&["get", "nodes"], b"")
        .expect_err("nobody answers");
    lab.start_api_server().expect("it starts again");
    let blocks = get(&lab, "ipamblocks");
    assert_eq!(names(&blocks), ["10-1-0-0-26"]);
    // Beyond what a double holds.
    let number = &blocks["items"][0]["spec"]["sequenceNumber"];
    assert_eq!(number.as_i64(), Some(1_767_607_872_000_000_001));
}
