//! Which of several Services has an address: a cluster address comes before load balancers' and
//! external ones, these before node ports; then the older Service. So a newcomer takes nothing, and
//! the order is the same on every node and after a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_model::{KubernetesService, Problem, ProblemCode};

use super::address::ServiceAddress;
use super::entry::ServiceEntry;
use crate::problem::problem;

/// Namespace and name.
pub(super) type Name = (String, String);

/// Age of a Service. One that does not say its age is younger than all that do.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Age {
    is_unknown: bool,
    created: Option<String>,
    /// Of Services of one second: nobody chooses it, as one may choose a name.
    uid: Option<String>,
}

impl Age {
    pub(super) fn of(service: &KubernetesService) -> Self {
        let (created, uid) = service.created();
        Self {
            is_unknown: created.is_none(),
            created: created.map(str::to_owned),
            uid: uid.map(str::to_owned),
        }
    }
}

/// The claims of Services to one address, the best first.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<(u8, Age, Name), Arc<ServiceEntry>>);

impl Claims {
    /// Puts the claim of a Service in the place of its last one.
    pub(super) fn set(&mut self, name: &Name, claim: Option<(Age, Arc<ServiceEntry>)>) {
        self.0.retain(|(_, _, of), _| of != name);
        if let Some((age, entry)) = claim {
            let key = (entry.kind.precedence(), age, name.clone());
            self.0.insert(key, entry);
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
        self.0.keys().map(|(_, _, name)| name)
    }

    /// The problem of those that have claims and nothing of them.
    pub(super) fn problem(&self, address: &ServiceAddress) -> Option<Problem> {
        let mut all = self.0.iter();
        let ((best, _, _), has) = all.next()?;
        let said = |((_, _, _), entry): (&(u8, Age, Name), &Arc<ServiceEntry>)| {
            format!("{} ({})", entry.service, entry.kind.as_str())
        };
        let second = self.0.keys().nth(1)?;
        let why = match second.0 == *best {
            true => "it is the older one",
            false => "that kind of address comes first",
        };
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
