//! The auditor: does the datastore say what BGP says, BGP what the kernel holds, and the kernel
//! what the machine's interfaces are?
//!
//! [`compare`] is a pure function of what was seen; it remembers nothing and repairs nothing.
//! [`FindingAges`] gives what it finds an age. A finding counts as wrong once it is older than the
//! time in which the node repairs such a thing by itself ([`AuditCode::grace`]), so that a probe
//! does not flap with every change.

mod ages;
mod bgp;
mod datastore;
mod kernel;
#[cfg(test)]
mod tests;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};

use caracal_model::Problem;
use caracal_model::net::Prefix;
use caracal_model::status::KernelStatus;
use caracal_model::{NodeName, SharedMap, Snapshot};

pub use ages::{Finding, FindingAges};
pub(crate) use caracal_model::code::AuditCode;
pub use caracal_model::code::Severity;

use crate::actual::Actual;
use crate::desired::Desired;
use crate::learned::Learned;

/// Most observations of one code that are told one by one.
const NAMED: usize = 50;

/// Everything that is compared.
#[derive(Clone, Copy, Debug)]
pub struct AuditInputs<'a> {
    /// This node.
    pub me: &'a NodeName,
    /// The datastore.
    pub snapshot: &'a Snapshot,
    /// The revision that the kernel has to follow: that of the snapshot, or an earlier one when
    /// nothing follows from what came after it.
    pub revision: i64,
    /// Why the snapshot may be old; `None` = it is not.
    pub stale: Option<&'a str>,
    /// The agent's last plan.
    pub desired: &'a Desired,
    /// The agent's status.
    pub agent: &'a KernelStatus,
    /// Problems of agent, topology and IPAM.
    pub problems: &'a [Problem],
    /// The kernel, read for this comparison; `Err` is why it cannot be.
    pub actual: Result<&'a Actual, &'a str>,
    /// The speaker; `None` = the node runs without BGP.
    pub rib: Option<&'a AuditRib>,
}

/// The speaker's routes, as far as they are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditRib {
    /// The configured peers.
    pub peers: Vec<AuditPeer>,
    /// The confirmed blocks of this node: whether the RIB has them as own routes, and to whom they
    /// go.
    pub own_blocks: BTreeMap<Prefix, OwnBlock>,
    /// Best paths of peers.
    pub learned: SharedMap<Prefix, Learned>,
    /// Sessions are down because somebody drained the node, with this text.
    pub drained: Option<String>,
}

/// One configured peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditPeer {
    /// Its name.
    pub name: String,
    /// The session is established.
    pub established: bool,
    /// Why it counts as a problem that it is not.
    pub wrong: Option<String>,
    /// Somebody wants no session.
    pub disabled: bool,
    /// The state of its state machine.
    pub state: String,
    /// Why it is not up, when that is known.
    pub reason: Option<String>,
}

/// One confirmed block of this node in the speaker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnBlock {
    /// It is originated.
    pub originated: bool,
    /// The peers that are told of it.
    pub told: BTreeSet<String>,
    /// The peers with a session that are not, with the reason.
    pub withheld: BTreeMap<String, String>,
}

/// Something that is not as it should be, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Observation {
    /// Kind of the finding.
    pub code: AuditCode,
    /// Subject of the finding; together with the code it identifies the finding.
    pub subject: String,
    /// Observation and its place.
    pub seen: String,
    /// Whoever saw it says that it does not count yet, whatever its age.
    pub settling: bool,
}

impl Observation {
    fn new(code: AuditCode, subject: impl ToString, seen: impl Into<String>) -> Self {
        Self {
            code,
            subject: subject.to_string(),
            seen: seen.into(),
            settling: false,
        }
    }
}

/// Compares everything with everything. Sorted by code and subject, each at most once.
#[must_use]
pub fn audit(inputs: &AuditInputs<'_>) -> Vec<Observation> {
    let mut found = Vec::new();
    datastore::compare(inputs, &mut found);
    bgp::compare(inputs, &mut found);
    kernel::compare(inputs, &mut found);
    workloads::compare(inputs, &mut found);
    found.sort();
    found.dedup_by(|a, b| (a.code, &a.subject) == (b.code, &b.subject));
    condense(found)
}

/// Of many observations of one code, the first and a number.
fn condense(found: Vec<Observation>) -> Vec<Observation> {
    let mut kept = Vec::with_capacity(found.len().min(NAMED));
    for same in found.chunk_by(|a, b| a.code == b.code) {
        kept.extend(same.iter().take(NAMED).cloned());
        if let Some(more) = same.len().checked_sub(NAMED).filter(|n| *n > 0) {
            let seen = format!("{more} more of these");
            kept.push(Observation::new(same[0].code, "more", seen));
        }
    }
    kept
}
