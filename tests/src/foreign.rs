//! Nodes beside ours that are not Caracal, made by hand from the same data in etcd: devices,
//! entries and routes as Calico's Felix or flannel make them, and a real BIRD that writes routes as
//! in Calico up to 3.32.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use caracal_lab::{Lab, program_command, spawn_in_netns, wait_until};
use caracal_model::{BlockOwner, Family, Key, Prefix};
use serde_json::{Value, json};

use crate::SECOND;
use crate::kernel::{run_on, try_run_on};
use crate::scenario::caracals;
use crate::stack::either;

/// The MACs of the VXLAN devices that Calico derives from the names of our nodes: of IPv4, and of
/// IPv6.
const MACS: [(&str, &str, &str); 2] = [
    ("node-a", "66:07:02:c1:cc:60", "66:d4:d5:51:3d:42"),
    ("node-b", "66:89:3a:22:7a:ac", "66:35:be:36:cf:19"),
];

/// Tunnel device of a foreign node.
#[derive(Clone, Copy, Debug)]
pub enum Tunnel {
    /// A VXLAN device.
    Vxlan {
        /// Its name.
        device: &'static str,
        /// `66:07:02:c1:cc:60`.
        mac: &'static str,
        /// The Node names the MAC; else it is the one derived from the name.
        named: bool,
    },
    /// `tunl0`.
    Ipip,
}

/// A node that is not ours.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// Of its Node.
    pub name: &'static str,
    /// Address on the underlay.
    pub address: &'static str,
    /// How packets reach its pods.
    pub tunnel: Tunnel,
    /// Address of its tunnel.
    pub vtep: &'static str,
    /// The one that it announces.
    pub block: &'static str,
    /// An address of its block, in use.
    pub pod: &'static str,
}

/// A node of ours, as a foreign one sees it.
struct Ours {
    name: String,
    address: IpAddr,
    mac: &'static str,
    blocks: Vec<String>,
}

/// Puts a v3 resource into etcd.
///
/// # Panics
/// When etcd does not take it.
pub fn put_etcd_resource(lab: &Lab, kind: &str, plural: &str, name: &str, spec: &Value) {
    let value = json!({
        "kind": kind,
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name.rsplit('/').next(), "namespace": "default",
            "uid": "0a4c1fd2-6f1e-4a3a-9c59-2d1d3a8a7f10",
            "creationTimestamp": "2026-01-05T10:11:12Z"},
        "spec": spec,
    });
    let key = format!("/calico/resources/v3/projectcalico.org/{plural}/{name}");
    put(lab, &key, &value);
}

fn put(lab: &Lab, key: &str, value: &Value) {
    let _answer = lab
        .etcdctl(&["put", key], value.to_string().as_bytes())
        .unwrap_or_else(|e| panic!("{key}: {e}"));
}

/// Sets the component that programs the routes to other nodes, in both resources.
pub fn set_route_programmers(lab: &Lab, felix: &str, bgp: &str) {
    let spec = |mode: &str| json!({"programClusterRoutes": mode});
    for (kind, plural, mode) in [
        ("FelixConfiguration", "felixconfigurations", felix),
        ("BGPConfiguration", "bgpconfigurations", bgp),
    ] {
        put_etcd_resource(lab, kind, plural, "default", &spec(mode));
    }
}

/// Waits until node-a's kernel has what is wanted for a prefix.
///
/// # Panics
/// At the deadline.
pub fn await_route_on_node_a(lab: &Lab, prefix: &str, wanted: impl Fn(&str) -> bool) {
    await_output(lab, "node-a", &format!("ip route show {prefix}"), wanted);
}

/// Waits until a command on a node prints what is wanted.
///
/// # Panics
/// At the deadline.
pub fn await_output(lab: &Lab, node: &str, words: &str, wanted: impl Fn(&str) -> bool) {
    let words = match words.contains(':') {
        true => words.replacen("ip route", "ip -6 route", 1),
        false => words.to_owned(),
    };
    let look = || {
        let seen = try_run_on(lab, node, &words)?;
        if wanted(&seen) { Ok(()) } else { Err(seen) }
    };
    wait_until(60 * SECOND, &words, look)
        .unwrap_or_else(|e| panic!("{node}: {e}\n{}", lab.folder().log_tail(node, 40)));
}

