//! From a topology to the steps that build it. Pure: nothing here starts a program or opens a file,
//! so a test can read the whole bring-up.
//!
//! A [`Layout`] holds every name and address; [`steps`] orders the work. Namespaces are listed
//! before anything exists, so that a lab that was killed half-way can be found and removed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use caracal_model::{Family, Prefix};

use serde_json::Value;

use crate::topology::{Datastore, NodeKind, Topology};

mod addresses;
mod environment;
pub(crate) mod kubernetes;
mod names;
mod network;
pub(crate) mod resources;
mod routes;
#[cfg(test)]
mod tests;

use addresses::Addresses;
use environment::environment;
pub use names::{LabName, LabNameError};
pub(crate) use network::{known_neighbours, network};
pub(crate) use resources::Document;

pub(crate) use kubernetes::{ACCOUNT as NODE_ACCOUNT, PLUGIN_ACCOUNT};

/// The port the API server listens on.
pub const API_PORT: u16 = 6443;
/// The port of `caracal flannel` for probes and metrics, in each node's namespace.
pub(crate) const FLANNEL_HEALTH_PORT: u16 = 8080;
/// The port etcd serves clients on.
pub const ETCD_PORT: u16 = 2379;

/// The port the first of etcd's proxies serves clients on; the others follow.
pub(crate) const PROXY_PORT: u16 = 23_790;

/// Every name and address of one lab.
#[derive(Clone, Debug)]
pub struct Layout {
    pub lab: LabName,
    /// Bridges, in the switch namespace.
    pub bridges: Vec<Bridge>,
    /// etcd's legs, one per segment.
    pub etcd: Vec<InterfaceLayout>,
    pub routers: Vec<RouterLayout>,
    pub nodes: Vec<NodeLayout>,
}

/// Bridge of a segment, in the switch namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    pub segment: String,
    /// Name of the bridge device.
    pub device: String,
    /// MTU of the segment.
    pub mtu: u16,
}

/// One end of a cable: a device in a namespace and its port in the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceLayout {
    pub segment: String,
    /// Name inside the namespace, `eth0` upwards.
    pub device: String,
    /// Name of the other end in the switch namespace.
    pub port: String,
    /// Address, of the family of the segment's `cidr`.
    pub address: IpAddr,
    /// Length of the segment's prefix.
    pub len: u8,
    /// IPv6 address with the length of `cidr6`, in a dual-stack segment.
    pub address6: Option<(Ipv6Addr, u8)>,
    /// MTU of the segment.
    pub mtu: u16,
}

impl InterfaceLayout {
    /// All addresses with the lengths of their prefixes.
    pub fn addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> + use<> {
        let second = self.address6.map(|(a, len)| (IpAddr::V6(a), len));
        std::iter::once((self.address, self.len)).chain(second)
    }

    /// The address of a family with the length of its prefix.
    #[must_use]
    pub fn address_of(&self, family: Family) -> Option<(IpAddr, u8)> {
        self.addresses().find(|(a, _)| Family::of(*a) == family)
    }
}

/// A route through a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaticRoute {
    /// Destination; `0.0.0.0/0` and `::/0` are default routes.
    pub destination: Prefix,
    /// Address of the next hop on a connected segment.
    pub next_hop: IpAddr,
}

/// Router: a namespace with an interface in several segments.
#[derive(Clone, Debug)]
pub struct RouterLayout {
    /// Name in the topology.
    pub name: String,
    /// Name of the network namespace.
    pub netns: String,
    pub legs: Vec<InterfaceLayout>,
    /// Routes to segments behind other routers.
    pub routes: Vec<StaticRoute>,
}

/// Node: its namespace, its uplink and its pods.
#[derive(Clone, Debug)]
pub struct NodeLayout {
    /// Name in the topology and in the cluster.
    pub name: String,
    /// Program that runs in it.
    pub kind: NodeKind,
    /// Name of the network namespace.
    pub netns: String,
    /// Interface of the node, `eth0`.
    pub uplink: InterfaceLayout,
    /// Default route (dead where the segment has no router) and more specific ones.
    pub routes: Vec<StaticRoute>,
    /// Where this node reaches etcd; several with commas between them.
    pub etcd_endpoint: String,
    /// Environment of `caracal node` or `caracal flannel`, without directories.
    pub env: BTreeMap<String, String>,
    /// Pods of the node.
    pub pods: Vec<PodLayout>,
}

impl NodeLayout {
    /// Its pods have addresses of its Node's `podCIDRs`, from the plugin `host-local`.
    pub(crate) fn uses_pod_cidr(&self) -> bool {
        self.env.get("USE_POD_CIDR").map(String::as_str) == Some("true")
    }

