//! The comparison in slices: each step looks at no more than so many keys, and whoever compares a
//! large cluster listens in between. The operations do not depend on the slices (property test).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use caracal_model::{IfName, Prefix, Problem};
use foldhash::HashMap;

use super::gateway_key::SHARED;
use super::objects::{Changes, Gateways, Mtus, Objects, add_gateway, add_mtu};
use super::shares::{Decided, Touched};
use super::{
    Ops, Phase, TunnelState, deferred, deletion_rank, foreign_devices, in_the_way, is_on_device,
    routes_behind, tunnel_state,
};
use crate::actual::{Actual, ActualObject, ActualRoute};
use crate::desired::Desired;
use crate::kernel_objects::{FdbKey, NeighbourKey, PlannedRoute, RouteKey};
use crate::op::Op;
use crate::ownership::Owner;
use crate::slice::look_at;

/// A comparison under way: what stands in the way, then what is to be done.
#[must_use]
pub(crate) struct CompareJob<'a> {
    desired: &'a Desired,
    actual: &'a Actual,
    /// Up to where conflicts are found; `None` = all are.
    behind: Option<Option<RouteKey>>,
    conflicts: Vec<Problem>,
    /// Routes of Calico's BIRD are there.
    has_leftovers: bool,
    diff: DiffJob<'a>,
}

impl<'a> CompareJob<'a> {
    pub(crate) fn new(desired: &'a Desired, actual: &'a Actual, phase: Phase) -> Self {
        Self {
            desired,
            actual,
            behind: Some(None),
            conflicts: foreign_devices(desired, actual),
            has_leftovers: false,
            diff: DiffJob::new(desired, actual, phase, None),
        }
    }

    /// Goes on by a slice: looks at no more than so many keys. True when all is compared.
    pub(crate) fn step(&mut self, most: usize) -> bool {
        let Some(behind) = self.behind else {
            return self.diff.step(most);
        };
        let (desired, actual) = (self.desired, self.actual);
        let routes = routes_behind(desired, actual, behind);
        let last = look_at(
            routes,
            most,
            |(key, ..)| *key,
            |(_, planned, there)| {
                let there = there.unwrap_or_default();
                let is_leftover = |route| desired.ownership.route(route) == Owner::Leftover;
                self.has_leftovers |= there.iter().any(is_leftover);
                self.conflicts.extend(in_the_way(desired, planned, there));
            },
        );
        self.behind = last.map(Some);
        false
    }

    /// Operations, conflicts, and whether routes of Calico's BIRD are there; does what is left.
    pub(crate) fn finish(mut self) -> (Vec<Op>, Vec<Problem>, bool) {
        while self.behind.is_some() {
            self.step(usize::MAX);
        }
        (self.diff.finish().0, self.conflicts, self.has_leftovers)
    }
}

/// The operations, under way.
pub(super) struct DiffJob<'a> {
    phase: Phase,
    actual: &'a Actual,
    part: Option<&'a Touched>,
    ops: Ops<'a>,
    objects: Objects<'a>,
    gateways: Gateways<'a>,
    /// Planned routes that are not in the kernel as planned: VTEPs, others.
    wanted: [Vec<&'a PlannedRoute>; 2],
    /// What is in the kernel and not as planned.
    there: Vec<&'a [ActualRoute]>,
    stage: Stage<'a>,
}

enum Stage<'a> {
    Neighbours(Bound<NeighbourKey>),
    Fdb(Bound<FdbKey>),
    /// The gateways of planned routes.
    Gateways(Bound<Prefix>),
    /// The MTUs of routes through objects.
    Mtus(Bound<RouteKey>, Mtus),
    /// What the routes through idle objects want.
    Changes(Bound<RouteKey>, Changes<'a>),
    /// Nearly all routes are as they should be, nearly always; what follows looks at the rest.
    Routes(Option<RouteKey>),
    /// IPv6 takes a gateway behind a VTEP only once the VTEP itself is on the tunnel's link.
    Vteps(usize),
    Others(usize),
    Sweep(usize),
    Done(Vec<Op>, Option<Decided>),
}