impl Foreign {
    /// The family that it speaks.
    ///
    /// # Panics
    /// When its address is none.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.address.parse().expect("an address"))
    }

    fn prefix(&self) -> Prefix {
        self.block.parse().expect("a block")
    }

    /// Keys that it would have written into etcd.
    pub fn register(&self, lab: &Lab) {
        put_etcd_resource(lab, "Node", "nodes", self.name, &self.spec());
        let ordinal = |address: &str| {
            let address: IpAddr = address.parse().expect("an address");
            let last = match address {
                IpAddr::V4(a) => a.octets()[3],
                IpAddr::V6(a) => a.octets()[15],
            };
            usize::from(last & 63)
        };
        let mut allocations = vec![Value::Null; 64];
        allocations[ordinal(self.vtep)] = 0.into();
        allocations[ordinal(self.pod)] = 1.into();
        let free = (0..64).filter(|n| allocations[*n].is_null());
        let free: Vec<usize> = free.collect();
        let tunnel = match self.tunnel {
            Tunnel::Ipip => "ipip",
            Tunnel::Vxlan { .. } => "vxlan",
        };
        let block = json!({
            "cidr": self.block,
            "affinity": format!("host:{}", self.name),
            "allocations": allocations,
            "unallocated": free,
            "attributes": [
                {"handle_id": format!("{tunnel}-tunnel-addr-{}", self.name),
                 "secondary": {"node": self.name, "type": format!("{tunnel}TunnelAddress")}},
                {"handle_id": "k8s-pod-network.8f2c41",
                 "secondary": {"namespace": "default", "node": self.name, "pod": "web-0",
                    "timestamp": "2026-01-05 10:12:00.5 +0000 UTC"}},
            ],
            "sequenceNumber": 1_767_607_872_000_000_003_u64,
            "sequenceNumberForAllocation": {},
            "deleted": false,
        });
        put(lab, &Key::Block(self.prefix()).to_path(), &block);
        let affinity = json!({"state": "confirmed", "deleted": false});
        let owner = BlockOwner::Host(self.name.into());
        put(
            lab,
            &Key::Affinity(owner, self.prefix()).to_path(),
            &affinity,
        );
    }

    fn spec(&self) -> Value {
        let ipv4 = self.family() == Family::Ipv4;
        let mut spec = match ipv4 {
            true => json!({"bgp": {"ipv4Address": format!("{}/24", self.address)}}),
            false => json!({"bgp": {"ipv6Address": format!("{}/64", self.address)}}),
        };
        match self.tunnel {
            Tunnel::Ipip => spec["bgp"]["ipv4IPIPTunnelAddr"] = self.vtep.into(),
            Tunnel::Vxlan { mac, named, .. } => {
                let (address, key) = match ipv4 {
                    true => ("ipv4VXLANTunnelAddr", "vxlanTunnelMACAddr"),
                    false => ("ipv6VXLANTunnelAddr", "vxlanTunnelMACAddrV6"),
                };
                spec[address] = self.vtep.into();
                if named {
                    spec[key] = mac.into();
                }
            }
        }
        spec
    }

    /// The workload's endpoint in etcd.
    pub fn register_workload(&self, lab: &Lab) {
        let spec = json!({
            "node": self.name,
            "orchestrator": "k8s",
            "endpoint": "eth0",
            "workload": "web-0",
            "pod": "web-0",
            "interfaceName": "cali0d7763386da",
            "ipNetworks": [Prefix::host(self.pod.parse().expect("an address"))],
            "profiles": ["kns.default"],
        });
        let name = format!("default/{}-k8s-web--0-eth0", self.name);
        put_etcd_resource(lab, "WorkloadEndpoint", "workloadendpoints", &name, &spec);
    }

    fn ours(&self, lab: &Lab) -> Vec<Ours> {
        let family = self.family();
        let of = |name: String| {
            let layout = lab.layout().node(&name).expect("a node of the lab");
            let (_, v4, v6) = MACS.iter().find(|(n, ..)| *n == name).expect("a MAC");
            Ours {
                address: layout.uplink.address_of(family).expect("of this family").0,
                mac: either(family, v4, v6),
                blocks: blocks_of_node(lab, &name, family),
                name,
            }
        };
        caracals(lab).into_iter().map(of).collect()
    }

    /// The address of the VXLAN tunnel of one of our nodes.
    fn vtep_of(&self, lab: &Lab, node: &str) -> String {
        let key = format!("/calico/resources/v3/projectcalico.org/nodes/{node}");
        let read = || {
            let text = lab.etcdctl(&["get", &key, "--print-value-only"], b"");
            let text = text.map_err(|e| e.to_string())?;
            let node: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let spec = &node["spec"];
            let address = match self.family() {
                Family::Ipv4 => &spec["ipv4VXLANTunnelAddr"],
                Family::Ipv6 => &spec["ipv6VXLANTunnelAddr"],
            };
            let address = address.as_str().map(str::to_owned);
            address.ok_or_else(|| spec.to_string())
        };
        wait_until(30 * SECOND, "a tunnel address", read).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The name of its tunnel device.
    #[must_use]
    pub const fn device(&self) -> &'static str {
        match self.tunnel {
            Tunnel::Ipip => "tunl0",
            Tunnel::Vxlan { device, .. } => device,
        }
    }

    /// Its devices, entries and routes, from what our nodes have in etcd.
    pub fn dress(&self, lab: &Lab) {
        let device = self.device();
        let mtu = match (self.tunnel, self.family()) {
            (Tunnel::Ipip, _) => 1480,
            (_, Family::Ipv4) => 1450,
            (_, Family::Ipv6) => 1430,
        };
        self.make_device(lab, mtu);
        let mut commands = Vec::new();
        for ours in self.ours(lab) {
            let (mac, address) = (ours.mac, ours.address);
            let mut gateway = address.to_string();
            if let Tunnel::Vxlan { .. } = self.tunnel {
                let vtep = self.vtep_of(lab, &ours.name);
                commands.push(format!(
                    "ip neigh replace {vtep} lladdr {mac} dev {device} nud permanent"
                ));
                commands.push(format!(
                    "bridge fdb replace {mac} dev {device} dst {address} self permanent"
                ));
                gateway = vtep;
            }
            for block in &ours.blocks {
                commands.push(format!(
                    "ip {} route replace {block} via {gateway} dev {device} onlink mtu {mtu} src {} proto 80",
                    self.flag(),
                    self.pod
                ));
            }
        }
        for command in commands {
            run_on(lab, self.name, &command);
        }
    }

    fn flag(&self) -> &'static str {
        either(self.family(), "-4", "-6")
    }

    /// The tunnel, the workload's address, and forwarding.
    pub fn make_device(&self, lab: &Lab, mtu: u32) {
        let device = self.device();
        let (bits, dad) = either(self.family(), (32, ""), (128, " nodad"));
        let make = match self.tunnel {
            // The kernel's own.
            Tunnel::Ipip => format!("ip link set tunl0 mtu {mtu}"),
            Tunnel::Vxlan { mac, .. } => format!(
                "ip link add {device} address {mac} mtu {mtu} type vxlan id 4096 dstport 4789 local {} dev eth0 nolearning",
                self.address
            ),
        };
        for command in [
            make,
            format!("ip addr add {}/{bits} dev {device}{dad}", self.vtep),
            format!("ip link set {device} up"),
            "ip link set lo up".to_owned(),
            format!("ip addr add {}/{bits} dev lo{dad}", self.pod),
            either(
                self.family(),
                "sysctl -q -w net.ipv4.ip_forward=1",
                "sysctl -q -w net.ipv6.conf.all.forwarding=1",
            )
            .to_owned(),
        ] {
            run_on(lab, self.name, &command);
        }
    }

    /// Its routes to our pods without encapsulation, as Felix writes them.
    pub fn route_directly(&self, lab: &Lab) {
        for ours in self.ours(lab) {
            for block in &ours.blocks {
                let command = format!(
                    "ip {} route replace {block} via {} dev eth0 src {} proto 80",
                    self.flag(),
                    ours.address,
                    self.pod
                );
                run_on(lab, self.name, &command);
            }
        }
    }

    /// Pings both ways, of two sizes and never fragmented; each is counted.
    ///
    /// # Panics
    /// When one is lost.
    pub fn assert_reached(&self, lab: &Lab, what: &str) {
        for node in caracals(lab) {
            let pod = lab.state().pods.iter().find(|p| p.node == node);
            let pod = pod.and_then(|p| p.address_of(self.family()));
            let address = pod.expect("a pod on each node").to_string();
            ping(lab, &format!("{node}/p1"), self.pod, "");
            ping(lab, self.name, &address, &format!("-I {}", self.pod));
        }
        println!(
            "{what}: {} and our pods reach each other, both ways",
            self.name
        );
    }
}

