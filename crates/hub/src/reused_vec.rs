//! A vector that is filled and emptied again and again.

use std::ops::{Deref, DerefMut};

use crate::limits::{DELIVERY_BATCH_SIZE, MEMORY_CHECKED_EVERY};

/// Keeps its memory for the next filling, and frees what its last fillings did not need.
#[derive(Debug)]
pub(crate) struct ReusedVec<T> {
    items: Vec<T>,
    /// Fillings since the last check, and the length of the longest.
    fillings: u32,
    longest: usize,
}

impl<T> Default for ReusedVec<T> {
    fn default() -> Self {
        ReusedVec { items: Vec::new(), fillings: 0, longest: 0 }
    }
}

impl<T> ReusedVec<T> {
    /// Removes all items. Each [`MEMORY_CHECKED_EVERY`] calls it frees memory beyond [`DELIVERY_BATCH_SIZE`] if less than
    /// a quarter was used since.
    pub(crate) fn recycle(&mut self) {
        self.longest = self.longest.max(self.items.len());
        self.items.clear();
        self.fillings += 1;
        if self.fillings < MEMORY_CHECKED_EVERY {
            return;
        }
        let length_kept = DELIVERY_BATCH_SIZE / size_of::<T>();
        if self.items.capacity() / 4 > self.longest {
            self.items.shrink_to(length_kept.max(2 * self.longest));
        }
        (self.fillings, self.longest) = (0, 0);
    }
}

impl<T> Deref for ReusedVec<T> {
    type Target = Vec<T>;

    #[inline]
    fn deref(&self) -> &Vec<T> {
        &self.items
    }
}

impl<T> DerefMut for ReusedVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: usize = DELIVERY_BATCH_SIZE / size_of::<u64>();

    fn fill(vec: &mut ReusedVec<u64>, length: usize) {
        vec.extend(std::iter::repeat_n(7, length));
        vec.recycle();
        assert!(vec.is_empty());
    }

    #[test]
    fn memory_of_a_burst_is_freed_and_regular_use_keeps_it() {
        let mut vec = ReusedVec::default();
        fill(&mut vec, 100 * KEPT);
        let capacity = vec.capacity();
        (1..2 * MEMORY_CHECKED_EVERY).for_each(|number| {
            assert_eq!(vec.capacity(), capacity, "filling {number}");
            fill(&mut vec, if number == MEMORY_CHECKED_EVERY { 40 * KEPT } else { 1 });
        });
        assert_eq!(vec.capacity(), capacity, "40 of 100 were needed");
        (0..MEMORY_CHECKED_EVERY).for_each(|_| fill(&mut vec, 3 * KEPT));
        assert_eq!(vec.capacity(), 6 * KEPT);
        (0..2 * MEMORY_CHECKED_EVERY).for_each(|_| fill(&mut vec, 1));
        assert_eq!(vec.capacity(), KEPT);
        (0..MEMORY_CHECKED_EVERY).for_each(|_| fill(&mut vec, 1));
        assert_eq!(vec.capacity(), KEPT, "it is as much as one batch has");
    }
}
