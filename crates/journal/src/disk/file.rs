//! Files of the machine.
//!
//! A durable write bypasses the page cache (O_DIRECT) and returns when the disk has stored it (RWF_DSYNC), if the file
//! system supports that; else it uses the page cache with fdatasync. The method is probed once per directory:
//! [`FileDisk::method`].
//!
//! The first write to fresh space costs more than later ones: although the space is preallocated, the write changes the
//! file's extents, and each sync then waits for the file system's own journal. Therefore, after [`ZERO_AHEAD_AFTER`]
//! small writes in a row, the next bytes of fresh space, up to [`ZERO_AHEAD_SIZE`], are zeroed without a sync, and the
//! following writes overwrite existing blocks. A write of [`ZERO_AHEAD_BELOW`] bytes or more goes to fresh space
//! directly: the file system's journal costs less than writing the bytes twice.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags, fallocate, fdatasync, statx};
use rustix::io::{Errno, ReadWriteFlags, pwritev, pwritev2};

use super::{DirectoryEntry, Disk, DiskFile, FileStatus, LockError, WriteMethod};
use crate::batch::AlignedBuffer;
use crate::format::segment::first_of;
use crate::limits::{BLOCK_SIZE, ZERO_AHEAD_AFTER, ZERO_AHEAD_BELOW, ZERO_AHEAD_SIZE, ZERO_AHEAD_SIZE_FIRST};

/// The lock file; it contains the process id of the holder.
const LOCK_FILE: &str = "lock";

/// Reads of the system's list of locks before a lock that is not in it counts as free.
const LOCK_LIST_READS: usize = 3;
const PROBE_FILE: &str = ".probe";

/// Only the server's user has access.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Treatment of fresh space before small writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreshSpace {
    /// Zeroed ahead, as the module documentation describes.
    ZeroAhead,
    /// Written directly; for measurements.
    Unzeroed,
}

/// A directory of the machine.
#[derive(Clone, Debug)]
pub struct FileDisk {
    path: Arc<Path>,
    /// The directory's descriptor, for checks that must not allocate a path.
    directory: Arc<File>,
    identity: (u64, u64),
    method: WriteMethod,
    fresh: FreshSpace,
}

