//! Which subnets nobody has.

use caracal_model::Prefix;

use crate::config::SubnetRange;

/// Flannel picks one of the first so many, so that two nodes seldom want the same.
pub(crate) const CHOICE: usize = 100;

/// The first free subnets of a range, at most `most`: those that share no address with `taken`.
pub(crate) fn free_subnets(
    range: &SubnetRange,
    taken: impl Iterator<Item = Prefix>,
    most: usize,
) -> Vec<Prefix> {
    let taken = intervals(range, taken);
    let size = range.subnet_size();
    let mut free = Vec::new();
    let mut number = range.first;
    while number <= range.last && free.len() < most {
        let start = number * size;
        // The first that does not end below this subnet.
        let next = taken.partition_point(|(_, end)| *end < start);
        match taken.get(next) {
            Some((from, end)) if *from < start + size => number = end / size + 1,
            _ => {
                free.extend(range.subnet(number));
                number += 1;
            }
        }
    }
    free
}

/// First and last offsets of what is taken inside of the network, sorted and without overlaps.
fn intervals(range: &SubnetRange, taken: impl Iterator<Item = Prefix>) -> Vec<(u128, u128)> {
    let inside = |prefix: Prefix| match range.network.offset(prefix.address()) {
        Some(offset) if range.network.covers(&prefix) => Some((offset, offset + prefix.size() - 1)),
        _ => prefix
            .covers(&range.network)
            .then(|| (0, range.network.size() - 1)),
    };
    let mut found: Vec<(u128, u128)> = taken.filter_map(inside).collect();
    found.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::with_capacity(found.len());
    for (start, end) in found {
        match merged.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => merged.push((start, end)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(network: &str, len: u8, first: u128, last: u128) -> SubnetRange {
        SubnetRange {
            network: network.parse().expect("a prefix"),
            len,
            first,
            last,
        }
    }

    #[test]
    fn a_large_range_is_not_walked_to_its_end() {
        let v6 = range("fd00::/16", 64, 1, (1 << 48) - 1);
        let taken = ["fd00::/17", "fd00:8000::/64"].map(|t| t.parse().expect("a prefix"));
        let free = free_subnets(&v6, taken.into_iter(), 2);
        let shown: Vec<String> = free.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["fd00:8000:0:1::/64", "fd00:8000:0:2::/64"]);
        assert_eq!(free_subnets(&v6, [v6.network].into_iter(), 1), []);
    }

    proptest! {
        #[test]
        fn what_is_free_is_what_looking_at_each_says(
            len in 26u8..=30,
            first in 0u128..4,
            taken in prop::collection::vec((0u32..256, 20u8..=32), 0..12),
            most in 1usize..80,
        ) {
            let range = range("10.5.0.0/24", len, first, (1 << (len - 24)) - 1);
            let taken: Vec<Prefix> = taken
                .into_iter()
                .map(|(low, len)| Prefix::v4((0x0a05_0000 | low).into(), len))
                .collect();
            let all = (range.first..=range.last).filter_map(|number| range.subnet(number));
            let expected: Vec<Prefix> = all
                .filter(|subnet| !taken.iter().any(|t| t.overlaps(subnet)))
                .take(most)
                .collect();
            prop_assert_eq!(free_subnets(&range, taken.into_iter(), most), expected);
        }
    }
}
