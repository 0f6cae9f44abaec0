//! Letting old records go: whole segments, the oldest first, never the one that is written.

use std::io;

use crate::disk::Disk;
use crate::log::{Log, gone_is_removed};

/// What is kept of a stream. Nothing set: everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retention {
    /// Most bytes written to all segments together, padding and headers included. What is preallocated does not count: the
    /// files take at most one segment more than this, and whole segments go only while this bound is passed.
    pub bytes_max: Option<u64>,
    /// Records that are kept at least; more by up to one segment.
    pub records: Option<u64>,
    /// How long records are kept at least, in nanoseconds; longer by up to the time that one segment covers.
    pub age_ns: Option<u64>,
}

/// What one round of retention did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// Segments removed.
    pub segments: usize,
    /// Bytes that came back.
    pub bytes: u64,
}

impl<D: Disk> Log<D> {
    /// Removes the segments that need not be kept at `now_ns`, Unix time in nanoseconds. Nothing from `keep_from` on is
    /// removed, whatever the bounds say: a snapshot may need it. Readers that are in a removed segment finish it.
    ///
    /// Each removal is made durable before the next, so that a crash never leaves a hole in the middle.
    ///
    /// # Errors
    /// The system's, with the file, if one cannot be removed or that cannot be made durable. The log goes on. A file that is
    /// not there any more counts as removed.
    pub fn retain(&self, retention: &Retention, now_ns: u64, keep_from: u64) -> io::Result<Removed> {
        let mut removed = Removed::default();
        loop {
            let list = self.shared().list();
            let [oldest, next, ..] = &list[..] else { return Ok(removed) };
            let oldest_end = next.first;
            let bytes: u64 = list.iter().map(|segment| segment.written()).sum();
            let behind: u64 = list.iter().skip(1).map(|segment| segment.records()).sum();
            let too_large = retention.bytes_max.is_some_and(|most| bytes > most);
            let too_many = retention.records.is_some_and(|least| behind >= least);
            let too_old = retention.age_ns.is_some_and(|age| oldest.newest_ns().saturating_add(age) < now_ns);
            if !(too_large || too_many || too_old) || oldest_end > keep_from {
                return Ok(removed);
            }
            let (name, size) = (oldest.name.clone(), oldest.size());
            drop(list);
            let place = self.disk().place();
            let refused = |what: String, error: io::Error| {
                io::Error::new(error.kind(), format!("stream {}: {what}: {error}", self.name()))
            };
            self.disk()
                .remove(&name)
                .or_else(gone_is_removed)
                .map_err(|error| refused(format!("cannot remove {place}/{name}"), error))?;
            self.shared().list().remove(0);
            self.shared().measure();
            self.disk().sync().map_err(|error| refused(format!("cannot sync {place}"), error))?;
            removed.segments += 1;
            removed.bytes += size;
        }
    }

    /// Bytes of all segments together, padding and preallocated space included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared().list().iter().map(|segment| segment.size()).sum()
    }
}
