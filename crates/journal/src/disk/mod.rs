//! The seam to what keeps bytes: one directory of files.
//!
//! Two implementations: [`FileDisk`](file::FileDisk) for machines, and [`SimulatedDisk`](simulated::SimulatedDisk),
//! which loses, tears, reorders and refuses what a machine may lose, tear, reorder and refuse. What a
//! journal may rely on is exactly what is written at the methods: a durable write that returned survives everything
//! after it; anything else may be there after a crash in any part, down to single sectors of 512 bytes.

#[cfg(target_os = "linux")]
pub mod file;
pub mod simulated;

use std::fmt;
use std::io::{self, IoSlice};

/// A file in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// Its name; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
}

/// One directory. Clones are the same directory.
pub trait Disk: Clone + Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;
    /// What is held while nobody else may use the directory.
    type Lock: Send + 'static;

    /// Where the directory is, for messages.
    fn place(&self) -> String;

    /// How durable writes are made.
    fn write_method(&self) -> WriteMethod;

    /// Its files, in any order, without what is no plain file.
    ///
    /// # Errors
    /// The system's, if it cannot be read.
    fn list(&self) -> io::Result<Vec<DirectoryEntry>>;

    /// Makes a new file of `size` bytes that read as zeros, with its space allocated. It survives a crash only after
    /// [`sync`](Disk::sync).
    ///
    /// # Errors
    /// `AlreadyExists` if there is one of that name, else the system's; then there is no file.
    fn create(&self, name: &str, size: u64) -> io::Result<Self::File>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file that is there for [`write_durable`](DiskFile::write_durable).
    ///
    /// # Errors
    /// The system's.
    fn open_to_write(&self, name: &str) -> io::Result<Self::File>;

    /// The size of a file, in bytes.
    ///
    /// # Errors
    /// The system's: `NotFound` if there is none of that name.
    fn size_of(&self, name: &str) -> io::Result<u64>;

    /// Whether the directory is still the one that was opened: not removed, moved or replaced.
    ///
    /// # Errors
    /// The system's, if that cannot be told.
    fn is_in_place(&self) -> io::Result<bool>;

    /// Cuts a file to `size` bytes; a crash may undo it.
    ///
    /// # Errors
    /// The system's.
    fn truncate(&self, name: &str, size: u64) -> io::Result<()>;

    /// Removes a file; a crash before [`sync`](Disk::sync) may undo it.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes durable which files there are.
    ///
    /// # Errors
    /// The system's. It is not to be tried again: what happened is unknown.
    fn sync(&self) -> io::Result<()>;

    /// Makes the directory's own name durable, and the names of those above it.
    ///
    /// # Errors
    /// The system's, as for [`sync`](Disk::sync).
    fn sync_ancestors(&self) -> io::Result<()>;

    /// Keeps all others away, until the lock is dropped or its process ends.
    ///
    /// # Errors
    /// [`LockError::Held`] if another one keeps it.
    fn lock(&self) -> Result<Self::Lock, LockError>;

    /// A number that nobody outside can guess.
    fn unpredictable(&self) -> u64;
}

/// What the system says of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStatus {
    /// How many names it has.
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

    /// Writes the pieces one behind the other from `offset` on. When it returns, they are durable. Offset and lengths
    /// are multiples of the block, the pieces begin at block boundaries in memory and lie inside the file.
    ///
    /// # Errors
    /// The system's. Nothing is known then about what was written, and it is not to be tried again.
    fn write_durable(&mut self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()>;
}

/// How durable writes are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriteMethod {
    /// `O_DIRECT` with `RWF_DSYNC`.
    Direct,
    /// Through the page cache, with `fdatasync`.
    Buffered {
        /// Why not directly.
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

/// Why a directory is not ours.
#[derive(Debug)]
pub enum LockError {
    /// Another process has it.
    Held {
        /// Where.
        place: String,
        /// Its process id, if it told.
        holder: Option<u32>,
    },
    /// The system refused.
    Failed {
        /// Where.
        place: String,
        /// What it said.
        source: io::Error,
    },
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Held { place, holder: Some(pid) } => write!(
                f,
                "{place} is in use by process {pid}: two servers cannot write one directory; stop that one, or choose another directory"
            ),
            LockError::Held { place, holder: None } => write!(
                f,
                "{place} is in use by another process: two servers cannot write one directory; stop that one, or choose another directory"
            ),
            LockError::Failed { place, source } => write!(f, "{place} cannot be locked: {source}"),
        }
    }
}

impl std::error::Error for LockError {}
