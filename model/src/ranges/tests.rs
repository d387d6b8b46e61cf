#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::ipam::{Block, BlockOwner};

#[derive(Default)]
struct World(Snapshot, BTreeSet<IpAddr>, Vec<Prefix>);

impl World {
    fn put(mut self, kind: Kind, name: &str, spec: Value) -> Self {
        let resource = json!({"metadata": {"name": name}, "spec": spec});
        let key = Key::resource(kind, name).to_path();
        let bytes = resource.to_string().into_bytes();
        self.0.apply(&key, Some(&bytes), 1);
        self
    }

    fn pool(self, name: &str, cidr: &str) -> Self {
        self.put(Kind::IpPool, name, json!({"cidr": cidr}))
    }

    fn node(self, name: &str, spec: Value) -> Self {
        self.put(Kind::Node, name, json!({"bgp": spec}))
    }

    fn services(self, field: &str, cidr: &str) -> Self {
        let mut spec = json!({});
        spec[field] = json!([{"cidr": cidr}]);
        self.put(Kind::BgpConfiguration, "default", spec)
    }

    /// What kubeadm was told of the Services.
    fn cluster_services(mut self, ranges: &[&str]) -> Self {
        self.2 = ranges.iter().map(|range| range.parse().unwrap()).collect();
        self
    }

    /// Subject's name and reason of each conflict.
    fn conflicts(&self) -> Vec<String> {
        let found = range_conflicts(&self.0, &self.1, &self.2);
        let name = |p: &Problem| p.subject.rsplit('/').next().unwrap().to_owned();
        let text = |p: &Problem| format!("{}: {}", name(p), p.reason);
        found.iter().map(text).collect()
    }
}

/// Exactly one conflict, which says all of these.
fn one(world: &World, words: &[&str]) {
    let found = world.conflicts();
    let [only] = found.as_slice() else {
        panic!("{found:?}")
    };
    for word in words {
        assert!(only.contains(word), "{word}: {only}");
    }
}

#[test]
fn a_cluster_as_it_should_be_has_no_conflict() {
    let world = World::default()
        .pool("pods", "10.244.0.0/16")
        .pool("pods6", "fd00:10::/64")
        .services("serviceClusterIPs", "10.96.0.0/12")
        .node(
            "a",
            json!({"ipv4Address": "10.0.0.1/24", "ipv6Address": "fd00::1/64",
                   "ipv4IPIPTunnelAddr": "10.244.0.1"}),
        )
        .put(Kind::BgpPeer, "tor", json!({"peerIP": "10.0.0.254"}))
        // Part of the machines' subnet without a machine in it.
        .pool("part", "10.0.0.128/26");
    assert_eq!(world.conflicts(), Vec::<String>::new());
    // The API server behind its Service.
    let world = World(world.0, ["10.96.0.1".parse().unwrap()].into(), Vec::new());
    assert_eq!(world.conflicts(), Vec::<String>::new());
}

#[test]
fn pools_overlap() {
    for (first, second) in [
        ("10.244.0.0/16", "10.244.64.0/18"),
        ("10.244.0.0/16", "10.244.0.0/24"),
        ("10.244.0.0/16", "10.244.0.0/16"),
        ("fd00:10::/64", "fd00:10::/112"),
    ] {
        let world = World::default().pool("wide", first).pool("x", second);
        one(
            &world,
            &["x: its range ", first, second, "of IPPool wide", "overlap"],
        );
        let world = World::default().pool("a", second).pool("wide", first);
        assert_eq!(world.conflicts().len(), 1, "{first} {second}");
    }
    let beside = World::default()
        .pool("a", "10.244.0.0/18")
        .pool("b", "10.244.64.0/18");
    assert_eq!(
        beside.pool("c", "fd00:10::/64").conflicts(),
        Vec::<String>::new()
    );
}

