//! The segments of an open stream, shared by its writer and its readers.
//!
//! The writer advances a segment's end and then its last sequence with release stores; a reader loads them in reverse
//! order, so it never reads bytes that are not durable. The list itself changes when a segment is created or removed,
//! under a lock that is not taken per record.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::{BLOCK_SIZE, INDEX_INTERVAL_SIZE, SEGMENT_SIZE_MAX};
use crate::scan::ExpectedSegment;

/// Entries of the offset index per segment. More: a search scans the remainder of the segment.
const INDEX_ENTRIES_MAX: usize = (SEGMENT_SIZE_MAX / INDEX_INTERVAL_SIZE) as usize;

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) first: u64,
    pub(crate) expected: ExpectedSegment,
    /// The previous segment, if the header could be read.
    pub(crate) previous: Option<PreviousSegment>,
    pub(crate) created_ns: u64,
    size: AtomicU64,
    last: AtomicU64,
    end: AtomicU64,
    newest_ns: AtomicU64,
    /// Retention is removing its file, or has removed it.
    is_being_removed: AtomicBool,
    /// The offset index: sequences and the offsets of their batches, in order.
    index_entries: Mutex<Vec<(u64, u64)>>,
}

/// The description of the previous segment in a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreviousSegment {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// End of its valid content in bytes; 0 if unknown.
    pub(crate) end: u64,
}

impl Segment {
    /// A segment with valid content up to the offset `end` and the sequence `last`.
    pub(crate) fn new(name: String, expected: ExpectedSegment, size: u64, last: u64, end: u64) -> Segment {
        // A segment has at most a gibibyte, unless a batch is longer.
        let index_entries = usize::try_from(size / INDEX_INTERVAL_SIZE).unwrap_or(0).min(INDEX_ENTRIES_MAX);
        Segment {
            index_entries: Mutex::new(Vec::with_capacity(index_entries)),
            name,
            first: expected.first,
            expected,
            previous: None,
            created_ns: 0,
            size: AtomicU64::new(size),
            last: AtomicU64::new(last),
            end: AtomicU64::new(end),
            newest_ns: AtomicU64::new(0),
            is_being_removed: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_being_removed(&self) -> bool {
        self.is_being_removed.load(Ordering::Acquire)
    }

    /// Set before the file is removed, and reset if the removal fails.
    pub(crate) fn set_being_removed(&self, is_being_removed: bool) {
        self.is_being_removed.store(is_being_removed, Ordering::Release);
    }

    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// The end of the readable batches. Loaded after [`last`](Segment::last), it covers that sequence.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    pub(crate) fn written(&self) -> u64 {
        self.end().min(self.size())
    }

    pub(crate) fn newest_ns(&self) -> u64 {
        self.newest_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn records(&self) -> u64 {
        (self.last() + 1).saturating_sub(self.first)
    }

    /// Adds the batch with `sequence` to the offset index, if the last entry is far enough before it.
    pub(crate) fn add_to_index(&self, sequence: u64, offset: u64) {
        let mut index_entries = self.index_entries();
        let (sequence_before, before) = index_entries.last().copied().unwrap_or((0, 0));
        let is_behind = sequence > sequence_before && offset >= before + INDEX_INTERVAL_SIZE;
        if is_behind && index_entries.len() < INDEX_ENTRIES_MAX {
            index_entries.push((sequence, offset));
        }
    }

    pub(crate) fn offset_before(&self, sequence: u64) -> u64 {
        let index_entries = self.index_entries();
        let behind = index_entries.partition_point(|(first, _)| *first <= sequence);
        behind
            .checked_sub(1)
            .and_then(|at| index_entries.get(at))
            .map_or(BLOCK_SIZE as u64, |(_, offset)| *offset)
    }

    fn index_entries(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.index_entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn grow(&self, end: u64, last: u64, newest_ns: u64) {
        self.newest_ns.fetch_max(newest_ns, Ordering::Relaxed);
        self.end.store(end, Ordering::Release);
        self.last.store(last, Ordering::Release);
    }

    pub(crate) fn cut(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }
}

/// Size and time range of a stream on disk, readable from other threads. The journal's thread updates it.
#[derive(Debug, Default)]
pub struct LogStats {
    bytes: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
}

impl LogStats {
    /// Bytes written, without preallocated space.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Creation time of the oldest segment, Unix time in nanoseconds; `None` if there is none or it is unknown.
    pub fn first_ns(&self) -> Option<u64> {
        Some(self.first_ns.load(Ordering::Relaxed)).filter(|time_ns| *time_ns > 0)
    }

    /// Time of the newest record, Unix time in nanoseconds; `None` if there is none or it is unknown.
    pub fn last_ns(&self) -> Option<u64> {
        Some(self.last_ns.load(Ordering::Relaxed)).filter(|time_ns| *time_ns > 0)
    }
}

#[derive(Debug)]
pub(crate) struct SharedLog {
    log_stats: Arc<LogStats>,
    durable: AtomicU64,
    /// The last sequence that a torn write may have used, as found when the stream was opened. Without such a write at
    /// most the last durable sequence of that time.
    torn_until: u64,
    list: Mutex<Vec<Arc<Segment>>>,
}

impl SharedLog {
    pub(crate) fn new(segments: Vec<Arc<Segment>>, durable: u64, torn_until: u64) -> SharedLog {
        let list = Mutex::new(segments);
        let shared =
            SharedLog { log_stats: Arc::default(), durable: AtomicU64::new(durable), torn_until, list };
        shared.update_stats();
        shared
    }

    pub(crate) fn log_stats(&self) -> &Arc<LogStats> {
        &self.log_stats
    }

    pub(crate) fn update_stats(&self) {
        let list = self.list();
        let first_ns = list.first().map_or(0, |segment| segment.created_ns);
        let last_ns = list.last().map_or(0, |segment| segment.newest_ns());
        self.log_stats.bytes.store(list.iter().map(|segment| segment.written()).sum(), Ordering::Relaxed);
        self.log_stats.first_ns.store(first_ns, Ordering::Relaxed);
        self.log_stats.last_ns.store(last_ns, Ordering::Relaxed);
    }

    pub(crate) fn add_written(&self, bytes: u64, newest_ns: u64) {
        self.log_stats.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.log_stats.last_ns.store(newest_ns, Ordering::Relaxed);
    }

    /// The end of the torn sequences after the durable ones, until the header of a following segment records them.
    pub(crate) fn torn_until(&self) -> u64 {
        self.torn_until
    }

    /// The last durable, hence readable, sequence.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn set_durable(&self, durable: u64) {
        self.durable.store(durable, Ordering::Release);
    }

    pub(crate) fn list(&self) -> MutexGuard<'_, Vec<Arc<Segment>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