/// Once one has come back none may be lost.
fn ping(lab: &Lab, from: &str, to: &str, more: &str) {
    let first = || try_run_on(lab, from, &format!("ping -n -c 1 -W 1 {more} {to}"));
    wait_until(30 * SECOND, &format!("{from} reaches {to}"), first)
        .unwrap_or_else(|e| panic!("{e}"));
    for size in [56, 1370] {
        let command = format!("ping -n -q -i 0.01 -c 50 -W 5 -M do -s {size} {more} {to}");
        let said = run_on(lab, from, &command);
        assert!(said.contains("50 received"), "{from} → {to}: {said}");
    }
}

/// The blocks of a node, as their owner is named in etcd.
///
/// # Panics
/// When etcd cannot be asked.
#[must_use]
pub fn blocks_of_node(lab: &Lab, node: &str, family: Family) -> Vec<String> {
    let version = either(family, "ipv4", "ipv6");
    let prefix = format!("/calico/ipam/v2/host/{node}/{version}/block/");
    let keys = lab.etcdctl(&["get", &prefix, "--prefix", "--keys-only"], b"");
    let keys = keys.unwrap_or_else(|e| panic!("{e}"));
    let block = |key: &str| match Key::parse(key) {
        Ok(Key::Affinity(_, block)) => Some(block.to_string()),
        _ => None,
    };
    keys.lines().filter_map(block).collect()
}

