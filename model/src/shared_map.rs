//! A sorted map whose copies share what they have in common: a copy costs nothing, and a change of
//! one costs as much as the key's neighbourhood, however large the map is. So a snapshot can be
//! handed out after each change.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Index, RangeBounds};

use immutable_chunkmap::map::Map;

/// Entries that are copied together when one of them changes.
const CHUNK: usize = 64;

type Inner<K, V> = Map<K, V, CHUNK>;

/// A sorted map whose copies share what they have in common.
#[derive(Clone)]
pub struct SharedMap<K: Ord + Clone, V: Clone>(Inner<K, V>);

impl<K: Ord + Clone, V: Clone> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self(Inner::new())
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.iter().eq(other)
    }
}

impl<K: Ord + Clone + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// The value of a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    /// The key as it is in the map, with its value.
    #[must_use]
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.0.get_full(key)
    }

    /// True when the key has a value.
    #[must_use]
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.get(key).is_some()
    }

    /// Sets a value; the one of before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert_cow(key, value)
    }

    /// Removes a value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove_cow(key)
    }

    /// All entries, by key.
    #[must_use]
    pub fn iter(&self) -> <&Inner<K, V> as IntoIterator>::IntoIter {
        (&self.0).into_iter()
    }

    /// The entries of a range, by key.
    pub fn range<'a, R: RangeBounds<K> + 'a>(
        &'a self,
        range: R,
    ) -> impl DoubleEndedIterator<Item = (&'a K, &'a V)> {
        self.0.range::<K, R>(range)
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values, by key.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<K: Ord + Clone + Borrow<Q>, V: Clone, Q: Ord + ?Sized> Index<&Q> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the key has a value")
    }
}

impl<'a, K: Ord + Clone, V: Clone> IntoIterator for &'a SharedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = <&'a Inner<K, V> as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        map.extend(entries);
        map
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for SharedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is done to it, it is the sorted map that `BTreeMap` is, and its copies stay as
        /// they were.
        #[test]
        fn it_is_a_sorted_map_and_copies_stay_as_they_were(
            steps in proptest::collection::vec((0..300_u16, any::<Option<u8>>()), 0..600),
            from in 0..300_u16,
        ) {
            let mut map = SharedMap::default();
            let mut oracle = BTreeMap::new();
            let mut copies = Vec::new();
            for (key, value) in steps {
                let (before, expected) = match value {
                    Some(value) => (map.insert(key, value), oracle.insert(key, value)),
                    None => (map.remove(&key), oracle.remove(&key)),
                };
                prop_assert_eq!(before, expected);
                if key % 50 == 0 {
                    copies.push((map.clone(), oracle.clone()));
                }
            }
            copies.push((map, oracle));
            for (map, oracle) in copies {
                prop_assert!(map.iter().eq(&oracle));
                prop_assert!(map.range(from..).eq(oracle.range(from..)));
                prop_assert!(map.range(..=from).next_back() == oracle.range(..=from).next_back());
                prop_assert_eq!(map.len(), oracle.len());
                prop_assert_eq!(map.get(&from), oracle.get(&from));
                let again: SharedMap<_, _> = oracle.into_iter().collect();
                prop_assert_eq!(again, map);
            }
        }
    }
}
