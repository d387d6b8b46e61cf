//! Nodes of a flannel network in namespaces with a real etcd, pods behind bridges, and a foreign
//! node whose lease and kernel state are as flanneld writes them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "flannel/alone.rs"]
mod alone;
#[path = "flannel/changes.rs"]
mod changes;
#[path = "flannel/cluster.rs"]
mod cluster;
#[path = "flannel/contest.rs"]
mod contest;
#[path = "flannel/ipip.rs"]
mod ipip;
#[path = "flannel/lab.rs"]
mod lab;
#[path = "flannel/masquerade.rs"]
mod masquerade;
#[path = "flannel/migrant.rs"]
mod migrant;
#[path = "flannel/migrate.rs"]
mod migrate;
#[path = "flannel/pods.rs"]
mod pods;
#[path = "flannel/runtime.rs"]
mod runtime;
#[path = "flannel/site.rs"]
mod site;
#[path = "flannel/udp.rs"]
mod udp;

use std::time::Duration;

use caracal_lab::{Loss, Probe, Stream, wait_for};
use caracal_tests::{PROBE_RATE, await_datagrams, possible};
use site::{PATIENCE, PREFIX, Site};

/// Subnets from 10.5.72.0 on are the test's own; what a node takes lies below.
const VXLAN: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.60.0","Backend":{"Type":"vxlan"}}"#;
const HOST_GW: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.60.0","Backend":{"Type":"host-gw"}}"#;
/// The foreign node's device.
const FOREIGN_MAC: &str = "c6:d2:32:6f:8f:44";
/// Longer than the leases of the site's nodes.
const LONGER_THAN_TTL: u64 = 9;

fn probe(site: &Site, from: u8, to: u8, address: &str) -> Probe {
    let stream = Stream {
        from: site.netns(&format!("p{from}")),
        to: site.netns(&format!("p{to}")),
        address: address.parse().unwrap(),
        rate: PROBE_RATE,
        size: 200,
    };
    Probe::start(stream).unwrap()
}

fn assert_none_lost(what: &str, probe: Probe) {
    let loss: Loss = probe.stop();
    println!("{what}: {} sent, {} lost", loss.sent, loss.lost);
    assert_eq!((loss.lost, loss.refused), (0, 0), "{what}: {loss:?}");
}

/// Where a node's subnet begins.
fn subnet(bridge: &str) -> String {
    bridge.replace(".1/24", ".0")
}

/// What flanneld would have in the kernel of the foreign node 3 for another node.
fn reach(site: &Site, node: u8, bridge: &str, mac: &str) {
    let subnet = subnet(bridge);
    site.ip(
        "n3",
        &[
            format!("neigh replace {subnet} lladdr {mac} dev flannel.1 nud permanent"),
            format!("route replace {subnet}/24 via {subnet} dev flannel.1 onlink"),
        ],
    );
    let entry = format!("10.200.0.{node}");
    site.call(
        "n3",
        "bridge",
        &[
            "fdb",
            "replace",
            mac,
            "dev",
            "flannel.1",
            "dst",
            &entry,
            "self",
            "permanent",
        ],
    );
}

/// The foreign node, with the subnet 10.5.72.0/24.
fn start_foreign(site: &Site) {
    start_lease_of_foreign(site);
    start_device_of_foreign(site);
}

fn start_device_of_foreign(site: &Site) {
    let device =
        "link add flannel.1 type vxlan id 1 dev eth0 local 10.200.0.3 dstport 8472 nolearning";
    site.ip(
        "n3",
        &[
            device.to_owned(),
            format!("link set flannel.1 address {FOREIGN_MAC} mtu 1450 up"),
            "addr add 10.5.72.0/32 dev flannel.1".to_owned(),
        ],
    );
}

fn mac(site: &Site, node: u8) -> String {
    let (_, value) = site.lease(node).expect("a lease");
    value["BackendData"]["VtepMAC"].as_str().unwrap().to_owned()
}

