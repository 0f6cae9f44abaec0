//! What was refused, shed, skipped or lost: counted by the door it came through and by reason.

use crate::intake::Door;
use crate::loss::Loss;

/// The counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    counts: [[u64; Loss::ALL.len()]; Door::ALL.len()],
}

impl Ledger {
    /// Counts losses.
    pub fn add(&mut self, door: Door, loss: Loss, count: u64) {
        self.counts[door as usize][loss as usize] += count;
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self, door: Door, loss: Loss) -> u64 {
        self.counts[door as usize][loss as usize]
    }

    /// How many there were in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }
}