    /// Where its process keeps Calico's data.
    pub(crate) fn datastore(&self) -> Datastore {
        match self.env.get("DATASTORE_TYPE").map(String::as_str) {
            Some("kubernetes") => Datastore::Kubernetes,
            _ => Datastore::Etcd,
        }
    }
}

/// A pod's namespace; its interface is the CNI plugin's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLayout {
    /// Name, unique on its node.
    pub name: String,
    /// Name of the network namespace.
    pub netns: String,
}

/// One piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Make these network namespaces.
    Namespaces(Vec<String>),
    /// Write a sysctl inside a namespace.
    Sysctl {
        /// Name of the network namespace.
        netns: String,
        /// With slashes, below `/proc/sys`.
        key: String,
        value: &'static str,
        /// A kernel without this key is fine.
        optional: bool,
    },
    /// One `ip -batch` inside a namespace.
    Ip {
        /// Name of the network namespace.
        netns: String,
        /// Commands for `ip -batch`, each without its `ip`.
        lines: Vec<String>,
    },
    /// Start etcd and wait until it serves.
    StartEtcd,
    /// Start a proxy of etcd, by its number from 1 on, and wait until it serves.
    StartEtcdProxy(u8),
    /// Start the API server with its first objects and wait until it serves.
    StartApiServer(Vec<Value>),
    /// Put documents into etcd.
    Put(Vec<Document>),
    /// Put the configuration of flannel's network into etcd.
    PutNetConf(Value),
    /// Start `caracal node`, or `caracal flannel`.
    StartNode(String),
    /// Wait until a node serves.
    AwaitNode(String),
    /// Call the CNI plugin for pods, given as node and name.
    AddPods(Vec<(String, String)>),
    /// Start a foreign speaker; it comes after the pods, as its configuration names their blocks.
    StartSpeaker(String),
}

impl Layout {
    /// Gives names and addresses to everything in a (checked) topology.
    #[must_use]
    pub fn new(topology: &Topology, lab: &LabName) -> Self {
        let families: Vec<_> = topology
            .families()
            .into_iter()
            .map(|family| addresses::assign(topology, family))
            .collect();
        let graphs: Vec<_> = families
            .iter()
            .map(|addresses| routes::Graph::new(topology, addresses))
            .collect();
        let mut ports = 0..;
        let mut cable = |segment: &str, device: usize, of: &dyn Fn(&Addresses) -> IpAddr| {
            let s = topology
                .segment(segment)
                .expect("invariant: references were checked");
            let second = families.get(1).map(of);
            InterfaceLayout {
                segment: segment.to_owned(),
                device: format!("eth{device}"),
                port: format!("port{}", ports.next().expect("invariant: ports never end")),
                address: of(&families[0]),
                len: s.cidr.value.len(),
                address6: match (second, &s.cidr6) {
                    (Some(IpAddr::V6(address)), Some(cidr)) => Some((address, cidr.value.len())),
                    _ => None,
                },
                mtu: s.mtu,
            }
        };
        let bridges = topology.segments.iter().map(|s| Bridge {
            segment: s.name.value.clone(),
            device: format!("br-{}", s.name.value),
            mtu: s.mtu,
        });
        let bridges = bridges.collect();
        let etcd: Vec<_> = topology
            .segments
            .iter()
            .enumerate()
            .map(|(i, s)| cable(&s.name.value, i, &|a| a.etcd[&s.name.value]))
            .collect();
        let routers = topology.routers.iter().map(|r| {
            let name = &r.name.value;
            let legs = r.legs.iter().enumerate().map(|(i, leg)| {
                let segment = &leg.segment.value;
                let key = (name.clone(), segment.clone());
                cable(segment, i, &|a| a.legs[&key])
            });
            RouterLayout {
                name: name.clone(),
                netns: lab.netns(name),
                legs: legs.collect(),
                routes: graphs.iter().flat_map(|g| g.router_routes(r)).collect(),
            }
        });
        let routers = routers.collect();
        let nodes = topology.nodes.iter().enumerate().map(|(number, n)| {
            let segment = &n.segment.value;
            let uplink = cable(segment, 0, &|a| a.nodes[&n.name.value]);
            let endpoint = endpoints(topology, families[0].etcd[segment], number);
            NodeLayout {
                name: n.name.value.clone(),
                kind: kind(topology, n),
                netns: lab.netns(&n.name.value),
                env: environment(topology, n, &uplink, &endpoint),
                uplink,
                routes: graphs.iter().flat_map(|g| g.node_routes(segment)).collect(),
                etcd_endpoint: endpoint,
                pods: pods(lab, n),
            }
        });
        let nodes = nodes.collect();
        Self {
            lab: lab.clone(),
            bridges,
            etcd,
            routers,
            nodes,
        }
    }

