//! Nodes of a flannel network become nodes of a Calico network, one after the other, and go back,
//! under traffic. One of the three is foreign, and stays.

use caracal_lab::{Probe, wait_for};
use caracal_tests::{PROBE_RATE, await_datagrams, possible};
use serde_json::{Value, json};

use super::migrant::{FLANNELS, Migrant, Network, annotate_foreign};
use super::runtime::{Container, NEEDED};
use super::site::{PATIENCE, Site};
use super::{assert_none_lost, probe, subnet};

const FOREIGN: &str = "10.5.72.0/24";

/// Waits until a node's route to a subnet, the one that counts, leads so.
fn await_way(site: &Site, node: &Migrant, subnet: &str, way: &str) {
    let get = subnet.replace(".0/24", ".250");
    let what = format!("{} to {subnet} {way}", node.name());
    let leads = |lines: &[String]| lines.iter().any(|line| line.contains(way));
    let get = ["route", "get", "fibmatch", &get];
    site.await_lines(&node.name(), &get, &what, leads);
}

/// Flannel's routes of a node have this metric, and no other.
fn await_metric(site: &Site, node: &Migrant, metric: Option<u32>) {
    let fits = |line: &String| match metric {
        Some(metric) => line.contains(&format!("metric {metric}")),
        None => !line.contains("metric"),
    };
    let all = |lines: &[String]| !lines.is_empty() && lines.iter().all(fits);
    let what = format!(
        "{}: flannel's routes have the metric {metric:?}",
        node.name()
    );
    site.await_lines(&node.name(), &["route", "show", "proto", "82"], &what, all);
}

#[test]
fn nodes_go_over_and_back_without_a_lost_packet() {
    let scenario = "migrate::nodes_go_over_and_back_without_a_lost_packet";
    if possible(scenario, &[&NEEDED[..], &["nft", "bridge"]].concat()) {
        go_over_and_back(Network::Vxlan);
    }
}

#[test]
fn nodes_of_host_gw_go_over_and_back_without_a_lost_packet() {
    let scenario = "migrate::nodes_of_host_gw_go_over_and_back_without_a_lost_packet";
    if possible(scenario, &[&NEEDED[..], &["nft"]].concat()) {
        go_over_and_back(Network::HostGw);
    }
}

#[test]
fn nodes_of_kubernetes_go_over_and_back_without_a_lost_packet() {
    let scenario = "migrate::nodes_of_kubernetes_go_over_and_back_without_a_lost_packet";
    if possible(
        scenario,
        &[&NEEDED[..], &["nft", "bridge", "kubectl"]].concat(),
    ) {
        go_over_and_back(Network::Kubernetes);
    }
}

