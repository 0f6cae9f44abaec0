//! Opening of disk streams' directories after the hub has started.

use std::sync::Arc;

use stilling_journal::{BatchView, Gap};

use super::{Hub, ShardSenders};
use crate::gate::StreamGate;
use crate::recovered_stream::RecoveredStream;
use crate::storage::Storage;

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    /// Notes damage found when a stream was opened.
    pub fn report_findings(&mut self, stream: usize, findings: &str) {
        self.streams[stream].health.report_findings(findings);
    }

    /// Notes that records from before the start cannot be read.
    pub fn report_unreadable(&mut self, stream: usize, gap: Gap) {
        self.streams[stream].health.skipped(gap);
    }

    /// Restores a batch from before the start, in order: its message ids for the de-duplication window, and its time.
    pub fn restore_ids(&mut self, stream: usize, batch: BatchView<'_>) {
        self.streams[stream].restore_ids(batch);
    }

    /// Sets the gate of a stream, with the state that its records from before the start have produced.
    pub fn set_gate(&mut self, stream: usize, gate: StreamGate) {
        self.streams[stream].set_gate(Some(Box::new(gate)));
    }

    /// Makes a disk stream refuse publications with this reason until it is [opened](Hub::open).
    pub fn mark_closed(&mut self, stream: usize, reason: Arc<str>) {
        self.streams[stream].mark_closed(reason);
    }

    /// Continues a stream at the end of its directory, and makes its consumers read the recovered records. The hub must
    /// not have stored records in the stream before; if it has, these keep their sequences and the resume point is
    /// ignored.
    pub fn open(&mut self, number: usize, recovered: RecoveredStream) {
        self.streams[number].open(recovered.into_stream());
        // Existing consumers were not offered the recovered records.
        let next = self.streams[number].next;
        self.delivery().reread_before(number, next);
        self.catch_ups.retry_all();
    }
}