#[test]
fn vxlan_beside_a_foreign_node_through_kills_and_outages() {
    if !possible(
        "vxlan_beside_a_foreign_node_through_kills_and_outages",
        &["bridge"],
    ) {
        return;
    }
    let mut site = Site::new(&[1, 2, 3]);
    site.start_node(1, &[]);
    wait_for(
        PATIENCE,
        "what is wrong",
        || site.log(1),
        |log| log.contains("there is none; write one"),
    )
    .unwrap();
    site.configure("{}");
    wait_for(
        PATIENCE,
        "the reason",
        || site.log(1),
        |log| log.contains("Network: it is missing"),
    )
    .unwrap();
    site.configure(VXLAN);
    start_foreign(&site);
    site.start_node(2, &[]);
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    let macs = [1, 2].map(|node| mac(&site, node));
    assert!(
        site.subnet_env(1)
            .starts_with("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.")
    );
    assert!(
        site.subnet_env(1)
            .ends_with("/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n")
    );
    for (node, bridge) in (1..).zip(&bridges) {
        reach(&site, node, bridge, &macs[usize::from(node) - 1]);
    }
    let pods = [
        site.start_pod(1, &bridges[0], 1450),
        site.start_pod(2, &bridges[1], 1450),
        site.start_pod(3, "10.5.72.1/24", 1450),
    ];
    looks_like_flannelds(&site, &bridges[0], &macs[0]);
    for (from, to) in [(1u8, 2u8), (2, 1), (1, 3), (3, 1), (2, 3)] {
        site.await_ping(from, &pods[usize::from(to) - 1], 1450);
    }
    dies_and_comes_back(&mut site, &pods, &bridges, &macs);
    etcd_is_away(&mut site, &pods, &bridges);
    the_foreign_node_leaves(&site, &bridges);
    let before = site.show("n1", &["route"]);
    assert_eq!(site.end("n1", "-TERM"), Some(0));
    assert_eq!(site.show("n1", &["route"]), before, "everything stays");
    assert!(site.subnet_file(1).is_file());
}

/// Kernel state and lease of node 1.
fn looks_like_flannelds(site: &Site, bridge: &str, mac: &str) {
    let (key, value) = site.lease(1).unwrap();
    let subnet = subnet(bridge);
    assert_eq!(key, format!("{PREFIX}/subnets/{subnet}-24"));
    assert_eq!(
        value.to_string(),
        format!(
            r#"{{"PublicIP":"10.200.0.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
        )
    );
    let device = site.show("n1", &["link", "show", "flannel.1"]).join(" ");
    for says in [
        "mtu 1450",
        mac,
        "vxlan id 1 local 10.200.0.1 dev eth0",
        "dstport 8472 nolearning",
    ] {
        assert!(device.contains(says), "{says}: {device}");
    }
    let address = format!("inet {subnet}/32");
    let has = |lines: &[String]| lines.iter().any(|l| l.contains(&address));
    site.await_lines("n1", &["addr", "show", "flannel.1"], "its address", has);
    let route = |lines: &[String]| {
        lines
            .iter()
            .any(|l| l.contains("10.5.72.0/24 via 10.5.72.0 dev flannel.1") && l.contains("onlink"))
    };
    site.await_lines("n1", &["route"], "the route to the foreign node", route);
    let neighbour = format!("10.5.72.0 dev flannel.1 lladdr {FOREIGN_MAC} PERMANENT");
    let has = |lines: &[String]| lines.iter().any(|l| l.trim() == neighbour);
    site.await_lines("n1", &["neigh"], "its neighbour", has);
    let entry = format!("{FOREIGN_MAC} dst 10.200.0.3 self permanent");
    let has = |entries: &Vec<String>| entries.contains(&entry);
    wait_for(PATIENCE, "its FDB entry", || site.fdb("n1"), has).unwrap();
}

