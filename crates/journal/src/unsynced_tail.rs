//! Makes durable what an opening found at the end of a stream.
//!
//! A batch that recovery finds whole may be in the page cache or in the disk's own cache only: its process was killed
//! between write and sync, or the sync failed and left the pages marked as clean. Were it trusted, a message that is sent
//! again would be acknowledged as stored, and a power failure would take it back. A sync alone proves nothing for pages that
//! are marked as clean, so the bytes are written again, durably, where they are. A write of what is there already harms
//! nothing, wherever it is cut off.
//!
//! The directory is synced too, for what was removed from it.
//!
//! Which bytes: the batches that no watermark in a batch behind them proves to have been synced. That is the last write, at
//! most 16 batches. A stream that was ended has none.

use std::io::IoSlice;

use crate::batch::AlignedBuffer;
use crate::disk::{Disk, DiskFile};
use crate::finding::OpenError;
use crate::limits::READ_SIZE;
use crate::scan::ReadError;

/// Bytes of a segment that may not be durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnsyncedTail {
    pub(crate) file: String,
    /// Where they begin and end, at block boundaries.
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Writes them again as they are.
pub(crate) fn make_durable<D: Disk>(disk: &D, unsynced: &UnsyncedTail) -> Result<(), OpenError> {
    let UnsyncedTail { file, start, end } = unsynced;
    let place = || format!("{}/{file}", disk.place());
    let reader = disk.open(file).map_err(|source| OpenError::Disk { place: place(), source })?;
    let mut writer =
        disk.open_to_write(file).map_err(|source| OpenError::Write { place: place(), source })?;
    let mut memory = AlignedBuffer::new(READ_SIZE);
    let mut offset = *start;
    while offset < *end {
        let length = usize::try_from(*end - offset).unwrap_or(READ_SIZE).min(READ_SIZE);
        let bytes = &mut memory.bytes_mut()[..length];
        let error = |source| ReadError { offset, source }.at_opening(&disk.place(), file);
        if reader.read_at(offset, bytes).map_err(error)? < length {
            return Err(error(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let written = writer.write_durable(offset, &mut [IoSlice::new(bytes)]);
        let place = || format!("{} at {offset}", place());
        written.map_err(|source| OpenError::Write { place: place(), source })?;
        offset += length as u64;
    }
    // A segment that was begun and removed again would come back, and say that less counts.
    disk.sync().map_err(|source| OpenError::Write { place: disk.place(), source })
}
