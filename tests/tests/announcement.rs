//! An ADD returns when the pod is announced: what the node answers to the plugin's question, with
//! real sessions; and, on a machine that booted, when the ways to other pods are there. And STATUS,
//! which asks the node, too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use caracal_lab::{
    CniError, Lab, PodState, RouteKind, call_program, error_chain, program_command, wait_for,
    wait_until,
};
use caracal_model::{Announcement, AwaitAnnouncement, NodeStatus, Prefix};
use caracal_tests::{
    Probes, SECOND, address_of, addresses, assert_gone, await_settled, await_status, bind_pods,
    count_routes, either, family_count, flush_routes, focus, more_pods,
    on_each_stack_and_datastore, on_each_stack_of, run_on, try_run_on,
};
use serde_json::{Value, json};

const TOPOLOGY: &str = "
name: announcement
description: two nodes
pool:
  cidr: 10.244.0.0/24
  blockSize: 29
segments:
  - name: lan
    cidr: 10.0.0.0/24
nodes:
  - {name: node1, segment: lan, pods: 1}
  - {name: node2, segment: lan, pods: 1}
";

/// Asks node1 as the plugin does.
fn ask(lab: &Lab, address: IpAddr, revision: i64, milliseconds: u64) -> Announcement {
    let question = AwaitAnnouncement {
        addresses: vec![address],
        revision,
        milliseconds,
    };
    let mut request = json!(question);
    request["request"] = json!("announced");
    let mut stream = UnixStream::connect(lab.folder().socket("node1")).unwrap();
    writeln!(stream, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let mut answer: Value = serde_json::from_str(&line).unwrap();
    serde_json::from_value(answer["ok"].take()).unwrap_or_else(|e| panic!("{e}: {line}"))
}

#[test]
fn the_node_says_whether_a_pod_is_announced() {
    let scenario = "the_node_says_whether_a_pod_is_announced";
    on_each_stack_of(scenario, &[], TOPOLOGY, "e2e-announce", announced);
}

fn announced(mut lab: Lab) {
    let family = focus(&lab);
    await_settled(&lab);
    let pods = &lab.state().pods;
    let own = pods.iter().find(|p| p.node == "node1").unwrap();
    let address = own.address_of(family).unwrap();
    let status = lab.node_status("node1").unwrap();
    let mut blocks = status.blocks.iter().map(|b| b.cidr);
    let block: Prefix = blocks.find(|cidr| cidr.contains(address)).unwrap();
    let revision = status.datastore.revision;

    let answer = ask(&lab, address, revision, 20_000);
    let complete = Announcement {
        prefixes: vec![block],
        sessions: family_count(&lab),
        missing: None,
    };
    assert_eq!(answer, complete);
    let far = address_of(&lab, "node2", family);
    let mut peers = status.peers.iter();
    let peer = &peers.find(|p| p.address == Some(far)).unwrap().name;
    let advertised = lab
        .caracal("node1", &["bgp", "advertised", peer, "-o", "json"])
        .unwrap();
    assert!(advertised.contains(&block.to_string()), "{advertised}");

    // Of a change that the node has not seen it says nothing.
    let answer = ask(&lab, address, revision + 1_000_000, 50);
    let missing = answer.missing.expect("a revision of the future");
    assert!(missing.contains("the speaker is at revision"), "{missing}");

    // An address that no pool of ours has is announced by nobody, and nothing is waited for.
    let stranger = ask(&lab, "192.0.2.7".parse().unwrap(), revision, 20_000);
    assert_eq!(stranger, Announcement::default());

    // With the only peer gone there is nobody to tell; the wait is bounded.
    lab.stop_node("node2").unwrap();
    let gone = || {
        let revision = lab.node_status("node1").unwrap().datastore.revision;
        let answer = ask(&lab, address, revision, 50);
        match answer.missing.as_deref() {
            Some("no session is established") => Ok(()),
            _ => Err(format!("{answer:?}")),
        }
    };
    wait_until(60 * SECOND, "the session's end", gone).unwrap_or_else(|e| panic!("{e}"));

    // STATUS: yes while the node runs, and the reason when it does not.
    lab.cni_status("node1")
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    match lab.cni_status("node2") {
        Err(CniError::Refused {
            code: 50, message, ..
        }) => {
            assert!(message.contains("is it running?"), "{message}");
        }
        other => panic!("STATUS on a stopped node: {other:?}"),
    }
    lab.kill9_etcd().unwrap();
    match lab.cni_status("node1") {
        Err(CniError::Refused {
            code: 50, message, ..
        }) => println!("without etcd: {message}"),
        other => panic!("STATUS without etcd: {other:?}"),
    }
    let name = lab.name().clone();
    lab.down().unwrap();
    assert_gone(&name);
}

/// So long may the first pods wait: `announce_wait_seconds`, and 4 s more (docs/cni.md).
const LONGEST_WAIT: Duration = Duration::from_secs(6);

#[test]
fn the_first_pods_of_a_machine_that_boots_lose_no_packet() {
    let scenario = "the_first_pods_of_a_machine_that_boots_lose_no_packet";
    on_each_stack_and_datastore(scenario, &["nft"], "full-mesh", "e2e-boot", boots);
}

fn boots(mut lab: Lab) {
    await_settled(&lab);
    let pods = more_pods(&lab, ["node1", "node1"]);
    bind_pods(&lab, &pods);
    power_off(&mut lab);
    lab.start_node("node1").unwrap();
    begins(&lab, &pods[0]);

    // node2 is late: the way to it comes when all else is there.
    await_settled(&lab);
    power_off(&mut lab);
    lab.pause_node("node2").unwrap();
    lab.restart_node("node1").unwrap();
    let has_node3 = |status: &NodeStatus| {
        let is_up = |address| {
            let mut peers = status.peers.iter();
            peers.any(|p| p.address == Some(address) && p.state == "Established")
        };
        match addresses(&lab, "node3").into_iter().all(is_up) {
            true => Ok(()),
            false => Err(format!("{:?}", status.peers)),
        }
    };
    await_status(&lab, "node1", 60 * SECOND, "sessions with node3", has_node3);
    let clock = Probes::start(&lab, &[("node3/p1", "node2/p1")]);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| begins(&lab, &pods[1]));
        let local = || count_routes(&lab, "node1", RouteKind::Local);
        let all = family_count(&lab);
        let attached = wait_for(60 * SECOND, "the pod's routes", local, |n| *n == all);
        attached.unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node1", 40)));
        // An ADD that does not wait for node2 ends meanwhile.
        clock.after(500);
        lab.resume_node("node2").unwrap();
        second.join().expect("packets of the second pod");
    });
    clock.assert_none_lost("node1 boots");
}