/// Node 1 is killed, then loses its device as by a reboot, and then its file as well.
fn dies_and_comes_back(
    site: &mut Site,
    pods: &[String; 3],
    bridges: &[String; 2],
    macs: &[String; 2],
) {
    let others = [probe(site, 2, 3, &pods[2]), probe(site, 3, 2, &pods[1])];
    let through = probe(site, 2, 1, &pods[0]);
    site.end("n1", "-KILL");
    await_datagrams(&through, 500);
    site.start_again(1, &[]);
    wait_for(
        PATIENCE,
        "its lease",
        || site.log(1).matches("lease: own lease").count(),
        |n| *n >= 1,
    )
    .unwrap();
    await_datagrams(&through, 500);
    assert_none_lost("to the node that was killed and started", through);
    for file_too in [false, true] {
        site.end("n1", "-KILL");
        site.ip("n1", &["link del flannel.1".to_owned()]);
        match file_too {
            true => site.start_node(1, &[]),
            false => site.start_again(1, &[]),
        }
        site.await_ping(2, &pods[0], 1450);
        site.await_ping(1, &pods[2], 1450);
        assert_eq!(site.bridge_address(1), bridges[0], "the same subnet");
        assert_eq!(mac(site, 1), macs[0], "the same MAC address");
    }
    // Somebody deletes what belongs there.
    site.ip(
        "n1",
        &[
            "route del 10.5.72.0/24".to_owned(),
            "neigh del 10.5.72.0 dev flannel.1".to_owned(),
        ],
    );
    site.await_ping(1, &pods[2], 1450);
    for probe in others {
        assert_none_lost("between the other two", probe);
    }
}

/// For longer than all leases last; then with the same data, and then with none of the leases.
fn etcd_is_away(site: &mut Site, pods: &[String; 3], bridges: &[String; 2]) {
    let flows = [
        probe(site, 1, 2, &pods[1]),
        probe(site, 2, 1, &pods[0]),
        probe(site, 1, 3, &pods[2]),
    ];
    let state =
        |site: &Site| ["n1", "n2"].map(|node| (site.show(node, &["route"]), site.fdb(node)));
    let before = state(site);
    site.end("etcd", "-KILL");
    await_datagrams(&flows[0], LONGER_THAN_TTL * u64::from(PROBE_RATE));
    assert_eq!(state(site), before, "nothing goes");
    site.start_etcd();
    site.etcdctl(&["del", "--prefix", &format!("{PREFIX}/subnets/")]);
    let back = || [1, 2].map(|node| site.lease(node).map(|(key, _)| key));
    let wanted =
        [0, 1].map(|n: usize| Some(format!("{PREFIX}/subnets/{}-24", subnet(&bridges[n]))));
    wait_for(PATIENCE, "the same subnets again", back, |seen| {
        *seen == wanted
    })
    .unwrap();
    start_lease_of_foreign(site);
    await_datagrams(&flows[0], 6 * u64::from(PROBE_RATE));
    for flow in flows {
        assert_none_lost("while etcd was away and had forgotten all leases", flow);
    }
    assert_eq!(state(site), before);
}

