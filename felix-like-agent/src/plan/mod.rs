//! `plan(inputs) -> Desired`: everything the kernel should hold, computed from the present state.
//!
//! A plan is made of destinations: `plan_destination` plans one, and the whole plan is that
//! function over all of them. [`KernelPlanner`] remembers what it planned from, and plans the
//! destinations again that a change concerns (decision 0077).
//!
//! Where routes come from: VXLAN and IPIP ones from the datastore (blocks by their affinity field
//! and a host route for each borrowed address), unencapsulated ones from BGP;
//! `programClusterRoutes` moves classes between the two sources ([`encap`]). Whatever the source,
//! the writer is the same.

mod blocks_by_node;
mod by_key;
mod destination;
pub(crate) mod encap;
mod grouped_warnings;
mod guarded;
mod held;
mod learned;
mod local;
mod loops;
pub(crate) mod mtu;
pub(crate) mod nat;
mod paths;
mod pools;
mod remote;
mod resolve;
mod routers;
#[cfg(test)]
pub(crate) mod tests;
mod tunnels;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Cidr, Family, IfName, NodeName, Prefix, ProblemCode, SharedMap, Snapshot};
use foldhash::HashMap;

use crate::desired::Desired;
use crate::kernel_objects::{ForwardingTarget, NextHop, Route};
use crate::learned::Learned;
use crate::links::{Link, Links};
use crate::nat::LoopGuard;
use crate::ownership::Ownership;
use crate::problem::problem;
use crate::settings::Settings;
use crate::slice::count_look;
pub use by_key::{Changed, ChangedKeys, KernelPlan, KernelPlanner, PlanJob};
use destination::{Destination, RouteWarning};
use encap::Sources;
use guarded::Guarded;
use local::Workload;
use paths::Narrow;
use pools::Pools;
use remote::{Addresses, Remote};
pub use resolve::HostRoutes;

/// Features of this kernel; `Err` is the reason why one is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSupport {
    /// IPIP devices can be made, or why not.
    pub ipip: Result<(), String>,
    /// VXLAN devices can be made, or why not.
    pub vxlan: Result<(), String>,
    /// The kernel has IPv6, or why not.
    pub ipv6: Result<(), String>,
    /// Next-hop objects can be used, or why not.
    pub objects: Result<(), String>,
    /// `net.ipv4.conf.default.rp_filter`, which workload interfaces get.
    pub default_rp_filter: u8,
    /// Interfaces on which a packet is dropped when its source is not reached by the interface it
    /// came in (`rp_filter` 1 there or for all, and 2 for neither).
    pub strict_rp_filter: BTreeSet<IfName>,
}

impl Default for KernelSupport {
    fn default() -> Self {
        Self {
            ipip: Ok(()),
            vxlan: Ok(()),
            ipv6: Ok(()),
            objects: Err("not tried".to_owned()),
            default_rp_filter: 0,
            strict_rp_filter: BTreeSet::new(),
        }
    }
}

/// Everything a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct PlanInputs<'a> {
    /// The datastore.
    pub snapshot: &'a Snapshot,
    /// The node that is planned for.
    pub me: &'a NodeName,
    /// Routes learned by BGP, their next hops resolved by the speaker.
    pub learned: &'a SharedMap<Prefix, Learned>,
    /// The interfaces.
    pub links: &'a Links,
    /// Routes of others, through which what is not on a link is reached.
    pub host_routes: &'a HostRoutes,
    /// Settings, FelixConfiguration applied ([`Settings::resolve`]).
    pub settings: &'a Settings,
    /// Features of the kernel.
    pub kernel: &'a KernelSupport,
    /// Addresses of the datastore's endpoints: without them nothing is heard any more.
    pub lifelines: &'a BTreeSet<IpAddr>,
}

/// Plans the whole state of the kernel.
#[must_use]
pub fn plan(inputs: &PlanInputs<'_>) -> Desired {
    KernelPlanner::default().plan(inputs).desired
}

/// Which interfaces the plan needs the kernel to be able to make, so that support is probed only
/// when wanted.
#[must_use]
pub fn wanted_tunnels(snapshot: &Snapshot, settings: &Settings) -> WantedTunnels {
    let pools = Pools::from_snapshot(snapshot, settings);
    WantedTunnels {
        ipip: pools.any_ipip(),
        vxlan: pools.any_vxlan(Family::Ipv4) || pools.any_vxlan(Family::Ipv6),
        objects: settings.objects,
    }
}

