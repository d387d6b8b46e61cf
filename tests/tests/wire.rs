//! Nodes beside ours that are not Caracal: devices, entries and routes made by hand, as Calico's Felix or flannel make them
//! from the same data in etcd. Packets both ways, counted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use caracal_lab::wait::scaled;
use caracal_lab::{Lab, wait_until};
use caracal_tests::kernel::{run, try_run};
use caracal_tests::{
    SECOND, assert_full_matrix, await_settled, await_status, possible, settled, up_text,
};
use serde_json::{Value, json};

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

/// The MACs of the VXLAN devices that Calico derives from the names of our nodes.
const OURS: [(&str, &str, &str); 2] = [
    ("node-a", "10.0.0.11", "66:07:02:c1:cc:60"),
    ("node-b", "10.0.0.12", "66:89:3a:22:7a:ac"),
];

/// A node that is not ours.
struct Foreign {
    name: &'static str,
    address: &'static str,
    /// Name of its VXLAN device.
    device: &'static str,
    /// Its MAC; where the Node does not name it, the one derived from the name.
    mac: &'static str,
    named: bool,
    /// Address of its tunnel.
    vtep: &'static str,
    block: &'static str,
    /// An address of its block, in use.
    pod: &'static str,
}

const FELIX: Foreign = Foreign {
    name: "felix",
    address: "10.0.0.21",
    device: "vxlan.calico",
    mac: "66:9c:69:09:8d:37",
    named: false,
    vtep: "10.244.77.1",
    block: "10.244.77.0/26",
    pod: "10.244.77.9",
};

/// flannel gives its device the network's own address and a random MAC.
const FLANNEL: Foreign = Foreign {
    name: "flannel",
    address: "10.0.0.22",
    device: "flannel.1",
    mac: "02:f1:a2:22:e1:01",
    named: true,
    vtep: "10.244.88.0",
    block: "10.244.88.0/26",
    pod: "10.244.88.9",
};

fn put(lab: &Lab, key: &str, value: &Value) {
    let _answer = lab
        .etcdctl(&["put", key], value.to_string().as_bytes())
        .unwrap();
}

fn resource(lab: &Lab, kind: &str, plural: &str, name: &str, spec: &Value) {
    let key = format!("/calico/resources/v3/projectcalico.org/{plural}/{name}");
    let value = json!({
        "kind": kind,
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "uid": "0a4c1fd2-6f1e-4a3a-9c59-2d1d3a8a7f10",
            "creationTimestamp": "2026-01-05T10:11:12Z"},
        "spec": spec,
    });
    put(lab, &key, &value);
}

impl Foreign {
    /// What it would have written into etcd.
    fn register(&self, lab: &Lab) {
        let mut spec = json!({
            "bgp": {"ipv4Address": format!("{}/24", self.address)},
            "ipv4VXLANTunnelAddr": self.vtep,
        });
        if self.named {
            spec["vxlanTunnelMACAddr"] = self.mac.into();
        }
        resource(lab, "Node", "nodes", self.name, &spec);
        let ordinal =
            |address: &str| -> usize { address.rsplit('.').next().unwrap().parse().unwrap() };
        let mut allocations = vec![Value::Null; 64];
        allocations[ordinal(self.vtep)] = 0.into();
        allocations[ordinal(self.pod)] = 1.into();
        let free = (0..64).filter(|n| allocations[*n].is_null());
        let free: Vec<usize> = free.collect();
        let block = json!({
            "cidr": self.block,
            "affinity": format!("host:{}", self.name),
            "allocations": allocations,
            "unallocated": free,
            "attributes": [
                {"handle_id": format!("vxlan-tunnel-addr-{}", self.name),
                 "secondary": {"node": self.name, "type": "vxlanTunnelAddress"}},
                {"handle_id": "k8s-pod-network.8f2c41",
                 "secondary": {"namespace": "default", "node": self.name, "pod": "web-0",
                    "timestamp": "2026-01-05 10:12:00.5 +0000 UTC"}},
            ],
            "sequenceNumber": 1_767_607_872_000_000_003_u64,
            "sequenceNumberForAllocation": {},
            "deleted": false,
        });
        let dashed = self.block.replace('/', "-");
        put(
            lab,
            &format!("/calico/ipam/v2/assignment/ipv4/block/{dashed}"),
            &block,
        );
        let affinity = json!({"state": "confirmed", "deleted": false});
        let key = format!("/calico/ipam/v2/host/{}/ipv4/block/{dashed}", self.name);
        put(lab, &key, &affinity);
    }

    /// Its devices, entries and routes, from what our nodes have in etcd.
    fn dress(&self, lab: &Lab) {
        let device = self.device;
        let mut commands = vec![
            format!(
                "ip link add {device} address {} mtu 1450 type vxlan id 4096 dstport 4789 local {} dev eth0 nolearning",
                self.mac, self.address
            ),
            format!("ip addr add {}/32 dev {device}", self.vtep),
            format!("ip link set {device} up"),
            "ip link set lo up".to_owned(),
            format!("ip addr add {}/32 dev lo", self.pod),
            "sysctl -q -w net.ipv4.ip_forward=1".to_owned(),
        ];
        for (node, address, mac) in OURS {
            let vtep = vtep(lab, node);
            commands.push(format!(
                "ip neigh replace {vtep} lladdr {mac} dev {device} nud permanent"
            ));
            commands.push(format!(
                "bridge fdb replace {mac} dev {device} dst {address} self permanent"
            ));
            for block in blocks(lab, node) {
                commands.push(format!(
                    "ip route replace {block} via {vtep} dev {device} onlink mtu 1450 src {}",
                    self.pod
                ));
            }
        }
        for command in commands {
            run(lab, self.name, &command);
        }
    }

