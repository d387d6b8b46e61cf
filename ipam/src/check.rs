//! Inconsistencies of IPAM's data: a pure function from an [`IpamData`] of everything to findings.
//! Reports and changes nothing. What only an outside witness knows (is the pod still there?) is not
//! decided here.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use caracal_model::{
    AffinityState, Block, BlockOwner, HandleId, IpamCode, Prefix, Severity, Timestamp,
    WINDOWS_RESERVED_HANDLE,
};

use crate::block;
use crate::view::IpamData;

/// Data of IPAM that contradict each other, or an invariant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Inconsistency {
    /// A value does not parse.
    Unreadable {
        /// Path of the value.
        key: String,
        /// The parser's reason.
        reason: String,
    },
    /// IPAM-1: two blocks share addresses.
    Overlap(Prefix, Prefix),
    /// IPAM-1: an ordinal is free and allocated at once, queued twice, or neither free nor
    /// allocated.
    Queue {
        /// Block with the fault.
        block: Prefix,
        /// Address of the ordinal.
        address: IpAddr,
        /// Fault of the queue.
        fault: QueueFault,
    },
    /// An attribute that no allocation refers to.
    UnusedAttribute(Prefix, usize),
    /// A cooling address was released in the future, or at a time nobody can read.
    ReleasedAt(Prefix, IpAddr, String),
    /// IPAM-2: a handle counts other than what its block holds.
    Count {
        /// Handle with the wrong count.
        handle: HandleId,
        /// Block that the count is about.
        block: Prefix,
        /// Count of the handle; `None` = the handle, or its entry, is missing.
        counted: Option<u64>,
        /// Number of addresses in the block.
        held: u64,
    },
    /// IPAM-3: a confirmed affinity, and the block is another's or missing.
    Affinity {
        /// Owner by the affinity.
        owner: BlockOwner,
        /// Block that the affinity names.
        block: Prefix,
        /// Owner by the block; `None` = nobody, or there is no block.
        named: Option<BlockOwner>,
    },
    /// IPAM-4: a block names an owner without affinity.
    NoAffinity(Prefix, BlockOwner),
    /// An affinity that is neither confirmed nor gone: somebody died while claiming or releasing,
    /// or is at it right now.
    Unconfirmed(BlockOwner, Prefix, AffinityWord),
    /// IPAM-6: an address of a host's pool without a node: it gets no route.
    NoNode(Prefix, IpAddr),
    /// IPAM-7: an empty block of nobody.
    Abandoned(Prefix),
    /// A block outside all pools.
    NoPool(Prefix),
}

/// Fault of an ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueFault {
    /// Allocated and free.
    Both,
    /// Queued as free twice.
    Twice,
    /// Neither allocated nor free: the address is lost until it is repaired.
    Neither,
}

/// The state of an affinity that is not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AffinityWord {
    /// Being claimed.
    Pending,
    /// Being released.
    PendingDeletion,
}

impl Inconsistency {
    /// Code in the table of codes.
    #[must_use]
    pub const fn code(&self) -> IpamCode {
        match self {
            Self::Unreadable { .. } => IpamCode::Unreadable,
            Self::Overlap(..) => IpamCode::Overlap,
            Self::Queue { .. } => IpamCode::Queue,
            Self::UnusedAttribute(..) => IpamCode::UnusedAttribute,
            Self::ReleasedAt(..) => IpamCode::ReleasedAt,
            Self::Count { .. } => IpamCode::HandleCount,
            Self::Affinity { .. } => IpamCode::Affinity,
            Self::NoAffinity(..) => IpamCode::NoAffinity,
            Self::Unconfirmed(..) => IpamCode::Unconfirmed,
            Self::NoNode(..) => IpamCode::NoNode,
            Self::Abandoned(_) => IpamCode::Abandoned,
            Self::NoPool(_) => IpamCode::NoPool,
        }
    }

    /// False for a notice: what a crash may leave and the next request repairs.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        self.code().entry().severity != Severity::Notice
    }
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { key, reason } => write!(f, "{key} does not parse: {reason}"),
            Self::Overlap(a, b) => write!(f, "blocks {a} and {b} share addresses"),
            Self::Queue {
                block,
                address,
                fault,
            } => write!(
                f,
                "block {block}: {address} is {}",
                match fault {
                    QueueFault::Both => "allocated and free at the same time",
                    QueueFault::Twice => "queued as free twice",
                    QueueFault::Neither => "neither allocated nor free",
                }
            ),
            Self::UnusedAttribute(block, index) => {
                write!(
                    f,
                    "block {block}: no allocation refers to attribute {index}"
                )
            }
            Self::ReleasedAt(block, address, text) => write!(
                f,
                "block {block}: {address} cools down since {text:?}, which is no time in the past"
            ),
            Self::Count {
                handle,
                block,
                counted,
                held,
            } => match counted {
                Some(counted) => write!(
                    f,
                    "handle {handle} counts {counted} in block {block}, which holds {held} for it"
                ),
                None => write!(
                    f,
                    "block {block} holds {held} for handle {handle}, which does not count them"
                ),
            },
            Self::Affinity {
                owner,
                block,
                named: Some(named),
            } => write!(
                f,
                "{owner} has an affinity to block {block}, which names {named}"
            ),
            Self::Affinity { owner, block, .. } => write!(
                f,
                "{owner} has an affinity to block {block}, which does not exist or names nobody"
            ),
            Self::NoAffinity(block, owner) => {
                write!(
                    f,
                    "block {block} names {owner}, which has no affinity to it"
                )
            }
            Self::Unconfirmed(owner, block, AffinityWord::Pending) => {
                write!(
                    f,
                    "{owner} began to claim block {block} and did not finish yet"
                )
            }
            Self::Unconfirmed(owner, block, AffinityWord::PendingDeletion) => {
                write!(
                    f,
                    "{owner} began to release block {block} and did not finish yet"
                )
            }
            Self::NoNode(block, address) => write!(
                f,
                "block {block}: {address} is held without naming a node, so it gets no route"
            ),
            Self::Abandoned(block) => write!(f, "block {block} is empty and belongs to nobody"),
            Self::NoPool(block) => write!(f, "block {block} is in no IP pool"),
        }
    }
}

