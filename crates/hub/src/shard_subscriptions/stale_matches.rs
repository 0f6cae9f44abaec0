//! Stale subscriptions that messages would have matched.

use crate::limits::{STALE_MATCHES_PER_STEP, STALE_REGISTRATIONS_PER_TURN};

/// Those of the current message, which are removed so that the next message does not match them. Each
/// [`STALE_MATCHES_PER_STEP`] matches allow one more step, which bounds their time per subscription, regardless of the
/// number of messages.
#[derive(Debug, Default)]
pub(super) struct StaleMatches {
    slots: Vec<u32>,
    /// Removals that remain in this expansion.
    steps: usize,
    count: u64,
}

impl StaleMatches {
    pub(super) fn begin_expansion(&mut self) {
        self.steps = STALE_REGISTRATIONS_PER_TURN;
    }

    /// Notes a match. It is to be removed if a step remains.
    pub(super) fn add(&mut self, slot: u32) {
        self.count += 1;
        self.steps += usize::from(self.count.is_multiple_of(STALE_MATCHES_PER_STEP));
        if self.slots.len() < self.steps {
            self.slots.push(slot);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the slot of the next one to remove.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let slot = self.slots.pop()?;
        self.steps = self.steps.saturating_sub(1);
        Some(slot)
    }

    /// Matches so far.
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}
