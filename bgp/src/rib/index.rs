//! The index of the table: from the hash of a prefix to the handle of its destination.
//!
//! Open addressing with linear probing over eight octets a slot, so that one lookup is one cache line as a rule. A
//! lookup of a million prefixes waits for memory, not for the processor: [`Index::prefetch`] lets the lookups
//! of one UPDATE wait together. It never looks at a prefix itself; who asks says what is the same.

use super::table::DestId;

/// The smallest table that is not empty.
const MIN_SLOTS: usize = 16;

/// A place for one handle. With the hash beside the handle, growing and passing over other prefixes do
/// not touch the destinations, which are seldom in a cache.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    id: Option<DestId>,
}

const EMPTY: Slot = Slot { hash: 0, id: None };

/// Handles by hash.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// A power of two of them, or none; at least a quarter is empty.
    slots: Vec<Slot>,
    len: usize,
}

impl Index {
    /// Number of handles.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The slot where the search for a hash begins.
    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// The handle with this hash that is the same.
    pub(super) fn find(&self, hash: u32, same: impl Fn(DestId) -> bool) -> Option<DestId> {
        self.slots[self.seek(hash, same)?].id
    }

    /// The slot of that handle.
    fn seek(&self, hash: u32, same: impl Fn(DestId) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            let id = slot.id?;
            if slot.hash == hash && same(id) {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    /// Adds a handle that is not there yet.
    pub(super) fn insert(&mut self, hash: u32, id: DestId) {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        self.put(Slot { hash, id: Some(id) });
        self.len += 1;
    }

    fn put(&mut self, slot: Slot) {
        let mut at = self.home(slot.hash);
        while self.slots[at].id.is_some() {
            at = self.next(at);
        }
        self.slots[at] = slot;
    }

    fn grow(&mut self) {
        self.resize(self.slots.len() * 2);
    }

    fn resize(&mut self, size: usize) {
        let size = size.max(MIN_SLOTS);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; size]);
        for slot in old.into_iter().filter(|slot| slot.id.is_some()) {
            self.put(slot);
        }
    }

    /// Takes out a handle. False when it is not there.
    pub(super) fn remove(&mut self, hash: u32, id: DestId) -> bool {
        let Some(mut hole) = self.seek(hash, |seen| seen == id) else {
            return false;
        };
        // What follows without a gap moves up, unless that would put it before its home.
        let mut at = hole;
        loop {
            at = self.next(at);
            let slot = self.slots[at];
            if slot.id.is_none() {
                break;
            }
            let mask = self.slots.len() - 1;
            let from_home = at.wrapping_sub(self.home(slot.hash)) & mask;
            let from_hole = at.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
        self.len -= 1;
        // Far below the size at which it grew, so that it does not go to and fro.
        if self.slots.len() > MIN_SLOTS && self.len < self.slots.len() / 16 {
            self.resize(self.slots.len() / 8);
        }
        true
    }

    /// Octets that it has room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// Loads the slots at which searches for these hashes begin, and gives the handles found there. The loads do not
    /// depend on each other, so the processor has them under way at once.
    pub(super) fn prefetch(
        &self,
        hashes: impl Iterator<Item = u32>,
    ) -> impl Iterator<Item = DestId> {
        let found = hashes.filter(|_| !self.slots.is_empty());
        found.filter_map(|hash| self.slots[self.home(hash)].id)
    }

    /// All handles, in no particular order.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = DestId> {
        self.slots.iter().filter_map(|slot| slot.id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_is_eight_octets() {
        assert_eq!(size_of::<Slot>(), 8);
    }

    proptest! {
        /// Few hashes, close together and at the end of the table: long runs that wrap around.
        #[test]
        fn it_does_what_a_map_does(steps in proptest::collection::vec((any::<bool>(), 0u32..40), 1..400)) {
            let hash = |key: u32| if key.is_multiple_of(3) { u32::MAX - key % 5 } else { key % 7 };
            let (mut index, mut map) = (Index::default(), HashMap::new());
            for (insert, key) in steps {
                let id = DestId::new(key);
                if insert && !map.contains_key(&key) {
                    index.insert(hash(key), id);
                    map.insert(key, id);
                } else if !insert {
                    prop_assert_eq!(index.remove(hash(key), id), map.remove(&key).is_some());
                }
                prop_assert_eq!(index.len(), map.len());
                for key in 0..40 {
                    let found = index.find(hash(key), |seen| seen == DestId::new(key));
                    prop_assert_eq!(found, map.get(&key).copied());
                }
                prop_assert_eq!(index.iter().count(), map.len());
            }
        }
    }
}
