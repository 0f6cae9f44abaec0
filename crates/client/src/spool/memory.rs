//! The spool in memory: a queue.

use std::collections::VecDeque;
use std::time::Instant;

use super::{Spool, extract_rejected};
use crate::outcome::DropReason;
use crate::spool_entry::SpoolEntry;

#[derive(Debug, Default)]
pub(crate) struct MemorySpool {
    entries: VecDeque<SpoolEntry>,
    pushed: u64,
}

impl Spool for MemorySpool {
    fn push(&mut self, mut entry: SpoolEntry) {
        self.pushed += 1;
        entry.id = self.pushed;
        self.entries.push_back(entry);
    }

    fn commit(&mut self, _unix_ns: u64) -> Vec<(SpoolEntry, DropReason)> {
        Vec::new()
    }

    fn pop(&mut self) -> Option<SpoolEntry> {
        self.entries.pop_front()
    }

    fn next_id(&self) -> u64 {
        self.entries.front().map_or(u64::MAX, |entry| entry.id)
    }

    fn retain(&mut self, keep: &mut dyn FnMut(&mut SpoolEntry) -> bool) -> Vec<SpoolEntry> {
        extract_rejected(&mut self.entries, keep)
    }

    fn release_below(&mut self, _id: u64, _now: Instant) {}

    fn checkpoint_at(&self) -> Option<Instant> {
        None
    }

    fn checkpoint(&mut self, _unix_ns: u64) {}

    fn lost(&mut self) -> Vec<u64> {
        Vec::new()
    }

    fn close(&mut self, _unix_ns: u64) {}
}
