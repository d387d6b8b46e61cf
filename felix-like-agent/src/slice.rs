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
        count_look();
        last = (number == most).then(|| key(&item));
        look(item);
    }
    last
}

/// Counts a destination that is planned or a key that is compared; in tests alone.
#[inline]
pub(crate) fn count_look() {
    #[cfg(test)]
    LOOKS.with(|looks| looks.set(looks.get() + 1));
}

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many looks there were on this thread since the last question.
#[cfg(test)]
pub(crate) fn take_looks() -> usize {
    LOOKS.with(std::cell::Cell::take)
}
