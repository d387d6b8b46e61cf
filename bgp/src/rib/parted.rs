//! A hash table and a list in parts, each of which grows by itself: whoever adds to a long one
//! never waits until all of it has been copied.

use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

/// Entries below which a table is one part.
const WHOLE: usize = 16 * 1024;
/// Parts of a larger table: with a million entries a part has eight thousand.
pub(super) const PARTS: usize = 128;

/// The part for some bits of a hash. Parts of one size would all grow at about the same time, and
/// be as long a wait together as the whole: so the first gets twice as much as the last, and the
/// others what lies between, and their times are spread over a doubling of the table.
pub(super) const fn spread(bits: u16) -> usize {
    // PARTS * (2^x - 1) for x from 0 to 1: the density falls from 1 / ln 2 to half of that. The
    // power is 1 + x * (0.6565 + 0.3435 * x) here, in fractions of 2^16.
    let x = bits as u64;
    let power = (x * (43_024 + ((22_511 * x) >> 16))) >> 16;
    (power as usize * PARTS) >> 16
}

/// Places of a part in a walk: more than any part has.
pub(super) const STRIDE: usize = 1 << 24;

/// Entries by hash.
#[derive(Debug)]
pub(super) struct SegmentedTable<T> {
    /// None, one, or [`PARTS`].
    parts: Vec<HashTable<T>>,
    len: usize,
}

impl<T> Default for SegmentedTable<T> {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            len: 0,
        }
    }
}

impl<T> SegmentedTable<T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// True when there is none.
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part for a hash. Not by the bits that a part itself looks at: its lowest, and its
    /// highest seven.
    fn part(&self, hash: u64) -> usize {
        match self.parts.len() {
            PARTS => spread((hash >> 40 & 0xffff) as u16),
            _ => 0,
        }
    }

    /// The entry with this hash that is the same.
    pub(super) fn find(&self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<&T> {
        self.parts.get(self.part(hash))?.find(hash, same)
    }

    /// Adds an entry that is not there yet. `hash_of` must say of it what `hash` says.
    pub(super) fn insert(&mut self, hash: u64, entry: T, hash_of: impl Fn(&T) -> u64) {
        if self.parts.is_empty() {
            self.parts.push(HashTable::new());
        } else if self.len >= WHOLE && self.parts.len() == 1 {
            self.divide(&hash_of);
        }
        let part = self.part(hash);
        self.parts[part].insert_unique(hash, entry, hash_of);
        self.len += 1;
    }

    fn divide(&mut self, hash_of: impl Fn(&T) -> u64) {
        let whole = std::mem::take(&mut self.parts);
        self.parts.resize_with(PARTS, HashTable::new);
        for entry in whole.into_iter().flatten() {
            let hash = hash_of(&entry);
            let part = self.part(hash);
            self.parts[part].insert_unique(hash, entry, &hash_of);
        }
    }

    /// Takes out the entry with this hash that is the same.
    pub(super) fn remove(&mut self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<T> {
        let part = self.part(hash);
        let found = self.parts.get_mut(part)?.find_entry(hash, same).ok()?;
        self.len -= 1;
        Some(found.remove().0)
    }

    /// Where a walk in pieces ends, which [`SegmentedTable::walk`] does step by step from 0 on.
    pub(super) const fn end(&self) -> usize {
        self.parts.len() * STRIDE
    }

    /// One step of `retain`. At the end of a part that has shrunk much, memory is freed. Returns
    /// where the walk continues, and the work it took beyond a look at one slot. A table that grows
    /// between two steps may hide some entries.
    pub(super) fn walk(
        &mut self,
        at: usize,
        least: usize,
        gone: impl FnOnce(&T) -> bool,
        hash_of: impl Fn(&T) -> u64,
    ) -> (usize, usize) {
        let least = least / self.parts.len().max(1);
        let Some(part) = self.parts.get_mut(at / STRIDE) else {
            return (self.end(), 0);
        };
        if at % STRIDE < part.num_buckets() {
            if let Ok(entry) = part.get_bucket_entry(at % STRIDE)
                && gone(entry.get())
            {
                entry.remove();
                self.len -= 1;
            }
            return (at + 1, 0);
        }
        let wanted = part.len() * 2;
        let shrinks = part.capacity() > wanted.max(least) * 4;
        if shrinks {
            part.shrink_to(wanted, hash_of);
        }
        let moved = if shrinks { part.len() } else { 0 };
        if self.len == 0 {
            self.parts = Vec::new();
        }
        ((at / STRIDE + 1) * STRIDE, moved)
    }

    /// Octets that it has room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        let entries: usize = self.parts.iter().map(HashTable::capacity).sum();
        entries * size_of::<T>() + self.parts.capacity() * size_of::<HashTable<T>>()
    }
}

