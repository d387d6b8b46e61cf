//! A router of the rack announces ways over the nodes, and a BGPPeer has a node's address with a
//! wrong AS: nothing moves until a filter says so.

use caracal_lab::{Lab, wait_until};
use caracal_tests::{
    Probes, SECOND, await_settled, await_status, has_no_problem, has_problem, possible,
    put_etcd_resource, run_on, up_text,
};
use serde_json::json;

/// Two racks; the router `tor` of another AS announces a default route, what is wider than the
/// racks, the other rack and the node in it.
const RACKS: &str = r#"
name: over
description: two racks and a router that announces ways to the nodes
pool: {cidr: 10.244.0.0/16, blockSize: 26, vxlanMode: CrossSubnet}
pool6: {cidr: "fd00:10:244::/64", blockSize: 122, vxlanMode: CrossSubnet}
segments:
  - {name: lan, cidr: 10.0.0.0/24, cidr6: "fd00:10:0::/64"}
  - {name: far, cidr: 10.0.1.0/24, cidr6: "fd00:10:1::/64"}
routers:
  - name: router
    legs: [{segment: lan, address: 10.0.0.254}, {segment: far, address: 10.0.1.254}]
nodes:
  - {name: node1, segment: lan, address: 10.0.0.11, address6: "fd00:10::11", pods: 1}
  - {name: node2, segment: lan, address: 10.0.0.12, address6: "fd00:10::12", pods: 1}
  - {name: node3, segment: far, address: 10.0.1.13, address6: "fd00:10:1::13", pods: 1}
  - name: tor
    segment: lan
    address: 10.0.0.31
    address6: "fd00:10::31"
    kind: bird2
    config: |
      router id 10.0.0.31;
      protocol device {}
      protocol static {
        ipv4;
        route 0.0.0.0/0 blackhole; route 10.0.0.0/16 blackhole; route 10.0.1.0/24 blackhole;
        route 10.0.1.13/32 blackhole; route 198.51.100.0/24 blackhole;
      }
      protocol static {
        ipv6;
        route ::/0 blackhole; route fd00:10::/32 blackhole; route fd00:10:1::/64 blackhole;
        route fd00:10:1::13/128 blackhole; route 2001:db8::/32 blackhole;
      }
      template bgp node {
        local as 65001;
        connect retry time 1; connect delay time 1; error wait time 1, 2;
      }
      protocol bgp node1 from node { neighbor 10.0.0.11 as 64512; ipv4 { import all; export all; }; }
      protocol bgp node2 from node { neighbor 10.0.0.12 as 64512; ipv4 { import all; export all; }; }
      protocol bgp node1v6 from node { neighbor fd00:10::11 as 64512; ipv6 { import all; export all; }; }
      protocol bgp node2v6 from node { neighbor fd00:10::12 as 64512; ipv6 { import all; export all; }; }
resources:
  - {apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: tor-node1}, spec: {node: node1, peerIP: 10.0.0.31, asNumber: 65001}}
  - {apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: tor-node2}, spec: {node: node2, peerIP: 10.0.0.31, asNumber: 65001}}
  - {apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: tor6-node1}, spec: {node: node1, peerIP: "fd00:10::31", asNumber: 65001}}
  - {apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: tor6-node2}, spec: {node: node2, peerIP: "fd00:10::31", asNumber: 65001}}
"#;

const ROUTER: [(&str, &str); 2] = [("tor", "10.0.0.31"), ("tor6", "fd00:10::31")];

/// Routes of ours to what is outside the pools: only the router announces some.
fn to_router(lab: &Lab, node: &str) -> Vec<String> {
    let shown = run_on(lab, node, "ip -4 -o route show proto 80")
        + &run_on(lab, node, "ip -6 -o route show proto 80");
    let first = |line: &str| {
        let mut words = line.split_whitespace().filter(|word| *word != "blackhole");
        words.next().map(str::to_owned)
    };
    let mut all: Vec<String> = shown.lines().filter_map(first).collect();
    all.retain(|prefix| !prefix.starts_with("10.244.") && !prefix.starts_with("fd00:10:244:"));
    all.sort();
    all
}

fn await_ways(lab: &Lab, node: &str, expected: &[&str]) {
    wait_until(60 * SECOND, "ways to the router", || {
        match to_router(lab, node) {
            ways if ways == expected => Ok(()),
            ways => Err(format!("{ways:?}")),
        }
    })
    .unwrap_or_else(|e| panic!("{node}: {e}"));
}

/// Gives a node a way of its own to the other rack in the place of its default route: who learns
/// that by BGP has no other.
fn no_default_route(lab: &Lab, node: &str) {
    for (ip, far) in [("ip -4", "10.0.1.0/24"), ("ip -6", "fd00:10:1::/64")] {
        let shown = run_on(lab, node, &format!("{ip} route show default"));
        let mut words = shown.split_whitespace().skip_while(|word| *word != "via");
        let via = words.nth(1).unwrap_or_else(|| panic!("{node}: {shown}"));
        run_on(lab, node, &format!("{ip} route add {far} via {via}"));
        run_on(lab, node, &format!("{ip} route del default"));
    }
}

