#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;

use serde_json::json;

use super::*;
use crate::topology::Topology;

fn example(name: &str) -> Topology {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/examples");
    Topology::load(&std::path::Path::new(folder).join(format!("{name}.yaml"))).unwrap()
}

fn layout(topology: &Topology) -> Layout {
    Layout::new(topology, &LabName::new("lab").unwrap())
}

fn ip_lines<'a>(steps: &'a [Step], of: &str) -> &'a [String] {
    let found = steps.iter().find_map(|s| match s {
        Step::Ip { netns, lines } if netns == of => Some(lines),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no ip lines for {of}"))
}

#[test]
fn labs_do_not_share_prefixes() {
    let prefix = |name| LabName::new(name).unwrap().prefix();
    assert_eq!(prefix("a-b"), "car-a_b-");
    assert!(!prefix("a-b").starts_with(&prefix("a")));
    for bad in ["", "a.b", "a_b", "A", "-a", "a-", &"a".repeat(41)] {
        assert!(LabName::new(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_node_of_cross_subnet_is_told_everything() {
    let topology = example("cross-subnet");
    let layout = layout(&topology);
    let node = layout.node("node3").unwrap();
    assert_eq!(node.netns, "car-lab-node3");
    assert_eq!(node.uplink.address, Ipv4Addr::new(10, 0, 2, 11));
    assert_eq!(node.etcd_endpoint, "http://10.0.2.252:2379");
    let env: Vec<_> = node.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        env,
        [
            "CALICO_IPV4POOL_BLOCK_SIZE=26",
            "CALICO_IPV4POOL_CIDR=10.244.0.0/16",
            "CALICO_IPV4POOL_IPIP=Never",
            "CALICO_IPV4POOL_NAT_OUTGOING=true",
            "CALICO_IPV4POOL_VXLAN=CrossSubnet",
            "CALICO_NETWORKING_BACKEND=bird",
            "DATASTORE_TYPE=etcdv3",
            "ETCD_ENDPOINTS=http://10.0.2.252:2379",
            "IP=10.0.2.11/24",
            "NODENAME=node3",
            "WAIT_FOR_DATASTORE=true",
        ]
    );
    let default = Prefix::v4(Ipv4Addr::UNSPECIFIED, 0);
    let next_hop = Ipv4Addr::new(10, 0, 2, 254).into();
    assert_eq!(
        node.routes,
        [StaticRoute {
            destination: default,
            next_hop
        }]
    );
}

#[test]
fn the_bring_up_of_cross_subnet_is_in_order() {
    let topology = example("cross-subnet");
    let layout = layout(&topology);
    let steps = steps(&topology, &layout);
    let Step::Namespaces(namespaces) = &steps[0] else {
        panic!("{:?}", steps[0])
    };
    assert_eq!(namespaces.len(), 2 + 1 + 4 + 4);
    assert!(namespaces.iter().all(|n| n.starts_with("car-lab-")));
    assert!(namespaces.contains(&"car-lab-node1-p1".to_owned()));
    let kinds: Vec<_> = steps
        .iter()
        .filter_map(|s| match s {
            Step::StartEtcd => Some("etcd".to_owned()),
            Step::Put(documents) => Some(format!("put {}", documents.len())),
            Step::StartNode(n) => Some(format!("start {n}")),
            Step::AwaitNode(n) => Some(format!("await {n}")),
            Step::AddPods(pods) => {
                let names: Vec<_> = pods.iter().map(|(n, p)| format!("{n}/{p}")).collect();
                Some(format!("pods {}", names.join(" ")))
            }
            Step::StartSpeaker(n) => Some(format!("speaker {n}")),
            Step::StartEtcdProxy(number) => Some(format!("proxy {number}")),
            Step::StartApiServer(_) => Some("api server".to_owned()),
            Step::PutNetConf(config) => Some(format!("put {config}")),
            Step::Namespaces(_) | Step::Sysctl { .. } | Step::Ip { .. } => None,
        })
        .collect();
    assert_eq!(
        kinds.join(", "),
        "etcd, put 4, start node1, start node2, start node3, start node4, await node1, await node2, \
         await node3, await node4, pods node1/p1 node2/p1 node3/p1 node4/p1"
    );
    assert_eq!(
        ip_lines(&steps, "car-lab-router"),
        [
            "link set dev lo up",
            "address add 10.0.1.254/24 dev eth0",
            "link set dev eth0 up",
            "address add 10.0.2.254/24 dev eth1",
            "link set dev eth1 up",
        ]
    );
    assert_eq!(
        ip_lines(&steps, "car-lab-node1"),
        [
            "link set dev lo up",
            "address add 10.0.1.11/24 dev eth0",
            "link set dev eth0 up",
            "route add default via 10.0.1.254",
        ]
    );
    let switch = ip_lines(&steps, "car-lab-switch");
    assert_eq!(
        switch.iter().filter(|l| l.contains("type bridge")).count(),
        2
    );
    assert_eq!(
        switch.iter().filter(|l| l.contains("type veth")).count(),
        2 + 2 + 4
    );
    let forwards = |netns: &str| {
        steps.iter().any(|s| {
            matches!(s, Step::Sysctl { netns: n, key, value: "1", .. }
                if n == netns && key == "net/ipv4/ip_forward")
        })
    };
    assert!(forwards("car-lab-router"));
    assert!(
        !forwards("car-lab-node1"),
        "forwarding on a node is the agent's work"
    );
}

#[test]
fn device_names_fit_the_kernel_and_are_unique() {
    let text = "name: t\nsegments: [{name: abcdefghijkl, cidr: 10.0.0.0/16}]\nnodes:\n";
    let nodes: String = (0..500)
        .map(|i| format!("  - {{name: n{i}, segment: abcdefghijkl}}\n"))
        .collect();
    let topology = Topology::parse(&format!("{text}{nodes}"), "t").unwrap();
    let layout = layout(&topology);
    let mut devices: Vec<_> = layout.nodes.iter().map(|n| n.uplink.port.clone()).collect();
    devices.extend(layout.bridges.iter().map(|b| b.device.clone()));
    assert!(devices.iter().all(|d| d.len() <= 15));
    let count = devices.len();
    devices.sort();
    devices.dedup();
    assert_eq!(devices.len(), count);
    let mut addresses: Vec<_> = layout.nodes.iter().map(|n| n.uplink.address).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 500);
}

#[test]
fn a_segment_without_a_router_gets_a_dead_default_route() {
    let topology = example("full-mesh");
    let layout = layout(&topology);
    let next_hop = Ipv4Addr::new(10, 0, 0, 254);
    for node in &layout.nodes {
        assert_eq!(node.routes.len(), 1);
        assert_eq!(node.routes[0].next_hop, next_hop);
        assert_ne!(node.uplink.address, next_hop);
    }
    assert_ne!(layout.etcd[0].address, next_hop);
}

#[test]
fn a_chain_of_routers_is_routed_end_to_end() {
    let topology = Topology::parse(
        "name: t
segments:
  - {name: a, cidr: 10.0.1.0/24}
  - {name: b, cidr: 10.0.2.0/24}
  - {name: c, cidr: 10.0.3.0/24}
routers:
  - {name: r1, legs: [{segment: a, address: 10.0.1.1}, {segment: b, address: 10.0.2.1}]}
  - {name: r2, legs: [{segment: b, address: 10.0.2.2}, {segment: c, address: 10.0.3.2}]}
nodes:
  - {name: n1, segment: a}
  - {name: n2, segment: b}
  - {name: n3, segment: c}
",
        "t",
    )
    .unwrap();
    let layout = layout(&topology);
    let text = |routes: &[StaticRoute]| {
        let lines: Vec<_> = routes
            .iter()
            .map(|r| format!("{} via {}", r.destination, r.next_hop))
            .collect();
        lines.join(", ")
    };
    let node = |n: &str| text(&layout.node(n).unwrap().routes);
    assert_eq!(node("n1"), "0.0.0.0/0 via 10.0.1.1");
    assert_eq!(
        node("n2"),
        "0.0.0.0/0 via 10.0.2.1, 10.0.3.0/24 via 10.0.2.2"
    );
    assert_eq!(node("n3"), "0.0.0.0/0 via 10.0.3.2");
    assert_eq!(text(&layout.routers[0].routes), "10.0.3.0/24 via 10.0.2.2");
    assert_eq!(text(&layout.routers[1].routes), "10.0.1.0/24 via 10.0.2.1");
}

#[test]
fn everybody_of_a_segment_can_be_told_to_everybody() {
    let topology = Topology::parse(
        "name: t
pool6: {cidr: 'fd00:10:244::/112'}
segments:
  - {name: a, cidr: 10.0.1.0/24, cidr6: 'fd00:1::/64'}
  - {name: b, cidr: 10.0.2.0/24, cidr6: 'fd00:2::/64'}
routers:
  - {name: r, legs: [{segment: a, address: 10.0.1.254, address6: 'fd00:1::fe'}, {segment: b, address: 10.0.2.254, address6: 'fd00:2::fe'}]}
nodes:
  - {name: n1, segment: a}
  - {name: n2, segment: a}
  - {name: n3, segment: b}
",
        "t",
    )
    .unwrap();
    let layout = layout(&topology);
    let lines = |netns: &str| {
        let of = |step: &Step| match step {
            Step::Ip { netns: n, lines } if n == netns => lines.clone(),
            _ => Vec::new(),
        };
        known_neighbours(&layout)
            .iter()
            .flat_map(of)
            .collect::<Vec<_>>()
    };
    let n1 = lines(&layout.nodes[0].netns);
    let own = n1[0]
        .strip_prefix("link set dev eth0 address ")
        .expect("its own address first");
    // etcd and the router have a leg here; n3 is behind the router.
    let told: Vec<_> = n1[1..].iter().filter(|l| !l.contains("fd00")).collect();
    assert_eq!(told.len(), 3, "{n1:#?}");
    for host in [
        layout.nodes[1].uplink.address,
        layout.etcd[0].address,
        "10.0.1.254".parse().unwrap(),
    ] {
        let start = format!("neighbor replace {host} lladdr 02:ca:");
        assert!(told.iter().any(|l| l.starts_with(&start)), "{n1:#?}");
    }
    let n2 = lines(&layout.nodes[1].netns);
    let back = format!(
        "neighbor replace {} lladdr {own} dev eth0 nud permanent",
        layout.nodes[0].uplink.address
    );
    assert!(n2.contains(&back), "{n2:#?}");
    let (v6, _) = layout.nodes[0].uplink.address6.unwrap();
    assert!(n2.contains(&format!(
        "neighbor replace {v6} lladdr {own} dev eth0 nud permanent"
    )));
    // Two legs: four neighbours with two addresses, and n3 and etcd in the other segment.
    assert_eq!(lines(&layout.routers[0].netns).len(), 2 + (3 + 2) * 2);
}

#[test]
fn reflectors_and_foreign_members_get_node_documents() {
    let topology = example("rr-pair");
    let documents = resources::documents(&topology, &layout(&topology));
    let keys: Vec<_> = documents.iter().map(|d| d.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "/calico/resources/v3/projectcalico.org/bgpconfigurations/default",
            "/calico/resources/v3/projectcalico.org/bgppeers/peer-with-route-reflectors",
            "/calico/resources/v3/projectcalico.org/nodes/rr1",
            "/calico/resources/v3/projectcalico.org/nodes/rr2",
        ]
    );
    assert_eq!(documents[0].value["spec"]["nodeToNodeMeshEnabled"], false);
    assert_eq!(
        documents[2].value["spec"]["bgp"]["routeReflectorClusterID"],
        "244.0.0.1"
    );
    assert_eq!(
        documents[2].value["spec"]["bgp"]["ipv4Address"],
        "10.0.0.1/24"
    );
    assert_eq!(
        documents[2].value["metadata"]["labels"]["route-reflector"],
        "true"
    );

    let topology = example("mixed-bird");
    let layout = layout(&topology);
    let documents = resources::documents(&topology, &layout);
    assert_eq!(documents.len(), 1);
    assert_eq!(documents[0].value["spec"]["bgp"]["asNumber"], 64512);
    let steps = steps(&topology, &layout);
    assert_eq!(steps.last(), Some(&Step::StartSpeaker("bird1".to_owned())));
}

#[test]
fn pools_of_the_file_replace_the_default_pool() {
    let text = "name: t\nsegments: [{name: a, cidr: 10.0.0.0/24}]\nnodes: [{name: n, segment: a, env: {AS: '7', X: y}}]\n";
    let pool = "resources: [{kind: IPPool, metadata: {name: p}, spec: {cidr: 10.9.0.0/16}}]\n";
    let env = |text: &str| {
        let topology = Topology::parse(text, "t").unwrap();
        layout(&topology).nodes[0].env.clone()
    };
    assert_eq!(env(text).get("NO_DEFAULT_POOLS"), None);
    assert_eq!(env(text)["AS"], "7");
    assert_eq!(env(&format!("{text}{pool}"))["NO_DEFAULT_POOLS"], "true");
}

/// One address of each family for everything that stands in a segment, a default route for each,
/// and the environment that turns both on.
#[test]
fn a_dual_stack_cluster_has_everything_twice() {
    let topology = example("dual-stack");
    let layout = layout(&topology);
    let node = layout.node("node3").unwrap();
    let env = |name: &str| node.env.get(name).map(String::as_str);
    assert_eq!(env("IP"), Some("10.0.2.11/24"));
    assert_eq!(env("IP6"), Some("fd00:10:2::11/64"));
    assert_eq!(env("CALICO_IPV6POOL_CIDR"), Some("fd00:10:244::/64"));
    assert_eq!(env("CALICO_IPV6POOL_BLOCK_SIZE"), Some("122"));
    assert_eq!(env("CALICO_IPV6POOL_VXLAN"), Some("CrossSubnet"));
    assert_eq!(env("CALICO_IPV6POOL_IPIP"), None);
    assert_eq!(env("CALICO_ROUTER_ID"), None);
    let steps = steps(&topology, &layout);
    assert_eq!(
        ip_lines(&steps, "car-lab-node3"),
        [
            "link set dev lo up",
            "address add 10.0.2.11/24 dev eth0",
            "address add fd00:10:2::11/64 dev eth0 nodad",
            "link set dev eth0 up",
            "route add default via 10.0.2.254",
            "route add ::/0 via fd00:10:2::fffe",
        ]
    );
    assert_eq!(node.etcd_endpoint, "http://10.0.2.252:2379");
}

#[test]
fn an_ipv6_cluster_has_no_ipv4_anywhere() {
    let topology = example("ipv6");
    let layout = layout(&topology);
    let node = layout.node("node1").unwrap();
    let env = |name: &str| node.env.get(name).map(String::as_str);
    assert_eq!(env("IP"), Some("none"));
    assert_eq!(env("CALICO_IPV4POOL_CIDR"), Some("none"));
    assert_eq!(env("CALICO_ROUTER_ID"), Some("hash"));
    assert_eq!(env("IP6"), Some("fd00:10::1/64"));
    assert_eq!(node.etcd_endpoint, "http://[fd00:10::fffd]:2379");
    let steps = steps(&topology, &layout);
    assert_eq!(
        ip_lines(&steps, "car-lab-node1"),
        [
            "link set dev lo up",
            "address add fd00:10::1/64 dev eth0 nodad",
            "link set dev eth0 up",
            "route add ::/0 via fd00:10::fffe",
        ]
    );
    let config = crate::cni::network_config(node);
    assert_eq!(config["ipam"]["assign_ipv4"], "false");
    assert_eq!(config["ipam"]["assign_ipv6"], "true");
}

#[test]
fn a_cluster_in_kubernetes_begins_with_its_objects() {
    let text = "\
name: k
datastore: kubernetes
segments: [{name: lan, cidr: 10.0.0.0/24}]
nodes:
  - {name: n1, segment: lan, pods: [web], labels: {rack: a}}
  - {name: n2, segment: lan, kind: bird2, address: 10.0.0.9, asn: 64513}
resources:
  - kind: IPPool
    metadata: {name: p, labels: {a: b}}
    spec: {cidr: 10.1.0.0/16}";
    let topology = Topology::parse(text, "k.yaml").expect("a topology");
    let layout = Layout::new(&topology, &LabName::new("k").expect("a name"));
    let node = layout.node("n1").expect("n1");
    assert_eq!(node.env["DATASTORE_TYPE"], "kubernetes");
    assert!(!node.env.contains_key("ETCD_ENDPOINTS"));
    let steps = super::steps(&topology, &layout);
    let objects = steps.iter().find_map(|step| match step {
        Step::StartApiServer(objects) => Some(objects),
        _ => None,
    });
    let find = |kind: &str, name: &str| {
        let mut objects = objects.expect("a step").iter();
        let found = objects.find(|o| o["kind"] == kind && o["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}"))
    };
    assert_eq!(find("Node", "n1")["metadata"]["labels"]["rack"], "a");
    let foreign = &find("Node", "n2")["metadata"]["annotations"];
    assert_eq!(foreign["projectcalico.org/IPv4Address"], "10.0.0.9/24");
    assert_eq!(foreign["projectcalico.org/ASNumber"], "64513");
    assert_eq!(find("Pod", "n1-web")["spec"]["nodeName"], "n1");
    let pool = find("IPPool", "p");
    assert_eq!(pool["apiVersion"], "crd.projectcalico.org/v1");
    assert_eq!(pool["spec"]["cidr"], "10.1.0.0/16");
    // Labels of the author are in the annotation, as Calico keeps them.
    let kept = pool["metadata"]["annotations"]["projectcalico.org/metadata"].as_str();
    let kept: serde_json::Value = serde_json::from_str(kept.expect("text")).expect("JSON");
    assert_eq!(kept["labels"]["a"], "b");
    assert!(!steps.iter().any(|s| matches!(s, Step::Put(_))));
}

#[test]
fn nodes_know_the_proxies_of_etcd_and_begin_with_different_ones() {
    let text = "\
name: p
etcd: {proxies: 2}
segments: [{name: lan, cidr: 10.0.0.0/24}]
nodes:
  - {name: n1, segment: lan}
  - {name: n2, segment: lan}";
    let topology = Topology::parse(text, "p.yaml").expect("a topology");
    let layout = Layout::new(&topology, &LabName::new("p").expect("a name"));
    let ports = |node: &str| -> Vec<String> {
        let node = layout.node(node).expect("a node");
        assert_eq!(node.env["ETCD_ENDPOINTS"], node.etcd_endpoint);
        let urls = node.etcd_endpoint.split(',');
        urls.filter_map(|url| Some(url.rsplit_once(':')?.1.to_owned()))
            .collect()
    };
    assert_eq!(ports("n1"), ["23790", "23791"]);
    assert_eq!(ports("n2"), ["23791", "23790"]);
    let steps = super::steps(&topology, &layout);
    let at = |wanted: &Step| steps.iter().position(|step| step == wanted);
    assert!(at(&Step::StartEtcd) < at(&Step::StartEtcdProxy(1)));
    assert!(at(&Step::StartEtcdProxy(1)) < at(&Step::StartEtcdProxy(2)));
    assert_eq!(at(&Step::StartEtcdProxy(3)), None);
}

/// What the daemons read, and nothing of Calico's.
#[test]
fn a_network_of_flannel_has_its_configuration_before_its_nodes() {
    let topology = example("flannel-vxlan");
    let layout = layout(&topology);
    let node = layout.node("node3").expect("a node");
    assert_eq!(node.kind, NodeKind::Flannel);
    let env: Vec<_> = node.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        env,
        [
            "FLANNELD_ETCD_ENDPOINTS=http://10.200.2.252:2379",
            "FLANNELD_HEALTHZ_PORT=8080",
            "FLANNELD_IFACE=eth0",
            "FLANNELD_IP_MASQ=true",
        ]
    );
    let steps = steps(&topology, &layout);
    let at = |wanted: &Step| steps.iter().position(|step| step == wanted);
    let config = json!({"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}});
    let configured = at(&Step::PutNetConf(config)).expect("a configuration");
    assert!(at(&Step::StartEtcd) < Some(configured));
    let started = at(&Step::StartNode("node1".to_owned())).expect("a start");
    let awaited = at(&Step::AwaitNode("node1".to_owned())).expect("a wait");
    assert!(configured < started && started < awaited, "{steps:?}");
    assert!(matches!(steps.last(), Some(Step::AddPods(pods)) if pods.len() == 4));
    assert!(!steps.iter().any(|s| matches!(s, Step::Put(_))));
}