fn go_over_and_back(network: Network) {
    // The namespaces of the last two pods are further containers of node 1.
    let mut site = network.start(&[1, 2, 3, 4, 5]);
    network.start_foreign(&site);
    let nodes = [1, 2].map(|number| {
        network.start_flannel(&mut site, number, None);
        Migrant::new(&site, network, number)
    });
    let bridges = [1, 2].map(|number| site.bridge_address(number));
    if network == Network::HostGw {
        routes_of_bgp_go_soon(&site, &nodes[0]);
    }
    for (number, bridge) in (1..).zip(&bridges) {
        network.reach(&site, number, bridge);
    }
    let mut old = [1, 2].map(|n| {
        nodes[n - 1]
            .flannels
            .container(&site, u8::try_from(n).unwrap())
    });
    let mut pods: Vec<String> = nodes
        .iter()
        .zip(&mut old)
        .map(|(node, container)| node.flannels.add(container).unwrap())
        .collect();
    let mut ended = nodes[0].flannels.container(&site, 4);
    ended.pod = Some("ended");
    let late = nodes[0].flannels.add(&mut ended).unwrap();
    pods.push(site.start_pod(3, "10.5.72.1/24", 1450));
    let pairs = [(1u8, 2u8), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)];
    for (from, to) in pairs {
        site.await_ping(from, &pods[usize::from(to) - 1], 1450);
    }
    shows_the_network(&site, network, &nodes[0], &bridges);
    let start = |(from, to): (u8, u8)| probe(&site, from, to, &pods[usize::from(to) - 1]);
    let flows: Vec<Probe> = pairs.into_iter().map(start).collect();
    await_datagrams(&flows[0], 500);

    goes_over(&mut site, &nodes[0], 2, &flows);
    let (young, its_flows) = a_new_pod(&site, &nodes[0], &pods);
    goes_over(&mut site, &nodes[1], 1, &flows);
    for (node, other) in [(0, 1), (1, 0)] {
        let other = subnet(&bridges[other]) + "/24";
        await_way(&site, &nodes[node], &other, network.new_way());
        await_way(&site, &nodes[node], FOREIGN, network.old_way());
    }
    // A container of before ends under our plugin, which frees its address.
    ended.result = None;
    nodes[0].ours.del(&ended).unwrap();
    let shown = nodes[0].caracal(&site, &["ipam", "show", "--ip", &late]);
    assert_eq!(shown.status.code(), Some(3), "{late} is free");
    await_datagrams(&flows[0], 2 * u64::from(PROBE_RATE));
    for flow in its_flows {
        assert_none_lost("to and from a pod of ours beside those on the bridge", flow);
    }

    goes_back(&mut site, &nodes[1], &nodes[..1], None);
    goes_back(&mut site, &nodes[0], &[], Some(&young));
    for (node, other) in [(0, 1), (1, 0)] {
        let other = subnet(&bridges[other]) + "/24";
        await_way(&site, &nodes[node], &other, network.old_way());
    }
    await_datagrams(&flows[0], u64::from(PROBE_RATE));
    for flow in flows {
        assert_none_lost("two nodes over and back, beside a foreign one", flow);
    }
    assert_eq!(
        nodes[0].flannels.held(),
        [pods[0].clone()],
        "what has ended is free"
    );
    let left = network.blocks(&site);
    assert_eq!(left.trim(), "", "no block is left");
    let mut next = nodes[0].flannels.container(&site, 5);
    let address = nodes[0].flannels.add(&mut next).unwrap();
    site.await_ping(5, &pods[0], 1450);
    assert_ne!(address, pods[0]);
}

/// What a node that has stopped announced is kept for as long as it may need to restart, and until
/// then a step back is not done.
fn routes_of_bgp_go_soon(site: &Site, node: &Migrant) {
    let file = site.folder().join("bgp.yaml");
    let text = "{apiVersion: projectcalico.org/v3, kind: BGPConfiguration, \
        metadata: {name: default}, spec: {nodeMeshMaxRestartTime: 3s}}";
    std::fs::write(&file, text).unwrap();
    let applied = node.caracal(site, &["apply", "-f", &file.display().to_string()]);
    assert!(applied.status.success(), "{}", applied.stderr);
}

#[test]
fn after_the_last_node_nothing_of_flannel_is_left() {
    let scenario = "migrate::after_the_last_node_nothing_of_flannel_is_left";
    if possible(scenario, &[&NEEDED[..], &["nft", "iptables-nft"]].concat()) {
        end_the_network(Network::Vxlan);
    }
}

#[test]
fn after_the_last_node_of_kubernetes_nothing_of_flannel_is_left() {
    let scenario = "migrate::after_the_last_node_of_kubernetes_nothing_of_flannel_is_left";
    if possible(
        scenario,
        &[&NEEDED[..], &["nft", "iptables-nft", "kubectl"]].concat(),
    ) {
        end_the_network(Network::Kubernetes);
    }
}