fn start_lease_of_foreign(site: &Site) {
    site.put_lease(
        "10.5.72.0-24",
        &format!(r#"{{"PublicIP":"10.200.0.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{FOREIGN_MAC}"}}}}"#),
    );
}

fn the_foreign_node_leaves(site: &Site, bridges: &[String; 2]) {
    // One value that cannot be read harms nobody.
    site.put_lease("10.5.99.0-24", "{");
    site.etcdctl(&["del", &format!("{PREFIX}/subnets/10.5.72.0-24")]);
    for node in ["n1", "n2"] {
        let gone = |lines: &[String]| !lines.iter().any(|l| l.contains("10.5.72.0"));
        site.await_lines(node, &["route"], "no route to it", gone);
        site.await_lines(node, &["neigh"], "no neighbour", gone);
        let gone = |entries: &Vec<String>| !entries.iter().any(|e| e.contains(FOREIGN_MAC));
        wait_for(PATIENCE, "no FDB entry", || site.fdb(node), gone).unwrap();
    }
    let other = subnet(&bridges[1]);
    let routes = site.show("n1", &["route"]).join("\n");
    assert!(
        routes.contains(&format!("{other}/24 via {other} dev flannel.1")),
        "{routes}"
    );
}

#[test]
fn host_gw_takes_over_what_flanneld_left() {
    if !possible("host_gw_takes_over_what_flanneld_left", &["nft"]) {
        return;
    }
    let mut site = Site::new(&[1, 2]);
    site.configure(HOST_GW);
    let foreign = r#"{"PublicIP":"10.200.0.7","PublicIPv6":null,"BackendType":"host-gw"}"#;
    site.put_lease("10.5.72.0-24", foreign);
    site.ip(
        "n1",
        &[
            // flanneld's, to a node that is there; ours, to one that is gone; an administrator's.
            "route add 10.5.72.0/24 via 10.200.0.7 proto boot".to_owned(),
            "route add 10.5.73.0/24 via 10.200.0.8 proto 82".to_owned(),
            "route add 10.5.74.9/32 via 10.200.0.7 proto static".to_owned(),
        ],
    );
    site.start_node(1, &["--healthz-port=8080"]);
    site.start_node(2, &["-ip-masq"]);
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    assert!(
        site.subnet_env(1)
            .contains("FLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n")
    );
    assert!(
        site.subnet_env(2)
            .contains("FLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n")
    );
    site.await_http(1, "/healthz", "HTTP/1.1 200");
    site.await_http(1, "/readyz", "is this node's");
    site.await_http(1, "/metrics", "caracal_flannel_leases 3");
    let pods: Vec<String> = (1..)
        .zip(&bridges)
        .map(|(n, b)| site.start_pod(n, b, 1500))
        .collect();
    site.await_ping(1, &pods[1], 1500);
    site.await_ping(2, &pods[0], 1500);
    // Out of the network with the node's address, also when somebody has emptied the table; inside
    // of it with the pod's own, or the pings above would be answered to another one.
    site.await_ping(2, "10.200.0.100", 1500);
    site.call("n2", "nft", &["flush", "table", "ip", "flannel-ipv4"]);
    site.await_ping(2, "10.200.0.100", 1500);
    let routes = site.await_lines("n1", &["route"], "only what is wanted", |lines| {
        let has = |text: &str| lines.iter().any(|l| l.contains(text));
        has("10.5.72.0/24 via 10.200.0.7 dev eth0 proto 82")
            && !has("10.5.73.0/24")
            && has("10.5.74.9 via 10.200.0.7")
    });
    println!("{}", routes.join("\n"));
    // A lease that ends by itself.
    let flow = probe(&site, 1, 2, &pods[1]);
    site.end("n2", "-KILL");
    let gone = format!("{}/24 via", subnet(&bridges[1]));
    site.await_lines("n1", &["route"], "node 2's lease has ended", |lines| {
        !lines.iter().any(|l| l.contains(&gone))
    });
    drop(flow.stop());
    site.start_again(2, &[]);
    site.await_ping(1, &pods[1], 1500);
    assert_eq!(site.bridge_address(2), bridges[1], "the same subnet");
    assert!(Duration::from_secs(LONGER_THAN_TTL) < PATIENCE);
}

/// Node 1 is as Docker leaves it, node 2 as it was delivered; node 3 has somebody's own firewall.
#[test]
fn packets_pass_where_iptables_drops_what_is_forwarded() {
    let scenario = "packets_pass_where_iptables_drops_what_is_forwarded";
    if !possible(scenario, &["nft", "iptables-nft"]) {
        return;
    }
    let mut site = Site::new(&[1, 2, 3]);
    site.configure(HOST_GW);
    let iptables = |site: &Site, node: &str, arguments: &[&str]| {
        site.call(node, "iptables-nft", arguments);
    };
    iptables(&site, "n1", &["-P", "FORWARD", "DROP"]);
    iptables(
        &site,
        "n1",
        &["-A", "FORWARD", "-i", "eth9", "-j", "ACCEPT"],
    );
    let table = "add table inet site; add chain inet site through { type filter hook forward priority 0; policy drop; }";
    site.call("n3", "nft", &[table]);
    site.start_node(1, &["--iptables-resync=1"]);
    site.start_node(2, &["--iptables-resync=1"]);
    site.start_node(3, &["--iptables-forward-rules=true"]);
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    let pods: Vec<String> = (1..)
        .zip(&bridges)
        .map(|(n, b)| site.start_pod(n, b, 1500))
        .collect();
    site.await_ping(1, &pods[1], 1500);
    site.await_ping(2, &pods[0], 1500);
    let rules = site.call("n1", "iptables-nft", &["-S"]);
    for rule in [
        r#"-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD"#,
        r#"-A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT"#,
        r#"-A FLANNEL-FWD -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT"#,
        "-A FORWARD -i eth9 -j ACCEPT",
    ] {
        let times = rules.lines().filter(|line| *line == rule).count();
        assert_eq!(times, 1, "{rule}:\n{rules}");
    }
    // Somebody empties the chain, and takes the jump away.
    iptables(&site, "n1", &["-F", "FLANNEL-FWD"]);
    site.await_ping(1, &pods[1], 1500);
    iptables(&site, "n1", &["-F", "FORWARD"]);
    site.await_ping(1, &pods[1], 1500);
    // Where nothing drops, nothing is written, until somebody does.
    let rules = |site: &Site| site.call("n2", "iptables-nft", &["-S"]);
    assert!(!rules(&site).contains("FLANNEL"), "{}", rules(&site));
    iptables(&site, "n2", &["-P", "FORWARD", "DROP"]);
    site.await_ping(1, &pods[1], 1500);
    assert!(rules(&site).contains("FLANNEL-FWD"), "{}", rules(&site));
    let said = "chain through of nftables table inet site drops by policy what is forwarded; let 10.5.0.0/16 pass there";
    let told = |log: &String| log.contains(said);
    wait_for(PATIENCE, "the reason", || site.log(3), told).unwrap();
    // Not asked for.
    site.end("n2", "-TERM");
    iptables(&site, "n2", &["-F"]);
    iptables(&site, "n2", &["-X"]);
    site.start_node(
        2,
        &["--iptables-resync=1", "--iptables-forward-rules=false"],
    );
    site.subnet_env(2);
    assert!(!rules(&site).contains("FLANNEL"), "{}", rules(&site));
}

/// What flannel's annotations of a Node say, by their names.
fn said(node: &serde_json::Value, name: &str) -> String {
    let text = node["metadata"]["annotations"][format!("flannel.alpha.coreos.com/{name}")].as_str();
    text.unwrap_or_default().to_owned()
}

#[test]
fn subnets_of_kubernetes_nodes_beside_a_foreign_node() {
    let scenario = "subnets_of_kubernetes_nodes_beside_a_foreign_node";
    if !possible(scenario, &["bridge", "kubectl"]) {
        return;
    }
    let mut site = Site::new(&[1, 2, 3]);
    site.start_open_api_server();
    site.start_api_server();
    site.start_kubernetes_node(1, &[("NODE_NAME", "n1")]);
    let pod = [("POD_NAME", "flannel-x"), ("POD_NAMESPACE", "kube-flannel")];
    site.start_kubernetes_node(2, &pod);
    let reason = |log: &String| log.contains("\"n2\" pod cidr not assigned");
    wait_for(PATIENCE, "the reason", || site.log(2), reason).unwrap();
    let ranges = r#"{"spec":{"podCIDR":"10.5.2.0/24","podCIDRs":["10.5.2.0/24"]}}"#;
    site.kubectl(&["patch", "node", "n2", "-p", ranges]);
    site.annotate(
        "n3",
        &[
            (
                "backend-data",
                &format!(r#"{{"VNI":1,"VtepMAC":"{FOREIGN_MAC}"}}"#),
            ),
            ("backend-type", "vxlan"),
            ("kube-subnet-manager", "true"),
            ("public-ip", "10.200.0.3"),
        ],
    );
    start_device_of_foreign(&site);
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    assert_eq!(bridges, ["10.5.1.1/24", "10.5.2.1/24"]);
    let nodes = ["n1", "n2"].map(|name| site.kubernetes_node(name));
    for (node, bridge) in (1..).zip(&bridges) {
        let object = &nodes[usize::from(node) - 1];
        assert_eq!(said(object, "kube-subnet-manager"), "true");
        assert_eq!(said(object, "backend-type"), "vxlan");
        assert_eq!(said(object, "public-ip"), format!("10.200.0.{node}"));
        let data: serde_json::Value = serde_json::from_str(&said(object, "backend-data")).unwrap();
        reach(&site, node, bridge, data["VtepMAC"].as_str().unwrap());
        let condition = &object["status"]["conditions"][0];
        assert_eq!(
            (
                &condition["type"],
                &condition["status"],
                &condition["reason"]
            ),
            (
                &"NetworkUnavailable".into(),
                &"False".into(),
                &"FlannelIsUp".into()
            )
        );
    }
    let pods = [
        site.start_pod(1, &bridges[0], 1450),
        site.start_pod(2, &bridges[1], 1450),
        site.start_pod(3, "10.5.72.1/24", 1450),
    ];
    for (from, to) in [(1u8, 2u8), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)] {
        site.await_ping(from, &pods[usize::from(to) - 1], 1450);
    }
    the_api_server_is_away(&mut site, &pods);
}

/// Nothing goes; then a node is cordoned, which changes nothing, and deleted.
fn the_api_server_is_away(site: &mut Site, pods: &[String; 3]) {
    let flows = [probe(site, 1, 2, &pods[1]), probe(site, 3, 1, &pods[0])];
    let state =
        |site: &Site| ["n1", "n2"].map(|node| (site.show(node, &["route"]), site.fdb(node)));
    let before = state(site);
    site.end("api", "-KILL");
    let noticed = |log: &String| log.contains("leases are not followed");
    wait_for(PATIENCE, "it is noticed", || site.log(1), noticed).unwrap();
    await_datagrams(&flows[0], 3 * u64::from(PROBE_RATE));
    assert_eq!(state(site), before, "nothing goes");
    // Killed and started beside a server that is away, with the same subnet.
    site.end("n1", "-KILL");
    site.start_api_server();
    site.start_kubernetes_node(1, &[("NODE_NAME", "n1")]);
    let taken = |log: &String| log.contains("lease: own lease");
    wait_for(PATIENCE, "its lease", || site.log(1), taken).unwrap();
    site.kubectl(&["cordon", "n3"]);
    await_datagrams(&flows[0], 3 * u64::from(PROBE_RATE));
    assert_eq!(state(site), before);
    for flow in flows {
        assert_none_lost("while the API server was away", flow);
    }
    site.kubectl(&["delete", "node", "n3"]);
    for node in ["n1", "n2"] {
        let gone = |lines: &[String]| !lines.iter().any(|l| l.contains("10.5.72.0"));
        site.await_lines(node, &["route"], "no route to it", gone);
        site.await_lines(node, &["neigh"], "no neighbour", gone);
        let gone = |entries: &Vec<String>| !entries.iter().any(|e| e.contains(FOREIGN_MAC));
        wait_for(PATIENCE, "no FDB entry", || site.fdb(node), gone).unwrap();
    }
    site.await_ping(1, &pods[1], 1450);
}
