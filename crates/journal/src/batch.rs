//! Batches of records, built in the memory that is written to disk.
//!
//! Records are written once, directly into block-aligned memory as O_DIRECT requires. The journal fills in epoch,
//! watermark and the CRC of the previous batch when it seals the batch. A batch is reused after it was written; apart
//! from the list of unbuilt payloads it allocates only when it is created.
//!
//! ```text
//!   push: header, subject, headers │ room │ …      build: copies the payloads in, computes    share: references to
//!   the payload stays in its block ┴──────┘        the CRC, releases the blocks               records, in place
//! ```
//!
//! The memory is a block of `stilling_ring`, which one thread fills and others may read. While a batch is filled and
//! written, no reference to it exists. Records that are [shared](Batch::share) do not change before the last reference
//! is dropped, and until then the batch cannot be reused.
//!
//! Alignment needs no `unsafe`: the memory is one block larger than required and used from its first block boundary on.

use std::fmt;
use std::ops::Range;

use stilling_ring::{BlockWriter, SharedBlock};

use crate::format::batch::{BATCH_HEADER_SIZE, BatchHeader};
use crate::format::put;
use crate::format::record::{Record, Records};
use crate::limits::{BATCH_SIZE_MAX, BLOCK_SIZE, DEFERRED_COPY_SIZE_MIN};
use crate::unbuilt_payloads::UnbuiltPayloads;

/// The reason why a record was not added to a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchPushError {
    /// This batch has no room for the record; the next one may have.
    Full,
    /// The record is longer than a batch of this size can take, or its subject exceeds the limit.
    TooLarge,
}

impl fmt::Display for BatchPushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BatchPushError::Full => "the batch is full: write it before adding records",
            BatchPushError::TooLarge => {
                "the record is longer than a batch: enlarge batches or send smaller messages"
            }
        })
    }
}

impl std::error::Error for BatchPushError {}

/// Records that become durable together, in memory that is written to disk as it is.
pub struct Batch {
    memory: BlockWriter,
    /// The first block boundary in the memory, where the batch begins.
    start: usize,
    size_max: usize,
    /// Bytes in use; like the fields below relative to `start`.
    used: usize,
    /// Records after the first one are added only up to this many bytes.
    limit: usize,
    first: u64,
    count: u32,
    time_ns: u64,
    /// CRC of the records up to `summed`.
    sum: u32,
    summed: usize,
    /// Boxed, to keep a batch cheap to move.
    unbuilt: Box<UnbuiltPayloads>,
}

impl Batch {
    /// A batch of at most `size` bytes with its header, rounded up to whole blocks and cut to [`BATCH_SIZE_MAX`]. The
    /// memory is allocated here, once; the system backs it on first use.
    #[must_use]
    pub fn new(size: usize) -> Batch {
        let size_max = size.clamp(1, BATCH_SIZE_MAX).next_multiple_of(BLOCK_SIZE);
        let memory = BlockWriter::new(size_max + BLOCK_SIZE);
        // The block does not move its bytes, so the offset stays valid.
        let start = memory.peek(0..0).as_ptr().addr().wrapping_neg() % BLOCK_SIZE;
        Batch {
            memory,
            start,
            size_max,
            used: BATCH_HEADER_SIZE,
            limit: size_max,
            first: 1,
            count: 0,
            time_ns: 0,
            sum: 0,
            summed: BATCH_HEADER_SIZE,
            unbuilt: Box::default(),
        }
    }

    /// Clears the batch and begins with the sequence `first` at `time_ns` (Unix time in nanoseconds), the time of all
    /// its records.
    ///
    /// # Panics
    /// If it [is shared](Batch::is_shared).
    pub fn begin(&mut self, first: u64, time_ns: u64) {
        self.begin_within(first, time_ns, usize::MAX);
    }