/// Two nodes, both of which have gone over; the second one is as Docker leaves it.
fn end_the_network(network: Network) {
    let mut site = network.start(&[1, 2]);
    site.call("n2", "iptables-nft", &["-P", "FORWARD", "DROP"]);
    let nodes = [1, 2].map(|number| {
        network.start_flannel(&mut site, number, None);
        Migrant::new(&site, network, number)
    });
    let bridges = [1, 2].map(|number| site.bridge_address(number));
    let mut containers = [1u8, 2].map(|n| {
        let mut container = nodes[usize::from(n) - 1].flannels.container(&site, n);
        container.pod = Some("ended");
        container
    });
    let add = |(node, container): (&Migrant, _)| node.flannels.add(container).unwrap();
    let pods: Vec<String> = nodes.iter().zip(&mut containers).map(add).collect();
    for (from, to) in [(1u8, 1usize), (2, 0)] {
        site.await_ping(from, &pods[to], 1450);
    }
    assert!(
        iptables(&site, "n2").contains("FLANNEL-FWD"),
        "where FORWARD drops"
    );
    let start = |(from, to): (u8, u8)| probe(&site, from, to, &pods[usize::from(to) - 1]);
    let flows: Vec<Probe> = [(1u8, 2u8), (2, 1)].into_iter().map(start).collect();
    nodes[0].refused(&site, "end", "is no block of n1");
    goes_over(&mut site, &nodes[0], 1, &flows);
    nodes[0].refused(&site, "end", "that node has to go over first");
    goes_over(&mut site, &nodes[1], 0, &flows);
    for (node, other) in [(0, 1), (1, 0)] {
        let other = subnet(&bridges[other]) + "/24";
        await_way(&site, &nodes[node], &other, network.new_way());
    }
    nodes[0].refused(&site, "end", "`caracal flannel` runs here");
    for node in &nodes {
        assert_eq!(site.end(&node.name(), "-TERM"), Some(0));
    }
    let first = nodes[0].done(&site, "end");
    assert!(
        first.contains("stays: cni0 with the containers on it"),
        "{first}"
    );
    assert!(first.contains("(10.200.0.2), until"), "{first}");
    assert_eq!(
        nodes[1].state(&site, "end"),
        "later",
        "also without a configuration"
    );
    let last = nodes[1].done(&site, "end");
    assert!(last.contains("--auto-allocate-blocks=true"), "{last}");
    for node in &nodes {
        let left = left_of_flannel(&site, node);
        let is_for_containers =
            |line: &&String| line.contains("FLANNEL-FWD") || line.contains("subnet.env");
        let others: Vec<&String> = left
            .iter()
            .filter(|line| !is_for_containers(line))
            .collect();
        assert!(others.is_empty() && !left.is_empty(), "{left:?}");
    }
    match network {
        Network::Kubernetes => {
            let nodes = ["n1", "n2"].map(|name| site.kubernetes_node(name).to_string());
            assert!(
                !nodes.concat().contains("flannel.alpha.coreos.com"),
                "{nodes:?}"
            );
        }
        Network::Vxlan | Network::HostGw => {
            let left = site.etcdctl(&["get", "--prefix", "--keys-only", super::site::PREFIX]);
            assert_eq!(left.trim(), "");
        }
    }
    await_datagrams(&flows[0], 2 * u64::from(PROBE_RATE));
    for flow in flows {
        assert_none_lost("while flannel ended on both nodes", flow);
    }
    // Out of the network with the node's address.
    site.await_ping(1, "10.200.0.100", 1450);
    site.await_ping(2, "10.200.0.100", 1450);
    for (node, container) in nodes.iter().zip(&mut containers) {
        container.result = None;
        node.ours.del(container).unwrap();
        site.ip(&node.name(), &["link del cni0".to_owned()]);
        node.done(&site, "end");
        assert_eq!(left_of_flannel(&site, node), [""; 0]);
        let again = node.done(&site, "end");
        assert!(again.contains("nothing is to be ended"), "{again}");
    }
}