impl<'a> DiffJob<'a> {
    /// `part` = what is known of the objects of the whole, where this is the comparison of a part.
    pub(super) fn new(
        desired: &'a Desired,
        actual: &'a Actual,
        phase: Phase,
        part: Option<(&'a Touched, &'a BTreeMap<u32, ActualObject>)>,
    ) -> Self {
        let blocked: BTreeSet<&IfName> = desired
            .tunnels
            .values()
            .filter(|t| {
                let state = tunnel_state(t, &actual.links);
                matches!(state, TunnelState::Foreign | TunnelState::Awaited)
            })
            .map(|t| &t.name)
            .collect();
        let deferred = match phase {
            Phase::Frozen => BTreeMap::new(),
            Phase::Learning | Phase::Synced => deferred::routes(desired, actual),
        };
        let mut ops = Ops {
            desired,
            blocked,
            readdressed: BTreeSet::new(),
            in_use: deferred
                .values()
                .flat_map(|r| r.next_hops())
                .map(|h| h.link.clone())
                .collect(),
            deferred: deferred.keys().copied().collect(),
            puts: Vec::new(),
            deletes: Vec::new(),
        };
        let rest = match phase {
            Phase::Frozen => Cow::Borrowed(actual),
            Phase::Learning | Phase::Synced => ops.tunnels(actual, phase),
        };
        if let Cow::Owned(rest) = rest {
            // What a device that is made anew had is gone: seldom, and compared in one piece.
            let (ops, decided) = DiffJob::with_ops(ops, &rest, phase, part).finish();
            let empty = Ops::empty(desired);
            return Self {
                stage: Stage::Done(ops, decided),
                ..Self::with_ops(empty, actual, phase, part)
            };
        }
        Self::with_ops(ops, actual, phase, part)
    }

    fn with_ops(
        mut ops: Ops<'a>,
        actual: &'a Actual,
        phase: Phase,
        part: Option<(&'a Touched, &'a BTreeMap<u32, ActualObject>)>,
    ) -> Self {
        let stage = match phase {
            Phase::Frozen => Stage::Done(Vec::new(), None),
            Phase::Learning | Phase::Synced => {
                ops.addresses(actual);
                ops.macs(actual);
                Stage::Neighbours(Bound::Unbounded)
            }
        };
        Self {
            phase,
            actual,
            part: part.map(|(touched, _)| touched),
            objects: Objects::new(ops.desired, actual, part),
            ops,
            gateways: HashMap::default(),
            wanted: [Vec::new(), Vec::new()],
            there: Vec::new(),
            stage,
        }
    }

    /// Goes on by a slice. True when all is compared.
    fn step(&mut self, most: usize) -> bool {
        let filler = Stage::Routes(None);
        self.stage = match std::mem::replace(&mut self.stage, filler) {
            Stage::Neighbours(from) => match self.ops.neighbours(self.actual, from, most) {
                Some(last) => Stage::Neighbours(Bound::Excluded(last)),
                None => Stage::Fdb(Bound::Unbounded),
            },
            Stage::Fdb(from) => match self.ops.fdb(self.actual, from, most) {
                Some(last) => Stage::Fdb(Bound::Excluded(last)),
                None if self.ops.desired.objects => Stage::Gateways(Bound::Unbounded),
                None => Stage::Routes(None),
            },
            Stage::Gateways(from) => self.gateways(from, most),
            Stage::Mtus(from, mtus) => self.mtus(from, mtus, most),
            Stage::Changes(from, next) => self.changes(from, next, most),
            Stage::Routes(behind) => self.routes(behind, most),
            Stage::Vteps(from) => match self.put(0, from, most) {
                Some(next) => Stage::Vteps(next),
                None => {
                    self.ops.puts.append(&mut self.objects.puts);
                    Stage::Others(0)
                }
            },
            Stage::Others(from) => match self.put(1, from, most) {
                Some(next) => Stage::Others(next),
                None => Stage::Sweep(0),
            },
            Stage::Sweep(from) => {
                let next = from.saturating_add(most).min(self.there.len());
                for routes in &self.there[from..next] {
                    self.ops.sweep(routes, &self.objects, self.actual);
                }
                match next < self.there.len() {
                    true => Stage::Sweep(next),
                    false => self.end(),
                }
            }
            done @ Stage::Done(..) => done,
        };
        matches!(self.stage, Stage::Done(..))
    }

    /// The operations; does what is left. With a part, also what was decided about its objects.
    pub(super) fn finish(mut self) -> (Vec<Op>, Option<Decided>) {
        loop {
            if let Stage::Done(ops, decided) = self.stage {
                return (ops, decided);
            }
            self.step(usize::MAX);
        }
    }

