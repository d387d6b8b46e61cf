//! A change of the backend in a cluster of kernels: whatever the order in which nodes hear of it
//! and of each other's leases, every packet arrives (FLANNEL-7).
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use caracal_agent::{
    Actual, Desired, FdbKey, ForwardingTarget, Link, Links, NeighbourKey, Op, Phase, apply_op, diff,
};
use caracal_flannel::{
    AcquireRequest, Backend, DeviceMac, Families, FlannelConfig, FlannelKeys, FlannelNetwork,
    LeaseOrigin, LeaseTable, LeaseView, NodeSubnets, OwnLease, RelayTable, SubnetLease, Uplink,
    device_mac, plan_flannel, plan_relay,
};
use caracal_model::{Family, Prefix};
use proptest::prelude::*;

const BACKENDS: [&str; 10] = [
    r#"{"Type":"vxlan"}"#,
    r#"{"Type":"vxlan","DirectRouting":true}"#,
    r#"{"Type":"vxlan","VNI":5,"Port":4789}"#,
    r#"{"Type":"host-gw"}"#,
    r#"{"Type":"ipip"}"#,
    r#"{"Type":"ipip","DirectRouting":true}"#,
    r#"{"Type":"udp"}"#,
    r#"{"Type":"vxlan","MTU":1400}"#,
    r#"{"Type":"vxlan","Port":4789}"#,
    r#"{"Type":"vxlan","Port":4790,"DirectRouting":true}"#,
];
const NODES: [u8; 3] = [1, 2, 3];

const V4: Families = Families {
    v4: true,
    v6: false,
};
const STACKS: [Families; 3] = [
    V4,
    Families { v6: true, ..V4 },
    Families {
        v4: false,
        v6: true,
    },
];

fn config(backend: &str, families: Families) -> FlannelConfig {
    let v4 = match families.v4 {
        true => r#""Network":"10.5.0.0/16","#,
        false => r#""EnableIPv4":false,"#,
    };
    let v6 = match families.v6 {
        true => r#""EnableIPv6":true,"IPv6Network":"fd00:5::/48","#,
        false => "",
    };
    let text = format!(r#"{{{v4}{v6}"Backend":{backend}}}"#);
    FlannelConfig::parse(text.as_bytes()).unwrap()
}

fn subnets(node: u8, families: Families) -> NodeSubnets {
    let v4 = format!("10.5.{node}.0/24").parse().unwrap();
    let v6 = format!("fd00:5:0:{node:x}::/64").parse().unwrap();
    NodeSubnets {
        v4: families.v4.then_some(v4),
        v6: families.v6.then_some(v6),
    }
}

fn address(node: u8, family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => format!("10.0.0.{node}").parse().unwrap(),
        Family::Ipv6 => format!("fd00::{node:x}").parse().unwrap(),
    }
}

/// One machine.
struct Node {
    number: u8,
    network: FlannelNetwork,
    view: LeaseView,
    kernel: Actual,
    relay: Option<RelayTable>,
    /// Leases that it has not heard yet.
    unheard: Vec<SubnetLease>,
    /// So many more events until it may take away what nobody uses, as it is told.
    waits: usize,
    /// What is still to be written.
    ops: Vec<Op>,
}

