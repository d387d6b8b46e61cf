//! Labs without `caracal`: namespaces, cables, routers and etcd on the real kernel, and their
//! removal. Needs root; says so and passes without.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use caracal_lab::{
    ETCD_PORT, Extent, Lab, LabFolder as Folder, LabName, ProcessIdentity as Identity, Topology,
    UpError, UpOptions, UpProgress, call_program, down, kernel_routes, list_netns, program_command,
};
use caracal_model::Family;

mod support;

use support::{SECOND, assert_nothing_left, example, network, ping, unique};

fn possible(test: &str) -> bool {
    support::possible(test, &[])
}

#[test]
fn nodes_reach_each_other_across_the_router_and_etcd() {
    if !possible("nodes_reach_each_other_across_the_router_and_etcd") {
        return;
    }
    let lab = network("cross-subnet", "cross");
    let name = lab.name().clone();
    assert!(
        ping(&lab, "node1", "10.0.1.12").contains("ttl=64"),
        "one segment, no hop"
    );
    assert!(
        ping(&lab, "node1", "10.0.2.12").contains("ttl=63"),
        "one hop, the router's"
    );
    for node in lab.layout().nodes.clone() {
        let mut etcdctl = program_command("etcdctl").unwrap();
        etcdctl.args(["--endpoints", &node.etcd_endpoint, "endpoint", "health"]);
        call_program(Some(&node.netns), &mut etcdctl, b"", 10 * SECOND).unwrap();
        assert!(node.etcd_endpoint.ends_with(&ETCD_PORT.to_string()));
    }
    let key = "/calico/resources/v3/projectcalico.org/nodes/node3";
    let stored = lab
        .etcdctl(&["get", "--print-value-only", key], b"")
        .unwrap();
    let stored: serde_json::Value = serde_json::from_str(&stored).unwrap();
    assert_eq!(stored["metadata"]["labels"]["rack"], "rack2");
    assert_eq!(stored["spec"]["bgp"]["ipv4Address"], "10.0.2.11/24");
    assert_eq!(stored["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert!(
        stored["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );

    let etcd = lab.state().processes["etcd"];
    assert!(etcd.alive());
    let report = lab.down().unwrap();
    assert_eq!((report.processes, report.namespaces), (1, 11));
    assert_eq!(report.warnings, Vec::<String>::new());
    assert!(!etcd.alive());
    assert_nothing_left(&name);
    assert!(
        down(&name).unwrap().is_empty(),
        "a second down finds nothing and says so"
    );
}

#[test]
fn a_segment_without_a_router_has_a_default_route_to_nowhere() {
    if !possible("a_segment_without_a_router_has_a_default_route_to_nowhere") {
        return;
    }
    let lab = network("full-mesh", "mesh");
    let routes = kernel_routes(&lab.netns("node1").unwrap(), Family::Ipv4).unwrap();
    let default = routes.iter().find(|r| r.dst == "default").unwrap();
    assert_eq!(default.gateway, Some([10, 0, 0, 254].into()));
    assert!(ping(&lab, "node1", "10.0.0.3").contains("ttl=64"));
}

#[test]
fn etcd_keeps_its_data_over_a_kill() {
    if !possible("etcd_keeps_its_data_over_a_kill") {
        return;
    }
    let mut lab = network("rr-pair", "etcd");
    let keys = |lab: &Lab| {
        lab.etcdctl(&["get", "--prefix", "--keys-only", "/"], b"")
            .unwrap()
    };
    let before = keys(&lab);
    assert_eq!(before.matches("/calico/").count(), 4, "{before}");
    lab.kill9_etcd().unwrap();
    assert!(!lab.etcd_healthy());
    lab.start_etcd().unwrap();
    assert_eq!(keys(&lab), before);
    lab.stop_etcd().unwrap();
    assert!(!lab.etcd_healthy());
}

#[test]
fn a_second_lab_of_one_name_is_refused_and_the_first_untouched() {
    if !possible("a_second_lab_of_one_name_is_refused_and_the_first_untouched") {
        return;
    }
    let lab = network("full-mesh", "twice");
    let (topology, text) = Topology::load_text(&example("full-mesh")).unwrap();
    let mut options = UpOptions::test("/nonexistent", lab.name().as_str());
    options.extent = Extent::Network;
    let error = Lab::up(topology, &text, options, &|_| {}).unwrap_err();
    let message = caracal_lab::error_chain(&error);
    assert!(message.contains("caracal lab down"), "{message}");
    assert!(lab.etcd_healthy());
    assert!(ping(&lab, "node1", "10.0.0.3").contains("ttl=64"));
}

#[test]
fn a_failed_bring_up_removes_what_it_made() {
    if !possible("a_failed_bring_up_removes_what_it_made") {
        return;
    }
    let (topology, text) = Topology::load_text(&example("full-mesh")).unwrap();
    let name = unique("fails");
    // Something that is a file and starts, but is no node: it ends at once.
    let options = UpOptions {
        name: Some(name.clone()),
        ..UpOptions::new("/bin/false")
    };
    let error = Lab::up(topology, &text, options, &|_| {}).unwrap_err();
    assert!(matches!(error, UpError::Step { .. }), "{error}");
    let message = caracal_lab::error_chain(&error);
    assert!(
        message.contains("the process of node1 ended (exit status: 1)"),
        "{message}"
    );
    assert_nothing_left(&LabName::new(&name).unwrap());
}

/// Runs in a process of its own, which the next test kills.
#[test]
#[ignore = "a part of down_finds_what_a_killed_lab_left"]
fn child_brings_a_lab_up() {
    let Ok(name) = std::env::var("LAB_TEST_NAME") else {
        return;
    };
    let (topology, text) = Topology::load_text(&example("cross-subnet")).unwrap();
    let mut options = UpOptions {
        name: Some(name),
        ..UpOptions::new("/nonexistent")
    };
    options.extent = Extent::Network;
    let say = |event: UpProgress| println!("EVENT {event:?}");
    let lab = Lab::up(topology, &text, options, &say).unwrap();
    println!("EVENT up");
    // Until killed; the pipe's end closes when the parent is gone.
    let _ = std::io::stdin().lines().next();
    drop(lab);
}

/// Brings a lab up in another process and kills that process when it has said `moment`.
fn killed_at(moment: &str, name: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_brings_a_lab_up",
            "--ignored",
            "--nocapture",
        ])
        .env("LAB_TEST_NAME", name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines
        .map_while(Result::ok)
        .any(|line| line.contains(moment));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said, "the child never said {moment}");
}

#[test]
fn down_finds_what_a_killed_lab_left() {
    if !possible("down_finds_what_a_killed_lab_left") {
        return;
    }
    for moment in [
        "EVENT Namespaces",
        "EVENT Network",
        "EVENT Etcd",
        "EVENT up",
    ] {
        let name = LabName::new(&unique("killed")).unwrap();
        killed_at(moment, name.as_str());
        assert!(
            !list_netns(&name.prefix()).is_empty(),
            "{moment}: nothing was made"
        );
        let etcd = Folder::new(&name)
            .load()
            .unwrap()
            .processes
            .get("etcd")
            .copied();
        // LAB-2: the state names what exists, at whatever moment.
        down(&name).unwrap();
        assert!(
            !etcd.is_some_and(|e| e.alive()),
            "{moment}: etcd is still there"
        );
        assert_nothing_left(&name);
    }
}

#[test]
fn down_works_by_prefix_when_the_folder_is_gone() {
    if !possible("down_works_by_prefix_when_the_folder_is_gone") {
        return;
    }
    let name = LabName::new(&unique("nofolder")).unwrap();
    killed_at("EVENT up", name.as_str());
    let etcd = Folder::new(&name).load().unwrap().processes["etcd"];
    Folder::new(&name).remove().unwrap();
    let report = down(&name).unwrap();
    assert_eq!((report.processes, report.namespaces), (1, 11));
    assert!(!etcd.alive());
    assert_nothing_left(&name);
}

#[test]
fn another_lab_with_a_longer_name_is_not_touched() {
    if !possible("another_lab_with_a_longer_name_is_not_touched") {
        return;
    }
    let lab = network("full-mesh", "a-b");
    // LAB-1: "…-a" is a prefix of "…-a-b".
    assert!(
        down(&LabName::new(&unique("a")).unwrap())
            .unwrap()
            .is_empty()
    );
    assert!(lab.etcd_healthy());
}

#[test]
fn a_recycled_pid_is_left_alone() {
    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    let real = Identity::read(i32::try_from(bystander.id()).unwrap()).unwrap();
    let recorded = Identity {
        start: real.start.wrapping_sub(1),
        ..real
    };
    // LAB-3
    recorded.kill_group();
    recorded.signal(rustix::process::Signal::KILL);
    assert!(real.alive());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}
