//! Scans one segment from its first to its last byte, whatever its content, and determines which part of it is valid.
//!
//! The scan reads every block once. A batch with an intact header has a known length, even if its body is damaged;
//! without an intact header the scan continues at the next block. The analysis then distinguishes:
//!
//! ```text
//!   good │ good │ bad │ good (watermark ≥ the bad batch's sequences)  damage: it had been synced; skipped, reported
//!   good │ good │ bad │ good (watermark below them)                   torn: written together, cut off from there
//!   good │ good │ bad │ nothing                                       torn
//! ```
//!
//! Unreadable bytes are none of these: an I/O error ends the scan, and nothing is analyzed.
//!
//! The watermark in a batch is the last sequence synced when it was written, so one that covers a bad position proves
//! that the bytes were good once. There is no such proof for the last write before a crash: it may or may not have been
//! acknowledged, and is reported as such.

use std::io;

use stilling_ring::planted;

use crate::disk::DiskFile;
use crate::finding::OpenError;
use crate::format::batch::{BATCH_HEADER_SIZE, BatchHeader};
use crate::format::is_blank;
use crate::format::record::RECORD_HEADER_SIZE;
use crate::limits::{BLOCK_SIZE, READ_SIZE, SEQUENCE_MAX};

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedSegment {
    pub(crate) first: u64,
    /// The stream's id, unless no header of any segment could be read.
    pub(crate) stream_id: Option<u64>,
    /// The segment's epoch, unless its header could not be read.
    pub(crate) epoch: Option<u64>,
    pub(crate) chain: Option<u32>,
    /// Bytes of the file until it is closed cleanly; `None` if the header could not be read or the file may have been
    /// truncated to its valid content.
    pub(crate) size: Option<u64>,
}

impl ExpectedSegment {
    /// Whether a batch with this header belongs to the segment.
    pub(crate) fn admits(&self, header: &BatchHeader) -> bool {
        self.stream_id.is_none_or(|id| id == header.stream_id)
            && self.epoch.is_none_or(|epoch| epoch == header.epoch)
            && header.first >= self.first
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ScannedRange {
    /// A batch with an intact header.
    Batch { offset: u64, header: BatchHeader, is_good: bool },
    /// Blocks without a batch; `written` is the number of bytes in blocks that are not blank.
    Other { offset: u64, length: u64, written: u64 },
}

#[derive(Debug)]
pub(crate) struct ReadError {
    pub(crate) offset: u64,
    pub(crate) source: io::Error,
}

impl ReadError {
    pub(crate) fn in_file(self, location: &str, file: &str) -> io::Error {
        let ReadError { offset, source } = self;
        io::Error::new(source.kind(), format!("cannot read {location}/{file} at {offset}: {source}"))
    }

    pub(crate) fn at_opening(self, location: &str, file: &str) -> OpenError {
        OpenError::Disk { location: format!("{location}/{file} at {}", self.offset), source: self.source }
    }
}

/// Reads all batches of a segment. Uses the memory of one read, and 64 bytes per batch or hole.
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
                // If no header of a segment could be read, the first batch determines the stream.
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

/// The CRC of a batch's body, read in pieces; `None` if the file ends before the batch.
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

pub(crate) struct FileWindow {
    size: u64,
    start: u64,
    filled: usize,
    bytes: Vec<u8>,
}

impl FileWindow {
    pub(crate) fn new(size: u64) -> FileWindow {
        FileWindow { size, start: 0, filled: 0, bytes: Vec::new() }
    }

    /// `length` bytes from `offset` on, or up to the end of the file if that comes first.
    ///
    /// # Errors
    /// If the requested bytes cannot be read; a failure of the read-ahead after them is no error yet.
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

    /// As many buffered bytes from `offset` on as there are, at most `length`, at least one unless the file ends.
    fn get_buffered(&mut self, file: &impl DiskFile, offset: u64, length: u64) -> Result<&[u8], ReadError> {
        let buffered = self.buffered(offset);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.get(file, offset, if buffered == 0 { BLOCK_SIZE.min(length) } else { buffered.min(length) })?;
        Ok(self.slice(offset, length))
    }

    fn slice(&self, offset: u64, length: usize) -> &[u8] {
        let length = self.buffered(offset).min(length);
        let start = if length == 0 { 0 } else { (offset - self.start) as usize };
        &self.bytes[start..start + length]
    }

    /// Whether the file has grown beyond the size of this window.
    pub(crate) fn is_shorter_than(&self, size: u64) -> bool {
        self.size < size
    }

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

/// The valid content of a segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegmentAnalysis {
    /// The last valid sequence, damaged records included; one before the first if there is none.
    pub(crate) last: u64,
    /// The end of the last valid batch.
    pub(crate) end: u64,
    pub(crate) chain: u32,
    pub(crate) newest_ns: u64,
    pub(crate) epoch: u64,
    pub(crate) records: u64,
    /// Whether the segment ends with the empty batch of a clean close.
    pub(crate) is_ended: bool,
    /// Damaged ranges: offset, length, first and last lost sequence (none if the last is below the first).
    pub(crate) damages: Vec<(u64, u64, u64, u64)>,
    /// Offset of the first valid batch that is not proven to have been synced.
    pub(crate) unsynced: Option<u64>,
    /// Offset of the torn end, which may never have been acknowledged, and the highest sequence that it may contain.
    pub(crate) torn: Option<(u64, u64)>,
}

/// Analyzes the ranges that [`scan`] found in a file of `size` bytes; `known` is the last sequence known to have been
/// synced.
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
        // After a hole, a batch is valid only if the missing sequence is proven to have been durable.
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
    // A file is shorter than its original size only after a clean close, with an empty batch, or if another program
    // truncated it.
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
        let claimed = bad_range.last.max(analysis.last);
        let possible = analysis.last.saturating_add(bad_range.unknown / RECORD_HEADER_SIZE as u64);
        analysis.torn = Some((bad_range.offset, claimed.max(possible).min(SEQUENCE_MAX)));
    }
    analysis
}

/// A range between two valid batches, or after the last.
struct BadRange {
    offset: u64,
    end: u64,
    /// Bytes of blocks that are not blank.
    written: u64,
    /// Those of these bytes that no intact header covers.
    unknown: u64,
    /// The highest sequence claimed by an intact header in it.
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