impl FileDisk {
    /// The directory at `path`. It and its ancestors are created, durably, if missing, with access for this user alone.
    /// If it exists and holds a stream that other users can read, access is restricted: 0700, and 0600 for its files.
    /// Probes the method of durable writes.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn open_or_create(path: &Path) -> io::Result<FileDisk> {
        make_directories(path).map_err(|error| path_error(path, "cannot be created", &error))?;
        restrict(path).map_err(|error| path_error(path, "cannot be restricted to its owner", &error))?;
        let method = probe(path).map_err(|error| path_error(path, "cannot be written", &error))?;
        let identity = identity(path).map_err(|error| path_error(path, "cannot be read", &error))?;
        let directory = File::open(path).map_err(|error| path_error(path, "cannot be read", &error))?.into();
        Ok(FileDisk { path: path.into(), directory, identity, method, fresh: FreshSpace::ZeroAhead })
    }

    /// The existing directory at `path`, for reading.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn existing(path: &Path) -> io::Result<FileDisk> {
        fs::read_dir(path).map_err(|error| path_error(path, "cannot be read", &error))?;
        let method = WriteMethod::Buffered { reason: "opened for reading only".to_owned() };
        let identity = identity(path).map_err(|error| path_error(path, "cannot be read", &error))?;
        let directory = File::open(path).map_err(|error| path_error(path, "cannot be read", &error))?.into();
        Ok(FileDisk { path: path.into(), directory, identity, method, fresh: FreshSpace::Unzeroed })
    }

    /// Whether the directory at `path` holds a stream.
    ///
    /// # Errors
    /// The system's, if it cannot be listed.
    pub fn contains_stream(path: &Path) -> io::Result<bool> {
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name();
            if name == LOCK_FILE || name.to_str().is_some_and(|name| first_of(name).is_some()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The directory `name` in this one, created if missing. It may be on another file system.
    ///
    /// # Errors
    /// As [`open_or_create`](FileDisk::open_or_create).
    pub fn directory(&self, name: &str) -> io::Result<FileDisk> {
        FileDisk::open_or_create(&self.path.join(name))
    }

    /// The same directory with another method of durable writes, for measurements.
    #[must_use]
    pub fn with(self, method: WriteMethod, fresh: FreshSpace) -> FileDisk {
        FileDisk { method, fresh, ..self }
    }

    /// The same directory with durable writes through the page cache, for this reason, whatever the file system
    /// supports.
    #[must_use]
    pub fn buffered(self, reason: &str) -> FileDisk {
        FileDisk { method: WriteMethod::Buffered { reason: reason.to_owned() }, ..self }
    }

    /// The process that holds the lock, determined without locking: the lock file contains its id, and the system's
    /// list of locks shows whether it still holds it.
    #[must_use]
    pub fn holder(&self) -> Option<u32> {
        let path = self.path_of(LOCK_FILE);
        let process = fs::read_to_string(&path).ok()?.trim().parse().ok()?;
        let inode = fs::metadata(&path).ok()?.ino();
        let is_our_lock = |line: &str| {
            let device_and_inode = line.split_whitespace().nth(5);
            line.contains(" FLOCK ")
                && device_and_inode.is_some_and(|field| field.ends_with(&format!(":{inode}")))
        };
        // The system composes the list piece by piece: while other locks come and go, an entry may be missing.
        let is_held = || fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.lines().any(is_our_lock));
        (0..LOCK_LIST_READS).any(|_| is_held()).then_some(process)
    }

    /// The method of durable writes.
    #[must_use]
    pub fn method(&self) -> &WriteMethod {
        &self.method
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Disk for FileDisk {
    type File = OpenFile;
    type Lock = FileLock;

    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn write_method(&self) -> WriteMethod {
        self.method.clone()
    }

    fn list(&self) -> io::Result<Vec<DirectoryEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                outcome => outcome?,
            };
            if metadata.is_file() {
                let name = entry.file_name().to_string_lossy().into_owned();
                entries.push(DirectoryEntry { name, size: metadata.len() });
            }
        }
        entries.retain(|entry| entry.name != LOCK_FILE && entry.name != PROBE_FILE);
        Ok(entries)
    }

    fn create(&self, name: &str, size: u64) -> io::Result<OpenFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(FILE_MODE);
        if self.method == WriteMethod::Direct {
            options.custom_flags(direct_flag());
        }
        let file = options.open(self.path_of(name))?;
        let allocated = match fallocate(&file, FallocateFlags::empty(), 0, size) {
            // Preallocation is not supported by this file system; with the size set, unwritten bytes read as zeros.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(size),
            outcome => outcome.map_err(io::Error::from),
        };
        if let Err(error) = allocated {
            drop(file);
            // A partial file would occupy the name and space. The first error is reported.
            let _ = fs::remove_file(self.path_of(name));
            return Err(error);
        }
        let zeroed_to = match self.fresh {
            FreshSpace::ZeroAhead if self.method == WriteMethod::Direct => 0,
            _ => u64::MAX,
        };
        Ok(OpenFile { file, method: self.method.clone(), written_to: zeroed_to, small_writes: 0, size })
    }

    fn open(&self, name: &str) -> io::Result<OpenFile> {
        let file = File::open(self.path_of(name))?;
        Ok(OpenFile { file, method: self.method.clone(), written_to: u64::MAX, small_writes: 0, size: 0 })
    }

    fn open_to_write(&self, name: &str) -> io::Result<OpenFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if self.method == WriteMethod::Direct {
            options.custom_flags(direct_flag());
        }
        let file = options.open(self.path_of(name))?;
        Ok(OpenFile { file, method: self.method.clone(), written_to: u64::MAX, small_writes: 0, size: 0 })
    }

    fn size_of(&self, name: &str) -> io::Result<u64> {
        let status = rustix::fs::statat(&self.directory, name, AtFlags::empty())?;
        Ok(u64::try_from(status.st_size).unwrap_or(0))
    }

    fn is_in_place(&self) -> io::Result<bool> {
        match fs::metadata(&self.path) {
            Ok(metadata) => Ok(self.identity == (metadata.dev(), metadata.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn truncate(&self, name: &str, size: u64) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.path_of(name))?.set_len(size)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path_of(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn sync_ancestors(&self) -> io::Result<()> {
        let path = fs::canonicalize(&self.path)?;
        for above in path.ancestors().skip(1) {
            match File::open(above).and_then(|directory| directory.sync_all()) {
                Ok(()) => {}
                // A directory that this user cannot read was not created by it; some file systems cannot sync a
                // directory.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::PermissionDenied
                            | io::ErrorKind::InvalidInput
                            | io::ErrorKind::ReadOnlyFilesystem
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn lock(&self) -> Result<FileLock, LockError> {
        let path = self.path_of(LOCK_FILE);
        let failed = |source| LockError::Failed { location: self.location(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let holder = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(LockError::Held { location: self.location(), holder });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // Only for the message of another process.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(FileLock { file })
    }

    fn random_u64(&self) -> u64 {
        RandomState::new().build_hasher().finish()
    }
}

/// The lock of a directory; released when dropped.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
        // Closing alone would leave the lock to a forked process that has a copy of the descriptor until its exec.
        let _ = self.file.unlock();
    }
}

/// An open file of the machine.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    method: WriteMethod,
    /// Space below this offset has been written at least once; `u64::MAX` if the file is not zeroed ahead.
    written_to: u64,
    small_writes: u32,
    size: u64,
}

impl OpenFile {
    fn zero_ahead(&mut self, end: u64, length: usize) -> io::Result<()> {
        self.small_writes = if length < ZERO_AHEAD_BELOW { self.small_writes.saturating_add(1) } else { 0 };
        if end <= self.written_to {
            return Ok(());
        }
        if self.small_writes > ZERO_AHEAD_AFTER {
            while self.written_to < end {
                let step = self.written_to.clamp(ZERO_AHEAD_SIZE_FIRST as u64, ZERO_AHEAD_SIZE as u64);
                let step = step.min(self.size.saturating_sub(self.written_to));
                if step == 0 {
                    break;
                }
                // At most the constant, which is a `usize`.
                self.file.write_all_at(&zeros()[..step as usize], self.written_to)?;
                self.written_to += step;
            }
        } else {
            self.written_to = end;
        }
        Ok(())
    }
}

impl DiskFile for OpenFile {
    fn status(&self) -> io::Result<FileStatus> {
        // Only these fields: reading a file's times makes the next write record a new one (multigrain timestamps, Linux
        // 6.13), and a durable write then writes the inode as well.
        match statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::NLINK | StatxFlags::SIZE) {
            Ok(status) => Ok(FileStatus { links: status.stx_nlink.into(), size: status.stx_size }),
            Err(Errno::NOSYS | Errno::PERM) => {
                let metadata = self.file.metadata()?;
                Ok(FileStatus { links: metadata.nlink(), size: metadata.len() })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match self.file.read_at(&mut into[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_durable(&mut self, offset: u64, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.zero_ahead(offset + length as u64, length)?;
        let mut at = offset;
        while !pieces.is_empty() {
            let written = match &self.method {
                WriteMethod::Direct => pwritev2(&self.file, pieces, at, ReadWriteFlags::DSYNC),
                WriteMethod::Buffered { .. } => pwritev(&self.file, pieces, at),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                // A short write: the remaining bytes are another write, which returns the error if there is one.
                Ok(length) => {
                    at += length as u64;
                    IoSlice::advance_slices(&mut pieces, length);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.method != WriteMethod::Direct {
            fdatasync(&self.file)?;
        }
        Ok(())
    }
}

fn direct_flag() -> i32 {
    OFlags::DIRECT.bits().cast_signed()
}

/// Block-aligned zeros, shared by all files, allocated on first use.
fn zeros() -> &'static [u8] {
    static ZEROS: OnceLock<AlignedBuffer> = OnceLock::new();
    ZEROS.get_or_init(|| AlignedBuffer::new(ZERO_AHEAD_SIZE)).bytes()
}

fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_directories(above)?;
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(above)?.sync_all()
}

fn probe(directory: &Path) -> io::Result<WriteMethod> {
    let path = directory.join(PROBE_FILE);
    let buffered =
        |what: &str, error: io::Error| Ok(WriteMethod::Buffered { reason: format!("{what}: {error}") });
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(FILE_MODE);
    // Opened without O_DIRECT first, so that a later refusal is caused by O_DIRECT.
    drop(options.open(&path)?);
    let method = match options.custom_flags(direct_flag()).open(&path) {
        Err(error) => buffered("O_DIRECT", error),
        Ok(file) => {
            let block = AlignedBuffer::new(BLOCK_SIZE);
            match pwritev2(&file, &[IoSlice::new(block.bytes())], 0, ReadWriteFlags::DSYNC) {
                Ok(_) => Ok(WriteMethod::Direct),
                // A full disk is reported by the writes of data.
                Err(Errno::NOSPC | Errno::DQUOT) => Ok(WriteMethod::Direct),
                Err(error) => buffered("RWF_DSYNC with O_DIRECT", error.into()),
            }
        }
    };
    fs::remove_file(&path)?;
    method
}

/// Restricts a stream's directory and files to their owner. Files of another owner are unchanged, and so is a directory
/// with foreign content: users may share it.
fn restrict(path: &Path) -> io::Result<()> {
    let mut is_shared = false;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == LOCK_FILE || name == PROBE_FILE || first_of(&name).is_some() {
            restrict_to(&entry.path(), FILE_MODE)?;
        } else {
            is_shared = true;
        }
    }
    if is_shared { Ok(()) } else { restrict_to(path, DIRECTORY_MODE) }
}

fn restrict_to(path: &Path, mode: u32) -> io::Result<()> {
    // Does not follow links: the target may belong to other programs.
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        outcome => outcome?,
    };
    let is_wide = metadata.mode() & 0o077 != 0;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if is_own && is_wide && !metadata.is_symlink() {
        fs::set_permissions(path, Permissions::from_mode(metadata.mode() & mode))?;
    }
    Ok(())
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

fn path_error(path: &Path, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{} {what}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child process has a copy from fork until exec.
    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_a_directory_locked() {
        let directory = tempfile::tempdir().expect("a directory");
        let disk = FileDisk::open_or_create(directory.path()).expect("it is ours");
        let lock = disk.lock().expect("it is not locked");
        let copy = lock.file.try_clone().expect("a descriptor");
        assert!(matches!(disk.lock(), Err(LockError::Held { .. })));
        drop(lock);
        assert!(disk.lock().is_ok());
        drop(copy);
    }

    #[test]
    fn space_is_zeroed_ahead_of_small_writes_in_a_row_and_not_of_the_odd_one() {
        const SIZE: u64 = 4 * 1024 * 1024;
        let method = WriteMethod::Buffered { reason: "any file system will do".to_owned() };
        let mut file = OpenFile {
            file: tempfile::tempfile().expect("a file"),
            method,
            written_to: 0,
            small_writes: 0,
            size: SIZE,
        };
        let bytes = vec![7; ZERO_AHEAD_BELOW];
        let mut at = 0;
        let mut write = |file: &mut OpenFile, length: usize| {
            file.write_durable(at, &mut [IoSlice::new(&bytes[..length])]).expect("it is written");
            at += length as u64;
            file.written_to - at
        };
        for length in [BLOCK_SIZE, ZERO_AHEAD_BELOW].repeat(2 * ZERO_AHEAD_AFTER as usize) {
            assert_eq!(write(&mut file, length), 0, "nothing beyond what was written");
        }
        for _ in 0..ZERO_AHEAD_AFTER {
            assert_eq!(write(&mut file, BLOCK_SIZE), 0);
        }
        assert_ne!(write(&mut file, BLOCK_SIZE), 0, "one too many in a row");
        let mut found = vec![1; SIZE as usize];
        assert_eq!(file.read_at(0, &mut found).expect("it is read"), file.written_to as usize);
        assert!(found[..at as usize].iter().all(|byte| *byte == 7), "what was written is there");
        assert!(found[at as usize..file.written_to as usize].iter().all(|byte| *byte == 0));
    }
}
