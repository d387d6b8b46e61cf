//! `caracal lab` with `plugin: flannel`: the demonstrations of both examples, and what a person
//! does to a lab by hand.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use caracal_lab::{Lab, LabName, wait_for};
use caracal_model::Family;
use caracal_tests::{
    Probes, SECOND, assert_full_matrix, assert_gone, binary_with_labs, example, possible, up,
};

use super::site::{PATIENCE, PREFIX};

/// Programs that a lab of flannel's needs.
const NEEDED: [&str; 3] = ["/usr/lib/cni/bridge", "/usr/lib/cni/host-local", "nft"];
/// One after the other through each of the three nodes.
const PAIRS: [(&str, &str); 3] = [
    ("node1/p1", "node2/p1"),
    ("node2/p1", "node3/p1"),
    ("node3/p1", "node1/p2"),
];

/// `caracal lab …`: its exit code and what it printed.
fn lab_command(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(binary_with_labs());
    let output = command.arg("lab").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), format!("{said}{failed}"))
}

/// The same for a lab; it has to serve.
fn by_hand(lab: &Lab, arguments: &[&str]) -> String {
    let (code, said) = lab_command(&[arguments, &["--lab", lab.name().as_str()]].concat());
    assert_eq!(code, Some(0), "{arguments:?}: {said}");
    said
}

/// The subnet of each node by the leases in etcd.
fn leases(lab: &Lab) -> Vec<(String, String)> {
    let prefix = format!("{PREFIX}/subnets/");
    let all = lab.etcdctl(&["get", "--prefix", &prefix], b"").unwrap();
    let lines: Vec<&str> = all.lines().collect();
    let pairs = lines.chunks(2).map(|pair| {
        let value: serde_json::Value = serde_json::from_str(pair[1]).unwrap();
        let owner = value["PublicIP"].as_str().unwrap().to_owned();
        (owner, pair[0].trim_start_matches(&prefix).to_owned())
    });
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort();
    pairs
}

/// `make demo TOPOLOGY=flannel-vxlan` and `flannel-udp`, once it is built.
#[test]
fn the_demonstrations_are_one_command() {
    if !possible("the_demonstrations_are_one_command", &NEEDED) {
        return;
    }
    for (name, routes) in [("flannel-vxlan", "VXLAN"), ("flannel-udp", "UDP")] {
        let file = example(name).display().to_string();
        let lab = format!("e2e-demo-{name}");
        let (code, said) = lab_command(&["demo", "--name", &lab, &file]);
        assert_eq!(code, Some(0), "{said}");
        for part in [
            "12 of 12 pings answered",
            "3 leases known to every node",
            routes,
            "removed 4 pods, 4 processes",
        ] {
            assert!(said.contains(part), "{part} in\n{said}");
        }
        assert!(!said.contains("warning") && !said.contains("! "), "{said}");
        assert_gone(&LabName::new(&lab).unwrap());
    }
}

/// Packets of pods go on while a node's daemon is dead, and a node comes back with its subnet.
#[test]
fn nodes_of_a_lab_are_killed_and_come_back() {
    if !possible("nodes_of_a_lab_are_killed_and_come_back", &NEEDED) {
        return;
    }
    let lab = up("flannel-vxlan", "e2e-fla-vxlan");
    assert_full_matrix(&lab);
    let before = leases(&lab);
    assert_eq!(before.len(), 3, "{before:?}");
    let probes = Probes::start(&lab, &PAIRS);
    for ended in ["kill", "stop"] {
        let said = by_hand(&lab, &[ended, "node2"]);
        assert!(said.contains("caracal lab start node2"), "{said}");
        assert!(!Lab::attach(lab.name()).unwrap().node_runs("node2"));
        let (code, said) = lab_command(&["status", lab.name().as_str()]);
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("! node2: its process is not running"),
            "{said}"
        );
        assert!(said.contains("12 of 12 pings answered"), "{said}");
        by_hand(&lab, &["start", "node2"]);
        assert_eq!(leases(&lab), before);
    }
    by_hand(&lab, &["kill", "datastore"]);
    probes.after(1000);
    by_hand(&lab, &["start", "datastore"]);
    lab.await_leases(PATIENCE).unwrap();
    probes.assert_none_lost("daemons killed, and etcd");
    a_lease_is_deleted(&lab, &before);
    a_node_is_cut_off(&lab);
    let name = lab.name().clone();
    // Also without etcd every pod goes by the plugin.
    by_hand(&lab, &["kill", "datastore"]);
    let (code, said) = lab_command(&["down", name.as_str()]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("removed 4 pods, 3 processes"), "{said}");
    assert!(!said.contains("warning"), "{said}");
    assert_gone(&name);
}

