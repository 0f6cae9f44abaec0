//! Where messages wait for the server, in order: in memory, or on disk so that they outlive the process.
//!
//! ```text
//!   submitted ─► push ─► commit ─► │ spool │ ─► pop ─► window ─► delivered or dropped ─► settled_below
//! ```
//!
//! What was popped is still the spool's to keep until it is told that everything up to a place is done with. The bound is not
//! kept here but where callers wait, in the publisher: it knows what every message counts.

pub(crate) mod disk;
pub(crate) mod memory;

use std::time::Instant;

use crate::outcome::DropReason;
use crate::spool_entry::SpoolEntry;

/// Messages in order.
pub(crate) trait Spool: Send {
    /// Puts a message behind the others. It can be popped after the next commit.
    fn push(&mut self, entry: SpoolEntry);

    /// Makes what was pushed safe. What could not be is returned, with the reason.
    fn commit(&mut self, unix_ns: u64) -> Vec<(SpoolEntry, DropReason)>;

    /// The next message.
    fn pop(&mut self) -> Option<SpoolEntry>;

    /// The place of the next message to be popped; beyond all places if there is none.
    fn next_id(&self) -> u64;

    /// Looks at those that wait in memory, the oldest first; those for which `keep` says no are taken out and returned.
    fn review(&mut self, keep: &mut dyn FnMut(&mut SpoolEntry) -> bool) -> Vec<SpoolEntry>;

    /// Everything before this place is done with.
    fn release_below(&mut self, id: u64, now: Instant);

    /// When [`Spool::checkpoint`] wants to be called.
    fn checkpoint_at(&self) -> Option<Instant>;

    /// Remembers what is done with, so that the next publisher does not send it again.
    fn checkpoint(&mut self, unix_ns: u64);

    /// What each of those counted that the spool itself has lost since the last call.
    fn lost(&mut self) -> Vec<u64>;

    /// Ends it in good order.
    fn close(&mut self, unix_ns: u64);
}

/// Takes out of a queue what is not to be kept.
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
