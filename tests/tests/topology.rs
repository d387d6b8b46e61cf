//! The topology of a running cluster changes under traffic: mesh → automatic reflectors → both
//! reflectors of a zone killed → back to the mesh, through `caracal topology apply`. Not a datagram
//! may be lost, and what every node has in the end is counted.
//!
//! `CARACAL_E2E_NODES` says how large the cluster is; 15 when it is not set. docs/scale.md has
//! figures.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write as _;
use std::time::Instant;

use caracal_lab::{Lab, error_chain, wait_until};
use caracal_model::NodeStatus;
use caracal_tests::{
    Probes, SECOND, Stack, await_settled, await_status, caracals, family_count, on_each_stack_of,
    possible, up_text,
};

const ZONES: usize = 3;
/// Reflectors of a zone, the standby included.
const REFLECTORS: usize = 3;
/// Seconds for which routes of a dead peer are kept: short, so that the scenario outlives them.
const RESTART_TIME: u64 = 5;

fn nodes() -> usize {
    std::env::var("CARACAL_E2E_NODES").map_or(15, |text| {
        text.parse().expect("CARACAL_E2E_NODES is a number")
    })
}

/// `count` nodes with a pod each, over three zones, each zone over two racks.
fn topology(count: usize) -> String {
    let mut text = String::from(
        "name: topo\ndescription: nodes of three zones\npool:\n  cidr: 10.244.0.0/16\n  blockSize: 28\nsegments:\n  - {name: lan, cidr: 10.0.0.0/24}\nnodes:\n",
    );
    for n in 1..=count {
        let _ = writeln!(
            text,
            "  - {{name: n{n}, segment: lan, address: 10.0.0.{}, pods: 1, labels: {{topology.kubernetes.io/zone: z{}, topology.kubernetes.io/rack: r{}}}}}",
            10 + n,
            n % ZONES,
            n / ZONES % 2,
        );
    }
    let _ = write!(
        text,
        "resources:\n  - apiVersion: projectcalico.org/v3\n    kind: BGPConfiguration\n    metadata: {{name: default}}\n    spec: {{nodeMeshMaxRestartTime: {RESTART_TIME}s}}\n"
    );
    text
}

/// Outcome of a phase.
struct Phase {
    what: &'static str,
    seconds: f64,
    sessions: Vec<usize>,
}

fn sessions(lab: &Lab, living: &[String]) -> Vec<usize> {
    let established = |status: NodeStatus| {
        let up = |p: &&caracal_model::PeerStatusJson| p.state == "Established";
        status.peers.iter().filter(up).count()
    };
    living
        .iter()
        .map(|node| established(lab.node_status(node).unwrap()))
        .collect()
}

/// Waits until the nodes have so many sessions each.
fn await_sessions(lab: &Lab, nodes: &[String], wanted: &[usize]) -> Vec<usize> {
    wait_until(
        60 * SECOND,
        "the sessions of all nodes",
        || match sessions(lab, nodes) {
            seen if seen == wanted => Ok(seen),
            seen => Err(format!("{seen:?}, not {wanted:?}")),
        },
    )
    .unwrap()
}

fn print(phases: &[Phase]) {
    println!(
        "| phase | seconds | sessions | least at a node | most at a node |\n|---|---|---|---|---|"
    );
    for Phase {
        what,
        seconds,
        sessions,
    } in phases
    {
        let (least, most) = (
            sessions.iter().min().unwrap(),
            sessions.iter().max().unwrap(),
        );
        let ends: usize = sessions.iter().sum();
        println!(
            "| {what} | {seconds:.1} | {} | {least} | {most} |",
            ends / 2
        );
    }
}

/// Calls `caracal topology …` on a node; gives what it printed.
fn apply(lab: &Lab, arguments: &[&str]) -> String {
    let all = [&["topology", "apply", "--timeout", "300"], arguments].concat();
    let text = lab.caracal_within("n1", &all, 320 * SECOND);
    let text =
        text.unwrap_or_else(|e| panic!("{}\n{}", error_chain(&e), lab.folder().log_tail("n1", 40)));
    assert!(
        text.contains("the old sessions are gone on all nodes"),
        "{text}"
    );
    for line in text.lines().filter(|l| l.contains(" after ")) {
        println!("{arguments:?}: {line}");
    }
    text
}

/// On IPv4 and on both families: twice the nodes of both would be too much for a small machine at
/// once, and IPv6 alone is in the scenarios of five nodes.
#[test]
fn mesh_to_reflectors_and_back_without_a_lost_packet() {
    let scenario = "mesh_to_reflectors_and_back_without_a_lost_packet";
    if !possible(scenario, &[]) {
        return;
    }
    std::thread::scope(|scope| {
        for stack in [Stack::Ipv4, Stack::Dual] {
            let text = stack.topology(&topology(nodes()));
            scope.spawn(move || reflectors_and_back(&text, &stack.lab("topo-auto")));
        }
    });
}

