//! `caracal trace` in the real binary: intact ways, and one broken hop after the other.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::process::Command;

use caracal_lab::{Lab, netns_sysctl, wait_until};
use caracal_tests::{
    EchoServer, PodEndpoint, SECOND, Services, address_of, assert_full_matrix, await_settled,
    binary_with_labs, either, endpoint_slices, exit_code, family_count, focus, ip, on_each_stack,
    on_each_stack_of,
};
use serde_json::Value;

/// Exit code, and the report.
fn trace(lab: &Lab, from: &str, to: &str) -> (i32, Value) {
    let output = Command::new(binary_with_labs())
        .args([
            "trace",
            "--lab",
            lab.name().as_str(),
            from,
            to,
            "-o",
            "json",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), report)
}

/// The first broken hop: place and words.
fn broken(report: &Value) -> Option<(String, String)> {
    let hops = report["directions"].as_array()?.iter();
    let hops = hops.flat_map(|direction| direction["hops"].as_array().unwrap());
    let hop = hops.into_iter().find(|hop| hop["broken"] == true)?;
    let text = |key: &str| hop[key].as_str().unwrap().to_owned();
    Some((text("place"), text("seen")))
}

/// The trace and a real ping agree that packets stop, and the trace says where.
fn assert_broken(lab: &Lab, place: &str, words: &str) {
    let (code, report) = trace(lab, "node1/p1", "node3/p1");
    assert_eq!(code, 4, "{report:#}");
    let (seen_at, seen) = broken(&report).unwrap_or_else(|| panic!("{report:#}"));
    println!("{seen_at}: {seen}");
    assert_eq!(seen_at, place, "{report:#}");
    assert!(seen.contains(words), "{report:#}");
    assert!(report["ping"]["Err"].is_string(), "{report:#}");
}

fn assert_intact(lab: &Lab, from: &str, to: &str, places: &[&str]) {
    let (code, report) = trace(lab, from, to);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(broken(&report), None);
    // Two directions for each family, IPv4 first.
    let there = 2 * (family_count(lab) - 1);
    let hops = report["directions"][there]["hops"].as_array().unwrap();
    let mut seen: Vec<&str> = hops.iter().map(|h| h["place"].as_str().unwrap()).collect();
    seen.dedup();
    assert_eq!(seen, places, "{report:#}");
}

#[test]
fn the_first_broken_hop_is_named() {
    let scenario = "the_first_broken_hop_is_named";
    let programs = ["bridge"];
    on_each_stack(
        scenario,
        &programs,
        "cross-subnet",
        "e2e-trace",
        first_broken,
    );
}

fn first_broken(mut lab: Lab) {
    let family = focus(&lab);
    let tunnel = either(family, "vxlan.calico", "vxlan-v6.calico");
    let node3 = address_of(&lab, "node3", family);
    await_settled(&lab);
    assert_full_matrix(&lab);
    let over_vxlan = ["node1/p1", "node1", "router", "node3", "node3/p1"];
    assert_intact(&lab, "node1/p1", "node3/p1", &over_vxlan);
    let direct = ["node1/p1", "node1", "node2", "node2/p1"];
    assert_intact(&lab, "node1/p1", "node2/p1", &direct);

    let pod = |label: &str| {
        let pods = &lab.state().pods;
        let pod = pods.iter().find(|p| p.label() == label).unwrap();
        (
            pod.address_of(family).unwrap(),
            pod.host_interface.clone().unwrap(),
        )
    };
    let (_, near) = pod("node1/p1");
    let (address, far) = pod("node3/p1");
    // Nobody repairs anything.
    lab.stop_node("node1").unwrap();
    lab.stop_node("node3").unwrap();

    let (code, fdb) = shell(&lab, "node1", &format!("bridge fdb show dev {tunnel}"));
    assert_eq!(code, 0);
    let entry = fdb
        .lines()
        .find(|l| l.contains(&format!("dst {node3}")))
        .unwrap();
    let mac = entry.split_whitespace().next().unwrap();
    let entry = format!("{mac} dev {tunnel} dst {node3}");
    assert_eq!(
        shell(&lab, "node1", &format!("bridge fdb del {entry}")).0,
        0
    );
    assert_broken(&lab, "node1", &format!("no FDB entry for {mac}"));
    assert_eq!(
        shell(&lab, "node1", &format!("bridge fdb add {entry}")).0,
        0
    );
    assert_intact(&lab, "node1/p1", "node3/p1", &over_vxlan);

    // The blackhole of the block is what is left.
    ip(&lab, "node3", &[&format!("route del {address} dev {far}")]);
    assert_broken(&lab, "node3", "blackhole");
    let scope = either(family, "scope link", "");
    let back = format!("route add {address} dev {far} {scope} proto 80 metric 1024");
    ip(&lab, "node3", &[&back]);

    let forwarding = |value| {
        let netns = lab.netns("node3").unwrap();
        let key = either(
            family,
            "net/ipv4/ip_forward",
            "net/ipv6/conf/all/forwarding",
        );
        netns_sysctl(&netns, key, value, false).unwrap();
    };
    forwarding("0");
    assert_broken(&lab, "node3", "forwarding is 0");
    forwarding("1");

    ip(&lab, "node3", &[&format!("link set {tunnel} down")]);
    assert_broken(&lab, "node3", &format!("{tunnel} is down"));

    ip(&lab, "router", &["link set eth1 mtu 1400"]);
    assert_broken(&lab, "router", "octets do not fit");
    ip(&lab, "router", &["link set eth1 mtu 1500"]);
    // With IPv6 the sender was told so, and remembers it for ten minutes (RFC 8201).
    for place in ["node1/p1", "node1"] {
        assert_eq!(shell(&lab, place, "ip -6 route flush cache").0, 0);
    }

    ip(&lab, "node1", &[&format!("link set {near} down")]);
    assert_broken(&lab, "node1/p1", "no carrier");
    ip(&lab, "node1", &[&format!("link set {near} up")]);

    // The agents repair the rest.
    lab.restart_node("node1").unwrap();
    lab.restart_node("node3").unwrap();
    await_settled(&lab);
    assert_full_matrix(&lab);
    assert_intact(&lab, "node1/p1", "node3/p1", &over_vxlan);
    let (code, text) = exit_code(&lab, "node1", &["audit"]);
    assert_eq!(code, 0, "{text}");
}

