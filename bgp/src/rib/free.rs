//! The free places of the table: a bit each, and the lowest one goes first.
//!
//! Destinations that are announced one after the other lie one after the other, also when a table
//! has come and gone before: what is read next is then already in a cache.

const BITS: usize = u64::BITS as usize;

/// A set of places.
#[derive(Debug, Default)]
pub(super) struct Free {
    /// A bit for each place.
    places: Vec<u64>,
    /// A bit for each word of `places` that is not zero.
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
    /// Number of free places.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Frees a place that is taken.
    pub(super) fn put(&mut self, place: usize) {
        set(&mut self.places, place);
        let word = place / BITS;
        set(&mut self.words, word);
        self.first = self.first.min(word / BITS);
        self.len += 1;
    }

    /// Takes the lowest free place.
    pub(super) fn take(&mut self) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        while self.words[self.first] == 0 {
            self.first += 1;
        }
        let word = self.first * BITS + self.words[self.first].trailing_zeros() as usize;
        let place = word * BITS + self.places[word].trailing_zeros() as usize;
        // Takes away the lowest bit.
        self.places[word] &= self.places[word] - 1;
        if self.places[word] == 0 {
            self.words[self.first] &= self.words[self.first] - 1;
        }
        self.len -= 1;
        Some(place)
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
                    Some(place) if set.insert(place) => free.put(place),
                    Some(_) => {}
                    None => prop_assert_eq!(free.take(), set.pop_first()),
                }
                prop_assert_eq!(free.len(), set.len());
            }
            while let Some(place) = set.pop_first() {
                prop_assert_eq!(free.take(), Some(place));
            }
            prop_assert_eq!(free.take(), None);
        }
    }
}
