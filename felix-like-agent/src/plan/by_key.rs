//! Planning by key: what changed since the plan before, which destinations depend on it, and those
//! again. What is not by key is planned whole; the two never differ (property test).
//!
//! | what changed | what is planned again |
//! |---|---|
//! | a block | itself, addresses that other nodes use of it, what BGP learned inside it |
//! | another node | its blocks and the addresses that it uses; what covers its addresses |
//! | a learned route | itself; all, when nodes may be reached by it |
//! | a pool, or whether it is in use | what lies inside it; all, when another device is needed |
//! | a block, or a pool, around an address of a node | all |
//! | a workload of this node or its interface | its addresses |
//! | anything else | all |

mod concerned;
mod job;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Family, Mac, NodeName, Prefix, Problem, SharedMap, Snapshot};

use super::blocks_by_node::BlocksByNode;
use super::destination::{Destination, RouteWarning};
use super::grouped_warnings::GroupedWarnings;
use super::guarded::Guarded;
use super::{
    HostRoutes, KernelSupport, OfNodes, PlanInputs, Planner, nat, plan_destination, routers,
    tunnels,
};
use crate::desired::Desired;
use crate::kernel_objects::{FdbKey, NeighbourKey, PlannedRoute, RouteKind};
use crate::learned::Learned;
use crate::links::{Link, Links};
use crate::nat::Nat;
use crate::ownership::is_tunnel_device;
use crate::settings::Settings;
use concerned::{add_guests, add_learned, changed_ranges, destinations};
pub use job::PlanJob;
use job::Work;

/// A plan, and how it differs from the one before.
#[derive(Clone, Debug)]
pub struct KernelPlan {
    /// The state that the kernel should have.
    pub desired: Desired,
    /// Parts of it that may differ from the plan before.
    pub changed: Changed,
    /// Number of its routes by kind.
    pub kinds: BTreeMap<&'static str, usize>,
}

/// Parts that may differ between two plans.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    /// Anything.
    All,
    /// Nothing but this, and sysctls.
    Keys(ChangedKeys),
}

/// Keys whose values differ between two plans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangedKeys {
    /// Destinations with another route.
    pub prefixes: BTreeSet<Prefix>,
    /// Permanent neighbours that may differ.
    pub neighbours: BTreeSet<NeighbourKey>,
    /// FDB entries.
    pub fdb: BTreeSet<FdbKey>,
    /// The NAT rules may differ.
    pub nat: bool,
}

/// Plans, and remembers what from.
#[derive(Debug, Default)]
pub struct KernelPlanner(Option<LastPlan>);

/// The last plan with what it was made from.
#[derive(Debug)]
struct LastPlan {
    from: PlannedFrom,
    of_nodes: OfNodes,
    own_blocks: Arc<BTreeSet<Prefix>>,
    /// `None` until nodes change: that is seldom.
    blocks: Option<BlocksByNode>,
    /// Addresses of this node's workloads.
    workloads: BTreeSet<Prefix>,
    /// Problems that are of no destination.
    problems: BTreeSet<Problem>,
    /// Some path is narrow: which routes that concerns depends on more than their keys.
    has_narrow: bool,
    warnings: BTreeMap<Prefix, Vec<RouteWarning>>,
    neighbours: BTreeMap<Prefix, (NeighbourKey, Mac)>,
    vteps: Vteps,
    /// How many neighbours other nodes' VTEPs are.
    vtep_count: usize,
    kinds: BTreeMap<&'static str, usize>,
    desired: Desired,
}

/// The inputs of a plan. Copies cost nothing or are small.
#[derive(Debug)]
struct PlannedFrom {
    snapshot: Snapshot,
    me: NodeName,
    learned: SharedMap<Prefix, Learned>,
    links: Links,
    host_routes: HostRoutes,
    settings: Settings,
    kernel: KernelSupport,
    lifelines: BTreeSet<IpAddr>,
}

/// VTEPs that have to be on the link, by the destinations that lead through them.
#[derive(Debug, Default)]
struct Vteps {
    of: BTreeMap<Prefix, Vec<IpAddr>>,
    users: BTreeMap<Prefix, usize>,
}

