//! Giving a block back: [`ReleaseAffinity`]. The affinity is marked `pendingDeletion`, which says
//! what is coming while the block is still announced; then one transaction deletes the affinity
//! together with the empty block, or takes the owner out of a block that still holds addresses
//! (IPAM-4, IPAM-7).

use caracal_model::{AffinityState, BlockOwner, Key, KeyRange, Prefix, Timestamp, Txn};

use crate::block;
use crate::error::AffinityError;
use crate::step::{Input, Machine, Step};
use crate::txn_builder::TxnBuilder;
use crate::view::{self, IpamData, Known};

/// Result of giving a block back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffinityOutcome {
    /// It was empty and is deleted.
    Deleted,
    /// It holds addresses and has no owner now.
    Disowned,
    /// It is another's; only a stale affinity key was removed.
    Stale(Option<BlockOwner>),
    /// There was no affinity.
    NotHeld,
}

/// A release of a block.
#[derive(Clone, Debug)]
pub struct ReleaseAffinity {
    owner: BlockOwner,
    cidr: Prefix,
    must_be_empty: bool,
    now: Timestamp,
    view: IpamData,
    state: ReleaseAffinityState,
}

#[derive(Clone, Debug)]
enum ReleaseAffinityState {
    Idle,
    Reading(Vec<KeyRange>),
    Marking(Txn),
    Releasing(AffinityOutcome),
}

type ReleaseAffinityStep = Step<AffinityOutcome, AffinityError>;

impl Machine for ReleaseAffinity {
    type Output = AffinityOutcome;
    type Error = AffinityError;

    fn step(&mut self, seen: Input) -> ReleaseAffinityStep {
        match (
            std::mem::replace(&mut self.state, ReleaseAffinityState::Idle),
            seen,
        ) {
            (ReleaseAffinityState::Reading(asked), Input::Read(reading)) => {
                self.view.absorb(&asked, reading);
                self.view.collect(self.now);
                self.decide().unwrap_or_else(Step::Failed)
            }
            (ReleaseAffinityState::Marking(txn), Input::Committed(revision)) => {
                self.view.apply(&txn, revision);
                self.decide().unwrap_or_else(Step::Failed)
            }
            (ReleaseAffinityState::Releasing(outcome), Input::Committed(_)) => Step::Done(outcome),
            _ if self
                .owner
                .node()
                .is_some_and(|node| node.as_str().is_empty()) =>
            {
                Step::Failed(AffinityError::NoHost(self.cidr))
            }
            _ => {
                self.view = IpamData::default();
                let ranges = vec![
                    view::key(&Key::IpamConfig),
                    view::key(&Key::Affinity(self.owner.clone(), self.cidr)),
                    view::key(&Key::Block(self.cidr)),
                ];
                self.state = ReleaseAffinityState::Reading(ranges.clone());
                Step::Read(ranges)
            }
        }
    }
}

impl ReleaseAffinity {
    /// A release of `cidr` by its owner. With `must_be_empty` a block in use stays as it is.
    #[must_use]
    pub fn new(owner: BlockOwner, cidr: Prefix, must_be_empty: bool, now: Timestamp) -> Self {
        Self {
            owner,
            cidr,
            must_be_empty,
            now,
            view: IpamData::default(),
            state: ReleaseAffinityState::Idle,
        }
    }

    fn decide(&mut self) -> Result<ReleaseAffinityStep, AffinityError> {
        let affinity = Key::Affinity(self.owner.clone(), self.cidr);
        self.view
            .readable(&[Key::IpamConfig, affinity, Key::Block(self.cidr)])?;
        let held = self.view.affinities.get(&(self.owner.clone(), self.cidr));
        let block = match self.view.block(self.cidr) {
            Known::Present(known) => Some(known.value.clone()),
            _ => None,
        };
        let owner = block.as_ref().and_then(caracal_model::Block::owner);
        let owned = block.is_some() && owner.as_ref() == Some(&self.owner);
        if !owned {
            if held.is_none() {
                return Ok(Step::Done(AffinityOutcome::NotHeld));
            }
            let mut txn = TxnBuilder::default();
            txn.unchanged_block(&self.view, self.cidr);
            txn.delete_affinity(&self.view, &self.owner, self.cidr);
            self.state = ReleaseAffinityState::Releasing(AffinityOutcome::Stale(owner));
            return Ok(Step::Commit(txn.into_txn()));
        }
        let mut block = block.expect("an owned block is present");
        let in_use = block::in_use(&block);
        if self.must_be_empty && in_use > 0 {
            return Err(AffinityError::NotEmpty {
                block: self.cidr,
                in_use,
            });
        }
        let mut txn = TxnBuilder::default();
        let state = held.map(|h| h.value.state);
        if !matches!(state, None | Some(AffinityState::PendingDeletion)) {
            let leaving = AffinityState::PendingDeletion;
            txn.unchanged_block(&self.view, self.cidr);
            txn.put_affinity(&self.view, &self.owner, self.cidr, leaving);
            let txn = txn.into_txn();
            self.state = ReleaseAffinityState::Marking(txn.clone());
            return Ok(Step::Commit(txn));
        }
        txn.delete_affinity(&self.view, &self.owner, self.cidr);
        let outcome = if block::is_empty(&block) {
            txn.delete_block(&self.view, self.cidr);
            AffinityOutcome::Deleted
        } else {
            block.affinity = None;
            block.affinity_claim_time = None;
            txn.put_block(&self.view, block);
            AffinityOutcome::Disowned
        };
        self.state = ReleaseAffinityState::Releasing(outcome);
        Ok(Step::Commit(txn.into_txn()))
    }
}
