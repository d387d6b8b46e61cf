//! IPIP on a real `tunl0`. Where this machine's kernel has no IPIP, each test starts itself once
//! more inside a kernel that has it (`lab/with-ipip-kernel`, User Mode Linux); with the module
//! loaded here it runs here.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use caracal_lab::{Lab, wait_for};
use caracal_model::Family;
use caracal_tests::{
    BLOCKS_PER_NODE, Bird, Foreign, Installation, NOTHING_NEW, Probes, SECOND, Stack, Tunnel,
    assert_full_matrix, await_nexthop_objects, await_output, await_route_on_node_a, await_settled,
    blocks_of_node, calico_resource, caracals, count_routes, example, hand_routes_to_calico,
    in_ipip_kernel, install_and_uninstall, ip, kernel_has_nexthop_objects, possible,
    remove_liveness_leases, routes_with_protocol, run_on, set_pool_modes, set_pools,
    set_route_programmers, up, up_text, with_two_blocks,
};
use serde_json::json;

/// The routes of a node as `ip route` prints them.
fn ip_route(lab: &Lab, node: &str) -> String {
    let mut ip = caracal_lab::program_command("ip").unwrap();
    ip.args(["route", "show"]);
    caracal_lab::call_program(Some(&lab.netns(node).unwrap()), &mut ip, b"", 60 * SECOND).unwrap()
}

fn tunnelled(routes: &str) -> Vec<&str> {
    routes
        .lines()
        .filter(|l| l.contains(" dev tunl0 "))
        .collect()
}

#[test]
fn ipip_always_uses_tunl0_for_every_node() {
    in_ipip_kernel("ipip_always_uses_tunl0_for_every_node", || {
        let lab = up("ipip-always", "e2e-ipip");
        await_settled(&lab);
        let segment = lab.topology().segments[0].name.value.clone();
        let capture = lab.capture_segment(&segment, "ip proto 4").unwrap();
        assert_full_matrix(&lab);
        capture
            .wait_for(2, 60 * SECOND)
            .expect("packets between pods travel as IP protocol 4");
        let _seen = capture.stop();
        let nodes = lab.layout().nodes.clone();
        for node in &nodes {
            let routes = ip_route(&lab, &node.name);
            println!("--- {}\n{routes}", node.name);
            assert!(
                routes.lines().any(|l| l.starts_with("blackhole 10.244.")),
                "{routes}"
            );
            let tunnelled = tunnelled(&routes);
            assert_eq!(tunnelled.len(), nodes.len() - 1, "{routes}");
            for other in nodes.iter().filter(|n| n.name != node.name) {
                let via = format!(" via {} dev tunl0 proto 80 onlink", other.uplink.address);
                assert!(
                    tunnelled.iter().any(|l| l.contains(&via)),
                    "no route{via}:\n{routes}"
                );
            }
        }
    });
}

#[test]
fn ipip_cross_subnet_uses_tunl0_only_across_the_router() {
    in_ipip_kernel(
        "ipip_cross_subnet_uses_tunl0_only_across_the_router",
        || {
            let lab = up("ipip-cross-subnet", "e2e-ipipx");
            await_settled(&lab);
            let capture = lab.capture_segment("rack1", "ip proto 4").unwrap();
            assert_full_matrix(&lab);
            capture
                .wait_for(2, 60 * SECOND)
                .expect("packets to the other rack travel as IP protocol 4");
            let seen = capture.stop();
            let within = |p: &&String| p.matches("10.0.1.1").count() >= 2;
            assert_eq!(
                seen.packets.iter().filter(within).count(),
                0,
                "{:?}",
                seen.packets
            );
            for node in ["node1", "node2", "node3", "node4"] {
                let routes = ip_route(&lab, node);
                println!("--- {node}\n{routes}");
                assert_eq!(tunnelled(&routes).len(), 2, "{routes}");
                let direct = routes
                    .lines()
                    .filter(|l| l.contains(" dev eth0 proto 80"))
                    .count();
                assert_eq!(direct, 1, "{routes}");
            }
        },
    );
}

