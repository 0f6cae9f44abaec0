//! Reading a stream from any sequence or time, while it is written, with the memory of one read.
//!
//! A [`LogSource`] can be sent to any thread and creates [`Reader`]s. A reader yields one batch after the other, of at
//! most [`READ_SIZE`] bytes unless a single batch is longer, and reports exactly which sequences are missing. It never
//! reads beyond the durable end; after the end it can be called again later.
//!
//! A search starts at the last index entry before the target: at most 1 MiB away in data written or read since the
//! start.
//!
//! [`READ_SIZE`]: crate::limits::READ_SIZE

use std::fmt;
use std::io;
use std::sync::Arc;

use stilling_ring::planted;

use crate::disk::{Disk, DiskFile};
use crate::format::batch::{BATCH_HEADER_SIZE, BatchHeader};
use crate::format::record::Records;
use crate::limits::BLOCK_SIZE;
use crate::scan::{FileWindow, ReadError};
use crate::segments::{Segment, SharedLog};

/// The start position of a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartAt {
    /// This sequence.
    Sequence(u64),
    /// The first batch at or after this time, Unix time in nanoseconds.
    Time(u64),
}

/// Creates readers of one stream.
pub struct LogSource<D: Disk> {
    disk: D,
    shared: Arc<SharedLog>,
}

impl<D: Disk> Clone for LogSource<D> {
    fn clone(&self) -> LogSource<D> {
        LogSource { disk: self.disk.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<D: Disk> fmt::Debug for LogSource<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSource").field("durable", &self.durable()).finish_non_exhaustive()
    }
}

impl<D: Disk> LogSource<D> {
    pub(crate) fn new(disk: D, shared: Arc<SharedLog>) -> LogSource<D> {
        LogSource { disk, shared }
    }

    pub(crate) fn disk(&self) -> &D {
        &self.disk
    }

    /// The last readable sequence.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.shared.durable()
    }

    /// The first stored sequence, if there is one.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.shared.list().first().map(|segment| segment.first)
    }

    /// A reader from this position on.
    #[must_use]
    pub fn read_from(&self, from: StartAt) -> Reader<D> {
        let (next, not_before_ns) = match from {
            StartAt::Sequence(sequence) => (sequence.max(1), 0),
            StartAt::Time(time_ns) => {
                let list = self.shared.list();
                // Records in earlier segments are older than a segment's creation. That of a segment whose header is
                // damaged is unknown: 0.
                let is_before = |segment: &Arc<Segment>| (1..=time_ns).contains(&segment.created_ns);
                let at = list.iter().rposition(is_before).unwrap_or(0);
                (list.get(at).map_or(1, |segment| segment.first), time_ns)
            }
        };
        Reader { source: self.clone(), next, not_before_ns, position: None, window: FileWindow::new(0) }
    }
}

/// The result of a read.
#[derive(Clone, Debug)]
pub enum ReadOutcome<'a> {
    /// A batch.
    Batch(BatchView<'a>),
    /// Missing sequences; the reader continues after them.
    Gap(Gap),
    /// All records that are durable so far have been read.
    End,
}

/// A range of skipped sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The first missing sequence.
    pub first: u64,
    /// The last missing sequence.
    pub last: u64,
    /// Why they are missing.
    pub cause: GapCause,
}

impl Gap {
    /// Number of sequences in it.
    #[must_use]
    pub fn count(&self) -> u64 {
        (self.last + 1).saturating_sub(self.first)
    }
}

/// The reason why sequences are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GapCause {
    /// Retention has removed them.
    Removed,
    /// Their bytes are damaged, or their segment is missing.
    Damaged,
    /// They belonged to a write that a crash cut off. They may have been acknowledged if the disk lost bytes that it
    /// had reported as written.
    Torn,
}

/// Records that became durable together.
#[derive(Clone, Debug)]
pub struct BatchView<'a> {
    /// The opening of the stream that wrote them; never decreases along the log.
    pub epoch: u64,
    /// The time of all of them, Unix time in nanoseconds.
    pub time_ns: u64,
    /// The records, from the reader's start sequence on.
    pub records: Records<'a>,
    /// The sequence of the last one.
    pub last: u64,
}

