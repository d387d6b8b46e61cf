//! Repairs that need no decision of an operator: [`plan_repairs`] turns an [`Audit`] into
//! [`Repair`]s, each of which is a machine. A repair looks afresh before it writes, and compares
//! all that it rests on; what was repaired meanwhile is left alone.

use std::collections::BTreeSet;
use std::time::Duration;

use caracal_model::{
    AffinityState, BlockOwner, Compare, Family, HandleId, IpamHandle, Key, KeyRange, Prefix,
    Timestamp,
};

use crate::affinity::ReleaseAffinity;
use crate::audit::{Audit, Leak};
use crate::block;
use crate::check::Inconsistency;
use crate::error::{AffinityError, ReleaseError, Unreadable};
use crate::handle;
use crate::precondition::{Conditional, PreconditionError};
use crate::release::ReleaseIps;
use crate::step::{Input, Machine, Step};
use crate::txn_builder::TxnBuilder;
use crate::users::Users;
use crate::view::{self, IpamData};

/// One thing to put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Releases a leaked address, as long as its preconditions hold.
    Release(Box<Leak>, Vec<Compare>),
    /// Makes a handle count what its blocks hold.
    Recount(HandleId),
    /// Makes a block's queue and attributes agree with its allocations; deletes it when empty and
    /// nobody's.
    Mend(Prefix),
    /// Drops an affinity that its block does not know, or frees a block from an owner that is gone.
    ReleaseAffinity(BlockOwner, Prefix),
    /// Gives a block's owner the affinity that is missing.
    Restore(BlockOwner, Prefix),
}

/// Why a repair was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepairError {
    /// A stored value that must be understood does not parse.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// While releasing an address.
    #[error(transparent)]
    Address(PreconditionError<ReleaseError>),
    /// While releasing a block.
    #[error(transparent)]
    Affinity(AffinityError),
}

/// Repairs to make, and findings left to the operator, with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairPlan {
    /// In the order in which to do it.
    pub repairs: Vec<Repair>,
    /// Sentences about what no repair was planned for.
    pub left: Vec<String>,
}

