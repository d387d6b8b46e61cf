//! A sorted map whose copies share what they have in common: a copy costs nothing, and a change of
//! one costs as much as the key's neighbourhood, however large the map is. So a snapshot can be
//! handed out after each change.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Index, RangeBounds};

use immutable_chunkmap::map::{Map, NodeRef};

use crate::merge_join;

/// Entries that are copied together when one of them changes.
const CHUNK: usize = 64;

/// Fewest changes that are made together: a few, far from each other, are cheaper one by one.
const MANY: usize = CHUNK / 2;

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

impl<K: Ord + Clone, V: Clone + Eq> Eq for SharedMap<K, V> {}

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

    /// Sets or removes (`None`) the values of many keys. They come sorted, each of them once.
    pub fn change(&mut self, changes: Vec<(K, Option<V>)>) {
        if changes.len() < MANY {
            for (key, value) in changes {
                match value {
                    Some(value) => drop(self.insert(key, value)),
                    None => drop(self.remove(&key)),
                }
            }
            return;
        }
        let mut rest = changes.into_iter();
        while rest.len() > 0 {
            // Of more than a chunk at once the tree copies what is left for each chunk.
            let part = rest.by_ref().take(CHUNK);
            self.0 = self
                .0
                .update_many(part, |key, value, _| value.map(|value| (key, value)));
        }
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

    /// True when both are one and the same: an answer for nothing. Two that are equal and were made
    /// one by one are not.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        identity(self.0.root()) == identity(other.0.root())
    }

    /// The keys with another value than in `before`, or in one of the two alone, sorted. What both
    /// share is skipped, so that this costs what was changed between them, whatever their size,
    /// when one is a changed copy of the other.
    #[must_use]
    pub fn changed_since(&self, before: &Self) -> Vec<K>
    where
        V: PartialEq,
    {
        let (mut new, mut old) = (Vec::new(), Vec::new());
        unshared(self.0.root(), before.0.root(), &mut new, &mut old);
        merge_join(new, old)
            .filter(|(_, is, was)| is != was)
            .map(|(key, ..)| key.clone())
            .collect()
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

    /// Keeps the entries of which this is true.
    pub fn retain(&mut self, keep: impl Fn(&K, &V) -> bool) {
        let gone = self.iter().filter(|(key, value)| !keep(key, value));
        let gone: Vec<K> = gone.map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| drop(self.remove(key)));
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

type TreeNode<'a, K, V> = NodeRef<'a, K, V, CHUNK>;
type Entries<'a, K, V> = Vec<(&'a K, &'a V)>;

fn identity<K: Ord + Clone, V: Clone>(root: Option<TreeNode<'_, K, V>>) -> Option<usize> {
    root.map(|node| node.identity())
}

/// The entries of either tree that stand in nodes which are not in the other, by key.
fn unshared<'a, K: Ord + Clone, V: Clone>(
    new: Option<TreeNode<'a, K, V>>,
    old: Option<TreeNode<'a, K, V>>,
    only_new: &mut Entries<'a, K, V>,
    only_old: &mut Entries<'a, K, V>,
) {
    // Where only values differ the trees have one shape, and nothing that is shared is entered.
    let (mut alone_new, mut alone_old) = (Vec::new(), Vec::new());
    common_parts(new, old, &mut alone_new, &mut alone_old);
    // Elsewhere a node may have moved up or down: it is looked for among all that are left.
    let in_new = identities(&alone_new);
    let in_old = identities(&alone_old);
    alone_new
        .into_iter()
        .for_each(|t| t.collect(&in_old, only_new));
    alone_old
        .into_iter()
        .for_each(|t| t.collect(&in_new, only_old));
    only_new.sort_unstable_by_key(|(key, _)| *key);
    only_old.sort_unstable_by_key(|(key, _)| *key);
}

/// A node alone, or with all below it.
enum Part<'a, K: Ord + Clone, V: Clone> {
    TreeNode(TreeNode<'a, K, V>),
    Tree(TreeNode<'a, K, V>),
}

impl<'a, K: Ord + Clone, V: Clone> Part<'a, K, V> {
    /// The entries of nodes that are not among `shared`.
    fn collect(self, shared: &BTreeSet<usize>, entries: &mut Entries<'a, K, V>) {
        let (node, below) = match self {
            Self::TreeNode(node) => (node, false),
            Self::Tree(node) => (node, true),
        };
        if shared.contains(&node.identity()) {
            return;
        }
        let child = |child: Option<TreeNode<'a, K, V>>, entries: &mut _| {
            let child = child.filter(|_| below);
            child
                .into_iter()
                .for_each(|c| Self::Tree(c).collect(shared, entries));
        };
        // By key, so that there is nearly nothing to sort.
        child(node.left(), entries);
        entries.extend(node.pairs());
        child(node.right(), entries);
    }
}

