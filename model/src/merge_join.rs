//! Merge join of two sorted sequences: with tens of thousands of keys a look-up for each costs more
//! than everything else that a comparison does.

use std::cmp::Ordering;

/// Each key of either sequence, with what both have under it. Keys rise strictly in both.
pub fn merge_join<K: Ord, A, B>(
    left: impl IntoIterator<Item = (K, A)>,
    right: impl IntoIterator<Item = (K, B)>,
) -> impl Iterator<Item = (K, Option<A>, Option<B>)> {
    let mut left = left.into_iter().peekable();
    let mut right = right.into_iter().peekable();
    std::iter::from_fn(move || {
        let order = match (left.peek(), right.peek()) {
            (Some((a, _)), Some((b, _))) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        match order {
            Ordering::Less => left.next().map(|(key, a)| (key, Some(a), None)),
            Ordering::Greater => right.next().map(|(key, b)| (key, None, Some(b))),
            Ordering::Equal => {
                let (key, a) = left.next()?;
                let (_, b) = right.next()?;
                Some((key, Some(a), Some(b)))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_comes_once_with_both_sides() {
        let walk = |left: &[(u8, char)], right: &[(u8, char)]| {
            merge_join(left.iter().copied(), right.iter().copied()).collect::<Vec<_>>()
        };
        assert_eq!(walk(&[], &[]), []);
        assert_eq!(walk(&[(1, 'a')], &[]), [(1, Some('a'), None)]);
        assert_eq!(
            walk(&[(1, 'a'), (3, 'c')], &[(2, 'x'), (3, 'y'), (9, 'z')]),
            [
                (1, Some('a'), None),
                (2, None, Some('x')),
                (3, Some('c'), Some('y')),
                (9, None, Some('z')),
            ]
        );
    }
}