#[test]
fn a_pool_and_a_range_of_services_overlap() {
    for (pool, services) in [
        ("10.244.0.0/16", "0.0.0.0/0"),
        ("10.244.0.0/16", "10.244.128.0/17"),
        ("fd00:10::/64", "fd00::/16"),
    ] {
        for field in [
            "serviceClusterIPs",
            "serviceExternalIPs",
            "serviceLoadBalancerIPs",
        ] {
            let world = World::default().pool("pods", pool);
            let world = world.services(field, services);
            one(&world, &["pods: ", pool, services, field]);
        }
    }
    let spec = json!({"cidr": "192.0.2.0/24", "allowedUses": ["LoadBalancer"]});
    let world = World::default().put(Kind::IpPool, "lb", spec);
    let world = world.services("serviceLoadBalancerIPs", "192.0.2.0/24");
    assert_eq!(world.conflicts(), Vec::<String>::new());
}

#[test]
fn a_pool_and_the_clusters_services_overlap() {
    let both = ["10.96.0.0/12", "fd00:96::/112"];
    for (pool, services) in [
        ("10.96.0.0/12", both[0]),
        ("10.100.0.0/16", both[0]),
        ("10.0.0.0/8", both[0]),
        ("fd00:96::/120", both[1]),
        ("fd00::/16", both[1]),
    ] {
        let words = ["x: ", pool, services, "serviceSubnet", "kubeadm-config"];
        let world = World::default().pool("x", pool);
        // Not known: nothing is said.
        assert_eq!(world.conflicts(), Vec::<String>::new());
        let world = world.cluster_services(&both);
        one(&world, &[&words[..], &["a pod's"]].concat());
        // One family alone.
        let other = both.iter().copied().filter(|range| *range != services);
        let other: Vec<_> = other.collect();
        let world = world.cluster_services(&other);
        assert_eq!(world.conflicts(), Vec::<String>::new());
        // What is announced is named once.
        let world = world.cluster_services(&both);
        let world = world.services("serviceClusterIPs", services);
        one(&world, &["x: ", pool, services, "serviceClusterIPs"]);
        let spec = json!({"cidr": pool, "allowedUses": ["LoadBalancer"]});
        let world = world.put(Kind::IpPool, "x", spec);
        one(&world, &[&words[..], &["a load balancer's"]].concat());
    }
    let beside = World::default()
        .pool("pods", "10.244.0.0/16")
        .pool("pods6", "fd00:10::/64")
        .cluster_services(&both);
    assert_eq!(beside.conflicts(), Vec::<String>::new());
}

#[test]
fn a_pool_for_load_balancers_over_machines_and_routers() {
    for (range, machine, router) in [
        ("10.0.0.0/24", "10.0.0.1/24", "10.0.0.254"),
        ("fd00::/64", "fd00::1/64", "fd00::fe"),
    ] {
        let field = match range.contains(':') {
            true => "ipv6Address",
            false => "ipv4Address",
        };
        let spec = json!({"cidr": range, "allowedUses": ["LoadBalancer"]});
        let world = World::default()
            .put(Kind::IpPool, "lb", spec)
            .node("a", json!({field: machine}))
            .put(Kind::BgpPeer, "tor", json!({"peerIP": router}));
        one(&world, &["lb: ", range, "of node a and 1 more"]);
        // Beside the machines there is room, and etcd may be a Service.
        let spec = json!({"cidr": "192.0.2.0/24", "allowedUses": ["LoadBalancer"]});
        let world = World::default()
            .put(Kind::IpPool, "lb", spec)
            .node("a", json!({field: machine}));
        let world = World(world.0, ["192.0.2.7".parse().unwrap()].into(), Vec::new());
        assert_eq!(world.conflicts(), Vec::<String>::new());
    }
}

#[test]
fn a_pool_over_the_machines_names_the_first_one_and_how_many_more() {
    let mut world = World::default().pool("pods", "192.168.0.0/16");
    for n in 1..=3 {
        let address = format!("192.168.56.1{n}/24");
        world = world.node(&format!("node{n}"), json!({"ipv4Address": address}));
    }
    one(
        &world,
        &["pods: ", "192.168.56.11 of node node1 and 2 more"],
    );
    // Addresses beside that of BGP count, too.
    let other = json!({"addresses": [{"address": "10.244.1.1", "type": "InternalIP"}]});
    let world = World::default()
        .pool("pods", "10.244.0.0/16")
        .put(Kind::Node, "a", other);
    one(&world, &["pods: ", "10.244.1.1 of node a"]);
}