fn reflectors_and_back(text: &str, name: &str) {
    let count = nodes();
    let mut phases = Vec::new();
    let start = Instant::now();
    let mut lab = up_text(text, "topology", name);
    let times = family_count(&lab);
    await_settled(&lab);
    let all = caracals(&lab);
    let mut phase = |what, start: Instant, sessions: Vec<usize>| {
        phases.push(Phase {
            what,
            seconds: start.elapsed().as_secs_f64(),
            sessions,
        });
    };
    let full = vec![(count - 1) * times; count];
    let mesh = await_sessions(&lab, &all, &full);
    phase("mesh from nothing", start, mesh);

    // Clients of all zones, two of the zone that is to lose its reflectors: the plan says who they
    // will be.
    let limit = (count - 1).to_string();
    let plan = ["topology", "plan", "--auto", "--limit", &limit];
    let drawn = lab.caracal_within("n1", &plan, 60 * SECOND).unwrap();
    let is_drawn = drawn.contains("Sessions: ● stays  + appears") && drawn.contains("\nn1\n");
    assert!(is_drawn, "{drawn}");
    let plan = [&plan[..], &["-o", "json"]].concat();
    let plan = lab.caracal_within("n1", &plan, 60 * SECOND).unwrap();
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let with_role = |role: &str| -> Vec<String> {
        let nodes = plan["nodes"].as_object().unwrap();
        let of = nodes.iter().filter(|(_, node)| node["role"] == role);
        of.map(|(name, _)| name.clone()).collect()
    };
    let clients = [0, 1, 2].map(|zone| with_role(&format!("client in zone z{zone}")));
    let pod = |zone: usize, n: usize| format!("{}/p1", clients[zone][n]);
    let pods = [pod(0, 0), pod(0, 1), pod(1, 0), pod(2, 0)];
    let pairs = [(0, 1), (1, 2), (2, 3), (3, 0)].map(|(x, y)| (pods[x].as_str(), pods[y].as_str()));
    let probes = Probes::start_at(&lab, &pairs, 250);
    probes.after(500);

    // A change that would cut nodes off is refused, and nothing is written.
    let resource =
        "{kind: BGPConfiguration, metadata: {name: default}, spec: {nodeToNodeMeshEnabled: false}}";
    let file = lab.folder().path().join("off.yaml");
    std::fs::write(&file, resource).unwrap();
    let off = ["topology", "apply", "--change", file.to_str().unwrap()];
    let refused = lab.caracal_within("n1", &off, 60 * SECOND);
    let refused = error_chain(&refused.unwrap_err());
    assert!(refused.contains("would have no path"), "{refused}");
    assert_eq!(sessions(&lab, &all), full);

    let start = Instant::now();
    apply(&lab, &["--auto", "--limit", &limit]);
    await_settled(&lab);
    let reflected = wait_until(60 * SECOND, "clients with their reflectors alone", || {
        let seen = sessions(&lab, &all);
        let at_clients = seen.iter().filter(|n| **n == REFLECTORS * times).count();
        match at_clients == count - ZONES * REFLECTORS {
            true => Ok(seen),
            false => Err(format!("{seen:?}")),
        }
    });
    phase("to automatic reflectors", start, reflected.unwrap());
    probes.after(250);

    // The zone of two of the probed pods loses both reflectors; the standby is connected already.
    let dead = with_role("reflector of zone z0");
    assert_eq!(dead.len(), 2, "{plan}");
    let start = Instant::now();
    for node in &dead {
        lab.kill9_node(node).unwrap();
    }
    let living: Vec<String> = all.iter().filter(|n| !dead.contains(n)).cloned().collect();
    // Until the routes that the dead ones had told are stale no more, but gone.
    let client = &clients[0][0];
    let forgotten = |status: &NodeStatus| {
        let lost: Vec<_> = status
            .peers
            .iter()
            .filter(|p| p.state != "Established")
            .collect();
        match lost.iter().all(|p| p.received == 0) && lost.len() == 2 * times {
            true => Ok(()),
            false => Err(format!("{lost:?}")),
        }
    };
    await_status(
        &lab,
        client,
        60 * SECOND,
        "two reflectors gone, their routes with them",
        forgotten,
    );
    phase(
        "two reflectors of a zone killed",
        start,
        sessions(&lab, &living),
    );
    probes.after(500);
    let start = Instant::now();
    for node in &dead {
        lab.restart_node(node).unwrap();
    }
    await_settled(&lab);
    phase("both started again", start, sessions(&lab, &all));

    let start = Instant::now();
    apply(&lab, &["--mesh"]);
    await_settled(&lab);
    let mesh = await_sessions(&lab, &all, &full);
    phase("back to the mesh", start, mesh);
    probes.after(250);
    probes.assert_none_lost("mesh → reflectors → two killed → mesh");
    print(&phases);
    let left = lab.etcdctl(
        &["get", "--prefix", "--keys-only", "/caracal/topology/"],
        b"",
    );
    assert_eq!(left.unwrap().trim(), "");
}

