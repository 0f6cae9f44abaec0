//! One stream's writer: appends batches, opens segments, reports what is durable, waits for space, and freezes when the
//! state of the disk is unknown.
//!
//! The watermark advances after a batch is written and synced. A segment receives batches after it was created, its
//! header synced and its name made durable. After a failed write the content of the disk is unknown: unacknowledged
//! batches are written again into a new segment, whose header records the end of the valid content of the previous one
//! ([`crate::failure`]).
//!
//! No location is written twice, with one exception: opening a stream that was not closed rewrites the end of its last
//! segment as it was found ([`crate::unsynced_tail`]). Each opening that writes starts a segment and an epoch of its
//! own.

mod file_check;
mod retention;
mod snapshots;

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

use stilling_ring::planted;

use crate::batch::{AlignedBuffer, Batch};
use crate::disk::{Disk, DiskFile, WriteMethod};
use crate::failure::{AppendError, Frozen, LogFailure};
use crate::finding::OpenError;
use crate::format::segment::{SegmentHeader, file_name};
use crate::limits::{
    BLOCK_SIZE, EPOCH_MAX, SEGMENT_SIZE_DEFAULT, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, SEQUENCE_MAX,
    STREAM_NAME_SIZE_MAX, WRITE_BATCHES_MAX,
};
use crate::reader::LogSource;
use crate::recovery::{Recovery, survey};
use crate::scan::ExpectedSegment;
use crate::segments::{LogStats, PreviousSegment, Segment, SharedLog};
use crate::unsynced_tail;

pub use self::retention::{LogRetention, RemovedSegments};
pub use self::snapshots::FoundSnapshots;

use self::retention::PendingRemovals;

/// Configuration of a stream's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// Bytes of a segment, rounded up to whole blocks and cut to [`SEGMENT_SIZE_MAX`]. Full: the next batch opens a new
    /// segment. A longer batch gets a segment of its own size.
    pub segment_size: u64,
    /// Creation time of a stream that has none yet, Unix time in nanoseconds; 0: the time of its first batch.
    pub created_ns: u64,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { segment_size: SEGMENT_SIZE_DEFAULT, created_ns: 0 }
    }
}

impl LogConfig {
    /// The configuration for a stream of at most `bytes_max` bytes: segments of an eighth of that, between
    /// [`SEGMENT_SIZE_MIN`] and [`SEGMENT_SIZE_DEFAULT`], so that retention removes a small part at a time.
    #[must_use]
    pub fn for_retention(bytes_max: Option<u64>) -> LogConfig {
        let eighth = bytes_max.map_or(SEGMENT_SIZE_DEFAULT, |bytes| bytes / 8);
        LogConfig {
            segment_size: eighth.clamp(SEGMENT_SIZE_MIN, SEGMENT_SIZE_DEFAULT),
            ..LogConfig::default()
        }
    }
}

/// The writer of one stream.
pub struct Log<D: Disk> {
    disk: D,
    config: LogConfig,
    name: String,
    stream_id: u64,
    epoch: u64,
    next: u64,
    /// The CRC of the last batch.
    chain: u32,
    deduplicate_from: u64,
    created_ns: u64,
    shared: Arc<SharedLog>,
    active: Option<ActiveSegment<D::File>>,
    /// Files without content, left by a crash.
    unfinished: Vec<String>,
    /// The last segment, if it is not active, and the size to which it can be truncated.
    cut: Option<(String, u64)>,
    /// An empty segment that was removed for the next one, until that one is created.
    replaced: Option<Arc<Segment>>,
    removals: PendingRemovals,
    /// Whether the names of the directory and its ancestors are durable.
    is_path_durable: bool,
    frozen: Option<Frozen>,
    failed_write: Option<Arc<str>>,
    /// The segment that [`check_files`](Log::check_files) checks next.
    next_checked: usize,
    block: AlignedBuffer,
    end: Batch,
    _lock: D::Lock,
}