/// Kinds of tunnel that some pool uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedTunnels {
    /// Some pool wants IPIP.
    pub ipip: bool,
    /// Some pool wants VXLAN.
    pub vxlan: bool,
    /// Next-hop objects, which are no tunnels but have to be tried, too.
    pub objects: bool,
}

/// State that all destinations share, and the parts of the plan beside them: tunnels, sysctls, NAT.
struct Planner<'a> {
    inputs: &'a PlanInputs<'a>,
    desired: Desired,
    pools: Pools,
    sources: Sources,
    own: BTreeMap<Family, Own<'a>>,
    own_blocks: Arc<BTreeSet<Prefix>>,
    /// This node's workloads by address.
    workloads: BTreeMap<Prefix, Vec<Workload<'a>>>,
    /// Other nodes' addresses, where there are no blocks.
    addresses: Addresses<'a>,
    /// Addresses that routes of the datastore may not cover.
    guarded: Arc<Guarded>,
    /// Sources that routes name.
    hints: BTreeMap<Family, IpAddr>,
    /// Subnets of our interfaces.
    subnets: Vec<Prefix>,
    /// Ranges of service addresses.
    services: Vec<Prefix>,
    /// See [`routers::may_know`].
    routers_may_know: bool,
    /// Ends what is sent to unused ones.
    loops: BTreeMap<Family, LoopGuard>,
    /// The nodes at the ends of narrow paths.
    narrow: Narrow<'a>,
    /// Nodes are few and routes are many.
    resolved: RefCell<HashMap<IpAddr, Option<NextHop>>>,
    /// Nodes are fewer than their blocks, and the map of all nodes is a long way down.
    remotes: RefCell<HashMap<(&'a str, Family), Option<Remote<'a>>>>,
}

/// Results that depend on the nodes alone; kept while these stay the same.
#[derive(Clone, Debug)]
struct OfNodes {
    guarded: Arc<Guarded>,
    ownership: Ownership,
}

impl OfNodes {
    fn new(inputs: &PlanInputs<'_>) -> Self {
        Self {
            guarded: Arc::new(Guarded::new(inputs)),
            ownership: Ownership::from_settings(inputs.settings, inputs.snapshot),
        }
    }

    /// Follows these nodes of `was` to those of the inputs.
    fn follow(&mut self, inputs: &PlanInputs<'_>, was: &Snapshot, nodes: &[NodeName]) {
        let is = inputs.snapshot;
        Arc::make_mut(&mut self.guarded).follow(was, is, nodes);
        self.ownership = self.ownership.follow(inputs.settings, was, is);
    }
}

/// Plans one destination: this node's own block or workload, another node's by what the datastore
/// says of it, what BGP has learned; of these the best. `is_vtep`: other routes lead through it.
fn plan_destination(on: &Planner<'_>, prefix: Prefix, is_vtep: bool) -> Destination {
    count_look();
    let mut to = Destination {
        skipped: on.desired.skipped.get(&prefix).cloned(),
        ..Destination::default()
    };
    local::own_block(on, &mut to, prefix);
    local::workloads(on, &mut to, prefix);
    if is_vtep {
        remote::vtep_on_link(on, &mut to, prefix);
    }
    remote::of_block(on, &mut to, prefix);
    remote::of_address(on, &mut to, prefix);
    if let Some(learned) = on.inputs.learned.get(&prefix) {
        learned::plan(on, &mut to, prefix, learned);
    }
    paths::fit(on, &mut to);
    to
}

/// This node in one family.
#[derive(Clone, Copy)]
struct Own<'a> {
    /// Address and subnet as the datastore has it.
    cidr: Cidr,
    /// The interface that carries it.
    parent: Option<&'a Link>,
}

