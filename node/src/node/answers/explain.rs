//! `caracal explain`: one destination at each stage on its way from the datastore to this node's
//! kernel. It asks the owners and reads the kernel; it decides nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use caracal_agent::{
    Actual, ActualRoute, ActualTarget, AgentStatus, Desired, FdbKey, NeighbourKey, Owner, PathMtus,
    RouteKind, is_tunnel_device, observe_kernel,
};
use caracal_bgp::{Explanation, SpeakerHandle};
use caracal_datastore::{Datastore, Store, View};
use caracal_model::{
    BlockOwner, Elsewhere, InsertEach, Key, KeyRange, KeyValue, Node, NodeName, Prefix, Problem,
    ProblemCode, Snapshot, WorkloadEndpoint, endpoint_name, format_mac,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::admin::routes::text;
use crate::service_list::{ListedService, with_address};

/// Everything that this node knows of a destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explained {
    /// The node that answers.
    pub(crate) node: String,
    pub(crate) destination: Prefix,
    /// Owner of the destination: a pod, a node, a service.
    pub(crate) owner: Option<String>,
    /// The Services that have the address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) services: Vec<ListedService>,
    /// The pool that holds it.
    pub(crate) pool: Option<PoolJson>,
    /// The block that holds it.
    pub(crate) block: Option<BlockJson>,
    /// Holder of the address.
    pub(crate) allocation: Option<AllocationJson>,
    /// Why there is a route: `workload`, `own block`, `remote block`, `BGP`, `tunnel`, `this node`,
    /// `foreign`, `none`.
    pub(crate) source: String,
    /// How packets travel: `local`, `direct`, `ipip`, `vxlan`, `blackhole`.
    pub(crate) mode: Option<String>,
    /// The paths with the rule by which each won or lost.
    pub(crate) bgp: Explanation,
    /// Route that the agent's plan has.
    pub(crate) planned: Option<String>,
    /// Why the agent wants nothing.
    pub(crate) skipped: Option<String>,
    /// Route in the kernel.
    pub(crate) kernel: Option<KernelRoute>,
    /// Path MTU to the node behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathJson>,
    /// The kernel has what the agent wants.
    pub(crate) in_step: bool,
    /// The revision of the datastore at each stage.
    pub(crate) revisions: Vec<Revision>,
    /// Problems that name it.
    pub(crate) problems: Vec<Problem>,
}

impl Explained {
    /// True when anything at all is known of the destination.
    pub(crate) fn is_known(&self) -> bool {
        let is_routed = self.bgp.prefix.is_some() || self.kernel.is_some();
        is_routed || self.pool.is_some() || !self.services.is_empty()
    }
}

/// A stage on the way to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DataStage {
    /// etcd's ModRevision of one key.
    Datastore,
    /// Revision of the node's snapshot.
    Snapshot,
    /// Revision that the agent's plan was made from.
    Plan,
    /// Revision that the kernel follows.
    Kernel,
}

/// How far something is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Revision {
    pub(crate) stage: DataStage,
    pub(crate) what: String,
    pub(crate) revision: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolJson {
    pub(crate) name: String,
    pub(crate) cidr: Prefix,
    pub(crate) ipip: String,
    pub(crate) vxlan: String,
    pub(crate) nat_outgoing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockJson {
    pub(crate) cidr: Prefix,
    /// `host:NODE`.
    pub(crate) affinity: Option<String>,
}

/// An address in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AllocationJson {
    pub(crate) handle: Option<String>,
    pub(crate) attributes: BTreeMap<String, String>,
}

/// The route that the kernel takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelRoute {
    /// As `ip route` would print it.
    pub(crate) route: String,
    /// `ours`, `adoptable` or `foreign`.
    pub(crate) owner: String,
    /// The devices, with their state.
    pub(crate) devices: Vec<Device>,
    /// Where the tunnel carries it, for VXLAN: the gateway's MAC and the node behind it.
    pub(crate) vtep: Option<String>,
}

/// The measured path to the node that has a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PathJson {
    pub(crate) node: String,
    pub(crate) address: IpAddr,
    /// The largest packet that arrives.
    pub(crate) mtu: u32,
}

