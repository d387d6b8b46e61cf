#![allow(clippy::unwrap_used)]

use caracal_agent::{Actual, Link, Phase, apply_op, diff};
use proptest::prelude::*;

use super::*;
use crate::acquire::{FlannelKeys, LeaseOrigin, OwnLease};
use crate::config::FlannelConfig;
use crate::leases::LeaseTable;
use crate::network::Uplink;

fn network(backend: &str) -> FlannelNetwork {
    let text = format!(
        r#"{{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{backend}}}"#
    );
    FlannelNetwork {
        config: FlannelConfig::parse(text.as_bytes()).unwrap(),
        uplink: Uplink {
            name: "eth0".into(),
            addresses: [
                Some("10.0.0.1".parse().unwrap()),
                Some("fd00::1".parse().unwrap()),
            ],
            mtu: 1500,
        },
        blackhole: false,
        metric: 0,
        before: Vec::new(),
        macs: [[2, 0, 0, 0, 9, 4], [2, 0, 0, 0, 9, 6]],
        refused: Vec::new(),
    }
}

fn value(node: u8, backend: &str) -> String {
    let data = format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:00:{node:02x}"}}"#);
    let data = match backend {
        "vxlan" => format!(r#","BackendData":{data},"BackendV6Data":{data}"#),
        _ => String::new(),
    };
    format!(
        r#"{{"PublicIP":"10.0.{}.{node}","PublicIPv6":"fd00::{node:x}","BackendType":"{backend}"{data}}}"#,
        u8::from(node > 100)
    )
}

/// The leases of some nodes; the first one's is ours.
fn view(backend: &str, nodes: &[u8]) -> LeaseView {
    let keys = FlannelKeys::new("/n");
    let mut leases = LeaseTable::new(keys.clone());
    let subnets = |node: u8| NodeSubnets {
        v4: Some(format!("10.5.{node}.0/24").parse().unwrap()),
        v6: Some(format!("fd00:5:0:{node:x}::/64").parse().unwrap()),
    };
    for node in nodes {
        let key = keys.lease(&subnets(*node));
        leases.change(&key, Some(value(*node, backend).as_bytes()), 7);
    }
    LeaseView {
        own: OwnLease {
            subnets: subnets(nodes[0]),
            lease: SubnetLease::parse(value(nodes[0], backend).as_bytes()).unwrap(),
            revision: 7,
            reserved: false,
            origin: LeaseOrigin::Picked,
        },
        leases,
        revision: 7,
        connected: true,
        settled: true,
        twin: None,
    }
}

fn links() -> Links {
    let eth0 = Link::new(2, "eth0")
        .with_address("10.0.0.1/24".parse().unwrap())
        .with_address("fd00::1/64".parse().unwrap());
    [eth0].into_iter().collect()
}

fn shown(desired: &Desired) -> Vec<String> {
    let routes = desired
        .routes
        .values()
        .map(|planned| planned.route.to_string());
    let neighbours = desired
        .neighbours
        .iter()
        .map(|(key, mac)| format!("{key} lladdr {}", caracal_model::format_mac(mac)));
    let fdb = desired
        .fdb
        .iter()
        .map(|(key, to)| format!("{key} dst {to}"));
    routes.chain(neighbours).chain(fdb).collect()
}

fn reasons(desired: &Desired) -> Vec<&str> {
    desired.problems.iter().map(|p| p.reason.as_str()).collect()
}

#[test]
fn vxlan_is_a_device_and_three_entries_a_node() {
    let network = network(r#"{"Type":"vxlan"}"#);
    let desired = plan_flannel(&network, &view("vxlan", &[1, 2]), &links());
    assert_eq!(
        shown(&desired),
        [
            "10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink proto 82 metric 0",
            "fd00:5:0:2::/64 via fd00:5:0:2:: dev flannel-v6.1 onlink proto 82 metric 1024",
            "fd00:5:0:2::/128 dev flannel-v6.1 proto 82 metric 1024",
            "fd00:5:0:2:: dev flannel-v6.1 lladdr 02:00:00:00:00:02",
            "10.5.2.0 dev flannel.1 lladdr 02:00:00:00:00:02",
            "02:00:00:00:00:02 dev flannel-v6.1 dst fd00::2",
            "02:00:00:00:00:02 dev flannel.1 dst 10.0.0.2",
        ]
    );
    let device = &desired.tunnels["flannel.1"];
    assert_eq!(
        (device.mtu, device.cidr()),
        (1450, Some("10.5.1.0/32".parse().unwrap()))
    );
    assert_eq!(
        device.kind,
        TunnelDevice::Vxlan {
            vni: 1,
            port: 8472,
            local: "10.0.0.1".parse().unwrap(),
            parent: "eth0".into(),
            mac: [2, 0, 0, 0, 0, 1],
        }
    );
    assert_eq!(desired.workload_mtu, 1450);
    assert_eq!(desired.tunnels["flannel-v6.1"].mtu, 1430, "Linux's most");
    assert_eq!(reasons(&desired), [""; 0]);
}

#[test]
fn the_own_subnets_may_have_a_blackhole_behind_them() {
    let network = FlannelNetwork {
        blackhole: true,
        ..network(r#"{"Type":"alloc"}"#)
    };
    let desired = plan_flannel(&network, &view("", &[1, 2]), &links());
    assert_eq!(
        shown(&desired),
        [
            "10.5.1.0/24 blackhole proto 82 metric 1000000",
            "fd00:5:0:1::/64 blackhole proto 82 metric 1000000",
        ]
    );
}

#[test]
fn routes_may_lie_behind_those_of_another_network() {
    for backend in [r#"{"Type":"vxlan"}"#, r#"{"Type":"host-gw"}"#] {
        let before = network(backend);
        let name = before.config.backend.lease_type();
        let behind = FlannelNetwork {
            metric: 100,
            ..before.clone()
        };
        let view = view(name, &[1, 2, 3]);
        let [before, behind] = [before, behind].map(|n| plan_flannel(&n, &view, &links()));
        let metrics = |desired: &Desired| -> Vec<(Prefix, u32)> {
            let routes = desired.routes.values().map(|planned| &planned.route);
            routes.map(|r| (r.prefix, r.metric)).collect()
        };
        let added = metrics(&before).into_iter().map(|(p, m)| (p, m + 100));
        assert_eq!(metrics(&behind), added.collect::<Vec<_>>(), "{name}");
        // On the way there both are in the kernel: what goes is what the other ones cover.
        let mut actual = kernel();
        reconcile(&mut actual, &before);
        for op in diff(&behind, &actual, Phase::Learning) {
            apply_op(&mut actual, &op).unwrap();
        }
        let of = |actual: &Actual| {
            let ours = actual
                .all_routes()
                .filter(|r| r.protocol == FLANNEL_PROTOCOL);
            ours.count()
        };
        assert_eq!(of(&actual), 2 * behind.routes.len(), "{name}: {actual:?}");
        reconcile(&mut actual, &behind);
        assert_eq!(of(&actual), behind.routes.len(), "{name}: {actual:?}");
    }
}

#[test]
fn direct_routing_is_for_nodes_on_the_link() {
    let network = network(r#"{"Type":"vxlan","DirectRouting":true}"#);
    // Node 101 is behind a router; of IPv6 all are on the link.
    let desired = plan_flannel(&network, &view("vxlan", &[1, 2, 101]), &links());
    let route = |prefix: &str| {
        let prefix = prefix.parse().unwrap();
        desired
            .routes
            .get(&prefix)
            .unwrap()
            .route
            .target
            .to_string()
    };
    assert_eq!(route("10.5.2.0/24"), "via 10.0.0.2 dev eth0");
    assert_eq!(
        route("10.5.101.0/24"),
        "via 10.5.101.0 dev flannel.1 onlink"
    );
    assert_eq!(route("fd00:5:0:2::/64"), "via fd00::2 dev eth0");
}

#[test]
fn ipip_is_a_device_and_a_route_a_node() {
    let desired = |backend| {
        let view = view("ipip", &[1, 2, 101]);
        plan_flannel(&network(backend), &view, &links())
    };
    let plain = desired(r#"{"Type":"ipip"}"#);
    assert_eq!(
        shown(&plain),
        [
            "10.5.2.0/24 via 10.0.0.2 dev flannel.ipip onlink proto 82 metric 0",
            "10.5.101.0/24 via 10.0.1.101 dev flannel.ipip onlink proto 82 metric 0",
        ]
    );
    let device = &plain.tunnels["flannel.ipip"];
    let local = Some("10.0.0.1".parse().unwrap());
    assert_eq!(device.kind, TunnelDevice::Ipip { local });
    assert_eq!(device.cidr(), Some("10.5.1.0/32".parse().unwrap()));
    assert_eq!((device.mtu, plain.workload_mtu), (1480, 1480));
    let direct = desired(r#"{"Type":"ipip","DirectRouting":true}"#);
    assert_eq!(
        shown(&direct),
        [
            "10.5.2.0/24 via 10.0.0.2 dev eth0 proto 82 metric 0",
            "10.5.101.0/24 via 10.0.1.101 dev flannel.ipip onlink proto 82 metric 0",
        ]
    );
    // A device of another source address is made anew, and flanneld's routes are taken over.
    let mut actual = kernel();
    reconcile(&mut actual, &plain);
    let mut moved = plain.clone();
    let tunnel = moved.tunnels.get_mut("flannel.ipip").unwrap();
    tunnel.kind = TunnelDevice::Ipip {
        local: Some("10.0.0.7".parse().unwrap()),
    };
    let ops = diff(&moved, &actual, Phase::Synced);
    assert!(
        ops.contains(&caracal_agent::Op::DeleteTunnel("flannel.ipip".into())),
        "{ops:?}"
    );
    reconcile(&mut actual, &moved);
    assert_eq!(diff(&moved, &actual, Phase::Synced), []);
}

#[test]
fn udp_is_a_device_that_is_awaited_and_the_network_behind_it() {
    let network = network(r#"{"Type":"udp"}"#);
    let leases = view("", &[1, 2]);
    let desired = plan_flannel(&network, &leases, &links());
    assert_eq!(
        shown(&desired),
        [
            "10.5.0.0/16 dev flannel0 proto 82 metric 0",
            "fd00:5::/48 dev flannel0 proto 82 metric 1024",
        ]
    );
    assert_eq!(desired.workload_mtu, 1452, "IPv6 around IPv6");
    let mut v4_alone = network.clone();
    v4_alone.config.v6 = None;
    assert_eq!(container_mtu(&v4_alone.config, &v4_alone.uplink), 1472);
    // Nothing is to be written before the relay has made its device, and all of it then.
    let mut actual = kernel();
    assert_eq!(diff(&desired, &actual, Phase::Synced), []);
    let mut device = Link::new(9, "flannel0");
    (device.kind, device.up) = ("tun".to_owned(), false);
    actual
        .links
        .insert(device.with_address("10.5.7.0/32".parse().unwrap()));
    reconcile(&mut actual, &desired);
    let device = actual.links.by_name("flannel0").unwrap();
    assert_eq!(device.addresses, ["10.5.1.0/32".parse().unwrap()]);
    assert!(device.up && device.mtu == 1452);
    assert_eq!(actual.routes.len(), 2);
    // Somebody's own device of that name is not touched.
    let mut actual = kernel();
    actual.links.insert(Link::new(9, "flannel0"));
    assert_eq!(diff(&desired, &actual, Phase::Synced), []);
}

#[test]
fn the_relay_goes_by_the_leases() {
    let network = network(r#"{"Type":"udp","Port":7890}"#);
    let mut leases = view("", &[1, 2]);
    leases.leases.change(
        "/n/subnets/10.5.3.0-24",
        Some(value(3, "vxlan").as_bytes()),
        9,
    );
    let table = plan_relay(&network, &leases);
    let hop = |to: &str| {
        table
            .next_hop(to.parse().unwrap())
            .map(|hop| hop.to_string())
    };
    assert_eq!(hop("10.5.2.9").as_deref(), Some("10.0.0.2:7890"));
    assert_eq!(hop("fd00:5:0:2::9").as_deref(), Some("[fd00::2]:7890"));
    assert_eq!(hop("10.5.1.9"), None, "the own subnet");
    // What the kernel does not lead elsewhere yet.
    assert_eq!(hop("10.5.3.9").as_deref(), Some("10.0.0.3:7890"));
    let source = |family| table.answer_source(family).map(|a| a.to_string());
    assert_eq!(source(Family::Ipv4).as_deref(), Some("10.5.0.0"));
    assert_eq!(source(Family::Ipv6).as_deref(), Some("fd00:5::"));
    let desired = plan_flannel(&network, &leases, &links());
    let route = |prefix: &str| {
        let planned = desired.routes.get(&prefix.parse().unwrap());
        planned.unwrap().route.target.to_string()
    };
    assert_eq!(route("10.5.3.0/24"), "via 10.5.3.0 dev flannel.1 onlink");
    assert_eq!(route("10.5.2.0/24"), "dev flannel0");
    assert_eq!(route("10.5.0.0/16"), "dev flannel0");
    assert_eq!(reasons(&desired), [""; 0]);
}

#[test]
fn host_gw_needs_one_link() {
    let network = network(r#"{"Type":"host-gw"}"#);
    let desired = plan_flannel(&network, &view("host-gw", &[1, 2, 101]), &links());
    assert_eq!(
        shown(&desired),
        [
            "10.5.2.0/24 via 10.0.0.2 dev eth0 proto 82 metric 0",
            "fd00:5:0:2::/64 via fd00::2 dev eth0 proto 82 metric 1024",
            "fd00:5:0:65::/64 via fd00::65 dev eth0 proto 82 metric 1024",
        ]
    );
    assert!(desired.tunnels.is_empty());
    assert_eq!(desired.workload_mtu, 1500);
    let reasons = reasons(&desired);
    assert_eq!(reasons.len(), 1);
    assert!(
        reasons[0].contains("10.0.1.101 is not on a network of eth0"),
        "{reasons:?}"
    );
}

#[test]
fn what_cannot_be_reached_is_named() {
    let network = network(r#"{"Type":"vxlan"}"#);
    let mut view = view("vxlan", &[1, 2]);
    let two_vnis = value(6, "vxlan").replacen(r#""VNI":1"#, r#""VNI":5"#, 1);
    let clone = value(7, "vxlan").replace(":07", ":09");
    for (key, value) in [
        ("10.5.3.0-24", value(3, "wireguard").as_str()),
        ("10.5.4.0-24", "{"),
        ("10.5.1.128-25", value(5, "vxlan").as_str()),
        ("10.5.6.0-24&fd00:5:0:6::-64", two_vnis.as_str()),
        ("10.5.7.0-24", clone.as_str()),
        (
            "10.5.8.0-24",
            r#"{"PublicIP":"10.0.0.8","BackendType":"vxlan"}"#,
        ),
        ("10.5.2.0-24", value(9, "vxlan").as_str()),
        // Our own address under another key: an old lease of ours.
        ("10.5.9.0-24", value(1, "vxlan").as_str()),
    ] {
        view.leases
            .change(&format!("/n/subnets/{key}"), Some(value.as_bytes()), 9);
    }
    view.twin = Some("{}".to_owned());
    let desired = plan_flannel(&network, &view, &links());
    let reasons = reasons(&desired).join("\n");
    for says in [
        "the backend \"wireguard\", which this node has not",
        "what was known of it holds on",
        "shares addresses with ours",
        "names the VNI 1 for one family and 5 for the other",
        "devices with one MAC address",
        "names no MAC address",
        "two leases have this subnet",
        "somebody else has written the lease of this node",
    ] {
        assert!(reasons.contains(says), "{says}\n{reasons}");
    }
    let v4 = desired.routes.keys().filter(|p| p.family() == Family::Ipv4);
    assert_eq!(
        v4.map(ToString::to_string).collect::<Vec<_>>(),
        ["10.5.2.0/24", "10.5.6.0/24"]
    );
}

fn kernel() -> Actual {
    Actual {
        links: links(),
        ..Actual::default()
    }
}

/// Writes what differs until nothing does.
fn reconcile(actual: &mut Actual, desired: &Desired) {
    for _ in 0..3 {
        let ops = diff(desired, actual, Phase::Synced);
        if ops.is_empty() {
            return;
        }
        for op in ops {
            apply_op(actual, &op).unwrap_or_else(|e| panic!("{op}: {e}"));
        }
    }
    panic!("{:?}", diff(desired, actual, Phase::Synced));
}

proptest! {
    /// From the state of any set of nodes to that of another, the kernel ends as a fresh one does.
    #[test]
    fn the_kernel_follows_the_leases(
        before in prop::collection::btree_set(2u8..20, 0..8),
        after in prop::collection::btree_set(2u8..20, 0..8),
        kinds in prop::collection::vec(0usize..6, 2),
    ) {
        let backends = [
            ("vxlan", r#"{"Type":"vxlan"}"#),
            ("vxlan", r#"{"Type":"vxlan","DirectRouting":true}"#),
            ("host-gw", r#"{"Type":"host-gw"}"#),
            ("ipip", r#"{"Type":"ipip"}"#),
            ("", r#"{"Type":"udp"}"#),
            ("vxlan", r#"{"Type":"vxlan","VNI":5}"#),
        ];
        let desired = |kind: usize, others: &BTreeSet<u8>| {
            let (lease, backend) = backends[kind];
            let nodes: Vec<u8> = std::iter::once(1).chain(others.iter().copied()).collect();
            let mut view = view(lease, &nodes);
            if backend.contains("VNI") {
                let leases: Vec<_> = view.leases.iter().map(|(s, k)| (*s, k.lease.clone())).collect();
                for (subnets, mut lease) in leases {
                    let data = format!(r#"{{"VNI":5,"VtepMAC":"02:00:00:00:05:{:02x}"}}"#, lease.public_ip.unwrap().octets()[3]);
                    let data: serde_json::Value = serde_json::from_str(&data).unwrap();
                    (lease.backend_data, lease.backend_v6_data) = (Some(data.clone()), Some(data));
                    let key = FlannelKeys::new("/n").lease(&subnets);
                    view.leases.change(&key, Some(&lease.to_json()), 7);
                    if subnets == view.own.subnets {
                        view.own.lease = lease;
                    }
                }
            }
            (network(backend), view)
        };
        let walk = |actual: &mut Actual, (network, view): &(FlannelNetwork, LeaseView)| {
            // The relay's device is the process's own.
            match matches!(network.config.backend, Backend::Udp { .. }) {
                true => {
                    let mut tun = Link::new(99, "flannel0");
                    (tun.kind, tun.up) = ("tun".to_owned(), false);
                    actual.links.insert(tun);
                }
                false => actual.remove_link(&"flannel0".into()),
            }
            reconcile(actual, &plan_flannel(network, view, &actual.links.clone()));
        };
        let mut walked = kernel();
        walk(&mut walked, &desired(kinds[0], &before));
        walk(&mut walked, &desired(kinds[1], &after));
        let mut fresh = kernel();
        walk(&mut fresh, &desired(kinds[1], &after));
        prop_assert_eq!(&walked.routes, &fresh.routes);
        prop_assert_eq!(&walked.neighbours, &fresh.neighbours);
        prop_assert_eq!(&walked.fdb, &fresh.fdb);
        let names = |actual: &Actual| -> BTreeSet<IfName> {
            actual.links.iter().map(|link| link.name.clone()).collect()
        };
        prop_assert_eq!(names(&walked), names(&fresh));
    }
}