/// Reflectors of the operator's own, by BGPPeer and cluster id, and back: sessions between the same
/// nodes change their names, and stay.
#[test]
fn mesh_to_the_operators_reflectors_and_back() {
    let scenario = "mesh_to_the_operators_reflectors_and_back";
    let text = topology(5);
    on_each_stack_of(scenario, &[], &text, "topo-rr", operators_reflectors);
}

fn operators_reflectors(lab: Lab) {
    let times = family_count(&lab);
    await_settled(&lab);
    let probes = Probes::start_at(
        &lab,
        &[("n1/p1", "n2/p1"), ("n3/p1", "n1/p1"), ("n4/p1", "n5/p1")],
        500,
    );
    probes.after(250);
    let node = |name: &str, edit: &dyn Fn(&mut serde_json::Value)| {
        let key = format!("/calico/resources/v3/projectcalico.org/nodes/{name}");
        let text = lab
            .etcdctl(&["get", &key, "--print-value-only"], b"")
            .unwrap();
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        edit(&mut value);
        value
    };
    let reflector = |value: &mut serde_json::Value| {
        value["metadata"]["labels"]["rr"] = "yes".into();
        value["spec"]["bgp"]["routeReflectorClusterID"] = "244.0.0.1".into();
    };
    let write = |name: &str, items: Vec<serde_json::Value>| {
        let file = lab.folder().path().join(name);
        let list = serde_json::json!({"kind": "List", "apiVersion": "v1", "items": items});
        std::fs::write(&file, list.to_string()).unwrap();
        file.display().to_string()
    };
    let configuration = |mesh: bool| {
        serde_json::json!({"kind": "BGPConfiguration", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "default"}, "spec": {"nodeToNodeMeshEnabled": mesh}})
    };
    let peer = serde_json::json!({"kind": "BGPPeer", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "rr"}, "spec": {"nodeSelector": "all()", "peerSelector": "has(rr)"}});
    let to = vec![
        configuration(false),
        peer,
        node("n1", &reflector),
        node("n2", &reflector),
    ];
    apply(&lab, &["--change", &write("to.json", to)]);
    await_settled(&lab);
    await_sessions(&lab, &caracals(&lab), &[4, 4, 2, 2, 2].map(|n| n * times));
    probes.after(250);

    let plain = |value: &mut serde_json::Value| {
        value["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove("rr");
        value["spec"]["bgp"]
            .as_object_mut()
            .unwrap()
            .remove("routeReflectorClusterID");
    };
    let back = vec![configuration(true), node("n1", &plain), node("n2", &plain)];
    apply(
        &lab,
        &["--change", &write("back.json", back), "--delete-peer", "rr"],
    );
    await_settled(&lab);
    await_sessions(&lab, &caracals(&lab), &[4 * times; 5]);
    probes.after(250);
    probes.assert_none_lost("mesh → two reflectors by BGPPeer → mesh");
}

/// A node that does not answer holds the old sessions in place; nothing breaks, and the change can
/// be taken back.
#[test]
fn a_node_that_is_late_is_waited_for_and_a_change_can_be_taken_back() {
    let scenario = "a_node_that_is_late_is_waited_for_and_a_change_can_be_taken_back";
    let text = topology(5);
    on_each_stack_of(scenario, &[], &text, "topo-late", a_late_node);
}

fn a_late_node(lab: Lab) {
    let times = family_count(&lab);
    await_settled(&lab);
    let probes = Probes::start_at(&lab, &[("n1/p1", "n2/p1"), ("n5/p1", "n1/p1")], 500);
    probes.after(250);
    lab.pause_node("n4").unwrap();
    let arguments = [
        "topology",
        "apply",
        "--auto",
        "--limit",
        "2",
        "--reflectors",
        "1",
        "--timeout",
        "5",
    ];
    let late = lab.caracal_within("n1", &arguments, 60 * SECOND);
    let late = error_chain(&late.unwrap_err());
    assert!(late.contains("n4: has not taken it over yet"), "{late}");
    probes.after(250);
    lab.resume_node("n4").unwrap();
    let abort = ["topology", "apply", "--abort"];
    let back = lab.caracal_within("n1", &abort, 150 * SECOND).unwrap();
    assert!(back.contains("taken back"), "{back}");
    await_settled(&lab);
    await_sessions(&lab, &caracals(&lab), &[4 * times; 5]);
    probes.after(250);
    probes.assert_none_lost("a transition that was taken back");
    let key = "/calico/resources/v3/projectcalico.org/bgpconfigurations/default";
    let left = lab
        .etcdctl(&["get", key, "--print-value-only"], b"")
        .unwrap();
    assert!(!left.contains("caracal.io/topology"), "{left}");
}