impl Node {
    fn new(number: u8, config: &FlannelConfig, leases: &[SubnetLease]) -> Self {
        let families = config.families();
        let own = |family| families.has(family).then(|| address(number, family));
        let eth0 = Link::new(2, "eth0")
            .with_address(format!("10.0.0.{number}/24").parse().unwrap())
            .with_address(format!("fd00::{number:x}/64").parse().unwrap());
        let keys = FlannelKeys::new("/n");
        let uplink = Uplink {
            name: "eth0".into(),
            addresses: [own(Family::Ipv4), own(Family::Ipv6)],
            mtu: 1500,
        };
        let network = FlannelNetwork {
            config: config.clone(),
            before: Vec::new(),
            uplink,
            blackhole: false,
            metric: 0,
            macs: [[2, 0, 0, 0, 4, number], [2, 0, 0, 0, 6, number]],
            refused: Vec::new(),
        };
        let own = leases[usize::from(number) - 1].clone();
        let mut view = LeaseView {
            own: OwnLease {
                subnets: subnets(number, families),
                lease: own,
                revision: 1,
                reserved: false,
                origin: LeaseOrigin::Renewed,
            },
            leases: LeaseTable::new(keys.clone()),
            revision: 1,
            connected: true,
            settled: true,
            twin: None,
        };
        for (node, lease) in NODES.into_iter().zip(leases) {
            let key = keys.lease(&subnets(node, families));
            view.leases.change(&key, Some(&lease.to_json()), 1);
        }
        Self {
            number,
            network,
            view,
            kernel: Actual {
                links: std::iter::once(eth0).collect(),
                ..Actual::default()
            },
            relay: None,
            unheard: Vec::new(),
            waits: 0,
            ops: Vec::new(),
        }
    }

    fn request(&self) -> AcquireRequest {
        let families = self.network.config.families();
        let mac = |family, fresh| match &self.network.config.backend {
            Backend::Vxlan(options) => {
                let there = device_mac(family, options, &self.kernel.links);
                there.map_or(DeviceMac::Fresh(fresh), DeviceMac::Kept)
            }
            _ => DeviceMac::Fresh(fresh),
        };
        let [first, second] = self.network.macs;
        let public_ip = match address(self.number, Family::Ipv4) {
            IpAddr::V4(address) if families.v4 => Some(address),
            _ => None,
        };
        let public_ipv6 = match address(self.number, Family::Ipv6) {
            IpAddr::V6(address) if families.v6 => Some(address),
            _ => None,
        };
        AcquireRequest {
            keys: FlannelKeys::new("/n"),
            config: self.network.config.clone(),
            public_ip,
            public_ipv6,
            macs: [mac(Family::Ipv4, first), mac(Family::Ipv6, second)],
            devices_stand: self
                .network
                .devices_stand(&self.view.own.subnets, &self.kernel.links),
            previous: None,
            written: None,
            ttl: std::time::Duration::from_secs(60),
            seed: 0,
        }
    }

    /// Kinds of the leases that it knows.
    fn kinds(&self) -> Vec<String> {
        let leases = self.view.leases.iter().map(|(_, known)| &known.lease);
        let kind = |lease: &SubnetLease| {
            let data = lease.backend_data.as_ref();
            let data = data.or(lease.backend_v6_data.as_ref());
            let signs = data.map(|d| format!("{} {}", d["VNI"], d["Port"]));
            format!("{}{}", lease.backend_type, signs.unwrap_or_default())
        };
        leases.map(kind).collect()
    }

    fn take(&mut self, lease: &SubnetLease) {
        let before = self.kinds();
        let node = match lease.node() {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(address) => address.octets()[15],
        };
        let subnets = subnets(node, self.network.config.families());
        let key = FlannelKeys::new("/n").lease(&subnets);
        self.view.leases.change(&key, Some(&lease.to_json()), 2);
        let now = self.kinds();
        if before.iter().any(|kind| !now.contains(kind)) {
            (self.view.settled, self.waits) = (false, 40);
        }
    }

    fn plan(&self) -> Desired {
        plan_flannel(&self.network, &self.view, &self.kernel.links)
    }

