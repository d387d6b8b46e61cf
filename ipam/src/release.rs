//! Release by address ([`ReleaseIps`]) and by handle ([`ReleaseHandle`]). Blocks and handles change
//! in one transaction (IPAM-2); a block that is left empty and without owner, or whose pool does
//! not select its owner any more, is deleted with it (IPAM-7). What is not held is reported, not
//! refused: a release may be repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{
    Block, BlockOwner, Family, HandleId, InsertEach, IpPool, IpamHandle, Key, KeyRange, Kind,
    Prefix, Timestamp,
};

use crate::block;
use crate::error::{MAX_BLOCKS, MAX_OPERATIONS, MAX_PRECONDITIONS, ReleaseError, Unreadable};
use crate::request::{ReleaseTarget, Released};
use crate::step::{Input, Machine, Step};
use crate::txn_builder::TxnBuilder;
use crate::view::{self, IpamData, Known};
use crate::{handle, pools};

/// Effect of a transaction in flight.
#[derive(Clone, Debug, Default)]
struct Progress {
    released: Released,
    more: bool,
}

#[derive(Clone, Debug)]
enum ReleaseState {
    Idle,
    Reading(Vec<KeyRange>),
    Releasing(Progress),
}

/// Changes of blocks and handles that go into one transaction.
#[derive(Debug, Default)]
struct Changes {
    blocks: BTreeMap<Prefix, Block>,
    /// Addresses to take off a handle, by handle and block.
    counts: BTreeMap<(HandleId, Prefix), u64>,
}

impl Changes {
    fn release(&mut self, view: &IpamData, ordinal: usize, cidr: Prefix, now: Timestamp) {
        let Some(known) = view.blocks.get(&cidr) else {
            return;
        };
        let block = self
            .blocks
            .entry(cidr)
            .or_insert_with(|| known.value.clone());
        let attribute = known.value.allocations.get(ordinal).copied().flatten();
        let attribute = attribute.and_then(|index| known.value.attributes.get(index));
        if let Some(handle) = attribute.and_then(|a| a.handle_id.as_deref()) {
            *self.counts.entry((handle.into(), cidr)).or_default() += 1;
        }
        block::release(block, ordinal, view.cool_down(), now);
    }

    /// Ranges to read about the owners of blocks that become empty: does the block's pool still
    /// select the node? Only for pools that do not select all.
    fn unknown_owners(&self, view: &IpamData) -> Vec<KeyRange> {
        let owners = self.blocks.values().filter_map(|value| {
            let (owner, _) = emptied(view, value)?;
            Some((owner, value.cidr))
        });
        let keys = owners.flat_map(|(owner, cidr)| {
            let node = owner.node().map(Key::node);
            node.into_iter().chain([Key::Affinity(owner, cidr)])
        });
        let keys: BTreeSet<String> = keys
            .filter(|key| !view.was_asked(key))
            .map(|key| key.to_path())
            .insert_each();
        keys.into_iter().map(KeyRange::Key).collect()
    }

    fn txn(self, view: &IpamData, whole: Option<&HandleId>) -> TxnBuilder {
        let mut txn = TxnBuilder::default();
        for (cidr, value) in self.blocks {
            if let Some(owner) = deserted(view, &value) {
                txn.delete_affinity(view, &owner, cidr);
                txn.delete_block(view, cidr);
            } else if value.affinity.is_none() && block::is_empty(&value) {
                txn.delete_block(view, cidr);
            } else {
                txn.put_block(view, value);
            }
        }
        let mut handles: BTreeMap<HandleId, IpamHandle> = BTreeMap::new();
        for ((id, cidr), count) in self.counts {
            if let Some(known) = view.handles.get(&id).filter(|_| whole != Some(&id)) {
                let value = handles.entry(id).or_insert_with(|| known.value.clone());
                handle::remove(value, cidr, count);
            }
        }
        for (id, value) in handles {
            txn.put_handle(&id, view.handles.get(&id), &value);
        }
        txn
    }
}

