//! Which message ids a stream has seen lately, and under which sequences.
//!
//! The window is counted in records: an id is known as long as its record is among the last so many of its stream. So it is
//! the same after a restart, when it is built again by reading those records.
//!
//! An id is kept as a keyed hash of 128 bits, never as it is: a fixed 40 bytes or so however long ids are.

use std::collections::{HashMap, VecDeque};

use crate::key::HashKey;

/// The ids of a window.
#[derive(Debug)]
pub(crate) struct Recent {
    key: HashKey,
    window: u64,
    sequences: HashMap<u128, u64, HashKey>,
    /// In the order of their sequences.
    order: VecDeque<(u64, u128)>,
}

impl Recent {
    /// A window of so many records; none at all with 0.
    pub(crate) fn new(key: HashKey, window: u64) -> Recent {
        Recent { key, window, sequences: HashMap::with_hasher(key), order: VecDeque::new() }
    }

    /// The number that stands for an id. An empty one is none, and stands for nothing.
    pub(crate) fn name(&self, id: &[u8]) -> Option<u128> {
        (!id.is_empty()).then(|| self.key.wide(id))
    }

    /// The sequence of the record with this id, seen from the record `next` that would be the next one.
    pub(crate) fn find(&mut self, name: u128, next: u64) -> Option<u64> {
        self.forget_before(next.saturating_sub(self.window));
        self.sequences.get(&name).copied()
    }

    /// Notes that `sequence` has this id.
    pub(crate) fn note(&mut self, name: u128, sequence: u64) {
        if self.window == 0 {
            return;
        }
        self.forget_before((sequence + 1).saturating_sub(self.window));
        self.sequences.insert(name, sequence);
        self.order.push_back((sequence, name));
    }

    /// The sequence from which on records have to be read to know the same after a restart; `next` if there are none.
    pub(crate) fn first(&self, next: u64) -> u64 {
        self.order.front().map_or(next, |(sequence, _)| *sequence)
    }

    fn forget_before(&mut self, first: u64) {
        while let Some(&(sequence, name)) = self.order.front()
            && sequence < first
        {
            self.order.pop_front();
            // The same id may have come again meanwhile.
            if self.sequences.get(&name) == Some(&sequence) {
                self.sequences.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_known_for_as_many_records_as_the_window_has() {
        let mut recent = Recent::new(HashKey(1, 2), 3);
        let name = recent.key.wide(b"a");
        assert_eq!(recent.find(name, 10), None);
        recent.note(name, 10);
        assert_eq!(recent.find(name, 11), Some(10));
        assert_eq!(
            recent.find(name, 13),
            Some(10),
            "the third record behind it would be the last that knows it"
        );
        assert_eq!(recent.find(name, 14), None);
        assert!(recent.order.is_empty());
        recent.note(name, 14);
        recent.note(recent.key.wide(b"b"), 15);
        assert_eq!(recent.find(name, 17), Some(14));
        recent.note(recent.key.wide(b"c"), 17);
        assert_eq!((recent.order.len(), recent.sequences.len()), (2, 2), "noting forgets as well");
    }

    #[test]
    fn without_a_window_nothing_is_known() {
        let mut recent = Recent::new(HashKey(1, 2), 0);
        let name = recent.key.wide(b"a");
        recent.note(name, 1);
        assert_eq!(recent.find(name, 2), None);
    }
}
