//! A node takes the address that Kubernetes' Node has.

use caracal_tests::{await_settled, kubernetes_object, possible, up_text};

const TOPOLOGY: &str = "
name: internal
description: one node, which asks Kubernetes for its address
datastore: kubernetes
pool: {cidr: 10.244.0.0/24, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, address: 10.0.0.7, pods: 1,
     env: {IP: autodetect, IP_AUTODETECTION_METHOD: kubernetes-internal-ip}}
";

#[test]
fn the_address_of_kubernetes_node_is_registered() {
    let scenario = "the_address_of_kubernetes_node_is_registered";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    let mut lab = up_text(TOPOLOGY, scenario, "internal");
    let registered = |lab: &caracal_lab::Lab| {
        let node = kubernetes_object(lab, "nodes", "node1");
        let internal = &node["status"]["addresses"][0];
        assert_eq!(internal["type"], "InternalIP");
        assert_eq!(internal["address"], "10.0.0.7");
        node["metadata"]["annotations"]["projectcalico.org/IPv4Address"].clone()
    };
    await_settled(&lab);
    assert_eq!(registered(&lab), "10.0.0.7/24");
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_settled(&lab);
    assert_eq!(registered(&lab), "10.0.0.7/24");
}
