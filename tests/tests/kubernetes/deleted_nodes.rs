//! What a deleted Node held is given back by one of the others, once its lease has stood still for
//! its term and for the grace period; by another one when that dies meanwhile. On both datastores.

use caracal_lab::{Lab, wait_until};
use caracal_tests::{
    SECOND, await_settled, is_kubernetes, kubectl, kubernetes_object_if_any, kubernetes_objects,
    on_each_datastore, unbind_pod,
};
use serde_json::Value;

fn topology(grace: u32) -> String {
    let node = |n: u8| {
        format!(
            "  - {{name: node{n}, segment: lan, pods: 1, env: {{CARACAL_IPAM_GC_GRACE_SECONDS: \"{grace}\"}}}}\n"
        )
    };
    let nodes: String = (1..=3).map(node).collect();
    format!(
        "name: deleted\npool: {{cidr: 10.244.0.0/16}}\n\
         segments:\n  - {{name: lan, cidr: 10.0.0.0/24}}\nnodes:\n{nodes}"
    )
}

#[test]
fn a_deleted_nodes_blocks_are_given_back() {
    let scenario = "a_deleted_nodes_blocks_are_given_back";
    on_each_datastore(scenario, &topology(5), "deleted", are_given_back);
}

fn are_given_back(mut lab: Lab) {
    await_settled(&lab);
    assert_eq!(leader(&lab), None, "nothing is to be done");
    wait_until(
        30 * SECOND,
        "the status record of node3",
        || match status_record(&lab, "node3") {
            found if found.is_empty() => Err("it has published nothing"),
            _ => Ok(()),
        },
    )
    .unwrap_or_else(|e| panic!("{e}"));
    lab.kill9_node("node3").unwrap();
    delete_node(&lab, "node3");
    let first = wait_until(30 * SECOND, "a leader", || {
        leader(&lab).ok_or("nobody leads")
    });
    let first = first.unwrap_or_else(|e| panic!("{e}"));
    lab.kill9_node(&first).unwrap();
    let mut rest = ["node1", "node2"].into_iter().filter(|node| *node != first);
    let second = rest.next().unwrap();
    assert!(!held(&lab, "node3").is_empty(), "it is not due yet");
    is_given_back(&lab, "node3");
    for node in [&*first, second] {
        let log = std::fs::read_to_string(lab.folder().log(node)).unwrap();
        let leads = log.contains("this node clears up after deleted nodes");
        let released = log.contains("collected what a dead node left behind");
        assert_eq!((leads, released), (true, node == second), "{node}: {log}");
    }
    assert_eq!(held(&lab, &first).len(), 1, "others' stay");
    // One that never had a lease: where Kubernetes makes the Nodes its absence is proof enough.
    if is_kubernetes(&lab) {
        let lease = format!("caracal-lease.{first}");
        kubectl(&lab, &["-n", "kube-system", "delete", "lease", &lease], b"");
    }
    delete_node(&lab, &first);
    is_given_back(&lab, &first);
    assert_eq!(held(&lab, second).len(), 1, "its own stay");
    wait_until(30 * SECOND, "the leader to give it up", || {
        leader(&lab).map_or(Ok(()), Err)
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// Who clears up after deleted nodes.
fn leader(lab: &Lab) -> Option<String> {
    let lease = match is_kubernetes(lab) {
        true => kubernetes_object_if_any(lab, "leases", "caracal-leader.deleted-nodes")?,
        false => {
            let key = "/caracal/leader/deleted-nodes";
            let text = etcdctl(lab, &["get", key, "--print-value-only"]);
            serde_json::from_str(&text).ok()?
        }
    };
    let name = match is_kubernetes(lab) {
        true => &lease["spec"]["holderIdentity"],
        false => &lease["node"],
    };
    Some(name.as_str().unwrap().to_owned())
}

fn etcdctl(lab: &Lab, arguments: &[&str]) -> String {
    lab.etcdctl(arguments, b"").unwrap()
}

/// Somebody deletes a Node, and Kubernetes its pods.
fn delete_node(lab: &Lab, node: &str) {
    if !is_kubernetes(lab) {
        let key = format!("/calico/resources/v3/projectcalico.org/nodes/{node}");
        assert_eq!(etcdctl(lab, &["del", &key]).trim(), "1");
        return;
    }
    let pods = lab.state().pods.clone();
    for pod in pods.iter().filter(|pod| pod.node == node) {
        unbind_pod(lab, pod);
    }
    kubectl(lab, &["delete", "node", node], b"");
}

fn is_given_back(lab: &Lab, node: &str) {
    wait_until(120 * SECOND, &format!("nothing of {node}"), || {
        let kinds = ["blockaffinities", "ipamblocks", "ipamhandles", "leases"];
        let left: Vec<String> = match is_kubernetes(lab) {
            true => kinds
                .iter()
                .flat_map(|k| objects_of(lab, k, node))
                .collect(),
            false => [
                held(lab, node),
                keys(lab, &format!("/caracal/lease/{node}")),
                keys(lab, &format!("/caracal/status/{node}")),
            ]
            .concat(),
        };
        match left.is_empty() {
            true => Ok(()),
            false => Err(left.join(", ")),
        }
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// What a node has published of itself.
fn status_record(lab: &Lab, node: &str) -> Vec<String> {
    match is_kubernetes(lab) {
        true => {
            let name = format!("caracal-status.{node}");
            let found = kubernetes_object_if_any(lab, "leases", &name);
            found.map(|_| name).into_iter().collect()
        }
        false => keys(lab, &format!("/caracal/status/{node}")),
    }
}

/// The affinities of a node.
fn held(lab: &Lab, node: &str) -> Vec<String> {
    match is_kubernetes(lab) {
        true => objects_of(lab, "blockaffinities", node),
        false => keys(lab, &format!("/calico/ipam/v2/host/{node}/")),
    }
}

fn keys(lab: &Lab, prefix: &str) -> Vec<String> {
    let keys = etcdctl(lab, &["get", "--prefix", "--keys-only", prefix]);
    keys.split_whitespace().map(str::to_owned).collect()
}

/// Names of the objects of a kind that are of a node.
fn objects_of(lab: &Lab, kind: &str, node: &str) -> Vec<String> {
    let all = kubernetes_objects(lab, kind).into_iter();
    let own = |object: &Value| match kind {
        "blockaffinities" => object["spec"]["node"] == node,
        "ipamblocks" => object["spec"]["affinity"] == format!("host:{node}"),
        "leases" => ["lease", "status"]
            .iter()
            .any(|kind| object["metadata"]["name"] == format!("caracal-{kind}.{node}")),
        _ => object.to_string().contains(node),
    };
    let name = |object: Value| object["metadata"]["name"].to_string();
    all.filter(own).map(name).collect()
}