    /// Writes one op, of those that the last comparison found or of a new one; false when nothing
    /// is left to be done.
    fn write(&mut self) -> bool {
        let port = self.network.relay_port(&self.view);
        match (&self.relay, port) {
            (None, Some(_)) => {
                let mut tun = Link::new(99, "flannel0");
                (tun.kind, tun.up) = ("tun".to_owned(), false);
                self.kernel.links.insert(tun);
            }
            (Some(_), None) if self.view.settled => {
                self.kernel.remove_link(&"flannel0".into());
                self.relay = None;
            }
            _ => {}
        }
        if port.is_some() || self.relay.is_some() {
            let newer = plan_relay(&self.network, &self.view);
            self.relay = Some(match self.relay.take() {
                Some(known) => known.follow(newer, self.view.settled),
                None => newer,
            });
        }
        if self.ops.is_empty() {
            let desired = self.plan();
            self.ops = diff(&desired, &self.kernel, Phase::Synced);
            let adds = self.ops.iter().any(|op| matches!(op, Op::AddTunnel(_)));
            let settled = self.view.settled;
            self.ops.retain(|op| match op {
                Op::DeleteTunnel(name) => desired.tunnels.contains_key(name) || settled && !adds,
                Op::AddTunnel(_) => true,
                op => !adds && (settled || !op.is_delete()),
            });
            self.ops.reverse();
        }
        match self.ops.pop() {
            Some(op) => {
                // What somebody took away meanwhile is no fault.
                apply_op(&mut self.kernel, &op).unwrap_or_else(|e| panic!("{op}: {e}"));
                true
            }
            None => false,
        }
    }

    /// VNI and port of a device.
    fn signs(&self, device: &str) -> Option<(u32, u16)> {
        signs(self.kernel.links.by_name(device)?)
    }

    fn has_up(&self, name: &str) -> bool {
        self.kernel.links.by_name(name).is_some_and(|link| link.up)
    }
}

fn signs(link: &Link) -> Option<(u32, u16)> {
    let made = link.vxlan.as_ref()?;
    Some((made.vni, made.port))
}

/// What becomes of a packet of one node to another one's subnet.
fn send(from: &Node, to: &Node, family: Family) -> Result<(), String> {
    let subnet = to.view.own.subnets.subnet(family).unwrap();
    let target = subnet.nth(9).unwrap();
    let routes = from.kernel.all_routes();
    let route = routes
        .filter(|route| route.prefix.contains(target))
        .max_by_key(|route| route.prefix.len())
        .ok_or_else(|| format!("no route to {target}"))?;
    let [hop] = route.next_hops() else {
        return Err(format!("{route:?}"));
    };
    let device = hop.link.as_str();
    if !from.has_up(device) {
        return Err(format!("{device} is not up"));
    }
    let there = address(to.number, family);
    let arrives = match (device, hop.gateway) {
        ("eth0", gateway) => gateway == Some(there),
        ("flannel.ipip", gateway) => gateway == Some(there) && to.has_up("flannel.ipip"),
        ("flannel0", _) => {
            let relay = from.relay.as_ref().ok_or("no relay")?;
            let next = relay.next_hop(target).map(|next| next.ip());
            next == Some(there) && to.relay.is_some() && to.has_up("flannel0")
        }
        (_, Some(gateway)) => {
            let link = hop.link.clone();
            let key = NeighbourKey {
                link: link.clone(),
                address: gateway,
            };
            let neighbour = from.kernel.neighbours.get(&key).and_then(|n| n.mac);
            let mac = neighbour.ok_or_else(|| format!("no neighbour {gateway} on {device}"))?;
            let sent = from.signs(device);
            // Whatever its name: that of the other family has the same signs.
            let mut received = to.kernel.links.iter();
            from.kernel.fdb.get(&FdbKey { link, mac }) == Some(&there)
                && sent.is_some()
                && received.any(|link| link.up && link.mac == Some(mac) && signs(link) == sent)
        }
        _ => false,
    };
    match arrives {
        true => Ok(()),
        false => Err(format!(
            "a packet for {target} by {:?} does not arrive",
            route.target
        )),
    }
}

fn assert_all_arrive(nodes: &[Node], families: &[Family], what: &str) {
    for from in nodes {
        for to in nodes.iter().filter(|to| to.number != from.number) {
            for family in families {
                if let Err(reason) = send(from, to, *family) {
                    panic!(
                        "{what}: {} to {}: {reason}\n{:?}\n{:#?}",
                        from.number,
                        to.number,
                        to.kinds(),
                        from.kernel.routes
                    );
                }
            }
        }
    }
}

