//! A stream as its directory was found.

use std::sync::Arc;

use stilling_journal::{BatchView, Extent, Gap};

use crate::dedup::DedupWindow;
use crate::health::HealthLog;
use crate::key::HashKey;
use crate::stream::{Resumed, StreamConfig};
use crate::time::UnixNanos;

/// A stream as its directory was found: where it goes on, and the message ids in its de-duplication window. It is made beside
/// the hub, because reading takes time.
#[derive(Debug)]
pub struct Recovered(Box<RecoveredStream>);

#[derive(Debug)]
pub(crate) struct RecoveredStream {
    pub(crate) resumed: Resumed,
    pub(crate) dedup: DedupWindow,
    /// When the last record came, if that is known.
    pub(crate) newest_ns: Option<UnixNanos>,
    pub(crate) health: HealthLog,
    /// Where the journal counts what the stream has on disk.
    pub(crate) extent: Option<Arc<Extent>>,
}

impl Recovered {
    /// A stream that goes on at this place and has no message ids yet.
    #[must_use]
    pub fn new(config: &StreamConfig, key: HashKey, resumed: Resumed) -> Recovered {
        Recovered(Box::new(RecoveredStream {
            resumed,
            dedup: DedupWindow::new(key, config.dedup_time_ns()),
            newest_ns: None,
            health: HealthLog::default(),
            extent: None,
        }))
    }

    /// Notes where the journal counts what the stream has on disk.
    pub fn set_extent(&mut self, extent: Arc<Extent>) {
        self.0.extent = Some(extent);
    }

    /// As [`Hub::remember`](crate::Hub::remember).
    pub fn remember(&mut self, batch: BatchView<'_>) {
        self.0.newest_ns = Some(UnixNanos::from_nanos(batch.time_ns));
        self.0.dedup.remember(batch);
    }

    /// As [`Hub::report_findings`](crate::Hub::report_findings).
    pub fn report_findings(&mut self, findings: &str) {
        self.0.health.found_at_start(findings);
    }

    /// As [`Hub::report_unreadable`](crate::Hub::report_unreadable).
    pub fn report_unreadable(&mut self, gap: Gap) {
        self.0.health.passed_over(gap);
    }

    /// What was found.
    pub(crate) fn into_stream(self) -> RecoveredStream {
        *self.0
    }
}
