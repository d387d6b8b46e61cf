//! Routes of our own: a configuration may bring any number of them, so that they are compared with
//! those before, come into the table, and go, a slice at a time.
//!
//! Both configurations are walked in the order of prefixes. The configuration of the moment counts:
//! when another one comes in between, the walk begins again, and knows up to which prefix the table
//! already has the one before.

use std::collections::VecDeque;
use std::ops::Bound;

use caracal_model::{Prefix, merge_join};

use super::{Progress, Rib, forward, table};
use crate::config::Originations;

/// Prefixes that are compared for each one that may be changed: a comparison is that much cheaper.
const COMPARED: usize = 8;

/// Own routes of the table that are to be compared with the configuration.
#[derive(Debug, Default)]
pub(super) struct OwnRoutes {
    /// Own routes that the table has, in parts, in the order of prefixes. The first part begins
    /// behind `at`; without a part no route is left.
    parts: VecDeque<OwnRoutesPart>,
    /// The last prefix that was compared.
    at: Option<Prefix>,
    /// Routes that have been compared since the configuration came.
    compared: usize,
}

/// Own routes that the table has, up to some prefix.
#[derive(Debug)]
struct OwnRoutesPart {
    /// Up to here, included; `None`: all that are left.
    until: Option<Prefix>,
    routes: Originations,
}

impl OwnRoutes {
    /// True when nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Another configuration is to be compared; these routes were to be in the table until now.
    fn begin(&mut self, before: Originations) {
        self.compared = 0;
        let until = self.at.take();
        if self.parts.is_empty() || until.is_some() {
            self.parts.push_front(OwnRoutesPart {
                until,
                routes: before,
            });
        }
    }
}

impl Rib {
    /// Progress of the comparison of own routes, for people.
    pub(super) fn own_progress(&self) -> Option<Progress> {
        let last = self.own.parts.back()?;
        Some(Progress {
            what: "take over own routes".to_owned(),
            peer: None,
            done: self.own.compared,
            total: last.routes.len().max(self.config.originate.len()),
        })
    }

    /// Begins to take over the own routes of the configuration; those before are in the table, or
    /// were about to be.
    pub(super) fn change_own(&mut self, before: Originations) {
        if !before.is_same(&self.config.originate) {
            self.own.begin(before);
            self.update_own(self.inline);
        }
    }

    /// Takes over so many own routes at most, or compares some more than that. The result: how much
    /// work it was, in routes that are taken over.
    pub(super) fn update_own(&mut self, most: usize) -> usize {
        let (mut changed, mut compared) = (Vec::new(), 0);
        while let Some(part) = self.own.parts.front() {
            let until = part.until;
            let from = self.own.at.map_or(Bound::Unbounded, Bound::Excluded);
            let range = (from, until.map_or(Bound::Unbounded, Bound::Included));
            let (before, after) = (&part.routes, &self.config.originate);
            let both = merge_join(before.range(range), after.range(range));
            let mut both = both.fuse();
            while changed.len() < most
                && compared < most * COMPARED
                && let Some((prefix, before, after)) = both.next()
            {
                table::note_visit();
                compared += 1;
                self.own.at = Some(*prefix);
                if before != after {
                    changed.push(*prefix);
                }
            }
            let is_over = both.next().is_none();
            drop(both);
            if !is_over {
                break;
            }
            self.own.at = until;
            self.own.parts.pop_front();
        }
        self.own.compared += compared;
        for prefix in &changed {
            self.put_own(*prefix);
        }
        if self.own.is_empty() && compared > 0 {
            // End-of-RIB comes behind them.
            self.end_of_rib_after = self.end_of_rib_after.max(self.marked);
        }
        if self.own.is_empty() {
            self.own = OwnRoutes::default();
        }
        changed.len().max(compared / COMPARED)
    }

    /// Takes over what the configuration says of a prefix.
    pub(super) fn put_own(&mut self, prefix: Prefix) {
        match self.config.originate.get(&prefix) {
            Some(route) => {
                let attrs = self.interner.intern(forward::attributes(route));
                self.next_hops.set_own_way(prefix, &route.way);
                self.put_local(prefix, attrs);
            }
            None => {
                self.next_hops.forget_own_way(&prefix);
                self.remove_local(prefix);
            }
        }
    }
}
