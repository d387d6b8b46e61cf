//! Prefixes that several ask for, each as long as anybody does.

use std::collections::{BTreeMap, BTreeSet};

use caracal_model::Prefix;

/// The prefixes that each key asks for, and by how many keys each prefix is asked for.
#[derive(Debug)]
pub(crate) struct Wanted<K> {
    of: BTreeMap<K, Vec<Prefix>>,
    users: BTreeMap<Prefix, usize>,
}

impl<K> Default for Wanted<K> {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            users: BTreeMap::new(),
        }
    }
}

impl<K: Ord> Wanted<K> {
    /// Sets what a key asks for. Adds the prefixes that are wanted or unwanted from now on.
    pub(crate) fn set(&mut self, key: K, now: Vec<Prefix>, turned: &mut BTreeSet<Prefix>) {
        for prefix in &now {
            let users = self.users.entry(*prefix).or_default();
            *users += 1;
            turned.extend((*users == 1).then_some(*prefix));
        }
        let before = match now.is_empty() {
            true => self.of.remove(&key),
            false => self.of.insert(key, now),
        };
        for prefix in before.into_iter().flatten() {
            if let Some(users) = self.users.get_mut(&prefix) {
                *users -= 1;
                if *users == 0 {
                    self.users.remove(&prefix);
                    turned.insert(prefix);
                }
            }
        }
    }

    pub(crate) fn is_wanted(&self, prefix: &Prefix) -> bool {
        self.users.contains_key(prefix)
    }

    /// All that somebody asks for.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &Prefix> {
        self.users.keys()
    }
}
