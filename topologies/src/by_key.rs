//! A plan that follows what changed: a block plans its own announcements again, and nothing else; a
//! Service or its endpoints those of the Service, and of those that share an address with it; a
//! node that is nobody's peer here those of Services that have an address of it. Whatever sessions,
//! filters and settings follow from plans the whole, and so does a block around an address that a
//! Node says is its own. The two never differ (property test).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{InsertEach, Kind, NodeName, Prefix, Problem, SharedMap, Snapshot};

use crate::announce::Announcer;
use crate::common::path;
use crate::others::{judged_by_blocks, nodes_concern};
use crate::services::{PlannedServices, ServicesDiffer};
use crate::wanted::Wanted;
use crate::{BgpPlan, PlanOptions, plan_the_rest};

/// How a plan came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replanned {
    /// As a whole: anything may differ from the plan before.
    Whole,
    /// By key. At most the routes that the node originates, what the kernel is told of services,
    /// and the problems of both differ; `false`: these neither.
    Announcements(bool),
}

/// Plans, and remembers what from.
#[derive(Debug, Default)]
pub struct BgpPlanner(Option<LastPlan>);

#[derive(Debug)]
struct LastPlan {
    snapshot: Snapshot,
    node: NodeName,
    options: PlanOptions,
    announcer: Announcer,
    /// Services; a block with the same prefix covers a route to one. `None` = the cluster announces
    /// none.
    services: Option<PlannedServices>,
    /// Addresses of nodes in pools: which of them are used follows from the blocks.
    in_pools: BTreeSet<IpAddr>,
    /// Problems of the rest of the plan.
    problems: Vec<Problem>,
    /// The prefixes that are announced because of each block.
    of_blocks: Wanted<Prefix>,
    problems_of: BTreeMap<Prefix, Problem>,
    planned: BgpPlan,
}

impl BgpPlanner {
    /// Plans the speaker of one node: what follows from what changed since the last time, or all.
    pub fn plan(
        &mut self,
        snapshot: &Snapshot,
        node: &NodeName,
        options: &PlanOptions,
    ) -> Replanned {
        match &mut self.0 {
            Some(state) if state.is_followed(snapshot, node, options) => {
                Replanned::Announcements(state.follow(snapshot))
            }
            _ => {
                self.0 = Some(LastPlan::whole(snapshot, node, options));
                Replanned::Whole
            }
        }
    }

    /// The last plan; `None` before the first.
    #[must_use]
    pub fn planned(&self) -> Option<&BgpPlan> {
        self.0.as_ref().map(|state| &state.planned)
    }
}

/// Plans the speaker of one node.
#[must_use]
pub fn plan(snapshot: &Snapshot, node: &NodeName, options: &PlanOptions) -> BgpPlan {
    LastPlan::whole(snapshot, node, options).planned
}

impl LastPlan {
    fn whole(snapshot: &Snapshot, node: &NodeName, options: &PlanOptions) -> Self {
        let (planned, announcer) = plan_the_rest(snapshot, node, options);
        let mut state = Self {
            snapshot: snapshot.clone(),
            node: node.clone(),
            options: options.clone(),
            announcer,
            services: PlannedServices::new(snapshot, node, &options.datastore),
            in_pools: judged_by_blocks(snapshot, node),
            problems: planned.problems.clone(),
            of_blocks: Wanted::default(),
            problems_of: BTreeMap::new(),
            planned,
        };
        let held = snapshot.affinities_of(node).map(|(cidr, _)| cidr);
        let all: BTreeSet<Prefix> = held.chain(snapshot.blocks.keys().copied()).insert_each();
        let services = state.services.as_ref().map(|services| ServicesDiffer {
            turned: services.routes().rejected,
            problems: true,
        });
        state.put(all, services.unwrap_or_default());
        state
    }

    /// True when nothing differs but blocks, affinities, Services and their endpoints, nodes that
    /// are nobody's peers here, and what no plan reads.
    fn is_followed(&self, snapshot: &Snapshot, node: &NodeName, options: &PlanOptions) -> bool {
        let (was, is) = (&self.snapshot, snapshot);
        let chooses_workloads = || {
            let mut peers = is.bgp_peers.values();
            peers.any(|peer| peer.spec.local_workloads().is_some())
        };
        self.node == *node
            && self.options == *options
            // The sessions of before are planned over other values of the snapshot.
            && self.planned.transition.is_none()
            && was.pools.is_same(&is.pools)
            && was.bgp_configurations.is_same(&is.bgp_configurations)
            && was.bgp_peers.is_same(&is.bgp_peers)
            && was.bgp_filters.is_same(&is.bgp_filters)
            && same_of_filters(&was.notes, &is.notes)
            && same_of_filters(&was.invalid, &is.invalid)
            && (was.workloads.is_same(&is.workloads) || !chooses_workloads())
            && !nodes_concern(was, is, node, options)
            && !self.blocks_concern(is)
    }

