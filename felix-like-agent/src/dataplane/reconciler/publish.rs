//! Publishes the result of a pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_model::{InsertEach, KernelStatus, Problem};

use super::Reconciler;
use crate::dataplane::probe::prober::Prober;
use crate::dataplane::reconciler::status::{AgentStatus, Report, too_many_senders, tunnels_up};
use crate::dataplane::write::nat::Backend;
use crate::desired::Desired;
use crate::diff::Phase;
use crate::links::Links;

impl Reconciler {
    /// Whether routes lead through next-hop objects, and why not.
    fn next_hops(&self, desired: &Desired) -> String {
        match &self.kernel.objects {
            _ if desired.objects => "objects".to_owned(),
            Err(reason) if self.options.settings.objects => {
                format!("plain, for this kernel has no next-hop objects ({reason})")
            }
            _ => "plain".to_owned(),
        }
    }

    /// Publishes how the last pass went.
    pub(in crate::dataplane) fn publish(
        &mut self,
        desired: Desired,
        kinds: &BTreeMap<&'static str, usize>,
        conflicts: Vec<Problem>,
        links: &Links,
        report: Report,
    ) {
        let mut problems: Vec<Problem> = desired.problems.iter().cloned().collect();
        problems.extend(conflicts);
        problems.extend(self.retries.problems());
        let clean = report.failures == 0 && self.retries.problems().is_empty();
        let frozen = report.phase == Phase::Frozen;
        let kernel = KernelStatus {
            phase: report.phase.as_str().to_owned(),
            reason: report.reason,
            revision: if clean && !frozen {
                desired.revision
            } else {
                self.published.kernel.revision
            },
            routes: kinds
                .iter()
                .map(|(kind, count)| ((*kind).to_owned(), *count))
                .insert_each(),
            tunnels: tunnels_up(&desired, links),
            next_hops: self.next_hops(&desired),
            nat: String::new(),
            // Named by who knows the nodes' names.
            paths: Vec::new(),
        };
        self.published = AgentStatus {
            kernel,
            problems,
            passes: self.passes,
            applied: self.applied,
            spent: self.spent,
            desired: Arc::new(desired),
            links: Arc::new(links.clone()),
            support: self.kernel.clone(),
            paths: self.prober.as_ref().map(Prober::known).unwrap_or_default(),
            rules_pending: false,
        };
        self.publish_rules();
    }

    /// Publishes the same again with what is known of the rules now. What is not whole without them
    /// is not yet said to be in the kernel.
    pub(in crate::dataplane) fn publish_rules(&mut self) {
        let rules = self.rules.status();
        let mut status = self.published.clone();
        if !self.rules.is_in_step(&rules) {
            status.kernel.revision = self.status.borrow().kernel.revision;
        }
        status.rules_pending = self.rules.is_pending(&rules);
        status.kernel.nat = rules.backend.map_or("none", Backend::as_str).to_owned();
        status.applied += rules.applied;
        status.problems.extend(rules.problems);
        if rules.backend == Some(Backend::IptablesLegacy) {
            let desired = Arc::clone(&status.desired);
            status.problems.extend(too_many_senders(&desired));
        }
        self.status.send_replace(Arc::new(status));
    }
}
