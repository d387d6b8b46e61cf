//! A map and a queue that grow in parts: an insertion into a long one never copies all of it.
//!
//! The owner of the table fills feeds of which one may come to hold a million routes. A hash map or
//! a ring buffer of that size copies itself when it grows, which takes longer than anybody may be
//! kept waiting.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Entries below which a map is one part.
const WHOLE: usize = 2048;
/// Parts of a larger map: with a million entries a part has four thousand.
const PARTS: usize = 256;
/// Items in a part of a queue.
const ITEMS: usize = 2048;

/// A hash map in parts, each of which grows by itself.
#[derive(Debug)]
pub(super) struct PartedMap<K, V> {
    /// None, one, or all of them.
    parts: Vec<HashTable<(K, V)>>,
    len: usize,
    hasher: foldhash::quality::RandomState,
}

impl<K, V> Default for PartedMap<K, V> {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            len: 0,
            hasher: foldhash::quality::RandomState::default(),
        }
    }
}

impl<K: Hash + Eq, V> PartedMap<K, V> {
    /// The part for a hash. Not by the bits that a part itself looks at: its lowest, and its
    /// highest seven.
    fn part(&self, hash: u64) -> usize {
        (hash >> 40) as usize % self.parts.len()
    }

    /// Puts a value in the place of the one that is there; the result is that one.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if self.parts.is_empty() {
            self.parts.push(HashTable::new());
        } else if self.len == WHOLE && self.parts.len() == 1 {
            self.divide();
        }
        let hash = self.hasher.hash_one(&key);
        let part = self.part(hash);
        let (same, rehash) = (
            |known: &(K, V)| known.0 == key,
            |known: &(K, V)| self.hasher.hash_one(&known.0),
        );
        match self.parts[part].entry(hash, same, rehash) {
            Entry::Occupied(mut known) => Some(std::mem::replace(&mut known.get_mut().1, value)),
            Entry::Vacant(place) => {
                place.insert((key, value));
                self.len += 1;
                None
            }
        }
    }

    fn divide(&mut self) {
        let whole = std::mem::take(&mut self.parts);
        self.parts.resize_with(PARTS, HashTable::new);
        for entry in whole.into_iter().flatten() {
            let hash = self.hasher.hash_one(&entry.0);
            let part = self.part(hash);
            let hasher = &self.hasher;
            let rehash = |known: &(K, V)| hasher.hash_one(&known.0);
            self.parts[part].insert_unique(hash, entry, rehash);
        }
    }

    /// Takes a value out.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.remove_if(key, |_| true)
    }

    /// Takes a value out of which something holds.
    pub(super) fn remove_if(&mut self, key: &K, holds: impl FnOnce(&V) -> bool) -> Option<V> {
        if self.parts.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let part = self.part(hash);
        let divided = self.parts.len() > 1;
        let table = &mut self.parts[part];
        let found = table.find_entry(hash, |known| known.0 == *key).ok()?;
        if !holds(&found.get().1) {
            return None;
        }
        let ((_, value), _) = found.remove();
        self.len -= 1;
        if divided && table.is_empty() {
            *table = HashTable::new();
        }
        if divided && self.len == 0 {
            self.parts = Vec::new();
        }
        Some(value)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

/// A queue in parts.
#[derive(Debug)]
pub(super) struct PartedQueue<T> {
    /// None of them is empty but for the first, and all but the last have been full.
    parts: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> Default for PartedQueue<T> {
    fn default() -> Self {
        Self {
            parts: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> PartedQueue<T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// True when there is none.
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an item behind the others.
    pub(super) fn push_back(&mut self, item: T) {
        let full = |part: &VecDeque<T>| part.len() >= ITEMS;
        if self.parts.back().is_none_or(full) {
            self.parts.push_back(VecDeque::new());
        }
        if let Some(last) = self.parts.back_mut() {
            last.push_back(item);
            self.len += 1;
        }
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.parts.front()?.front()
    }

    /// Takes the first item.
    pub(super) fn pop_front(&mut self) -> Option<T> {
        let others = self.parts.len() > 1;
        let first = self.parts.front_mut()?;
        let item = first.pop_front()?;
        self.len -= 1;
        // A short queue keeps its memory.
        if first.is_empty() && (others || first.capacity() >= ITEMS) {
            self.parts.pop_front();
        }
        Some(item)
    }

    /// The items in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flatten()
    }

    /// Takes out the items of which something does not hold.
    pub(super) fn retain(&mut self, mut holds: impl FnMut(&T) -> bool) {
        for part in &mut self.parts {
            part.retain(&mut holds);
        }
        self.parts.retain(|part| !part.is_empty());
        self.len = self.parts.iter().map(VecDeque::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// As a map of the standard library does, also beyond the size at which it is divided, and
        /// back.
        #[test]
        fn a_map_in_parts_is_a_map(steps in proptest::collection::vec((0u32..3000, any::<bool>()), 0..200), many in any::<bool>()) {
            let (mut parted, mut map) = (PartedMap::default(), BTreeMap::new());
            let all = if many { 0..3000 } else { 0..10 };
            for key in all {
                prop_assert_eq!(parted.insert(key, key), map.insert(key, key));
            }
            for (key, add) in steps {
                if add {
                    prop_assert_eq!(parted.insert(key, key + 1), map.insert(key, key + 1));
                } else {
                    prop_assert_eq!(parted.remove(&key), map.remove(&key));
                }
                prop_assert_eq!(parted.len(), map.len());
            }
            for key in 0..3000 {
                prop_assert_eq!(parted.remove(&key), map.remove(&key));
            }
            prop_assert_eq!(parted.len(), 0);
        }

        #[test]
        fn a_queue_in_parts_is_a_queue(steps in proptest::collection::vec(0usize..6000, 1..20)) {
            let (mut parted, mut queue) = (PartedQueue::default(), VecDeque::new());
            let mut next = 0;
            for (n, step) in steps.into_iter().enumerate() {
                match n % 3 {
                    0 | 1 => {
                        for _ in 0..step {
                            parted.push_back(next);
                            queue.push_back(next);
                            next += 1;
                        }
                        let odd = |item: &i32| n == 0 || item % 7 != 3;
                        parted.retain(odd);
                        queue.retain(odd);
                    }
                    _ => for _ in 0..step {
                        prop_assert_eq!(parted.front(), queue.front());
                        prop_assert_eq!(parted.pop_front(), queue.pop_front());
                    },
                }
                prop_assert_eq!(parted.len(), queue.len());
                prop_assert_eq!(parted.is_empty(), queue.is_empty());
            }
            prop_assert!(parted.iter().eq(queue.iter()));
        }
    }

    #[test]
    fn no_part_becomes_long() {
        let (mut map, mut queue) = (PartedMap::default(), PartedQueue::default());
        for n in 0..1_000_000 {
            map.insert(n, n);
            queue.push_back(n);
        }
        let longest = map.parts.iter().map(HashTable::len).max();
        assert!(longest.is_some_and(|longest| longest < 8192), "{longest:?}");
        assert!(queue.parts.iter().all(|part| part.capacity() <= 2 * ITEMS));
        for n in 0..1_000_000 {
            assert_eq!(queue.pop_front(), Some(n));
            assert_eq!(map.remove(&n), Some(n));
        }
        // The short rest of a queue may stay.
        assert!(map.parts.is_empty() && queue.parts.len() <= 1);
        assert!(queue.parts.iter().all(|part| part.capacity() < ITEMS));
    }
}
