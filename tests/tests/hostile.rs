//! Hostile pods and hostile data: a pod is not a node, and no key cuts a node off from its datastore.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use caracal_lab::{Lab, netns, wait_until};
use caracal_model::ipam::{Block, Owner};
use caracal_model::net::{Family, Prefix};
use caracal_tests::foreign::put_resource;
use caracal_tests::kernel::run;
use caracal_tests::stack::{address_of, either, on_each_stack_of};
use caracal_tests::{
    SECOND, assert_full_matrix, assert_gone, await_settled, await_status, exit_code,
};
use serde_json::json;

const TOPOLOGY: &str = "
name: hostile
description: two nodes
pool: {cidr: 10.244.0.0/16, natOutgoing: true}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, pods: 1}
  - {name: node2, segment: lan, pods: 1}
";

/// Whether a connection to a port comes about, from a node or a pod.
fn connects(lab: &Lab, from: &str, to: (IpAddr, u16)) -> bool {
    let connect = || TcpStream::connect_timeout(&SocketAddr::from(to), 2 * SECOND).is_ok();
    netns::run(&lab.netns(from).unwrap(), connect).unwrap()
}

#[test]
fn neither_pods_nor_keys_cut_a_node_off() {
    let scenario = "neither_pods_nor_keys_cut_a_node_off";
    on_each_stack_of(scenario, &["nft"], TOPOLOGY, "e2e-hostile", |mut lab| {
        await_settled(&lab);
        for family in lab.topology().families() {
            pods_do_not_speak_bgp(&lab, family);
        }
        policies_are_told(&lab);
        a_block_over_etcd(&mut lab);
        await_settled(&lab);
        assert_full_matrix(&lab);
        let name = lab.name().clone();
        lab.down().unwrap();
        assert_gone(&name);
    });
}

/// TCP 179 of its own node and of another one is closed to a pod; to nodes it is open, and so is all else to pods.
fn pods_do_not_speak_bgp(lab: &Lab, family: Family) {
    let pod = "node1/p1";
    for node in ["node1", "node2"] {
        let address = address_of(lab, node, family);
        let listen = || TcpListener::bind((address, 1790)).unwrap();
        let listener = netns::run(&lab.netns(node).unwrap(), listen).unwrap();
        assert!(
            connects(lab, pod, (address, 1790)),
            "{pod} to {node}, another port"
        );
        drop(listener);
        assert!(
            !connects(lab, pod, (address, 179)),
            "{pod} to BGP of {node}"
        );
    }
    let far = address_of(lab, "node2", family);
    assert!(connects(lab, "node1", (far, 179)), "node1 to BGP of node2");
}

fn policies_are_told(lab: &Lab) {
    let spec = json!({"selector": "all()", "types": ["Ingress"]});
    put_resource(
        lab,
        "NetworkPolicy",
        "networkpolicies",
        "default/closed",
        &spec,
    );
    let told = |status: &caracal_model::status::Status| {
        let mut problems = status.problems.iter();
        match problems
            .any(|p| p.code == "policy.not_enforced" && p.reason.contains("default/closed"))
        {
            true => Ok(()),
            false => Err(format!("{:?}", status.problems)),
        }
    };
    await_status(lab, "node1", 60 * SECOND, "the policy to be told", told);
    for command in [["doctor"].as_slice(), &["migrate", "plan"]] {
        let (_, text) = exit_code(lab, "node1", command);
        assert!(text.contains("default/closed"), "{command:?}: {text}");
    }
    let key = "/calico/resources/v3/projectcalico.org/networkpolicies/default/closed";
    lab.etcdctl(&["del", key], b"").unwrap();
}

/// A block of node1 whose range holds etcd's address: named, and no blackhole; one that is there from before goes at the start.
fn a_block_over_etcd(lab: &mut Lab) {
    let layout = lab.layout().node("node1").unwrap();
    let endpoint = layout.etcd_endpoint.trim_start_matches("http://");
    let endpoint = endpoint.parse::<SocketAddr>().unwrap().ip();
    let family = Family::of(endpoint);
    let (len, ip) = either(family, (26, "ip -4"), (122, "ip -6"));
    let bad = Prefix::truncated(endpoint, len);
    let owner = Owner::Host("node1".into());
    let block = Block::new(bad, Some(&owner), 1);
    let key = caracal_model::Key::Block(bad).to_path();
    lab.etcdctl(&["put", &key], &block.to_json()).unwrap();
    let told = |status: &caracal_model::status::Status| {
        let mut problems = status.problems.iter();
        match problems.any(|p| p.code == "agent.would_cut_off" && p.subject == key) {
            true => Ok(()),
            false => Err(format!("{:?}", status.problems)),
        }
    };
    await_status(lab, "node1", 60 * SECOND, "the key to be told", told);
    let routes = |lab: &Lab| run(lab, "node1", &format!("{ip} route show type blackhole"));
    assert!(!routes(lab).contains(&bad.to_string()), "{}", routes(lab));
    // As an older version has left it; the process that starts cannot read a thing until it is gone.
    lab.kill9_node("node1").unwrap();
    run(
        lab,
        "node1",
        &format!("{ip} route add blackhole {bad} proto 80 metric 1000000"),
    );
    assert!(
        !connects(lab, "node1", (endpoint, 2379)),
        "the blackhole works"
    );
    lab.start_node("node1").unwrap();
    await_status(lab, "node1", 60 * SECOND, "the key to be told again", told);
    assert!(!routes(lab).contains(&bad.to_string()), "{}", routes(lab));
    // Mended.
    lab.etcdctl(&["del", &key], b"").unwrap();
    let mended = || match lab.node_status("node1") {
        Ok(status) if status.problems.iter().all(|p| p.subject != key) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until(60 * SECOND, "the problem to go", mended).unwrap_or_else(|e| panic!("{e}"));
}
