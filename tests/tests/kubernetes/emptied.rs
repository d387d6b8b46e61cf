//! An API server that has lost its etcd: its first objects are made anew, with another identity and
//! lower revisions. To the nodes that is a fault and no order.

use std::fs;

use caracal_lab::{Lab, error_chain};
use caracal_model::NodeStatus;
use caracal_tests::{
    Probes, RouteMonitor, SECOND, assert_full_matrix, await_remembered, await_settled,
    await_status, caracals, kubectl, kubernetes_object, kubernetes_objects, more_pods,
    routes_by_kind,
};
use serde_json::{Value, json};

use super::{PAIRS, bind, forwards_stale};

/// Waits until a node has this problem, with what to do about it.
fn await_fault(lab: &Lab, node: &str, code: &str) {
    let has = |status: &NodeStatus| {
        let mut problems = status.problems.iter();
        let problem = problems.find(|p| p.code == code);
        problem.map(|p| p.reason.clone())
    };
    let status = await_status(lab, node, 60 * SECOND, code, |status| match has(status) {
        Some(_) => forwards_stale(status),
        None => Err(format!("{:?}", status.problems)),
    });
    let said = has(&status).expect("a problem");
    println!("{node}: {said}");
    assert!(said.contains("caracal datastore accept"), "{said}");
}

pub(super) fn a_server_that_lost_its_data_is_no_order(lab: &mut Lab) {
    await_settled(lab);
    let nodes = caracals(lab);
    for node in &nodes {
        await_remembered(lab, node);
    }
    let identity =
        |lab: &Lab| kubernetes_object(lab, "namespaces", "kube-system")["metadata"]["uid"].clone();
    let was = identity(lab);
    let before: Vec<_> = nodes.iter().map(|n| routes_by_kind(lab, n)).collect();
    let monitors = RouteMonitor::on_all(lab);
    let probes = Probes::start(lab, &PAIRS);

    let data = lab.folder().etcd();
    let good = lab.folder().path().join("etcd-good");
    lab.kill9_api_server().unwrap();
    lab.stop_etcd().unwrap();
    fs::rename(&data, &good).unwrap();
    lab.start_etcd().unwrap();
    lab.start_api_server().unwrap();
    assert_ne!(identity(lab), was, "it is another cluster by now");
    for node in &nodes {
        await_fault(lab, node, "datastore.emptied");
    }
    // Also for a node that restarts beside it.
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_fault(lab, "node1", "datastore.emptied");
    let pod = &more_pods(lab, ["node1"])[0];
    bind(lab, pod);
    let refused = lab.cni("ADD", pod).expect_err("an address was given out");
    println!("ADD: {}", error_chain(&refused));
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();

    // Nothing was written there, and it is no order either once it is somebody else's.
    for kind in ["ipamblocks", "blockaffinities", "ipamhandles"] {
        assert_eq!(kubernetes_objects(lab, kind), Vec::<Value>::new(), "{kind}");
    }
    for node in kubernetes_objects(lab, "nodes") {
        let address = &node["metadata"]["annotations"]["projectcalico.org/IPv4Address"];
        assert!(address.is_null(), "{node}");
    }
    let other = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "ClusterInformation",
        "metadata": {"name": "default"}, "spec": {"clusterGUID": "0ther0ther"}});
    kubectl(lab, &["apply", "-f", "-"], other.to_string().as_bytes());
    for node in &nodes {
        await_fault(lab, node, "datastore.other_cluster");
    }
    probes.after(500);
    let during: Vec<_> = nodes.iter().map(|n| routes_by_kind(lab, n)).collect();
    assert_eq!(during, before);

    // The good data are put back.
    lab.kill9_api_server().unwrap();
    lab.stop_etcd().unwrap();
    fs::remove_dir_all(&data).unwrap();
    fs::rename(&good, &data).unwrap();
    lab.start_etcd().unwrap();
    lab.start_api_server().unwrap();
    await_settled(lab);
    probes.after(500);
    let afterwards: Vec<_> = nodes.iter().map(|n| routes_by_kind(lab, n)).collect();
    assert_eq!(afterwards, before);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("with an API server that lost its data");
    }
    assert_full_matrix(lab);
    probes.assert_none_lost("with an API server that lost its data");
}