    /// Pings both ways through the tunnel or without it; each is counted.
    fn assert_reached(&self, lab: &Lab, what: &str) {
        for (node, ..) in OURS {
            let pod = lab.state().pods.iter().find(|p| p.node == node).unwrap();
            let address = pod.address.unwrap().to_string();
            ping(lab, &format!("{node}/p1"), self.pod, "");
            ping(lab, self.name, &address, &format!("-I {}", self.pod));
        }
        println!(
            "{what}: {} and our pods reach each other, both ways",
            self.name
        );
    }
}

/// Large and small packets, never fragmented; once one has come back none may be lost.
fn ping(lab: &Lab, from: &str, to: &str, more: &str) {
    let first = || try_run(lab, from, &format!("ping -n -c 1 -W 1 {more} {to}"));
    wait_until(scaled(30 * SECOND), &format!("{from} reaches {to}"), first).unwrap();
    for size in [56, 1400] {
        let command = format!("ping -n -q -i 0.01 -c 50 -W 5 -M do -s {size} {more} {to}");
        let said = run(lab, from, &command);
        assert!(said.contains("50 received"), "{from} → {to}: {said}");
    }
}

fn spec(lab: &Lab, node: &str) -> Value {
    let key = format!("/calico/resources/v3/projectcalico.org/nodes/{node}");
    let text = lab
        .etcdctl(&["get", &key, "--print-value-only"], b"")
        .unwrap();
    let node: Value = serde_json::from_str(&text).unwrap();
    node["spec"].clone()
}

fn vtep(lab: &Lab, node: &str) -> String {
    let read = || {
        let spec = spec(lab, node);
        let address = spec["ipv4VXLANTunnelAddr"].as_str().map(str::to_owned);
        address.ok_or_else(|| spec.to_string())
    };
    wait_until(scaled(30 * SECOND), "a tunnel address", read).unwrap()
}

/// The blocks of a node, as their owner is named in etcd.
fn blocks(lab: &Lab, node: &str) -> Vec<String> {
    let prefix = format!("/calico/ipam/v2/host/{node}/ipv4/block/");
    let keys = lab
        .etcdctl(&["get", &prefix, "--prefix", "--keys-only"], b"")
        .unwrap();
    let block = |key: &str| Some(key.strip_prefix(&prefix)?.replace('-', "/"));
    keys.lines().filter_map(block).collect()
}

/// What node-a's kernel has for a prefix.
fn route(lab: &Lab, prefix: &str) -> String {
    run(lab, "node-a", &format!("ip -4 route show {prefix}"))
}

fn await_route(lab: &Lab, prefix: &str, wanted: impl Fn(&str) -> bool) {
    let look = || {
        let seen = route(lab, prefix);
        if wanted(&seen) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    };
    wait_until(scaled(40 * SECOND), &format!("the route to {prefix}"), look)
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node-a", 40)));
}

/// Who programs the routes to other nodes, as both resources say.
fn split(lab: &Lab, felix: &str, bgp: &str) {
    let spec = |mode: &str| json!({"programClusterRoutes": mode});
    resource(
        lab,
        "FelixConfiguration",
        "felixconfigurations",
        "default",
        &spec(felix),
    );
    resource(
        lab,
        "BGPConfiguration",
        "bgpconfigurations",
        "default",
        &spec(bgp),
    );
}

#[test]
fn felix_and_flannel_are_understood_and_understand() {
    let scenario = "felix_and_flannel_are_understood_and_understand";
    if !possible(scenario, &["bridge"]) {
        return;
    }
    let lab = up_text(TOPOLOGY, scenario, "wire");
    await_settled(&lab);
    assert_full_matrix(&lab);
    for (node, _, mac) in OURS {
        let link = run(&lab, node, "ip -o link show dev vxlan.calico");
        assert!(link.contains(mac), "{node}: {link}");
    }
    for foreign in [&FELIX, &FLANNEL] {
        foreign.register(&lab);
        foreign.dress(&lab);
    }
    for foreign in [&FELIX, &FLANNEL] {
        let way = format!("via {} dev vxlan.calico", foreign.vtep);
        await_route(&lab, foreign.block, |seen| seen.contains(&way));
        let fdb = run(&lab, "node-a", "bridge fdb show dev vxlan.calico");
        let entry = format!("{} dst {} ", foreign.mac, foreign.address);
        assert!(fdb.contains(&entry), "{entry}: {fdb}");
        foreign.assert_reached(&lab, "VXLAN");
    }
    // Without encapsulation the routes are BGP's by default, as with Calico from 3.33 on, and BGP says nothing here. A
    // Felix that is told to makes them from the blocks, and so do we.
    caracal_tests::set_pool_modes(&lab, "Never", "Never");
    await_route(&lab, FELIX.block, str::is_empty);
    split(&lab, "Enabled", "Disabled");
    await_route(&lab, FELIX.block, |seen| {
        seen.contains("via 10.0.0.21 dev eth0 proto 80")
    });
    for (node, address, _) in OURS {
        for block in blocks(&lab, node) {
            run(
                &lab,
                FELIX.name,
                &format!(
                    "ip route replace {block} via {address} dev eth0 src {}",
                    FELIX.pod
                ),
            );
        }
        await_status(&lab, node, 40 * SECOND, "in step", settled);
    }
    FELIX.assert_reached(&lab, "unencapsulated, routes by Felix");
    // Up to 3.32 BIRD makes all of them: without BGP there are none.
    split(&lab, "Disabled", "Enabled");
    await_route(&lab, FELIX.block, str::is_empty);
}