    /// Like [`begin`](Batch::begin), with a limit of `limit` bytes, header included: a record that would exceed it is
    /// [`BatchPushError::Full`], unless the batch is empty.
    ///
    /// # Panics
    /// If it [is shared](Batch::is_shared).
    pub fn begin_within(&mut self, first: u64, time_ns: u64, limit: usize) {
        assert!(self.reset(), "a batch is not reused while references to its records exist");
        self.limit = limit;
        self.first = first;
        self.time_ns = time_ns;
    }

    /// Clears the batch. Returns whether it can be reused: not while references to its records exist.
    pub fn reset(&mut self) -> bool {
        self.used = BATCH_HEADER_SIZE;
        self.count = 0;
        (self.sum, self.summed) = (0, BATCH_HEADER_SIZE);
        self.unbuilt.clear();
        self.memory.reset()
    }

    /// Appends a record and returns its sequence.
    ///
    /// # Errors
    /// [`BatchPushError::Full`] if it does not fit any more, [`BatchPushError::TooLarge`] if it never would.
    pub fn push(&mut self, record: &Record<'_>) -> Result<u64, BatchPushError> {
        record.write(self.reserve(record)?);
        Ok(self.next() - 1)
    }

    /// Appends a record with its payload in a shared block. From [`DEFERRED_COPY_SIZE_MIN`] bytes on, the payload is
    /// copied when the batch is [built](Batch::build), and the batch refers to its block until then.
    ///
    /// # Errors
    /// As [`push`](Batch::push).
    ///
    /// # Panics
    /// If `range` is not committed, or not as long as the payload.
    pub fn push_shared(
        &mut self,
        record: &Record<'_>,
        block: &SharedBlock,
        range: Range<usize>,
    ) -> Result<u64, BatchPushError> {
        if record.payload.len() < DEFERRED_COPY_SIZE_MIN {
            return self.push(record);
        }
        assert_eq!(block.bytes(range.clone()).len(), record.payload.len(), "the payload is {range:?}");
        record.write_before_payload(self.reserve(record)?);
        self.unbuilt.push(block, range, self.used - record.payload.len());
        Ok(self.next() - 1)
    }

    /// Whether there is room for records of `size` bytes in total ([`Record::size`]).
    ///
    /// # Errors
    /// As [`push`](Batch::push).
    pub fn check_room(&self, size: usize) -> Result<(), BatchPushError> {
        let is_within = self.count == 0 || self.used + size <= self.limit;
        if !is_within || self.used + size > self.size_max {
            let fits_alone = size <= self.size_max - BATCH_HEADER_SIZE;
            return Err(if fits_alone { BatchPushError::Full } else { BatchPushError::TooLarge });
        }
        Ok(())
    }

    fn reserve(&mut self, record: &Record<'_>) -> Result<&mut [u8], BatchPushError> {
        let size = record.size().ok_or(BatchPushError::TooLarge)?;
        self.check_room(size)?;
        let at = self.used;
        self.used += size;
        self.count += 1;
        Ok(bytes_mut(&mut self.memory, self.start + at, size))
    }

    /// Copies the payloads in from shared blocks, releases the blocks, and computes the CRC of the content. More
    /// records may follow. Best called on a thread that is not the writer, which then need not read the bytes again.
    pub fn build(&mut self) {
        let Batch { memory, start, unbuilt, .. } = self;
        unbuilt.copy_all(|to, payload| {
            bytes_mut(memory, *start + to, payload.len()).copy_from_slice(payload);
        });
        self.sum = crc32c::crc32c_append(self.sum, self.peek(self.summed, self.used));
        self.summed = self.used;
    }

    /// Bytes of payloads to be copied when the batch is [built](Batch::build).
    #[must_use]
    pub fn unbuilt_size(&self) -> usize {
        self.unbuilt.size()
    }

