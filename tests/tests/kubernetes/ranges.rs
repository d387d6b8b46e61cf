//! `USE_POD_CIDR`: each Node's `podCIDRs` are its blocks, and `host-local` gives out the addresses.

use caracal_lab::{Lab, RouteKind, error_chain, wait_until};
use caracal_tests::datastore::{kubectl, object, objects};
use caracal_tests::loss::kinds;
use caracal_tests::{
    SECOND, assert_full_matrix, await_settled, await_status, exit_code, more_pods, possible,
    settled, up_text,
};

use super::{attached, bind, unbind};

/// Exit code of a command that refuses.
const REFUSED: i32 = 5;

fn topology(vxlan: &str) -> String {
    let node = |n: u8| {
        format!("  - {{name: node{n}, segment: lan, pods: 2, env: {{USE_POD_CIDR: \"true\"}}}}\n")
    };
    let nodes: String = (1..=3).map(node).collect();
    format!(
        "name: ranges\ndatastore: kubernetes\npool: {{cidr: 10.244.0.0/16, vxlanMode: {vxlan}}}\n\
         segments:\n  - {{name: lan, cidr: 10.0.0.0/24}}\nnodes:\n{nodes}"
    )
}

#[test]
fn the_range_of_a_node_is_its_block() {
    let scenario = "the_range_of_a_node_is_its_block";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    for (vxlan, name, kind) in [
        ("Never", "ranges", RouteKind::Direct),
        ("Always", "ranges-vx", RouteKind::Vxlan),
    ] {
        let mut lab = up_text(&topology(vxlan), "ranges.yaml", name);
        await_settled(&lab);
        assert_full_matrix(&lab);
        has_its_range(&lab, kind);
        attaches_and_detaches(&lab);
        lab.kill9_node("node2").unwrap();
        lab.restart_node("node2").unwrap();
        await_settled(&lab);
        assert_full_matrix(&lab);
        has_its_range(&lab, kind);
        loses_what_a_deleted_node_had(&mut lab);
    }
}

fn way(lab: &Lab, node: &str, range: &str) -> Option<RouteKind> {
    let mut routes = kinds(lab, node).into_iter();
    let found = routes.find(|(_, route)| route.dst == range);
    found.map(|(kind, _)| kind)
}

fn has_its_range(lab: &Lab, kind: RouteKind) {
    for pod in &lab.state().pods {
        let node = pod.node.strip_prefix("node").unwrap();
        let address = pod.address.unwrap().to_string();
        let range = format!("10.244.{node}.");
        assert!(address.starts_with(&range), "{}: {address}", pod.label());
    }
    assert_eq!(
        way(lab, "node1", "10.244.1.0/24"),
        Some(RouteKind::Blackhole)
    );
    for other in [2, 3] {
        assert_eq!(
            way(lab, "node1", &format!("10.244.{other}.0/24")),
            Some(kind)
        );
    }
    for kind in ["ipamblocks", "blockaffinities", "ipamhandles"] {
        assert_eq!(objects(lab, kind).len(), 0, "{kind}");
    }
    // What follows from the range is not written.
    let annotations = &object(lab, "nodes", "node1")["metadata"]["annotations"];
    for tunnel in ["IPv4IPIPTunnelAddr", "IPv4VXLANTunnelAddr"] {
        let annotation = &annotations[format!("projectcalico.org/{tunnel}")];
        assert!(annotation.is_null(), "{annotations}");
    }
    let (code, said) = exit_code(lab, "node1", &["audit"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(exit_code(lab, "node1", &["ipam", "show"]).0, REFUSED);
}

fn attaches_and_detaches(lab: &Lab) {
    let pod = &more_pods(lab, ["node2"])[0];
    bind(lab, pod);
    let address = attached(lab, pod).to_string();
    assert!(address.starts_with("10.244.2."), "{address}");
    lab.cni("CHECK", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("again: {}", error_chain(&e)));
    unbind(lab, pod);
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
}

fn loses_what_a_deleted_node_had(lab: &mut Lab) {
    await_status(lab, "node1", 60 * SECOND, "settled", settled);
    lab.kill9_node("node3").unwrap();
    kubectl(lab, &["delete", "node", "node3"], b"");
    wait_until(
        120 * SECOND,
        "no way to what a deleted node had",
        || match way(lab, "node1", "10.244.3.0/24") {
            None => Ok(()),
            Some(kind) => Err(format!("{kind:?}")),
        },
    )
    .unwrap_or_else(|e| panic!("{e}"));
}
