//! The segments of an open stream, as its writer and its readers share them.
//!
//! The writer moves a segment's end and then its last sequence with release stores; a reader loads them the other way
//! round, so it never looks at bytes that are not durable. The list itself changes when a segment is made or
//! removed, under a lock that no record has to take.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::{BLOCK_SIZE, MARK_DISTANCE, SEGMENT_SIZE_MAX};
use crate::scan::ExpectedSegment;

/// Places that are remembered of one segment. More: the rest of it is read to find something there.
const MARKS_MAX: usize = (SEGMENT_SIZE_MAX / MARK_DISTANCE) as usize;

/// One segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) first: u64,
    pub(crate) expected: ExpectedSegment,
    /// What came before it, if its header could be read.
    pub(crate) previous: Option<PreviousSegment>,
    pub(crate) created_ns: u64,
    size: AtomicU64,
    last: AtomicU64,
    end: AtomicU64,
    newest_ns: AtomicU64,
    /// Retention removes its file, or has removed it.
    is_leaving: AtomicBool,
    /// Sequences and where their batches begin, in order.
    marks: Mutex<Vec<(u64, u64)>>,
}

/// What a segment says about the one before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreviousSegment {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Where what counts of it ends, in bytes; 0 if that is not known.
    pub(crate) end: u64,
}

impl Segment {
    /// A segment whose content up to `end` counts, with the last sequence `last`.
    pub(crate) fn new(name: String, expected: ExpectedSegment, size: u64, last: u64, end: u64) -> Segment {
        // A segment is at most a gigabyte long, unless a batch is longer.
        let marks = usize::try_from(size / MARK_DISTANCE).unwrap_or(0).min(MARKS_MAX);
        Segment {
            marks: Mutex::new(Vec::with_capacity(marks)),
            name,
            first: expected.first,
            expected,
            previous: None,
            created_ns: 0,
            size: AtomicU64::new(size),
            last: AtomicU64::new(last),
            end: AtomicU64::new(end),
            newest_ns: AtomicU64::new(0),
            is_leaving: AtomicBool::new(false),
        }
    }

    /// Whether its file may be missing because retention removes it.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Called before the file is removed, and again if it could not be.
    pub(crate) fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::Release);
    }

    /// The last sequence that may be read.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Where the batches that may be read end. Asked after [`last`](Segment::last), it covers that.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Bytes of the file.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Bytes that were written to it, from its beginning.
    pub(crate) fn written(&self) -> u64 {
        self.end().min(self.size())
    }

    /// The time of the newest record, as far as it is known.
    pub(crate) fn newest_ns(&self) -> u64 {
        self.newest_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn records(&self) -> u64 {
        (self.last() + 1).saturating_sub(self.first)
    }

    /// Remembers where the batch with `sequence` begins, if the last place that is remembered is far enough before it.
    pub(crate) fn mark(&self, sequence: u64, offset: u64) {
        let mut marks = self.marks();
        let (sequence_before, before) = marks.last().copied().unwrap_or((0, 0));
        let is_behind = sequence > sequence_before && offset >= before + MARK_DISTANCE;
        if is_behind && marks.len() < MARKS_MAX {
            marks.push((sequence, offset));
        }
    }

    /// Where to begin to look for `sequence`.
    pub(crate) fn offset_before(&self, sequence: u64) -> u64 {
        let marks = self.marks();
        let behind = marks.partition_point(|(first, _)| *first <= sequence);
        behind.checked_sub(1).and_then(|at| marks.get(at)).map_or(BLOCK_SIZE as u64, |(_, offset)| *offset)
    }

    fn marks(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// More of it is durable.
    pub(crate) fn grow(&self, end: u64, last: u64, newest_ns: u64) {
        self.newest_ns.fetch_max(newest_ns, Ordering::Relaxed);
        self.end.store(end, Ordering::Release);
        self.last.store(last, Ordering::Release);
    }

    /// The file was cut.
    pub(crate) fn cut(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }
}

/// How much a stream has on disk and between which times, for other threads. The journal's thread keeps it up to date.
#[derive(Debug, Default)]
pub struct Extent {
    bytes: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
}

impl Extent {
    /// Bytes that are written, without preallocated space.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// When the oldest segment began, Unix time in nanoseconds; `None` if there is nothing or it is not known.
    pub fn first_ns(&self) -> Option<u64> {
        Some(self.first_ns.load(Ordering::Relaxed)).filter(|time_ns| *time_ns > 0)
    }

    /// When the newest record came, Unix time in nanoseconds; `None` if there is none or it is not known.
    pub fn last_ns(&self) -> Option<u64> {
        Some(self.last_ns.load(Ordering::Relaxed)).filter(|time_ns| *time_ns > 0)
    }
}

/// What a stream's writer and its readers share.
#[derive(Debug)]
pub(crate) struct SharedLog {
    extent: Arc<Extent>,
    durable: AtomicU64,
    /// The last sequence that a write cut off by a crash may have had when the stream was opened; at most the last durable
    /// one of that time if there was none.
    torn_until: u64,
    list: Mutex<Vec<Arc<Segment>>>,
}

impl SharedLog {
    pub(crate) fn new(segments: Vec<Arc<Segment>>, durable: u64, torn_until: u64) -> SharedLog {
        let list = Mutex::new(segments);
        let shared = SharedLog { extent: Arc::default(), durable: AtomicU64::new(durable), torn_until, list };
        shared.update_extent();
        shared
    }

    /// How much there is on disk.
    pub(crate) fn extent(&self) -> &Arc<Extent> {
        &self.extent
    }

    /// Counts anew, since the list of segments has changed.
    pub(crate) fn update_extent(&self) {
        let list = self.list();
        let first_ns = list.first().map_or(0, |segment| segment.created_ns);
        let last_ns = list.last().map_or(0, |segment| segment.newest_ns());
        self.extent.bytes.store(list.iter().map(|segment| segment.written()).sum(), Ordering::Relaxed);
        self.extent.first_ns.store(first_ns, Ordering::Relaxed);
        self.extent.last_ns.store(last_ns, Ordering::Relaxed);
    }

    /// Counts what was written at the end.
    pub(crate) fn add_written(&self, bytes: u64, newest_ns: u64) {
        self.extent.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.extent.last_ns.store(newest_ns, Ordering::Relaxed);
    }

    /// The last sequence behind the durable ones that is gone for good, as long as no segment follows that says so.
    pub(crate) fn torn_until(&self) -> u64 {
        self.torn_until
    }

    /// The last sequence that is durable, hence readable.
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
