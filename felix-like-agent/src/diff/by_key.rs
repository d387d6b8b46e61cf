//! The comparison, pass by pass: of the keys that changed where all others are known to be as
//! desired, else of everything. Comparing a subset of keys gives the full diff restricted to those
//! keys.

use std::sync::Arc;

use caracal_model::{Prefix, Problem, ProblemCode, SharedMap};

use super::shares::Shares;
use super::{CompareJob, DiffJob, Phase, TunnelState, conflicts, diff, tunnel_state};
use crate::actual::{Actual, ActualRoute};
use crate::desired::Desired;
use crate::kernel_objects::PlannedRoute;
use crate::nat::Nat;
use crate::op::Op;
use crate::ownership::Owner;
use crate::plan::{Changed, ChangedKeys};

/// Changes of more destinations are compared as a whole, which comes in slices.
const MOST: usize = 1024;

/// Compares plans with the kernel, and remembers that the kernel was as planned.
///
/// The whole is compared when the kernel was read again, after a failure, when the phase is another
/// one, and wherever a key cannot be judged alone: where routes stay until the far end can receive
/// or a value can be read, and where somebody else's routes stand in the place of ours or lead
/// through objects of ours.
#[derive(Debug, Default)]
pub struct Comparison {
    in_step: Option<InStep>,
    /// Ways of the kernel's objects once the operations of this pass are carried out.
    shares: Option<Shares>,
    conflicts: Vec<Problem>,
    has_leftovers: bool,
    by_key: usize,
}

/// A plan that the kernel is in step with.
#[derive(Debug)]
struct InStep {
    phase: Phase,
    nat: Option<Arc<Nat>>,
    routes: SharedMap<Prefix, PlannedRoute>,
    /// Some routes stay for more than their keys say.
    has_kept: bool,
    /// Ranges of the pools, with the length of their blocks.
    pools: Vec<(Prefix, u8)>,
    shares: Option<Shares>,
}

/// A comparison under way.
#[must_use]
pub struct Comparing<'a>(Kind<'a>);

enum Kind<'a> {
    Keys(Vec<Op>),
    Whole(Box<CompareJob<'a>>),
}

impl Comparing<'_> {
    /// Goes on by a slice: looks at no more than so many keys. True when all is compared.
    pub fn step(&mut self, most: usize) -> bool {
        match &mut self.0 {
            Kind::Keys(_) => true,
            Kind::Whole(job) => job.step(most),
        }
    }
}

impl Comparison {
    /// The kernel was read again, or may be another one than the last pass left: nothing of what
    /// was known of it counts.
    pub fn kernel_was_read(&mut self) {
        self.in_step = None;
    }

    /// True when routes of Calico's BIRD were there at the last whole comparison.
    #[must_use]
    pub const fn has_leftovers(&self) -> bool {
        self.has_leftovers
    }

    /// How many comparisons were of some keys only.
    #[must_use]
    pub const fn by_key(&self) -> usize {
        self.by_key
    }

    /// Operations and conflicts of a change.
    pub fn compare(
        &mut self,
        changed: &Changed,
        desired: &Desired,
        actual: &Actual,
        phase: Phase,
    ) -> (Vec<Op>, Vec<Problem>) {
        let comparing = self.begin(changed, desired, actual, phase);
        self.end(comparing)
    }

