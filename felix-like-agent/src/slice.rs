//! How much of long work is done at once.

/// Most destinations that are planned, or keys that are compared, before whoever plans or compares
/// listens again: some milliseconds of work.
pub const SLICE: usize = 512;

/// Looks at the next ones, at most so many. The last of them, where there may be more.
pub(crate) fn look_at<T, K>(
    items: impl Iterator<Item = T>,
    most: usize,
    key: impl Fn(&T) -> K,
    mut look: impl FnMut(T),
) -> Option<K> {
    let mut last = None;
    for (item, number) in items.take(most).zip(1..) {
        last = (number == most).then(|| key(&item));
        look(item);
    }
    last
}