/// Nodes whose `podCIDRs` are their blocks, and no IPAM.
const RANGES: &str = "
name: ranges
datastore: kubernetes
pool: {cidr: 10.244.0.0/16, ipipMode: Always}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, address: 10.0.0.1, pods: 1, env: {USE_POD_CIDR: \"true\"}}
  - {name: node2, segment: lan, address: 10.0.0.2, pods: 1, env: {USE_POD_CIDR: \"true\"}}
";

#[test]
fn ranges_of_nodes_are_reached_through_tunl0() {
    let test = "ranges_of_nodes_are_reached_through_tunl0";
    if !possible(test, &["kubectl", "openssl"]) {
        return;
    }
    in_ipip_kernel(test, || {
        let lab = up_text(RANGES, test, "e2e-ipip-ranges");
        await_settled(&lab);
        assert_full_matrix(&lab);
        for (node, own, other, via) in [
            ("node1", "10.244.1.", "10.244.2.0/24", "10.0.0.2"),
            ("node2", "10.244.2.", "10.244.1.0/24", "10.0.0.1"),
        ] {
            let routes = ip_route(&lab, node);
            let blackhole = format!("blackhole {own}0/24 ");
            let tunnel = format!("{other} via {via} dev tunl0 proto 80 onlink");
            assert!(
                routes.contains(&blackhole) && routes.contains(&tunnel),
                "{routes}"
            );
            // The network's address and one, as Calico's nodes have it.
            let addresses = run_on(&lab, node, "ip -4 -o addr show dev tunl0");
            assert!(addresses.contains(&format!(" {own}1/32 ")), "{addresses}");
            let pods = &lab.state().pods;
            let pod = pods.iter().find(|pod| pod.node == node).unwrap();
            assert!(pod.address.unwrap().to_string().starts_with(own), "{pod:?}");
        }
    });
}

/// Routes to one node share a next-hop object on `tunl0`, which moves with the mode and back, and
/// no packet is lost.
#[test]
fn next_hop_objects_lead_through_tunl0() {
    in_ipip_kernel("next_hop_objects_lead_through_tunl0", || {
        use caracal_lab::{RouteKind::Direct, RouteKind::Ipip};
        let lab = up_text(&with_two_blocks("ipip-always"), "ipip-always", "e2e-ipipo");
        await_settled(&lab);
        assert_full_matrix(&lab);
        if !kernel_has_nexthop_objects(&lab) {
            return;
        }
        let others = caracals(&lab).len() - 1;
        let objects = (others, others * BLOCKS_PER_NODE);
        await_nexthop_objects(&lab, objects);
        let routes = ip_route(&lab, "node1");
        println!("{routes}");
        let through = tunnelled(&routes);
        let on_objects = through
            .iter()
            .filter(|l| l.contains(" nhid ") && l.contains(" onlink"));
        assert_eq!(on_objects.count(), others * BLOCKS_PER_NODE, "{routes}");
        let probes = Probes::start(&lab, &[("node1/p1", "node2/p1")]);
        probes.after(500);
        for (mode, kind) in [("Never", Direct), ("Always", Ipip)] {
            set_pool_modes(&lab, mode, "Never");
            for node in caracals(&lab) {
                let seen = || count_routes(&lab, &node, kind);
                let all = |n: &usize| *n == others * BLOCKS_PER_NODE;
                wait_for(60 * SECOND, "the other mode", seen, all).unwrap_or_else(|e| {
                    panic!("{node}: {e}\n{}", lab.folder().log_tail(&node, 40))
                });
            }
            await_nexthop_objects(&lab, objects);
            probes.after(500);
        }
        probes.assert_none_lost("IPIP → none → IPIP through next-hop objects");
    });
}

/// Every mode after the other under traffic, and each packet arrives. The first change finds node2
/// asleep, without a `tunl0` that is up: nobody sends it what it cannot receive.
#[test]
fn ipip_pool_changes_its_mode_under_traffic() {
    in_ipip_kernel("ipip_pool_changes_its_mode_under_traffic", || {
        use caracal_lab::{RouteKind::Direct, RouteKind::Ipip, RouteKind::Vxlan};
        let text = std::fs::read_to_string(example("ipip-always")).unwrap();
        let text = text.replace("ipipMode: Always", "ipipMode: Never");
        let lab = up_text(&text, "ipip-always", "e2e-ipipm");
        await_settled(&lab);
        assert_full_matrix(&lab);
        let nodes = caracals(&lab);
        let remote = nodes.len() - 1;
        let await_routes = |what: &str, wanted: [usize; 3]| {
            for node in &nodes {
                let seen = || [Ipip, Vxlan, Direct].map(|k| count_routes(&lab, node, k));
                wait_for(60 * SECOND, what, seen, |n| *n == wanted)
                    .unwrap_or_else(|e| panic!("{node}: {e}\n{}", lab.folder().log_tail(node, 40)));
            }
            println!("{what}: all kernels have switched");
        };
        // One stream: the guest has one CPU, and a thousand datagrams a second take half of it.
        let probes = Probes::start(&lab, &[("node1/p1", "node2/p1")]);
        lab.pause_node("node2").unwrap();
        set_pool_modes(&lab, "Always", "Never");
        let seen = || [Ipip, Direct].map(|k| count_routes(&lab, "node1", k));
        let awake = [remote - 1, 1];
        wait_for(60 * SECOND, "IPIP to the awake", seen, |n| *n == awake).unwrap();
        probes.after(1000);
        lab.resume_node("node2").unwrap();
        await_routes("ipipMode Always", [remote, 0, 0]);
        probes.after(500);
        for (ipip, vxlan, wanted) in [
            ("CrossSubnet", "Never", [0, 0, remote]),
            ("Never", "Always", [0, remote, 0]),
            ("Never", "Never", [0, 0, remote]),
        ] {
            set_pool_modes(&lab, ipip, vxlan);
            await_routes(&format!("ipipMode {ipip}, vxlanMode {vxlan}"), wanted);
            probes.after(500);
        }
        probes.assert_none_lost("none → IPIP Always → CrossSubnet → VXLAN → none");
    });
}

/// A pool that lends no address any more keeps what its pods need, also when a machine boots:
/// `tunl0` with the node's address, and the routes through it.
#[test]
fn an_ipip_pool_that_lends_nothing_new_takes_nothing_away() {
    let name = "an_ipip_pool_that_lends_nothing_new_takes_nothing_away";
    in_ipip_kernel(name, || {
        let mut lab = up("ipip-always", "e2e-ipipuse");
        await_settled(&lab);
        assert_full_matrix(&lab);
        let tunnels = |lab: &Lab| -> Vec<serde_json::Value> {
            let of = |node: String| calico_resource(lab, "nodes", &node)["spec"]["bgp"].take();
            let bgp = caracals(lab).into_iter().map(of);
            bgp.map(|mut bgp| bgp["ipv4IPIPTunnelAddr"].take())
                .collect()
        };
        let before = tunnels(&lab);
        assert!(
            before.iter().all(|address| address.is_string()),
            "{before:?}"
        );
        for (field, nothing_new, as_before) in NOTHING_NEW {
            set_pools(&lab, field, &serde_json::from_str(nothing_new).unwrap());
            // As after a reboot: the process ends, and the device is as the kernel makes it.
            lab.stop_node("node2").unwrap();
            ip(
                &lab,
                "node2",
                &["addr flush dev tunl0", "link set tunl0 down"],
            );
            lab.restart_node("node2").unwrap();
            await_settled(&lab);
            assert_eq!(tunnels(&lab), before, "{field}");
            assert_full_matrix(&lab);
            let routes = ip_route(&lab, "node2");
            assert_eq!(tunnelled(&routes).len(), before.len() - 1, "{routes}");
            if field != "disabled" {
                set_pools(&lab, field, &serde_json::from_str(as_before).unwrap());
            }
            println!("{field}: {before:?} stay");
        }
    });
}

/// Both families in one cluster, each by its own mode: IPIP for IPv4, and VXLAN, then none, for
/// IPv6. The change of the one is no matter of the other.
#[test]
fn ipip_of_ipv4_and_vxlan_of_ipv6_are_side_by_side() {
    in_ipip_kernel("ipip_of_ipv4_and_vxlan_of_ipv6_are_side_by_side", || {
        use caracal_lab::{RouteKind::Direct, RouteKind::Ipip, RouteKind::Vxlan};
        let text = std::fs::read_to_string(example("ipip-always")).unwrap();
        let text = Stack::Dual.with_pools(&text, |family| match family {
            Family::Ipv4 => json!({"cidr": "10.244.0.0/16", "blockSize": 26, "ipipMode": "Always"}),
            Family::Ipv6 => {
                json!({"cidr": "fd00:10:244::/64", "blockSize": 122, "vxlanMode": "Always"})
            }
        });
        let lab = up_text(&text, "ipip-always", "e2e-ipip46");
        await_settled(&lab);
        let segment = lab.topology().segments[0].name.value.clone();
        let [ipip, vxlan] = [caracal_lab::IPIP_FILTER, "ip6 and udp port 4789"]
            .map(|filter| lab.capture_segment(&segment, filter).unwrap());
        assert_full_matrix(&lab);
        for capture in [ipip, vxlan] {
            let seen = capture.wait_for(2, 60 * SECOND);
            seen.expect("packets of both families in their own encapsulation");
        }
        let nodes = caracals(&lab);
        let remote = nodes.len() - 1;
        let await_routes = |what: &str, wanted: [usize; 3]| {
            for node in &nodes {
                let seen = || [Ipip, Vxlan, Direct].map(|k| count_routes(&lab, node, k));
                wait_for(60 * SECOND, what, seen, |n| *n == wanted)
                    .unwrap_or_else(|e| panic!("{node}: {e}\n{}", lab.folder().log_tail(node, 40)));
            }
        };
        await_routes("IPIP and VXLAN", [remote, remote, 0]);
        // One pair, both families: the guest has one CPU.
        let probes = Probes::start_at(&lab, &[("node1/p1", "node2/p1")], 300);
        probes.after(300);
        let key = "/calico/resources/v3/projectcalico.org/ippools/default-ipv6-ippool";
        let pool = lab.etcdctl(&["get", key, "--print-value-only"], b"");
        let mut pool: serde_json::Value = serde_json::from_str(&pool.unwrap()).unwrap();
        pool["spec"]["vxlanMode"] = "Never".into();
        let value = pool.to_string();
        lab.etcdctl(&["put", key], value.as_bytes()).unwrap();
        await_routes("IPIP, and IPv6 without a tunnel", [remote, 0, remote]);
        probes.after(300);
        probes.assert_none_lost("IPIP on IPv4, while IPv6 goes from VXLAN to none");
    });
}

/// With `tunl0`, rules by iptables, and pods that came and went.
#[test]
fn uninstall_leaves_a_kernel_with_tunl0_as_it_was() {
    in_ipip_kernel("uninstall_leaves_a_kernel_with_tunl0_as_it_was", || {
        let text = std::fs::read_to_string(example("ipip-always")).unwrap();
        install_and_uninstall(&Installation {
            lab: "e2e-ipipu",
            topology: &text.replace("blockSize: 26", "blockSize: 26\n  natOutgoing: true"),
            foreign: &[
                "ip route add 10.244.200.0/26 via 10.0.0.12 proto static",
                "ip route add blackhole 172.31.0.0/16 proto bird",
                "iptables-legacy -A FORWARD -s 192.0.2.7 -j DROP",
                "iptables-legacy -t nat -A POSTROUTING -s 192.0.2.0/24 -j MASQUERADE",
                // A device that has once been up keeps a queue discipline, and that is not to be
                // undone either.
                "ip link set tunl0 up",
                "ip link set tunl0 down",
                // Tables that nobody has looked at yet are not there, and nothing takes them away
                // again.
                "iptables-legacy -t raw -L",
            ],
            during: &[
                "dev tunl0 proto 80 onlink",
                "blackhole 10.244.",
                "-A FORWARD -j caracal-forward",
                "-A caracal-outgoing -j MASQUERADE",
                "dev cali",
            ],
        });
    });
}

/// Calico's nodes with `tunl0`, taken over under traffic and handed back to BIRD's protocol number.
#[test]
fn calicos_ipip_nodes_are_taken_over_without_a_lost_packet() {
    in_ipip_kernel(
        "calicos_ipip_nodes_are_taken_over_without_a_lost_packet",
        || {
            let mut lab = up("ipip-cross-subnet", "e2e-ipipc");
            await_settled(&lab);
            let nodes = caracals(&lab);
            for node in &nodes {
                lab.stop_node(node).unwrap();
            }
            for node in &nodes {
                hand_routes_to_calico(&lab, node);
                // Own blackhole, the rack's other node, two nodes across.
                assert_eq!(routes_with_protocol(&lab, node, "bird").len(), 4, "{node}");
            }
            remove_liveness_leases(&lab);
            let probes = Probes::start(&lab, &[("node1/p1", "node3/p1")]);
            probes.after(300);
            for node in &nodes {
                lab.restart_node(node).unwrap();
                probes.after(200);
            }
            await_settled(&lab);
            for node in &nodes {
                let birds = || routes_with_protocol(&lab, node, "bird");
                wait_for(60 * SECOND, "no route of BIRD's", birds, Vec::is_empty)
                    .unwrap_or_else(|e| panic!("{node}: {e}\n{}", lab.folder().log_tail(node, 40)));
                let across = || tunnelled(&ip_route(&lab, node)).len();
                wait_for(60 * SECOND, "ways across", across, |n| *n == 2)
                    .unwrap_or_else(|e| panic!("{node}: {e}\n{}", ip_route(&lab, node)));
            }
            for node in &nodes {
                lab.stop_node(node).unwrap();
                let said = lab.caracal(node, &["migrate", "back", "--ipip-by-bird"]);
                println!("{node}: {}", said.unwrap());
                assert_eq!(routes_with_protocol(&lab, node, "bird").len(), 4, "{node}");
                assert_eq!(tunnelled(&ip_route(&lab, node)).len(), 2, "{node}");
            }
            probes.after(300);
            probes.assert_none_lost("IPIP CrossSubnet: taken over and handed back");
        },
    );
}

const MIXED: &str = "
name: ipip-mixed
pool: {cidr: 10.244.0.0/16, blockSize: 26, ipipMode: Always, natOutgoing: false}
segments: [{name: lan, cidr: 10.0.0.0/24}]
nodes:
  - {name: node-a, segment: lan, address: 10.0.0.11, pods: 1}
  - {name: felix, kind: plain, segment: lan, address: 10.0.0.21}
  - {name: legacy, kind: plain, segment: lan, address: 10.0.0.23}
";

/// A node of Calico from 3.33 on: Felix writes the routes of IPIP pools.
const FELIX: Foreign = Foreign {
    name: "felix",
    address: "10.0.0.21",
    tunnel: Tunnel::Ipip,
    vtep: "10.244.77.1",
    block: "10.244.77.0/26",
    pod: "10.244.77.9",
};

/// A node of Calico up to 3.32: BIRD writes them.
const LEGACY: Foreign = Foreign {
    name: "legacy",
    address: "10.0.0.23",
    tunnel: Tunnel::Ipip,
    vtep: "10.244.99.1",
    block: "10.244.99.0/26",
    pod: "10.244.99.9",
};

/// Nodes beside ours with a `tunl0` made by hand, in both of Calico's splits, and without
/// encapsulation.
#[test]
fn calicos_nodes_with_tunl0_are_understood_and_understand() {
    in_ipip_kernel(
        "calicos_nodes_with_tunl0_are_understood_and_understand",
        || {
            if !possible("calicos_nodes_with_tunl0", &["bird"]) {
                return;
            }
            let lab = up_text(MIXED, "ipip-mixed", "e2e-ipipw");
            await_settled(&lab);
            let capture = lab.capture_segment("lan", "ip proto 4").unwrap();
            FELIX.register(&lab);
            FELIX.dress(&lab);
            await_route_on_node_a(&lab, FELIX.block, |seen| {
                seen.contains("via 10.0.0.21 dev tunl0 proto 80 onlink")
            });
            FELIX.assert_reached(&lab, "IPIP, routes by Felix");
            capture.wait_for(2, 60 * SECOND).unwrap();
            let _seen = capture.stop();
            let rules = "iptables-legacy -S caracal-senders";
            await_output(&lab, "node-a", rules, |seen| {
                seen.contains("-s 10.0.0.21/32 -j RETURN") && seen.contains("-j DROP")
            });

            set_route_programmers(&lab, "Disabled", "Enabled");
            await_route_on_node_a(&lab, FELIX.block, str::is_empty);
            LEGACY.register(&lab);
            LEGACY.make_device(&lab, 1480);
            let bird = Bird::start(&lab, &LEGACY, Some("tunl0"));
            await_route_on_node_a(&lab, LEGACY.block, |seen| {
                seen.contains("via 10.0.0.23 dev tunl0 proto 80 onlink")
            });
            let ours = blocks_of_node(&lab, "node-a", Family::Ipv4);
            let ours = format!("ip route show {}", ours[0]);
            await_output(&lab, "legacy", &ours, |seen| {
                seen.contains("via 10.0.0.11 dev tunl0 proto bird metric 1024 onlink")
            });
            LEGACY.assert_reached(&lab, "IPIP, routes by BIRD");

            set_pool_modes(&lab, "Never", "Never");
            drop(bird);
            run_on(&lab, "legacy", "ip route flush proto bird");
            let _bird = Bird::start(&lab, &LEGACY, None);
            await_route_on_node_a(&lab, LEGACY.block, |seen| {
                seen.contains("via 10.0.0.23 dev eth0 proto 80")
            });
            await_output(&lab, "legacy", &ours, |seen| {
                seen.contains("via 10.0.0.11 dev eth0") && seen.contains("proto bird")
            });
            LEGACY.assert_reached(&lab, "unencapsulated, routes by BIRD");
        },
    );
}
