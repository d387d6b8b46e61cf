//! Which known name was meant by one that is not known.

/// The name of `known` that is spelled most like `typed`, in any case of letters; none when all
/// are too far: a third of the letters may differ, and of short names one.
#[must_use]
pub fn nearest_name<'a>(known: impl IntoIterator<Item = &'a str>, typed: &str) -> Option<&'a str> {
    close_name(known, typed, (typed.chars().count() / 3).max(1))
}

/// The name of `known` that is spelled most like `typed`, with at most `most` edits.
#[must_use]
pub fn close_name<'a>(
    known: impl IntoIterator<Item = &'a str>,
    typed: &str,
    most: usize,
) -> Option<&'a str> {
    let wanted = typed.to_ascii_lowercase();
    let edits = |name: &str| strsim::osa_distance(&wanted, &name.to_ascii_lowercase());
    let near = known.into_iter().map(|name| (edits(name), name));
    near.filter(|(edits, _)| *edits <= most)
        .min()
        .map(|(_, name)| name)
}