fn iptables(site: &Site, node: &str) -> String {
    let rules = site.call(node, "iptables-nft", &["-S"]);
    rules + &site.call(node, "iptables-nft", &["-t", "nat", "-S"])
}

/// Traces of flannel's on a node.
fn left_of_flannel(site: &Site, node: &Migrant) -> Vec<String> {
    let name = node.name();
    let mut all = site.show(&name, &["link"]);
    all.extend(site.show(&name, &["route"]));
    for text in [
        iptables(site, &name),
        site.call(&name, "nft", &["list", "tables"]),
    ] {
        all.extend(text.lines().map(str::to_owned));
    }
    all.retain(|line| {
        let line = line.to_lowercase();
        line.contains("flannel") || line.contains("proto 82")
    });
    let file = site.subnet_file(node.number);
    all.extend(file.exists().then(|| file.display().to_string()));
    all
}

/// `caracal flannel show` before anything happens, and with something missing.
fn shows_the_network(site: &Site, network: Network, node: &Migrant, bridges: &[String; 2]) {
    let show = |code: i32| {
        let output = node.caracal(site, &["flannel", "show", "-o", "json"]);
        assert_eq!(output.status.code(), Some(code), "{}", output.stderr);
        serde_json::from_str::<Value>(&output.stdout).unwrap()
    };
    let shown = show(0);
    let (backend, device, mtu) = match network {
        Network::HostGw => ("host-gw", "dev eth0", 1500),
        Network::Vxlan | Network::Kubernetes => ("vxlan", "dev flannel.1", 1450),
    };
    assert_eq!(shown["problems"], json!([]));
    assert_eq!(
        shown["network"]["ipv4"],
        json!({"network": "10.5.0.0/16", "subnetLength": 24})
    );
    assert_eq!(shown["network"]["backend"]["Type"], backend);
    let leases = shown["leases"].as_array().unwrap();
    assert_eq!(leases.len(), 3);
    for lease in leases {
        let seconds = lease["expiresSeconds"].as_u64();
        let mine = lease["subnet"] == json!(subnet(&bridges[0]) + "/24");
        assert_eq!(lease["mine"], mine, "{lease}");
        match network {
            Network::Kubernetes => assert_eq!(seconds, None, "Nodes do not end: {lease}"),
            Network::Vxlan | Network::HostGw => {
                assert!((61..=86_400).contains(&seconds.unwrap()), "{lease}");
            }
        }
        let by_device = lease["route"].as_str().is_some_and(|r| r.contains(device));
        assert_eq!(by_device, !mine, "{lease}");
    }
    assert_eq!(shown["node"]["subnetEnv"]["mtu"], mtu);
    if network != Network::HostGw {
        assert_eq!(shown["node"]["devices"][0]["name"], "flannel.1");
    }
    let table = node.caracal(site, &["flannel", "show"]);
    for says in [
        "network 10.5.0.0/16 in /24",
        FOREIGN,
        "10.200.0.3",
        "this node",
    ] {
        assert!(table.stdout.contains(says), "{says}: {}", table.stdout);
    }
    // A lease that cannot be read is named.
    if network == Network::Kubernetes {
        site.annotate("n3", &[("backend-data", "{")]);
        let named = show(4)["problems"].to_string();
        assert!(
            named.contains("flannel.alpha.coreos.com/backend-data"),
            "{named}"
        );
        annotate_foreign(site);
        return;
    }
    site.put_lease("10.5.99.0-24", "{");
    let named = show(4)["problems"].to_string();
    assert!(named.contains("10.5.99.0-24"), "{named}");
    let key = format!("{}/subnets/10.5.99.0-24", super::site::PREFIX);
    site.etcdctl(&["del", &key]);
}

