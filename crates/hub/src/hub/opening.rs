//! Streams on disk whose directories are opened after the hub has begun.

use std::sync::Arc;

use stilling_journal::{BatchView, Extent, Gap};

use super::{Hub, Outlets, UnixNanos};
use crate::key::HashKey;
use crate::storage::Storage;
use crate::stream::{Stream, StreamConfig};

/// Where a stream goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// The first sequence that is kept; `next` if there is none.
    pub first: u64,
    /// The sequence that the next record gets.
    pub next: u64,
    /// When the stream was created, Unix time in nanoseconds; 0 if it begins with the hub.
    pub created_ns: UnixNanos,
}

impl Default for Resumed {
    fn default() -> Self {
        Resumed { first: 1, next: 1, created_ns: 0 }
    }
}

/// A stream as its directory was found: where it goes on, and the message ids in its de-duplication window. It is made beside
/// the hub, because reading takes time.
#[derive(Debug)]
pub struct Recovered(Box<Stream>);

impl Recovered {
    /// A stream that goes on at this place and has no message ids yet.
    #[must_use]
    pub fn new(config: &StreamConfig, key: HashKey, resumed: Resumed) -> Recovered {
        Recovered(Box::new(Stream::new(config.clone(), key, resumed)))
    }

    /// Notes where the journal counts what the stream has on disk.
    pub fn set_extent(&mut self, extent: Arc<Extent>) {
        self.0.extent = Some(extent);
    }

    /// As [`Hub::remember`].
    pub fn remember(&mut self, batch: BatchView<'_>) {
        self.0.remember(batch);
    }

    /// As [`Hub::report_findings`].
    pub fn report_findings(&mut self, findings: &str) {
        self.0.health.found_at_start(findings);
    }

    /// As [`Hub::report_unreadable`].
    pub fn report_unreadable(&mut self, gap: Gap) {
        self.0.health.passed_over(gap);
    }
}

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Notes what was found when a stream was opened and is not as it was written.
    pub fn report_findings(&mut self, stream: usize, findings: &str) {
        self.streams[stream].health.found_at_start(findings);
    }

    /// Notes that records kept before the start cannot be read.
    pub fn report_unreadable(&mut self, stream: usize, gap: Gap) {
        self.streams[stream].health.passed_over(gap);
    }

    /// Notes a batch that was kept before the start, one after the other: its message ids, for the de-duplication window,
    /// and when it came.
    pub fn remember(&mut self, stream: usize, batch: BatchView<'_>) {
        self.streams[stream].remember(batch);
    }

    /// Has a stream on disk refuse publications with this reason until it is [opened](Hub::open).
    pub fn keep_closed(&mut self, stream: usize, reason: Arc<str>) {
        self.streams[stream].health.close(&reason);
        self.streams[stream].closed = Some(reason);
    }

    /// Has a stream go on where its directory ends, and its consumers read what was found there. Nothing may have been stored in
    /// it by this hub; what was stored all the same keeps its numbers.
    pub fn open(&mut self, number: usize, recovered: Recovered) {
        let stream = &mut self.streams[number];
        let Stream { dedup, next, first, visible, newest_ns, created_ns, health, extent, .. } = *recovered.0;
        stream.extent = extent;
        stream.closed = None;
        stream.health.open(health);
        if stream.next == 1 && stream.open.is_none() && stream.under_way.is_empty() {
            (stream.dedup, stream.next, stream.first) = (dedup, next, first);
            (stream.visible, stream.newest_ns, stream.created_ns) = (visible, newest_ns, created_ns);
        }
        // Consumers that were made before have not been offered what was found.
        let next = stream.next;
        self.read_again_before(number, next);
    }
}
