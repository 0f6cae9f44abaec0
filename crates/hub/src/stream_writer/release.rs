//! Batches that the disk has written, and how far their records and acknowledgements have been handed out.

use stilling_journal::Batch;
use stilling_ring::SharedBlock;

use super::pending_acks::PendingAcks;

/// A batch that the journal has answered for, whose records and acknowledgements go out.
#[derive(Debug)]
pub(crate) struct Release {
    /// None if it has gone with the journal.
    pub(crate) batch: Option<Batch>,
    /// Its records, once deliveries refer to them.
    pub(crate) block: Option<SharedBlock>,
    pub(crate) acks: PendingAcks,
    /// The sequence of the record that goes out next.
    pub(crate) next_record: u64,
    /// The place of the acknowledgement that is given next.
    pub(crate) next_ack: usize,
    /// The place of the acknowledgement of the next record that has one.
    pub(crate) next_sender: usize,
    /// Nothing beyond it was written.
    pub(crate) watermark: u64,
}

impl Release {
    pub(super) fn new(batch: Option<Batch>, acks: PendingAcks, watermark: u64) -> Release {
        let next_record = batch.as_ref().map_or(0, Batch::first);
        Release { batch, block: None, acks, next_record, next_ack: 0, next_sender: 0, watermark }
    }

    /// The sequence of the last record that was written; before that of the first if none was.
    pub(crate) fn last(&self) -> u64 {
        self.batch.as_ref().map_or(0, |batch| batch.next() - 1).min(self.watermark)
    }
}
