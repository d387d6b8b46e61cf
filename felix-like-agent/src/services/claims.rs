//! The claims of Services to addresses; which of them is in force, `ServiceClaim` says.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_model::{Problem, ProblemCode, ServiceAge, ServiceClaim};

use super::address::ServiceAddress;
use super::entry::ServiceEntry;
use crate::problem::problem;

/// Namespace and name.
pub(super) type Name = (String, String);

/// The claims of Services to one address, the best first.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<ServiceClaim, Arc<ServiceEntry>>);

impl Claims {
    /// Puts the claim of a Service in the place of its last one.
    pub(super) fn set(&mut self, name: &Name, claim: Option<(ServiceAge, Arc<ServiceEntry>)>) {
        self.0.retain(|claim, _| claim.service != *name);
        if let Some((age, entry)) = claim {
            let claim = ServiceClaim::new(entry.kind, age, name.clone());
            self.0.insert(claim, entry);
        }
    }

    /// The entry that is in force.
    pub(super) fn first(&self) -> Option<&Arc<ServiceEntry>> {
        self.0.values().next()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.0.keys().map(|claim| &claim.service)
    }

    /// The problem of those that have claims and nothing of them.
    pub(super) fn problem(&self, address: &ServiceAddress) -> Option<Problem> {
        let mut all = self.0.iter();
        let (best, has) = all.next()?;
        let said = |(_, entry): (&ServiceClaim, &Arc<ServiceEntry>)| {
            format!("{} ({})", entry.service, entry.kind.as_str())
        };
        let why = best.why_before(self.0.keys().nth(1)?);
        let others: Vec<String> = all.map(said).collect();
        let reason = format!(
            "{} ({}) has it: {why}; {} do not get what is sent there",
            has.service,
            has.kind.as_str(),
            others.join(", ")
        );
        let at = std::net::SocketAddr::new(address.address, address.port);
        let subject = format!("{} {at}", address.protocol.as_str());
        Some(problem(ProblemCode::ServicesConflict, &subject, reason))
    }
}
