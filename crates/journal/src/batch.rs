//! Building a batch in the memory that goes to the disk.
//!
//! Records are written once, straight to where the kernel takes them from: at block boundaries, since O_DIRECT wants
//! that. The journal fills in late what the writer cannot know: epoch, watermark, the CRC of the batch before. A
//! batch that has been written is begun anew; it allocates when it is made and never again.
//!
//! Alignment without `unsafe`: a little more memory than needed, used from its first block boundary on.

use std::fmt;

use crate::format::batch::{BATCH_HEADER_SIZE, BatchHeader};
use crate::format::put;
use crate::format::record::{Record, Records};
use crate::limits::{BATCH_SIZE_MAX, BLOCK_SIZE};

/// Why a record is not in the batch. It is unchanged and the caller's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// This batch has no room for it; the next one may.
    Full,
    /// It is longer than any batch of this size can take, or its subject than any subject may be.
    TooLarge,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Full => "the batch is full: it has to be written before more records fit",
            Refused::TooLarge => {
                "the record is longer than a batch can be: make batches larger or messages smaller"
            }
        })
    }
}

impl std::error::Error for Refused {}

/// A number of records that become durable together, in memory that can be written as it is.
pub struct Batch {
    memory: Aligned,
    used: usize,
    /// Bytes up to which records are added to the first one.
    limit: usize,
    first: u64,
    count: u32,
    time_ns: u64,
    /// The CRC of all records that are in it, if somebody has taken it.
    sum: Option<u32>,
}

impl Batch {
    /// A batch of at most `size` bytes with its header, rounded up to whole blocks and cut to [`BATCH_SIZE_MAX`]. The
    /// memory is allocated here, once; the system backs it as it is first used.
    #[must_use]
    pub fn new(size: usize) -> Batch {
        let size = size.clamp(1, BATCH_SIZE_MAX).next_multiple_of(BLOCK_SIZE);
        Batch {
            memory: Aligned::new(size),
            used: BATCH_HEADER_SIZE,
            limit: size,
            first: 1,
            count: 0,
            time_ns: 0,
            sum: None,
        }
    }

    /// Forgets what is in it and begins with the record that will be `first`, at `time_ns` (Unix time in
    /// nanoseconds), which is the time of all records in the batch.
    pub fn begin(&mut self, first: u64, time_ns: u64) {
        self.begin_within(first, time_ns, usize::MAX);
    }

    /// The same with a limit of `limit` bytes, header included: a record that would pass it is [`Refused::Full`], unless the
    /// batch is empty.
    pub fn begin_within(&mut self, first: u64, time_ns: u64, limit: usize) {
        self.used = BATCH_HEADER_SIZE;
        self.limit = limit;
        self.first = first;
        self.count = 0;
        self.time_ns = time_ns;
        self.sum = None;
    }

    /// Puts a record behind the others and says which sequence it has.
    ///
    /// # Errors
    /// [`Refused::Full`] if it does not fit any more, [`Refused::TooLarge`] if it never would.
    pub fn push(&mut self, record: &Record<'_>) -> Result<u64, Refused> {
        let size = record.size().ok_or(Refused::TooLarge)?;
        let is_within = self.count == 0 || self.used + size <= self.limit;
        let bytes = self.memory.bytes_mut();
        let Some(place) = bytes.get_mut(self.used..self.used + size).filter(|_| is_within) else {
            let fits_alone = size <= bytes.len() - BATCH_HEADER_SIZE;
            return Err(if fits_alone { Refused::Full } else { Refused::TooLarge });
        };
        record.write(place);
        self.used += size;
        self.sum = None;
        let sequence = self.first + u64::from(self.count);
        self.count += 1;
        Ok(sequence)
    }