    /// Namespace of the bridges.
    #[must_use]
    pub fn switch_netns(&self) -> String {
        self.lab.netns("switch")
    }

    /// Name of the network namespace of etcd.
    #[must_use]
    pub fn etcd_netns(&self) -> String {
        self.lab.netns("etcd")
    }

    /// All namespaces of the lab.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        let mut all = vec![self.switch_netns(), self.etcd_netns()];
        all.extend(self.routers.iter().map(|r| r.netns.clone()));
        all.extend(self.nodes.iter().map(|n| n.netns.clone()));
        all.extend(
            self.nodes
                .iter()
                .flat_map(|n| n.pods.iter().map(|p| p.netns.clone())),
        );
        all
    }

    /// The node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeLayout> {
        self.nodes.iter().find(|n| n.name == name)
    }
}

/// The port of a proxy of etcd, by its number from 1 on.
pub(crate) const fn proxy_port(number: u8) -> u16 {
    PROXY_PORT + number as u16 - 1
}

/// Endpoint of a node: etcd at one address, or its proxies, if there are any. Each node begins with
/// the next one.
fn endpoints(topology: &Topology, address: IpAddr, node: usize) -> String {
    let proxies: Vec<u16> = (1..=topology.etcd.proxies).map(proxy_port).collect();
    let mut ports = match proxies.is_empty() {
        true => vec![ETCD_PORT],
        false => proxies,
    };
    let first = node % ports.len();
    ports.rotate_left(first);
    let urls = ports
        .iter()
        .map(|port| format!("http://{}", SocketAddr::new(address, *port)));
    urls.collect::<Vec<_>>().join(",")
}

/// Program that runs in a node.
fn kind(topology: &Topology, node: &crate::topology::Node) -> NodeKind {
    match (topology.flannel(), node.kind) {
        (Some(_), NodeKind::Caracal) => NodeKind::Flannel,
        (_, kind) => kind,
    }
}

fn pods(lab: &LabName, node: &crate::topology::Node) -> Vec<PodLayout> {
    let names = node.pods.value.0.iter();
    let pods = names.map(|pod| PodLayout {
        name: pod.clone(),
        netns: lab.netns(&format!("{}-{pod}", node.name.value)),
    });
    pods.collect()
}

/// The part of the bring-up that needs no `caracal`.
#[must_use]
pub(crate) fn network_and_etcd(topology: &Topology, layout: &Layout) -> Vec<Step> {
    let mut steps = network(layout);
    steps.push(Step::StartEtcd);
    steps.extend((1..=topology.etcd.proxies).map(Step::StartEtcdProxy));
    if topology.datastore == Datastore::Kubernetes {
        let objects = kubernetes::objects(topology, layout);
        steps.push(Step::StartApiServer(objects));
        return steps;
    }
    if let Some(flannel) = topology.flannel() {
        steps.push(Step::PutNetConf(flannel.net_conf()));
        return steps;
    }
    let documents = resources::documents(topology, layout);
    if !documents.is_empty() {
        steps.push(Step::Put(documents));
    }
    steps
}

/// The bring-up, in order.
#[must_use]
pub(crate) fn steps(topology: &Topology, layout: &Layout) -> Vec<Step> {
    let mut steps = network_and_etcd(topology, layout);
    let of = |kind: fn(NodeKind) -> bool| layout.nodes.iter().filter(move |n| kind(n.kind));
    let caracal = |kind| matches!(kind, NodeKind::Caracal | NodeKind::Flannel);
    steps.extend(of(caracal).map(|n| Step::StartNode(n.name.clone())));
    steps.extend(of(caracal).map(|n| Step::AwaitNode(n.name.clone())));
    let pods = layout
        .nodes
        .iter()
        .flat_map(|n| n.pods.iter().map(|p| (&n.name, &p.name)));
    let pods: Vec<_> = pods
        .map(|(node, pod)| (node.clone(), pod.clone()))
        .collect();
    if !pods.is_empty() {
        steps.push(Step::AddPods(pods));
    }
    let foreign = |kind| matches!(kind, NodeKind::Bird2 | NodeKind::Gobgp);
    steps.extend(of(foreign).map(|n| Step::StartSpeaker(n.name.clone())));
    steps
}
