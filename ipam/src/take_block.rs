//! A whole block for a node, with the addresses that somebody else has given out of it:
//! [`TakeBlock`]. Affinity, block and handles come in one transaction, so that at no moment the
//! node's own plugin could give one of the addresses a second time. Where there are more handles
//! than one transaction takes, some go before it: until then they count too much, never too little.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{
    AffinityState, AllocationAttribute, AllowedUse, Block, BlockOwner, HandleId, InsertEach, Key,
    KeyRange, NodeName, Prefix, Timestamp, Txn,
};

use crate::error::Unreadable;
use crate::request::attribute;
use crate::step::{Input, Machine, Step};
use crate::txn_builder::TxnBuilder;
use crate::view::{self, IpamData, Known};
use crate::{block, handle};

/// Most handles of a read or a transaction: etcd takes 128 operations.
const BATCH: usize = 100;

/// Why a block is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeBlockError {
    /// A stored value that must be understood does not parse.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Somebody else has the block.
    #[error("block {block} is {owner}'s, and not {node}'s")]
    Foreign {
        /// The block.
        block: Prefix,
        /// `host:NODE`, or what else stands there.
        owner: String,
        /// Node that would take it.
        node: NodeName,
    },
    /// IPAM has given an address to somebody else.
    #[error(
        "{address} is held under handle {holder}, and somebody else has given it out as well: two \
         containers may have it; end one of them and release the address (`caracal ipam release --ip {address}`)"
    )]
    Taken {
        /// The address.
        address: IpAddr,
        /// Its holder.
        holder: String,
    },
    /// An address lies elsewhere.
    #[error("{address} is no address of block {block}")]
    Outside {
        /// The address.
        address: IpAddr,
        /// The block.
        block: Prefix,
    },
}

/// A block with addresses that are in use already. Done = how many addresses were not held before.
#[derive(Clone, Debug)]
pub struct TakeBlock {
    node: NodeName,
    cidr: Prefix,
    held: BTreeMap<IpAddr, HandleId>,
    attributes: BTreeMap<String, String>,
    now: Timestamp,
    view: IpamData,
    taken: usize,
    state: TakeBlockState,
}

#[derive(Clone, Debug)]
enum TakeBlockState {
    Idle,
    Reading(Vec<KeyRange>),
    Writing(Txn),
}

type TakeBlockStep = Step<usize, TakeBlockError>;

impl Machine for TakeBlock {
    type Output = usize;
    type Error = TakeBlockError;

    fn step(&mut self, seen: Input) -> TakeBlockStep {
        let state = std::mem::replace(&mut self.state, TakeBlockState::Idle);
        match (state, seen) {
            (TakeBlockState::Reading(asked), Input::Read(reading)) => {
                self.view.absorb(&asked, reading);
                self.view.collect(self.now);
            }
            (TakeBlockState::Writing(txn), Input::Committed(revision)) => {
                self.view.apply(&txn, revision);
            }
            _ => {
                self.view = IpamData::default();
                self.taken = 0;
                return self.read(vec![
                    view::key(&Key::IpamConfig),
                    view::key(&Key::Affinity(self.owner(), self.cidr)),
                    view::key(&Key::Block(self.cidr)),
                ]);
            }
        }
        self.decide().unwrap_or_else(Step::Failed)
    }
}

impl TakeBlock {
    /// For a node; the addresses are held under these handles, all with these attributes.
    #[must_use]
    pub fn new(
        node: NodeName,
        cidr: Prefix,
        held: BTreeMap<IpAddr, HandleId>,
        attributes: BTreeMap<String, String>,
        now: Timestamp,
    ) -> Self {
        Self {
            node,
            cidr,
            held,
            attributes,
            now,
            view: IpamData::default(),
            taken: 0,
            state: TakeBlockState::Idle,
        }
    }

    fn owner(&self) -> BlockOwner {
        BlockOwner::Host(self.node.clone())
    }

    fn read(&mut self, ranges: Vec<KeyRange>) -> TakeBlockStep {
        self.state = TakeBlockState::Reading(ranges.clone());
        Step::Read(ranges)
    }