    /// How many records are in it.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether there is no record in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The sequence of its first record.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The sequence that the next record gets.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// The time of its records, Unix time in nanoseconds.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Bytes that it takes on disk now, padding included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.used.next_multiple_of(BLOCK_SIZE)
    }

    /// Its records, as they will be read.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.memory.bytes()[BATCH_HEADER_SIZE..self.used], self.first, self.count)
    }

    /// Takes the CRC of what is in it: for the thread that has filled it, which has it in its caches, so that the one that
    /// writes need not look at it at all.
    pub(crate) fn take_sum(&mut self) {
        self.sum = Some(crc32c::crc32c(&self.memory.bytes()[BATCH_HEADER_SIZE..self.used]));
    }

    /// Pads it and fills in its header. Returns its CRC, which the next batch carries.
    pub(crate) fn seal(&mut self, stream_id: u64, epoch: u64, watermark: u64, previous_crc: u32) -> u32 {
        if self.sum.is_none() {
            self.take_sum();
        }
        let size = self.size();
        let batch = &mut self.memory.bytes_mut()[..size];
        let padding = &mut batch[self.used..];
        padding.fill(0);
        let body_crc = crc32c::crc32c_append(self.sum.unwrap_or_default(), padding);
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

    /// What goes to the disk once it is sealed.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.size()]
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({}..{}, {} bytes)", self.first, self.next(), self.used)
    }
}

/// Memory that begins at a block boundary.
pub(crate) struct Aligned {
    storage: Box<[u8]>,
    start: usize,
    size: usize,
}

impl Aligned {
    pub(crate) fn new(size: usize) -> Aligned {
        let storage = vec![0; size + BLOCK_SIZE].into_boxed_slice();
        // The box never moves its bytes, so the offset holds for its life.
        let start = storage.as_ptr().addr().wrapping_neg() % BLOCK_SIZE;
        Aligned { storage, start, size }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.size]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::Kind;

    #[test]
    fn a_batch_is_what_was_pushed_and_begins_anew() {
        let mut batch = Batch::new(2 * BLOCK_SIZE);
        for round in 0..3_u64 {
            batch.begin(10 + round, 77);
            let record = Record { kind: Kind::Loss, subject: b"a.b", headers: b"h", payload: &[9; 100] };
            assert_eq!(batch.push(&record), Ok(10 + round));
            if round == 1 {
                batch.take_sum();
            }
            assert_eq!(batch.push(&Record::new(b"", b"")), Ok(11 + round));
            // Taken before, too early, and not at all.
            if round == 0 {
                batch.take_sum();
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

    #[test]
    fn a_full_batch_and_a_record_without_hope_are_told_apart() {
        let mut batch = Batch::new(BLOCK_SIZE);
        let longest = vec![1; BLOCK_SIZE - BATCH_HEADER_SIZE - 12];
        let too_long = vec![1; longest.len() + 1];
        assert_eq!(batch.push(&Record::new(b"", &too_long)), Err(Refused::TooLarge));
        assert_eq!(batch.push(&Record::new(b"", &longest)), Ok(1));
        assert_eq!(batch.push(&Record::new(b"", b"")), Err(Refused::Full));
        let subject = vec![b'a'; crate::limits::SUBJECT_SIZE_MAX + 1];
        assert_eq!(batch.push(&Record::new(&subject, b"")), Err(Refused::TooLarge));
        assert_eq!(batch.count(), 1);
    }

    #[test]
    fn a_limit_refuses_what_would_pass_it_and_never_the_first_record() {
        let mut batch = Batch::new(4 * BLOCK_SIZE);
        let size = Record::new(b"", &[1; 1000]).size().expect("it is short");
        batch.begin_within(1, 0, BATCH_HEADER_SIZE + 2 * size);
        for sequence in [1, 2] {
            assert_eq!(batch.push(&Record::new(b"", &[1; 1000])), Ok(sequence));
        }
        assert_eq!(batch.push(&Record::new(b"", b"")), Err(Refused::Full));
        batch.begin_within(3, 0, 1);
        assert_eq!(batch.push(&Record::new(b"", &[1; 9000])), Ok(3));
        assert_eq!(batch.push(&Record::new(b"", b"")), Err(Refused::Full));
        // The limit goes with the next beginning.
        batch.begin(4, 0);
        for sequence in 4..14 {
            assert_eq!(batch.push(&Record::new(b"", &[1; 1000])), Ok(sequence));
        }
    }
}
