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
mod services;
#[cfg(test)]
mod tests;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use caracal_model::{KernelStatus, NodeName, Prefix, Problem, SharedMap, Snapshot};

pub use ages::{AuditFinding, FindingAges};
pub(crate) use caracal_model::AuditCode;

use crate::actual::Actual;
use crate::desired::Desired;
use crate::diff::CompareJob;
use crate::learned::Learned;
use crate::services::ServiceDifferences;

/// Most observations of one code that are told one by one.
const NAMED: usize = 50;

/// Everything that is compared.
#[derive(Clone, Copy, Debug)]
pub struct AuditInputs<'a> {
    /// The node whose plan and kernel are compared.
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
    /// The table of services beside its plan; `None` = not compared.
    pub services: Option<&'a ServiceDifferences>,
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
    /// Why paths to blocks of other nodes are not used, by block; of blocks that nothing leads to.
    pub unused: BTreeMap<Prefix, String>,
    /// Sessions are down because somebody drained the node, with this text.
    pub drained: Option<String>,
}

/// One configured peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditPeer {
    /// Name in the configuration of the speaker.
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
    /// The speaker has it among its own routes.
    pub originated: bool,
    /// Names of the peers that it is advertised to.
    pub advertised_to: BTreeSet<String>,
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
    /// The observer says that it does not count yet, whatever its age.
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
    AuditJob::new(inputs).finish()
}

/// An audit under way, in slices.
#[must_use]
pub struct AuditJob<'a> {
    inputs: &'a AuditInputs<'a>,
    found: Vec<Observation>,
    stage: Stage<'a>,
}

enum Stage<'a> {
    Begin,
    /// Other nodes' blocks, from here on.
    Blocks(Bound<Prefix>),
    /// What BGP has learned.
    Learned(Bound<Prefix>),
    Kernel,
    Routes(Box<CompareJob<'a>>),
    Workloads,
    Done,
}

impl<'a> AuditJob<'a> {
    /// The same comparison, to be made in slices.
    pub const fn new(inputs: &'a AuditInputs<'a>) -> Self {
        Self {
            inputs,
            found: Vec::new(),
            stage: Stage::Begin,
        }
    }

    /// Goes on by a slice: looks at no more than so many blocks, routes or entries. True when all
    /// is compared.
    pub fn step(&mut self, most: usize) -> bool {
        let (inputs, found) = (self.inputs, &mut self.found);
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Begin => {
                datastore::compare(inputs, found);
                match bgp::compare(inputs, found) {
                    true => Stage::Blocks(Bound::Unbounded),
                    false => Stage::Kernel,
                }
            }
            Stage::Blocks(from) => match bgp::other_blocks(inputs, from, most, found) {
                Some(last) => Stage::Blocks(Bound::Excluded(last)),
                None => Stage::Learned(Bound::Unbounded),
            },
            Stage::Learned(from) => match bgp::unplanned(inputs, from, most, found) {
                Some(last) => Stage::Learned(Bound::Excluded(last)),
                None => Stage::Kernel,
            },
            Stage::Kernel => match kernel::compare(inputs, found) {
                Some(job) => Stage::Routes(Box::new(job)),
                None => Stage::Workloads,
            },
            Stage::Routes(mut job) => match job.step(most) {
                false => Stage::Routes(job),
                true => {
                    let (ops, conflicts, _) = job.finish();
                    kernel::judge(inputs, (ops, conflicts), found);
                    Stage::Workloads
                }
            },
            Stage::Workloads => {
                workloads::compare(inputs, found);
                services::compare(inputs, found);
                Stage::Done
            }
            Stage::Done => Stage::Done,
        };
        matches!(self.stage, Stage::Done)
    }

    /// What was found; does what is left.
    #[must_use]
    pub fn finish(mut self) -> Vec<Observation> {
        while !self.step(usize::MAX) {}
        let mut found = self.found;
        found.sort_unstable();
        found.dedup_by(|a, b| (a.code, &a.subject) == (b.code, &b.subject));
        condense(found)
    }
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
