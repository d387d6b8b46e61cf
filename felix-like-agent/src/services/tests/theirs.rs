//! What is not the Services' stays whose it is, and is named (SVC-4).

use super::*;

/// With a BGP port of its own, a peer outside and another node.
fn cluster(documents: &[Value]) -> Snapshot {
    let mut snapshot = snapshot(documents);
    let other = json!({"metadata": {"name": "b"}, "spec": {
        "bgp": {"ipv4Address": "10.0.0.2/24", "ipv6Address": "fd00::2/64", "ipv4IPIPTunnelAddr": "10.9.0.1"},
        "addresses": [{"address": "10.7.0.2", "type": "InternalIP"}]}});
    let peer = |ip: &str| json!({"metadata": {"name": "p"}, "spec": {"peerIP": ip, "asNumber": 1}});
    for (path, value) in [
        ("nodes/b", other),
        ("bgppeers/p", peer("192.0.2.99")),
        ("bgppeers/q", peer("[fd00:9::9]:1790")),
        (
            "bgpconfigurations/default",
            json!({"metadata": {"name": "default"}, "spec": {"listenPort": 1179}}),
        ),
    ] {
        let path = format!("/calico/resources/v3/projectcalico.org/{path}");
        let applied = snapshot.apply(&path, Some(value.to_string().as_bytes()), 1);
        assert_eq!(applied, Applied::Changed, "{path}");
    }
    snapshot
}

/// Node `a`, whose datastore is at 10.0.0.5 and fd00::5, and that listens at two ports.
fn node() -> ServiceNode {
    ServiceNode {
        datastore: ["10.0.0.5:2379", "[fd00::5]:2379"]
            .map(|at| at.parse().unwrap())
            .into(),
        listeners: ["[::]:9091", "10.0.0.1:9099"]
            .map(|at| at.parse().unwrap())
            .into(),
        name_servers: ["10.0.0.53", "fd00::53"]
            .map(|at| at.parse().unwrap())
            .into(),
        ..own()
    }
}

fn planned(node: &ServiceNode, snapshot: &Snapshot) -> (ServiceTable, Kernel) {
    let mut table = ServiceTable::default();
    let mut kernel = Kernel::default();
    assert_eq!(table.follow(snapshot, node), None);
    kernel.run(&table.adopt(None));
    (table, kernel)
}

/// A Service with one external address and port, of TCP or UDP.
fn external(address: &str, protocol: &str, port: u16) -> Value {
    service(json!({"externalIPs": [address], "ports": [{"port": port, "protocol": protocol}]}))
}

/// The problem with the Service `web`, in words.
fn refusal(table: &ServiceTable) -> Option<String> {
    let problems = table.problems();
    let refused = problems.iter().find(|p| p.code == "services.refused")?;
    assert_eq!(refused.subject, "Service shop/web");
    assert!(refused.reason.starts_with("shop/web: "), "{refused:?}");
    Some(refused.reason.clone())
}

#[test]
fn what_a_node_needs_to_be_a_node_is_no_services() {
    for (address, protocol, port) in [
        // The datastore.
        ("10.0.0.5", "TCP", 2379),
        ("fd00::5", "TCP", 2379),
        // BGP, BFD and VXLAN of nodes, by all of their addresses.
        ("10.0.0.1", "TCP", 179),
        ("10.0.0.2", "TCP", 179),
        ("fd00::2", "TCP", 1179),
        ("10.7.0.2", "TCP", 179),
        ("10.0.0.2", "UDP", 3784),
        ("fd00::2", "UDP", 4784),
        ("10.0.0.2", "UDP", 4789),
        ("10.9.0.1", "TCP", 179),
        // Their peers.
        ("192.0.2.99", "TCP", 179),
        ("192.0.2.99", "UDP", 3784),
        ("fd00:9::9", "UDP", 4784),
        ("fd00:9::9", "TCP", 1790),
        // Whom it asks for names.
        ("10.0.0.53", "UDP", 53),
        ("10.0.0.53", "TCP", 53),
        ("fd00::53", "UDP", 53),
        // What this node listens on.
        ("10.0.0.1", "TCP", 9091),
        ("fd00::1", "TCP", 9091),
        ("10.0.0.1", "TCP", 9099),
        ("172.16.0.1", "TCP", 9091),
        // What is nobody's, or each machine's own.
        ("127.0.0.1", "TCP", 80),
        ("::1", "TCP", 80),
        ("169.254.169.254", "TCP", 80),
        ("fe80::1", "TCP", 80),
        ("224.0.0.5", "UDP", 80),
        ("ff02::1", "UDP", 80),
        ("0.0.0.0", "TCP", 80),
        ("255.255.255.255", "TCP", 80),
        ("::", "TCP", 80),
        ("::ffff:10.0.0.5", "TCP", 2379),
        // Pods.
        ("10.244.3.4", "TCP", 80),
        ("fd00:244::4", "TCP", 80),
    ] {
        let what = format!("{address} {protocol} {port}");
        let snapshot = cluster(&[
            external(address, protocol, port),
            slice(json!([endpoint("10.244.0.1", "b", json!({}))])),
        ]);
        let (table, kernel) = planned(&node(), &snapshot);
        let address: std::net::IpAddr = address.parse().unwrap();
        let has = table.entries().keys().any(|at| at.address == address);
        assert!(!has, "{what}: {:?}", kernel.elements);
        let reason = refusal(&table).unwrap_or_else(|| panic!("{what}: nobody says so"));
        assert!(reason.contains("(ExternalIP) is not its: "), "{reason}");
        // The rest of the Service is served.
        assert_eq!(table.entries().len(), 2, "{what}: {reason}");
    }
}

