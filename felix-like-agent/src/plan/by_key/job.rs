//! A plan in slices: each step plans at most so many destinations, and whoever plans a large
//! cluster listens in between. The result does not depend on the slices (property test).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caracal_model::Prefix;

use super::{Changed, ChangedKeys, LastPlan, PlannedFrom, Vteps, destinations, own_blocks};
use crate::nat::Nat;
use crate::plan::{OfNodes, PlanInputs, Planner, nat, tunnels};

/// A plan under way.
#[must_use]
pub struct PlanJob<'a> {
    inputs: &'a PlanInputs<'a>,
    stage: Stage<'a>,
}

enum Stage<'a> {
    /// The plan before, where there is one.
    Begin(Option<Box<LastPlan>>),
    /// All is planned. Each of these stages is one walk over nodes or blocks.
    Nodes(OfNodes),
    Shared(Box<Planner<'a>>, OfNodes),
    Gather(Box<Work<'a>>),
    /// Destinations are planned, and there may be more.
    Destinations(Box<Work<'a>>),
    Done(Box<LastPlan>, Changed),
}

/// The plan so far, and the destinations to plan.
pub(super) struct Work<'a> {
    pub(super) state: LastPlan,
    pub(super) planner: Planner<'a>,
    /// All, or what a change concerns.
    pub(super) first: std::vec::IntoIter<Prefix>,
    /// Those that other destinations lead through since.
    again: BTreeSet<Prefix>,
    /// What has another route than before, or none.
    differ: Vec<Prefix>,
    /// `None` = all is planned.
    pub(super) changed: Option<ChangedKeys>,
    /// The NAT rules of a plan by key.
    pub(super) nat: Option<Arc<Nat>>,
}

impl<'a> PlanJob<'a> {
    pub(super) fn new(inputs: &'a PlanInputs<'a>, last: Option<LastPlan>) -> Self {
        let stage = Stage::Begin(last.map(Box::new));
        Self { inputs, stage }
    }

    /// Goes on by a slice: plans at most so many destinations. True when all is planned.
    pub fn step(&mut self, most: usize) -> bool {
        let inputs = self.inputs;
        self.stage = match std::mem::replace(&mut self.stage, Stage::Begin(None)) {
            Stage::Begin(last) => match last.filter(|last| last.is_followed(inputs)) {
                Some(last) => match last.follow(inputs) {
                    Some(work) => Stage::Destinations(Box::new(work)),
                    None => Stage::Nodes(OfNodes::new(inputs)),
                },
                None => Stage::Nodes(OfNodes::new(inputs)),
            },
            Stage::Nodes(of_nodes) => {
                let mut planner = Planner::new(inputs, of_nodes.clone());
                planner.own_blocks = Arc::new(own_blocks(&planner));
                Stage::Shared(Box::new(planner), of_nodes)
            }
            Stage::Shared(planner, of_nodes) => {
                Stage::Gather(Box::new(Work::whole(*planner, of_nodes)))
            }
            Stage::Gather(mut work) => {
                work.first = destinations(&work.planner).into_iter();
                Stage::Destinations(work)
            }
            Stage::Destinations(mut work) => match work.step(most) {
                false => Stage::Destinations(work),
                true => work.end(),
            },
            done @ Stage::Done(..) => done,
        };
        matches!(self.stage, Stage::Done(..))
    }

    /// The end of it.
    pub(super) fn finish(mut self) -> (LastPlan, Changed) {
        loop {
            if let Stage::Done(state, changed) = self.stage {
                return (*state, changed);
            }
            self.step(usize::MAX);
        }
    }
}

impl<'a> Work<'a> {
    /// Everything anew.
    fn whole(mut planner: Planner<'a>, of_nodes: OfNodes) -> Self {
        let vtep_count = tunnels::vteps(&mut planner);
        let state = LastPlan {
            from: PlannedFrom::new(planner.inputs),
            of_nodes,
            own_blocks: Arc::clone(&planner.own_blocks),
            workloads: planner.workloads.keys().copied().collect(),
            problems: std::mem::take(&mut planner.desired.problems),
            has_narrow: !planner.narrow.is_empty(),
            blocks: None,
            warnings: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            vteps: Vteps::default(),
            vtep_count,
            kinds: BTreeMap::new(),
            desired: planner.desired.clone(),
        };
        let mut work = Self::new(state, planner);
        work.state.desired.skipped.clear();
        work
    }

    pub(super) fn new(state: LastPlan, planner: Planner<'a>) -> Self {
        Self {
            state,
            planner,
            first: Vec::new().into_iter(),
            again: BTreeSet::new(),
            differ: Vec::new(),
            changed: None,
            nat: None,
        }
    }

    /// Plans at most so many. True when there are no more.
    fn step(&mut self, most: usize) -> bool {
        let first: Vec<Prefix> = self.first.by_ref().take(most).collect();
        let left = most - first.len();
        self.put(first);
        if left > 0 {
            let again = std::iter::from_fn(|| self.again.pop_first());
            let again = again.take(left).collect();
            self.put(again);
        }
        self.first.len() == 0 && self.again.is_empty()
    }

    fn put(&mut self, prefixes: Vec<Prefix>) {
        let mut unnamed = ChangedKeys::default();
        let changed = self.changed.as_mut().unwrap_or(&mut unnamed);
        let turned = self
            .state
            .put(&self.planner, prefixes, changed, &mut self.differ);
        self.again.extend(turned);
    }

    fn end(self) -> Stage<'a> {
        let (mut state, planner) = (self.state, self.planner);
        let changed = match self.changed {
            None => {
                state.desired.nat = Some(Arc::new(nat::plan(&planner)));
                Changed::All
            }
            Some(mut keys) => {
                keys.prefixes = self.differ.into_iter().collect();
                let from = PlannedFrom::new(planner.inputs);
                state.take(planner, self.nat);
                state.from = from;
                Changed::Keys(keys)
            }
        };
        state.sum_up();
        Stage::Done(Box::new(state), changed)
    }
}