/// The node that owns this block, and the block's pool, when the block is empty and the pool
/// chooses its nodes.
fn emptied<'a>(view: &'a IpamData, value: &Block) -> Option<(BlockOwner, &'a IpPool)> {
    let owner = value.owner().filter(|owner| owner.node().is_some())?;
    let (_, pool) = view.pool_of(&value.cidr)?;
    (block::is_empty(value) && pools::chooses_nodes(pool)).then_some((owner, pool))
}

/// The owner of an empty block whose pool does not select it any more.
fn deserted(view: &IpamData, value: &Block) -> Option<BlockOwner> {
    let (owner, pool) = emptied(view, value)?;
    let node = view.nodes.get(owner.node()?)?;
    pools::turns_away(pool, &node.labels).then_some(owner)
}

/// Releases everything held through a handle, and the handle itself.
#[derive(Clone, Debug)]
pub struct ReleaseHandle {
    handle: HandleId,
    hints: Vec<Prefix>,
    now: Timestamp,
    view: IpamData,
    state: ReleaseState,
    done: Released,
}

impl ReleaseHandle {
    /// A release by handle. Blocks of `hints` are read at once and may save a round trip.
    #[must_use]
    pub fn new(handle: HandleId, hints: Vec<Prefix>, now: Timestamp) -> Self {
        Self {
            handle,
            hints,
            now,
            view: IpamData::default(),
            state: ReleaseState::Idle,
            done: Released::default(),
        }
    }

    fn decide(&mut self) -> Result<Step<Released, Unreadable>, Unreadable> {
        let handle = Key::Handle(self.handle.clone());
        self.view.readable(&[Key::IpamConfig, handle])?;
        let Some(known) = self.view.handles.get(&self.handle) else {
            return Ok(Step::Done(std::mem::take(&mut self.done)));
        };
        let cidrs: Vec<Prefix> = known.value.block.keys().copied().collect();
        let mut unknown = Vec::new();
        for cidr in cidrs.iter().take(MAX_BLOCKS) {
            self.view.readable(&[Key::Block(*cidr)])?;
            if self.view.block(*cidr) == Known::Unknown {
                unknown.push(view::key(&Key::Block(*cidr)));
            }
        }
        if !unknown.is_empty() {
            self.state = ReleaseState::Reading(unknown.clone());
            return Ok(Step::Read(unknown));
        }
        let (mut changes, mut released) = (Changes::default(), Released::default());
        let mut rest = known.value.clone();
        for cidr in cidrs.iter().take(MAX_BLOCKS) {
            rest.block.remove(cidr);
            let Known::Present(block) = self.view.block(*cidr) else {
                continue;
            };
            for (ordinal, address, attribute) in block.value.allocated() {
                if attribute.handle_id.as_deref() == Some(self.handle.as_str()) {
                    changes.release(&self.view, ordinal, *cidr, self.now);
                    released.addresses.push(address);
                }
            }
        }
        let unknown = changes.unknown_owners(&self.view);
        if !unknown.is_empty() {
            self.state = ReleaseState::Reading(unknown.clone());
            return Ok(Step::Read(unknown));
        }
        self.hints = cidrs.iter().take(MAX_BLOCKS).copied().collect();
        let mut txn = changes.txn(&self.view, Some(&self.handle));
        txn.put_handle(&self.handle, Some(known), &rest);
        self.state = ReleaseState::Releasing(Progress {
            released,
            more: !rest.block.is_empty(),
        });
        Ok(Step::Commit(txn.into_txn()))
    }
}

impl Machine for ReleaseHandle {
    type Output = Released;
    type Error = Unreadable;

