//! A simulated cluster: nodes in two subnets by turns, blocks with pods in them, and what a kernel
//! in step holds.

use std::collections::BTreeSet;

use caracal_agent::{
    Actual, ActualNeighbour, Desired, HostRoutes, KernelPlan, KernelPlanner, KernelSupport,
    Learned, Link, Links, PlanInputs, PlanJob, Settings, TunnelDevice, VxlanParameters,
};
use caracal_model::{
    AllocationAttribute, Block, BlockOwner, Key, NodeName, Prefix, SharedMap, Snapshot,
};

/// Addresses in use in each block.
const PODS: usize = 30;

/// A datastore with so many nodes and blocks.
#[must_use]
pub fn snapshot(nodes: u32, blocks: u32) -> Snapshot {
    let mut snapshot = Snapshot {
        whole_blocks_of: Some("node0".into()),
        ..Snapshot::default()
    };
    let mut put = |path: String, value: Vec<u8>| {
        snapshot.apply(&path, Some(&value), 1);
    };
    put(resource("ippools", "p"), pool(true).into());
    for n in 0..nodes {
        let (name, value) = node_value(n);
        put(resource("nodes", name.as_str()), value.into());
    }
    for n in 0..blocks {
        let node: NodeName = format!("node{}", n % nodes).into();
        let cidr = Prefix::truncated(pod_address(n, 0).into(), 26);
        let mut block = Block::new(cidr, Some(&BlockOwner::Host(node.clone())), 1);
        for ordinal in 0..PODS {
            block.allocations[ordinal] = Some(ordinal);
            block.unallocated.retain(|free| *free != ordinal);
            let mut attribute = AllocationAttribute {
                handle_id: Some(format!("k8s-pod-network.{n:08x}{ordinal:056x}")),
                ..AllocationAttribute::default()
            };
            for (key, value) in [
                ("node", node.as_str()),
                ("namespace", "default"),
                ("pod", "web-0"),
            ] {
                attribute.secondary.insert(key.to_owned(), value.to_owned());
            }
            block.attributes.push(attribute);
        }
        put(Key::Block(cidr).to_path(), block.to_json());
    }
    snapshot
}

fn resource(kind: &str, name: &str) -> String {
    format!("/calico/resources/v3/projectcalico.org/{kind}/{name}")
}

/// The pool's value.
fn pool(nat_outgoing: bool) -> String {
    format!(
        r#"{{"metadata":{{"name":"p"}},"spec":{{"cidr":"10.128.0.0/9","vxlanMode":"CrossSubnet","natOutgoing":{nat_outgoing}}}}}"#
    )
}

/// A node's name and value.
fn node_value(n: u32) -> (NodeName, String) {
    let (rack, host) = (n % 2, n / 2 + 1);
    let address = format!("10.{rack}.{}.{}/16", host / 250, host % 250 + 1);
    let vtep = pod_address(n, 0);
    let value = format!(
        r#"{{"metadata":{{"name":"node{n}"}},"spec":{{"ipv4VXLANTunnelAddr":"{vtep}","bgp":{{"ipv4Address":"{address}"}}}}}}"#
    );
    (format!("node{n}").into(), value)
}

fn pod_address(block: u32, ordinal: u32) -> std::net::Ipv4Addr {
    (u32::from(std::net::Ipv4Addr::new(10, 128, 0, 0)) + block * 64 + ordinal).into()
}

/// Everything a plan needs.
pub struct PlannedNode {
    snapshot: Snapshot,
    me: NodeName,
    learned: SharedMap<Prefix, Learned>,
    links: Links,
    host_routes: HostRoutes,
    settings: Settings,
    kernel: KernelSupport,
}

