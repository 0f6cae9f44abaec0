//! What a log does about an error of the disk: wait for room, try a segment of its own, or freeze.
//!
//! ```text
//!   no room (disk full, quota, too many open files)   waiting: nothing is lost, the same batches are appended again later
//!   a write or its sync fails otherwise               once more in a new segment, whose header says what counts before it
//!   that fails too; a file is gone or cut             frozen until the next start
//! ```

use std::fmt;
use std::io;
use std::sync::Arc;

/// The log takes nothing any more, and why.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// What was being done, to which file, and what the system said.
    pub reason: Arc<str>,
    /// What kind of error it was.
    pub kind: io::ErrorKind,
}

impl fmt::Display for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stream is frozen until the next start: {}", self.reason)
    }
}

impl std::error::Error for Frozen {}

/// Why batches were not appended.
#[derive(Clone, Debug)]
pub enum AppendError {
    /// There is no room now: disk full, quota used up, or too many open files. What is not durable can be appended again
    /// later, as it is or as other records with the same sequences.
    Waiting {
        /// What was being done, to which file, and what the system reported.
        reason: Arc<str>,
        /// The kind of error.
        kind: io::ErrorKind,
    },
    /// The log takes nothing until it is opened again.
    Frozen(Frozen),
}

impl AppendError {
    /// What was being done, to which file, and what the system reported.
    #[must_use]
    pub fn reason(&self) -> &Arc<str> {
        match self {
            AppendError::Waiting { reason, .. } | AppendError::Frozen(Frozen { reason, .. }) => reason,
        }
    }

    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            AppendError::Waiting { kind, .. } | AppendError::Frozen(Frozen { kind, .. }) => *kind,
        }
    }
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppendError::Waiting { reason, .. } => write!(f, "the stream waits for room: {reason}"),
            AppendError::Frozen(frozen) => frozen.fmt(f),
        }
    }
}

impl std::error::Error for AppendError {}

/// An error before it is decided what follows from it.
#[derive(Debug)]
pub(crate) struct LogFailure {
    /// What was being done, to which file.
    pub(crate) what: String,
    pub(crate) error: io::Error,
    /// Whether trying again cannot help.
    pub(crate) is_final: bool,
}

impl LogFailure {
    /// Something failed that may go well later or elsewhere.
    pub(crate) fn new(what: String, error: io::Error) -> LogFailure {
        LogFailure { what, error, is_final: false }
    }

    /// Something that another process did to the stream's files.
    pub(crate) fn of_files(what: String, found: &str, kind: io::ErrorKind) -> LogFailure {
        let advice =
            "was it removed, moved or changed by another program? Put it back and restart the server";
        LogFailure { what, error: io::Error::new(kind, format!("{found}: {advice}")), is_final: true }
    }

    /// Whether only room is missing, which may come back.
    pub(crate) fn is_out_of_space(&self) -> bool {
        const EMFILE: i32 = 24;
        const ENFILE: i32 = 23;
        let kind = self.error.kind();
        let is_full = matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        !self.is_final && (is_full || matches!(self.error.raw_os_error(), Some(EMFILE | ENFILE)))
    }
}
