//! Streams on disk whose directories are opened after the hub has begun.

use std::sync::Arc;

use stilling_journal::{BatchView, Gap};

use super::{Hub, Outlets};
use crate::recovered_stream::RecoveredStream;
use crate::storage::Storage;

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Notes what was found when a stream was opened and is not as it was written.
    pub fn report_findings(&mut self, stream: usize, findings: &str) {
        self.streams[stream].health.found_at_start(findings);
    }

    /// Notes that records kept before the start cannot be read.
    pub fn report_unreadable(&mut self, stream: usize, gap: Gap) {
        self.streams[stream].health.skipped(gap);
    }

    /// Notes a batch that was kept before the start, one after the other: its message ids, for the de-duplication window,
    /// and when it came.
    pub fn restore_ids(&mut self, stream: usize, batch: BatchView<'_>) {
        self.streams[stream].restore_ids(batch);
    }

    /// Has a stream on disk refuse publications with this reason until it is [opened](Hub::open).
    pub fn keep_closed(&mut self, stream: usize, reason: Arc<str>) {
        self.streams[stream].keep_closed(reason);
    }

    /// Has a stream go on where its directory ends, and its consumers read what was found there. Nothing may have been stored in
    /// it by this hub; what was stored all the same keeps its numbers.
    pub fn open(&mut self, number: usize, recovered: RecoveredStream) {
        self.streams[number].open(recovered.into_stream());
        // Consumers that were made before have not been offered what was found.
        let next = self.streams[number].next;
        self.delivery().reread_before(number, next);
    }
}