    /// Number of records.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether it has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The sequence of its first record.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The sequence of the next record.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// The time of its records, Unix time in nanoseconds.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Its current size on disk in bytes, padding included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.used.next_multiple_of(BLOCK_SIZE)
    }

    /// Its records, as readers will see them.
    ///
    /// # Panics
    /// If it has unbuilt payloads: [`build`](Batch::build) it first.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        assert!(self.unbuilt.is_empty(), "a batch is built before its records are read");
        Records::new(self.peek(BATCH_HEADER_SIZE, self.used), self.first, self.count)
    }

    /// A reference to its records, which become immutable. Only for a batch that was written or will not be written,
    /// because sealing changes its header. Further records may be appended.
    ///
    /// # Panics
    /// If it has not been [built](Batch::build).
    pub fn share(&mut self) -> SharedBlock {
        self.commit();
        self.memory.share()
    }

    /// Extends a reference to include the records appended since. Returns false if it refers to another batch.
    ///
    /// # Panics
    /// If it has not been [built](Batch::build).
    pub fn extend(&mut self, shared: &mut SharedBlock) -> bool {
        self.commit();
        shared.extend(&self.memory)
    }

    fn commit(&mut self) {
        assert!(self.unbuilt.is_empty(), "a batch is built before its records are shared");
        self.memory.commit(self.start + self.used - self.memory.committed());
    }

    /// The position of the payload of one of its [records](Batch::records) in the block that [`share`](Batch::share)
    /// refers to. `None` if the record has not been shared.
    #[must_use]
    pub fn payload_range(&self, record: &Record<'_>) -> Option<Range<usize>> {
        self.memory.position(record.payload)
    }

    /// The position of the last `size` bytes of its last record in the block that [`share`](Batch::share) refers to.
    #[must_use]
    pub fn last_range(&self, size: usize) -> Range<usize> {
        let end = self.start + self.used;
        end - size..end
    }

    /// Whether references to its records exist. If not, it can be reused.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.memory.is_shared()
    }

    /// Builds and pads the batch and writes its header. Returns its CRC, which the next batch contains.
    pub(crate) fn seal(&mut self, stream_id: u64, epoch: u64, watermark: u64, previous_crc: u32) -> u32 {
        self.build();
        let (size, used) = (self.size(), self.used);
        let batch = bytes_mut(&mut self.memory, self.start, size);
        let padding = &mut batch[used..];
        padding.fill(0);
        let body_crc = crc32c::crc32c_append(self.sum, padding);
        put(batch, 0, &[0; BATCH_HEADER_SIZE]);
        let header = BatchHeader {
            stream_id,
            epoch,
            // A batch is at most 16 MiB.
            length: size as u32,
            count: self.count,
            first: self.first,
            time_ns: self.time_ns,
            watermark,
            previous_crc,
            body_crc,
            crc: 0,
        };
        header.write(batch)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.peek(0, self.size())
    }

    fn peek(&self, from: usize, to: usize) -> &[u8] {
        self.memory.peek(self.start + from..self.start + to)
    }
}

/// Bytes of a block that are not shared.
fn bytes_mut(memory: &mut BlockWriter, at: usize, size: usize) -> &mut [u8] {
    let at = at.checked_sub(memory.committed()).expect("shared records do not change");
    &mut memory.spare()[at..at + size]
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({}..{}, {} bytes)", self.first, self.next(), self.used)
    }
}

pub(crate) struct AlignedBuffer {
    storage: Box<[u8]>,
    start: usize,
    size: usize,
}

impl AlignedBuffer {
    pub(crate) fn new(size: usize) -> AlignedBuffer {
        let storage = vec![0; size + BLOCK_SIZE].into_boxed_slice();
        // The box does not move its bytes, so the offset stays valid.
        let start = storage.as_ptr().addr().wrapping_neg() % BLOCK_SIZE;
        AlignedBuffer { storage, start, size }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.size]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.size]
    }
}