impl PlannedNode {
    /// The first node of a cluster.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        let uplink = Link::new(2, "eth0").with_address("10.0.0.2/16".parse().expect("an address"));
        Self {
            me: "node0".into(),
            learned: SharedMap::default(),
            links: [Link::new(1, "lo"), uplink].into_iter().collect(),
            host_routes: HostRoutes::default(),
            settings: Settings::default(),
            kernel: KernelSupport::default(),
            snapshot,
        }
    }

    #[must_use]
    pub fn plan(&self) -> Desired {
        self.follow(&mut KernelPlanner::default()).desired
    }

    /// Its plan, by what changed since the one before.
    pub fn follow(&self, planning: &mut KernelPlanner) -> KernelPlan {
        self.in_slices(planning, |_| ())
    }

    /// The same, step by step.
    pub fn in_slices(
        &self,
        planning: &mut KernelPlanner,
        run: impl FnOnce(&mut PlanJob<'_>),
    ) -> KernelPlan {
        let inputs = PlanInputs {
            lifelines: &BTreeSet::new(),
            snapshot: &self.snapshot,
            me: &self.me,
            learned: &self.learned,
            links: &self.links,
            host_routes: &self.host_routes,
            settings: &self.settings,
            kernel: &self.kernel,
        };
        let mut job = planning.begin(&inputs);
        run(&mut job);
        planning.end(job)
    }

    /// Whether routes with one gateway lead through next-hop objects.
    pub fn use_objects(&mut self, objects: bool) {
        self.settings.objects = objects;
        self.kernel.objects = Ok(());
    }

    /// Gives a block to another node.
    pub fn move_block(&mut self, block: u32, node: u32) {
        let owner = BlockOwner::Host(format!("node{node}").into());
        let cidr = Prefix::truncated(pod_address(block, 0).into(), 26);
        let value = Block::new(cidr, Some(&owner), 1).to_json();
        self.apply(&Key::Block(cidr).to_path(), Some(&value));
    }

    /// Turns the pool's `natOutgoing` on or off.
    pub fn set_pool(&mut self, nat_outgoing: bool) {
        self.apply(
            &resource("ippools", "p"),
            Some(pool(nat_outgoing).as_bytes()),
        );
    }

    /// Adds a node without blocks, or takes it away.
    pub fn set_node(&mut self, node: u32, is_there: bool) {
        let (name, value) = node_value(node);
        let value = is_there.then_some(value.as_bytes());
        self.apply(&Key::node(&name).to_path(), value);
    }

    fn apply(&mut self, path: &str, value: Option<&[u8]>) {
        let revision = self.snapshot.revision + 1;
        self.snapshot.apply(path, value, revision);
    }

    /// A kernel that holds just what is desired.
    #[must_use]
    pub fn in_step(&self, desired: &Desired) -> Actual {
        let mut links: Vec<Link> = self.links.iter().cloned().collect();
        for (index, tunnel) in (3..).zip(desired.tunnels.values()) {
            let mut link = Link::new(index, tunnel.name.as_str());
            link.kind = tunnel.kind.as_str().to_owned();
            link.mtu = tunnel.mtu;
            link.addresses.extend(tunnel.cidr());
            if let TunnelDevice::Vxlan {
                vni,
                port,
                local,
                mac,
                ..
            } = &tunnel.kind
            {
                link.mac = Some(*mac);
                link.vxlan = Some(VxlanParameters {
                    vni: *vni,
                    port: *port,
                    local: Some(*local),
                    parent: Some(2),
                    learning: false,
                    external: false,
                });
            }
            links.push(link);
        }
        let mut actual = Actual {
            links: links.into_iter().collect(),
            fdb: desired
                .fdb
                .iter()
                .map(|(key, to)| (key.clone(), *to))
                .collect(),
            sysctls: desired.sysctls.clone(),
            nat: desired.nat.as_ref().map(|nat| nat.fingerprint()),
            ..Actual::default()
        };
        for planned in desired.routes.values() {
            actual.push_route(planned.route.clone().into());
        }
        for (key, mac) in &desired.neighbours {
            let neighbour = ActualNeighbour {
                mac: Some(*mac),
                permanent: true,
            };
            actual.neighbours.insert(key.clone(), neighbour);
        }
        actual
    }
}