/// A device of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) up: bool,
    /// Of the route, else of the device.
    pub(crate) mtu: u32,
    /// To whom it is sent there; `None` = the destination is on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gateway: Option<IpAddr>,
}

/// Where the answer comes from.
pub(crate) struct Sources<'a> {
    pub(crate) store: &'a Datastore,
    pub(crate) view: &'a watch::Receiver<View>,
    pub(crate) speaker: &'a SpeakerHandle,
    pub(crate) kernel: &'a watch::Receiver<Arc<AgentStatus>>,
}

/// Asks everybody.
pub(crate) async fn explain(
    sources: Sources<'_>,
    me: &NodeName,
    destination: Prefix,
) -> Result<Explained, String> {
    let view = sources.view.borrow().clone();
    let agent = sources.kernel.borrow().clone();
    let bgp = sources.speaker.explain(destination).await.map_err(text)?;
    let desired = &agent.desired;
    let actual = observe_kernel(desired)
        .await
        .map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
    let mut problems = view.problems();
    problems.extend(agent.problems.iter().cloned());
    let read = match read_elsewhere(sources.store, &view.snapshot, destination).await {
        Ok(read) => read,
        Err(reason) => {
            problems.push(Problem {
                code: ProblemCode::DatastoreUnreadable,
                subject: destination.to_string(),
                reason: format!("who has the address is not known: {reason}"),
            });
            Read::default()
        }
    };
    let paths = agent.paths.now();
    let facts = Facts {
        snapshot: &view.snapshot,
        read: &read,
        me,
        destination,
        desired,
        actual: &actual,
        planned_revision: view.followed(desired.revision),
        kernel_revision: view.followed(agent.kernel.revision),
        paths: &paths,
    };
    Ok(facts.explain(bgp, &problems))
}

/// Values about other nodes that the snapshot does not keep, read for one answer.
#[derive(Default)]
struct Read {
    /// The destination's block, with its addresses' holders.
    block: Option<caracal_model::Block>,
    /// The endpoint that has the destination, with its revision.
    endpoint: Option<(i64, WorkloadEndpoint)>,
}

/// Reads what is asked of another node's address.
async fn read_elsewhere(
    store: &Datastore,
    snapshot: &Snapshot,
    destination: Prefix,
) -> Result<Read, String> {
    let mut read = Read::default();
    let known = snapshot.block_of(&destination);
    if let Some(block) = known.filter(|b| b.whole().is_none()) {
        let key = KeyRange::Key(Key::Block(block.cidr).to_path());
        if let Some(stored) = values(store, key).await?.first() {
            read.block = Some(caracal_model::Block::from_json(&stored.value).map_err(text)?);
        }
    }
    let endpoint = match snapshot.elsewhere_with(&destination) {
        Some((place, _)) => {
            let (namespace, name) = Elsewhere::names(place);
            Some(KeyRange::Key(Key::workload(namespace, name).to_path()))
        }
        None => read.block.as_ref().and_then(|b| pod(b, destination)),
    };
    if let Some(endpoint) = endpoint {
        for stored in values(store, endpoint).await? {
            let endpoint = WorkloadEndpoint::from_json(&stored.value).map_err(text)?;
            if endpoint.spec.ip_networks.contains(&destination) {
                read.endpoint = Some((stored.mod_revision, endpoint));
            }
        }
    }
    Ok(read)
}

/// The endpoints of the pod that holds an address of a block.
fn pod(block: &caracal_model::Block, destination: Prefix) -> Option<KeyRange> {
    let mut held = block.allocated();
    let (_, _, attribute) = held.find(|(_, address, _)| *address == destination.address())?;
    let text = |key: &str| attribute.secondary.get(key);
    let (namespace, node, pod) = (text("namespace")?, text("node")?, text("pod")?);
    let of_any_interface = endpoint_name(node, "k8s", pod, "");
    let prefix = Key::workload(namespace, &of_any_interface).to_path();
    Some(KeyRange::Prefix(prefix))
}