fn identities<K: Ord + Clone, V: Clone>(parts: &[Part<'_, K, V>]) -> BTreeSet<usize> {
    fn add<K: Ord + Clone, V: Clone>(
        node: &TreeNode<'_, K, V>,
        below: bool,
        all: &mut BTreeSet<usize>,
    ) {
        all.insert(node.identity());
        let children = [node.left(), node.right()];
        let children = children.into_iter().flatten().filter(|_| below);
        children.for_each(|child| add(&child, true, all));
    }
    let mut all = BTreeSet::new();
    for part in parts {
        match part {
            Part::TreeNode(node) => add(node, false, &mut all),
            Part::Tree(node) => add(node, true, &mut all),
        }
    }
    all
}

/// Goes down both trees as long as their nodes have the same least key.
fn common_parts<'a, K: Ord + Clone, V: Clone>(
    new: Option<TreeNode<'a, K, V>>,
    old: Option<TreeNode<'a, K, V>>,
    alone_new: &mut Vec<Part<'a, K, V>>,
    alone_old: &mut Vec<Part<'a, K, V>>,
) {
    match (new, old) {
        (Some(new), Some(old)) if new.identity() == old.identity() => {}
        (Some(new), Some(old)) if first(&new) == first(&old) => {
            let (right, old_right) = (new.right(), old.right());
            common_parts(new.left(), old.left(), alone_new, alone_old);
            alone_new.push(Part::TreeNode(new));
            alone_old.push(Part::TreeNode(old));
            common_parts(right, old_right, alone_new, alone_old);
        }
        (new, old) => {
            alone_new.extend(new.map(Part::Tree));
            alone_old.extend(old.map(Part::Tree));
        }
    }
}

fn first<'a, K: Ord + Clone, V: Clone>(node: &TreeNode<'a, K, V>) -> Option<&'a K> {
    node.pairs().next().map(|(key, _)| key)
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
        // One by one: putting in many at once is 20 KB of code for each type of entries.
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

    #[test]
    fn of_several_values_of_one_key_the_last_stays() {
        let entries = (0..2000_u32).map(|n| (n % 100, n));
        let map: SharedMap<u32, u32> = entries.collect();
        assert!(map.iter().all(|(key, value)| *value == 1900 + key));
    }

    proptest! {
        /// Many at once are what they are one by one.
        #[test]
        fn changed_by_many_it_is_as_by_one_at_a_time(
            parts in proptest::collection::vec(
                (any::<bool>(),
                 proptest::collection::vec((0..3000_u16, any::<Option<u8>>()), 0..12 * CHUNK)),
                0..6),
        ) {
            let (mut map, mut oracle) = (SharedMap::default(), BTreeMap::new());
            for (all_stay, part) in parts {
                let before = (map.clone(), oracle.clone());
                if all_stay {
                    let entries = part.into_iter().map(|(key, value)| (key, value.unwrap_or(7)));
                    let entries: Vec<_> = entries.collect();
                    map.extend(entries.iter().copied());
                    oracle.extend(entries);
                } else {
                    let changes: BTreeMap<_, _> = part.into_iter().collect();
                    map.change(changes.clone().into_iter().collect());
                    for (key, value) in changes {
                        match value {
                            Some(value) => drop(oracle.insert(key, value)),
                            None => drop(oracle.remove(&key)),
                        }
                    }
                }
                prop_assert!(map.iter().eq(&oracle));
                prop_assert!(before.0.iter().eq(&before.1));
                let changed = map.changed_since(&before.0);
                let keys: BTreeSet<u16> = oracle.keys().chain(before.1.keys()).copied().collect();
                let differ = keys.into_iter().filter(|key| oracle.get(key) != before.1.get(key));
                prop_assert_eq!(changed, differ.collect::<Vec<_>>());
            }
        }

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
            for ((is, new), (was, old)) in copies.iter().zip(&copies[1..]).chain([(
                &copies[0],
                &copies[copies.len() - 1],
            )]) {
                let all: BTreeSet<u16> = new.keys().chain(old.keys()).copied().collect();
                let changed = all.into_iter().filter(|key| new.get(key) != old.get(key));
                let changed: Vec<u16> = changed.collect();
                prop_assert_eq!(&is.changed_since(was), &changed);
                prop_assert_eq!(&was.changed_since(is), &changed);
                prop_assert!(is.is_same(is) && (changed.is_empty() || !is.is_same(was)));
            }
            for (map, oracle) in copies {
                prop_assert!(map.iter().eq(&oracle));
                prop_assert!(map.range(from..).eq(oracle.range(from..)));
                prop_assert!(map.range(..=from).next_back() == oracle.range(..=from).next_back());
                prop_assert_eq!(map.len(), oracle.len());
                prop_assert_eq!(map.get(&from), oracle.get(&from));
                let again: SharedMap<_, _> = oracle.into_iter().collect();
                prop_assert_eq!(&again, &map);
                prop_assert!(again.changed_since(&map).is_empty());
            }
        }
    }
}
