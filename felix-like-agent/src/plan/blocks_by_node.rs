//! Which blocks concern which node: those that it owns, and those of others of which it uses
//! addresses. The owner and the users stand in the blocks; this is the way back.

use std::collections::BTreeSet;

use caracal_model::{KnownBlock, NodeName, Prefix, Snapshot};
use foldhash::HashMap;

/// The index. Equal to the one made anew from the same blocks, whatever came before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BlocksByNode(HashMap<NodeName, Vec<Prefix>>);

/// The nodes that a block concerns.
fn nodes_of(block: &KnownBlock) -> BTreeSet<&NodeName> {
    let users = block.used_elsewhere().map(|(_, node)| node);
    users.chain(block.host()).collect()
}

impl BlocksByNode {
    /// Looks at all blocks.
    pub(super) fn from_snapshot(snapshot: &Snapshot) -> Self {
        let mut index = Self::default();
        for block in snapshot.blocks.values() {
            index.add(block);
        }
        index
    }

    /// Follows these blocks of `was`, which this is of, to `is`.
    pub(super) fn follow(&mut self, was: &Snapshot, is: &Snapshot, changed: &[Prefix]) {
        for cidr in changed {
            if let Some(block) = was.blocks.get(cidr) {
                self.remove(block);
            }
            if let Some(block) = is.blocks.get(cidr) {
                self.add(block);
            }
        }
    }

    /// The blocks that concern a node, in no order.
    pub(super) fn of_node(&self, node: &NodeName) -> &[Prefix] {
        self.0.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    fn add(&mut self, block: &KnownBlock) {
        for node in nodes_of(block) {
            match self.0.get_mut(node) {
                Some(blocks) => blocks.push(block.cidr),
                None => drop(self.0.insert(node.clone(), vec![block.cidr])),
            }
        }
    }

    fn remove(&mut self, block: &KnownBlock) {
        for node in nodes_of(block) {
            let Some(blocks) = self.0.get_mut(node) else {
                continue;
            };
            blocks.retain(|cidr| *cidr != block.cidr);
            if blocks.is_empty() {
                self.0.remove(node);
            }
        }
    }
}
