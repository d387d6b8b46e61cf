//! How full blocks are and what a handle holds. Reads only.

use std::net::IpAddr;

use caracal_model::net::Prefix;
use caracal_model::txn::Range;
use caracal_model::{HandleId, Key, PoolName};

use crate::error::{MAX_BLOCKS, Unreadable};
use crate::step::{Input, Machine, Step};
use crate::view::{self, IpamData, Known};

/// A block and how full it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockUsage {
    /// The block.
    pub block: Prefix,
    /// Its pool; `None` when no pool covers it any more.
    pub pool: Option<PoolName>,
    /// `host:NODE`, `virtual:NAME` or nothing.
    pub owner: Option<String>,
    /// Number of addresses.
    pub size: usize,
    /// Addresses that somebody holds.
    pub in_use: usize,
    /// Addresses that were released and cool down.
    pub cooling: usize,
    /// Addresses under a reservation, held or not.
    pub reserved: u128,
    /// Addresses that can be handed out.
    pub free: usize,
    /// Addresses that a node other than the owner holds, with that node.
    pub borrowed: Vec<(IpAddr, String)>,
}

/// All blocks of a view, in address order.
#[must_use]
pub(crate) fn blocks(view: &IpamData) -> Vec<BlockUsage> {
    let usage = |known: &view::Versioned<caracal_model::ipam::Block>| {
        let block = &known.value;
        let owner = block.owner();
        let owner = owner.as_ref().and_then(|o| o.node());
        let cooling = block
            .allocated()
            .filter(|(_, _, a)| a.released_at.is_some());
        let cooling = cooling.count();
        BlockUsage {
            block: block.cidr,
            pool: view.pool_of(&block.cidr).map(|(name, _)| name.clone()),
            owner: block.affinity.clone(),
            size: block.allocations.len(),
            in_use: block.in_use() - cooling,
            cooling,
            reserved: view.reserved.count_in(&block.cidr),
            free: crate::block::free(block, &view.reserved, usize::MAX),
            borrowed: block
                .allocated()
                .filter_map(|(_, address, a)| Some((address, a.node()?)))
                .filter(|(_, node)| owner.map(caracal_model::NodeName::as_str) != Some(*node))
                .map(|(address, node)| (address, node.to_owned()))
                .collect(),
        }
    };
    view.blocks.values().map(usage).collect()
}

/// An address that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The address.
    pub address: IpAddr,
    /// Its block.
    pub block: Prefix,
    /// The node that uses it.
    pub node: Option<String>,
    /// The allocation's sequence number.
    pub sequence: Option<u64>,
}

/// Lists the addresses of a handle.
#[derive(Clone, Debug)]
pub(crate) struct OfHandle {
    handle: HandleId,
    view: IpamData,
    asked: Vec<Range>,
}

impl OfHandle {
    /// For a handle.
    #[must_use]
    pub(crate) fn new(handle: HandleId) -> Self {
        Self {
            handle,
            view: IpamData::default(),
            asked: Vec::new(),
        }
    }

    fn decide(&mut self) -> Result<Step<Vec<Held>, Unreadable>, Unreadable> {
        self.view.readable(&[Key::Handle(self.handle.clone())])?;
        let Some(known) = self.view.handles.get(&self.handle) else {
            return Ok(Step::Done(Vec::new()));
        };
        let cidrs: Vec<Prefix> = known.value.block.keys().copied().take(MAX_BLOCKS).collect();
        let unknown: Vec<Range> = cidrs
            .iter()
            .filter(|cidr| self.view.block(**cidr) == Known::Unknown)
            .map(|cidr| view::key(&Key::Block(*cidr)))
            .collect();
        if !unknown.is_empty() {
            self.asked.clone_from(&unknown);
            return Ok(Step::Read(unknown));
        }
        let mut held = Vec::new();
        for cidr in cidrs {
            self.view.readable(&[Key::Block(cidr)])?;
            let Some(block) = self.view.blocks.get(&cidr) else {
                continue;
            };
            let numbers = &block.value.sequence_number_for_allocation;
            let allocated = block.value.allocated();
            let ours =
                allocated.filter(|(_, _, a)| a.handle_id.as_deref() == Some(self.handle.as_str()));
            held.extend(ours.map(|(ordinal, address, attribute)| Held {
                address,
                block: cidr,
                node: attribute.node().map(str::to_owned),
                sequence: numbers.get(&ordinal.to_string()).copied(),
            }));
        }
        Ok(Step::Done(held))
    }
}

impl Machine for OfHandle {
    type Output = Vec<Held>;
    type Error = Unreadable;

    fn step(&mut self, seen: Input) -> Step<Vec<Held>, Unreadable> {
        if let Input::Read(reading) = seen {
            self.view.absorb(&self.asked, reading);
            return self.decide().unwrap_or_else(Step::Failed);
        }
        self.view = IpamData::default();
        self.asked = vec![view::key(&Key::Handle(self.handle.clone()))];
        Step::Read(self.asked.clone())
    }
}