    fn step(&mut self, seen: Input) -> Step<Released, Unreadable> {
        match (std::mem::replace(&mut self.state, ReleaseState::Idle), seen) {
            (ReleaseState::Reading(asked), Input::Read(reading)) => {
                self.view.absorb(&asked, reading);
                return self.decide().unwrap_or_else(Step::Failed);
            }
            (ReleaseState::Releasing(progress), Input::Committed(_)) => {
                self.done.addresses.extend(progress.released.addresses);
                if !progress.more {
                    return Step::Done(std::mem::take(&mut self.done));
                }
            }
            _ => {}
        }
        self.view = IpamData::default();
        let mut ranges = vec![
            view::key(&Key::IpamConfig),
            view::kind(Kind::IpPool),
            view::key(&Key::Handle(self.handle.clone())),
        ];
        let hints = self.hints.iter().take(MAX_BLOCKS);
        ranges.extend(hints.map(|cidr| view::key(&Key::Block(*cidr))));
        self.state = ReleaseState::Reading(ranges.clone());
        Step::Read(ranges)
    }
}

type ReleaseStep = Step<Released, ReleaseError>;

/// Addresses of one transaction: each may bring a handle, beside `MAX_BLOCKS` blocks with their
/// affinities and preconditions.
const MAX_TARGETS: usize = MAX_OPERATIONS - 2 * MAX_BLOCKS - MAX_PRECONDITIONS;

/// Releases single addresses. Conditions are checked for all of a transaction's addresses before
/// any is released; more than 40 addresses, or addresses of more than `MAX_BLOCKS` blocks, take
/// several transactions.
#[derive(Clone, Debug)]
pub struct ReleaseIps {
    targets: Vec<ReleaseTarget>,
    now: Timestamp,
    view: IpamData,
    state: ReleaseState,
    done: Released,
}

impl ReleaseIps {
    /// A release of these.
    #[must_use]
    pub fn new(targets: Vec<ReleaseTarget>, now: Timestamp) -> Self {
        Self {
            targets,
            now,
            view: IpamData::default(),
            state: ReleaseState::Idle,
            done: Released::default(),
        }
    }

    fn read(&mut self, ranges: Vec<KeyRange>) -> ReleaseStep {
        self.state = ReleaseState::Reading(ranges.clone());
        Step::Read(ranges)
    }

    /// The block of an address: by its pool, or among all blocks when there is no pool (any more).
    fn block_of(&self, address: IpAddr) -> Option<Prefix> {
        if let Some((_, pool)) = self.view.pool_of(&Prefix::host(address)) {
            return Some(Prefix::truncated(address, pool.spec.block_len()));
        }
        self.view
            .blocks
            .keys()
            .copied()
            .find(|cidr| cidr.contains(address))
    }

    fn pending(&self) -> impl Iterator<Item = &ReleaseTarget> {
        self.targets.iter().filter(|target| {
            !self.done.addresses.contains(&target.address)
                && !self.done.unknown.contains(&target.address)
        })
    }

    fn decide(&mut self) -> Result<ReleaseStep, ReleaseError> {
        self.view.readable(&[Key::IpamConfig])?;
        let families: BTreeSet<Family> = self
            .pending()
            .filter(|t| self.block_of(t.address).is_none())
            .map(|t| Family::of(t.address))
            .filter(|family| !self.view.knows_all_blocks(*family))
            .insert_each();
        if !families.is_empty() {
            return Ok(self.read(families.into_iter().map(view::blocks).collect()));
        }
        let cidrs: BTreeSet<Prefix> = self
            .pending()
            .filter_map(|t| self.block_of(t.address))
            .insert_each();
        let cidrs: BTreeSet<Prefix> = cidrs.into_iter().take(MAX_BLOCKS).insert_each();
        let unknown = self.view.unread_blocks(&cidrs);
        if !unknown.is_empty() {
            return Ok(self.read(unknown));
        }
        let (found, released) = self.find(&cidrs)?;
        let unknown: Vec<KeyRange> = self.unknown_handles(&found);
        if !unknown.is_empty() {
            return Ok(self.read(unknown));
        }
        let mut changes = Changes::default();
        for (cidr, ordinal) in found {
            changes.release(&self.view, ordinal, cidr, self.now);
        }
        let unknown = changes.unknown_owners(&self.view);
        if !unknown.is_empty() {
            return Ok(self.read(unknown));
        }
        let done = released.addresses.len() + released.unknown.len();
        let more = done < self.pending().count();
        let txn = changes.txn(&self.view, None);
        let progress = Progress { released, more };
        if txn.is_empty() {
            return Ok(self.advance(progress));
        }
        self.state = ReleaseState::Releasing(progress);
        Ok(Step::Commit(txn.into_txn()))
    }