/// One node, by the steps of its plan.
fn goes_over(site: &mut Site, node: &Migrant, others: usize, flows: &[Probe]) {
    let waits = |site: &Site, step: &str| {
        assert_eq!(node.state(site, step), "before", "{step}");
    };
    waits(site, "routes");
    node.refused(site, "apply", "--route-metric");
    node.restart_flannel(site, Some(100));
    await_metric(site, node, Some(100));
    waits(site, "cni");
    node.refused(site, "apply", "caracal install-cni");
    node.configure_cni(site, &node.ours.list.to_string());
    assert_eq!(node.state(site, "block"), "apply");
    let waiting = node
        .steps(site)
        .into_iter()
        .filter(|(step, _)| step == "other");
    assert_eq!(waiting.count(), others);
    node.done(site, "apply");
    assert_eq!(node.state(site, "block"), "done");
    await_datagrams(&flows[0], 200);
    node.start_node(site);
    let again = node.done(site, "apply");
    assert!(again.contains("; 0 more addresses"), "{again}");
    await_datagrams(&flows[0], 500);
    let status = || node.caracal(site, &["status"]).status.code();
    wait_for(PATIENCE, "nothing wrong", status, |code| *code == Some(0)).unwrap();
}

/// A pod that our plugin attaches, among those on the bridge and on the other nodes.
fn a_new_pod(site: &Site, node: &Migrant, pods: &[String]) -> (Container, Vec<Probe>) {
    let mut container = node.ours.container(site, 5);
    container.pod = Some("young");
    let address = node.ours.add(&mut container).unwrap_or_else(|e| {
        panic!("{e}\n{}", site.log_of(&format!("c{}", node.number)));
    });
    let block = |address: &str| address.rsplit_once('.').unwrap().0.to_owned();
    assert_eq!(
        block(&address),
        block(&pods[0]),
        "out of the node's own subnet"
    );
    assert!(
        !node.flannels.held().contains(&address),
        "{address} is given out twice"
    );
    for (other, pod) in (1u8..).zip(pods) {
        site.await_ping(5, pod, 1450);
        site.await_ping(other, &address, 1450);
    }
    let both = |other: u8| {
        let there = &pods[usize::from(other) - 1];
        [
            probe(site, 5, other, there),
            probe(site, other, 5, &address),
        ]
    };
    let flows: Vec<Probe> = [1, 2, 3].into_iter().flat_map(both).collect();
    await_datagrams(&flows[0], 200);
    (container, flows)
}

/// The same node back, with a pod of ours on it or without one.
fn goes_back(site: &mut Site, node: &Migrant, others: &[Migrant], pod: Option<&Container>) {
    node.refused(site, "undo", "put flannel's CNI configuration back");
    if pod.is_some() {
        assert_eq!(node.flannels.held().len(), 2, "a note of the pod of ours");
    }
    node.configure_cni(site, FLANNELS);
    if let Some(container) = pod {
        node.refused(site, "undo", "pods that Caracal's plugin has attached");
        node.ours.del(container).unwrap();
    }
    node.refused(site, "undo", "`caracal node` runs");
    assert_eq!(site.end(&format!("c{}", node.number), "-TERM"), Some(0));
    let told = node.done(site, "undo");
    assert!(told.contains("caracal uninstall --node"), "{told}");
    let block = subnet(&site.bridge_address(node.number)) + "/24";
    for other in others {
        await_way(site, other, &block, node.network.old_way());
    }
    let removed = node.caracal(site, &["uninstall", "--node"]);
    assert!(removed.status.success(), "{}", removed.stderr);
    node.restart_flannel(site, None);
    await_metric(site, node, None);
    if node.network == Network::Kubernetes {
        // The command that it names.
        let (_, line) = told.split_once("kubectl ").expect(&told);
        let words = line.split(';').next().unwrap_or_default();
        site.kubectl(&words.split_whitespace().collect::<Vec<_>>());
        let node = site.kubernetes_node(&node.name()).to_string();
        assert!(!node.contains("projectcalico.org/"), "{node}");
    } else {
        let deleted = node.caracal(site, &["node", "delete", &node.name()]);
        assert!(deleted.status.success(), "{}", deleted.stderr);
    }
}
