//! Retention: removes whole segments, oldest first, never the one being written.

use std::io;
use std::sync::Arc;

use super::{Log, ignore_not_found};
use crate::disk::Disk;
use crate::segments::Segment;

/// The bounds of a stream. None set: everything is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogRetention {
    /// Maximum bytes written to all segments together, padding and headers included. Preallocated space does not count:
    /// the files take at most one segment more than this, and segments are removed only while this bound is exceeded.
    pub bytes_max: Option<u64>,
    /// Records kept at least; more by up to one segment.
    pub records: Option<u64>,
    /// Time for which records are kept at least, in nanoseconds; longer by up to the time that one segment covers.
    pub age_ns: Option<u64>,
}

/// The result of a round of retention.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemovedSegments {
    /// Segments removed.
    pub segments: usize,
    /// Bytes freed.
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct PendingRemovals {
    /// The directory has not been synced since a segment was removed.
    needs_sync: bool,
    unreported: RemovedSegments,
}

impl<D: Disk> Log<D> {
    /// Removes the segments that need not be kept at `now_ns`, Unix time in nanoseconds. Nothing from `keep_from` on is
    /// removed, whatever the bounds: a snapshot may need it. Readers inside a removed segment finish it.
    ///
    /// Each removal is made durable before the next, so that a crash never leaves a hole in the middle. A removal that
    /// could not be made durable is synced first in the next call.
    ///
    /// # Errors
    /// The system's, with the file, if a segment cannot be removed or the removal cannot be made durable. The log
    /// continues, and segments removed before the error are counted by the next successful call. A missing file counts
    /// as removed.
    pub fn retain(
        &mut self,
        retention: &LogRetention,
        now_ns: u64,
        keep_from: u64,
    ) -> io::Result<RemovedSegments> {
        self.sync_removals()?;
        while let Some(segment) = self.removable(retention, now_ns, keep_from) {
            let (name, size) = (&segment.name, segment.size());
            // From here on, readers attribute a missing file to retention.
            segment.set_being_removed(true);
            let outcome = self.disk().remove(name).or_else(ignore_not_found);
            outcome.map_err(|error| {
                segment.set_being_removed(false);
                let what = format!("cannot remove {}/{name}", self.disk().location());
                self.removal_error(&what, &error)
            })?;
            self.shared().list().remove(0);
            self.shared().update_stats();
            self.removals.needs_sync = true;
            self.removals.unreported.segments += 1;
            self.removals.unreported.bytes += size;
            self.sync_removals()?;
        }
        Ok(std::mem::take(&mut self.removals.unreported))
    }

    fn removable(&self, retention: &LogRetention, now_ns: u64, keep_from: u64) -> Option<Arc<Segment>> {
        let list = self.shared().list();
        let [oldest, next, ..] = &list[..] else { return None };
        let bytes: u64 = list.iter().map(|segment| segment.written()).sum();
        let behind: u64 = list.iter().skip(1).map(|segment| segment.records()).sum();
        let too_large = retention.bytes_max.is_some_and(|most| bytes > most);
        let too_many = retention.records.is_some_and(|least| behind >= least);
        let too_old = retention.age_ns.is_some_and(|age| oldest.newest_ns().saturating_add(age) < now_ns);
        let is_due = (too_large || too_many || too_old) && next.first <= keep_from;
        is_due.then(|| Arc::clone(oldest))
    }

    fn sync_removals(&mut self) -> io::Result<()> {
        if self.removals.needs_sync {
            // Retried after a failure. If a retry succeeds without effect, a crash may bring back an older segment than
            // the last removed one: the next opening reports the removed records between as missing. All records
            // within the bounds remain.
            let outcome = self.disk().sync();
            outcome.map_err(|error| {
                self.removal_error(&format!("cannot sync {}", self.disk().location()), &error)
            })?;
            self.removals.needs_sync = false;
        }
        Ok(())
    }

    fn removal_error(&self, what: &str, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("stream {}: {what}: {error}", self.name()))
    }

    /// Bytes of all segments together, padding and preallocated space included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared().list().iter().map(|segment| segment.size()).sum()
    }
}
