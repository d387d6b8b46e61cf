//! Operations on one block: take, release, collect. Changes a [`Block`] in memory and nothing else;
//! whoever stores it compares the revision it was read at (IPAM-5).

use std::net::IpAddr;
use std::time::Duration;

use caracal_model::{
    AllocationAttribute, Block, BlockOwner, Prefix, Timestamp, WINDOWS_RESERVED_HANDLE,
};

use crate::pools::Reservations;

/// A new block of an owner.
#[must_use]
pub fn create(cidr: Prefix, owner: &BlockOwner, now: Timestamp) -> Block {
    let mut block = Block::new(cidr, Some(owner), now.nanos());
    block.affinity_claim_time = Some(now.rfc3339());
    block
}

/// Free ordinals in the order in which they are handed out, without reserved ones (IPAM-9). An
/// ordinal that is queued as free and allocated at the same time counts as allocated (IPAM-1).
fn free_ordinals<'a>(
    block: &'a Block,
    reserved: &'a Reservations,
) -> impl Iterator<Item = (usize, IpAddr)> + 'a {
    let queued = block.unallocated.iter().enumerate();
    queued.filter_map(move |(position, ordinal)| {
        let free = matches!(block.allocations.get(*ordinal), Some(None))
            && !block.unallocated[..position].contains(ordinal);
        let address = block.address(*ordinal).filter(|_| free)?;
        (!reserved.contains(address)).then_some((*ordinal, address))
    })
}

/// How many addresses can be handed out, counted up to `enough`.
#[must_use]
pub(crate) fn free(block: &Block, reserved: &Reservations, enough: usize) -> usize {
    free_ordinals(block, reserved).take(enough).count()
}

/// True when no address is held. Cooling ones are held; those that a Windows node keeps from
/// everybody in each of its blocks are not, as in Calico: they go with the block.
#[must_use]
pub(crate) fn is_empty(block: &Block) -> bool {
    in_use(block) == 0
}

/// How many addresses are held, cooling ones included.
#[must_use]
pub(crate) fn in_use(block: &Block) -> usize {
    let windows = |index: &&usize| {
        block
            .attributes
            .get(**index)
            .and_then(|attribute| attribute.handle_id.as_deref())
            == Some(WINDOWS_RESERVED_HANDLE)
    };
    let held = block.allocations.iter().flatten();
    held.filter(|index| !windows(index)).count()
}

/// Takes up to `count` addresses from the head of the queue.
pub fn take(
    block: &mut Block,
    count: usize,
    attribute: &AllocationAttribute,
    reserved: &Reservations,
) -> Vec<(IpAddr, u64)> {
    let chosen: Vec<_> = free_ordinals(block, reserved).take(count).collect();
    for (ordinal, _) in &chosen {
        allocate(block, *ordinal, attribute);
    }
    let sequence = block.sequence_number;
    chosen.into_iter().map(|(_, a)| (a, sequence)).collect()
}

/// Takes one address, reserved or not.
///
/// # Errors
/// The attribute of whoever holds it. [`None`] inside when the address is not of this block.
pub fn take_address(
    block: &mut Block,
    address: IpAddr,
    attribute: &AllocationAttribute,
) -> Result<u64, Option<Box<AllocationAttribute>>> {
    let ordinal = block.ordinal(address).ok_or(None)?;
    match block.allocations.get(ordinal) {
        Some(None) => {
            allocate(block, ordinal, attribute);
            Ok(block.sequence_number)
        }
        Some(Some(index)) => Err(block.attributes.get(*index).cloned().map(Box::new)),
        None => Err(None),
    }
}

fn allocate(block: &mut Block, ordinal: usize, attribute: &AllocationAttribute) {
    block.unallocated.retain(|o| *o != ordinal);
    point(block, ordinal, attribute);
    let sequence = block.sequence_number;
    let allocated = &mut block.sequence_number_for_allocation;
    allocated.insert(ordinal.to_string(), sequence);
}

/// Makes an ordinal refer to an equal attribute, or to a new one.
fn point(block: &mut Block, ordinal: usize, attribute: &AllocationAttribute) {
    let attributes = &mut block.attributes;
    let known = attributes.iter().position(|a| a == attribute);
    let index = known.unwrap_or_else(|| {
        attributes.push(attribute.clone());
        attributes.len() - 1
    });
    block.allocations[ordinal] = Some(index);
}