/// A real BIRD 2 on a foreign node that announces its block and writes what it learns, as Calico's
/// does up to 3.32. Calico's fork can send what it learns into a tunnel; this one gets the same
/// routes as static ones.
pub struct Bird {
    child: Child,
}

impl Drop for Bird {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Bird {
    /// Starts it; `tunnel`: routes to our pods go through this device.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(lab: &Lab, node: &Foreign, tunnel: Option<&str>) -> Self {
        let folder: PathBuf = lab.folder().path().join(format!("{}-bird", node.name));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("bird.conf");
        std::fs::write(&file, Self::configuration(lab, node, tunnel)).expect("a file");
        let log = std::fs::File::create(folder.join("log")).expect("a log");
        let mut command = program_command("bird").expect("bird is installed");
        command
            .arg("-f")
            .arg("-c")
            .arg(&file)
            .arg("-s")
            .arg(folder.join("ctl"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let netns = lab.netns(node.name).expect("a node of the lab");
        let child = spawn_in_netns(&netns, &mut command).expect("bird starts");
        Self { child }
    }

    fn configuration(lab: &Lab, node: &Foreign, tunnel: Option<&str>) -> String {
        let channel = either(node.family(), "ipv4", "ipv6");
        let mut peers = String::new();
        let mut tunnels = String::new();
        for ours in node.ours(lab) {
            let session = ours.name.replace('-', "_");
            let address = ours.address;
            let _ = writeln!(
                peers,
                "protocol bgp {session} from ours {{ neighbor {address} as 64512; }}"
            );
            for block in ours.blocks.iter().filter(|_| tunnel.is_some()) {
                let device = tunnel.unwrap_or_default();
                let _ = writeln!(tunnels, "  route {block} via {address}%{device} onlink;");
            }
        }
        format!(
            "router id 10.0.0.99;
log stderr all;
protocol device {{ scan time 2; }}
protocol direct {{ {channel}; interface \"eth0\"; }}
protocol kernel {{
  {channel} {{ import none; export where source != RTS_DEVICE; }};
  learn; persist; scan time 2; metric 1024;
}}
protocol static blocks {{ {channel}; route {block} blackhole; }}
protocol static tunnels {{ {channel};
{tunnels}}}
template bgp ours {{
  local {address} as 64512;
  multihop;
  connect retry time 2; connect delay time 1; error wait time 1, 5;
  graceful restart;
  {channel} {{ import all; export where proto = \"blocks\"; next hop self; gateway recursive; }};
}}
{peers}",
            block = node.block,
            address = node.address,
        )
    }
}
