//! The queue of messages waiting for the server: in memory, or on disk to outlive the process.
//!
//! ```text
//!   submitted ─► push ─► commit ─► │ spool │ ─► pop ─► window ─► delivered or dropped ─► release_below
//! ```
//!
//! A spool on disk retains popped messages until `release_below` covers them. The publisher enforces the size limit:
//! callers wait for room there, and it knows the cost of every message.

pub(crate) mod disk;
pub(crate) mod memory;

use std::time::Instant;

use crate::outcome::DropReason;
use crate::spool_entry::SpoolEntry;

pub(crate) trait Spool: Send {
    /// Appends a message. It can be popped after the next commit.
    fn push(&mut self, entry: SpoolEntry);

    /// Stores pushed messages safely. Returns those that could not be stored, with the reason.
    fn commit(&mut self, unix_ns: u64) -> Vec<(SpoolEntry, DropReason)>;

    fn pop(&mut self) -> Option<SpoolEntry>;

    /// Position of the next message to pop; `u64::MAX` if there is none.
    fn next_id(&self) -> u64;

    /// Removes and returns the messages in memory for which `keep` returns false. Visits the oldest first.
    fn retain(&mut self, keep: &mut dyn FnMut(&mut SpoolEntry) -> bool) -> Vec<SpoolEntry>;

    /// Marks all positions below `id` as completed.
    fn release_below(&mut self, id: u64, now: Instant);

    fn checkpoint_at(&self) -> Option<Instant>;

    /// Records the completed messages, so that the next publisher does not send them again.
    fn checkpoint(&mut self, unix_ns: u64);

    /// Costs of the messages that the spool has lost since the last call.
    fn lost(&mut self) -> Vec<u64>;

    fn close(&mut self, unix_ns: u64);
}

fn extract_rejected(
    entries: &mut std::collections::VecDeque<SpoolEntry>,
    keep: &mut dyn FnMut(&mut SpoolEntry) -> bool,
) -> Vec<SpoolEntry> {
    let mut out = Vec::new();
    for _ in 0..entries.len() {
        if let Some(mut entry) = entries.pop_front() {
            if keep(&mut entry) {
                entries.push_back(entry);
            } else {
                out.push(entry);
            }
        }
    }
    out
}