/// Sorts findings into those that can be repaired and those that cannot. A leaked address that is
/// younger than `min_age` may belong to a pod that is just being made.
#[must_use]
pub fn plan_repairs(
    audit: &Audit,
    view: &IpamData,
    users: &Users,
    min_age: Duration,
    now: Timestamp,
) -> RepairPlan {
    let mut plan = RepairPlan::default();
    for leak in &audit.leaked {
        let address = leak.allocation.address;
        match leak.allocation.made() {
            Some(made) if now.since(made) < min_age => plan.left.push(format!(
                "{address} was taken less than {} s ago: its pod may just be starting; look again later",
                min_age.as_secs()
            )),
            _ => {
                let preconditions = leak.preconditions(users);
                plan.repairs.push(Repair::Release(Box::new(leak.clone()), preconditions));
            }
        }
    }
    let mut structure = BTreeSet::new();
    for finding in audit.findings.iter().filter(|f| f.is_fault()) {
        match repair(finding, view) {
            Some(repair) => {
                let text = format!("{repair:?}");
                if structure.insert(text) {
                    plan.repairs.push(repair);
                }
            }
            None => plan.left.push(format!("{finding}: this needs a person")),
        }
    }
    for unallocated in audit.unallocated.iter().filter(|u| u.pool.is_some()) {
        plan.left.push(format!(
            "{} is in use by {} and nobody holds it: delete and recreate that workload",
            unallocated.address,
            unallocated
                .users
                .iter()
                .map(|u| u.what.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
    for (key, reason) in &audit.unreadable {
        plan.left.push(format!(
            "{key} does not parse: {reason}; correct or remove it"
        ));
    }
    plan
}

fn repair(finding: &Inconsistency, view: &IpamData) -> Option<Repair> {
    Some(match finding {
        Inconsistency::Queue { block, .. } | Inconsistency::UnusedAttribute(block, _) => {
            Repair::Mend(*block)
        }
        Inconsistency::Abandoned(block) => Repair::Mend(*block),
        Inconsistency::Count { handle, .. } => Repair::Recount(handle.clone()),
        Inconsistency::Affinity { owner, block, .. } => {
            Repair::ReleaseAffinity(owner.clone(), *block)
        }
        Inconsistency::NoAffinity(block, owner) => {
            if owner
                .node()
                .is_some_and(|node| !view.nodes.contains_key(node))
            {
                Repair::ReleaseAffinity(owner.clone(), *block)
            } else {
                Repair::Restore(owner.clone(), *block)
            }
        }
        Inconsistency::Unreadable { .. }
        | Inconsistency::Overlap(..)
        | Inconsistency::ReleasedAt(..)
        | Inconsistency::NoNode(..)
        | Inconsistency::Unconfirmed(..)
        | Inconsistency::NoPool(_) => return None,
    })
}

impl std::fmt::Display for Repair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Release(leak, _) => {
                let (address, holder) = (leak.allocation.address, leak.allocation.holder());
                write!(f, "release {address} of {holder}: {}", leak.reason)
            }
            Self::Recount(handle) => write!(f, "recount handle {handle}"),
            Self::Mend(block) => write!(f, "put block {block} in order"),
            Self::ReleaseAffinity(owner, block) => {
                write!(f, "end the affinity of {owner} to {block}")
            }
            Self::Restore(owner, block) => write!(f, "restore the affinity of {owner} to {block}"),
        }
    }
}

/// Carries out one repair. Done with false when there was nothing left to do.
#[derive(Clone, Debug)]
pub struct Mender {
    work: Work,
}

#[derive(Clone, Debug)]
enum Work {
    Release(Box<Conditional<ReleaseIps>>),
    Affinity(Box<ReleaseAffinity>),
    Structure(Box<Structure>),
}

impl Mender {
    /// `now` is written into what the repair makes.
    #[must_use]
    pub fn new(repair: Repair, now: Timestamp) -> Self {
        let structure = |repair| {
            Work::Structure(Box::new(Structure {
                repair,
                now,
                asked: None,
            }))
        };
        let work = match repair {
            Repair::Release(leak, preconditions) => {
                let machine = ReleaseIps::new(vec![leak.allocation.target()], now);
                Work::Release(Box::new(Conditional::new(machine, preconditions)))
            }
            Repair::ReleaseAffinity(owner, cidr) => {
                Work::Affinity(Box::new(ReleaseAffinity::new(owner, cidr, false, now)))
            }
            repair => structure(repair),
        };
        Self { work }
    }
}

impl Machine for Mender {
    type Output = bool;
    type Error = RepairError;

    fn step(&mut self, seen: Input) -> Step<bool, RepairError> {
        match &mut self.work {
            Work::Release(machine) => machine.step(seen).map(
                |released| !released.addresses.is_empty(),
                RepairError::Address,
            ),
            Work::Affinity(machine) => machine.step(seen).map(|_| true, RepairError::Affinity),
            Work::Structure(machine) => machine.step(seen),
        }
    }
}

/// Repairs that are one read and one transaction.
#[derive(Clone, Debug)]
struct Structure {
    repair: Repair,
    now: Timestamp,
    asked: Option<Vec<KeyRange>>,
}

impl Structure {
    fn ranges(&self) -> Vec<KeyRange> {
        match &self.repair {
            Repair::Recount(handle) => vec![
                view::key(&Key::Handle(handle.clone())),
                view::blocks(Family::Ipv4),
                view::blocks(Family::Ipv6),
            ],
            Repair::Restore(owner, cidr) => vec![
                view::key(&Key::Block(*cidr)),
                view::key(&Key::Affinity(owner.clone(), *cidr)),
            ],
            Repair::Mend(cidr) => vec![view::key(&Key::IpamConfig), view::key(&Key::Block(*cidr))],
            Repair::Release(..) | Repair::ReleaseAffinity(..) => Vec::new(),
        }
    }

    fn txn(&self, view: &IpamData) -> Result<TxnBuilder, Unreadable> {
        let mut txn = TxnBuilder::default();
        match &self.repair {
            Repair::Recount(id) => {
                view.readable(&[Key::Handle(id.clone())])?;
                recount(view, id, &mut txn)?;
            }
            Repair::Mend(cidr) => {
                view.readable(&[Key::IpamConfig, Key::Block(*cidr)])?;
                if let Some(known) = view.blocks.get(cidr) {
                    let mut value = known.value.clone();
                    block::collect(&mut value, view.cool_down(), self.now);
                    block::mend(&mut value);
                    if value.affinity.is_none() && block::is_empty(&value) {
                        txn.delete_block(view, *cidr);
                    } else if value != known.value {
                        txn.put_block(view, value);
                    }
                }
            }
            Repair::Restore(owner, cidr) => {
                let affinity = Key::Affinity(owner.clone(), *cidr);
                view.readable(&[Key::Block(*cidr), affinity])?;
                let named = view.blocks.get(cidr).and_then(|b| b.value.owner());
                let has = view.affinities.contains_key(&(owner.clone(), *cidr));
                if named.as_ref() == Some(owner) && !has {
                    txn.unchanged_block(view, *cidr);
                    txn.put_affinity(view, owner, *cidr, AffinityState::Confirmed);
                }
            }
            Repair::Release(..) | Repair::ReleaseAffinity(..) => {}
        }
        Ok(txn)
    }
}

/// The handle as its blocks say. Every block that it counts, or that holds for it, is compared.
fn recount(view: &IpamData, id: &HandleId, txn: &mut TxnBuilder) -> Result<(), Unreadable> {
    let known = view.handles.get(id);
    let before = known.map(|k| k.value.clone()).unwrap_or_default();
    let mut after = IpamHandle {
        block: std::collections::BTreeMap::new(),
        ..before.clone()
    };
    for versioned in view.blocks.values() {
        let held = versioned.value.allocated();
        let held = held.filter(|(_, _, a)| a.handle_id.as_deref() == Some(id.as_str()));
        let count = held.count() as u64;
        if count > 0 {
            handle::add(&mut after, versioned.value.cidr, count);
        }
    }
    if after == before {
        return Ok(());
    }
    for cidr in before.block.keys().chain(after.block.keys()) {
        view.readable(&[Key::Block(*cidr)])?;
        txn.unchanged_block(view, *cidr);
    }
    txn.put_handle(id, known, &after);
    Ok(())
}

impl Machine for Structure {
    type Output = bool;
    type Error = RepairError;

    fn step(&mut self, seen: Input) -> Step<bool, RepairError> {
        match (seen, self.asked.take()) {
            (Input::Committed(_), _) => Step::Done(true),
            (Input::Read(reading), Some(asked)) => {
                let mut view = IpamData::default();
                view.absorb(&asked, reading);
                match self.txn(&view) {
                    Err(fault) => Step::Failed(fault.into()),
                    Ok(txn) if txn.is_empty() => Step::Done(false),
                    Ok(txn) => Step::Commit(txn.into_txn()),
                }
            }
            _ => {
                let ranges = self.ranges();
                self.asked = Some(ranges.clone());
                Step::Read(ranges)
            }
        }
    }
}