impl Vteps {
    /// Sets what a destination leads through; the VTEPs that are wanted or unwanted from now on.
    fn set(&mut self, prefix: Prefix, vteps: Vec<IpAddr>) -> Vec<Prefix> {
        let before = match vteps.is_empty() {
            true => self.of.remove(&prefix),
            false => self.of.insert(prefix, vteps.clone()),
        };
        let before = before.unwrap_or_default();
        if before == vteps {
            return Vec::new();
        }
        let mut turned = Vec::new();
        for vtep in vteps.into_iter().map(Prefix::host) {
            let users = self.users.entry(vtep).or_insert(0);
            *users += 1;
            turned.extend((*users == 1).then_some(vtep));
        }
        for vtep in before.into_iter().map(Prefix::host) {
            if let Some(users) = self.users.get_mut(&vtep) {
                *users -= 1;
                if *users == 0 {
                    self.users.remove(&vtep);
                    turned.push(vtep);
                }
            }
        }
        turned
    }

    fn is_wanted(&self, prefix: &Prefix) -> bool {
        self.users.contains_key(prefix)
    }
}

impl KernelPlanner {
    /// Plans: what depends on what changed since the last time, or all.
    pub fn plan(&mut self, inputs: &PlanInputs<'_>) -> KernelPlan {
        let job = self.begin(inputs);
        self.end(job)
    }

    /// Begins such a plan, to be made in slices. Until [`KernelPlanner::end`] nothing is
    /// remembered, so that a plan that is given up makes the next one a whole one.
    pub fn begin<'a>(&mut self, inputs: &'a PlanInputs<'a>) -> PlanJob<'a> {
        PlanJob::new(inputs, self.0.take())
    }

    /// Does what is left of a plan, and remembers it.
    pub fn end(&mut self, job: PlanJob<'_>) -> KernelPlan {
        let (state, changed) = job.finish();
        let (desired, kinds) = (state.desired.clone(), state.kinds.clone());
        self.0 = Some(state);
        KernelPlan {
            desired,
            changed,
            kinds,
        }
    }
}

impl PlannedFrom {
    fn new(inputs: &PlanInputs<'_>) -> Self {
        Self {
            snapshot: inputs.snapshot.clone(),
            me: inputs.me.clone(),
            learned: inputs.learned.clone(),
            links: inputs.links.clone(),
            host_routes: inputs.host_routes.clone(),
            settings: inputs.settings.clone(),
            kernel: inputs.kernel.clone(),
            lifelines: inputs.lifelines.clone(),
        }
    }
}

/// The interfaces that more depends on than workloads' own routes, and all subnets.
fn links_of_all<'a>(links: &'a Links, settings: &Settings) -> (Vec<&'a Link>, BTreeSet<Prefix>) {
    let of_a_workload = |link: &Link| {
        let name = link.name.as_str();
        let is_local =
            |address: IpAddr| matches!(address, IpAddr::V6(a) if a.is_unicast_link_local());
        settings.is_workload_interface(name)
            && !settings.mtu_interfaces.matches(name)
            && !is_tunnel_device(name)
            && link.addresses.iter().all(|cidr| is_local(cidr.address))
    };
    let others = links.iter().filter(|link| !of_a_workload(link));
    (others.collect(), links.subnets().collect())
}

impl LastPlan {
    /// True when what changed since this plan is of the kind that concerns some destinations only.
    fn is_followed(&self, inputs: &PlanInputs<'_>) -> bool {
        let (from, snapshot) = (&self.from, inputs.snapshot);
        let own = |snapshot: &Snapshot| snapshot.nodes.get(inputs.me).cloned();
        let in_pool =
            |snapshot: &Snapshot, at: &IpAddr| snapshot.pool_of(&Prefix::host(*at)).is_some();
        from.me == *inputs.me
            && !self.has_narrow
            && !inputs.settings.workload_routes
            && from.snapshot.bgp_configurations.is_same(&snapshot.bgp_configurations)
            && own(&from.snapshot) == own(snapshot)
            && from.settings == *inputs.settings
            && from.kernel == *inputs.kernel
            && routers::may_know(&from.snapshot) == routers::may_know(snapshot)
            && from.lifelines == *inputs.lifelines
            // Then workloads elsewhere count.
            && !inputs.lifelines.iter().any(|l| in_pool(&from.snapshot, l) || in_pool(snapshot, l))
            // Of paths those that are narrow count, and there was none.
            && from.host_routes.has_routes_of(inputs.host_routes)
            && links_of_all(&from.links, &from.settings)
                == links_of_all(inputs.links, inputs.settings)
    }

