//! Makes the end of a stream durable when it is opened.
//!
//! A batch that recovery finds intact may exist only in the page cache or in the disk's own cache: its process was
//! killed between write and sync, or the sync failed and left the pages marked as clean. If it were trusted, a retried
//! message would be acknowledged as stored, and a power failure would revoke that. A sync alone has no effect on pages
//! marked as clean, so the bytes are written again, durably, in place. A write of identical bytes is harmless even if
//! interrupted.
//!
//! The directory is synced too, to cover earlier removals.
//!
//! Affected are the batches that no watermark in a later batch proves to have been synced: the last write, at most 16
//! batches. A stream that was closed has none.

use std::io::IoSlice;

use crate::batch::AlignedBuffer;
use crate::disk::{Disk, DiskFile};
use crate::finding::OpenError;
use crate::limits::READ_SIZE;
use crate::scan::ReadError;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnsyncedTail {
    pub(crate) file: String,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

pub(crate) fn make_durable<D: Disk>(disk: &D, unsynced: &UnsyncedTail) -> Result<(), OpenError> {
    let UnsyncedTail { file, start, end } = unsynced;
    let location = || format!("{}/{file}", disk.location());
    let reader = disk.open(file).map_err(|source| OpenError::Disk { location: location(), source })?;
    let mut writer =
        disk.open_to_write(file).map_err(|source| OpenError::Write { location: location(), source })?;
    let mut memory = AlignedBuffer::new(READ_SIZE);
    let mut offset = *start;
    while offset < *end {
        let length = usize::try_from(*end - offset).unwrap_or(READ_SIZE).min(READ_SIZE);
        let bytes = &mut memory.bytes_mut()[..length];
        let error = |source| ReadError { offset, source }.at_opening(&disk.location(), file);
        if reader.read_at(offset, bytes).map_err(error)? < length {
            return Err(error(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let written = writer.write_durable(offset, &mut [IoSlice::new(bytes)]);
        let location = || format!("{} at {offset}", location());
        written.map_err(|source| OpenError::Write { location: location(), source })?;
        offset += length as u64;
    }
    // Otherwise a segment that was created and removed could come back, and its header would exclude these bytes.
    disk.sync().map_err(|source| OpenError::Write { location: disk.location(), source })
}
