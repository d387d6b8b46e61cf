//! What changes while the daemons run: the backend, the rest of the configuration, the interface's
//! address.

use caracal_lab::{Probe, netns_sysctl, wait_for};
use caracal_tests::{PROBE_RATE, SECOND, await_datagrams, possible};

use super::site::{PATIENCE, PREFIX, Site};
use super::udp::start_ipv6;
use super::{assert_none_lost, probe, said, subnet};

/// No lease ends while a daemon is away.
const LEASE: std::time::Duration = SECOND.saturating_mul(120);
const OWN_VNI: &str = r#"{"Type":"vxlan","VNI":5,"Port":4789}"#;

fn config(backend: &str) -> String {
    format!(
        r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.60.0","Backend":{backend}}}"#
    )
}

fn dual(backend: &str) -> String {
    let v6 = r#""SubnetMax":"10.5.60.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48","#;
    config(backend).replace(r#""SubnetMax":"10.5.60.0","#, v6)
}

/// Waits until a node's lease is of a backend, and its file says the MTU of it.
fn await_lease(site: &Site, node: u8, backend: &str, mtu: u32) {
    let says = || site.lease(node).map(|(_, value)| value.to_string());
    let wanted = match backend {
        "" => format!(r#"{{"PublicIP":"10.200.0.{node}","PublicIPv6":null}}"#),
        other => format!(r#""BackendType":"{other}""#),
    };
    let is_it = |lease: &Option<String>| lease.as_ref().is_some_and(|l| l.contains(&wanted));
    wait_for(PATIENCE, &format!("n{node}: {wanted}"), says, is_it)
        .unwrap_or_else(|e| panic!("{e}\n{}", site.log(node)));
    let file = || site.subnet_env(node);
    let line = format!("\nFLANNEL_MTU={mtu}\n");
    wait_for(PATIENCE, "its MTU", file, |text| text.contains(&line)).unwrap();
}

/// Waits until a node routes to another one's subnet so, and has these of flannel's devices.
fn await_kernel(site: &Site, node: u8, bridge: &str, way: &str, devices: &[&str]) {
    let name = format!("n{node}");
    let route = format!("{}/24 {way}", subnet(bridge));
    let leads = |lines: &[String]| lines.iter().any(|line| line.contains(&route));
    site.await_lines(&name, &["route"], &route, leads);
    let what = format!("{name} has {devices:?}");
    let has_those = |lines: &[String]| {
        let names = lines.iter().filter_map(|line| line.split(": ").nth(1));
        let names = names.map(|name| name.split('@').next().unwrap_or_default());
        let mut names: Vec<&str> = names.filter(|name| name.starts_with("flannel")).collect();
        names.sort_unstable();
        names == devices
    };
    site.await_lines(&name, &["link"], &what, has_those);
}

fn flows(site: &Site, pods: &[String]) -> Vec<Probe> {
    let pairs = [(1u8, 2u8), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)];
    let start = |(from, to): (u8, u8)| probe(site, from, to, &pods[usize::from(to) - 1]);
    pairs.into_iter().map(start).collect()
}

/// The same change at all of the three; what a pod of each sends to the others arrives.
fn change(site: &Site, flows: &[Probe], bridges: &[String], backend: &str, end: (&str, u32)) {
    await_datagrams(&flows[0], u64::from(PROBE_RATE) / 2);
    site.configure(&config(backend));
    for node in 1..=3 {
        await_lease(site, node, end.0, end.1);
    }
    assert_eq!(site.bridge_address(1), bridges[0], "the same subnet");
}

#[test]
fn the_backend_changes_under_traffic() {
    if !possible("changes::the_backend_changes_under_traffic", &[]) {
        return;
    }
    let mut site = Site::new(&[1, 2, 3, 4]);
    site.lease = LEASE;
    site.configure(&config(r#"{"Type":"vxlan"}"#));
    for node in 1..=3 {
        site.start_node(node, &[]);
    }
    let bridges: Vec<String> = (1..=3).map(|node| site.bridge_address(node)).collect();
    let pods: Vec<String> = (1..)
        .zip(&bridges)
        .map(|(node, bridge)| site.start_pod(node, bridge, 1450))
        .collect();
    for (from, to) in [(1u8, 2usize), (2, 3), (3, 1), (2, 1), (3, 2), (1, 3)] {
        site.await_ping(from, &pods[to - 1], 1450);
    }
    let flows = flows(&site, &pods);
    let direct = r#"{"Type":"vxlan","DirectRouting":true}"#;
    change(&site, &flows, &bridges, direct, ("vxlan", 1450));
    await_kernel(
        &site,
        1,
        &bridges[1],
        "via 10.200.0.2 dev eth0",
        &["flannel.1"],
    );
    let plain = r#"{"Type":"vxlan"}"#;
    change(&site, &flows, &bridges, plain, ("vxlan", 1450));
    let own = |bridge: &String| format!("via {} dev flannel.1", subnet(bridge));
    await_kernel(&site, 1, &bridges[1], &own(&bridges[1]), &["flannel.1"]);
    to_host_gw_through_a_kill(&mut site, &flows, &bridges);
    let joined = to_udp_with_a_newcomer(&mut site, &flows, &bridges);
    change(&site, &flows, &bridges, OWN_VNI, ("vxlan", 1450));
    let lease = site.lease(1).unwrap().1.to_string();
    assert!(
        lease.contains(r#""VNI":5"#) && lease.contains(r#""Port":4789"#),
        "{lease}"
    );
    let way = format!("via {} dev flannel.5", subnet(&bridges[1]));
    await_kernel(&site, 1, &bridges[1], &way, &["flannel.5"]);
    change(&site, &flows, &bridges, plain, ("vxlan", 1450));
    await_kernel(&site, 1, &bridges[1], &own(&bridges[1]), &["flannel.1"]);
    await_kernel(&site, 4, &bridges[1], &own(&bridges[1]), &["flannel.1"]);
    site.await_ping(4, &pods[0], 1450);
    site.await_ping(1, &joined, 1450);
    for flow in flows {
        assert_none_lost(
            "vxlan, DirectRouting, host-gw, udp, another VNI, vxlan",
            flow,
        );
    }
}

/// Node 2 is away while the others change; it finds them changed.
fn to_host_gw_through_a_kill(site: &mut Site, flows: &[Probe], bridges: &[String]) {
    site.end("n2", "-KILL");
    site.configure(&config(r#"{"Type":"host-gw"}"#));
    for node in [1, 3] {
        await_lease(site, node, "host-gw", 1500);
    }
    // To each as it can be reached, for longer than the settling takes.
    await_datagrams(&flows[0], 5 * u64::from(PROBE_RATE));
    await_kernel(
        site,
        1,
        &bridges[2],
        "via 10.200.0.3 dev eth0",
        &["flannel.1"],
    );
    let own = format!("via {} dev flannel.1", subnet(&bridges[1]));
    await_kernel(site, 1, &bridges[1], &own, &["flannel.1"]);
    site.start_again(2, &[]);
    await_lease(site, 2, "host-gw", 1500);
    for (node, other) in [(1, 2u8), (2, 3), (3, 1)] {
        let way = format!("via 10.200.0.{other} dev eth0");
        await_kernel(site, node, &bridges[usize::from(other) - 1], &way, &[]);
    }
}

/// Node 4 comes while the others change. Answers with its pod.
fn to_udp_with_a_newcomer(site: &mut Site, flows: &[Probe], bridges: &[String]) -> String {
    site.configure(&config(r#"{"Type":"udp"}"#));
    site.start_node(4, &[]);
    for node in 1..=4 {
        await_lease(site, node, "", 1472);
    }
    await_datagrams(&flows[0], 5 * u64::from(PROBE_RATE));
    for node in ["n1", "n2", "n3", "n4"] {
        let network = |lines: &[String]| {
            let to_others: Vec<&String> = lines
                .iter()
                .filter(|l| l.contains("10.5.") && !l.contains("docker0"))
                .collect();
            matches!(to_others[..], [line] if line.contains("10.5.0.0/16 dev flannel0 proto 82"))
        };
        site.await_lines(node, &["route"], "one route for all", network);
    }
    let bridge = site.bridge_address(4);
    assert!(!bridges.contains(&bridge));
    let pod = site.start_pod(4, &bridge, 1450);
    site.await_ping(1, &pod, 1450);
    pod
}

/// One node is away while the others change, and one comes meanwhile.
#[test]
fn the_port_alone_changes_under_traffic() {
    if !possible("changes::the_port_alone_changes_under_traffic", &[]) {
        return;
    }
    let mut site = Site::new(&[1, 2, 3, 4]);
    site.lease = LEASE;
    let plain = r#"{"Type":"vxlan"}"#;
    site.configure(&config(plain));
    for node in 1..=3 {
        site.start_node(node, &[]);
    }
    let mut bridges: Vec<String> = (1..=3).map(|node| site.bridge_address(node)).collect();
    let mut pods: Vec<String> = (1..)
        .zip(&bridges)
        .map(|(node, bridge)| site.start_pod(node, bridge, 1450))
        .collect();
    for (from, to) in [(1u8, 2usize), (2, 3), (3, 1), (2, 1), (3, 2), (1, 3)] {
        site.await_ping(from, &pods[to - 1], 1450);
    }
    let flows = flows(&site, &pods);
    await_datagrams(&flows[0], u64::from(PROBE_RATE) / 2);
    site.end("n2", "-KILL");
    site.configure(&config(r#"{"Type":"vxlan","Port":4789}"#));
    let port = |site: &Site, node: u8| site.lease(node).unwrap().1["BackendData"]["Port"].clone();
    for node in [1, 3] {
        let is_new = |port: &serde_json::Value| *port == 4789;
        wait_for(PATIENCE, "the port", || port(&site, node), is_new).unwrap();
    }
    let through = |bridge: &String, device: &str| format!("via {} dev {device} ", subnet(bridge));
    let both = ["flannel.1", "flannel.1b"];
    await_kernel(
        &site,
        1,
        &bridges[2],
        &through(&bridges[2], "flannel.1b"),
        &both,
    );
    await_kernel(
        &site,
        1,
        &bridges[1],
        &through(&bridges[1], "flannel.1"),
        &both,
    );
    // Whoever starts now takes a lease without a port for one of the new one, as flanneld's are:
    // the node that is away is reached when it has followed.
    site.start_node(4, &[]);
    bridges.push(site.bridge_address(4));
    pods.push(site.start_pod(4, &bridges[3], 1450));
    site.await_ping(4, &pods[0], 1450);
    // For longer than the settling takes.
    await_datagrams(&flows[0], 5 * u64::from(PROBE_RATE));
    site.start_again(2, &[]);
    for node in 1..=3 {
        let way = through(&bridges[3], "flannel.1b");
        await_kernel(&site, node, &bridges[3], &way, &["flannel.1b"]);
    }
    site.await_ping(4, &pods[1], 1450);
    let device = site.show("n1", &["link", "show", "flannel.1b"]).join(" ");
    assert!(device.contains("dstport 4789"), "{device}");
    // Back, and to the usual name.
    site.configure(&config(plain));
    for node in 1..=3 {
        let way = through(&bridges[3], "flannel.1");
        await_kernel(&site, node, &bridges[3], &way, &["flannel.1"]);
    }
    for (from, to) in [(4u8, 0usize), (1, 3)] {
        site.await_ping(from, &pods[to], 1450);
    }
    for flow in flows {
        assert_none_lost("another port, and back", flow);
    }
}

#[test]
fn both_families_change_under_traffic() {
    if !possible("changes::both_families_change_under_traffic", &[]) {
        return;
    }
    let mut site = Site::new(&[1, 2]);
    site.lease = LEASE;
    site.configure(&dual(r#"{"Type":"host-gw"}"#));
    for node in [1, 2] {
        let there = format!("n{node}");
        site.ip(
            &there,
            &[format!("addr add fd00:200::{node}/64 dev eth0 nodad")],
        );
        let key = "net/ipv6/conf/all/forwarding";
        netns_sysctl(&site.netns(&there), key, "1", false).unwrap();
        site.start_node(node, &["--iface=eth0"]);
    }
    let pods = [1u8, 2].map(|node| {
        let bridge = site.bridge_address(node);
        let pod = site.start_pod(node, &bridge, 1400);
        [pod, start_ipv6(&site, node)]
    });
    for (from, to) in [(1u8, 1usize), (2, 0)] {
        site.await_ping(from, &pods[to][0], 1400);
        // A header of IPv6 has 20 octets more.
        site.await_ping(from, &pods[to][1], 1380);
    }
    let start = |from: u8, to: u8| {
        let pods = &pods[usize::from(to) - 1];
        pods.each_ref().map(|pod| probe(&site, from, to, pod))
    };
    let flows: Vec<Probe> = start(1, 2).into_iter().chain(start(2, 1)).collect();
    let backends = [
        (r#"{"Type":"vxlan"}"#, "vxlan", 1450),
        (r#"{"Type":"vxlan","DirectRouting":true}"#, "vxlan", 1450),
        (r#"{"Type":"vxlan"}"#, "vxlan", 1450),
        (r#"{"Type":"udp"}"#, "", 1452),
        (r#"{"Type":"vxlan","MTU":1480}"#, "vxlan", 1430),
        (r#"{"Type":"host-gw"}"#, "host-gw", 1500),
    ];
    for (backend, name, mtu) in backends {
        site.configure(&dual(backend));
        for node in [1u8, 2] {
            let file = || site.subnet_env(node);
            let line = format!("\nFLANNEL_MTU={mtu}\n");
            wait_for(PATIENCE, backend, file, |text| text.contains(&line)).unwrap();
            let lease = || site.lease(node).unwrap().1;
            let is_it =
                |lease: &serde_json::Value| lease["BackendType"].as_str().unwrap_or("") == name;
            wait_for(PATIENCE, backend, lease, is_it).unwrap();
        }
        // Longer than the settling takes.
        await_datagrams(&flows[0], 5 * u64::from(PROBE_RATE));
        let routes = || site.call("n1", "ip", &["-6", "route"]);
        let by_device = name == "vxlan" && !backend.contains("Direct");
        let is_it = |routes: &String| routes.contains("dev flannel-v6.1 proto 82") == by_device;
        wait_for(PATIENCE, backend, routes, is_it).unwrap();
    }
    for flow in flows {
        assert_none_lost("both families through all backends", flow);
    }
}

#[test]
fn a_wrong_configuration_is_named_and_changes_nothing() {
    let scenario = "changes::a_wrong_configuration_is_named_and_changes_nothing";
    if !possible(scenario, &[]) {
        return;
    }
    let mut site = Site::new(&[1, 2]);
    site.configure(&config(r#"{"Type":"vxlan"}"#));
    site.start_node(1, &["--healthz-port=8080"]);
    site.start_node(2, &[]);
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    let pods = [1u8, 2].map(|node| site.start_pod(node, &bridges[usize::from(node) - 1], 1450));
    site.await_ping(1, &pods[1], 1450);
    let state = |site: &Site| {
        (
            site.show("n1", &["route"]),
            site.fdb("n1"),
            site.subnet_env(1),
        )
    };
    let before = state(&site);
    let flow = probe(&site, 1, 2, &pods[1]);
    let other_network = config(r#"{"Type":"host-gw"}"#).replace("10.5.", "10.9.");
    for (wrong, says) in [
        ("{", "it is no JSON object"),
        (
            r#"{"Network":"10.5.0.0/16","Backend":{"Type":"magic"}}"#,
            "unknown backend type",
        ),
        (
            other_network.as_str(),
            "is not among the subnets of the new configuration",
        ),
    ] {
        site.configure(wrong);
        site.await_http(1, "/metrics", r#"caracal_problems{code="flannel.config""#);
        let told = |log: &String| log.contains(says);
        wait_for(PATIENCE, says, || site.log(1), told).unwrap();
        assert_eq!(state(&site), before, "{wrong}");
    }
    site.etcdctl(&["del", &format!("{PREFIX}/config")]);
    let told = |log: &String| log.contains("there is none; write one");
    wait_for(PATIENCE, "the reason", || site.log(1), told).unwrap();
    assert_eq!(state(&site), before);
    // A network that has room for what was given out: everything that names it follows.
    let wider = config(r#"{"Type":"vxlan","MTU":1400}"#).replace("10.5.0.0/16", "10.4.0.0/15");
    site.configure(&wider);
    let file = || site.subnet_env(1);
    let is_it = |text: &String| {
        text.contains("FLANNEL_NETWORK=10.4.0.0/15\n") && text.contains("FLANNEL_MTU=1350\n")
    };
    wait_for(PATIENCE, "the new network", file, is_it).unwrap();
    let gone = || site.http(1, "/metrics").contains("flannel.config");
    wait_for(PATIENCE, "no fault", gone, |there| !there).unwrap();
    assert_eq!(site.bridge_address(1), bridges[0]);
    assert_none_lost("through wrong configurations", flow);
}

#[test]
fn the_interface_has_another_address() {
    if !possible("changes::the_interface_has_another_address", &[]) {
        return;
    }
    for (backend, says) in [
        (r#"{"Type":"vxlan"}"#, "vxlan"),
        (r#"{"Type":"host-gw"}"#, "host-gw"),
        (r#"{"Type":"udp"}"#, ""),
    ] {
        let mut site = Site::new(&[1, 2]);
        site.lease = LEASE;
        site.configure(&config(backend));
        for node in [1, 2] {
            site.start_node(node, &["--iface=eth0"]);
        }
        let bridges = [1, 2].map(|node| site.bridge_address(node));
        let pods = [1u8, 2].map(|node| site.start_pod(node, &bridges[usize::from(node) - 1], 1400));
        site.await_ping(1, &pods[1], 1400);
        let (key, _) = site.lease(1).unwrap();
        site.ip(
            "n1",
            &[
                "addr del 10.200.0.1/24 dev eth0".to_owned(),
                "addr add 10.200.0.51/24 dev eth0".to_owned(),
                "route replace default via 10.200.0.100".to_owned(),
            ],
        );
        let moved = || site.lease(51);
        let is_it = |lease: &Option<(String, serde_json::Value)>| {
            lease.as_ref().is_some_and(|(there, value)| {
                *there == key && value["BackendType"].as_str().unwrap_or("") == says
            })
        };
        wait_for(PATIENCE, "the lease has the new address", moved, is_it)
            .unwrap_or_else(|e| panic!("{e}\n{}", site.log(1)));
        assert!(site.lease(1).is_none(), "one lease alone");
        site.await_ping(1, &pods[1], 1400);
        site.await_ping(2, &pods[0], 1400);
        if says == "vxlan" {
            let device = site.show("n1", &["link", "show", "flannel.1"]).join(" ");
            assert!(device.contains("local 10.200.0.51 dev eth0"), "{device}");
        }
        assert_eq!(site.bridge_address(1), bridges[0]);
    }
}

/// The file of a ConfigMap, and the annotations of the Node.
#[test]
fn the_file_of_kubernetes_is_followed() {
    let scenario = "changes::the_file_of_kubernetes_is_followed";
    if !possible(scenario, &["kubectl"]) {
        return;
    }
    let mut site = Site::new(&[1]);
    site.start_open_api_server();
    site.start_api_server();
    site.start_kubernetes_node(1, &[("NODE_NAME", "n1")]);
    let backend = |wanted: &str| {
        let now = || said(&site.kubernetes_node("n1"), "backend-type");
        wait_for(PATIENCE, wanted, now, |now| now == wanted)
            .unwrap_or_else(|e| panic!("{e}\n{}", site.log(1)));
    };
    backend("vxlan");
    let write = |text: &str| std::fs::write(site.folder().join("net-conf.json"), text).unwrap();
    write("{");
    let told = |log: &String| log.contains("it is no JSON object");
    wait_for(PATIENCE, "the reason", || site.log(1), told).unwrap();
    backend("vxlan");
    write(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#);
    backend("host-gw");
    let file = || site.subnet_env(1);
    wait_for(PATIENCE, "its MTU", file, |text| {
        text.contains("FLANNEL_MTU=1500\n")
    })
    .unwrap();
    assert_eq!(site.bridge_address(1), "10.5.1.1/24");
}
