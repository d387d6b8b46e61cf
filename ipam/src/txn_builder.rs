//! The transaction builder: every key that is written is compared (IPAM-5), each key once.

use std::collections::BTreeMap;

use caracal_model::{
    AffinityState, Block, BlockAffinity, BlockOwner, Compare, HandleId, IpamHandle, Key, Prefix,
    Txn, TxnWrite,
};

use crate::view::{IpamData, ReadValue};
use crate::{block, handle};

/// Collects writes against what a [`IpamData`] saw.
#[derive(Debug, Default)]
pub(crate) struct TxnBuilder {
    keys: BTreeMap<String, (Compare, Option<TxnWrite>)>,
}

impl TxnBuilder {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn into_txn(self) -> Txn {
        let mut txn = Txn::new();
        for (compare, write) in self.keys.into_values() {
            txn.compare.push(compare);
            txn.writes.extend(write);
        }
        txn
    }

    fn set(&mut self, key: &Key, revision: Option<i64>, value: Option<Vec<u8>>) {
        let path = key.to_path();
        let compare = match revision {
            Some(revision) => Compare::Unchanged(path.clone(), revision),
            None => Compare::Absent(path.clone()),
        };
        let write = match value {
            Some(value) => TxnWrite::Put(path.clone(), value),
            None => TxnWrite::Delete(path.clone()),
        };
        self.keys.insert(path, (compare, Some(write)));
    }

    /// Demands that a block is as it was read, without writing it.
    pub(crate) fn unchanged_block(&mut self, view: &IpamData, cidr: Prefix) {
        let path = Key::Block(cidr).to_path();
        let compare = match view.blocks.get(&cidr) {
            Some(block) => Compare::Unchanged(path.clone(), block.revision),
            None => Compare::Absent(path.clone()),
        };
        self.keys.entry(path).or_insert((compare, None));
    }

    /// Stores a block, changed or new; this is one change of its sequence number.
    pub(crate) fn put_block(&mut self, view: &IpamData, mut value: Block) {
        block::touch(&mut value);
        let revision = view.blocks.get(&value.cidr).map(|b| b.revision);
        let key = Key::Block(value.cidr);
        self.set(&key, revision, Some(value.to_json()));
    }

    /// Deletes a block that was read.
    pub(crate) fn delete_block(&mut self, view: &IpamData, cidr: Prefix) {
        if let Some(block) = view.blocks.get(&cidr) {
            self.set(&Key::Block(cidr), Some(block.revision), None);
        }
    }

    /// Stores an affinity in a state.
    pub(crate) fn put_affinity(
        &mut self,
        view: &IpamData,
        owner: &BlockOwner,
        cidr: Prefix,
        state: AffinityState,
    ) {
        let known = view.affinities.get(&(owner.clone(), cidr));
        let mut value = known.map_or_else(|| BlockAffinity::new(state), |k| k.value.clone());
        value.state = state;
        value.deleted = false;
        let key = Key::Affinity(owner.clone(), cidr);
        self.set(&key, known.map(|k| k.revision), Some(value.to_json()));
    }

    /// Deletes an affinity that was read.
    pub(crate) fn delete_affinity(&mut self, view: &IpamData, owner: &BlockOwner, cidr: Prefix) {
        if let Some(known) = view.affinities.get(&(owner.clone(), cidr)) {
            let key = Key::Affinity(owner.clone(), cidr);
            self.set(&key, Some(known.revision), None);
        }
    }

    /// Stores a handle, or deletes it when it holds nothing.
    pub(crate) fn put_handle(
        &mut self,
        id: &HandleId,
        known: Option<&ReadValue<IpamHandle>>,
        value: &IpamHandle,
    ) {
        let key = Key::Handle(id.clone());
        let revision = known.map(|k| k.revision);
        if !handle::is_empty(value) {
            self.set(&key, revision, Some(value.to_json()));
        } else if revision.is_some() {
            self.set(&key, revision, None);
        }
    }
}
