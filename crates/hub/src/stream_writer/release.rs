//! Written batches, and the progress of sending their records and acknowledgements.

use stilling_journal::Batch;
use stilling_ring::SharedBlock;

use super::pending_acks::PendingAcks;

/// A batch answered by the journal, with the progress of its release.
#[derive(Debug)]
pub(crate) struct Release {
    /// `None` if the batch was lost with the journal.
    pub(crate) batch: Option<Batch>,
    /// Shared reference to its records, once deliveries need it.
    pub(crate) block: Option<SharedBlock>,
    pub(crate) acks: PendingAcks,
    pub(crate) next_record: u64,
    pub(crate) next_ack: usize,
    /// Index of the next acknowledgement of a record, which identifies its sender.
    pub(crate) next_sender: usize,
    pub(crate) watermark: u64,
}

impl Release {
    pub(super) fn new(batch: Option<Batch>, acks: PendingAcks, watermark: u64) -> Release {
        let next_record = batch.as_ref().map_or(0, Batch::first);
        Release { batch, block: None, acks, next_record, next_ack: 0, next_sender: 0, watermark }
    }

    /// Returns the sequence of the batch's last written record; if there is none, the one before its first.
    pub(crate) fn last(&self) -> u64 {
        self.batch.as_ref().map_or(0, |batch| batch.next() - 1).min(self.watermark)
    }
}
