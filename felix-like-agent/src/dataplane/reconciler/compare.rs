//! What a pass remembers of the ones before, so that it looks at what changed and not at the whole
//! cluster: what follows from nodes and routes of others, and that the kernel was as planned.
//!
//! The whole comparison is made when the kernel was read again, after a failure, when the phase is
//! another one, and wherever a key cannot be judged alone ([`is_by_key`]).

use std::sync::Arc;

use caracal_model::NodeName;
use caracal_model::code::ProblemCode;
use caracal_model::resource::Node;
use caracal_model::{Problem, Versioned};
use caracal_model::{SharedMap, Snapshot};

use super::Reconciler;
use crate::actual::Actual;
use crate::dataplane::probe::prober::Targets;
use crate::desired::Desired;
use crate::diff::{Phase, conflicts, diff, diff_of, is_by_key};
use crate::links::Links;
use crate::nat::Nat;
use crate::op::Op;
use crate::ownership::{Owner, Ownership};
use crate::paths::PathMtus;
use crate::plan::{Changed, ChangedKeys, HostRoutes};
use crate::settings::Settings;

/// What passes share.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    owned: Option<Owned>,
    measured: Option<Measured>,
    /// The kernel was as planned when the last pass ended.
    pub(super) in_step: Option<InStep>,
    conflicts: Vec<Problem>,
    /// Routes of Calico's BIRD are there.
    pub(super) has_leftovers: bool,
}

/// Whose what is, and the routes of others, with what they follow from.
#[derive(Debug)]
struct Owned {
    settings: Settings,
    snapshot: Snapshot,
    ownership: Ownership,
    /// `None` = the kernel was read since.
    host_routes: Option<HostRoutes>,
}

#[derive(Debug)]
struct Measured {
    nodes: SharedMap<NodeName, Versioned<Node>>,
    links: Links,
    host_routes: HostRoutes,
}

/// In which phase the kernel was as planned, and with which rules.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InStep {
    pub(super) phase: Phase,
    pub(super) nat: Option<Arc<Nat>>,
}

impl Remembered {
    /// The kernel was read again: nothing of what was known of it counts.
    pub(super) fn kernel_was_read(&mut self) {
        self.in_step = None;
        if let Some(owned) = &mut self.owned {
            owned.host_routes = None;
        }
    }

    pub(super) fn ownership(&mut self, settings: &Settings, snapshot: &Snapshot) -> Ownership {
        let same = self.owned.as_ref().filter(|owned| {
            owned.settings == *settings
                && owned.snapshot.nodes.is_same(&snapshot.nodes)
                && owned.snapshot.pools.is_same(&snapshot.pools)
        });
        if let Some(owned) = same {
            return owned.ownership.clone();
        }
        let ownership = Ownership::of(settings, snapshot);
        self.owned = Some(Owned {
            settings: settings.clone(),
            snapshot: snapshot.clone(),
            ownership: ownership.clone(),
            host_routes: None,
        });
        ownership
    }

    /// Routes of others, which our own writes do not change.
    pub(super) fn host_routes(&mut self, actual: &Actual, ownership: &Ownership) -> HostRoutes {
        let known = self.owned.as_mut().map(|owned| &mut owned.host_routes);
        match known {
            Some(known) => known
                .get_or_insert_with(|| HostRoutes::of(actual, ownership))
                .clone(),
            None => HostRoutes::of(actual, ownership),
        }
    }

    /// What has to happen, and what stands in the way: of the keys that changed where the rest is
    /// as planned, else of everything.
    pub(super) fn compare(
        &mut self,
        changed: &Changed,
        desired: &Desired,
        actual: &Actual,
        phase: Phase,
        nat_is_known: bool,
    ) -> (Vec<Op>, Vec<Problem>) {
        let in_step = self.in_step.take().filter(|before| before.phase == phase);
        let (Some(before), Changed::Keys(keys)) = (in_step, changed) else {
            return self.compare_all(desired, actual, phase);
        };
        if self.has_leftovers || phase != Phase::Synced || !is_by_key(desired, actual) {
            return self.compare_all(desired, actual, phase);
        }
        let keys = ChangedKeys {
            nat: !nat_is_known || before.nat != desired.nat,
            ..keys.clone()
        };
        let (ops, found) = diff_of(&keys, desired, actual, phase);
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
        (ops, self.conflicts.clone())
    }

    fn compare_all(
        &mut self,
        desired: &Desired,
        actual: &Actual,
        phase: Phase,
    ) -> (Vec<Op>, Vec<Problem>) {
        let is_leftover = |route| desired.ownership.route(route) == Owner::Leftover;
        self.has_leftovers = actual.all_routes().any(is_leftover);
        self.conflicts = conflicts(desired, actual);
        (diff(desired, actual, phase), self.conflicts.clone())
    }
}

impl Reconciler {
    /// Has the paths to other nodes measured, and says what is known of them.
    pub(super) fn measure(
        &mut self,
        snapshot: &Snapshot,
        links: &Links,
        host_routes: &HostRoutes,
    ) -> Arc<PathMtus> {
        let Some(prober) = &self.prober else {
            return Arc::default();
        };
        let is_same = |known: &Measured| {
            known.nodes.is_same(&snapshot.nodes)
                && known.links == *links
                && known.host_routes.is_same(host_routes)
        };
        if !self.remembered.measured.as_ref().is_some_and(is_same) {
            prober.follow(Targets::of(snapshot, &self.options.me, links, host_routes));
            self.remembered.measured = Some(Measured {
                nodes: snapshot.nodes.clone(),
                links: links.clone(),
                host_routes: host_routes.clone(),
            });
        }
        prober.results()
    }
}
