//! Reading one segment from its first to its last byte, whatever the bytes are, and judging what of it counts.
//!
//! Scanning reads every block once. A batch whose head is whole says how long it is, even if its body is bad; where no
//! whole head is, the scan goes on at the next block. Judging then tells three things apart:
//!
//! ```text
//!   good │ good │ bad │ good (watermark ≥ the bad one's sequences)     damage: it had been synced; skipped, reported
//!   good │ good │ bad │ good (watermark below them)                    torn: written together, cut off before the bad one
//!   good │ good │ bad │ nothing                                        torn
//! ```
//!
//! Bytes that could not be read are none of these: an error of the system ends the scan, and nothing is judged.
//!
//! The watermark in a batch is what had been synced when it was written, so one that covers a bad place proves that the
//! bytes were good once. Nothing proves that for the last write before a crash: it may have been acknowledged
//! or not, and is reported as that.

use std::io;

use stilling_ring::planted;

use crate::disk::DiskFile;
use crate::finding::OpenError;
use crate::format::batch::{BATCH_HEADER_SIZE, BatchHeader};
use crate::format::is_blank;
use crate::format::record::RECORD_HEADER_SIZE;
use crate::limits::{BLOCK_SIZE, READ_SIZE, SEQUENCE_MAX};

/// What is known of a segment before its batches are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedSegment {
    pub(crate) first: u64,
    /// The stream's, unless no header of any segment could be read.
    pub(crate) stream_id: Option<u64>,
    /// The segment's, unless its header could not be read.
    pub(crate) epoch: Option<u64>,
    pub(crate) chain: Option<u32>,
    /// How many bytes the file has until it is ended cleanly, unless the header could not be read or the file may have
    /// been cut to what counts in it.
    pub(crate) size: Option<u64>,
}

impl ExpectedSegment {
    /// Whether a batch with this head belongs to the segment at all.
    pub(crate) fn admits(&self, header: &BatchHeader) -> bool {
        self.stream_id.is_none_or(|id| id == header.stream_id)
            && self.epoch.is_none_or(|epoch| epoch == header.epoch)
            && header.first >= self.first
    }
}

/// A stretch of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScannedRange {
    /// A batch with a whole head.
    Batch { offset: u64, header: BatchHeader, is_good: bool },
    /// Blocks that are no batch, `written` of whose bytes belong to blocks that are not blank.
    Other { offset: u64, length: u64, written: u64 },
}

/// Bytes that the system could not read.
#[derive(Debug)]
pub(crate) struct ReadError {
    pub(crate) offset: u64,
    pub(crate) source: io::Error,
}

impl ReadError {
    /// The error of the whole journal, with the file.
    pub(crate) fn in_file(self, place: &str, file: &str) -> io::Error {
        let ReadError { offset, source } = self;
        io::Error::new(source.kind(), format!("cannot read {place}/{file} at {offset}: {source}"))
    }

    /// The error of an opening, with the file.
    pub(crate) fn at_opening(self, place: &str, file: &str) -> OpenError {
        OpenError::Disk { place: format!("{place}/{file} at {}", self.offset), source: self.source }
    }
}

/// Reads all batches of a segment. The memory it needs is one read, and 64 bytes per batch or hole.
///
/// # Errors
/// [`ReadError`] if a block cannot be read.
pub(crate) fn scan(
    file: &impl DiskFile,
    size: u64,
    expected: &mut ExpectedSegment,
) -> Result<Vec<ScannedRange>, ReadError> {
    let mut scanned_ranges = Vec::new();
    let mut window = FileWindow::new(size);
    let mut offset = BLOCK_SIZE as u64;
    while offset < size {
        let block = match window.get(file, offset, BLOCK_SIZE) {
            Err(_) if planted!("unread block") => &[0; BLOCK_SIZE],
            outcome => outcome?,
        };
        let header = BatchHeader::read(block).filter(|header| expected.admits(header));
        match header {
            Some(header) => {
                // Where no header of a segment could be read, the first batch says whose it is.
                expected.stream_id.get_or_insert(header.stream_id);
                let length = u64::from(header.length);
                let is_good = body_crc(&mut window, file, offset, length)? == Some(header.body_crc);
                scanned_ranges.push(ScannedRange::Batch { offset, header, is_good });
                offset += length;
            }
            None => {
                let here = (size - offset).min(BLOCK_SIZE as u64);
                let here_written = if !block.is_empty() && is_blank(block) { 0 } else { here };
                match scanned_ranges.last_mut() {
                    Some(ScannedRange::Other { length, written, .. }) => {
                        *length += here;
                        *written += here_written;
                    }
                    _ => scanned_ranges.push(ScannedRange::Other {
                        offset,
                        length: here,
                        written: here_written,
                    }),
                }
                offset += here;
            }
        }
    }
    Ok(scanned_ranges)
}

