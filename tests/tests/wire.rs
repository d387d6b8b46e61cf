//! Nodes beside ours that are not Caracal: devices, entries and routes made by hand, as Calico's
//! Felix or flannel make them from the same data in etcd, and a real BIRD that writes routes.
//! Packets both ways, counted. IPIP is in `ipip.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use caracal_lab::Lab;
use caracal_tests::{
    Bird, Foreign, SECOND, Stack, Tunnel, assert_full_matrix, await_output, await_route_on_node_a,
    await_settled, await_status, caracals, either, possible, put_etcd_resource, run_on,
    set_route_programmers, settled, up_text,
};
use serde_json::json;

const TOPOLOGY: &str = "
name: wire
pool: {cidr: 10.244.0.0/16, blockSize: 26, vxlanMode: Always, natOutgoing: false}
backend: vxlan
segments: [{name: lan, cidr: 10.0.0.0/24}]
nodes:
  - {name: node-a, segment: lan, address: 10.0.0.11, pods: 1}
  - {name: node-b, segment: lan, address: 10.0.0.12, pods: 1}
  - {name: felix, kind: plain, segment: lan, address: 10.0.0.21}
  - {name: flannel, kind: plain, segment: lan, address: 10.0.0.22}
";

const FELIX: Foreign = Foreign {
    name: "felix",
    address: "10.0.0.21",
    tunnel: Tunnel::Vxlan {
        device: "vxlan.calico",
        mac: "66:9c:69:09:8d:37",
        named: false,
    },
    vtep: "10.244.77.1",
    block: "10.244.77.0/26",
    pod: "10.244.77.9",
};

const FELIX_6: Foreign = Foreign {
    name: "felix",
    address: "fd00:10::21",
    tunnel: Tunnel::Vxlan {
        device: "vxlan-v6.calico",
        mac: "66:a9:84:93:1c:50",
        named: false,
    },
    vtep: "fd00:10:244::4d01",
    block: "fd00:10:244::4d00/122",
    pod: "fd00:10:244::4d09",
};

/// flannel gives its device the network's own address and a random MAC.
const FLANNEL: Foreign = Foreign {
    name: "flannel",
    address: "10.0.0.22",
    tunnel: Tunnel::Vxlan {
        device: "flannel.1",
        mac: "02:f1:a2:22:e1:01",
        named: true,
    },
    vtep: "10.244.88.0",
    block: "10.244.88.0/26",
    pod: "10.244.88.9",
};

const FLANNEL_6: Foreign = Foreign {
    name: "flannel",
    address: "fd00:10::22",
    tunnel: Tunnel::Vxlan {
        device: "flannel-v6.1",
        mac: "02:f1:a2:22:e1:06",
        named: true,
    },
    vtep: "fd00:10:244::5800",
    block: "fd00:10:244::5800/122",
    pod: "fd00:10:244::5809",
};

#[test]
fn felix_and_flannel_are_understood_and_understand() {
    let scenario = "felix_and_flannel_are_understood_and_understand";
    if !possible(scenario, &["bridge"]) {
        return;
    }
    for (stack, felix, flannel) in [
        (Stack::Ipv4, FELIX, FLANNEL),
        (Stack::Ipv6, FELIX_6, FLANNEL_6),
    ] {
        let lab = up_text(&stack.topology(TOPOLOGY), scenario, &stack.lab("wire"));
        await_settled(&lab);
        assert_full_matrix(&lab);
        through_vxlan(&lab, &felix, &flannel);
        by_workload(&lab, &felix);
        unencapsulated(&lab, &felix);
    }
}

fn through_vxlan(lab: &Lab, felix: &Foreign, flannel: &Foreign) {
    let device = felix.device();
    for foreign in [felix, flannel] {
        foreign.register(lab);
        foreign.dress(lab);
    }
    for foreign in [felix, flannel] {
        let way = format!("via {} dev {device}", foreign.vtep);
        await_route_on_node_a(lab, foreign.block, |seen| seen.contains(&way));
        let fdb = run_on(lab, "node-a", &format!("bridge fdb show dev {device}"));
        let Tunnel::Vxlan { mac, .. } = foreign.tunnel else {
            unreachable!("both use VXLAN")
        };
        let entry = format!("{mac} dst {} ", foreign.address);
        assert!(fdb.contains(&entry), "{entry}: {fdb}");
        foreign.assert_reached(lab, "VXLAN");
    }
}