struct ActiveSegment<F> {
    file: F,
    segment: Arc<Segment>,
    offset: u64,
}

impl<D: Disk> Log<D> {
    /// Opens the stream `name` in the directory `disk`, whatever its content, and locks the directory.
    ///
    /// # Errors
    /// If another process holds the lock, if the directory cannot be read, if its content cannot be made durable, or if
    /// a segment has another format. Damaged bytes are no error: the [`Recovery`] reports what they cost.
    pub fn open(disk: D, name: &str, config: LogConfig) -> Result<(Log<D>, Recovery), OpenError> {
        if name.is_empty() || name.len() > STREAM_NAME_SIZE_MAX {
            return Err(OpenError::Name(name.to_owned()));
        }
        let lock = disk.lock().map_err(OpenError::Lock)?;
        let survey = survey(&disk, Some(name))?;
        if let Some(unsynced) = &survey.unsynced
            && !planted!("unsynced tail")
        {
            unsynced_tail::make_durable(&disk, unsynced)?;
        }
        let recovery = survey.recovery;
        // A blank header would have the id zero.
        let stream_id = survey.stream_id.unwrap_or_else(|| disk.random_u64().max(1));
        let block = BLOCK_SIZE as u64;
        let segment_size = config.segment_size.clamp(2 * block, SEGMENT_SIZE_MAX).next_multiple_of(block);
        let log = Log {
            config: LogConfig { segment_size, ..config },
            name: name.to_owned(),
            stream_id,
            epoch: (survey.epoch + 1).min(EPOCH_MAX),
            next: recovery.next,
            chain: survey.chain,
            deduplicate_from: recovery.deduplicate_from,
            created_ns: if recovery.created_ns == 0 { config.created_ns } else { recovery.created_ns },
            shared: Arc::new(SharedLog::new(survey.segments, recovery.last, recovery.next - 1)),
            active: None,
            unfinished: survey.unfinished,
            cut: survey.cut,
            replaced: None,
            removals: PendingRemovals::default(),
            is_path_durable: false,
            frozen: None,
            failed_write: None,
            next_checked: 0,
            block: AlignedBuffer::new(BLOCK_SIZE),
            end: Batch::new(BLOCK_SIZE),
            _lock: lock,
            disk,
        };
        Ok((log, recovery))
    }

    /// The sequence of the next record.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The last durable sequence.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.shared.durable()
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of openings that have written to the stream, this one included.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The reason why the log is frozen, if it is.
    #[must_use]
    pub fn frozen(&self) -> Option<&Frozen> {
        self.frozen.as_ref()
    }

    /// Creation time of the stream, Unix time in nanoseconds; 0 if unknown: nothing has been written yet, and
    /// [`LogConfig::created_ns`] was not given. Survives retention.
    #[must_use]
    pub fn created_ns(&self) -> u64 {
        self.created_ns
    }

    /// The stream's size on disk, readable from other threads.
    #[must_use]
    pub fn log_stats(&self) -> Arc<LogStats> {
        Arc::clone(self.shared.log_stats())
    }

    /// The directory's location, for messages.
    #[must_use]
    pub fn location(&self) -> String {
        self.disk.location()
    }

    /// The method of durable writes.
    #[must_use]
    pub fn write_method(&self) -> WriteMethod {
        self.disk.write_method()
    }

    /// Freezes the log because batches that could not be appended will not be retried.
    pub fn stop_retrying(&mut self, error: AppendError) -> Frozen {
        let frozen = match error {
            AppendError::Frozen(frozen) => frozen,
            AppendError::Waiting { reason, kind } => Frozen { reason, kind },
        };
        self.frozen.get_or_insert(frozen).clone()
    }

    /// The source of readers. It can be sent to any thread, and outlives the log.
    #[must_use]
    pub fn source(&self) -> LogSource<D> {
        LogSource::new(self.disk.clone(), Arc::clone(&self.shared))
    }