#[test]
fn other_ports_of_nodes_and_of_the_datastore_may_be_services() {
    for (address, protocol, port) in [
        ("10.0.0.5", "TCP", 443),
        ("10.0.0.5", "UDP", 2379),
        ("10.0.0.53", "UDP", 5353),
        ("10.0.0.2", "TCP", 443),
        ("10.0.0.2", "UDP", 179),
        ("10.0.0.2", "TCP", 9091),
        ("192.0.2.99", "TCP", 443),
        ("192.0.2.99", "UDP", 179),
        ("172.16.0.1", "TCP", 9099),
    ] {
        let snapshot = cluster(&[external(address, protocol, port)]);
        let (table, _) = planned(&node(), &snapshot);
        assert_eq!(refusal(&table), None);
        assert_eq!(table.entries().len(), 3, "{address} {protocol} {port}");
    }
}

#[test]
fn a_cluster_address_is_no_machines() {
    for (address, port) in [
        ("10.0.0.2", 80),
        ("10.0.0.1", 80),
        ("10.0.0.5", 2379),
        ("10.0.0.5", 80),
        ("192.0.2.99", 179),
        ("192.0.2.99", 80),
        ("10.244.0.9", 80),
    ] {
        let of = json!({"clusterIP": address, "clusterIPs": [address], "ports": [{"port": port}]});
        let (table, kernel) = planned(&node(), &cluster(&[service(of)]));
        assert!(table.entries().is_empty(), "{address}");
        // Else its other ports were refused.
        assert!(map(&kernel, "cluster-ips4").is_empty(), "{address}");
        assert!(refusal(&table).is_some());
    }
}

/// Machines may ask the cluster's name server by its cluster address.
#[test]
fn the_cluster_address_of_a_name_server_is_its_services() {
    let of = json!({"clusterIP": "10.96.0.53", "clusterIPs": ["10.96.0.53"],
        "ports": [{"port": 53, "protocol": "UDP"}]});
    let mut node = node();
    node.name_servers = ["10.96.0.53".parse().unwrap()].into();
    let (table, _) = planned(&node, &cluster(&[service(of)]));
    assert_eq!((table.entries().len(), refusal(&table)), (1, None));
}

/// Whoever reaches Kubernetes' API by its cluster address asks for the translation.
#[test]
fn the_cluster_address_of_kubernetes_api_is_its_services() {
    let api =
        json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 443}]});
    let mut snapshot = cluster(&[]);
    let document = json!({"kind": "Service", "spec": api, "metadata": {"name": "kubernetes", "namespace": "default"}});
    let path = "/calico/caracal/v1/services/default/kubernetes";
    snapshot.apply(path, Some(document.to_string().as_bytes()), 9);
    let mut node = node();
    node.datastore = ["10.96.0.1:443".parse().unwrap()].into();
    node.on_kubernetes = true;
    let (table, kernel) = planned(&node, &snapshot);
    assert_eq!(table.entries().len(), 1);
    assert!(map(&kernel, "spared4").is_empty());
    // It is no other Service's.
    put(&mut snapshot, &external("10.96.0.1", "TCP", 443));
    let (table, _) = planned(&node, &snapshot);
    assert!(refusal(&table).unwrap().contains("its datastore"));
    node.datastore = ["10.0.0.6:6443".parse().unwrap()].into();
    let (_, kernel) = planned(&node, &snapshot);
    assert_eq!(
        map(&kernel, "spared4"),
        [("10.0.0.6 . tcp . 6443", "")].into()
    );
}

