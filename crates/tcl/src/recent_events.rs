//! Events of one thread for all others, each of which takes them when it runs.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The last `max` events. A thread that takes none meanwhile misses older ones.
pub(crate) struct RecentEvents<T> {
    /// Oldest first.
    events: Mutex<VecDeque<T>>,
    /// Number of all events so far.
    count: AtomicU64,
    max: usize,
}

impl<T: Clone> RecentEvents<T> {
    pub(crate) const fn new(max: usize) -> Self {
        RecentEvents { events: Mutex::new(VecDeque::new()), count: AtomicU64::new(0), max }
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: T) {
        let mut events = self.events();
        if events.len() == self.max {
            events.pop_front();
        }
        events.push_back(event);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Number of all events so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The events after the first `taken` ones, of those that are kept; `taken` is then the number of all.
    pub(crate) fn take_after(&self, taken: &Cell<u64>) -> Vec<T> {
        if self.count() == taken.get() {
            return Vec::new();
        }
        let events = self.events();
        let total = self.count();
        let new = total - taken.replace(total);
        let skipped = events.len().saturating_sub(usize::try_from(new).unwrap_or(usize::MAX));
        events.iter().skip(skipped).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reader_takes_every_event_once_unless_it_is_late() {
        let recent = RecentEvents::new(3);
        let (prompt, late) = (Cell::new(0), Cell::new(0));
        for event in 1..=5 {
            recent.push(event);
            assert_eq!(recent.take_after(&prompt), [event]);
            assert!(recent.take_after(&prompt).is_empty());
        }
        assert_eq!(recent.take_after(&late), [3, 4, 5]);
        let new = Cell::new(recent.count());
        recent.push(6);
        assert_eq!(recent.take_after(&new), [6]);
    }
}
