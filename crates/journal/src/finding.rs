//! Findings: deviations in a stream's directory, described for the operator.

use std::fmt;

use crate::format::FORMAT_VERSION;
use crate::limits::FINDINGS_MAX;

/// A deviation from what was written to a stream's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Bytes that were synced and have changed since.
    Damage {
        /// The file.
        file: String,
        /// Offset of the first such byte.
        offset: u64,
        /// Number of bytes; 0 if bytes are missing.
        length: u64,
        /// The first and the last sequence that are lost, if any.
        lost: Option<(u64, u64)>,
    },
    /// The last write was incomplete when the power failed, or its bytes were damaged afterwards. It is cut off, and
    /// its sequences are not used again.
    Torn {
        /// The file.
        file: String,
        /// Offset at which it begins.
        offset: u64,
        /// The first and the last sequence that it may have contained; none if the last is below the first.
        sequences: (u64, u64),
    },
    /// The first block of a segment is damaged. Its batches are read nevertheless.
    Header {
        /// The file.
        file: String,
    },
    /// Segments between two others are missing.
    Missing {
        /// The segment after the hole.
        before: String,
        /// The first and the last sequence that are lost.
        lost: (u64, u64),
    },
    /// A file that is not a segment of this stream. It is left unchanged.
    Foreign {
        /// The file.
        file: String,
        /// Why it is not a segment of this stream.
        reason: &'static str,
    },
    /// A segment of another stream of the same name, hidden by a newer segment: its records are not read. One of the
    /// two was copied here.
    Hidden {
        /// The file.
        file: String,
        /// The newest segment, which determines the stream.
        by: String,
    },
    /// A segment without content: a crash interrupted its creation. It is removed when the next segment is created.
    Unfinished {
        /// The file.
        file: String,
    },
}

impl Finding {
    /// Whether acknowledged records are lost.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        match self {
            Finding::Damage { lost, .. } => lost.is_some(),
            Finding::Missing { .. } => true,
            Finding::Torn { .. }
            | Finding::Header { .. }
            | Finding::Foreign { .. }
            | Finding::Hidden { .. }
            | Finding::Unfinished { .. } => false,
        }
    }
}

impl Finding {
    /// Whether the stream itself is damaged; other findings concern files beside it.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Finding::Damage { .. }
            | Finding::Torn { .. }
            | Finding::Header { .. }
            | Finding::Hidden { .. }
            | Finding::Missing { .. } => true,
            Finding::Foreign { .. } | Finding::Unfinished { .. } => false,
        }
    }

    /// Number of acknowledged records that are lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        match self {
            Finding::Damage { lost: Some((first, last)), .. }
            | Finding::Missing { lost: (first, last), .. } => (last + 1).saturating_sub(*first),
            Finding::Damage { lost: None, .. }
            | Finding::Torn { .. }
            | Finding::Header { .. }
            | Finding::Foreign { .. }
            | Finding::Hidden { .. }
            | Finding::Unfinished { .. } => 0,
        }
    }

    /// Whether both are the same kind of finding at the same position, whatever its extent.
    fn is_same(&self, other: &Finding) -> bool {
        let location = |finding: &Finding| match finding {
            Finding::Damage { file, offset, .. } | Finding::Torn { file, offset, .. } => {
                (file.clone(), Some(*offset))
            }
            Finding::Header { file }
            | Finding::Missing { before: file, .. }
            | Finding::Foreign { file, .. }
            | Finding::Hidden { file, .. }
            | Finding::Unfinished { file } => (file.clone(), None),
        };
        std::mem::discriminant(self) == std::mem::discriminant(other) && location(self) == location(other)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Damage { file, offset, length, lost: Some((first, last)) } => write!(
                f,
                "{file}: {length} bytes at {offset} are damaged: records {first} to {last} are lost; the disk or another program has changed them"
            ),
            Finding::Damage { file, offset, length, lost: None } => {
                write!(f, "{file}: {length} bytes at {offset} are damaged; no record is lost")
            }
            Finding::Torn { file, offset, sequences: (first, last) } if last < first => {
                write!(
                    f,
                    "{file}: bytes after the last batch, at {offset}, are not a batch; no record is lost"
                )
            }
            Finding::Torn { file, offset, sequences: (first, last) } => write!(
                f,
                "{file}: the last write, at {offset}, is incomplete and cut off; it contained records from {first} to {last} at most, which may have been acknowledged if the disk lost synced bytes"
            ),
            Finding::Header { file } => {
                write!(f, "{file}: its header is damaged; its batches are read nevertheless")
            }
            Finding::Missing { before, lost: (first, last) } => write!(
                f,
                "segments before {before} are missing: records {first} to {last} are lost; restore the files if they were moved"
            ),
            Finding::Foreign { file, reason } => write!(f, "{file} is ignored: {reason}"),
            Finding::Hidden { file, by } => write!(
                f,
                "{file} is not read: it belongs to another stream of this name than the newest segment, {by}; move away the file that was copied here"
            ),
            Finding::Unfinished { file } => {
                write!(f, "{file} has no content: a crash interrupted its creation; it will be removed")
            }
        }
    }
}

/// Findings in order; beyond [`FINDINGS_MAX`] they are only counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// The first findings.
    pub entries: Vec<Finding>,
    /// Number of further findings.
    pub more: u64,
}

impl Findings {
    /// Whether there are no findings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps the findings that a second inspection confirms. The others were caused by a write in progress.
    pub fn confirm(&mut self, second: &Findings) {
        self.entries.retain(|finding| second.entries.iter().any(|other| finding.is_same(other)));
        self.more = self.more.min(second.more);
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        if self.entries.len() < FINDINGS_MAX {
            self.entries.push(finding);
        } else {
            self.more += 1;
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.entries {
            writeln!(f, "{finding}")?;
        }
        if self.more > 0 {
            writeln!(f, "and {} more", self.more)?;
        }
        Ok(())
    }
}

/// The reason why a stream cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The directory is locked, or cannot be locked.
    Lock(crate::disk::LockError),
    /// The system could not read the directory or a file.
    Disk {
        /// The directory, or the file and the offset in it.
        location: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The end of the stream could not be made durable, so no record based on it may be acknowledged.
    Write {
        /// The file and the offset in it.
        location: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A segment has another format.
    Version {
        /// The directory.
        location: String,
        /// The file.
        file: String,
        /// Its format version.
        version: u32,
    },
    /// The name is not valid for a stream.
    Name(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Lock(error) => error.fmt(f),
            OpenError::Disk { location, source } => write!(f, "cannot read {location}: {source}"),
            OpenError::Write { location, source } => {
                write!(f, "cannot make the end of {location} durable: {source}")
            }
            OpenError::Version { location, file, version } => write!(
                f,
                "{location}/{file} has format {version} and this program reads format {FORMAT_VERSION}: open it with the version of stilling that wrote it"
            ),
            OpenError::Name(name) => {
                write!(f, "invalid stream name {name:?}: a name has 1 to 255 bytes")
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Lock(error) => Some(error),
            OpenError::Disk { source, .. } | OpenError::Write { source, .. } => Some(source),
            OpenError::Version { .. } | OpenError::Name(_) => None,
        }
    }
}
