//! Ranges of addresses by their first octet: which rule is about a prefix is found in a short list,
//! not among all rules.

use std::net::IpAddr;

use caracal_model::Prefix;

/// First octets, of both families.
const LISTS: usize = 512;

/// Values by range, in the order in which they were given.
#[derive(Clone, Debug)]
pub(crate) struct Ranges<T>(Vec<Vec<(Prefix, T)>>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The list in which what covers a prefix is.
const fn list(prefix: &Prefix) -> usize {
    match prefix.address() {
        IpAddr::V4(address) => address.octets()[0] as usize,
        IpAddr::V6(address) => LISTS / 2 + address.octets()[0] as usize,
    }
}

impl<T: Copy> FromIterator<(Prefix, T)> for Ranges<T> {
    fn from_iter<I: IntoIterator<Item = (Prefix, T)>>(ranges: I) -> Self {
        let mut lists = vec![Vec::new(); LISTS];
        for (range, value) in ranges {
            let first = list(&range);
            // A short range has several first octets.
            let more = u8::MAX.checked_shr(u32::from(range.len())).unwrap_or(0);
            for list in &mut lists[first..=first + usize::from(more)] {
                list.push((range, value));
            }
        }
        Self(lists)
    }
}

impl<T> Ranges<T> {
    /// The first range given that covers a prefix.
    pub(crate) fn first(&self, prefix: &Prefix) -> Option<&(Prefix, T)> {
        let list = self.0.get(list(prefix))?;
        list.iter().find(|(range, _)| range.covers(prefix))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix() -> impl Strategy<Value = Prefix> {
        let v4 = (any::<u32>(), 0u8..=32).prop_map(|(bits, len)| Prefix::v4(bits.into(), len));
        let v6 = (any::<u128>(), 0u8..=20).prop_map(|(bits, len)| Prefix::v6(bits.into(), len));
        prop_oneof![v4, v6]
    }

    proptest! {
        /// Prefixes inside ranges, and any others.
        #[test]
        fn it_finds_what_a_walk_over_all_finds(
            ranges in proptest::collection::vec(prefix(), 0..20),
            others in proptest::collection::vec(prefix(), 0..20),
            longer in 0u8..=32,
        ) {
            let numbered = || ranges.iter().copied().zip(0u32..);
            let index: Ranges<u32> = numbered().collect();
            let inside = ranges.iter().map(|r| Prefix::truncated(r.address(), r.len() + longer));
            for asked in inside.chain(others) {
                let found = numbered().find(|(range, _)| range.covers(&asked));
                prop_assert_eq!(index.first(&asked).copied(), found);
            }
        }
    }
}
