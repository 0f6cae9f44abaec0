//! Reactions of a log to disk errors: wait for space, retry in a new segment, or freeze.
//!
//! ```text
//!   no space (disk full, quota, too many open files)   waiting: nothing is lost, the batches are appended again later
//!   a write or its sync fails otherwise                one retry in a new segment, which records the end of this one
//!   the retry fails; a file is gone or truncated       frozen until the next start
//! ```

use std::fmt;
use std::io;
use std::sync::Arc;

/// The log accepts no more batches.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// The operation, the file and the system's error.
    pub reason: Arc<str>,
    /// The kind of error.
    pub kind: io::ErrorKind,
}

impl fmt::Display for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stream is frozen until the next start: {}", self.reason)
    }
}

impl std::error::Error for Frozen {}

/// The reason why batches were not appended.
#[derive(Clone, Debug)]
pub enum AppendError {
    /// There is no space now: disk full, quota used up, or too many open files. Batches that are not durable can be
    /// appended again later, unchanged or as other records with the same sequences.
    Waiting {
        /// The operation, the file and the system's error.
        reason: Arc<str>,
        /// The kind of error.
        kind: io::ErrorKind,
    },
    /// The log accepts no batches until it is opened again.
    Frozen(Frozen),
}

impl AppendError {
    /// The operation, the file and the system's error.
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
            AppendError::Waiting { reason, .. } => write!(f, "the stream waits for space: {reason}"),
            AppendError::Frozen(frozen) => frozen.fmt(f),
        }
    }
}

impl std::error::Error for AppendError {}

#[derive(Debug)]
pub(crate) struct LogFailure {
    pub(crate) what: String,
    pub(crate) error: io::Error,
    pub(crate) is_final: bool,
}

impl LogFailure {
    /// A failure that a retry, later or elsewhere, may resolve.
    pub(crate) fn new(what: String, error: io::Error) -> LogFailure {
        LogFailure { what, error, is_final: false }
    }

    pub(crate) fn files_changed(what: String, found: &str, kind: io::ErrorKind) -> LogFailure {
        let advice = "it may have been removed, moved or changed by another program: restore it and restart the server";
        LogFailure { what, error: io::Error::new(kind, format!("{found}: {advice}")), is_final: true }
    }

    /// Whether only space is missing, which may become available.
    pub(crate) fn is_out_of_space(&self) -> bool {
        const EMFILE: i32 = 24;
        const ENFILE: i32 = 23;
        let kind = self.error.kind();
        let is_full = matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        !self.is_final && (is_full || matches!(self.error.raw_os_error(), Some(EMFILE | ENFILE)))
    }
}
