//! From which blocks the addresses of one family come: own ones, new ones, other hosts' empty ones,
//! borrowed ones, in this order. Decides on a [`IpamData`]; reads and writes nothing.

use std::time::Duration;

use caracal_model::{Block, BlockOwner, Family, PoolName, Prefix, Timestamp};

use crate::block;
use crate::error::{Growth, LimitSource, NoAddress, PoolState};
use crate::order::Walk;
use crate::pools::Candidate;
use crate::view::{IpamData, Known};

/// Age below which an empty block is not reclaimed: its claimant may be about to use it.
pub(crate) const RECLAIM_AGE: Duration = Duration::from_secs(60);

/// Blocks of a host and family when nobody set a limit, as in Calico.
pub(crate) const DEFAULT_MAX_BLOCKS: u32 = 20;

/// Request for addresses of one family.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    pub(crate) family: Family,
    pub(crate) count: usize,
    pub(crate) pools: Vec<Candidate>,
    pub(crate) limit: u32,
    pub(crate) limit_source: LimitSource,
}

/// How a block is come by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Ours, by affinity and block.
    Own,
    /// New, ours by the block alone, or empty and nobody's.
    Claim,
    /// Empty, and claimed by another host long ago.
    Reclaim(BlockOwner),
    /// Another's, and stays that.
    Borrow,
}

/// Number of addresses to take from one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) cidr: Prefix,
    pub(crate) pool: PoolName,
    pub(crate) count: usize,
    pub(crate) source: Source,
}

/// One family's plan in the making.
#[derive(Debug)]
pub(crate) struct Planner<'a> {
    pub(crate) view: &'a IpamData,
    pub(crate) owner: &'a BlockOwner,
    pub(crate) host: &'a str,
    pub(crate) now: Timestamp,
    pub(crate) need: &'a Need,
    pub(crate) picks: Vec<Pick>,
}

impl<'a> Planner<'a> {
    pub(crate) fn missing(&self) -> usize {
        let found: usize = self.picks.iter().map(|p| p.count).sum();
        self.need.count - found.min(self.need.count)
    }

    fn pick(&mut self, cidr: Prefix, pool: &PoolName, free: usize, source: Source) {
        let count = free.min(self.missing());
        if count > 0 {
            self.picks.push(Pick {
                cidr,
                pool: pool.clone(),
                count,
                source,
            });
        }
    }

    fn free(&self, block: &Block) -> usize {
        block::free(block, &self.view.reserved, self.missing())
    }