    /// True when the addresses of nodes lie in other blocks than before, or in other nodes' ones.
    fn blocks_concern(&self, is: &Snapshot) -> bool {
        let was = &self.snapshot;
        if self.in_pools.is_empty() {
            return false;
        }
        let around = |snapshot: &Snapshot, address: &IpAddr| {
            let block = snapshot.block_of(&Prefix::host(*address))?;
            Some((block.cidr, block.host().cloned()))
        };
        // Where a block turns, so does the first of the addresses that it may be around.
        let changed = is.blocks.changed_since(&was.blocks).into_iter();
        let mut first = changed.filter_map(|cidr| self.in_pools.range(cidr.address()..).next());
        first.any(|address| around(was, address) != around(is, address))
    }

    /// Plans what changed; true when something differs.
    fn follow(&mut self, snapshot: &Snapshot) -> bool {
        let mut blocks: BTreeSet<Prefix> = {
            let changed = snapshot.blocks.changed_since(&self.snapshot.blocks);
            changed.into_iter().insert_each()
        };
        let affinities = snapshot.affinities.changed_since(&self.snapshot.affinities);
        let own = affinities.into_iter();
        let own = own.filter(|(owner, _)| owner.node() == Some(&self.node));
        blocks.extend(own.map(|(_, cidr)| cidr));
        let services = self.services.as_mut();
        let services = services.map(|s| s.follow(&self.snapshot.documents, snapshot));
        self.snapshot = snapshot.clone();
        self.put(blocks, services.unwrap_or_default())
    }

    /// Plans the announcements of these blocks again, and those of services; true when something
    /// differs.
    fn put(&mut self, blocks: BTreeSet<Prefix>, services: ServicesDiffer) -> bool {
        let mut turned = services.turned;
        for cidr in blocks {
            let now = self.announcer.prefixes(&self.snapshot, &self.node, cidr);
            // Whether a block without a pool is announced depends on its use.
            turned.extend((!self.announcer.is_pooled(&cidr)).then_some(cidr));
            self.of_blocks.set(cidr, now, &mut turned);
        }
        let mut differs = services.problems;
        for prefix in turned {
            differs |= self.put_prefix(prefix);
        }
        if differs {
            let of_services = self.services.iter().flat_map(PlannedServices::problems);
            let all = self.problems.iter().chain(self.problems_of.values());
            let all = all.chain(of_services);
            let all: BTreeSet<Problem> = all.cloned().insert_each();
            self.planned.problems = all.into_iter().collect();
        }
        differs
    }

    /// Announces a prefix, or no longer; true when that changes the plan.
    fn put_prefix(&mut self, prefix: Prefix) -> bool {
        let (route, problem) = match self.of_blocks.is_wanted(&prefix) {
            true => self.announcer.origination(&prefix, &self.snapshot),
            false => (None, None),
        };
        let services = self.services.as_ref();
        let of_service = || {
            let is_announced = services.is_some_and(|services| services.announces(&prefix));
            self.announcer.service(&prefix).filter(|_| is_announced)
        };
        let route = route.or_else(of_service);
        let is_rejected = services.is_some_and(|services| services.rejects(&prefix));
        let rejected = &mut self.planned.kernel.services;
        let mut differs = match is_rejected {
            true => rejected.insert(prefix),
            false => rejected.remove(&prefix),
        };
        let originate = &mut self.planned.config.originate;
        // The speaker may have the routes: they are copied where one of them differs.
        if originate.get(&prefix) != route.as_ref() {
            differs = true;
            match route {
                Some(route) => drop(originate.insert(prefix, route)),
                None => drop(originate.remove(&prefix)),
            }
        }
        let before = match &problem {
            Some(problem) => self.problems_of.insert(prefix, problem.clone()),
            None => self.problems_of.remove(&prefix),
        };
        differs || before != problem
    }
}

/// True when what the watcher says of BGPFilters is the same.
fn same_of_filters<V: Clone + PartialEq>(
    was: &SharedMap<String, V>,
    is: &SharedMap<String, V>,
) -> bool {
    if was.is_same(is) {
        return true;
    }
    let filters = path(Kind::BgpFilter, "");
    let changed = is.changed_since(was);
    !changed.iter().any(|path| path.starts_with(&filters))
}

#[cfg(test)]
mod tests;
