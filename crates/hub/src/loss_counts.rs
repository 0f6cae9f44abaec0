//! What was refused, shed, skipped or lost: counted by the door it came through and by reason.

use crate::loss::Loss;
use crate::publication_batch::Ingress;

/// The counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LossCounts {
    counts: [[u64; Loss::ALL.len()]; Ingress::ALL.len()],
}

impl LossCounts {
    /// Counts losses.
    pub fn add(&mut self, ingress: Ingress, loss: Loss, count: u64) {
        self.counts[ingress as usize][loss as usize] += count;
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self, ingress: Ingress, loss: Loss) -> u64 {
        self.counts[ingress as usize][loss as usize]
    }

    /// How many there were in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }
}