/// The machine of node1 goes off, with its pods, what its kernel has, and what lies in `/run`.
fn power_off(lab: &mut Lab) {
    lab.kill9_node("node1").unwrap();
    let links = run_on(lab, "node1", "ip -o link show");
    // `7: cali1a2b3c@if2: <BROADCAST,…`
    let names = links
        .lines()
        .filter_map(|line| line.split([' ', '@', ':']).nth(2));
    for name in names.filter(|name| name.starts_with("cali")) {
        run_on(lab, "node1", &format!("ip link del {name}"));
    }
    for family in lab.topology().families() {
        flush_routes(lab, "node1", either(family, "-4", "-6"), "proto 80");
    }
    // Without such objects in the kernel there is nothing to flush.
    let _flushed = try_run_on(lab, "node1", "ip nexthop flush proto 80");
    for words in [
        "nft flush ruleset",
        "sysctl -q -w net.ipv4.ip_forward=0",
        "sysctl -q -w net.ipv6.conf.all.forwarding=0",
    ] {
        run_on(lab, "node1", words);
    }
    let run = lab.folder().run("node1");
    std::fs::remove_dir_all(&run).unwrap();
    std::fs::create_dir(&run).unwrap();
}

/// A runtime's ADD, again until it works; then packets of the pod to pods of the other nodes, of
/// which none is lost.
fn begins(lab: &Lab, pod: &PodState) {
    let took = wait_until(60 * SECOND, "an ADD that works", || {
        let begun = Instant::now();
        let added = lab.cni("ADD", pod);
        added.map(|_| begun.elapsed()).map_err(|e| error_chain(&e))
    })
    .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node1", 40)));
    println!("{}: ADD took {:.2} s", lab.name(), took.as_secs_f64());
    if took >= LONGEST_WAIT {
        println!("{}: this machine is too slow", lab.name());
        return;
    }
    for node in ["node2", "node3"] {
        let others = lab.state().pods.iter().filter(|other| other.node == node);
        for (other, family) in others.flat_map(|other| {
            let families = lab.topology().families().into_iter();
            families.map(move |family| (other, family))
        }) {
            let to = other.address_of(family).unwrap().to_string();
            let mut ping = program_command("ping").unwrap();
            ping.args(["-n", "-q", "-c", "5", "-i", "0.01", "-W", "5", &to]);
            let said = call_program(Some(&pod.netns), &mut ping, b"", 60 * SECOND);
            let said = said.unwrap_or_else(|e| panic!("{} to {to}: {e}", pod.label()));
            assert!(said.contains(" 0% packet loss"), "{}: {said}", pod.label());
        }
    }
}
