//! The file of `durable`, written past the page cache.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

/// Alignment of addresses, sizes and offsets for O_DIRECT.
pub(crate) const BLOCK_SIZE: usize = 4096;

/// Bytes by which the file's allocation grows ahead of the writes.
const ALLOCATION_SIZE: u64 = 256 * 1024 * 1024;

pub(crate) struct PreallocatedLog {
    file: File,
    end: u64,
    allocated: u64,
}

impl PreallocatedLog {
    pub(crate) fn create(path: &Path) -> io::Result<PreallocatedLog> {
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().write(true).create_new(true).custom_flags(direct).open(path)?;
        let mut log = PreallocatedLog { file, end: 0, allocated: 0 };
        log.allocate(1)?;
        log.file.sync_all()?;
        Ok(log)
    }

    fn allocate(&mut self, size: u64) -> io::Result<()> {
        while self.allocated < self.end + size {
            fallocate(&self.file, FallocateFlags::empty(), self.allocated, ALLOCATION_SIZE)?;
            self.allocated += ALLOCATION_SIZE;
        }
        Ok(())
    }

    /// Appends whole blocks at a block boundary; they are durable on return.
    pub(crate) fn append(&mut self, mut blocks: &[u8]) -> io::Result<()> {
        self.allocate(blocks.len() as u64)?;
        while !blocks.is_empty() {
            match pwritev2(&self.file, &[IoSlice::new(blocks)], self.end, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(size) => {
                    self.end += size as u64;
                    blocks = &blocks[size..];
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
