//! The free slots of the table: a bit each, and the lowest one goes first.
//!
//! Destinations that are announced one after the other lie one after the other, also when a table
//! has come and gone before: what is read next is then already in a cache.

const BITS: usize = u64::BITS as usize;

/// A set of slots.
#[derive(Debug, Default)]
pub(super) struct Free {
    /// A bit for each slot.
    slots: Vec<u64>,
    /// A bit for each word of `slots` that is not zero.
    words: Vec<u64>,
    /// No word of `words` before this one has a bit.
    first: usize,
    len: usize,
}

fn set(bits: &mut Vec<u64>, at: usize) {
    let word = at / BITS;
    if bits.len() <= word {
        bits.resize(word + 1, 0);
    }
    bits[word] |= 1 << (at % BITS);
}

impl Free {
    /// Number of free slots.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Frees a slot that is taken.
    pub(super) fn put(&mut self, slot: usize) {
        set(&mut self.slots, slot);
        let word = slot / BITS;
        set(&mut self.words, word);
        self.first = self.first.min(word / BITS);
        self.len += 1;
    }

    /// Takes the lowest free slot.
    pub(super) fn take(&mut self) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        while self.words[self.first] == 0 {
            self.first += 1;
        }
        let word = self.first * BITS + self.words[self.first].trailing_zeros() as usize;
        let slot = word * BITS + self.slots[word].trailing_zeros() as usize;
        // Takes away the lowest bit.
        self.slots[word] &= self.slots[word] - 1;
        if self.slots[word] == 0 {
            self.words[self.first] &= self.words[self.first] - 1;
        }
        self.len -= 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Places in all of several words of words.
        #[test]
        fn it_does_what_a_sorted_set_does(steps in proptest::collection::vec(proptest::option::of(0usize..20_000), 1..500)) {
            let (mut free, mut set) = (Free::default(), BTreeSet::new());
            for step in steps {
                match step {
                    Some(slot) if set.insert(slot) => free.put(slot),
                    Some(_) => {}
                    None => prop_assert_eq!(free.take(), set.pop_first()),
                }
                prop_assert_eq!(free.len(), set.len());
            }
            while let Some(slot) = set.pop_first() {
                prop_assert_eq!(free.take(), Some(slot));
            }
            prop_assert_eq!(free.take(), None);
        }
    }
}
