//! Counts of records that readers of a stream missed.

use stilling_journal::{Gap, GapCause};

use crate::counters::StreamCounters;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SkippedRecords {
    removed: u64,
    damaged: u64,
    slow: u64,
}

impl SkippedRecords {
    /// Counts records that retention had removed.
    pub(crate) fn count_removed(&mut self, count: u64) {
        self.removed += count;
    }

    /// Counts records that a subscription skipped because its client was too slow.
    pub(crate) fn count_slow(&mut self, count: u64) {
        self.slow += count;
    }

    pub(super) fn count_gap(&mut self, gap: Gap) {
        match gap.cause {
            GapCause::Removed => self.removed += gap.count(),
            GapCause::Damaged => self.damaged += gap.count(),
            // Not counted: the crash cut off a write that had not been acknowledged.
            GapCause::Torn => {}
        }
    }

    pub(super) fn publish_metrics(self, to: &StreamCounters) {
        to.skipped_removed.set(self.removed);
        to.skipped_damaged.set(self.damaged);
        to.skipped_slow.set(self.slow);
    }
}
