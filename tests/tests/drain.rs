//! `caracal drain` in the real binary: a prefix that two nodes announce, and a real BIRD 2 that follows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;

use caracal_lab::probe::{Probe, Stream};
use caracal_lab::state::PodState;
use caracal_lab::{Lab, error_chain, program, wait_until};
use caracal_model::Family;
use caracal_tests::loss::{RATE, after};
use caracal_tests::{SECOND, await_settled, await_status, exit_code, ip, possible, settled, up};
use serde_json::Value;

const PREFIX: &str = "10.244.250.0/26";
const NODE1: &str = "10.0.0.11";
const NODE2: &str = "10.0.0.12";
/// 65535:0 as one number (RFC 8326 §5).
const GRACEFUL_SHUTDOWN: &str = "4294901760";
const TEXT: &str = "moving to rack 7";

/// Over which nodes BIRD's kernel sends.
fn gateways(lab: &Lab) -> Vec<String> {
    let routes = lab.routes("bird1").unwrap();
    let Some(route) = routes.into_iter().find(|r| r.dst == PREFIX) else {
        return Vec::new();
    };
    let hops = route.nexthops.iter().map(|hop| hop.gateway);
    let all = hops.chain([route.gateway]).flatten();
    all.map(|gateway| gateway.to_string()).collect()
}

fn await_gateways(lab: &Lab, wanted: &[&str]) {
    wait_until(60 * SECOND, "BIRD's ways to the prefix", || {
        let seen = gateways(lab);
        if seen == wanted {
            Ok(())
        } else {
            Err(format!("{seen:?}, not {wanted:?}"))
        }
    })
    .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
}

/// An address of the prefix that BIRD's kernel sends over node1 for packets of the pod.
fn over_node1(lab: &Lab, pod: &PodState) -> IpAddr {
    let netns = lab.netns("bird1").unwrap();
    let source = pod.address.unwrap().to_string();
    let device = pod.host_interface.as_deref().unwrap();
    let via_node1 = |address: &IpAddr| {
        let mut command = program::command("ip").unwrap();
        command.args(["route", "get", &address.to_string()]);
        command.args(["from", &source, "iif", device]);
        let answer = program::call(Some(&netns), &mut command, b"", 60 * SECOND).unwrap();
        answer.contains(&format!("via {NODE1} "))
    };
    let addresses = (1..63).map(|n| IpAddr::from([10, 244, 250, n]));
    let mut found = addresses.filter(via_node1);
    found.next().expect("of 62 addresses one goes over node1")
}