    /// Sets the start of the de-duplication window; the header of the next segment contains it.
    pub fn deduplicate_from(&mut self, sequence: u64) {
        self.deduplicate_from = sequence;
    }

    /// Appends batches and returns the durable watermark, which then covers them. Seals the batches; those that fit
    /// into the segment are written in one durable write, at most [`WRITE_BATCHES_MAX`] at a time. Empty ones are
    /// skipped.
    ///
    /// # Errors
    /// [`AppendError`]. Records up to [`durable`](Log::durable) remain durable; the state of those beyond it is
    /// unknown.
    ///
    /// # Panics
    /// If a batch does not begin with the next sequence: its records would have wrong ones.
    pub fn append(&mut self, batches: &mut [Batch]) -> Result<u64, AppendError> {
        let mut at = 0;
        let mut has_failed = false;
        while let Some(first) = batches.get(at) {
            if let Some(frozen) = &self.frozen {
                return Err(AppendError::Frozen(frozen.clone()));
            }
            if first.is_empty() {
                at += 1;
                continue;
            }
            let count = self.count_fitting(&batches[at..]);
            let outcome = if count == 0 {
                let (size, time_ns) = (first.size() as u64, first.time_ns());
                self.open_segment(size, time_ns)
            } else {
                self.write(&mut batches[at..at + count])
            };
            match outcome {
                Ok(()) => at += count,
                Err(failure) if failure.is_out_of_space() => {
                    let reason = self.describe(&failure);
                    return Err(AppendError::Waiting { reason, kind: failure.error.kind() });
                }
                // One retry in a new segment, whose header records the end of this one.
                Err(failure) if count > 0 && !has_failed && !failure.is_final => {
                    has_failed = true;
                    self.failed_write = Some(self.describe(&failure));
                }
                Err(failure) => return Err(AppendError::Frozen(self.freeze(&failure))),
            }
        }
        Ok(self.shared.durable())
    }

    /// Number of batches in the next write; 0 if the segment has no room for the first.
    fn count_fitting(&self, batches: &[Batch]) -> usize {
        let room = self.active.as_ref().map_or(0, |active| active.segment.size() - active.offset);
        let mut length = 0;
        let fits = |batch: &&Batch| {
            length += batch.size() as u64;
            !batch.is_empty() && length <= room
        };
        batches.iter().take(WRITE_BATCHES_MAX).take_while(fits).count()
    }

    /// Returns and clears the report of a failed write; its batches were or will be written again in a new segment.
    pub fn take_failed_write(&mut self) -> Option<Arc<str>> {
        self.failed_write.take()
    }

    /// Ends the last segment with an empty batch, which proves to the next opening that nothing is missing after it.
    /// All durable records are found without it, too.
    ///
    /// # Errors
    /// [`Frozen`], as for [`append`](Log::append).
    pub fn close(mut self) -> Result<(), Frozen> {
        if let Some(frozen) = self.frozen.take() {
            return Err(frozen);
        }
        let room = self.active.as_ref().map_or(0, |active| active.segment.size() - active.offset);
        if room > 0 {
            let mut end = std::mem::replace(&mut self.end, Batch::new(1));
            end.begin(self.next, self.active.as_ref().map_or(0, |active| active.segment.newest_ns()));
            self.write(std::slice::from_mut(&mut end)).map_err(|failure| self.freeze(&failure))?;
            if let Some(active) = &self.active {
                // A failure only wastes space.
                let _ = self.disk.truncate(&active.segment.name, active.offset);
            }
        }
        Ok(())
    }

