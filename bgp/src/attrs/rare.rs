//! A list that nearly no route has: one machine word when it is empty.

use std::fmt;
use std::ops::Deref;

/// A list for attributes that most sets do not have. Read it as a slice; [`RareList::edit`] changes
/// it.
///
/// There is one form of the empty list only, so that equal lists are equal values.
#[derive(Clone, PartialEq, Eq, Hash)]
#[allow(
    clippy::box_collection,
    reason = "a Vec takes three words in each attribute set, and is empty nearly always"
)]
pub struct RareList<T>(Option<Box<Vec<T>>>);

impl<T> RareList<T> {
    /// Removes all values, and the room for them.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Changes it as a `Vec`.
    pub fn edit<R>(&mut self, change: impl FnOnce(&mut Vec<T>) -> R) -> R {
        let mut list = self.0.take().unwrap_or_default();
        let result = change(&mut list);
        self.0 = (!list.is_empty()).then_some(list);
        result
    }
}

impl<T> Default for RareList<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> From<Vec<T>> for RareList<T> {
    fn from(list: Vec<T>) -> Self {
        Self((!list.is_empty()).then(|| Box::new(list)))
    }
}

impl<T> FromIterator<T> for RareList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<T> Deref for RareList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl<'a, T> IntoIterator for &'a RareList<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: PartialEq, const N: usize> PartialEq<[T; N]> for RareList<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        **self == other[..]
    }
}

impl<T: fmt::Debug> fmt::Debug for RareList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_is_one_word_and_one_value() {
        assert_eq!(size_of::<RareList<u8>>(), size_of::<usize>());
        let mut list: RareList<u32> = vec![1].into();
        list.edit(|list| list.push(2));
        assert_eq!(list, [1, 2]);
        list.edit(Vec::clear);
        assert_eq!(list, RareList::default());
        assert_eq!(RareList::from(Vec::new()), list);
        assert!(list.is_empty());
    }
}