#[test]
fn routers_and_the_datastore_are_in_no_pool_unless_they_are_pods() {
    let router = World::default().pool("pods", "10.244.0.0/16").put(
        Kind::BgpPeer,
        "tor",
        json!({"peerIP": "10.244.0.70:1790"}),
    );
    one(&router, &["10.244.0.70 of the router in BGPPeer tor"]);
    let etcd = World::default().pool("pods", "10.244.0.0/16");
    let mut etcd = World(etcd.0, ["10.244.0.70".parse().unwrap()].into(), Vec::new());
    one(&etcd, &["10.244.0.70 of the datastore"]);
    // A pod with this address.
    let endpoint = json!({"metadata": {"name": "a-k8s-p-eth0", "namespace": "d"},
        "spec": {"node": "a", "interfaceName": "cali1", "ipNetworks": ["10.244.0.70/32"]}});
    let key = "/calico/resources/v3/projectcalico.org/workloadendpoints/d/a-k8s-p-eth0";
    let bytes = endpoint.to_string().into_bytes();
    etcd.0.apply(key, Some(&bytes), 2);
    assert_eq!(etcd.conflicts(), Vec::<String>::new());
}

#[test]
fn a_range_of_services_over_machines_routers_and_tunnels() {
    let world = World::default()
        .services("serviceExternalIPs", "10.0.0.0/8")
        .node("a", json!({"ipv4Address": "10.0.0.1/24"}));
    one(
        &world,
        &["default: ", "serviceExternalIPs", "10.0.0.1 of node a"],
    );
    let world = World::default()
        .services("serviceExternalIPs", "10.0.0.0/8")
        .put(Kind::BgpPeer, "tor", json!({"peerIP": "10.0.0.254"}))
        .node("a", json!({"ipv4IPIPTunnelAddr": "10.244.0.1"}));
    one(
        &world,
        &["10.0.0.254 of the router in BGPPeer tor and 1 more"],
    );
}

#[test]
fn a_tunnel_with_the_address_of_a_machine() {
    let world = World::default()
        .node("a", json!({"ipv4Address": "10.0.0.1/24"}))
        .node("b", json!({"ipv4IPIPTunnelAddr": "10.0.0.1"}));
    one(
        &world,
        &["b: ", "its tunnel has the address 10.0.0.1 of node a"],
    );
}

#[test]
fn two_tunnels_with_one_address() {
    for (right, wrong) in [("a", "b"), ("b", "a")] {
        let tunnel = json!({"bgp": {}, "ipv4VXLANTunnelAddr": "10.244.0.1"});
        let world =
            World::default()
                .put(Kind::Node, right, tunnel.clone())
                .put(Kind::Node, wrong, tunnel);
        let mut world = world.pool("pods", "10.244.0.0/16");
        let owner = BlockOwner::Host(right.into());
        let block = Block::new("10.244.0.0/26".parse().unwrap(), Some(&owner), 1);
        let key = Key::Block(block.cidr).to_path();
        world.0.apply(&key, Some(&block.to_json()), 9);
        let said = format!("10.244.0.1 of a tunnel of node {right}");
        one(&world, &[&format!("{wrong}: "), &said]);
    }
}

#[test]
fn a_pool_for_load_balancers_alone_has_no_pods() {
    let spec = json!({"cidr": "10.244.0.0/16", "allowedUses": ["LoadBalancer"]});
    let world = World::default().put(Kind::IpPool, "pods", spec);
    assert_eq!(world.conflicts(), [""; 0]);
    let mut world = world;
    let endpoint = json!({"metadata": {"name": "n-k8s-w-eth0", "namespace": "default"}, "spec": {
        "node": "n", "orchestrator": "k8s", "pod": "w", "endpoint": "eth0",
        "interfaceName": "cali1", "ipNetworks": ["10.244.0.5/32"]}});
    let key = Key::workload("default", "n-k8s-w-eth0").to_path();
    world
        .0
        .apply(&key, Some(endpoint.to_string().as_bytes()), 1);
    one(&world, &["pods: ", "load balancers alone", "10.244.0.0/16"]);
}