    /// Where the addresses of these blocks are held, and what will have been done.
    fn find(
        &self,
        cidrs: &BTreeSet<Prefix>,
    ) -> Result<(Vec<(Prefix, usize)>, Released), ReleaseError> {
        let (mut found, mut released) = (Vec::new(), Released::default());
        for target in self.pending() {
            if found.len() == MAX_TARGETS {
                break;
            }
            let Some(cidr) = self.block_of(target.address) else {
                released.unknown.push(target.address);
                continue;
            };
            if !cidrs.contains(&cidr) {
                continue;
            }
            self.view.readable(&[Key::Block(cidr)])?;
            let held = match self.view.block(cidr) {
                Known::Present(known) => held(&known.value, target)?,
                _ => None,
            };
            match held {
                Some(ordinal) if !found.contains(&(cidr, ordinal)) => {
                    found.push((cidr, ordinal));
                    released.addresses.push(target.address);
                }
                Some(_) => {}
                None => released.unknown.push(target.address),
            }
        }
        Ok((found, released))
    }

    fn unknown_handles(&self, found: &[(Prefix, usize)]) -> Vec<KeyRange> {
        let mut keys = BTreeSet::new();
        for (cidr, ordinal) in found {
            if let Some(block) = self.view.blocks.get(cidr)
                && let Some((_, _, attribute)) =
                    block.value.allocated().find(|(o, _, _)| o == ordinal)
                && let Some(handle) = attribute.handle_id.as_deref()
            {
                keys.insert(Key::Handle(handle.into()));
            }
        }
        keys.into_iter()
            .filter(|key| !self.view.was_asked(key))
            .map(|key| view::key(&key))
            .collect()
    }

    fn advance(&mut self, progress: Progress) -> ReleaseStep {
        self.done.addresses.extend(progress.released.addresses);
        self.done.unknown.extend(progress.released.unknown);
        if progress.more {
            self.begin()
        } else {
            Step::Done(std::mem::take(&mut self.done))
        }
    }

    fn begin(&mut self) -> ReleaseStep {
        self.view = IpamData::default();
        self.read(vec![view::key(&Key::IpamConfig), view::kind(Kind::IpPool)])
    }
}

/// The ordinal under which the target is held, if its conditions hold (IPAM-8).
fn held(block: &Block, target: &ReleaseTarget) -> Result<Option<usize>, ReleaseError> {
    let address = target.address;
    let allocated = block.allocated().find(|(_, a, _)| *a == address);
    let Some((ordinal, _, attribute)) = allocated else {
        return Ok(None);
    };
    if attribute.released_at.is_some() {
        return Ok(None);
    }
    if let Some(expected) = &target.handle
        && attribute.handle_id.as_deref() != Some(expected.as_str())
    {
        return Err(ReleaseError::OtherHandle {
            address,
            expected: expected.clone(),
            found: attribute.handle_id.as_deref().map(Into::into),
        });
    }
    let numbers = &block.sequence_number_for_allocation;
    if let (Some(expected), Some(found)) = (target.sequence, numbers.get(&ordinal.to_string()))
        && expected != *found
    {
        return Err(ReleaseError::OtherSequence {
            address,
            expected,
            found: *found,
        });
    }
    Ok(Some(ordinal))
}

impl Machine for ReleaseIps {
    type Output = Released;
    type Error = ReleaseError;

    fn step(&mut self, seen: Input) -> ReleaseStep {
        match (std::mem::replace(&mut self.state, ReleaseState::Idle), seen) {
            (ReleaseState::Reading(asked), Input::Read(reading)) => {
                self.view.absorb(&asked, reading);
                self.decide().unwrap_or_else(Step::Failed)
            }
            (ReleaseState::Releasing(progress), Input::Committed(_)) => self.advance(progress),
            _ => self.begin(),
        }
    }
}