    fn decide(&mut self) -> Result<TakeBlockStep, TakeBlockError> {
        let handles: BTreeSet<&HandleId> = self.held.values().insert_each();
        let handle_key = |id: &HandleId| Key::Handle(id.clone());
        let unread = handles.iter().map(|id| handle_key(id));
        let unread = unread.filter(|key| !self.view.was_asked(key));
        let unread: Vec<KeyRange> = unread.take(BATCH).map(|key| view::key(&key)).collect();
        if !unread.is_empty() {
            return Ok(self.read(unread));
        }
        let owner = self.owner();
        let mut keys: Vec<Key> = handles.iter().map(|id| handle_key(id)).collect();
        keys.extend([Key::IpamConfig, Key::Block(self.cidr)]);
        keys.push(Key::Affinity(owner.clone(), self.cidr));
        self.view.readable(&keys)?;
        let mut value = match self.view.block(self.cidr) {
            Known::Present(known) => known.value.clone(),
            _ => block::create(self.cidr, &owner, self.now),
        };
        if value.owner().as_ref() != Some(&owner) {
            return Err(TakeBlockError::Foreign {
                block: self.cidr,
                owner: value.affinity.unwrap_or_else(|| "nobody".to_owned()),
                node: self.node.clone(),
            });
        }
        let taken = self.take(&mut value)?;
        let mut txn = TxnBuilder::default();
        let left = self.put_handles(&mut txn, &value);
        if left > 0 {
            txn.unchanged_block(&self.view, self.cidr);
            return Ok(self.commit(txn));
        }
        let affinity = self.view.affinities.get(&(owner.clone(), self.cidr));
        if affinity.is_none_or(|a| a.value.state != AffinityState::Confirmed) {
            txn.put_affinity(&self.view, &owner, self.cidr, AffinityState::Confirmed);
        }
        if taken > 0 || !self.view.blocks.contains_key(&self.cidr) {
            txn.put_block(&self.view, value);
        }
        if txn.is_empty() {
            return Ok(Step::Done(self.taken));
        }
        txn.unchanged_block(&self.view, self.cidr);
        self.taken += taken;
        Ok(self.commit(txn))
    }

    fn commit(&mut self, txn: TxnBuilder) -> TakeBlockStep {
        let txn = txn.into_txn();
        self.state = TakeBlockState::Writing(txn.clone());
        Step::Commit(txn)
    }

    /// Takes what is not held yet; how many addresses that are.
    fn take(&self, value: &mut Block) -> Result<usize, TakeBlockError> {
        let mut taken = 0;
        for (address, id) in &self.held {
            let usage = AllowedUse::Workload;
            let attribute = attribute(&self.node, id, &self.attributes, usage, self.now);
            match block::take_address(value, *address, &attribute) {
                Ok(_) => taken += 1,
                Err(Some(held)) if held.handle_id.as_deref() == Some(id.as_str()) => {}
                Err(holder) => return Err(self.refusal(*address, holder)),
            }
        }
        Ok(taken)
    }

    /// Puts handles right that do not say what the block says, as many as a transaction takes; how
    /// many are left.
    fn put_handles(&self, txn: &mut TxnBuilder, value: &Block) -> usize {
        let mut counts: BTreeMap<&HandleId, u64> =
            self.held.values().map(|id| (id, 0)).insert_each();
        for (_, _, attribute) in value.allocated() {
            let id = attribute.handle_id.as_deref().map(HandleId::from);
            if let Some(count) = id.as_ref().and_then(|id| counts.get_mut(id)) {
                *count += 1;
            }
        }
        let said = |id: &HandleId| self.view.handles.get(id);
        counts.retain(|id, count| {
            said(id).and_then(|known| known.value.block.get(&self.cidr)) != Some(count)
        });
        let left = counts.len().saturating_sub(BATCH);
        for (id, count) in counts.into_iter().take(BATCH) {
            let known = said(id);
            let mut value = known.map(|k| k.value.clone()).unwrap_or_default();
            value.deleted = false;
            value.block.remove(&self.cidr);
            handle::add(&mut value, self.cidr, count);
            txn.put_handle(id, known, &value);
        }
        left
    }

    fn refusal(&self, address: IpAddr, holder: Option<Box<AllocationAttribute>>) -> TakeBlockError {
        let block = self.cidr;
        match holder {
            Some(holder) => TakeBlockError::Taken {
                address,
                holder: holder.handle_id.unwrap_or_else(|| "of nobody".to_owned()),
            },
            None => TakeBlockError::Outside { address, block },
        }
    }
}
