//! Owners by prefix, looked up by longest match for each route that is received in a pool.

use caracal_model::net::{Family, Prefix};
use foldhash::HashMap;

use super::OwnerId;

/// The owners of one prefix. More than one is a fault of the data; each counts.
#[derive(Debug)]
enum Owners {
    One(OwnerId),
    Several(Vec<OwnerId>),
}

impl Owners {
    fn as_slice(&self) -> &[OwnerId] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Several(ids) => ids,
        }
    }
}

/// The lengths that the prefixes of a family have.
#[derive(Debug, Default)]
struct Lengths {
    /// Each with the number of prefixes that have it, the longest first. They are few: of blocks,
    /// and of addresses.
    counts: Vec<(u8, usize)>,
}

impl Lengths {
    fn add(&mut self, len: u8) {
        let at = self.counts.partition_point(|(known, _)| *known > len);
        match self.counts.get_mut(at) {
            Some((known, count)) if *known == len => *count += 1,
            _ => self.counts.insert(at, (len, 1)),
        }
    }

    fn remove(&mut self, len: u8) {
        if let Some((_, count)) = self.counts.iter_mut().find(|(known, _)| *known == len) {
            *count -= 1;
        }
        self.counts.retain(|(_, count)| *count > 0);
    }
}

/// All prefixes with an owner.
#[derive(Debug, Default)]
pub(super) struct PrefixOwners {
    owners: HashMap<Prefix, Owners>,
    lengths: [Lengths; 2],
}

const fn index(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}

impl PrefixOwners {
    /// Number of prefixes.
    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Adds an owner of a prefix, or removes it.
    pub(super) fn set(&mut self, prefix: Prefix, id: OwnerId, has: bool) {
        let old = self.owners.remove(&prefix);
        let known = old.as_ref().map_or(&[][..], Owners::as_slice);
        let mut ids: Vec<OwnerId> = known.iter().copied().filter(|known| *known != id).collect();
        if has {
            ids.push(id);
        }
        let lengths = &mut self.lengths[index(prefix.family())];
        match (old.is_some(), ids.is_empty()) {
            (false, false) => lengths.add(prefix.len()),
            (true, true) => lengths.remove(prefix.len()),
            _ => {}
        }
        let owners = match ids[..] {
            [] => return,
            [one] => Owners::One(one),
            _ => Owners::Several(ids),
        };
        self.owners.insert(prefix, owners);
    }

    /// The longest prefix that covers this one, and its owners.
    pub(super) fn longest(&self, prefix: &Prefix) -> Option<(Prefix, &[OwnerId])> {
        let lengths = self.lengths[index(prefix.family())].counts.iter();
        let shorter = lengths.filter(|(len, _)| *len <= prefix.len());
        shorter
            .map(|(len, _)| match *len == prefix.len() {
                true => *prefix,
                false => Prefix::truncated(prefix.address(), *len),
            })
            .find_map(|owned| Some((owned, self.owners.get(&owned)?.as_slice())))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_what_a_walk_over_all_finds(
            steps in proptest::collection::vec((0u32..4, 28u8..=32, 0u32..3, any::<bool>()), 1..60),
        ) {
            let (mut by_prefix, mut all) = (PrefixOwners::default(), BTreeMap::<Prefix, BTreeSet<u32>>::new());
            for (bits, len, owner, has) in steps {
                let prefix = Prefix::v4((0x0a00_0000 + bits * 5).into(), len);
                by_prefix.set(prefix, owner, has);
                let owners = all.entry(prefix).or_default();
                if has { owners.insert(owner); } else { owners.remove(&owner); }
                all.retain(|_, owners| !owners.is_empty());
                prop_assert_eq!(by_prefix.len(), all.len());
                for bits in 0x0a00_0000..0x0a00_0010u32 {
                    let asked = Prefix::v4(bits.into(), 31);
                    let covers = |p: &&Prefix| p.covers(&asked);
                    let expected = all.keys().filter(covers).max_by_key(|p| p.len());
                    let found = by_prefix.longest(&asked);
                    prop_assert_eq!(found.map(|(prefix, _)| prefix), expected.copied());
                    let ids = found.map(|(_, ids)| ids.iter().copied().collect());
                    prop_assert_eq!(ids, expected.map(|prefix| all[prefix].clone()));
                }
            }
        }
    }
}
