//! `caracal drain` in the real binary: a prefix that two nodes announce, and a real BIRD 2 that
//! follows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;

use caracal_lab::{
    Lab, PodState, Probe, Route, Stream, call_program, error_chain, program_command, wait_until,
};
use caracal_model::Family;
use caracal_tests::{
    PROBE_RATE, SECOND, address_of, await_datagrams, await_settled, await_status, either,
    exit_code, focus, ip, on_each_stack, settled,
};
use serde_json::Value;

/// 65535:0 as one number (RFC 8326 §5).
const GRACEFUL_SHUTDOWN: &str = "4294901760";
const TEXT: &str = "moving to rack 7";

/// The prefix that both nodes announce, and the name of its affinity's key.
const fn prefix(family: Family) -> (&'static str, &'static str) {
    either(
        family,
        ("10.244.250.0/26", "ipv4/block/10.244.250.0-26"),
        (
            "fd00:10:244:0:250::/122",
            "ipv6/block/fd00:10:244:0:250::-122",
        ),
    )
}

/// Over which nodes BIRD's kernel sends.
fn gateways(lab: &Lab) -> Vec<String> {
    let (prefix, _) = prefix(focus(lab));
    let routes = lab.routes("bird1").unwrap();
    // IPv6's kernel may show a way each as a route of its own.
    let of_prefix = routes.iter().filter(|r| r.dst == prefix);
    let hops = |r: &Route| {
        let hops: Vec<_> = r.nexthops.iter().map(|hop| hop.gateway).collect();
        hops.into_iter()
            .chain([r.gateway])
            .flatten()
            .collect::<Vec<_>>()
    };
    let all = of_prefix.flat_map(hops);
    let mut gateways: Vec<_> = all.map(|gateway| gateway.to_string()).collect();
    gateways.sort();
    gateways
}

fn await_gateways(lab: &Lab, nodes: &[&str]) {
    let wanted: Vec<String> = nodes.iter().map(|n| address(lab, n)).collect();
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
    let family = focus(lab);
    let source = pod.address_of(family).unwrap().to_string();
    let device = pod.host_interface.as_deref().unwrap();
    let via_node1 = |address: &IpAddr| {
        let mut command = program_command("ip").unwrap();
        command.args(["route", "get", &address.to_string()]);
        command.args(["from", &source, "iif", device]);
        let answer = call_program(Some(&netns), &mut command, b"", 60 * SECOND).unwrap();
        answer.contains(&format!("via {} ", self::address(lab, "node1")))
    };
    let addresses = (1..63).map(|n| match family {
        Family::Ipv4 => IpAddr::from([10, 244, 250, n]),
        Family::Ipv6 => IpAddr::from([0xfd00, 0x10, 0x244, 0, 0x250, 0, 0, n.into()]),
    });
    let mut found = addresses.filter(via_node1);
    found.next().expect("of 62 addresses one goes over node1")
}

/// A node's address.
fn address(lab: &Lab, node: &str) -> String {
    address_of(lab, node, focus(lab)).to_string()
}

fn json(lab: &Lab, node: &str, arguments: &[&str]) -> Value {
    let mut arguments = arguments.to_vec();
    arguments.extend(["-o", "json"]);
    let (_, text) = exit_code(lab, node, &arguments);
    if arguments.starts_with(&["bgp", "advertised"]) {
        // An object a line.
        let lines = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        return lines
            .collect::<Result<_, _>>()
            .unwrap_or_else(|e| panic!("{e}: {text}"));
    }
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// LOCAL_PREF and communities of the prefix in node1's announcement to BIRD.
fn announced(lab: &Lab) -> Option<(u64, String)> {
    let routes = json(lab, "node1", &["bgp", "advertised", &address(lab, "bird1")]);
    let (prefix, _) = prefix(focus(lab));
    let route = routes.as_array()?.iter().find(|r| r["prefix"] == prefix)?;
    Some((
        route["localPref"].as_u64()?,
        route["communities"].to_string(),
    ))
}

/// Two nodes that lead to one place, a host behind both (here etcd's), and packets over the first.
fn two_ways(lab: &Lab) -> Probe {
    let family = focus(lab);
    let (prefix, name) = prefix(family);
    let (host, _) = lab.layout().etcd[0].address_of(family).unwrap();
    // First, or a node's agent takes the place for the route that it learns from the other.
    for node in ["node1", "node2"] {
        ip(lab, node, &[&format!("route add {prefix} via {host}")]);
    }
    for node in ["node1", "node2"] {
        let key = format!("/calico/ipam/v2/host/{node}/{name}");
        let value = br#"{"state":"confirmed","deleted":false}"#;
        lab.etcdctl(&["put", &key], value).unwrap();
    }
    ip(lab, "etcd", &[&format!("route add local {prefix} dev lo")]);
    await_gateways(lab, &["node1", "node2"]);
    let pod = lab.state().pods.iter().find(|p| p.node == "bird1").unwrap();
    Probe::start(Stream {
        from: pod.netns.clone(),
        to: lab.layout().etcd_netns(),
        address: over_node1(lab, pod),
        rate: PROBE_RATE,
        size: 64,
    })
    .unwrap()
}

#[test]
fn a_drained_node_loses_nothing_and_says_why() {
    on_each_stack(
        "a_drained_node_loses_nothing_and_says_why",
        &["bird", "birdc"],
        "mixed-bird",
        "e2e-drain",
        drained,
    );
}

fn drained(mut lab: Lab) {
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
    assert_eq!(gateways(&lab), ["node1", "node2"].map(|n| address(&lab, n)));

    std::thread::scope(|scope| {
        let drain = ["drain", "--force", "--wait", "600", "--text", TEXT];
        let lab = &lab;
        let first = scope.spawn(move || exit_code(lab, "node1", &drain));
        // Announced still, as the last choice; BIRD takes the other way by itself.
        await_gateways(lab, &["node2"]);
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
    let drained = |s: &caracal_model::NodeStatus| match &s.drain {
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
    await_datagrams(&probe, 500);

    let (code, text) = exit_code(&lab, "node1", &["drain", "--undo"]);
    assert_eq!(code, 0, "{text}");
    await_settled(&lab);
    await_gateways(&lab, &["node1", "node2"]);
    let status = lab.node_status("node1").unwrap();
    assert_eq!(status.drain, None);
    await_datagrams(&probe, 500);
    let loss = probe.stop();
    println!("drained, restarted, and back: {loss}");
    assert_eq!(loss.lost, 0, "{loss}");
}

/// The sessions are down with the text, and nobody keeps a route for a restart.
fn drained_as_seen_from_outside(lab: &Lab) {
    let node1 = Some(address_of(lab, "node1", focus(lab)));
    let (prefix, _) = prefix(focus(lab));
    let is_reported = |s: &caracal_model::NodeStatus| {
        let peer = s.peers.iter().find(|p| p.address == node1);
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
    await_status(
        lab,
        "node2",
        60 * SECOND,
        "the text of the Cease",
        is_reported,
    );
    wait_until(60 * SECOND, "no path from node1", || {
        let explained = json(lab, "node2", &["explain", prefix]);
        let paths = explained["bgp"]["paths"].as_array().unwrap();
        match paths.iter().all(|p| p["peer"].is_null()) {
            true => Ok(()),
            false => Err(format!("{explained:#}")),
        }
    })
    .unwrap();
    wait_until(60 * SECOND, "BIRD to have no route over node1", || {
        let routes = lab.routes("bird1").unwrap();
        let over =
            |r: &Route| r.gateway == node1 || r.nexthops.iter().any(|hop| hop.gateway == node1);
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