/// The CRC of a batch behind its head, read in pieces; nothing if the file ends before the batch.
fn body_crc(
    window: &mut FileWindow,
    file: &impl DiskFile,
    offset: u64,
    length: u64,
) -> Result<Option<u32>, ReadError> {
    let (mut crc, mut at, end) = (0, offset + BATCH_HEADER_SIZE as u64, offset + length);
    while at < end {
        let piece = window.get_buffered(file, at, end - at)?;
        if piece.is_empty() {
            return Ok(None);
        }
        crc = crc32c::crc32c_append(crc, piece);
        at += piece.len() as u64;
    }
    Ok(Some(crc))
}

/// A part of a file in memory.
pub(crate) struct FileWindow {
    size: u64,
    start: u64,
    filled: usize,
    bytes: Vec<u8>,
}

impl FileWindow {
    /// Over a file of `size` bytes, of which nothing beyond is asked for.
    pub(crate) fn new(size: u64) -> FileWindow {
        FileWindow { size, start: 0, filled: 0, bytes: Vec::new() }
    }

    /// Bytes from `offset` on: `length` of them, or up to the end of the file if that comes first.
    ///
    /// # Errors
    /// If what was asked for cannot be read; that what lies behind it cannot is no error yet.
    pub(crate) fn get(
        &mut self,
        file: &impl DiskFile,
        offset: u64,
        length: usize,
    ) -> Result<&[u8], ReadError> {
        let left = self.size.saturating_sub(offset);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(length);
        if length == 0 {
            return Ok(&[]);
        }
        let buffered = self.buffered(offset);
        if buffered < length {
            let ahead = usize::try_from(self.size - offset).unwrap_or(usize::MAX).min(READ_SIZE);
            if self.fill(file, offset, length.max(ahead)).is_err() {
                self.fill(file, offset, length).map_err(|source| ReadError { offset, source })?;
            }
        }
        Ok(self.slice(offset, length))
    }

    /// As many bytes from `offset` on as are held, at most `length`, at least one if there is one.
    fn get_buffered(&mut self, file: &impl DiskFile, offset: u64, length: u64) -> Result<&[u8], ReadError> {
        let buffered = self.buffered(offset);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.get(file, offset, if buffered == 0 { BLOCK_SIZE.min(length) } else { buffered.min(length) })?;
        Ok(self.slice(offset, length))
    }

    /// What is held from `offset` on, at most `length` bytes.
    fn slice(&self, offset: u64, length: usize) -> &[u8] {
        let length = self.buffered(offset).min(length);
        let start = if length == 0 { 0 } else { (offset - self.start) as usize };
        &self.bytes[start..start + length]
    }

    /// Whether the file has grown beyond what this window was told.
    pub(crate) fn is_shorter_than(&self, size: u64) -> bool {
        self.size < size
    }

    /// Forgets what is held, and takes the file to be `size` bytes long.
    pub(crate) fn reset(&mut self, size: u64) {
        (self.size, self.filled) = (size, 0);
    }

    fn buffered(&self, offset: u64) -> usize {
        let end = self.start + self.filled as u64;
        if (self.start..end).contains(&offset) { (end - offset) as usize } else { 0 }
    }

    fn fill(&mut self, file: &impl DiskFile, offset: u64, length: usize) -> io::Result<()> {
        if self.bytes.len() < length {
            self.bytes.resize(length, 0);
        }
        (self.start, self.filled) = (offset, 0);
        self.filled = file.read_at(offset, &mut self.bytes[..length])?;
        Ok(())
    }
}

/// What counts of a segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegmentAnalysis {
    /// The last sequence that counts, lost ones included; one before the first if there is none.
    pub(crate) last: u64,
    /// Where the last batch that counts ends.
    pub(crate) end: u64,
    /// The CRC of the last batch that counts.
    pub(crate) chain: u32,
    /// The time of the last batch that counts.
    pub(crate) newest_ns: u64,
    /// The highest epoch seen.
    pub(crate) epoch: u64,
    /// Records that are there.
    pub(crate) records: u64,
    /// Whether the last thing is the empty batch that a clean end leaves.
    pub(crate) is_ended: bool,
    /// Where bytes are bad that were good once: offset, length, and the sequences that are gone (none if the last is
    /// below the first).
    pub(crate) damages: Vec<(u64, u64, u64, u64)>,
    /// Where the batches that count begin of which nothing proves that they were synced.
    pub(crate) unsynced: Option<u64>,
    /// Where what may never have been acknowledged begins, and the highest sequence that it can have had.
    pub(crate) torn: Option<(u64, u64)>,
}