impl<'a> Planner<'a> {
    fn new(inputs: &'a PlanInputs<'a>, of_nodes: OfNodes) -> Self {
        let (sources, unclaimed) = Sources::from_settings(inputs.settings);
        let mut planner = Self {
            inputs,
            desired: Desired {
                revision: inputs.snapshot.revision,
                ownership: of_nodes.ownership,
                objects: inputs.settings.objects && inputs.kernel.objects.is_ok(),
                held: Arc::new(held::plan(inputs)),
                ..Desired::default()
            },
            pools: Pools::from_snapshot(inputs.snapshot, inputs.settings),
            sources,
            own: BTreeMap::new(),
            own_blocks: Arc::default(),
            workloads: BTreeMap::new(),
            addresses: remote::addresses(inputs),
            guarded: of_nodes.guarded,
            hints: BTreeMap::new(),
            subnets: inputs.links.subnets().collect(),
            services: learned::service_ranges(inputs.snapshot),
            routers_may_know: routers::may_know(inputs.snapshot),
            loops: BTreeMap::new(),
            narrow: Narrow::new(),
            resolved: RefCell::default(),
            remotes: RefCell::default(),
        };
        for class in unclaimed {
            planner.problem(
                ProblemCode::AgentProgramClusterRoutes,
                "programClusterRoutes",
                format!(
                    "neither FelixConfiguration nor BGPConfiguration claims {class} routes; they are written as by default"
                ),
            );
        }
        planner.find_own();
        planner.find_hints();
        local::plan(&mut planner);
        tunnels::plan(&mut planner);
        paths::plan(&mut planner);
        loops::plan(&mut planner);
        planner.desired.workload_mtu = planner.workload_mtu();
        planner
    }

    /// The node's own addresses and the interfaces that carry them.
    fn find_own(&mut self) {
        let PlanInputs {
            snapshot,
            me,
            links,
            ..
        } = *self.inputs;
        let Some(node) = snapshot.nodes.get(me) else {
            let reason =
                "this node is not in the datastore; only local routes are written".to_owned();
            self.problem(ProblemCode::AgentNoNode, me.as_str(), reason);
            return;
        };
        for family in [Family::Ipv4, Family::Ipv6] {
            let Some(cidr) = node.spec.cidr(family) else {
                continue;
            };
            let parent = links.holding(cidr.address);
            if parent.is_none() && self.family(family) {
                let reason = format!(
                    "no interface carries the node's address {}; routes and tunnels that need it wait for it",
                    cidr.address
                );
                self.problem(ProblemCode::AgentNoParent, me.as_str(), reason);
            }
            self.own.insert(family, Own { cidr, parent });
        }
    }

    fn problem(&mut self, code: ProblemCode, subject: &str, reason: String) {
        self.desired.problems.insert(problem(code, subject, reason));
    }

    /// Takes over what was found out about a prefix that is no destination.
    fn take(&mut self, prefix: Prefix, found: Destination) {
        let skipped = found.skipped.map(|reason| (prefix, reason));
        self.desired.skipped.extend(skipped);
        let problems = found.warnings.into_iter().filter_map(|c| match c {
            RouteWarning::Problem(problem) => Some(problem),
            RouteWarning::OneOf { .. } => None,
        });
        self.desired.problems.extend(problems);
    }

    /// True when a family is wanted and possible.
    fn family(&self, family: Family) -> bool {
        self.inputs.settings.family(family)
            && (family == Family::Ipv4 || self.inputs.kernel.ipv6.is_ok())
    }

    /// True when our own subnet contains another node's address.
    fn same_subnet(&self, address: IpAddr) -> bool {
        self.own
            .get(&Family::of(address))
            .is_some_and(|own| own.cidr.prefix().contains(address))
    }

    fn route(
        &self,
        prefix: Prefix,
        metric: u32,
        target: ForwardingTarget,
        mtu: Option<u32>,
    ) -> Route {
        let leads_on = target != ForwardingTarget::Blackhole;
        let source = self.hints.get(&prefix.family()).copied();
        Route {
            prefix,
            metric,
            protocol: self.inputs.settings.route_protocol,
            target,
            mtu,
            source: source.filter(|_| leads_on),
        }
    }

    /// The source addresses that routes name. The kernel takes none that no interface has.
    fn find_hints(&mut self) {
        let settings = self.inputs.settings;
        let asked = [
            settings.route_source.map(IpAddr::from),
            settings.route_source_v6.map(IpAddr::from),
        ];
        for address in asked.into_iter().flatten() {
            if self.inputs.links.holding(address).is_some() {
                self.hints.insert(Family::of(address), address);
            } else {
                let reason = format!(
                    "no interface has {address}: routes name no source until one does, and the kernel chooses"
                );
                self.problem(
                    ProblemCode::AgentSourceAddress,
                    "deviceRouteSourceAddress",
                    reason,
                );
            }
        }
    }

    /// Name and MTU of a planned tunnel device.
    fn tunnel(&self, name: &str) -> Option<(IfName, u32)> {
        let tunnel = self.desired.tunnels.get(name)?;
        Some((tunnel.name.clone(), tunnel.mtu))
    }
}