/// Values in a part of a list.
const VALUES: usize = 4096;

/// A list that grows in parts.
#[derive(Debug)]
pub(super) struct SegmentedList<T>(Vec<Vec<T>>);

impl<T> Default for SegmentedList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> SegmentedList<T> {
    pub(super) fn len(&self) -> usize {
        let before = self.0.len().saturating_sub(1) * VALUES;
        before + self.0.last().map_or(0, Vec::len)
    }

    /// Adds a value behind the others.
    pub(super) fn push(&mut self, value: T) {
        if self.0.last().is_none_or(|part| part.len() >= VALUES) {
            self.0.push(Vec::new());
        }
        if let Some(part) = self.0.last_mut() {
            part.push(value);
        }
    }

    /// The values in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// Octets that it has room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        let values: usize = self.0.iter().map(Vec::capacity).sum();
        values * size_of::<T>() + self.0.capacity() * size_of::<Vec<T>>()
    }
}

impl<T> Index<usize> for SegmentedList<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.0[at / VALUES][at % VALUES]
    }
}

impl<T> IndexMut<usize> for SegmentedList<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.0[at / VALUES][at % VALUES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: &u32) -> u64 {
        u64::from(*n).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// One insertion copies a bounded number of entries, whatever their total.
    #[test]
    fn no_part_becomes_long_and_every_entry_is_found() {
        let mut table = SegmentedTable::default();
        for n in 0..300_000u32 {
            table.insert(hash(&n), n, hash);
            let part = &table.parts[table.part(hash(&n))];
            assert!(part.len() <= WHOLE, "{} at once", part.len());
        }
        assert!((0..300_000).all(|n| table.find(hash(&n), |seen| *seen == n) == Some(&n)));
        assert_eq!(table.find(hash(&300_000), |seen| *seen == 300_000), None);
        // A walk over the slots finds each.
        let (mut at, mut steps) = (0, 0);
        while at < table.end() {
            let (next, moved) = table.walk(at, 0, |n| n % 3 != 0, hash);
            assert!(moved <= WHOLE, "{moved} at once");
            (at, steps) = (next, steps + 1);
        }
        assert_eq!(table.len(), 100_000);
        assert!(steps < 1_000_000, "{steps} steps");
        assert_eq!(table.remove(hash(&1), |seen| *seen == 1), None);
        for n in (0..300_000).step_by(3) {
            assert_eq!(table.remove(hash(&n), |seen| *seen == n), Some(n));
        }
        assert!(table.is_empty());
        let mut at = 0;
        while at < table.end() {
            at = table.walk(at, 0, |_| true, hash).0;
        }
        assert_eq!(table.room(), 0);
    }

    #[test]
    fn parts_have_different_sizes_and_each_has_some() {
        let mut sizes = [0usize; PARTS];
        for bits in 0..=u16::MAX {
            sizes[spread(bits)] += 1;
        }
        let (first, last) = (sizes[0], sizes[PARTS - 1]);
        assert!(
            first > last * 17 / 10 && first < last * 23 / 10,
            "{sizes:?}"
        );
        assert!(sizes.is_sorted_by(|a, b| *b <= a + 8), "{sizes:?}");
    }

    #[test]
    fn a_list_in_parts_is_a_list() {
        let mut list = SegmentedList::default();
        for n in 0..10_000 {
            assert_eq!(list.len(), n);
            list.push(n);
        }
        list[5000] += 1;
        assert_eq!((list[4999], list[5000]), (4999, 5001));
        assert_eq!(list.iter().count(), 10_000);
        assert!(list.0.iter().all(|part| part.capacity() <= VALUES));
    }
}