fn json(lab: &Lab, node: &str, arguments: &[&str]) -> Value {
    let mut arguments = arguments.to_vec();
    arguments.extend(["-o", "json"]);
    let (_, text) = exit_code(lab, node, &arguments);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// What node1 tells BIRD of the prefix: LOCAL_PREF and communities.
fn announced(lab: &Lab) -> Option<(u64, String)> {
    let routes = json(lab, "node1", &["bgp", "advertised", "10.0.0.21"]);
    let route = routes.as_array()?.iter().find(|r| r["prefix"] == PREFIX)?;
    Some((
        route["local_pref"].as_u64()?,
        route["communities"].to_string(),
    ))
}

/// Two nodes that lead to one place, a host behind both (here etcd's), and packets over the first.
fn two_ways(lab: &Lab) -> Probe {
    let (host, _) = lab.layout().etcd[0].address_of(Family::Ipv4).unwrap();
    // First, or a node's agent takes the place for the route that it learns from the other.
    for node in ["node1", "node2"] {
        ip(lab, node, &[&format!("route add {PREFIX} via {host}")]);
    }
    for node in ["node1", "node2"] {
        let key = format!("/calico/ipam/v2/host/{node}/ipv4/block/10.244.250.0-26");
        let value = br#"{"state":"confirmed","deleted":false}"#;
        lab.etcdctl(&["put", &key], value).unwrap();
    }
    ip(lab, "etcd", &[&format!("route add local {PREFIX} dev lo")]);
    await_gateways(lab, &[NODE1, NODE2]);
    let pod = lab.state().pods.iter().find(|p| p.node == "bird1").unwrap();
    Probe::start(Stream {
        from: pod.netns.clone(),
        to: lab.layout().etcd_netns(),
        address: over_node1(lab, pod),
        rate: RATE,
        size: 64,
    })
    .unwrap()
}

#[test]
fn a_drained_node_loses_nothing_and_says_why() {
    if !possible(
        "a_drained_node_loses_nothing_and_says_why",
        &["bird", "birdc"],
    ) {
        return;
    }
    let mut lab = up("mixed-bird", "e2e-drain");
    await_settled(&lab);
    let probe = two_ways(&lab);
    wait_until(60 * SECOND, "packets to arrive", || {
        let received = probe.received();
        if received > 100 {
            Ok(())
        } else {
            Err(received)
        }
    })
    .unwrap();
    let (pref, communities) = announced(&lab).unwrap();
    assert!(
        pref > 0 && !communities.contains(GRACEFUL_SHUTDOWN),
        "{pref} {communities}"
    );

    // A pod still runs there.
    let (code, _) = exit_code(&lab, "node1", &["drain", "--text", TEXT]);
    assert_eq!(code, 5);
    assert_eq!(gateways(&lab), [NODE1, NODE2]);

    std::thread::scope(|scope| {
        let drain = ["drain", "--force", "--wait", "600", "--text", TEXT];
        let lab = &lab;
        let first = scope.spawn(move || exit_code(lab, "node1", &drain));
        // Announced still, as the last choice; BIRD takes the other way by itself.
        await_gateways(lab, &[NODE2]);
        let (pref, communities) = announced(lab).unwrap();
        assert_eq!(pref, 0);
        assert!(communities.contains(GRACEFUL_SHUTDOWN), "{communities}");
        let status = lab.node_status("node1").unwrap();
        assert_eq!(status.drain.as_deref(), Some("leaving: moving to rack 7"));
        settled(&status).expect("sessions stay up while traffic moves");
        // Those who need no more time say so.
        let now = ["drain", "--force", "--wait", "0", "--text", TEXT];
        let (code, text) = exit_code(lab, "node1", &now);
        assert_eq!(code, 0, "{text}");
        assert!(
            text.contains("drained: all sessions are shut down"),
            "{text}"
        );
        assert_eq!(first.join().unwrap().0, 0);
    });
    drained_as_seen_from_outside(&lab);

    // A new process stays drained.
    lab.stop_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    let drained = |s: &caracal_model::status::Status| match &s.drain {
        Some(drain) if drain == "drained: moving to rack 7" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    await_status(&lab, "node1", 60 * SECOND, "drained", drained);
    wait_until(60 * SECOND, "the notice in the audit", || {
        let report = json(&lab, "node1", &["audit"]);
        let findings = report["findings"].as_array().unwrap();
        match findings.iter().any(|f| f["code"] == "CRL-B006") {
            true => Ok(()),
            false => Err(format!("{report:#}")),
        }
    })
    .unwrap();
    after(&probe, 500);

    let (code, text) = exit_code(&lab, "node1", &["drain", "--undo"]);
    assert_eq!(code, 0, "{text}");
    await_settled(&lab);
    await_gateways(&lab, &[NODE1, NODE2]);
    let status = lab.node_status("node1").unwrap();
    assert_eq!(status.drain, None);
    after(&probe, 500);
    let loss = probe.stop();
    println!("drained, restarted, and back: {loss}");
    assert_eq!(loss.lost, 0, "{loss}");
}

/// The sessions are down with the text, and nobody keeps a route for a restart.
fn drained_as_seen_from_outside(lab: &Lab) {
    let told = |s: &caracal_model::status::Status| {
        let peer = s.peers.iter().find(|p| p.address == NODE1.parse().ok());
        match peer {
            Some(p)
                if !p.stale
                    && p.state != "Established"
                    && p.reason.as_ref().is_some_and(|r| r.contains(TEXT)) =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    };
    await_status(lab, "node2", 60 * SECOND, "the text of the Cease", told);
    wait_until(60 * SECOND, "no path from node1", || {
        let explained = json(lab, "node2", &["explain", PREFIX]);
        let paths = explained["bgp"]["paths"].as_array().unwrap();
        match paths.iter().all(|p| p["peer"].is_null()) {
            true => Ok(()),
            false => Err(format!("{explained:#}")),
        }
    })
    .unwrap();
    wait_until(60 * SECOND, "BIRD to have no route over node1", || {
        let routes = lab.routes("bird1").unwrap();
        let node1 = NODE1.parse().ok();
        let over = |r: &caracal_lab::ip::Route| {
            r.gateway == node1 || r.nexthops.iter().any(|hop| hop.gateway == node1)
        };
        match routes.into_iter().find(over) {
            Some(route) => Err(format!("{route:?}")),
            None => Ok(()),
        }
    })
    .unwrap();
    wait_until(60 * SECOND, "the text in BIRD", || {
        let shown = lab.birdc("bird1", &["show", "protocols", "all"]).unwrap();
        if shown.contains(TEXT) {
            Ok(())
        } else {
            Err(shown)
        }
    })
    .unwrap();
}