/// Says what counts of what [`scan`] found in a file of `size` bytes; `known` is the last sequence that is known to have
/// been synced.
pub(crate) fn analyze_segment(
    scanned_ranges: &[ScannedRange],
    size: u64,
    expected: &ExpectedSegment,
    known: u64,
) -> SegmentAnalysis {
    let proven = scanned_ranges.iter().fold(known, |proven, scanned_range| match scanned_range {
        ScannedRange::Batch { header, .. } => proven.max(header.watermark),
        ScannedRange::Other { .. } => proven,
    });
    let start = BLOCK_SIZE as u64;
    let mut analysis = SegmentAnalysis { last: expected.first - 1, end: start, ..SegmentAnalysis::default() };
    analysis.chain = expected.chain.unwrap_or(0);
    let mut chain = expected.chain;
    let mut is_cut = false;
    let mut bad_range: Option<BadRange> = None;
    for scanned_range in scanned_ranges {
        let ScannedRange::Batch { offset, header, is_good } = *scanned_range else {
            let ScannedRange::Other { offset, length, written } = *scanned_range else { continue };
            bad_range.get_or_insert_with(|| BadRange::at(offset)).take(offset + length, written, 0);
            continue;
        };
        analysis.epoch = analysis.epoch.max(header.epoch);
        let end = offset + u64::from(header.length);
        let next = analysis.last + 1;
        let follows = bad_range.is_none()
            && header.first == next
            && chain.is_none_or(|chain| chain == header.previous_crc);
        // Behind a hole only what comes later than a sequence that is proven to have been durable counts.
        let resumes = header.first >= next && next <= proven;
        if !is_good || is_cut || !(follows || resumes) {
            bad_range.get_or_insert_with(|| BadRange::at(offset)).take(
                end,
                u64::from(header.length),
                header.last(),
            );
            is_cut |= next > proven;
            continue;
        }
        if let Some(bad_range) = bad_range.take() {
            analysis.damages.push((bad_range.offset, offset - bad_range.offset, next, header.first - 1));
        } else if !follows {
            analysis.damages.push((offset, 0, next, header.first - 1));
        }
        if header.count > 0 && header.last() > proven {
            analysis.unsynced.get_or_insert(offset);
        }
        analysis.records += u64::from(header.count);
        (analysis.last, analysis.end, analysis.newest_ns) = (header.last(), end, header.time_ns);
        chain = Some(header.crc);
        analysis.chain = header.crc;
    }
    // A file is shorter than it was made only if it was ended cleanly, with an empty batch, or was cut by something else.
    let ends_cleanly = match scanned_ranges.last() {
        Some(ScannedRange::Batch { header, .. }) => bad_range.is_none() && header.count == 0,
        _ => false,
    };
    analysis.is_ended = ends_cleanly;
    if let Some(whole) = expected.size.filter(|whole| *whole > size && !ends_cleanly) {
        bad_range.get_or_insert_with(|| BadRange::at(size)).take(whole, whole - size, 0);
    }
    let bad_range = bad_range.unwrap_or_else(|| BadRange::at(analysis.end));
    let next = analysis.last + 1;
    if next <= proven {
        analysis.damages.push((bad_range.offset, bad_range.end - bad_range.offset, next, proven));
        analysis.last = proven;
    }
    if bad_range.written > 0 {
        let told = bad_range.last.max(analysis.last);
        let possible = analysis.last.saturating_add(bad_range.unknown / RECORD_HEADER_SIZE as u64);
        analysis.torn = Some((bad_range.offset, told.max(possible).min(SEQUENCE_MAX)));
    }
    analysis
}

/// Something between two batches that count, or behind the last.
struct BadRange {
    offset: u64,
    end: u64,
    /// Bytes of blocks that are not blank.
    written: u64,
    /// Those of them that no whole head accounts for.
    unknown: u64,
    /// The highest sequence that a whole head in it claims.
    last: u64,
}

impl BadRange {
    fn at(offset: u64) -> BadRange {
        BadRange { offset, end: offset, written: 0, unknown: 0, last: 0 }
    }

    fn take(&mut self, end: u64, written: u64, last: u64) {
        self.end = end;
        self.written += written;
        self.last = self.last.max(last);
        if last == 0 {
            self.unknown += written;
        }
    }
}