/// Nodes and kubelets reach the API by a cluster address or a balancer: its servers are nobody
/// else's all the same.
#[test]
fn servers_of_kubernetes_api_are_no_services() {
    let path = "/calico/caracal/v1/endpointslices/default/kubernetes";
    let slice = |family: &str, addresses: [&str; 2]| {
        json!({"kind": "EndpointSlice", "addressType": family,
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "ports": [{"name": "https", "port": 6443}],
            "endpoints": addresses.map(|address| json!({"addresses": [address]}))})
    };
    for (n, slice) in [
        (4, slice("IPv4", ["10.0.0.7", "10.8.0.7"])),
        (6, slice("IPv6", ["fd00::7", "fd00:8::7"])),
    ] {
        let family = usize::from(n == 6);
        for machine in [["10.0.0.7", "fd00::7"], ["10.8.0.7", "fd00:8::7"]] {
            let address = machine[family];
            let refused = |service: Value| {
                let mut snapshot = cluster(&[service]);
                snapshot.apply(path, Some(slice.to_string().as_bytes()), 9);
                let (table, kernel) = planned(&node(), &snapshot);
                let spared = map(&kernel, &format!("spared{n}"));
                assert!(spared.contains_key(&*format!("{address} . tcp . 6443")));
                refusal(&table)
            };
            let reason = refused(external(address, "TCP", 6443)).unwrap();
            assert!(reason.contains("a server of Kubernetes' API"), "{reason}");
            assert_eq!(refused(external(address, "TCP", 443)), None);
            let of =
                json!({"clusterIP": address, "clusterIPs": [address], "ports": [{"port": 80}]});
            assert!(refused(service(of)).is_some());
        }
    }
    // It follows the servers.
    let mut snapshot = cluster(&[external("10.0.0.7", "TCP", 6443)]);
    let (mut table, _) = planned(&node(), &snapshot);
    assert_eq!(refusal(&table), None);
    let servers = slice("IPv4", ["10.0.0.7", "10.8.0.7"]).to_string();
    snapshot.apply(path, Some(servers.as_bytes()), 9);
    table.follow(&snapshot, &node());
    assert!(refusal(&table).is_some());
    snapshot.apply(path, None, 10);
    table.follow(&snapshot, &node());
    assert_eq!(refusal(&table), None);
}

#[test]
fn the_way_to_the_datastore_and_ports_of_nodes_come_before_all_rules() {
    let (_, kernel) = planned(&node(), &cluster(&[]));
    assert_eq!(
        map(&kernel, "spared4"),
        [("10.0.0.5 . tcp . 2379", "")].into()
    );
    assert_eq!(
        map(&kernel, "spared6"),
        [("fd00::5 . tcp . 2379", "")].into()
    );
    let kept: Vec<&str> = map(&kernel, "kept-ports").into_keys().collect();
    let guarded = [
        "tcp . 1179",
        "tcp . 179",
        "udp . 3784",
        "udp . 4784",
        "udp . 4789",
    ];
    let listeners = ["tcp . 9091", "tcp . 9099"];
    let mut all = [&guarded[..], &listeners].concat();
    all.sort_unstable();
    assert_eq!(kept, all);
    let kept: Vec<&str> = map(&kernel, "guarded-ports").into_keys().collect();
    assert_eq!(kept, guarded);
}

/// What is sent to an unused address of a range is dropped: machines are no unused addresses.
#[test]
fn a_range_of_cluster_addresses_holds_no_machine() {
    let with = |ranges: &[&str]| {
        let mut snapshot = cluster(&[]);
        let ranges: Vec<Value> = ranges.iter().map(|cidr| json!({"cidr": cidr})).collect();
        let value = json!({"metadata": {"name": "default"}, "spec": {"serviceClusterIPs": ranges}});
        let path = "/calico/resources/v3/projectcalico.org/bgpconfigurations/default";
        snapshot.apply(path, Some(value.to_string().as_bytes()), 2);
        snapshot
    };
    for range in [
        "10.0.0.0/8",
        "10.0.0.2/32",
        "10.0.0.4/30",
        "10.244.1.0/24",
        "192.0.2.0/24",
        "172.16.0.0/12",
        "fd00::/16",
    ] {
        let good = ["10.96.0.0/12", "fd00:96::/108"];
        let (table, kernel) = planned(&node(), &with(&[range, good[0], good[1]]));
        let named = table.problems();
        assert_eq!(named.len(), 1, "{range}: {named:?}");
        assert_eq!(named[0].subject, format!("serviceClusterIPs {range}"));
        assert!(!map(&kernel, "ranges4").contains_key(range), "{range}");
        assert!(!map(&kernel, "ranges6").contains_key(range), "{range}");
    }
    let (table, kernel) = planned(&node(), &with(&["10.96.0.0/12", "fd00:96::/108"]));
    assert_eq!(table.problems(), []);
    assert_eq!(
        map(&kernel, "ranges4").len() + map(&kernel, "ranges6").len(),
        2
    );
    // What is not to be dropped is left to the rules of `serviceLoopPrevention`.
    for how in ["Reject", "Disabled"] {
        let mut snapshot = with(&["10.96.0.0/12", "fd00:96::/108", "10.0.0.0/8"]);
        let spec = json!({"serviceLoopPrevention": how});
        let value = json!({"metadata": {"name": "default"}, "spec": spec});
        let path = "/calico/resources/v3/projectcalico.org/felixconfigurations/default";
        snapshot.apply(path, Some(value.to_string().as_bytes()), 3);
        let (table, kernel) = planned(&node(), &snapshot);
        assert_eq!(table.problems(), []);
        assert!(map(&kernel, "ranges4").is_empty(), "{how}");
        assert!(map(&kernel, "ranges6").is_empty(), "{how}");
    }
}