    /// Begins such a comparison, to be made in slices. One that is given up makes the next one a
    /// whole one.
    pub fn begin<'a>(
        &mut self,
        changed: &Changed,
        desired: &'a Desired,
        actual: &'a Actual,
        phase: Phase,
    ) -> Comparing<'a> {
        self.shares = None;
        let before = self.in_step.take().filter(|before| before.phase == phase);
        if phase == Phase::Synced
            && let (Some(before), Changed::Keys(keys)) = (before, changed)
            && keys.prefixes.len() <= MOST
        {
            let cluster = &desired.ownership.cluster;
            if before.pools != cluster.pools {
                // What a leftover is depends on the pools.
                let is_leftover = |r: &ActualRoute| desired.ownership.route(r) == Owner::Leftover;
                self.has_leftovers = actual.all_routes().any(is_leftover);
            }
            let keys = ChangedKeys {
                nat: before.nat != desired.nat,
                ..keys.clone()
            };
            if let Some(ops) = self.compare_keys(before, &keys, desired, actual) {
                return Comparing(Kind::Keys(ops));
            }
        }
        let job = CompareJob::new(desired, actual, phase);
        Comparing(Kind::Whole(Box::new(job)))
    }

    /// Does what is left of a comparison; its operations and conflicts.
    pub fn end(&mut self, comparing: Comparing<'_>) -> (Vec<Op>, Vec<Problem>) {
        let ops = match comparing.0 {
            Kind::Keys(ops) => ops,
            Kind::Whole(job) => {
                let (ops, conflicts, has_leftovers) = job.finish();
                (self.conflicts, self.has_leftovers) = (conflicts, has_leftovers);
                ops
            }
        };
        (ops, self.conflicts.clone())
    }

    /// All that [`Comparison::compare`] asked for is done, and the next `Actual` will say so.
    pub fn is_done(&mut self, desired: &Desired, phase: Phase) {
        self.in_step = Some(InStep {
            phase,
            nat: desired.nat.clone(),
            routes: desired.routes.clone(),
            has_kept: keeps(desired),
            pools: desired.ownership.cluster.pools.clone(),
            shares: self.shares.take(),
        });
    }

    /// The comparison of some keys; `None` where each cannot be judged for itself.
    fn compare_keys(
        &mut self,
        before: InStep,
        keys: &ChangedKeys,
        desired: &Desired,
        actual: &Actual,
    ) -> Option<Vec<Op>> {
        if self.has_leftovers || before.has_kept || keeps(desired) {
            return None;
        }
        if !desired.objects {
            if !actual.objects.is_empty() {
                return None;
            }
            let (wanted, there) = part(keys, desired, actual);
            self.put_conflicts(keys, conflicts(&wanted, &there));
            self.by_key += 1;
            return Some(diff(&wanted, &there, Phase::Synced));
        }
        let is_foreign = |problem: &Problem| problem.code == ProblemCode::AgentForeignRoute;
        let links = &actual.links;
        let mut tunnels = desired.tunnels.values();
        if self.conflicts.iter().any(is_foreign)
            || tunnels.any(|tunnel| tunnel_state(tunnel, links) == TunnelState::Foreign)
        {
            return None;
        }
        let (was, ownership) = (&before.routes, &desired.ownership);
        let known = before.shares;
        let mut shares = known.or_else(|| Shares::new(was, actual, ownership))?;
        let touched = shares.follow(&keys.prefixes, was, &desired.routes);
        let keys = ChangedKeys {
            prefixes: touched.prefixes.clone(),
            ..keys.clone()
        };
        let (wanted, mut there) = part(&keys, desired, actual);
        let idle = touched.idle.iter();
        there.objects = idle
            .filter_map(|id| Some((*id, actual.objects.get(id)?.clone())))
            .collect();
        let found = conflicts(&wanted, &there);
        if found.iter().any(is_foreign) {
            return None;
        }
        let all = Some((&touched, &actual.objects));
        let (ops, decided) = DiffJob::new(&wanted, &there, Phase::Synced, all).finish();
        shares.settle(decided?);
        self.shares = Some(shares);
        self.put_conflicts(&keys, found);
        self.by_key += 1;
        Some(ops)
    }

    /// Replaces the conflicts of these keys.
    fn put_conflicts(&mut self, keys: &ChangedKeys, found: Vec<Problem>) {
        let is_again = |problem: &Problem| {
            let again = || {
                keys.prefixes
                    .iter()
                    .any(|p| problem.subject == p.to_string())
            };
            problem.code != ProblemCode::AgentForeignRoute || again()
        };
        self.conflicts.retain(|problem| !is_again(problem));
        self.conflicts.extend(found);
    }
}

/// A deferred route keeps entries that others left, too; what is held back is where nothing is
/// planned.
fn keeps(desired: &Desired) -> bool {
    !desired.deferred.is_empty() || !desired.held.is_empty()
}

/// Both sides, of these keys, with devices, addresses and sysctls.
fn part(keys: &ChangedKeys, desired: &Desired, actual: &Actual) -> (Desired, Actual) {
    let wanted = Desired {
        routes: those(&keys.prefixes, |prefix| desired.routes.get(prefix)),
        neighbours: those(&keys.neighbours, |key| desired.neighbours.get(key)),
        fdb: those(&keys.fdb, |key| desired.fdb.get(key)),
        objects: desired.objects,
        tunnels: desired.tunnels.clone(),
        macs: desired.macs.clone(),
        sysctls: desired.sysctls.clone(),
        nat: desired.nat.clone().filter(|_| keys.nat),
        ownership: desired.ownership.clone(),
        ..Desired::default()
    };
    let mut there = Actual {
        links: actual.links.clone(),
        neighbours: those(&keys.neighbours, |key| actual.neighbours.get(key)),
        fdb: those(&keys.fdb, |key| actual.fdb.get(key)),
        sysctls: actual.sysctls.clone(),
        nat: actual.nat.clone(),
        ..Actual::default()
    };
    let routes = |prefix: &Prefix| actual.routes_to(prefix).cloned().collect::<Vec<_>>();
    for route in keys.prefixes.iter().flat_map(routes) {
        there.push_route(route);
    }
    (wanted, there)
}

fn those<'a, K: Clone + 'a, V: Clone + 'a, M: FromIterator<(K, V)>>(
    keys: impl IntoIterator<Item = &'a K>,
    of: impl Fn(&K) -> Option<&'a V>,
) -> M {
    let found = keys.into_iter();
    found
        .filter_map(|key| Some((key.clone(), of(key)?.clone())))
        .collect()
}