/// Puts these filters at the BGPPeers of the router.
fn filter_by(lab: &Lab, filters: &[&str]) {
    for (router, address) in ROUTER {
        for node in ["node1", "node2"] {
            let spec = json!({"node": node, "peerIP": address, "asNumber": 65001,
                "filters": filters});
            let name = format!("{router}-{node}");
            put_etcd_resource(lab, "BGPPeer", "bgppeers", &name, &spec);
        }
    }
}

#[test]
fn a_routers_ways_over_nodes_are_not_used_until_a_filter_names_them() {
    let scenario = "a_routers_ways_over_nodes_are_not_used_until_a_filter_names_them";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut lab = up_text(RACKS, "over.yaml", "e2e-fib-over");
    // The lab's BIRD is a node; this one is a router, of which the cluster knows nothing.
    let tor = "/calico/resources/v3/projectcalico.org/nodes/tor";
    lab.etcdctl(&["del", tor], b"").unwrap();
    for node in ["node1", "node2"] {
        no_default_route(&lab, node);
    }
    await_settled(&lab);
    let beside = ["198.51.100.0/24", "2001:db8::/32"];
    let way = |lab: &Lab| {
        run_on(lab, "node1", "ip -4 route get 10.0.1.13")
            + &run_on(lab, "node1", "ip -6 route get fd00:10:1::13")
    };
    assert!(!way(&lab).contains("via 10.0.0.31"), "{}", way(&lab));
    for node in ["node1", "node2"] {
        let status = await_status(&lab, node, 60 * SECOND, "routes over nodes", |status| {
            has_problem(
                status,
                "bgp.over_nodes",
                "announces 0.0.0.0/0 (and 7 others",
            )
        });
        assert_eq!(status.origin.unwrap_or_default().over_nodes, 8);
        await_ways(&lab, node, &beside);
    }
    let audit = lab
        .caracal_output("node1", &["audit"], 60 * SECOND)
        .unwrap();
    assert!(audit.stdout.contains("bgp.over_nodes"), "{audit:?}");
    let before = way(&lab);
    // A typing error: node2's address with an AS that it does not have.
    let probes = Probes::start(&lab, &[("node1/p1", "node2/p1"), ("node3/p1", "node2/p1")]);
    for (name, address) in [("typo", "10.0.0.12"), ("typo6", "fd00:10::12")] {
        let spec = json!({"peerIP": address, "asNumber": 65099});
        put_etcd_resource(&lab, "BGPPeer", "bgppeers", name, &spec);
    }
    for node in ["node1", "node3"] {
        await_status(&lab, node, 60 * SECOND, "the wrong AS", |status| {
            has_problem(status, "bgp.peer", "peerIP 10.0.0.12 is node node2")?;
            has_problem(status, "bgp.peer", "peerIP fd00:10::12 is node node2")
        });
    }
    probes.after(300);
    await_settled(&lab);
    probes.assert_none_lost("a BGPPeer with a node's address and another AS");
    // Who wants the default route says so.
    let rule = |cidr: &str| json!({"action": "Accept", "matchOperator": "Equal", "cidr": cidr});
    let spec = json!({"importV4": [rule("0.0.0.0/0")], "importV6": [rule("::/0")]});
    put_etcd_resource(&lab, "BGPFilter", "bgpfilters", "default-route", &spec);
    filter_by(&lab, &["default-route"]);
    let wanted = ["198.51.100.0/24", "2001:db8::/32", "default", "default"];
    for node in ["node1", "node2"] {
        await_ways(&lab, node, &wanted);
        await_status(&lab, node, 60 * SECOND, "six routes", |status| {
            has_problem(status, "bgp.over_nodes", "(and 5 others")
        });
    }
    assert_eq!(way(&lab), before);
    // A restart changes nothing of it.
    lab.kill9_node("node1").unwrap();
    lab.start_node("node1").unwrap();
    lab.await_node("node1").unwrap();
    await_settled(&lab);
    await_ways(&lab, "node1", &wanted);
    assert_eq!(way(&lab), before);
    // The rule goes, and the default route with it.
    filter_by(&lab, &[]);
    for node in ["node1", "node2"] {
        await_ways(&lab, node, &beside);
        await_status(&lab, node, 60 * SECOND, "eight routes", |status| {
            has_problem(status, "bgp.over_nodes", "(and 7 others")
        });
    }
    // Nobody announces them any more.
    for name in ["tor-node1", "tor-node2", "tor6-node1", "tor6-node2"] {
        let key = format!("/calico/resources/v3/projectcalico.org/bgppeers/{name}");
        lab.etcdctl(&["del", &key], b"").unwrap();
    }
    for node in ["node1", "node2"] {
        await_ways(&lab, node, &[]);
        await_status(&lab, node, 60 * SECOND, "nothing over nodes", |status| {
            has_no_problem(status, "bgp.over_nodes")
        });
    }
}
