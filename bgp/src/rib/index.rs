//! The index of the table: from the hash of a prefix to the handle of its destination.
//!
//! Open addressing with linear probing over eight octets a slot, so that one lookup is one cache
//! line as a rule. A lookup of a million prefixes waits for memory, not for the processor:
//! [`Index::prefetch`] lets the lookups of one UPDATE wait together. It never looks at a prefix
//! itself; the caller supplies the equality.

use super::dest_id::DestId;
use super::parted::{PARTS, spread};

/// The smallest part that is not empty.
const MIN_SLOTS: usize = 16;

/// Handles below which an index is one part.
const WHOLE: usize = 24 * 1024;

/// A slot for one handle. With the hash beside the handle, growing and passing over other prefixes
/// do not touch the destinations, which are seldom in a cache.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    id: Option<DestId>,
}

const EMPTY: Slot = Slot { hash: 0, id: None };

/// Handles whose hashes begin the same way.
#[derive(Debug, Default)]
struct IndexPart {
    /// A power of two of them, or none; at least a quarter is empty.
    slots: Vec<Slot>,
    len: usize,
}

impl IndexPart {
    /// The slot where the search for a hash begins; beyond the end when there is none.
    fn home(&self, hash: u32) -> usize {
        hash as usize & self.slots.len().wrapping_sub(1)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// The slot of the handle with this hash that is the same.
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

    fn insert(&mut self, slot: Slot) {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            self.resize(self.slots.len() * 2);
        }
        self.put(slot);
        self.len += 1;
    }

    fn put(&mut self, slot: Slot) {
        let mut at = self.home(slot.hash);
        while self.slots[at].id.is_some() {
            at = self.next(at);
        }
        self.slots[at] = slot;
    }

    fn resize(&mut self, size: usize) {
        let size = size.max(MIN_SLOTS);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; size]);
        for slot in old.into_iter().filter(|slot| slot.id.is_some()) {
            self.put(slot);
        }
    }

    /// Takes out a handle. False when it is not there.
    fn remove(&mut self, hash: u32, id: DestId) -> bool {
        let Some(mut hole) = self.seek(hash, |seen| seen == id) else {
            return false;
        };
        // Entries that follow without a gap move up, unless that would put one before its home.
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
        true
    }

    /// Gives back what it has much more than it needs.
    fn shrink(&mut self) {
        // Far below the size at which it grew, so that it does not go to and fro.
        if self.slots.len() > MIN_SLOTS && self.len < self.slots.len() / 16 {
            self.resize((self.len * 4).next_power_of_two());
        }
    }
}

/// Handles by hash, in parts, each of which grows by itself: no insertion waits until all of it has
/// been copied. With a million handles a part has eight thousand.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// None, one, or [`PARTS`].
    parts: Vec<IndexPart>,
    len: usize,
}

impl Index {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The part for a hash, by its highest bits; inside it, the lowest count.
    fn part(&self, hash: u32) -> usize {
        match self.parts.len() {
            PARTS => spread((hash >> 16) as u16),
            _ => 0,
        }
    }

    /// The handle with this hash that is the same.
    pub(super) fn find(&self, hash: u32, same: impl Fn(DestId) -> bool) -> Option<DestId> {
        let part = self.parts.get(self.part(hash))?;
        part.slots[part.seek(hash, same)?].id
    }

    /// Adds a handle that is not there yet.
    pub(super) fn insert(&mut self, hash: u32, id: DestId) {
        if self.parts.is_empty() {
            self.parts.push(IndexPart::default());
        } else if self.len >= WHOLE && self.parts.len() == 1 {
            self.divide();
        }
        let part = self.part(hash);
        self.parts[part].insert(Slot { hash, id: Some(id) });
        self.len += 1;
    }

    fn divide(&mut self) {
        let whole = std::mem::take(&mut self.parts);
        // Room for twice as many as it gets now: it grows when the table has doubled.
        let size = (2 * self.len / PARTS * 4 / 3).next_power_of_two();
        self.parts.resize_with(PARTS, || IndexPart {
            slots: vec![EMPTY; size.max(MIN_SLOTS)],
            len: 0,
        });
        let slots = whole.into_iter().flat_map(|part| part.slots);
        for slot in slots.filter(|slot| slot.id.is_some()) {
            let part = self.part(slot.hash);
            self.parts[part].insert(slot);
        }
    }

    /// Takes out a handle. False when it is not there.
    pub(super) fn remove(&mut self, hash: u32, id: DestId) -> bool {
        let part = self.part(hash);
        let Some(part) = self.parts.get_mut(part) else {
            return false;
        };
        let removed = part.remove(hash, id);
        self.len -= usize::from(removed);
        removed
    }

    /// Gives back what it has much more than it needs.
    pub(super) fn shrink(&mut self) {
        if self.len == 0 {
            self.parts = Vec::new();
        }
        self.parts.iter_mut().for_each(IndexPart::shrink);
    }

    /// Octets that it has room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        let slots: usize = self.parts.iter().map(|part| part.slots.capacity()).sum();
        slots * size_of::<Slot>() + self.parts.capacity() * size_of::<IndexPart>()
    }

    /// Loads the slots at which searches for these hashes begin, and gives the handles found there.
    /// The loads do not depend on each other, so the processor has them under way at once.
    pub(super) fn prefetch(
        &self,
        hashes: impl Iterator<Item = u32>,
    ) -> impl Iterator<Item = DestId> {
        let first = move |hash: u32| {
            let part = self.parts.get(self.part(hash))?;
            part.slots.get(part.home(hash))?.id
        };
        hashes.filter_map(first)
    }

    /// Slots that a search for each handle passes over, all together.
    #[cfg(test)]
    pub(super) fn passed_over(&self) -> usize {
        let far = |part: &IndexPart| -> usize {
            let mask = part.slots.len().wrapping_sub(1);
            let taken = part
                .slots
                .iter()
                .enumerate()
                .filter(|(_, s)| s.id.is_some());
            taken
                .map(|(at, slot)| at.wrapping_sub(part.home(slot.hash)) & mask)
                .sum()
        };
        self.parts.iter().map(far).sum()
    }

    /// All handles, in no particular order.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = DestId> {
        let slots = self.parts.iter().flat_map(|part| &part.slots);
        slots.filter_map(|slot| slot.id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn hash(n: u32) -> u32 {
        n.wrapping_mul(0x9e37_79b1)
    }

    /// One insertion copies a bounded number of entries, whatever the number of handles.
    #[test]
    fn no_part_becomes_long() {
        let mut index = Index::default();
        for n in 0..1_000_000 {
            index.insert(hash(n), DestId::new(n));
            let part = &index.parts[index.part(hash(n))];
            assert!(part.len <= WHOLE, "{} at once", part.len);
        }
        for n in (0..1_000_000).rev() {
            assert_eq!(
                index.find(hash(n), |id| id == DestId::new(n)),
                Some(DestId::new(n))
            );
            assert!(index.remove(hash(n), DestId::new(n)));
            assert!(!index.remove(hash(n), DestId::new(n)));
        }
        index.shrink();
        assert_eq!((index.len(), index.room()), (0, 0));
    }

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
