//! Routes of our own: a configuration may bring any number of them, so that they come into the
//! table, and go, a slice at a time.
//!
//! The queue holds prefixes: when the turn of one comes, the configuration of that moment counts.

use std::collections::VecDeque;

use caracal_model::net::Prefix;

use super::{Progress, Rib, forward};
use crate::config::ConfigChange;

/// Prefixes whose own route in the table is not yet that of the configuration.
#[derive(Debug, Default)]
pub(super) struct OwnRoutes {
    left: VecDeque<Prefix>,
}

impl OwnRoutes {
    /// True when nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// How far this is, for people.
    pub(super) fn progress(&self) -> Option<Progress> {
        (!self.is_empty()).then(|| Progress {
            what: "take over own routes".to_owned(),
            peer: None,
            done: 0,
            total: self.left.len(),
        })
    }
}

impl Rib {
    /// Queues the own routes that a new configuration changes, and begins with them.
    pub(super) fn change_own(&mut self, change: &ConfigChange) {
        let changed = change.withdrawn.iter().chain(&change.originated);
        self.own.left.extend(changed);
        self.update_own(self.inline);
    }

    /// Takes over so many own routes at most. The result: how many it was.
    pub(super) fn update_own(&mut self, most: usize) -> usize {
        let now = most.min(self.own.left.len());
        if now == 0 {
            return 0;
        }
        for _ in 0..now {
            let Some(prefix) = self.own.left.pop_front() else {
                break;
            };
            match self.config.originate.get(&prefix) {
                Some(route) => {
                    let attrs = self.interner.intern(forward::attributes(route));
                    self.put_local(prefix, attrs);
                }
                None => self.remove_local(prefix),
            }
        }
        if self.own.is_empty() {
            self.own = OwnRoutes::default();
            // End-of-RIB comes behind them.
            self.end_of_rib_after = self.end_of_rib_after.max(self.marked);
        }
        now
    }
}
