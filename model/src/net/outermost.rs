//! Ranges of which none covers another, so that one look finds the one around an address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Prefix;
use crate::InsertEach;

/// Those of some ranges that no other one covers.
#[must_use]
pub fn outermost(prefixes: impl IntoIterator<Item = Prefix>) -> BTreeSet<Prefix> {
    let all: BTreeSet<Prefix> = prefixes.into_iter().insert_each();
    // A prefix comes before those inside it, and nothing outside of it is between them.
    let mut last: Option<Prefix> = None;
    let mut kept = all;
    kept.retain(|prefix| {
        let is_covered = last.is_some_and(|last| last.covers(prefix));
        if !is_covered {
            last = Some(*prefix);
        }
        !is_covered
    });
    kept
}

/// The one of some ranges, of which none covers another, that contains an address.
#[must_use]
pub fn range_around(ranges: &BTreeSet<Prefix>, address: IpAddr) -> Option<Prefix> {
    let last = ranges.range(..=Prefix::host(address)).next_back();
    last.copied().filter(|range| range.contains(address))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_outermost_are_those_that_no_other_covers(
            drawn in proptest::collection::vec((0_u8..4, 0_u8..16, 8_u8..=20, any::<bool>()), 0..40),
            address in (0_u8..4, any::<u8>(), any::<bool>()),
        ) {
            let prefix = |(first, second, len, six): (u8, u8, u8, bool)| match six {
                true => Prefix::truncated([u16::from(first), u16::from(second), 0, 0, 0, 0, 0, 0].into(), len),
                false => Prefix::truncated([first, second << 4, 0, 0].into(), len),
            };
            let all: BTreeSet<Prefix> = drawn.into_iter().map(prefix).collect();
            let is_covered = |prefix: &Prefix| {
                all.iter().any(|other| other != prefix && other.covers(prefix))
            };
            let expected: BTreeSet<Prefix> =
                all.iter().copied().filter(|prefix| !is_covered(prefix)).collect();
            let found = outermost(all.iter().copied());
            prop_assert_eq!(&found, &expected);
            let address: IpAddr = match address {
                (first, second, true) => [u16::from(first), u16::from(second), 0, 0, 0, 0, 0, 1].into(),
                (first, second, false) => [first, second, 0, 1].into(),
            };
            let around = expected.into_iter().find(|range| range.contains(address));
            prop_assert_eq!(range_around(&found, address), around);
        }
    }
}