/// Replaces the attribute of an allocated ordinal, as when an old allocation is taken over.
pub(crate) fn adopt(block: &mut Block, ordinal: usize, attribute: &AllocationAttribute) {
    point(block, ordinal, attribute);
    prune(block);
}

/// Releases an allocated ordinal: at once, or into cool-down.
pub(crate) fn release(block: &mut Block, ordinal: usize, cool_down: Duration, now: Timestamp) {
    if !matches!(block.allocations.get(ordinal), Some(Some(_))) {
        return;
    }
    if cool_down.is_zero() {
        free_ordinal(block, ordinal);
    } else {
        let cooling = AllocationAttribute {
            released_at: Some(now.rfc3339()),
            ..AllocationAttribute::default()
        };
        point(block, ordinal, &cooling);
    }
    prune(block);
}

fn free_ordinal(block: &mut Block, ordinal: usize) {
    block.allocations[ordinal] = None;
    block
        .sequence_number_for_allocation
        .remove(&ordinal.to_string());
    if !block.unallocated.contains(&ordinal) {
        block.unallocated.push(ordinal);
    }
}

/// Gives an allocated ordinal to another holder. Returns the sequence number of this allocation: a
/// release of the earlier one no longer hits it.
pub(crate) fn take_over(block: &mut Block, ordinal: usize, attribute: &AllocationAttribute) -> u64 {
    allocate(block, ordinal, attribute);
    prune(block);
    block.sequence_number
}

/// Frees the addresses whose cool-down is over. Returns how many.
pub(crate) fn collect(block: &mut Block, cool_down: Duration, now: Timestamp) -> usize {
    let over: Vec<usize> = block
        .allocated()
        .filter(|(_, _, attribute)| is_over(attribute, cool_down, now))
        .map(|(ordinal, _, _)| ordinal)
        .collect();
    for ordinal in &over {
        free_ordinal(block, *ordinal);
    }
    if !over.is_empty() {
        prune(block);
    }
    over.len()
}

fn is_over(attribute: &AllocationAttribute, cool_down: Duration, now: Timestamp) -> bool {
    let Some(text) = attribute.released_at.as_deref() else {
        return false;
    };
    // A time nobody can read is left for people: freeing is what cannot be taken back.
    cool_down.is_zero()
        || Timestamp::parse_rfc3339(text).is_some_and(|released| now.since(released) >= cool_down)
}

/// Drops attributes that no ordinal refers to and renumbers the rest.
fn prune(block: &mut Block) {
    let mut renumbered = vec![None; block.attributes.len()];
    for index in block.allocations.iter().flatten() {
        if let Some(slot) = renumbered.get_mut(*index) {
            *slot = Some(0);
        }
    }
    let used = renumbered.iter_mut().flatten().enumerate();
    used.for_each(|(next, slot)| *slot = next);
    let mut position = 0;
    block.attributes.retain(|_| {
        position += 1;
        renumbered[position - 1].is_some()
    });
    for index in block.allocations.iter_mut().flatten() {
        if let Some(Some(next)) = renumbered.get(*index) {
            *index = *next;
        }
    }
}

/// Repairs what IPAM-1 forbids: every ordinal is either held or queued once, and every attribute is
/// referred to. What is held stays held.
pub(crate) fn mend(block: &mut Block) {
    let mut queued = vec![false; block.allocations.len()];
    let allocations = &block.allocations;
    block.unallocated.retain(|ordinal| {
        let free = matches!(allocations.get(*ordinal), Some(None));
        free && queued
            .get_mut(*ordinal)
            .is_some_and(|q| !std::mem::replace(q, true))
    });
    for (ordinal, queued) in queued.iter().enumerate() {
        if !queued && block.allocations[ordinal].is_none() {
            block.unallocated.push(ordinal);
        }
    }
    prune(block);
}

/// Marks a change; call once before each time the block is stored.
pub const fn touch(block: &mut Block) {
    block.sequence_number = block.sequence_number.wrapping_add(1);
}

#[cfg(test)]
mod tests;
