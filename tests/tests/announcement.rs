//! An ADD returns when the pod is announced: what the node answers to the plugin's question, with
//! real sessions. And STATUS, which asks the node, too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;

use caracal_lab::{CniError, Lab, error_chain, wait_until};
use caracal_model::{Announcement, AwaitAnnouncement, Prefix};
use caracal_tests::{
    SECOND, address_of, assert_gone, await_settled, family_count, focus, on_each_stack_of,
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
