//! Labels and annotations of Kubernetes' Nodes, set with kubectl, make reflectors of them: nobody
//! restarts anything or writes Calico's Nodes.

use caracal_lab::Lab;
use caracal_model::NodeStatus;
use caracal_tests::{
    SECOND, assert_full_matrix, await_settled, await_status, caracals, exit_code, kubectl,
};
use serde_json::json;

/// Waits until the nodes have so many sessions, all up.
fn await_sessions(lab: &Lab, wanted: &[usize]) {
    for (node, wanted) in caracals(lab).iter().zip(wanted) {
        let so_many = |status: &NodeStatus| {
            let up = |p: &&caracal_model::PeerStatusJson| p.state == "Established";
            let peers = &status.peers;
            match (peers.iter().filter(up).count(), peers.len()) {
                (up, all) if up == all && all == *wanted => Ok(()),
                (up, all) => Err(format!("{up} of {all} sessions are up, not {wanted}")),
            }
        };
        await_status(lab, node, 60 * SECOND, "its sessions", so_many);
    }
}

/// What `caracal render` shows of a node.
fn rendered(lab: &Lab, node: &str) -> String {
    let arguments = ["render", "--node", node, "--style", "bird2"];
    let (code, said) = exit_code(lab, node, &arguments);
    assert_eq!(code, 0, "{said}");
    said
}

fn is_reflector(lab: &Lab, node: &str) -> bool {
    let text = rendered(lab, node);
    text.contains("rr client;") && text.contains("rr cluster id 244.0.0.1;")
}

const LABEL: &str = "route-reflector";
const CLUSTER: &str = "projectcalico.org/RouteReflectorClusterID";

fn make_reflector(lab: &Lab, node: &str) {
    kubectl(lab, &["label", "node", node, &format!("{LABEL}=true")], b"");
    let annotation = format!("{CLUSTER}=244.0.0.1");
    kubectl(lab, &["annotate", "node", node, &annotation], b"");
}

fn make_client(lab: &Lab, node: &str) {
    kubectl(lab, &["label", "node", node, &format!("{LABEL}-")], b"");
    kubectl(
        lab,
        &["annotate", "node", node, &format!("{CLUSTER}-")],
        b"",
    );
}

fn set_mesh(lab: &Lab, mesh: bool) {
    let patch = json!({"spec": {"nodeToNodeMeshEnabled": mesh}}).to_string();
    let kind = [
        "patch",
        "bgpconfigurations",
        "default",
        "--type=merge",
        "-p",
    ];
    kubectl(lab, &[&kind[..], &[&patch]].concat(), b"");
}

pub(super) fn labels_make_reflectors(lab: &Lab) {
    let peer = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "BGPPeer",
        "metadata": {"name": "reflectors"},
        "spec": {"nodeSelector": "all()", "peerSelector": format!("has({LABEL})")}});
    make_reflector(lab, "node1");
    kubectl(lab, &["create", "-f", "-"], peer.to_string().as_bytes());
    set_mesh(lab, false);
    await_sessions(lab, &[2, 1, 1]);
    assert!(is_reflector(lab, "node1"), "{}", rendered(lab, "node1"));
    assert!(!is_reflector(lab, "node2"), "{}", rendered(lab, "node2"));

    // Another one.
    make_reflector(lab, "node2");
    await_sessions(lab, &[2, 2, 2]);
    make_client(lab, "node1");
    await_sessions(lab, &[1, 2, 1]);
    assert!(!is_reflector(lab, "node1"), "{}", rendered(lab, "node1"));
    await_settled(lab);
    assert_full_matrix(lab);

    set_mesh(lab, true);
    make_client(lab, "node2");
    kubectl(lab, &["delete", "bgppeer", "reflectors"], b"");
    await_sessions(lab, &[2, 2, 2]);
    await_settled(lab);
}