/// `routeSource: WorkloadIPs`, as where IPAM is not Calico's: the block says nothing, the workload
/// has the route.
fn by_workload(lab: &Lab, felix: &Foreign) {
    felix.register_workload(lab);
    let spec = json!({"routeSource": "WorkloadIPs"});
    let felix_configuration = |spec| {
        put_etcd_resource(
            lab,
            "FelixConfiguration",
            "felixconfigurations",
            "default",
            spec,
        );
    };
    felix_configuration(&spec);
    let device = felix.device();
    await_route_on_node_a(lab, felix.pod, |seen| {
        seen.contains(&format!("via {} dev {device}", felix.vtep))
    });
    await_route_on_node_a(lab, felix.block, str::is_empty);
    await_route_on_node_a(lab, felix.vtep, |seen| {
        seen.contains(&format!("dev {device}")) && !seen.contains("via")
    });
    felix.assert_reached(lab, "VXLAN, routes by workload");
    felix_configuration(&json!({}));
    await_route_on_node_a(lab, felix.block, |seen| seen.contains(device));
}

/// Without encapsulation the routes are BGP's by default, as with Calico from 3.33 on, and BGP says
/// nothing here. A Felix that is told to makes them from the blocks, and so do we.
fn unencapsulated(lab: &Lab, felix: &Foreign) {
    caracal_tests::set_pool_modes(lab, "Never", "Never");
    await_route_on_node_a(lab, felix.block, str::is_empty);
    set_route_programmers(lab, "Enabled", "Disabled");
    let way = format!("via {} dev eth0 proto 80", felix.address);
    await_route_on_node_a(lab, felix.block, |seen| seen.contains(&way));
    felix.route_directly(lab);
    for node in caracals(lab) {
        await_status(lab, &node, 60 * SECOND, "in step", settled);
    }
    felix.assert_reached(lab, "unencapsulated, routes by Felix");
    // Up to 3.32 BIRD makes all of them: without BGP there are none.
    set_route_programmers(lab, "Disabled", "Enabled");
    await_route_on_node_a(lab, felix.block, str::is_empty);
}

/// A node of Calico up to 3.32: BIRD announces its block, and writes the routes that it learns.
#[test]
fn bird_writes_the_routes_of_calico_up_to_3_32() {
    let scenario = "bird_writes_the_routes_of_calico_up_to_3_32";
    if !possible(scenario, &["bird"]) {
        return;
    }
    let topology = TOPOLOGY
        .replace("vxlanMode: Always", "vxlanMode: Never")
        .replace("backend: vxlan\n", "")
        .replace(
            "  - {name: flannel, kind: plain, segment: lan, address: 10.0.0.22}\n",
            "",
        )
        .replace("name: felix,", "name: legacy,");
    for (stack, felix) in [(Stack::Ipv4, FELIX), (Stack::Ipv6, FELIX_6)] {
        let legacy = Foreign {
            name: "legacy",
            ..felix
        };
        let lab = up_text(
            &stack.topology(&topology),
            scenario,
            &stack.lab("wire-bird"),
        );
        await_settled(&lab);
        set_route_programmers(&lab, "Disabled", "Enabled");
        legacy.register(&lab);
        let dad = either(legacy.family(), "/32 dev lo", "/128 dev lo nodad");
        run_on(&lab, "legacy", "ip link set lo up");
        run_on(&lab, "legacy", &format!("ip addr add {}{dad}", legacy.pod));
        let _bird = Bird::start(&lab, &legacy, None);
        let way = format!("via {} dev eth0 proto 80", legacy.address);
        await_route_on_node_a(&lab, legacy.block, |seen| seen.contains(&way));
        let family = legacy.family();
        let ours = caracal_tests::blocks_of_node(&lab, "node-a", family);
        let way = either(family, "via 10.0.0.11 dev eth0", "via fd00:10::11 dev eth0");
        await_output(
            &lab,
            "legacy",
            &format!("ip route show {}", ours[0]),
            |seen| seen.contains(way) && seen.contains("proto bird"),
        );
        await_settled(&lab);
        legacy.assert_reached(&lab, "unencapsulated, routes by BIRD");
        // The other split for the same peers: BIRD of 3.33 announces, and its Felix would write.
        set_route_programmers(&lab, "Enabled", "Disabled");
        await_settled(&lab);
        legacy.assert_reached(&lab, "unencapsulated, ours from the blocks, theirs by BIRD");
    }
}
