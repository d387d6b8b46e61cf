//! A router of the rack announces what nodes of the cluster have: nothing moves.

use caracal_lab::{Lab, call_program, netns_sysctl, program_command, wait_until};
use caracal_tests::{
    Probes, RouteMonitor, SECOND, assert_full_matrix, await_settled, await_status, example,
    has_problem, possible, up_text,
};

/// A pool of two blocks, one for each node, and a router of another AS that announces the pool,
/// both blocks and the addresses of their pods.
const THIEF: &str = r#"
name: thief
description: two Caracal nodes and a top-of-rack router that announces what they have
pool: {cidr: 10.244.0.0/25, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, address: 10.0.0.11, pods: 1}
  - {name: node2, segment: lan, address: 10.0.0.12, pods: 1}
  - name: tor
    segment: lan
    address: 10.0.0.31
    kind: bird2
    asn: 65001
    config: |
      router id 10.0.0.31;
      protocol device {}
      protocol static {
        ipv4;
        route 10.244.0.0/25 blackhole;
        route 10.244.0.0/26 blackhole; route 10.244.0.64/26 blackhole;
        route 10.244.0.0/32 blackhole; route 10.244.0.1/32 blackhole; route 10.244.0.2/32 blackhole;
        route 10.244.0.64/32 blackhole; route 10.244.0.65/32 blackhole; route 10.244.0.66/32 blackhole;
        route 198.51.100.0/24 blackhole;
      }
      template bgp node {
        local 10.0.0.31 as 65001;
        connect retry time 1; connect delay time 1; error wait time 1, 2;
        ipv4 { import all; export all; };
      }
      protocol bgp node1 from node { neighbor 10.0.0.11 as 64512; }
      protocol bgp node2 from node { neighbor 10.0.0.12 as 64512; }
resources:
  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {name: tor}
    spec: {peerIP: 10.0.0.31, asNumber: 65001}
"#;

/// Routes of a node's kernel inside the pool that lead to the router.
fn stolen(lab: &Lab, node: &str) -> Vec<String> {
    let mut command = program_command("ip").unwrap();
    command.args(["-4", "-o", "route", "show", "via", "10.0.0.31"]);
    let netns = lab.netns(node).unwrap();
    let shown = call_program(Some(&netns), &mut command, b"", 30 * SECOND).unwrap();
    let ours = shown.lines().filter(|line| line.starts_with("10.244."));
    ours.map(str::to_owned).collect()
}

fn explain(lab: &Lab, prefix: &str) -> String {
    let output = lab.caracal("node1", &["bgp", "explain", prefix]);
    output.unwrap_or_else(|error| error.to_string())
}

#[test]
fn a_router_that_announces_what_nodes_have_moves_nothing() {
    let scenario = "a_router_that_announces_what_nodes_have_moves_nothing";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut lab = up_text(THIEF, "thief.yaml", "e2e-fib-thief");
    await_settled(&lab);
    let pairs = [("node1/p1", "node2/p1"), ("node2/p1", "node1/p1")];
    // Everything that the router says has come, and the one route that is nobody's is in use.
    for node in ["node1", "node2"] {
        let status = await_status(&lab, node, 60 * SECOND, "the router's routes", |status| {
            let origin = status.origin.clone().unwrap_or_default();
            match origin.not_owner {
                9 => has_problem(status, "bgp.not_owner", "(and 8 others of its kind)"),
                _ => Err(format!("{origin:?}")),
            }
        });
        assert_eq!(status.problems.len(), 1, "{:?}", status.problems);
        assert_eq!(status.origin.unwrap_or_default().mode, "enforce");
        assert_eq!(stolen(&lab, node), [""; 0]);
    }
    let output = explain(&lab, "198.51.100.0/24");
    assert!(output.contains("best"), "{output}");
    let output = explain(&lab, "10.244.0.0/25");
    assert!(output.contains("no node has a prefix as short"), "{output}");
    let output = explain(&lab, "10.244.0.65/32") + &explain(&lab, "10.244.0.1/32");
    assert!(
        output.contains("is node2's, and the next hop 10.0.0.31"),
        "{output}"
    );
    // A block of a node that is restarting, by death and by order: nothing moves, nothing is lost.
    let probes = Probes::start(&lab, &pairs);
    let monitors = RouteMonitor::on_all(&lab);
    probes.after(500);
    lab.kill9_node("node2").unwrap();
    probes.after(1000);
    assert_eq!(stolen(&lab, "node1"), [""; 0]);
    lab.start_node("node2").unwrap();
    lab.await_node("node2").unwrap();
    await_settled(&lab);
    lab.stop_node("node2").unwrap();
    lab.restart_node("node2").unwrap();
    await_settled(&lab);
    probes.after(500);
    for node in ["node1", "node2"] {
        wait_until(60 * SECOND, "the router's routes again", || {
            match stolen(&lab, node) {
                none if none.is_empty() => Ok(()),
                some => Err(format!("{some:?}")),
            }
        })
        .unwrap();
    }
    for monitor in monitors {
        monitor.assert_nothing_deleted("a router announces what nodes have");
    }
    probes.assert_none_lost("a router announces what nodes have");
}

