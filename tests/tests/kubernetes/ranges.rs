//! `USE_POD_CIDR`: each Node's `podCIDRs` are its blocks, and `host-local` gives out the addresses.
//! With one family each is routed, with both VXLAN leads there; IPIP is in `ipip.rs`.

use std::net::IpAddr;

use caracal_lab::{Lab, PodState, RouteKind, error_chain, wait_until};
use caracal_model::{Family, Prefix};
use caracal_tests::{
    SECOND, Stack, assert_full_matrix, await_settled, await_status, exit_code, family_count,
    kubectl, kubernetes_object, kubernetes_objects, more_pods, on_stacks, routes_by_kind, settled,
    speaks, unbind_pod,
};

use super::{attached, bind};

/// Exit code of a command that refuses.
const REFUSED: i32 = 5;

fn topology(stack: Stack) -> String {
    let vxlan = match stack {
        Stack::Dual => "Always",
        _ => "Never",
    };
    let node = |n: u8| {
        format!("  - {{name: node{n}, segment: lan, pods: 2, env: {{USE_POD_CIDR: \"true\"}}}}\n")
    };
    let nodes: String = (1..=3).map(node).collect();
    let text = format!(
        "name: ranges\ndatastore: kubernetes\npool: {{cidr: 10.244.0.0/16, vxlanMode: {vxlan}}}\n\
         segments:\n  - {{name: lan, cidr: 10.0.0.0/24}}\nnodes:\n{nodes}"
    );
    stack.topology(&text)
}

#[test]
fn the_range_of_a_node_is_its_block() {
    let scenario = "the_range_of_a_node_is_its_block";
    let programs = ["kubectl", "openssl"];
    on_stacks(scenario, &programs, "ranges", topology, are_its_blocks);
}

fn are_its_blocks(mut lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    has_its_range(&lab);
    attaches_and_detaches(&lab);
    lab.kill9_node("node2").unwrap();
    lab.restart_node("node2").unwrap();
    await_settled(&lab);
    assert_full_matrix(&lab);
    has_its_range(&lab);
    loses_what_a_deleted_node_had(&mut lab);
}

/// The range of a node in each family of the lab.
fn ranges(lab: &Lab, node: u8) -> Vec<Prefix> {
    let families = [Family::Ipv4, Family::Ipv6].into_iter();
    let range = |family| {
        let text = match family {
            Family::Ipv4 => format!("10.244.{node}.0/24"),
            Family::Ipv6 => format!("fd00:10:244:0:{node}00::/72"),
        };
        text.parse().unwrap()
    };
    families.filter(|f| speaks(lab, *f)).map(range).collect()
}

fn way(lab: &Lab, node: &str, range: Prefix) -> Option<RouteKind> {
    let mut routes = routes_by_kind(lab, node).into_iter();
    let found = routes.find(|(_, route)| route.dst == range.to_string());
    found.map(|(kind, _)| kind)
}

/// A pod's addresses lie in the ranges of its node, one in each.
fn lies_in_its_ranges(lab: &Lab, pod: &PodState) {
    let node: u8 = pod.node.strip_prefix("node").unwrap().parse().unwrap();
    let addresses = pod.address.into_iter().chain(pod.address6.map(IpAddr::V6));
    let addresses: Vec<IpAddr> = addresses.collect();
    let ranges = ranges(lab, node);
    assert_eq!(addresses.len(), ranges.len(), "{pod:?}");
    for (address, range) in addresses.iter().zip(&ranges) {
        let inside = range.contains(*address);
        assert!(inside, "{}: {address} in {range}", pod.label());
    }
}

fn has_its_range(lab: &Lab) {
    let kind = match family_count(lab) {
        1 => RouteKind::Direct,
        _ => RouteKind::Vxlan,
    };
    for pod in &lab.state().pods {
        lies_in_its_ranges(lab, pod);
    }
    for node in 1..=3 {
        let wanted = if node == 1 {
            RouteKind::Blackhole
        } else {
            kind
        };
        for range in ranges(lab, node) {
            assert_eq!(way(lab, "node1", range), Some(wanted), "{range}");
        }
    }
    for kind in ["ipamblocks", "blockaffinities", "ipamhandles"] {
        assert_eq!(kubernetes_objects(lab, kind).len(), 0, "{kind}");
    }
    // What follows from the range is not written.
    let annotations = &kubernetes_object(lab, "nodes", "node1")["metadata"]["annotations"];
    for tunnel in [
        "IPv4IPIPTunnelAddr",
        "IPv4VXLANTunnelAddr",
        "IPv6VXLANTunnelAddr",
    ] {
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
    let address = attached(lab, pod);
    let inside = |range: &Prefix| range.contains(address);
    assert!(ranges(lab, 2).iter().any(inside), "{address}");
    lab.cni("CHECK", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("again: {}", error_chain(&e)));
    unbind_pod(lab, pod);
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
}

fn loses_what_a_deleted_node_had(lab: &mut Lab) {
    await_status(lab, "node1", 60 * SECOND, "settled", settled);
    lab.kill9_node("node3").unwrap();
    kubectl(lab, &["delete", "node", "node3"], b"");
    wait_until(120 * SECOND, "no way to what a deleted node had", || {
        let mut ways = ranges(lab, 3).into_iter();
        match ways.find_map(|range| way(lab, "node1", range)) {
            None => Ok(()),
            Some(kind) => Err(format!("{kind:?}")),
        }
    })
    .unwrap_or_else(|e| panic!("{e}"));
}
