//! Counts of refused, shed, skipped and lost messages, by ingress and reason.

use crate::loss::Loss;
use crate::publication_batch::Ingress;

/// Losses by ingress and reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LossCounts {
    counts: [[u64; Loss::ALL.len()]; Ingress::ALL.len()],
}

impl LossCounts {
    /// Adds `count` losses.
    pub fn add(&mut self, ingress: Ingress, loss: Loss, count: u64) {
        self.counts[ingress as usize][loss as usize] += count;
    }

    /// Returns the losses of one ingress and reason.
    #[must_use]
    pub fn count(&self, ingress: Ingress, loss: Loss) -> u64 {
        self.counts[ingress as usize][loss as usize]
    }

    /// Returns the sum of all losses.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }
}