    fn candidate(&self, cidr: &Prefix) -> Option<&'a Candidate> {
        self.need.pools.iter().find(|pool| pool.cidr.covers(cidr))
    }

    /// Own affinities in pools that may be used, the block hints first, then in key order.
    pub(crate) fn own(&self, hints: &[Prefix]) -> Vec<(Prefix, &'a Candidate)> {
        let own = self.view.affinities_of(self.owner, self.need.family);
        let mut own: Vec<_> = own
            .into_iter()
            .filter_map(|(cidr, _)| Some((cidr, self.candidate(&cidr)?)))
            .collect();
        own.sort_by_key(|(cidr, _)| !hints.contains(cidr));
        own
    }

    /// Takes from own blocks that were read.
    pub(crate) fn take_own(&mut self, hints: &[Prefix]) {
        for (cidr, pool) in self.own(hints) {
            if let Known::Present(block) = self.view.block(cidr)
                && block.value.owner().as_ref() == Some(self.owner)
            {
                let free = self.free(&block.value);
                self.pick(cidr, &pool.name, free, Source::Own);
            }
        }
    }

    /// Goes on with own claims that were interrupted: an affinity without a block.
    pub(crate) fn take_interrupted(&mut self) {
        for (cidr, pool) in self.own(&[]) {
            if self.view.block(cidr) == Known::Absent && cidr.len() == pool.block_len {
                let free = self.fresh(&cidr);
                self.pick(cidr, &pool.name, free, Source::Claim);
            }
        }
    }

    /// How many addresses a block would have that does not exist yet.
    fn fresh(&self, cidr: &Prefix) -> usize {
        let reserved = self.view.reserved.count_in(cidr);
        usize::try_from(cidr.size().saturating_sub(reserved)).unwrap_or(usize::MAX)
    }

    fn held(&self) -> usize {
        self.own(&[]).len()
    }

    /// How many more blocks the host may claim.
    fn allowance(&self) -> usize {
        let limit = usize::try_from(self.need.limit).unwrap_or(usize::MAX);
        let new = self.picks.iter().filter(|p| self.is_new(p)).count();
        limit.saturating_sub(self.held() + new)
    }

    fn is_new(&self, pick: &Pick) -> bool {
        let key = (self.owner.clone(), pick.cidr);
        matches!(pick.source, Source::Claim | Source::Reclaim(_))
            && !self.view.affinities.contains_key(&key)
    }

    /// Claims new blocks, then other hosts' empty ones. All blocks of the family must have been
    /// read.
    pub(crate) fn take_new(&mut self) {
        let mut reclaimable = Vec::new();
        for pool in &self.need.pools {
            let mut walk = Walk::new(pool, self.host, self.now);
            while self.missing() > 0 && self.allowance() > 0 {
                let Some(cidr) = walk.next() else { break };
                if let Some(reserved) = self.view.reserved.covering(&cidr) {
                    walk.pass(reserved);
                    continue;
                }
                if self.picks.iter().any(|p| p.cidr == cidr) {
                    continue;
                }
                match self.view.block(cidr) {
                    Known::Absent if !self.view.is_overlapped(&cidr) => {
                        let free = self.fresh(&cidr);
                        self.pick(cidr, &pool.name, free, Source::Claim);
                    }
                    Known::Present(block) if block.value.owner().as_ref() == Some(self.owner) => {
                        let free = self.free(&block.value);
                        self.pick(cidr, &pool.name, free, Source::Claim);
                    }
                    // Nobody's, and what was held in it has cooled down since.
                    Known::Present(block)
                        if block.value.owner().is_none() && block::is_empty(&block.value) =>
                    {
                        let free = self.fresh(&cidr);
                        self.pick(cidr, &pool.name, free, Source::Claim);
                    }
                    Known::Present(block) => {
                        if let Some(owner) = reclaimable_from(&block.value, self.now) {
                            reclaimable.push((cidr, &pool.name, owner));
                        }
                    }
                    Known::Absent | Known::Unreadable | Known::Unknown => {}
                }
            }
        }
        for (cidr, pool, owner) in reclaimable {
            if self.allowance() > 0 {
                let free = self.fresh(&cidr);
                self.pick(cidr, pool, free, Source::Reclaim(owner));
            }
        }
    }

    /// Borrows from whatever block has room. All blocks of the family must have been read.
    pub(crate) fn borrow(&mut self) {
        for pool in &self.need.pools {
            let blocks = &self.view.blocks;
            let start = Walk::new(pool, self.host, self.now).next();
            let start = start.unwrap_or(pool.cidr);
            for (cidr, block) in blocks.range(start..).chain(blocks.range(..start)) {
                let lender = block.value.owner();
                let lends = match &lender {
                    None => true,
                    Some(lender) => lender != self.owner && lender.node().is_some(),
                };
                let picked = self.picks.iter().any(|p| p.cidr == *cidr);
                if self.missing() > 0 && pool.cidr.covers(cidr) && lends && !picked {
                    let free = self.free(&block.value);
                    self.pick(*cidr, &pool.name, free, Source::Borrow);
                }
            }
        }
    }

    /// Why there is not enough.
    pub(crate) fn shortage(&self, node: &caracal_model::NodeName) -> NoAddress {
        let config = self.view.config();
        let growth = if !config.auto_allocate_blocks {
            Growth::Off
        } else if self.allowance() == 0 {
            Growth::Limit(self.need.limit_source, self.need.limit)
        } else {
            Growth::Full
        };
        let pools = self.need.pools.iter().map(|pool| PoolState {
            name: pool.name.clone(),
            cidr: pool.cidr,
        });
        NoAddress {
            node: node.clone(),
            family: self.need.family,
            wanted: self.need.count,
            available: self.need.count - self.missing(),
            pools: pools.collect(),
            blocks: self.held(),
            growth,
            limit: self.need.limit,
            strict: config.strict_affinity,
        }
    }
}

/// The host that may lose this empty block. A block without claim time was created when its
/// sequence numbers began.
fn reclaimable_from(block: &Block, now: Timestamp) -> Option<BlockOwner> {
    let owner = block.owner()?;
    owner.node()?;
    let claimed = block.affinity_claim_time.as_deref();
    let claimed = claimed.and_then(Timestamp::parse_rfc3339);
    let claimed = claimed.unwrap_or_else(|| Timestamp::from_nanos(block.sequence_number));
    (block::is_empty(block) && now.since(claimed) >= RECLAIM_AGE).then_some(owner)
}
