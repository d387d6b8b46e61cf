//! Owners by prefix, looked up for each route that is received in a pool.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use caracal_model::{Family, Prefix};
use foldhash::HashMap;

use super::{FREE, OwnerId};

/// The owners of one prefix.
#[derive(Clone, Copy, Debug)]
struct Owned {
    /// The one owner, or [`SEVERAL`].
    owner: OwnerId,
    /// The prefix lies in a range in which only owners announce. Noted here, since most routes are
    /// for a prefix that has an owner as it is: one look says all.
    checked: bool,
}

/// Stands for more than one owner, which is a fault of the data; each counts.
const SEVERAL: OwnerId = OwnerId::MAX - 1;

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
    /// By address and length in one number, which hashes and compares at once.
    v4: HashMap<u64, Owned>,
    v6: HashMap<(u128, u8), Owned>,
    /// The owners where there are several.
    several: HashMap<Prefix, Vec<OwnerId>>,
    /// The same the other way round, but for [`FREE`].
    by_owner: BTreeSet<(OwnerId, Prefix)>,
    lengths: [Lengths; 2],
}

const fn index(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}

/// The key of an IPv4 prefix.
fn v4_key(address: Ipv4Addr, len: u8) -> u64 {
    u64::from(address.to_bits()) << 8 | u64::from(len)
}

impl PrefixOwners {
    /// Number of prefixes.
    pub(super) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    fn get(&self, prefix: &Prefix) -> Option<&Owned> {
        match prefix.address() {
            IpAddr::V4(address) => self.v4.get(&v4_key(address, prefix.len())),
            IpAddr::V6(address) => self.v6.get(&(address.to_bits(), prefix.len())),
        }
    }

    /// Replaces what is known of a prefix. The result: it had an owner before.
    fn replace(&mut self, prefix: &Prefix, owned: Option<Owned>) -> bool {
        fn put<K: Eq + std::hash::Hash>(
            map: &mut HashMap<K, Owned>,
            key: K,
            owned: Option<Owned>,
        ) -> bool {
            match owned {
                Some(owned) => map.insert(key, owned).is_some(),
                None => map.remove(&key).is_some(),
            }
        }
        match prefix.address() {
            IpAddr::V4(address) => put(&mut self.v4, v4_key(address, prefix.len()), owned),
            IpAddr::V6(address) => put(&mut self.v6, (address.to_bits(), prefix.len()), owned),
        }
    }

    fn owners<'a>(&'a self, prefix: &Prefix, owned: &'a Owned) -> &'a [OwnerId] {
        match owned.owner {
            SEVERAL => self.several.get(prefix).map_or(&[], Vec::as_slice),
            _ => std::slice::from_ref(&owned.owner),
        }
    }

    /// Adds an owner of a prefix, or removes it; `checked`: it lies in a range in which only owners
    /// announce.
    pub(super) fn set(&mut self, prefix: Prefix, id: OwnerId, has: bool, checked: bool) {
        if id != FREE {
            match has {
                true => self.by_owner.insert((id, prefix)),
                false => self.by_owner.remove(&(id, prefix)),
            };
        }
        let known = self.get(&prefix);
        let known = known.map_or(&[][..], |owned| self.owners(&prefix, owned));
        let mut ids: Vec<OwnerId> = known.iter().copied().filter(|known| *known != id).collect();
        if has {
            ids.push(id);
        }
        let owner = match ids[..] {
            [] => None,
            [one] => Some(one),
            _ => Some(SEVERAL),
        };
        let was = self.replace(&prefix, owner.map(|owner| Owned { owner, checked }));
        let lengths = &mut self.lengths[index(prefix.family())];
        match (was, owner.is_some()) {
            (false, true) => lengths.add(prefix.len()),
            (true, false) => lengths.remove(prefix.len()),
            _ => {}
        }
        match owner {
            Some(SEVERAL) => drop(self.several.insert(prefix, ids)),
            _ => drop(self.several.remove(&prefix)),
        }
    }

    /// The prefixes of an owner, in order.
    pub(super) fn prefixes_of(&self, id: OwnerId) -> impl Iterator<Item = Prefix> {
        let first = (id, Prefix::v4(Ipv4Addr::UNSPECIFIED, 0));
        let from = self.by_owner.range(first..);
        let own = from.take_while(move |(owner, _)| *owner == id);
        own.map(|(_, prefix)| *prefix)
    }

    /// Notes again which prefixes lie in a range in which only owners announce.
    pub(super) fn check_again(&mut self, is_checked: impl Fn(&Prefix) -> bool) {
        for (key, owned) in &mut self.v4 {
            let [len, address @ .., _, _, _] = key.to_le_bytes();
            let address = u32::from_le_bytes(address).into();
            owned.checked = is_checked(&Prefix::truncated(IpAddr::V4(address), len));
        }
        for ((address, len), owned) in &mut self.v6 {
            let address = IpAddr::V6((*address).into());
            owned.checked = is_checked(&Prefix::truncated(address, *len));
        }
    }

    /// Whether only its owners announce this prefix, and the owners that it has as it is.
    pub(super) fn exact(&self, prefix: &Prefix) -> Option<(bool, &[OwnerId])> {
        let owned = self.get(prefix)?;
        Some((owned.checked, self.owners(prefix, owned)))
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
            .find_map(|covering| {
                let owned = self.get(&covering)?;
                Some((covering, self.owners(&covering, owned)))
            })
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
            again in 28u8..=32,
        ) {
            let (mut by_prefix, mut all) = (PrefixOwners::default(), BTreeMap::<Prefix, BTreeSet<u32>>::new());
            for (bits, len, owner, has) in steps {
                let prefix = Prefix::v4((0x0a00_0000 + bits * 5).into(), len);
                by_prefix.set(prefix, owner, has, bits % 2 == 0);
                let owners = all.entry(prefix).or_default();
                if has { owners.insert(owner); } else { owners.remove(&owner); }
                all.retain(|_, owners| !owners.is_empty());
                prop_assert_eq!(by_prefix.len(), all.len());
                let exact = by_prefix.exact(&prefix);
                let exact = exact.map(|(checked, ids)| (checked, ids.iter().copied().collect()));
                let expected = all.get(&prefix).map(|owners| (bits % 2 == 0, owners.clone()));
                prop_assert_eq!(exact, expected);
                let own = all.iter().filter(|(_, owners)| owners.contains(&owner));
                let own: Vec<Prefix> = own.map(|(prefix, _)| *prefix).collect();
                prop_assert_eq!(by_prefix.prefixes_of(owner).collect::<Vec<_>>(), own);
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
            by_prefix.check_again(|prefix| prefix.len() == again);
            for prefix in all.keys() {
                let checked = by_prefix.exact(prefix).map(|(checked, _)| checked);
                prop_assert_eq!(checked, Some(prefix.len() == again), "{}", prefix);
            }
        }
    }
}