    fn gateways(&mut self, from: Bound<Prefix>, most: usize) -> Stage<'a> {
        let routes = self.ops.desired.routes.range((from, Bound::Unbounded));
        let gateways = &mut self.gateways;
        let look = |(_, planned): (_, &'a PlannedRoute)| add_gateway(gateways, &planned.route);
        if let Some(last) = look_at(routes, most, |(prefix, _)| **prefix, look) {
            return Stage::Gateways(Bound::Excluded(last));
        }
        let (blocked, part) = (&self.ops.blocked, self.part);
        self.gateways.retain(|key, wanted| match part {
            Some(touched) => touched.is_new(key),
            None => wanted.routes >= SHARED && !blocked.contains(key.1),
        });
        if self.gateways.is_empty() {
            return Stage::Routes(None);
        }
        match self.objects.has_idle() {
            true => Stage::Mtus(Bound::Unbounded, Mtus::default()),
            false => self.make(),
        }
    }

    fn mtus(&mut self, from: Bound<RouteKey>, mut mtus: Mtus, most: usize) -> Stage<'a> {
        let routes = self.actual.routes.range((from, Bound::Unbounded));
        let look = |(_, routes): (_, &Vec<ActualRoute>)| {
            routes.iter().for_each(|route| add_mtu(&mut mtus, route));
        };
        if let Some(last) = look_at(routes, most, |(key, _)| **key, look) {
            return Stage::Mtus(Bound::Excluded(last), mtus);
        }
        self.objects.retain_wanted(&mtus, &mut self.gateways);
        match !self.gateways.is_empty() && self.objects.has_idle() {
            true => Stage::Changes(Bound::Unbounded, Changes::new()),
            false => self.make(),
        }
    }

    fn changes(&mut self, from: Bound<RouteKey>, mut next: Changes<'a>, most: usize) -> Stage<'a> {
        let routes = self.actual.routes.range((from, Bound::Unbounded));
        let (ops, objects) = (&self.ops, &self.objects);
        let look = |(_, routes): (_, &Vec<ActualRoute>)| {
            for route in routes {
                objects.ask(route, ops.desired, &ops.deferred, &mut next);
            }
        };
        if let Some(last) = look_at(routes, most, |(key, _)| **key, look) {
            return Stage::Changes(Bound::Excluded(last), next);
        }
        self.objects.change(&next, &mut self.gateways);
        self.make()
    }

    fn make(&mut self) -> Stage<'a> {
        self.objects.make(std::mem::take(&mut self.gateways));
        Stage::Routes(None)
    }

    fn routes(&mut self, behind: Option<RouteKey>, most: usize) -> Stage<'a> {
        let all = routes_behind(self.ops.desired, self.actual, behind);
        let last = look_at(
            all,
            most,
            |(key, ..)| *key,
            |(_, planned, routes)| {
                if let (Some(planned), Some([only])) = (planned, routes)
                    && self.objects.is_right(&planned.route, only)
                {
                    return;
                }
                if let Some(planned) = planned {
                    self.wanted[usize::from(!planned.is_vtep())].push(planned);
                }
                self.there.extend(routes);
            },
        );
        last.map_or(Stage::Vteps(0), |last| Stage::Routes(Some(last)))
    }

    /// Puts wanted routes of a kind; where to go on.
    fn put(&mut self, kind: usize, from: usize, most: usize) -> Option<usize> {
        let planned = &self.wanted[kind];
        let next = from.saturating_add(most).min(planned.len());
        let some = &planned[from..next];
        self.ops.put_routes(some, &self.objects, self.actual);
        (next < planned.len()).then_some(next)
    }

    fn end(&mut self) -> Stage<'a> {
        let (ops, actual) = (&mut self.ops, self.actual);
        let unused = self.objects.unused(actual, &ops.deletes);
        let decided = self.part.map(|_| self.objects.decided(&unused, actual));
        ops.deletes.extend(unused);
        ops.sysctls(actual);
        ops.nat(actual);
        let in_use = &ops.in_use;
        ops.deletes
            .retain(|op| !is_on_device(op, |name| in_use.contains(name)));
        let mut puts = std::mem::take(&mut ops.puts);
        if self.phase == Phase::Synced {
            ops.deletes.sort_by_key(deletion_rank);
            puts.append(&mut ops.deletes);
        }
        Stage::Done(puts, decided)
    }
}