/// All findings, sorted. The view must hold everything: blocks, affinities, handles, pools.
#[must_use]
pub fn check(view: &IpamData, now: Timestamp) -> Vec<Inconsistency> {
    let mut findings = Vec::new();
    for (key, reason) in &view.unreadable {
        findings.push(Inconsistency::Unreadable {
            key: key.clone(),
            reason: reason.clone(),
        });
    }
    let mut outer: Option<Prefix> = None;
    for cidr in view.blocks.keys() {
        // Sorted by address, then length: a block that covers others stands before them.
        match outer {
            Some(before) if before.covers(cidr) => {
                findings.push(Inconsistency::Overlap(before, *cidr))
            }
            _ => outer = Some(*cidr),
        }
    }
    for known in view.blocks.values() {
        check_block(view, &known.value, now, &mut findings);
    }
    check_handles(view, &mut findings);
    check_affinities(view, &mut findings);
    findings.sort_unstable();
    findings
}

fn check_block(view: &IpamData, block: &Block, now: Timestamp, findings: &mut Vec<Inconsistency>) {
    let mut queued = vec![0usize; block.allocations.len()];
    for ordinal in &block.unallocated {
        if let Some(count) = queued.get_mut(*ordinal) {
            *count += 1;
        }
    }
    for (ordinal, (count, index)) in queued.iter().zip(&block.allocations).enumerate() {
        let fault = match (count, index) {
            (1.., Some(_)) => QueueFault::Both,
            (2.., None) => QueueFault::Twice,
            (0, None) => QueueFault::Neither,
            (0, Some(_)) | (1, None) => continue,
        };
        findings.extend(block.address(ordinal).map(|address| Inconsistency::Queue {
            block: block.cidr,
            address,
            fault,
        }));
    }
    for index in 0..block.attributes.len() {
        if !block.allocations.contains(&Some(index)) {
            findings.push(Inconsistency::UnusedAttribute(block.cidr, index));
        }
    }
    let by_host = !matches!(block.owner(), Some(BlockOwner::Virtual(_)));
    for (_, address, attribute) in block.allocated() {
        if attribute.handle_id.as_deref() == Some(WINDOWS_RESERVED_HANDLE) {
            continue;
        }
        match &attribute.released_at {
            Some(text) => {
                let past = Timestamp::parse_rfc3339(text).is_some_and(|t| t <= now);
                if !past {
                    let text = text.clone();
                    findings.push(Inconsistency::ReleasedAt(block.cidr, address, text));
                }
            }
            None if attribute.node().is_none() && by_host => {
                findings.push(Inconsistency::NoNode(block.cidr, address));
            }
            None => {}
        }
    }
    match block.owner() {
        None if block::is_empty(block) => findings.push(Inconsistency::Abandoned(block.cidr)),
        Some(owner) if !view.affinities.contains_key(&(owner.clone(), block.cidr)) => {
            findings.push(Inconsistency::NoAffinity(block.cidr, owner));
        }
        None | Some(_) => {}
    }
    if view.pool_of(&block.cidr).is_none() {
        findings.push(Inconsistency::NoPool(block.cidr));
    }
}

fn check_handles(view: &IpamData, findings: &mut Vec<Inconsistency>) {
    let mut held: BTreeMap<(HandleId, Prefix), u64> = BTreeMap::new();
    for known in view.blocks.values() {
        for (_, _, attribute) in known.value.allocated() {
            let handle = attribute.handle_id.as_deref();
            if let Some(handle) = handle.filter(|handle| *handle != WINDOWS_RESERVED_HANDLE) {
                *held.entry((handle.into(), known.value.cidr)).or_default() += 1;
            }
        }
    }
    for (id, handle) in &view.handles {
        for (block, counted) in &handle.value.block {
            let held = held.remove(&(id.clone(), *block)).unwrap_or_default();
            if held != *counted {
                findings.push(Inconsistency::Count {
                    handle: id.clone(),
                    block: *block,
                    counted: Some(*counted),
                    held,
                });
            }
        }
    }
    for ((handle, block), held) in held {
        findings.push(Inconsistency::Count {
            handle,
            block,
            counted: None,
            held,
        });
    }
}

fn check_affinities(view: &IpamData, findings: &mut Vec<Inconsistency>) {
    for ((owner, cidr), known) in &view.affinities {
        let block = view.blocks.get(cidr);
        let named = block.and_then(|b| b.value.owner());
        let word = match known.value.state {
            AffinityState::Confirmed => None,
            AffinityState::Pending => Some(AffinityWord::Pending),
            AffinityState::PendingDeletion => Some(AffinityWord::PendingDeletion),
        };
        match word {
            Some(word) => findings.push(Inconsistency::Unconfirmed(owner.clone(), *cidr, word)),
            None if named.as_ref() != Some(owner) => findings.push(Inconsistency::Affinity {
                owner: owner.clone(),
                block: *cidr,
                named,
            }),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
