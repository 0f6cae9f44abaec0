//! Streams recovered from their directories.

use std::sync::Arc;

use stilling_journal::{BatchView, Gap, LogStats};

use crate::dedup::DedupWindow;
use crate::gate::StreamGate;
use crate::hash_key::HashKey;
use crate::health_log::HealthLog;
use crate::stream::{ResumePoint, StreamConfig};
use crate::time::UnixNanos;

/// A stream as found in its directory: its resume point, and the message ids in its de-duplication window. It is built
/// outside of the hub because reading takes time.
#[derive(Debug)]
pub struct RecoveredStream(Box<RecoveredParts>);

#[derive(Debug)]
pub(crate) struct RecoveredParts {
    pub(crate) resumed: ResumePoint,
    pub(crate) dedup: DedupWindow,
    pub(crate) newest_ns: Option<UnixNanos>,
    pub(crate) health: HealthLog,
    pub(crate) log_stats: Option<Arc<LogStats>>,
    /// Its gate after all records; `None`: in its initial state, or there is none.
    pub(crate) gate: Option<Box<StreamGate>>,
}

impl RecoveredStream {
    /// Creates a stream that continues at this point, without message ids.
    #[must_use]
    pub fn new(config: &StreamConfig, key: HashKey, resumed: ResumePoint) -> RecoveredStream {
        RecoveredStream(Box::new(RecoveredParts {
            resumed,
            dedup: DedupWindow::new(key, config.dedup_time_ns()),
            newest_ns: None,
            health: HealthLog::default(),
            log_stats: None,
            gate: None,
        }))
    }

    /// Sets the gate with the state that all recovered records have produced.
    pub fn set_gate(&mut self, gate: StreamGate) {
        self.0.gate = Some(Box::new(gate));
    }

    /// Sets the journal's counts of the stream's records on disk.
    pub fn set_log_stats(&mut self, log_stats: Arc<LogStats>) {
        self.0.log_stats = Some(log_stats);
    }

    /// As [`Hub::restore_ids`](crate::Hub::restore_ids).
    pub fn restore_ids(&mut self, batch: BatchView<'_>) {
        self.0.newest_ns = Some(UnixNanos::from_nanos(batch.time_ns));
        self.0.dedup.restore_ids(batch);
    }

    /// As [`Hub::report_findings`](crate::Hub::report_findings).
    pub fn report_findings(&mut self, findings: &str) {
        self.0.health.report_findings(findings);
    }

    /// As [`Hub::report_unreadable`](crate::Hub::report_unreadable).
    pub fn report_unreadable(&mut self, gap: Gap) {
        self.0.health.skipped(gap);
    }

    pub(crate) fn into_stream(self) -> RecoveredParts {
        *self.0
    }
}