    /// Plans destinations, sorted and each of them once. Notes those with another route, and
    /// answers with the VTEPs that are wanted or unwanted because of them.
    fn put(
        &mut self,
        planner: &Planner<'_>,
        prefixes: Vec<Prefix>,
        changed: &mut ChangedKeys,
        differ: &mut Vec<Prefix>,
    ) -> Vec<Prefix> {
        let (mut routes, mut deferred, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        let mut turned = Vec::new();
        for prefix in prefixes {
            let mut to = plan_destination(planner, prefix, self.vteps.is_wanted(&prefix));
            let (known, found) = (self.desired.routes.get(&prefix), to.route.take());
            let mut differs = known != found.as_ref();
            if differs {
                count(&mut self.kinds, known, found.as_ref());
                routes.push((prefix, found));
            }
            if self.desired.deferred.get(&prefix) != to.deferred.as_ref() {
                deferred.push((prefix, to.deferred.take()));
                differs = true;
            }
            if self.desired.skipped.get(&prefix) != to.skipped.as_ref() {
                skipped.push((prefix, to.skipped.take()));
            }
            differ.extend(differs.then_some(prefix));
            turned.extend(self.put_rest(prefix, to, changed));
        }
        self.desired.routes.change(routes);
        self.desired.deferred.change(deferred);
        self.desired.skipped.change(skipped);
        turned
    }

    /// Takes over the plan of a destination, but for the desired route.
    fn put_rest(
        &mut self,
        prefix: Prefix,
        to: Destination,
        changed: &mut ChangedKeys,
    ) -> Vec<Prefix> {
        match to.warnings.is_empty() {
            true => drop(self.warnings.remove(&prefix)),
            false => drop(self.warnings.insert(prefix, to.warnings)),
        }
        let before = self.neighbours.get(&prefix);
        if before != to.neighbour.as_ref() {
            if let Some((key, _)) = self.neighbours.remove(&prefix) {
                self.desired.neighbours.remove(&key);
                changed.neighbours.insert(key);
            }
            if let Some((key, mac)) = to.neighbour {
                self.desired.neighbours.insert(key.clone(), mac);
                changed.neighbours.insert(key.clone());
                self.neighbours.insert(prefix, (key, mac));
            }
        }
        self.vteps.set(prefix, to.vteps)
    }

    /// All problems, of destinations and others.
    fn sum_up(&mut self) {
        let mut problems = self.problems.clone();
        let mut warnings = GroupedWarnings::default();
        for warning in self.warnings.values().flatten() {
            match warning {
                RouteWarning::Problem(problem) => drop(problems.insert(problem.clone())),
                RouteWarning::OneOf {
                    code,
                    subject,
                    sentence,
                    name,
                } => warnings.add(*code, subject, sentence.clone(), name),
            }
        }
        problems.extend(warnings.into_problems());
        self.desired.problems = problems;
    }

    /// Begins to plan what depends on what changed; `None` where that is everything.
    fn follow<'a>(mut self, inputs: &'a PlanInputs<'a>) -> Option<Work<'a>> {
        let (was, is) = (self.from.snapshot.clone(), inputs.snapshot);
        let nodes = is.nodes.changed_since(&was.nodes);
        let blocks = is.blocks.changed_since(&was.blocks);
        let learned = inputs.learned.changed_since(&self.from.learned);
        let ranges = changed_ranges(&was, is);
        // Whether an address of a node is used follows from the block and the pool around it.
        let host = |s: &Snapshot, cidr| s.blocks.get(cidr).and_then(|b| b.host().cloned());
        let turned = blocks
            .iter()
            .filter(|cidr| host(&was, *cidr) != host(is, *cidr));
        let turned: Vec<&Prefix> = turned.chain(&ranges).collect();
        let judges_nodes = |guarded: &Guarded| {
            let mut turned = turned.iter();
            turned.any(|range| guarded.nodes_in(**range).next().is_some())
        };
        let nodes_were_judged = judges_nodes(&self.of_nodes.guarded);
        if !nodes.is_empty() || !ranges.is_empty() {
            self.of_nodes.follow(inputs, &was, &nodes);
        }
        let of_nodes = self.of_nodes.clone();
        let mut planner = Planner::new(inputs, of_nodes.clone());
        let leads_to_nodes = |prefix: &Prefix| {
            let outside = !ranges.is_empty() || planner.pools.covering(prefix).is_none();
            outside && of_nodes.guarded.is_over(prefix)
        };
        let mut changed = ChangedKeys::default();
        if nodes_were_judged
            || judges_nodes(&of_nodes.guarded)
            || planner.desired.tunnels != self.desired.tunnels
            || !planner.narrow.is_empty()
            || learned.iter().any(leads_to_nodes)
            || self.nodes_are_reached_by_pools(inputs, &ranges)
            || (!blocks.is_empty() && !self.vteps_are_single())
            || !self.vteps(&planner, &was, &nodes, &mut changed)
        {
            return None;
        }
        let concerns_own = |cidr: &Prefix| {
            let host = |s: &Snapshot| s.blocks.get(cidr)?.host().cloned();
            [host(&was), host(is)].contains(&Some(inputs.me.clone()))
        };
        let same = nodes.is_empty() && ranges.is_empty() && !blocks.iter().any(concerns_own);
        planner.own_blocks = match same {
            true => Arc::clone(&self.own_blocks),
            false => Arc::new(own_blocks(&planner)),
        };
        let mut prefixes: BTreeSet<Prefix> = learned.into_iter().collect();
        prefixes.extend(&self.workloads);
        prefixes.extend(planner.workloads.keys());
        for cidr in &blocks {
            let both = [was.blocks.get(cidr), is.blocks.get(cidr)];
            both.into_iter()
                .flatten()
                .for_each(|b| add_guests(b, |_| true, &mut prefixes));
            add_learned(inputs, cidr, &mut prefixes);
            self.add_vteps(cidr, &mut prefixes);
        }
        for cidr in self.own_blocks.symmetric_difference(&planner.own_blocks) {
            add_learned(inputs, cidr, &mut prefixes);
        }
        prefixes.extend(&blocks);
        for range in &ranges {
            self.add_of_pool(inputs, range, &mut prefixes);
        }
        self.index(&was, is, &blocks, &nodes);
        self.add_of_nodes(&was, is, nodes.iter().collect(), &mut prefixes);
        let nat = self.nat(&planner, nodes.is_empty() && ranges.is_empty());
        changed.nat = nat != self.desired.nat;
        let mut work = Work::new(self, planner);
        (work.changed, work.nat) = (Some(changed), nat);
        work.first = prefixes.into_iter().collect::<Vec<_>>().into_iter();
        Some(work)
    }

    /// Takes over what was planned beside the destinations.
    fn take(&mut self, mut planner: Planner<'_>, nat: Option<Arc<Nat>>) {
        self.own_blocks = Arc::clone(&planner.own_blocks);
        self.workloads = planner.workloads.keys().copied().collect();
        self.problems = std::mem::take(&mut planner.desired.problems);
        let kept = std::mem::take(&mut self.desired);
        self.desired = Desired {
            nat,
            routes: kept.routes,
            deferred: kept.deferred,
            skipped: kept.skipped,
            neighbours: kept.neighbours,
            fdb: kept.fdb,
            ..planner.desired
        };
    }

    /// The NAT rules: those of the last plan while nothing that they follow from has changed.
    /// `same`: nodes and pools have not.
    fn nat(&self, planner: &Planner<'_>, same: bool) -> Option<Arc<Nat>> {
        let (from, inputs) = (&self.from, planner.inputs);
        let (was, is) = (&from.snapshot, inputs.snapshot);
        let same = same
            && was.bgp_peers.is_same(&is.bgp_peers)
            && was.workloads.is_same(&is.workloads)
            && from.links == *inputs.links;
        match same {
            true => self.desired.nat.clone(),
            false => Some(Arc::new(nat::plan(planner))),
        }
    }

    /// Follows the blocks that changed; the first time that nodes change, all are looked at.
    fn index(&mut self, was: &Snapshot, is: &Snapshot, blocks: &[Prefix], nodes: &[NodeName]) {
        match &mut self.blocks {
            Some(index) => index.follow(was, is, blocks),
            None if !nodes.is_empty() => self.blocks = Some(BlocksByNode::from_snapshot(is)),
            None => {}
        }
    }

    /// Sets the neighbours and FDB entries of these nodes. False where two nodes share one: then
    /// one that is gone may uncover the other.
    fn vteps(
        &mut self,
        planner: &Planner<'_>,
        was: &Snapshot,
        nodes: &[NodeName],
        changed: &mut ChangedKeys,
    ) -> bool {
        if !nodes.is_empty() && !self.vteps_are_single() {
            return false;
        }
        let desired = &mut self.desired;
        let of = |snapshot: &Snapshot, name: &NodeName| {
            let node = snapshot.nodes.get(name).cloned();
            let of = |family| tunnels::vtep_of(planner, node.as_ref()?, family);
            [Family::Ipv4, Family::Ipv6].map(of).into_iter().flatten()
        };
        for (neighbour, fdb, _) in nodes.iter().flat_map(|name| of(was, name)) {
            desired.neighbours.remove(&neighbour);
            desired.fdb.remove(&fdb);
            self.vtep_count -= 1;
            changed.neighbours.insert(neighbour);
            changed.fdb.insert(fdb);
        }
        for (neighbour, fdb, address) in nodes
            .iter()
            .flat_map(|name| of(planner.inputs.snapshot, name))
        {
            desired.neighbours.insert(neighbour.clone(), fdb.mac);
            desired.fdb.insert(fdb.clone(), address);
            self.vtep_count += 1;
            changed.neighbours.insert(neighbour);
            changed.fdb.insert(fdb);
        }
        self.vteps_are_single()
    }

    /// False where two nodes share the address or the MAC address of a VTEP.
    fn vteps_are_single(&self) -> bool {
        let (desired, vteps) = (&self.desired, self.vtep_count);
        let workloads = self.neighbours.len();
        vteps == desired.fdb.len() && vteps + workloads == desired.neighbours.len()
    }
}

/// Counts a route instead of the one that a destination has.
fn count(
    kinds: &mut BTreeMap<&'static str, usize>,
    known: Option<&PlannedRoute>,
    next: Option<&PlannedRoute>,
) {
    let [known, next] = [known, next].map(|route| Some(route?.kind));
    if known == next {
        return;
    }
    if let Some(kind) = next {
        *kinds.entry(kind.as_str()).or_insert(0) += 1;
    }
    if let Some(kind) = known.map(RouteKind::as_str)
        && let Some(count) = kinds.get_mut(kind)
    {
        *count -= 1;
        if *count == 0 {
            kinds.remove(kind);
        }
    }
}

/// This node's blocks, but for those that would cut it off.
fn own_blocks(planner: &Planner<'_>) -> BTreeSet<Prefix> {
    let inputs = planner.inputs;
    let own = inputs.snapshot.blocks.values();
    let own = own.filter(|block| block.host() == Some(inputs.me));
    let cuts = |cidr: Prefix| {
        let place = planner.place(&cidr);
        planner.guarded.covered_by(&cidr, place).is_some()
    };
    own.map(|block| block.cidr)
        .filter(|cidr| !cuts(*cidr))
        .collect()
}

#[cfg(test)]
mod tests;