/// A read position that advances along a stream.
pub struct Reader<D: Disk> {
    source: LogSource<D>,
    next: u64,
    /// Earlier batches are skipped until the first one at or after this time.
    not_before_ns: u64,
    position: Option<ReadPosition<D::File>>,
    window: FileWindow,
}

struct ReadPosition<F> {
    segment: Arc<Segment>,
    file: F,
    offset: u64,
    /// The last readable sequence of the segment and the end of its readable bytes, as of the last refresh.
    last: u64,
    end: u64,
}

enum BlockHead {
    Batch(BatchHeader),
    NoBatch,
}

impl<D: Disk> Reader<D> {
    /// The sequence to be read next.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// The next batch, gap, or the end so far.
    ///
    /// # Errors
    /// The system's, with file and offset, if a segment cannot be opened or read. The reader keeps its position: the
    /// next call retries. Bytes that cannot be read are never a gap.
    pub fn read(&mut self) -> io::Result<ReadOutcome<'_>> {
        let found = loop {
            if let Some(step) = self.step()? {
                break step;
            }
        };
        Ok(match found {
            ReadStep::Gap(gap) => ReadOutcome::Gap(gap),
            ReadStep::End => ReadOutcome::End,
            ReadStep::Batch { header, offset, from } => {
                let length = header.length as usize;
                let bytes = match &self.position {
                    // The window contains the batch: `step` has just checked it.
                    Some(position) => self.window.get(&position.file, offset, length).unwrap_or(&[]),
                    None => &[],
                };
                let body = bytes.get(BATCH_HEADER_SIZE..).unwrap_or(&[]);
                let records = Records::new(body, header.first, header.count).skip_to(from);
                ReadOutcome::Batch(BatchView {
                    epoch: header.epoch,
                    time_ns: header.time_ns,
                    records,
                    last: header.last(),
                })
            }
        })
    }

    fn step(&mut self) -> io::Result<Option<ReadStep>> {
        if self.next > self.source.durable() {
            let torn_until = self.source.shared.torn_until();
            let is_torn = self.next <= torn_until;
            return Ok(Some(if is_torn {
                self.gap(Some(torn_until), GapCause::Torn)
            } else {
                ReadStep::End
            }));
        }
        let is_in_segment = self.position.as_mut().is_some_and(|position| {
            position.refresh();
            self.next <= position.last && self.next >= position.segment.first
        });
        if !is_in_segment {
            return self.find_segment();
        }
        let Some(position) = &mut self.position else { return Ok(None) };
        if self.window.is_shorter_than(position.end) {
            self.window.reset(position.end);
        }
        if position.offset >= position.end {
            return Ok(Some(self.gap(None, GapCause::Damaged)));
        }
        let disk = &self.source.disk;
        let unreadable = |error: ReadError| error.in_file(&disk.location(), &position.segment.name);
        let header = match position.head(&mut self.window).map_err(unreadable)? {
            BlockHead::NoBatch => {
                position.offset += BLOCK_SIZE as u64;
                return Ok(None);
            }
            BlockHead::Batch(header) => header,
        };
        let (offset, behind) = (position.offset, position.offset + u64::from(header.length));
        if header.last() > position.last {
            // Cut off by a crash: the valid part of this segment ends before it.
            position.offset = position.end;
            return Ok(None);
        }
        position.segment.add_to_index(header.first, offset);
        if header.count == 0 || header.last() < self.next {
            position.offset = behind;
            return Ok(None);
        }
        if header.first > self.next {
            return Ok(Some(self.gap(Some(header.first - 1), GapCause::Damaged)));
        }
        if header.time_ns < self.not_before_ns {
            position.offset = behind;
            self.next = header.last() + 1;
            return Ok(None);
        }
        let is_whole = position.is_whole(&mut self.window, offset, &header).map_err(unreadable)?;
        position.offset = behind;
        if !is_whole {
            if planted!("unreported damage") {
                self.next = header.last() + 1;
                return Ok(None);
            }
            return Ok(Some(self.gap(Some(header.last()), GapCause::Damaged)));
        }
        let from = std::mem::replace(&mut self.next, header.last() + 1);
        self.not_before_ns = 0;
        Ok(Some(ReadStep::Batch { header, offset, from }))
    }

    fn find_segment(&mut self) -> io::Result<Option<ReadStep>> {
        let list = self.source.shared.list();
        let at = list.partition_point(|segment| segment.first <= self.next);
        let current = at.checked_sub(1).and_then(|at| list.get(at)).cloned();
        let behind = list.get(at).cloned();
        drop(list);
        if let Some(segment) = current.as_ref().filter(|segment| self.next <= segment.last()) {
            let opened = self.source.disk.open(&segment.name);
            let file = match opened {
                Ok(file) => file,
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && let Some(first_kept) = self.first_after_removed(segment) =>
                {
                    return Ok(Some(self.gap(Some(first_kept - 1), GapCause::Removed)));
                }
                Err(error) => {
                    let (kind, location) = (error.kind(), self.source.disk.location());
                    return Err(io::Error::new(
                        kind,
                        format!("cannot open {location}/{}: {error}", segment.name),
                    ));
                }
            };
            self.window.reset(segment.end());
            // Times need not be in order, so a search by time starts at the beginning.
            let offset = match self.not_before_ns {
                0 => segment.offset_before(self.next),
                _ => BLOCK_SIZE as u64,
            };
            let mut position = ReadPosition { segment: Arc::clone(segment), file, offset, last: 0, end: 0 };
            position.refresh();
            self.position = Some(position);
            return Ok(None);
        }
        let Some(behind) = behind else { return Ok(Some(ReadStep::End)) };
        let cause = match (&current, behind.previous) {
            (None, _) => GapCause::Removed,
            (Some(current), Some(previous)) if previous.first == current.first => GapCause::Torn,
            _ => GapCause::Damaged,
        };
        if cause == GapCause::Damaged && planted!("unreported segment") {
            self.next = behind.first;
            return Ok(None);
        }
        Ok(Some(self.gap(Some(behind.first - 1), cause)))
    }

    /// The first sequence after a segment that retention is removing or has removed. The list contains the segment
    /// until its file is removed.
    fn first_after_removed(&self, segment: &Segment) -> Option<u64> {
        let list = self.source.shared.list();
        let first_kept = list.iter().find(|other| other.first > segment.first);
        first_kept.filter(|_| segment.is_being_removed()).map(|first_kept| first_kept.first)
    }

    /// Reports everything up to `last`, or the remainder of the segment, as missing.
    fn gap(&mut self, last: Option<u64>, cause: GapCause) -> ReadStep {
        let rest = self.position.as_ref().map_or(self.next, |position| position.last);
        let (first, last) = (self.next, last.unwrap_or(rest).max(self.next));
        self.next = last + 1;
        ReadStep::Gap(Gap { first, last, cause })
    }
}

enum ReadStep {
    Batch { header: BatchHeader, offset: u64, from: u64 },
    Gap(Gap),
    End,
}

impl<F: DiskFile> ReadPosition<F> {
    fn refresh(&mut self) {
        self.last = self.segment.last();
        self.end = self.segment.end();
    }

    fn head(&self, window: &mut FileWindow) -> Result<BlockHead, ReadError> {
        let block = window.get(&self.file, self.offset, BLOCK_SIZE)?;
        let header = BatchHeader::read(block).filter(|header| self.segment.expected.admits(header));
        Ok(header.map_or(BlockHead::NoBatch, BlockHead::Batch))
    }

    /// Whether the batch at `offset` is undamaged and its records can be parsed.
    fn is_whole(
        &self,
        window: &mut FileWindow,
        offset: u64,
        header: &BatchHeader,
    ) -> Result<bool, ReadError> {
        let length = header.length as usize;
        let bytes = window.get(&self.file, offset, length)?;
        let body = bytes.get(BATCH_HEADER_SIZE..).filter(|_| bytes.len() == length);
        Ok(body.is_some_and(|body| {
            crc32c::crc32c(body) == header.body_crc
                && Records::new(body, header.first, header.count).are_whole()
        }))
    }
}
