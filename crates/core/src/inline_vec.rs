//! A vector that stores up to two elements inline. Most requests match one or two limits, so most plans and answers
//! need no heap allocation.

use core::ops::{Deref, DerefMut};

/// A list that stores one or two elements inline and more on the heap.
///
/// ```
/// use tidegate_core::InlineVec;
/// let one: InlineVec<u64> = [7].into_iter().collect();
/// let none: InlineVec<u64> = InlineVec::from(vec![]);
/// assert_eq!((&*one, none.len()), (&[7][..], 0));
/// ```
#[derive(Clone, Debug)]
pub enum InlineVec<T> {
    /// One element, stored inline.
    One(T),
    /// Two elements, stored inline.
    Two([T; 2]),
    /// Any other number of elements, on the heap.
    Many(Vec<T>),
}

impl<T> Deref for InlineVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => core::slice::from_ref(one),
            Self::Two(two) => two,
            Self::Many(many) => many,
        }
    }
}

impl<T> DerefMut for InlineVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => core::slice::from_mut(one),
            Self::Two(two) => two,
            Self::Many(many) => many,
        }
    }
}

impl<T> From<T> for InlineVec<T> {
    #[inline]
    fn from(one: T) -> Self {
        Self::One(one)
    }
}

impl<T> From<Vec<T>> for InlineVec<T> {
    fn from(many: Vec<T>) -> Self {
        Self::Many(many)
    }
}

impl<T> FromIterator<T> for InlineVec<T> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements = elements.into_iter();
        let Some(first) = elements.next() else { return Self::Many(vec![]) };
        let Some(second) = elements.next() else { return Self::One(first) };
        let Some(third) = elements.next() else { return Self::Two([first, second]) };
        Self::Many([first, second, third].into_iter().chain(elements).collect())
    }
}

impl<T: PartialEq> PartialEq for InlineVec<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for InlineVec<T> {}

impl<T: PartialEq, const N: usize> PartialEq<[T; N]> for InlineVec<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        **self == *other
    }
}

impl<T> IntoIterator for InlineVec<T> {
    type Item = T;
    type IntoIter = core::iter::Chain<
        core::iter::Flatten<core::array::IntoIter<Option<T>, 2>>,
        std::vec::IntoIter<T>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        let (few, many) = match self {
            Self::One(one) => ([Some(one), None], vec![]),
            Self::Two([one, two]) => ([Some(one), Some(two)], vec![]),
            Self::Many(many) => ([None, None], many),
        };
        few.into_iter().flatten().chain(many)
    }
}

impl<'f, T> IntoIterator for &'f InlineVec<T> {
    type Item = &'f T;
    type IntoIter = core::slice::Iter<'f, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_keeps_its_elements_in_order() {
        for length in 0..6 {
            let few: InlineVec<usize> = (0..length).collect();
            assert_eq!(matches!(few, InlineVec::Many(_)), !(1..=2).contains(&length));
            assert!(few.iter().copied().eq(0..length));
            assert!(few.clone().into_iter().eq(0..length));
            assert_eq!(few, InlineVec::from((0..length).collect::<Vec<_>>()));
        }
    }
}
