//! Maps and sets that are filled one value after the other.

/// As [`Iterator::collect`], for what grows by insertion.
pub trait InsertEach: Iterator + Sized {
    /// Puts one value after the other into an empty collection. `collect` sorts the values of an
    /// ordered map or set first, and each type's sort is some KB of the program.
    fn insert_each<C: Default + Extend<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> InsertEach for I {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_last_of_equal_keys_counts_as_with_collect() {
        let pairs = [(2, 'a'), (1, 'b'), (2, 'c')];
        let map: BTreeMap<_, _> = pairs.into_iter().insert_each();
        assert_eq!(map, pairs.into_iter().collect());
        assert_eq!(map[&2], 'c');
    }
}
