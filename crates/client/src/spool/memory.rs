//! The spool in memory: a queue.

use std::collections::VecDeque;
use std::time::Instant;

use super::{Spool, take_out};
use crate::entry::Entry;
use crate::outcome::Reason;

/// Messages in memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    entries: VecDeque<Entry>,
    pushed: u64,
}

impl Spool for Memory {
    fn push(&mut self, mut entry: Entry) {
        self.pushed += 1;
        entry.id = self.pushed;
        self.entries.push_back(entry);
    }

    fn commit(&mut self, _unix_ns: u64) -> Vec<(Entry, Reason)> {
        Vec::new()
    }

    fn pop(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }

    fn next_id(&self) -> u64 {
        self.entries.front().map_or(u64::MAX, |entry| entry.id)
    }

    fn review(&mut self, keep: &mut dyn FnMut(&mut Entry) -> bool) -> Vec<Entry> {
        take_out(&mut self.entries, keep)
    }

    fn settled_below(&mut self, _id: u64, _now: Instant) {}

    fn note_at(&self) -> Option<Instant> {
        None
    }

    fn note(&mut self, _unix_ns: u64) {}

    fn lost(&mut self) -> Vec<u64> {
        Vec::new()
    }

    fn close(&mut self, _unix_ns: u64) {}
}