/// Who lost its lease takes the same subnet again.
fn a_lease_is_deleted(lab: &Lab, before: &[(String, String)]) {
    let (owner, subnet) = &before[1];
    let key = format!("{PREFIX}/subnets/{subnet}");
    let deleted = lab.etcdctl(&["del", &key], b"").unwrap();
    assert_eq!(deleted.trim(), "1");
    let what = format!("{owner} takes {subnet} again");
    wait_for(PATIENCE, &what, || leases(lab), |now| now == before).unwrap();
    lab.await_leases(PATIENCE).unwrap();
    assert_full_matrix(lab);
}

fn a_node_is_cut_off(lab: &Lab) {
    by_hand(lab, &["cut", "node3"]);
    let cut = lab.ping_matrix_of(Family::Ipv4, SECOND).unwrap();
    let concerned = |pair: &(&str, &str, &str)| format!("{pair:?}").contains("node3/");
    assert!(!cut.is_full() && cut.lost().iter().all(concerned));
    by_hand(lab, &["heal", "node3"]);
    assert_full_matrix(lab);
}

/// The relay ends with its process, and is there again with it.
#[test]
fn a_relay_of_a_lab_is_killed_and_comes_back() {
    if !possible("a_relay_of_a_lab_is_killed_and_comes_back", &NEEDED) {
        return;
    }
    let lab = up("flannel-udp", "e2e-fla-udp");
    assert_full_matrix(&lab);
    let before = leases(&lab);
    by_hand(&lab, &["kill", "node2"]);
    let away = lab.ping_matrix_of(Family::Ipv4, SECOND).unwrap();
    let concerned = |pair: &(&str, &str, &str)| format!("{pair:?}").contains("node2/");
    assert!(!away.is_full() && away.lost().iter().all(concerned));
    by_hand(&lab, &["start", "node2"]);
    assert_eq!(leases(&lab), before);
    assert_full_matrix(&lab);
}

/// Commands run in the nodes, what a lab of flannel's cannot do is said, and nothing is left of one
/// whose bring-up was killed.
#[test]
fn a_lab_is_used_and_its_bring_up_is_killed() {
    if !possible("a_lab_is_used_and_its_bring_up_is_killed", &NEEDED) {
        return;
    }
    let lab = up("flannel-vxlan", "e2e-fla-exec");
    let name = lab.name().clone();
    let exec = |command: &[&str]| {
        let all = [&["exec", "--lab", name.as_str(), "node1", "--"], command].concat();
        let (code, said) = lab_command(&all);
        assert_eq!(code, Some(0), "{said}");
        said
    };
    let shown = exec(&["ip", "-d", "link", "show", "flannel.1"]);
    assert!(shown.contains("vxlan id 1 local 10.200.1.1"), "{shown}");
    let shown = exec(&["etcdctl", "get", "--prefix", PREFIX]);
    assert_eq!(shown.matches(r#""BackendType":"vxlan""#).count(), 3);
    let shown = exec(&["sh", "-c", "cat $FLANNELD_SUBNET_FILE"]);
    assert!(shown.contains("FLANNEL_NETWORK=10.5.0.0/16"), "{shown}");
    let mut trace = Command::new(binary_with_labs());
    let trace = trace.args(["trace", "--lab", name.as_str(), "node1/p1", "node2/p1"]);
    let output = trace.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("not those of flannel on a bridge"), "{said}");
    drop(lab);
    assert_gone(&name);
    killed_while_pods_come_up(&name);
}

fn killed_while_pods_come_up(name: &LabName) {
    let mut command = Command::new(binary_with_labs());
    command.args(["lab", "up", "--name", name.as_str()]);
    command.arg(example("flannel-vxlan")).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    for line in lines {
        seen.push(line.unwrap());
        if seen.last().unwrap().contains(" has 10.5.") {
            break;
        }
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was killed: {seen:?}");
    assert!(seen.last().unwrap().contains(" has 10.5."), "{seen:?}");
    let (code, said) = lab_command(&["down", name.as_str()]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("warning"), "{said}");
    assert_gone(name);
}
