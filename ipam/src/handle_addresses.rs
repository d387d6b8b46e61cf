//! The addresses that are held through a handle. Reads only.

use std::net::IpAddr;

use caracal_model::{HandleId, Key, KeyRange, Prefix};

use crate::error::{MAX_BLOCKS, Unreadable};
use crate::step::{Input, Machine, Step};
use crate::view::{self, IpamData};

/// An address that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Address held through the handle.
    pub address: IpAddr,
    /// Block that has it.
    pub block: Prefix,
    /// The node that uses it.
    pub node: Option<String>,
    /// The allocation's sequence number.
    pub sequence: Option<u64>,
}

/// Lists the addresses of a handle.
#[derive(Clone, Debug)]
pub struct HandleAddresses {
    handle: HandleId,
    view: IpamData,
    asked: Vec<KeyRange>,
}

impl HandleAddresses {
    /// Reads the handle, then the blocks that it counts.
    #[must_use]
    pub fn new(handle: HandleId) -> Self {
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
        let unknown = self.view.unread_blocks(&cidrs);
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

impl Machine for HandleAddresses {
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