async fn values(store: &Datastore, range: KeyRange) -> Result<Vec<KeyValue>, String> {
    const LIMIT: Duration = Duration::from_secs(2);
    let answer = tokio::time::timeout(LIMIT, store.read(&[range])).await;
    let answer = answer.map_err(|_| "the datastore does not answer".to_owned())?;
    let answer = answer.map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
    Ok(answer.ranges.into_iter().flatten().collect())
}

/// Inputs of the answer.
struct Facts<'a> {
    snapshot: &'a Snapshot,
    /// Data of other nodes that the snapshot leaves out.
    read: &'a Read,
    me: &'a NodeName,
    destination: Prefix,
    desired: &'a Desired,
    actual: &'a Actual,
    /// The revision that the plan follows, and the one that the kernel does.
    planned_revision: i64,
    kernel_revision: i64,
    paths: &'a PathMtus,
}

impl Facts<'_> {
    fn explain(&self, bgp: Explanation, problems: &[Problem]) -> Explained {
        let route = self.actual.route_to(&self.destination);
        let planned = self.planned();
        let own = self.own_address();
        let (source, mode) = match (&own, route, planned) {
            (Some(source), ..) => (source.clone(), Some("local".to_owned())),
            (None, Some(route), _) => self.source(route, &bgp),
            (None, None, _) => ("none".to_owned(), None),
        };
        let in_step = planned.is_none_or(|(_, planned)| {
            let there = self.actual.routes.get(&planned.route.key());
            there.is_some_and(|routes| routes.iter().any(|r| r.satisfies(&planned.route)))
        });
        let needle = self.destination.to_string();
        Explained {
            node: self.me.to_string(),
            destination: self.destination,
            owner: self.owner(),
            services: match self.destination.is_host() {
                true => with_address(self.snapshot, self.destination.address()),
                false => Vec::new(),
            },
            pool: self.pool(),
            block: self
                .snapshot
                .block_of(&self.destination)
                .map(|b| BlockJson {
                    cidr: b.cidr,
                    affinity: b.owner.as_ref().map(ToString::to_string),
                }),
            allocation: self.allocation(),
            source,
            mode,
            planned: planned.map(|(_, planned)| planned.route.to_string()),
            skipped: self.covering(|prefix| self.desired.skipped.get(prefix).cloned()),
            kernel: route.map(|route| self.kernel(route)),
            path: self.path(),
            in_step,
            revisions: self.revisions(),
            problems: problems
                .iter()
                .filter(|p| p.subject.contains(&needle) || p.reason.contains(&needle))
                .cloned()
                .collect(),
            bgp,
        }
    }

    /// The first answer for the destination itself or the longest prefix that covers it and lies in
    /// its pool's range.
    fn covering<T>(&self, find: impl Fn(&Prefix) -> Option<T>) -> Option<T> {
        (0..=self.destination.len())
            .rev()
            .find_map(|len| find(&Prefix::truncated(self.destination.address(), len)))
    }

    fn planned(&self) -> Option<(Prefix, &caracal_agent::PlannedRoute)> {
        self.covering(|prefix| {
            let planned = self.desired.routes.get(prefix)?;
            Some((*prefix, planned))
        })
    }

    /// The destination is an address of this machine: the kernel's local table has it.
    fn own_address(&self) -> Option<String> {
        let address = self.destination.address();
        let link = self.actual.links.holding(address)?;
        self.destination.is_host().then(|| {
            if is_tunnel_device(link.name.as_str()) {
                format!("tunnel: the address of {}", link.name)
            } else {
                format!("this node: an address of {}", link.name)
            }
        })
    }

    /// Why a kernel route is there, and how packets travel on it.
    fn source(&self, route: &ActualRoute, bgp: &Explanation) -> (String, Option<String>) {
        let planned = self.desired.routes.get(&route.prefix);
        let wanted = planned.filter(|p| p.route.metric == route.metric);
        let owner = self.desired.ownership.route(route);
        let Some(wanted) = wanted.filter(|_| owner != Owner::Foreign) else {
            let source = match owner {
                Owner::Foreign => format!("foreign: a route of protocol {}", route.protocol),
                _ => "left over: nothing asks for this route of ours".to_owned(),
            };
            return (source, None);
        };
        let learned = bgp.learned.is_some() && bgp.prefix == Some(route.prefix);
        let source = match wanted.kind {
            RouteKind::Local => "workload".to_owned(),
            RouteKind::Blackhole => "own block: the address is not in use".to_owned(),
            RouteKind::Direct if learned => "BGP".to_owned(),
            RouteKind::Vxlan | RouteKind::Ipip | RouteKind::Direct => {
                "remote block, from the datastore".to_owned()
            }
        };
        (source, Some(wanted.kind.as_str().to_owned()))
    }

    fn owner(&self) -> Option<String> {
        let own = self.snapshot.workloads.values().map(|workload| &**workload);
        for workload in own.chain(self.read.endpoint.iter().map(|(_, e)| e)) {
            if workload.spec.ip_networks.contains(&self.destination) {
                return Some(format!(
                    "workload {}/{} on node {}, behind {}",
                    workload.metadata.namespace.as_deref().unwrap_or_default(),
                    workload.metadata.name,
                    workload.spec.node,
                    workload.spec.interface_name
                ));
            }
        }
        if let Some((place, endpoint)) = self.snapshot.elsewhere_with(&self.destination) {
            return Some(format!("workload {place} on node {}", endpoint.node));
        }
        let address = self.destination.address();
        let on_node = |(name, node): (&NodeName, &caracal_model::Node)| {
            let family = self.destination.family();
            let what = if node.spec.address(family) == Some(address) {
                "the address"
            } else if node.spec.vxlan_address(family) == Some(address) {
                "the VXLAN tunnel address"
            } else if node.spec.ipip_address().map(std::net::IpAddr::from) == Some(address) {
                "the IPIP tunnel address"
            } else {
                return None;
            };
            Some(format!("{what} of node {name}"))
        };
        if self.destination.is_host() {
            let mut nodes = self.snapshot.nodes.iter();
            if let Some(owner) = nodes.find_map(|(name, node)| on_node((name, node))) {
                return Some(owner);
            }
        }
        let block = self.snapshot.block_of(&self.destination)?;
        let node = block.host()?;
        Some(format!("node {node}, whose block {} holds it", block.cidr))
    }

    fn path(&self) -> Option<PathJson> {
        let address = self.destination.address();
        let family = self.destination.family();
        let has = |node: &Node| node.spec.address(family) == Some(address);
        let itself = || self.snapshot.nodes.iter().find(|(_, node)| has(node));
        let behind = || {
            let block = self.snapshot.block_of(&self.destination)?;
            let borrower = self.snapshot.workloads.values().find(|workload| {
                let networks = &workload.spec.ip_networks;
                networks.contains(&self.destination)
            });
            let owner = block.host().map(NodeName::as_str);
            let elsewhere = self.snapshot.elsewhere_with(&self.destination);
            let borrower = borrower.map(|w| w.spec.node.as_str());
            let borrower = borrower.or_else(|| elsewhere.map(|(_, e)| e.node.as_str()));
            let mut guests = block.used_elsewhere();
            let guest = guests.find(|(guest, _)| *guest == self.destination.address());
            let borrower = borrower.or_else(|| guest.map(|(_, node)| node.as_str()));
            let name = borrower.or(owner)?;
            self.snapshot.nodes.get_key_value(name)
        };
        let (name, node) = itself().or_else(behind)?;
        let address = node.spec.address(family)?;
        let mtu = self.paths.get(&address)?.mtu;
        Some(PathJson {
            node: name.to_string(),
            address,
            mtu,
        })
    }

    fn pool(&self) -> Option<PoolJson> {
        let (name, pool) = self.snapshot.pool_of(&self.destination)?;
        Some(PoolJson {
            name: name.to_string(),
            cidr: pool.spec.prefix(),
            ipip: pool.spec.ipip_mode.to_string(),
            vxlan: pool.spec.vxlan_mode.to_string(),
            nat_outgoing: pool.spec.nat_outgoing,
        })
    }

    fn allocation(&self) -> Option<AllocationJson> {
        let block = self.snapshot.block_of(&self.destination)?;
        let block = block.whole().or(self.read.block.as_ref())?;
        let address = self.destination.address();
        let (_, _, attribute) = block
            .allocated()
            .find(|(_, allocated, _)| *allocated == address && self.destination.is_host())?;
        Some(AllocationJson {
            handle: attribute.handle_id.as_ref().map(ToString::to_string),
            attributes: attribute.secondary.clone().into_iter().insert_each(),
        })
    }

    fn kernel(&self, route: &ActualRoute) -> KernelRoute {
        let device = |hop: &caracal_agent::NextHop| {
            let there = self.actual.links.by_name(hop.link.as_str());
            Device {
                name: hop.link.to_string(),
                up: there.is_some_and(|l| l.up),
                mtu: route
                    .mtu
                    .or_else(|| there.map(|l| l.mtu))
                    .unwrap_or_default(),
                gateway: hop.gateway,
            }
        };
        KernelRoute {
            route: match (route.known(), &route.target) {
                (Some(known), _) => known.to_string(),
                (None, ActualTarget::Other(kind)) => {
                    format!("{} of route type {kind}", route.prefix)
                }
                (None, ActualTarget::Known(target)) => format!("{} {target}", route.prefix),
            },
            owner: match self.desired.ownership.route(route) {
                Owner::Ours => "ours",
                Owner::Adoptable => "adoptable",
                Owner::Leftover => "left by Calico",
                Owner::Foreign => "foreign",
            }
            .to_owned(),
            devices: route.next_hops().iter().map(device).collect(),
            vtep: self.vtep(route),
        }
    }

    /// Through which MAC and to which node a VXLAN device sends.
    fn vtep(&self, route: &ActualRoute) -> Option<String> {
        let [hop] = route.next_hops() else {
            return None;
        };
        let gateway = hop.gateway?;
        if hop.link.as_str() == caracal_agent::IPIP_DEVICE {
            return Some(format!("to {gateway}"));
        }
        if !is_tunnel_device(hop.link.as_str()) {
            return None;
        }
        let link = hop.link.clone();
        let key = NeighbourKey {
            link: link.clone(),
            address: gateway,
        };
        let Some(mac) = self.actual.neighbours.get(&key).and_then(|n| n.mac) else {
            return Some(format!(
                "no neighbour entry for {gateway}: packets are dropped"
            ));
        };
        let shown = format_mac(&mac);
        Some(match self.actual.fdb.get(&FdbKey { link, mac }) {
            Some(remote) => format!("{gateway} is {shown} behind {remote}"),
            None => format!(
                "{gateway} is {shown}, and no FDB entry says where that is: packets are dropped"
            ),
        })
    }

    fn revisions(&self) -> Vec<Revision> {
        let mut revisions = Vec::new();
        let mut add = |stage: DataStage, what: String, revision| {
            revisions.push(Revision {
                stage,
                what,
                revision,
            });
        };
        if let Some((name, pool)) = self.snapshot.pool_of(&self.destination) {
            add(DataStage::Datastore, format!("pool {name}"), pool.revision);
        }
        if let Some(block) = self.snapshot.block_of(&self.destination) {
            let what = format!("block {}", block.cidr);
            add(DataStage::Datastore, what, block.revision);
            if let Some(node) = block.host() {
                let owner = BlockOwner::Host(node.clone());
                if let Some(affinity) = self.snapshot.affinities.get(&(owner, block.cidr)) {
                    let what = format!("affinity of {node}");
                    add(DataStage::Datastore, what, affinity.revision);
                }
                if let Some(found) = self.snapshot.nodes.get(node) {
                    add(DataStage::Datastore, format!("node {node}"), found.revision);
                }
            }
        }
        for workload in self.snapshot.workloads.values() {
            if workload.spec.ip_networks.contains(&self.destination) {
                let what = format!("endpoint {}", workload.metadata.name);
                add(DataStage::Datastore, what, workload.revision);
            }
        }
        if let Some((revision, endpoint)) = &self.read.endpoint {
            let what = format!("endpoint {}", endpoint.metadata.name);
            add(DataStage::Datastore, what, *revision);
        }
        let last = "of the whole cluster".to_owned();
        add(DataStage::Snapshot, last.clone(), self.snapshot.revision);
        add(DataStage::Plan, last.clone(), self.planned_revision);
        add(DataStage::Kernel, last, self.kernel_revision);
        revisions
    }
}