/// A pod that speaks to a node's port for other nodes by way of a Service has a node's address.
#[test]
fn nobody_is_sent_to_a_nodes_ports_for_nodes_or_to_what_is_each_machines_own() {
    for (address, protocol, port) in [
        ("10.0.0.2", "TCP", 179),
        ("10.0.0.1", "TCP", 1179),
        ("10.9.0.1", "TCP", 179),
        ("10.0.0.2", "UDP", 4789),
        ("10.0.0.2", "UDP", 3784),
        ("192.0.2.99", "TCP", 179),
        ("192.0.2.99", "UDP", 3784),
        ("127.0.0.1", "TCP", 8080),
        ("169.254.169.254", "TCP", 80),
        ("224.0.0.5", "UDP", 80),
        ("0.0.0.0", "TCP", 80),
    ] {
        let mut of = slice(json!([
            endpoint(address, "b", json!({})),
            endpoint("10.244.0.1", "b", json!({})),
        ]));
        of["ports"] = json!([{"name": "", "port": port, "protocol": protocol}]);
        let ports = json!({"ports": [{"port": 53, "protocol": protocol}]});
        let (table, kernel) = planned(&node(), &cluster(&[service(ports), of]));
        let map = map(&kernel, &format!("endpoints4-{}", protocol.to_lowercase()));
        let targets: Vec<&str> = map.into_values().collect();
        assert_eq!(targets, [format!("10.244.0.1 . {port}")], "{address}");
        let reason = refusal(&table).unwrap();
        assert!(
            reason.contains(&format!("endpoint {address}:{port}/")),
            "{reason}"
        );
    }
    // Metrics of nodes are a Service like others.
    let mut of = slice(json!([endpoint("10.0.0.2", "b", json!({}))]));
    of["ports"] = json!([{"name": "", "port": 9091}]);
    let (table, _) = planned(&node(), &cluster(&[service(json!({})), of]));
    assert_eq!(refusal(&table), None);
}

/// A node comes to have an address, loses it, and the pool moves: the plan follows, Service by
/// Service.
#[test]
fn what_is_reserved_follows_nodes_and_pools() {
    let documents = [external("10.0.0.3", "TCP", 179)];
    let mut snapshot = cluster(&documents);
    let (mut table, mut kernel) = planned(&node(), &snapshot);
    let mut follow = |snapshot: &Snapshot| {
        let change = table.follow(snapshot, &node()).unwrap();
        kernel.run(&change);
        let (fresh, anew) = planned(&node(), snapshot);
        assert_eq!(kernel.content(), anew.content());
        assert_eq!(table.problems(), fresh.problems());
        refusal(&table).is_some()
    };
    assert!(!follow(&snapshot));
    let resource = |snapshot: &mut Snapshot, path: &str, value: Option<Value>| {
        let path = format!("/calico/resources/v3/projectcalico.org/{path}");
        let revision = snapshot.revision + 1;
        let value = value.map(|value| value.to_string());
        snapshot.apply(&path, value.as_ref().map(String::as_bytes), revision);
    };
    let c = json!({"metadata": {"name": "c"}, "spec": {"bgp": {"ipv4Address": "10.0.0.3/24"}}});
    resource(&mut snapshot, "nodes/c", Some(c));
    assert!(follow(&snapshot));
    resource(&mut snapshot, "nodes/c", None);
    assert!(!follow(&snapshot));
    let pool = json!({"metadata": {"name": "r"}, "spec": {"cidr": "10.0.0.0/28", "blockSize": 28}});
    resource(&mut snapshot, "ippools/r", Some(pool.clone()));
    assert!(follow(&snapshot));
    let mut balanced = pool;
    balanced["spec"]["allowedUses"] = json!(["LoadBalancer"]);
    resource(&mut snapshot, "ippools/r", Some(balanced));
    assert!(!follow(&snapshot));
    let of = json!({"clusterIP": "10.96.0.10", "externalIPs": ["10.0.0.4"]});
    put(&mut snapshot, &service(of));
    assert!(!follow(&snapshot));
    let d = json!({"metadata": {"name": "d"}, "spec": {"bgp": {"ipv4Address": "10.96.0.10/24"}}});
    resource(&mut snapshot, "nodes/d", Some(d));
    assert!(follow(&snapshot), "a node has come to a cluster address");
}
