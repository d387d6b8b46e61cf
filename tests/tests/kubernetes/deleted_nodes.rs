//! What a deleted Node held is given back by the others, once its lease has stood still for its
//! term and for the grace period.

use caracal_lab::{Lab, wait_until};
use caracal_tests::datastore::{kubectl, objects};
use caracal_tests::{SECOND, await_settled, possible, up_text};
use serde_json::Value;

use super::unbind;

fn topology(grace: u32) -> String {
    let node = |n: u8| {
        format!(
            "  - {{name: node{n}, segment: lan, pods: 1, env: {{CARACAL_IPAM_GC_GRACE_SECONDS: \"{grace}\"}}}}\n"
        )
    };
    let nodes: String = (1..=3).map(node).collect();
    format!(
        "name: deleted\ndatastore: kubernetes\npool: {{cidr: 10.244.0.0/16}}\n\
         segments:\n  - {{name: lan, cidr: 10.0.0.0/24}}\nnodes:\n{nodes}"
    )
}

#[test]
fn a_deleted_nodes_blocks_are_given_back() {
    let scenario = "a_deleted_nodes_blocks_are_given_back";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    let mut lab = up_text(&topology(5), "deleted.yaml", "deleted");
    await_settled(&lab);
    assert_eq!(objects_of(&lab, "blockaffinities", "node3").len(), 1);
    is_given_back(&mut lab, "node3", true);
    assert_eq!(
        objects_of(&lab, "blockaffinities", "node2").len(),
        1,
        "others' stay"
    );
    is_given_back(&mut lab, "node2", false);
    assert_eq!(
        objects_of(&lab, "blockaffinities", "node1").len(),
        1,
        "its own stay"
    );
}

/// A node dies, its Node and pods are deleted, and its lease, too, unless that is to tell of it.
fn is_given_back(lab: &mut Lab, node: &str, leased: bool) {
    lab.kill9_node(node).unwrap();
    let pods = lab.state().pods.clone();
    for pod in pods.iter().filter(|pod| pod.node == node) {
        unbind(lab, pod);
    }
    if !leased {
        let lease = format!("caracal-lease.{node}");
        kubectl(lab, &["-n", "kube-system", "delete", "lease", &lease], b"");
    }
    kubectl(lab, &["delete", "node", node], b"");
    wait_until(120 * SECOND, &format!("nothing of {node}"), || {
        let left: Vec<String> = ["blockaffinities", "ipamblocks", "ipamhandles", "leases"]
            .into_iter()
            .flat_map(|kind| objects_of(lab, kind, node))
            .map(|object| object["metadata"]["name"].to_string())
            .collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(left.join(", ")),
        }
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// Objects of a kind that are of a node.
fn objects_of(lab: &Lab, kind: &str, node: &str) -> Vec<Value> {
    let all = objects(lab, kind).into_iter();
    let own = |object: &Value| match kind {
        "blockaffinities" => object["spec"]["node"] == node,
        "ipamblocks" => object["spec"]["affinity"] == format!("host:{node}"),
        "leases" => object["metadata"]["name"] == format!("caracal-lease.{node}"),
        _ => object.to_string().contains(node),
    };
    all.filter(own).collect()
}
