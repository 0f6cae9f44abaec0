//! The storage interface: one directory of files.
//!
//! [`FileDisk`](file::FileDisk) implements it for machines, and [`SimulatedDisk`](simulated::SimulatedDisk) simulates
//! the crashes and errors of a machine. The journal relies only on what the methods document: a durable write that has
//! returned survives every crash after it; of all other changes any subset may survive, in units of sectors of 512
//! bytes.

#[cfg(target_os = "linux")]
pub mod file;
pub mod simulated;

use std::fmt;
use std::io::{self, IoSlice};

/// A file in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
}

/// One directory. Clones refer to the same directory.
pub trait Disk: Clone + Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;
    /// Holds the directory's lock until it is dropped.
    type Lock: Send + 'static;

    /// The directory's location, for messages.
    fn location(&self) -> String;

    /// The method of durable writes.
    fn write_method(&self) -> WriteMethod;

    /// Its plain files, in any order.
    ///
    /// # Errors
    /// The system's, if the directory cannot be read.
    fn list(&self) -> io::Result<Vec<DirectoryEntry>>;

    /// Creates a file of `size` zero bytes, with its space allocated. It survives a crash only after
    /// [`sync`](Disk::sync).
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken, else the system's; then there is no file.
    fn create(&self, name: &str, size: u64) -> io::Result<Self::File>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Opens an existing file for [`write_durable`](DiskFile::write_durable).
    ///
    /// # Errors
    /// The system's.
    fn open_to_write(&self, name: &str) -> io::Result<Self::File>;

    /// The size of a file in bytes.
    ///
    /// # Errors
    /// The system's: `NotFound` if the file does not exist.
    fn size_of(&self, name: &str) -> io::Result<u64>;

    /// Whether the directory is still the one that was opened: not removed, moved or replaced.
    ///
    /// # Errors
    /// The system's, if this cannot be determined.
    fn is_in_place(&self) -> io::Result<bool>;

    /// Truncates a file to `size` bytes; a crash may undo it.
    ///
    /// # Errors
    /// The system's.
    fn truncate(&self, name: &str, size: u64) -> io::Result<()>;

    /// Removes a file; a crash before [`sync`](Disk::sync) may undo it.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations and removals of files durable.
    ///
    /// # Errors
    /// The system's. The state of the directory is unknown then, and a later success proves nothing about earlier
    /// changes: a file whose creation was not synced must not be used. Removals may be synced again if a file that
    /// comes back after a crash is harmless.
    fn sync(&self) -> io::Result<()>;

    /// Makes the names of the directory and its ancestors durable.
    ///
    /// # Errors
    /// The system's, as for [`sync`](Disk::sync).
    fn sync_ancestors(&self) -> io::Result<()>;

    /// Locks the directory against other processes, until the lock is dropped or the process ends.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process holds it.
    fn lock(&self) -> Result<Self::Lock, LockError>;

    /// An unpredictable number.
    fn random_u64(&self) -> u64;
}

/// Metadata of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStatus {
    /// Number of its names.
    pub links: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// An open file.
pub trait DiskFile: Send + 'static {
    /// Its links and size.
    ///
    /// # Errors
    /// The system's.
    fn status(&self) -> io::Result<FileStatus>;

    /// Reads at `offset` until `into` is full or the file ends; returns how many bytes.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes the pieces consecutively from `offset` on. When it returns, they are durable. Offset and lengths are
    /// multiples of the block size, the pieces begin at block boundaries in memory and lie inside the file.
    ///
    /// # Errors
    /// The system's. What was written is unknown then, and the write must not be retried.
    fn write_durable(&mut self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()>;
}

/// A method of durable writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriteMethod {
    /// `O_DIRECT` with `RWF_DSYNC`.
    Direct,
    /// Through the page cache, with `fdatasync`.
    Buffered {
        /// Why direct writes are not used.
        reason: String,
    },
}

impl fmt::Display for WriteMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteMethod::Direct => f.write_str("direct (O_DIRECT, RWF_DSYNC)"),
            WriteMethod::Buffered { reason } => write!(f, "buffered (fdatasync), not direct: {reason}"),
        }
    }
}

/// The reason why a directory could not be locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds the lock.
    Held {
        /// The directory.
        location: String,
        /// Process id of the holder, if known.
        holder: Option<u32>,
    },
    /// The system's lock call failed.
    Failed {
        /// The directory.
        location: String,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Held { location, holder: Some(pid) } => write!(
                f,
                "{location} is in use by process {pid}: two servers cannot write one directory; stop that one, or choose another directory"
            ),
            LockError::Held { location, holder: None } => write!(
                f,
                "{location} is in use by another process: two servers cannot write one directory; stop that one, or choose another directory"
            ),
            LockError::Failed { location, source } => write!(f, "{location} cannot be locked: {source}"),
        }
    }
}

impl std::error::Error for LockError {}