#[cfg(test)]
impl Batch {
    /// Adds a payload that panics when it is copied.
    pub(crate) fn push_panicking(&mut self, size: usize) {
        self.unbuilt.push(&BlockWriter::new(1).share(), 0..size, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::RecordKind;

    #[test]
    fn a_batch_is_what_was_pushed_and_begins_anew() {
        let mut batch = Batch::new(2 * BLOCK_SIZE);
        for round in 0..3_u64 {
            batch.begin(10 + round, 77);
            let payload: &[u8] = &[9; 100];
            let record = Record { kind: RecordKind::Loss, subject: b"a.b", headers: b"h", payload };
            assert_eq!(batch.push(&record), Ok(10 + round));
            if round == 1 {
                batch.build();
            }
            assert_eq!(batch.push(&Record::new(b"", b"")), Ok(11 + round));
            // The CRC is computed before, in between, and by `seal` alone.
            if round == 0 {
                batch.build();
            }
            let crc = batch.seal(1, 2, 3, 4);
            let header = BatchHeader::read(batch.bytes()).expect("it was sealed");
            assert_eq!(header.body_crc, crc32c::crc32c(&batch.bytes()[BATCH_HEADER_SIZE..]));
            assert_eq!((header.crc, header.count, header.last()), (crc, 2, 11 + round));
            assert_eq!(batch.bytes().len(), BLOCK_SIZE);
            assert_eq!(batch.bytes().as_ptr().addr() % BLOCK_SIZE, 0);
            let records: Vec<_> = batch.records().collect();
            assert_eq!(records, [(10 + round, record), (11 + round, Record::new(b"", b""))]);
        }
    }

    fn sealed(push: impl FnOnce(&mut Batch)) -> (Vec<u8>, Batch) {
        let mut batch = Batch::new(8 * BLOCK_SIZE);
        batch.begin(7, 77);
        push(&mut batch);
        batch.seal(1, 2, 3, 4);
        assert_eq!(batch.bytes().as_ptr().addr() % BLOCK_SIZE, 0);
        (batch.bytes().to_vec(), batch)
    }

    fn block(first: u8) -> (BlockWriter, SharedBlock) {
        let mut block = BlockWriter::new(8192);
        let bytes: Vec<u8> = (0..8192_u32).map(|at| first.wrapping_add((at % 251) as u8)).collect();
        block.append(&bytes).expect("there is room");
        let shared = block.share();
        (block, shared)
    }

    #[test]
    fn payloads_in_blocks_make_the_same_batch_and_the_blocks_are_released_when_it_is_built() {
        let blocks = [block(1), block(99)];
        let ranges = [(0, 0..3000), (0, 3000..3100), (1, 5..5005), (0, 0..8192), (0, 1..1025)];
        let record = |(from, range): &(usize, Range<usize>)| {
            let payload = blocks[*from].1.bytes(range.clone());
            Record { kind: RecordKind::Ordinary, subject: b"a.b", headers: b"h", payload: payload.to_vec() }
        };
        let records: Vec<_> = ranges.iter().map(record).collect();
        let plain = |at: usize| records[at].with_payload(&records[at].payload[..]);
        let (copied, _) = sealed(|batch| {
            (0..records.len()).for_each(|at| assert_eq!(batch.push(&plain(at)), Ok(7 + at as u64)));
        });
        let push = |batch: &mut Batch, at: usize| {
            let (from, range) = ranges[at].clone();
            assert_eq!(batch.push_shared(&plain(at), &blocks[from].1, range), Ok(7 + at as u64));
        };
        let (late, _) = sealed(|batch| (0..ranges.len()).for_each(|at| push(batch, at)));
        let (twice, batch) = sealed(|batch| {
            (0..3).for_each(|at| push(batch, at));
            assert_eq!(batch.unbuilt_size(), 8000, "a short payload is copied at once");
            batch.build();
            assert_eq!((batch.unbuilt_size(), batch.records().count()), (0, 3));
            (3..ranges.len()).for_each(|at| push(batch, at));
            batch.build();
        });
        assert!(late == copied && twice == copied);
        let read: Vec<_> = batch.records().map(|(_, record)| record).collect();
        assert_eq!(read, (0..records.len()).map(plain).collect::<Vec<_>>());
        for (mut writer, shared) in blocks {
            assert!(!writer.reset());
            drop(shared);
            assert!(writer.reset(), "no batch refers to it");
        }
    }

    #[test]
    fn a_discarded_batch_releases_its_blocks() {
        let (mut writer, shared) = block(0);
        let mut batch = Batch::new(8 * BLOCK_SIZE);
        let payload = shared.bytes(0..2000);
        batch.push_shared(&Record::new(b"a", payload), &shared, 0..2000).expect("there is room");
        drop(shared);
        assert!(!writer.reset());
        assert!(batch.reset() && writer.reset());
        batch.begin(1, 0);
        assert_eq!((batch.unbuilt_size(), batch.is_empty()), (0, true));
    }

    #[test]
    #[should_panic(expected = "is built before its records are read")]
    fn records_that_are_not_there_yet_cannot_be_read() {
        let (_, shared) = block(0);
        let mut batch = Batch::new(8 * BLOCK_SIZE);
        let payload = shared.bytes(0..2000);
        batch.push_shared(&Record::new(b"a", payload), &shared, 0..2000).expect("there is room");
        let _ = batch.records();
    }

    #[test]
    fn shared_records_stay_while_more_are_added_and_the_batch_begins_anew_without_references() {
        let mut batch = Batch::new(2 * BLOCK_SIZE);
        batch.begin(1, 0);
        batch.push(&Record::new(b"a", b"first")).expect("there is room");
        let mut shared = batch.share();
        let first = batch.last_range(5);
        batch.push(&Record::new(b"a", b"second")).expect("there is room");
        let second = batch.last_range(6);
        assert!(batch.extend(&mut shared));
        assert_eq!((shared.bytes(first), shared.bytes(second.clone())), (&b"first"[..], &b"second"[..]));
        let ranges: Vec<_> = batch.records().map(|(_, record)| batch.payload_range(&record)).collect();
        assert_eq!(ranges[1], Some(second.clone()));
        assert!(batch.is_shared() && !batch.reset());
        assert_eq!(shared.bytes(second), b"second");
        drop(shared);
        assert!(!batch.is_shared() && batch.reset());
    }

    #[test]
    #[should_panic(expected = "is not reused while references")]
    fn a_batch_with_references_does_not_begin() {
        let mut batch = Batch::new(BLOCK_SIZE);
        let _shared = batch.share();
        batch.begin(1, 0);
    }

    #[test]
    fn a_full_batch_and_an_oversized_record_are_distinct_errors() {
        let mut batch = Batch::new(BLOCK_SIZE);
        let longest = vec![1; BLOCK_SIZE - BATCH_HEADER_SIZE - 12];
        let too_long = vec![1; longest.len() + 1];
        assert_eq!(batch.push(&Record::new(b"", &too_long)), Err(BatchPushError::TooLarge));
        assert_eq!(batch.push(&Record::new(b"", &longest)), Ok(1));
        assert_eq!(batch.push(&Record::new(b"", b"")), Err(BatchPushError::Full));
        let subject = vec![b'a'; crate::limits::SUBJECT_SIZE_MAX + 1];
        assert_eq!(batch.push(&Record::new(&subject, b"")), Err(BatchPushError::TooLarge));
        assert_eq!(batch.count(), 1);
    }

    #[test]
    fn a_limit_rejects_records_beyond_it_but_never_the_first() {
        let mut batch = Batch::new(4 * BLOCK_SIZE);
        let size = Record::new(b"", &[1; 1000]).size().expect("it is short");
        batch.begin_within(1, 0, BATCH_HEADER_SIZE + 2 * size);
        for sequence in [1, 2] {
            assert_eq!(batch.push(&Record::new(b"", &[1; 1000])), Ok(sequence));
        }
        assert_eq!(batch.push(&Record::new(b"", b"")), Err(BatchPushError::Full));
        batch.begin_within(3, 0, 1);
        assert_eq!(batch.push(&Record::new(b"", &[1; 9000])), Ok(3));
        assert_eq!(batch.push(&Record::new(b"", b"")), Err(BatchPushError::Full));
        // The limit applies to one use of the batch.
        batch.begin(4, 0);
        for sequence in 4..14 {
            assert_eq!(batch.push(&Record::new(b"", &[1; 1000])), Ok(sequence));
        }
    }
}