/// Packets from node1's pod stop at a place on their way to a service, with these words.
fn assert_stops(lab: &Lab, to: &str, place: &str, words: &str) -> Value {
    let (code, report) = trace(lab, "node1/p1", to);
    assert_eq!(code, 4, "{report:#}");
    let (seen_at, seen) = broken(&report).unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(seen_at, place, "{report:#}");
    assert!(seen.contains(words), "{report:#}");
    report
}

/// Two nodes that translate services, with a tunnel between them.
const TRANSLATED: &str = "name: traced
pool: {cidr: 10.244.0.0/16, blockSize: 26, vxlanMode: Always}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, address: 10.0.0.11, pods: 1, env: {CARACAL_SERVICES: 'on'}}
  - {name: node2, segment: lan, address: 10.0.0.12, pods: 2, env: {CARACAL_SERVICES: 'on'}}
";

#[test]
fn a_service_is_followed_to_its_endpoints() {
    let scenario = "a_service_is_followed_to_its_endpoints";
    on_each_stack_of(
        scenario,
        &["nft", "bridge"],
        TRANSLATED,
        "e2e-trace-vip",
        to_service,
    );
}

fn to_service(mut lab: Lab) {
    await_settled(&lab);
    let (family, families) = (focus(&lab), lab.topology().families());
    let pods = lab.state().pods.clone();
    let (client, servers) = pods.split_first().unwrap();
    assert_eq!(client.label(), "node1/p1");
    let _running: Vec<EchoServer> = servers
        .iter()
        .map(|pod| EchoServer::start(pod, &families, 8080))
        .collect();
    let vip = either(family, "10.96.0.10", "fd00:96::10");
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{clusterIP: '{vip}', ports: [{{port: 80, targetPort: 8080}}]}}\n"
    );
    let endpoint = |pod| PodEndpoint {
        pod,
        port: 8080,
        terminates: false,
    };
    let endpoints: Vec<PodEndpoint<'_>> = servers.iter().map(endpoint).collect();
    text += &endpoint_slices("web", &[family], &[8080], &endpoints);
    Services(&lab).prepare();
    Services(&lab).apply(&text);

    let to = SocketAddr::new(vip.parse().unwrap(), 80).to_string();
    let said = wait_until(60 * SECOND, "a way to each endpoint", || {
        let (code, report) = trace(&lab, "node1/p1", &to);
        (code == 0).then(|| report.clone()).ok_or(report)
    });
    let report = said.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(report["connection"]["Ok"], format!("{to} accepts one"));
    assert_eq!(report["ping"], Value::Null);
    let ends: Vec<&str> = report["directions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|direction| direction["to"].as_str().unwrap())
        .collect();
    let mut there: Vec<&str> = ends.iter().copied().step_by(2).collect();
    there.sort_unstable();
    assert_eq!(there, ["node2/p1", "node2/p2"]);
    let first = &report["directions"][0]["hops"][0];
    let becomes = first["seen"].as_str().unwrap();
    assert_eq!(first["place"], "node1");
    assert!(
        becomes.contains(" becomes ") && becomes.ends_with(":8080, one of 2"),
        "{becomes}"
    );

    let other = to.replace(":80", ":81");
    let report = assert_stops(&lab, &other, "node1", "does not have");
    assert!(report["connection"]["Err"].is_string(), "{report:#}");
    let (code, _) = trace(&lab, "node2/p1", &to);
    assert_eq!(code, 0, "the client is one of the endpoints");
    // Nobody repairs anything.
    for node in ["node1", "node2"] {
        lab.stop_node(node).unwrap();
    }
    let tunnel = either(family, "vxlan.calico", "vxlan-v6.calico");
    ip(&lab, "node2", &[&format!("link set {tunnel} down")]);
    assert_stops(&lab, &to, "node2", &format!("{tunnel} is down"));
    let flush = "nft delete table inet caracal-services";
    assert_eq!(shell(&lab, "node1", flush).0, 0);
    assert_stops(&lab, &to, "node1", "CARACAL_SERVICES=on");
}

/// A command in a namespace.
fn shell(lab: &Lab, target: &str, line: &str) -> (i32, String) {
    let netns = lab.netns(target).unwrap();
    let mut words = line.split_whitespace();
    let mut command = caracal_lab::program_command(words.next().unwrap()).unwrap();
    command.args(words);
    let limit = caracal_tests::SECOND * 60;
    let output = caracal_lab::program_output(Some(&netns), &mut command, b"", limit).unwrap();
    (output.status.code().unwrap(), output.stdout)
}