    /// Writes batches that fit into the active segment. After a failure there is no active segment.
    fn write(&mut self, batches: &mut [Batch]) -> Result<(), LogFailure> {
        let watermark = self.shared.durable();
        let (mut next, mut chain) = (self.next, self.chain);
        for batch in batches.iter_mut() {
            assert_eq!(batch.first(), next, "a batch of {} begins with the next sequence", self.name);
            chain = batch.seal(self.stream_id, self.epoch, watermark, chain);
            next = batch.next();
        }
        let Some(mut active) = self.active.take() else { return Ok(()) };
        if planted!("early watermark") {
            self.shared.set_durable(next - 1);
        }
        let mut pieces: [IoSlice<'_>; WRITE_BATCHES_MAX] =
            std::array::from_fn(|at| IoSlice::new(batches.get(at).map_or(&[], |batch| batch.bytes())));
        let written = active.file.write_durable(active.offset, &mut pieces[..batches.len()]);
        // Bytes in a file that was unlinked or truncated are not durable.
        let outcome = match written {
            Ok(()) => file_check::check_active(&active.file, &active.segment),
            Err(error) => {
                let what = format!("writing {} at {}", active.segment.name, active.offset);
                Err(LogFailure::new(what, error))
            }
        };
        if let Err(failure) = outcome {
            self.cut = Some((active.segment.name.clone(), active.offset));
            return Err(failure);
        }
        let (first, offset) = (self.next, active.offset);
        active.offset += batches.iter().map(|batch| batch.size() as u64).sum::<u64>();
        (self.next, self.chain) = (next, chain);
        let newest_ns = batches.last().map_or(0, Batch::time_ns);
        active.segment.add_to_index(first, offset);
        active.segment.grow(active.offset, next - 1, newest_ns);
        self.shared.add_written(active.offset - offset, newest_ns);
        self.active = Some(active);
        self.shared.set_durable(next - 1);
        Ok(())
    }

    fn open_segment(&mut self, length: u64, now_ns: u64) -> Result<(), LogFailure> {
        let name = file_name(self.next);
        let size = self.config.segment_size.max(BLOCK_SIZE as u64 + length);
        self.make_segment(&name, size, now_ns)
            .map_err(|error| LogFailure::new(format!("creating {name}"), error))
    }

    /// Creates a segment. Until its name is durable it is listed as unfinished, and it is removed if a step fails.
    fn make_segment(&mut self, name: &str, size: u64, now_ns: u64) -> io::Result<()> {
        if self.next >= SEQUENCE_MAX {
            return Err(io::Error::other("the stream has used all sequences"));
        }
        if self.created_ns == 0 {
            self.created_ns = now_ns;
        }
        self.drop_empty(name)?;
        if !self.is_path_durable {
            // The first segment of this opening. Its sync of the directory covers the removal.
            self.remove_snapshots_ahead()?;
        }
        let predecessor = self.predecessor();
        while let Some(unfinished) = self.unfinished.last() {
            self.disk.remove(unfinished).or_else(ignore_not_found)?;
            self.unfinished.pop();
        }
        let mut file = self.disk.create(name, size)?;
        self.unfinished.push(name.to_owned());
        if let Err(error) = self.begin_segment(&mut file, predecessor.previous, size, now_ns) {
            // A crash may bring the new file back, and its header excludes everything written to the previous segment
            // after this.
            if let Some(active) = self.active.take() {
                self.cut = Some((active.segment.name.clone(), active.offset));
            }
            // The space is freed when the last descriptor is closed.
            drop(file);
            if self.disk.remove(name).is_ok() {
                self.unfinished.pop();
            }
            return Err(error);
        }
        self.unfinished.pop();
        (self.cut, self.replaced, self.active) = (None, None, None);
        if let Some((segment, end)) = predecessor.cut {
            // Truncated now that the new header records its end. A failure only wastes space.
            if self.disk.truncate(&segment.name, end).is_ok() {
                segment.cut(end);
            }
        }
        let expected = ExpectedSegment {
            first: self.next,
            stream_id: Some(self.stream_id),
            epoch: Some(self.epoch),
            chain: Some(self.chain).filter(|chain| *chain != 0),
            size: Some(size),
        };
        let offset = BLOCK_SIZE as u64;
        let mut segment = Segment::new(name.to_owned(), expected, size, self.next - 1, offset);
        (segment.previous, segment.created_ns) = (predecessor.previous, now_ns);
        segment.grow(offset, self.next - 1, now_ns);
        let segment = Arc::new(segment);
        self.shared.list().push(Arc::clone(&segment));
        self.shared.update_stats();
        self.active = Some(ActiveSegment { file, segment, offset });
        Ok(())
    }

    /// Removes the last segment if it has no records: the next one has the same name.
    fn drop_empty(&mut self, name: &str) -> io::Result<()> {
        let last = self.shared.list().last().cloned();
        if let Some(empty) = last.filter(|last| last.name == name) {
            self.active = None;
            self.disk.remove(name).or_else(ignore_not_found)?;
            self.shared.list().pop();
            self.replaced = Some(empty);
        }
        Ok(())
    }

    fn predecessor(&self) -> PrecedingSegment {
        if let Some(empty) = &self.replaced {
            return PrecedingSegment { previous: empty.previous, cut: None };
        }
        let Some(predecessor) = self.shared.list().last().cloned() else {
            return PrecedingSegment { previous: None, cut: None };
        };
        let previous =
            PreviousSegment { first: predecessor.first, last: self.shared.durable(), end: predecessor.end() };
        let known = self.cut.as_ref().filter(|(name, _)| *name == predecessor.name).map(|(_, end)| *end);
        let end = self.active.as_ref().map(|active| active.offset).or(known);
        let cut = end.filter(|end| *end < predecessor.size()).map(|end| (predecessor, end));
        PrecedingSegment { previous: Some(previous), cut }
    }

    fn begin_segment(
        &mut self,
        file: &mut D::File,
        previous: Option<PreviousSegment>,
        size: u64,
        now_ns: u64,
    ) -> io::Result<()> {
        let header = SegmentHeader {
            stream_id: self.stream_id,
            epoch: self.epoch,
            first: self.next,
            created_ns: now_ns,
            previous_first: previous.map_or(0, |previous| previous.first),
            previous_last: previous.map_or(0, |previous| previous.last),
            previous_end: previous.map_or(0, |previous| previous.end),
            deduplicate_from: self.deduplicate_from,
            size,
            chain: self.chain,
            name: self.name.clone(),
            stream_created_ns: self.created_ns,
        };
        header.write(self.block.bytes_mut());
        file.write_durable(0, &mut [IoSlice::new(self.block.bytes())])?;
        if !planted!("unsynced directory") {
            self.disk.sync()?;
        }
        // The directory may have been created by a process that was killed before its name was durable.
        if !self.is_path_durable && !planted!("unsynced parent") {
            self.disk.sync_ancestors()?;
        }
        self.is_path_durable = true;
        Ok(())
    }

    fn describe(&self, failure: &LogFailure) -> Arc<str> {
        let LogFailure { what, error, .. } = failure;
        format!("stream {}: {what} in {}: {error}", self.name, self.disk.location()).into()
    }

    fn freeze(&mut self, failure: &LogFailure) -> Frozen {
        let frozen = Frozen { reason: self.describe(failure), kind: failure.error.kind() };
        self.frozen.get_or_insert(frozen).clone()
    }

    fn shared(&self) -> &SharedLog {
        &self.shared
    }

    fn disk(&self) -> &D {
        &self.disk
    }
}

fn ignore_not_found(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The previous segment as described in the next header, and the size to which it can be truncated once that header is
/// durable.
struct PrecedingSegment {
    previous: Option<PreviousSegment>,
    cut: Option<(Arc<Segment>, u64)>,
}

impl<D: Disk> fmt::Debug for Log<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("name", &self.name).field("next", &self.next).finish_non_exhaustive()
    }
}
