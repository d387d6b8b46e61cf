//! A network of IPv6 alone: no subnet, no route, no rule of IPv4. Only etcd is reached by IPv4.

use caracal_lab::{Probe, netns_sysctl, wait_for};
use caracal_tests::{PROBE_RATE, SECOND, await_datagrams, possible};
use serde_json::Value;

use super::site::{PATIENCE, PREFIX, Site};
use super::udp::start_ipv6;
use super::{assert_none_lost, probe};

fn config(backend: &str) -> String {
    format!(
        r#"{{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{{"Type":"{backend}"}}}}"#
    )
}

fn address(node: u8) -> String {
    format!("fd00:200::{node}")
}

/// The default route of IPv6 says which interface it is.
fn start_node(site: &mut Site, node: u8) {
    let there = format!("n{node}");
    let lines = [
        format!("addr add {}/64 dev eth0 nodad", address(node)),
        "route add default via fd00:200::100".to_owned(),
    ];
    site.ip(&there, &lines);
    netns_sysctl(
        &site.netns(&there),
        "net/ipv6/conf/all/forwarding",
        "1",
        false,
    )
    .unwrap();
    site.start_node(node, &["--ip-masq"]);
}

/// The address of a node's bridge in `subnet.env`, which has no line of IPv4.
fn bridge(site: &Site, node: u8) -> String {
    let text = site.subnet_env(node);
    assert!(
        text.starts_with("FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET="),
        "{text}"
    );
    let mut lines = text.lines();
    let subnet = lines.find_map(|line| line.strip_prefix("FLANNEL_IPV6_SUBNET="));
    subnet.unwrap().to_owned()
}

/// Key and value of the lease of a node.
fn lease(site: &Site, node: u8) -> (String, Value) {
    let all = site.etcdctl(&["get", "--prefix", &format!("{PREFIX}/subnets/")]);
    let lines: Vec<&str> = all.lines().collect();
    let found = lines.chunks(2).find_map(|pair| {
        let value: Value = serde_json::from_str(pair[1]).unwrap();
        let is_it = value["PublicIPv6"] == address(node).as_str();
        is_it.then(|| (pair[0].to_owned(), value))
    });
    found.unwrap_or_else(|| panic!("{all}"))
}

#[test]
fn a_network_without_ipv4_through_backends_and_a_kill() {
    let scenario = "alone::a_network_without_ipv4_through_backends_and_a_kill";
    if !possible(scenario, &["nft"]) {
        return;
    }
    let mut site = Site::new(&[1, 2]);
    (site.lease, site.settle) = (60 * SECOND, SECOND);
    site.configure(&config("ipip"));
    start_node(&mut site, 1);
    let named = |log: &String| log.contains("ipip carries IPv4 alone, and EnableIPv4 is false");
    wait_for(PATIENCE, "it is named", || site.log(1), named).unwrap();
    site.configure(&config("host-gw"));
    start_node(&mut site, 2);
    let pods = [1, 2].map(|node| {
        // A bridge; its address of IPv4 is nobody's business.
        site.start_pod(node, &format!("10.99.{node}.1/24"), 1400);
        start_ipv6(&site, node)
    });
    // A header of IPv6 has 20 octets more than `await_ping` counts with.
    site.await_ping(1, &pods[1], 1380);
    site.await_ping(2, &pods[0], 1380);
    let (key, value) = lease(&site, 1);
    assert!(key.contains("/subnets/0.0.0.0-0&fd00:5:0:"), "{key}");
    assert_eq!(value["PublicIP"], "0.0.0.0");
    let rules = site.call("n1", "nft", &["list", "tables"]);
    assert!(rules.contains("table ip6 flannel-ipv6"), "{rules}");
    assert!(!rules.contains("flannel-ipv4"), "{rules}");
    let flows = [(1u8, 2u8), (2, 1)].map(|(from, to)| {
        let pod = &pods[usize::from(to) - 1];
        probe(&site, from, to, pod)
    });
    for (backend, mtu, way) in [
        ("vxlan", 1430, " dev flannel-v6.1 proto 82"),
        ("udp", 1452, " dev flannel0 proto 82"),
        ("host-gw", 1500, " dev eth0 proto 82"),
    ] {
        follow(&site, &flows[0], backend, mtu, way);
    }
    let before = (bridge(&site, 1), lease(&site, 1).0);
    site.end("n1", "-KILL");
    await_datagrams(&flows[0], u64::from(PROBE_RATE) / 2);
    site.start_again(1, &["--ip-masq"]);
    let taken = |log: &String| log.contains("lease: own lease");
    wait_for(PATIENCE, "its lease", || site.log(1), taken).unwrap();
    await_datagrams(&flows[0], 2 * u64::from(PROBE_RATE));
    assert_eq!((bridge(&site, 1), lease(&site, 1).0), before);
    for flow in flows {
        assert_none_lost("IPv6 alone through three backends and a kill", flow);
    }
    let routes = site.show("n1", &["route", "show", "proto", "82"]);
    assert!(routes.is_empty(), "IPv4: {routes:?}");
}

/// All nodes follow the change, and what was before is gone.
fn follow(site: &Site, flow: &Probe, backend: &str, mtu: u32, way: &str) {
    site.configure(&config(backend));
    for node in [1, 2] {
        let line = format!("\nFLANNEL_MTU={mtu}\n");
        let file = || site.subnet_env(node);
        wait_for(PATIENCE, backend, file, |text| text.contains(&line)).unwrap();
        let routes = || site.call(&format!("n{node}"), "ip", &["-6", "route"]);
        let ours = |routes: &String| {
            let mut ours = routes.lines().filter(|line| line.contains("proto 82"));
            routes.contains(way) && ours.all(|line| format!("{line} ").contains(way))
        };
        wait_for(PATIENCE, backend, routes, ours).unwrap();
    }
    await_datagrams(flow, u64::from(PROBE_RATE));
}