/// A cluster that has this configuration.
fn cluster(config: &FlannelConfig) -> Vec<Node> {
    let empty = SubnetLease::parse(br#"{"PublicIP":"10.0.0.9"}"#).unwrap();
    let placeholder = [empty.clone(), empty.clone(), empty];
    let leases: Vec<SubnetLease> = NODES
        .iter()
        .map(|number| {
            let mut request = Node::new(*number, config, &placeholder).request();
            request.devices_stand = true;
            request.lease(None)
        })
        .collect();
    let families = config.families();
    assert_eq!(leases[0].public_ip.is_some(), families.v4);
    assert_eq!(leases[0].public_ipv6.is_some(), families.v6);
    NODES
        .iter()
        .map(|number| Node::new(*number, config, &leases))
        .collect()
}

/// Something happens to a node.
fn happen(nodes: &mut [Node], at: usize, what: u8, next: &FlannelConfig) {
    let node = &mut nodes[at];
    match what {
        0 if node.network.config != *next => node.network.change(next.clone()),
        1 => {
            let request = node.request();
            let (number, before) = (node.number, &node.view.own.lease);
            let lease = request.lease(Some(before));
            if lease != *before {
                node.take(&lease);
                node.view.own.lease = lease.clone();
                for other in nodes.iter_mut().filter(|other| other.number != number) {
                    other.unheard.push(lease.clone());
                }
            }
        }
        2 if !node.unheard.is_empty() => {
            let lease = node.unheard.remove(0);
            node.take(&lease);
        }
        // The daemon is started anew: what it knew of the network before is gone, and so is the
        // relay until the next step.
        3 if !matches!(node.network.config.backend, Backend::Udp { .. })
            && node.relay.is_none() =>
        {
            node.network.before.clear();
            node.ops.clear();
            (node.view.settled, node.waits) = (false, 40);
        }
        _ => {
            node.write();
        }
    }
}

/// Time: longer than anybody needs to hear and write what others said.
fn settle(nodes: &mut [Node]) {
    let busy = nodes.iter().any(|node| !node.unheard.is_empty());
    let unwritten = |node: &Node| {
        let ops = diff(&node.plan(), &node.kernel, Phase::Synced);
        ops.iter().any(|op| !op.is_delete())
    };
    if busy || nodes.iter().any(unwritten) {
        return;
    }
    for node in nodes {
        node.waits = node.waits.saturating_sub(1);
        node.view.settled |= node.waits == 0;
    }
}

fn write_all(nodes: &mut [Node]) {
    for node in nodes {
        while node.write() {}
    }
}

/// What one sees of a kernel; a device may have the second of its names.
fn shown(node: &Node) -> (Vec<String>, Vec<String>, usize) {
    let usual = |text: String| text.replace(".1b", ".1");
    let routes = node
        .kernel
        .all_routes()
        .map(|r| usual(format!("{} {:?}", r.prefix, r.target)));
    let mut routes: Vec<String> = routes.collect();
    routes.sort();
    let links: &Links = &node.kernel.links;
    let names = links.iter().map(|link| usual(link.name.to_string()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    (routes, names, node.kernel.fdb.len())
}

fn walk(from: &str, to: &str, stack: Families, steps: &[(usize, u8)]) {
    let carries_v6 = ![from, to].iter().any(|text| text.contains("ipip"));
    if !stack.v4 && !carries_v6 {
        return; // It is refused.
    }
    let (first, next) = (config(from, stack), config(to, stack));
    let mut families = vec![Family::Ipv4, Family::Ipv6];
    families.retain(|family| stack.has(*family) && (*family == Family::Ipv4 || carries_v6));
    let mut nodes = cluster(&first);
    write_all(&mut nodes);
    assert_all_arrive(&nodes, &families, "before");
    for (place, (node, what)) in steps.iter().enumerate() {
        happen(&mut nodes, *node, *what, &next);
        settle(&mut nodes);
        assert_all_arrive(&nodes, &families, &format!("{from} to {to}, step {place}"));
    }
    // All the rest, in turn.
    for round in 0..400 {
        for node in 0..nodes.len() {
            for what in [0, 1, 2, 4, 4, 4] {
                happen(&mut nodes, node, what, &next);
                let what = format!("{from} to {to}, round {round}");
                assert_all_arrive(&nodes, &families, &what);
            }
        }
        settle(&mut nodes);
        if round > 100
            && nodes
                .iter_mut()
                .all(|node| node.view.settled && !node.write())
        {
            break;
        }
    }
    let mut fresh = cluster(&next);
    write_all(&mut fresh);
    for (walked, fresh) in nodes.iter().zip(&fresh) {
        assert_eq!(shown(walked), shown(fresh), "{from} to {to}");
    }
}

/// Each pair of backends, in a fixed order: one node after the other.
#[test]
fn flannel_7_every_pair_of_backends_changes_without_a_loss() {
    for from in BACKENDS {
        for to in BACKENDS {
            for stack in STACKS {
                walk(from, to, stack, &[]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn flannel_7_whatever_the_order(
        from in 0..BACKENDS.len(), to in 0..BACKENDS.len(), stack in 0..STACKS.len(),
        steps in prop::collection::vec((0usize..3, 0u8..8), 0..120),
    ) {
        walk(BACKENDS[from], BACKENDS[to], STACKS[stack], &steps);
    }
}

/// By whose lease packets go, for each backend of the other node.
#[test]
fn flannel_7_a_node_is_sent_to_as_its_lease_says() {
    let ways = [
        (
            BACKENDS[0],
            "via 10.5.2.0 dev flannel.1 onlink",
            "flannel.1",
        ),
        (
            BACKENDS[2],
            "via 10.5.2.0 dev flannel.5 onlink",
            "flannel.5",
        ),
        (BACKENDS[3], "via 10.0.0.2 dev eth0", ""),
        (
            BACKENDS[4],
            "via 10.0.0.2 dev flannel.ipip onlink",
            "flannel.ipip",
        ),
        (BACKENDS[6], "dev flannel0", "flannel0"),
    ];
    let prefix: Prefix = "10.5.2.0/24".parse().unwrap();
    for (ours, _, our_device) in ways {
        for (theirs, way, device) in ways {
            let (mut nodes, others) = (cluster(&config(ours, V4)), cluster(&config(theirs, V4)));
            nodes[0].take(&others[1].view.own.lease);
            let desired = nodes[0].plan();
            let target = |prefix: &Prefix| {
                let planned = desired.routes.get(prefix)?;
                Some(planned.route.target.to_string())
            };
            // Among nodes of `udp` alone it is one route.
            let network = "10.5.0.0/16".parse().unwrap();
            let led = target(&prefix).or_else(|| target(&network));
            assert_eq!(led.as_deref(), Some(way), "{ours} and {theirs}");
            let devices: Vec<&str> = desired.tunnels.keys().map(|name| name.as_str()).collect();
            for wanted in [our_device, device].into_iter().filter(|d| !d.is_empty()) {
                assert!(
                    devices.contains(&wanted),
                    "{ours} and {theirs}: {devices:?}"
                );
            }
            // The third one has not changed.
            let third = desired.routes.get(&"10.5.3.0/24".parse().unwrap());
            let third = third.or_else(|| desired.routes.get(&network)).unwrap();
            let through = match &third.route.target {
                ForwardingTarget::Via(hops) => hops[0].link.to_string(),
                other => panic!("{other:?}"),
            };
            let expected = if our_device.is_empty() {
                "eth0"
            } else {
                our_device
            };
            assert_eq!(through, expected, "{ours} and {theirs}");
            assert!(desired.problems.is_empty(), "{:?}", desired.problems);
        }
    }
}