/// Two reflectors and three clients. A client with a router id that the datastore does not know is
/// let pass; reflectors that are told to be the next hop are believed what is the owner's.
#[test]
fn what_reflectors_pass_on_is_its_owners() {
    let scenario = "what_reflectors_pass_on_is_its_owners";
    if !possible(scenario, &[]) {
        return;
    }
    let text = std::fs::read_to_string(example("rr-pair")).unwrap();
    let unknown = text.replace(
        "10.0.0.13,",
        "10.0.0.13, env: {CALICO_ROUTER_ID: 192.0.2.3},",
    );
    let own = text.replace(
        "peerSelector: has",
        "nextHopMode: Self\n      peerSelector: has",
    );
    for (name, text, hops) in [
        ("e2e-fib-rrid", unknown, &["10.0.0.12", "10.0.0.13"][..]),
        ("e2e-fib-rrself", own, &["10.0.0.1", "10.0.0.2"]),
    ] {
        let lab = up_text(&text, "rr.yaml", name);
        await_settled(&lab);
        assert_full_matrix(&lab);
        for node in ["node1", "node2", "node3"] {
            let status = await_status(&lab, node, 60 * SECOND, "no route in doubt", |status| {
                let origin = status.origin.clone().unwrap_or_default();
                match (origin.not_owner, origin.waiting) {
                    (0, 0) => Ok(()),
                    _ => Err(format!("{origin:?}")),
                }
            });
            assert_eq!(status.origin.unwrap_or_default().mode, "enforce");
        }
        let mut command = program_command("ip").unwrap();
        command.args([
            "-4",
            "-o",
            "route",
            "show",
            "root",
            "10.244.0.0/16",
            "proto",
            "80",
        ]);
        let netns = lab.netns("node1").unwrap();
        let shown = call_program(Some(&netns), &mut command, b"", 30 * SECOND).unwrap();
        let via = shown
            .lines()
            .filter_map(|line| line.split("via ").nth(1)?.split(' ').next());
        let via: Vec<&str> = via.collect();
        assert_eq!(via.len(), 2, "{shown}");
        assert!(via.iter().all(|hop| hops.contains(hop)), "{name}: {shown}");
    }
}

/// Three nodes with an AS each, and a router of another one that puts itself in as next hop. No
/// setting says so but the AS numbers of the Nodes.
const SERVERS: &str = r#"
name: servers
description: an AS for each Caracal node, behind one router that is the next hop
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, address: 10.0.0.11, asn: 65101, pods: 1}
  - {name: node2, segment: lan, address: 10.0.0.12, asn: 65102, pods: 1}
  - {name: node3, segment: lan, address: 10.0.0.13, asn: 65103, pods: 1}
  - name: tor
    segment: lan
    address: 10.0.0.31
    kind: bird2
    asn: 65001
    config: |
      router id 10.0.0.31;
      protocol device {}
      protocol kernel { ipv4 { import none; export all; }; }
      template bgp node {
        local 10.0.0.31 as 65001;
        connect retry time 1; connect delay time 1; error wait time 1, 2;
        ipv4 { import all; export all; next hop self; };
      }
      protocol bgp node1 from node { neighbor 10.0.0.11 as 65101; }
      protocol bgp node2 from node { neighbor 10.0.0.12 as 65102; }
      protocol bgp node3 from node { neighbor 10.0.0.13 as 65103; }
resources:
  - apiVersion: projectcalico.org/v3
    kind: BGPConfiguration
    metadata: {name: default}
    spec: {nodeToNodeMeshEnabled: false}
  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {name: tor}
    spec: {peerIP: 10.0.0.31, asNumber: 65001}
"#;

#[test]
fn an_as_for_each_node_behind_a_router_that_is_the_next_hop() {
    let scenario = "an_as_for_each_node_behind_a_router_that_is_the_next_hop";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let lab = up_text(SERVERS, "servers.yaml", "e2e-fib-servers");
    // The lab's BIRD is a node; this one is a router, of which the cluster knows nothing.
    let tor = "/calico/resources/v3/projectcalico.org/nodes/tor";
    lab.etcdctl(&["del", tor], b"").unwrap();
    // What the lab's BIRD is told by no configuration: packets go through it.
    let router = lab.netns("tor").unwrap();
    netns_sysctl(&router, "net/ipv4/ip_forward", "1", false).unwrap();
    await_settled(&lab);
    assert_full_matrix(&lab);
    for node in ["node1", "node2", "node3"] {
        assert_eq!(stolen(&lab, node).len(), 2, "{node}");
        let status = lab.node_status(node).unwrap();
        assert!(status.problems.is_empty(), "{:?}", status.problems);
        let origin = status.origin.unwrap_or_default();
        assert_eq!((origin.mode.as_str(), origin.not_owner), ("enforce", 0));
    }
}

/// The same behind a router that takes the nodes' AS numbers out of the path: nothing says whose
/// the blocks are, and the node that does not use them says so.
#[test]
fn a_router_that_hides_whose_a_route_is_is_named() {
    let scenario = "a_router_that_hides_whose_a_route_is_is_named";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let text = SERVERS.replace(
        "export all; next hop self;",
        "export filter { bgp_path.delete([65101..65103]); accept; }; next hop self;",
    );
    assert_ne!(text, SERVERS);
    let lab = up_text(&text, "hiding.yaml", "e2e-fib-hiding");
    lab.await_sessions(60 * SECOND).unwrap();
    await_status(&lab, "node1", 60 * SECOND, "the problem", |status| {
        has_problem(
            status,
            "bgp.not_owner",
            "the next hop 10.0.0.31 is no address of it",
        )
    });
    let audit = || {
        lab.caracal_output("node1", &["audit"], 60 * SECOND)
            .unwrap()
            .stdout
    };
    wait_until(60 * SECOND, "the finding", || match audit() {
        found if found.contains("CRL-B011") => Ok(()),
        found => Err(found),
    })
    .unwrap();
    let found = audit();
    assert!(found.contains("CRL-B010"), "{found}");
    assert!(
        found.contains("not used: it does not come from the owner"),
        "{found}"
    );
    assert!(!found.contains("CRL-B004"), "{found}");
}
