//! What is wrong in a directory, said so that an operator knows what to do.

use std::fmt;

use crate::format::FORMAT_VERSION;
use crate::limits::FINDINGS_MAX;

/// Something in a stream's directory that is not as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Bytes that were synced once and are not what they were.
    Damage {
        /// In which file.
        file: String,
        /// Where it begins, in bytes.
        offset: u64,
        /// How many bytes it takes; 0 if bytes are missing.
        length: u64,
        /// The first and the last sequence that are gone, unless none is.
        lost: Option<(u64, u64)>,
    },
    /// The last write had not come back when the power went, or its bytes went bad afterwards. It is cut off, and its
    /// sequences are not used again.
    Torn {
        /// In which file.
        file: String,
        /// Where it begins, in bytes.
        offset: u64,
        /// The first and the last sequence that it may have had; no sequence if the last is below the first.
        sequences: (u64, u64),
    },
    /// The first block of a segment is not what was written. Its batches are read all the same.
    Header {
        /// Which file.
        file: String,
    },
    /// Segments that should be between two others are not there.
    Missing {
        /// The segment behind the hole.
        before: String,
        /// The first and the last sequence that are gone.
        lost: (u64, u64),
    },
    /// A file that is not a segment of this stream. It is left alone.
    Foreign {
        /// Which file.
        file: String,
        /// Why it is not.
        reason: &'static str,
    },
    /// A segment of another stream of the same name, which a newer segment hides: its records are not read. One of the two was
    /// copied here.
    Hidden {
        /// Which file.
        file: String,
        /// The newest segment, which says what stream this is.
        by: String,
    },
    /// A segment without content, whose making a crash has ended. It goes when the next segment is made.
    Unfinished {
        /// Which file.
        file: String,
    },
}

impl Finding {
    /// Whether records that had been acknowledged are gone.
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
    /// Whether the stream is not what was written; if it is, this is something that stands beside it.
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

    /// How many acknowledged records are gone.
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

    /// Whether another look found the same thing at the same place, however far it reached then.
    fn is_same(&self, other: &Finding) -> bool {
        let place = |finding: &Finding| match finding {
            Finding::Damage { file, offset, .. } | Finding::Torn { file, offset, .. } => {
                (file.clone(), Some(*offset))
            }
            Finding::Header { file }
            | Finding::Missing { before: file, .. }
            | Finding::Foreign { file, .. }
            | Finding::Hidden { file, .. }
            | Finding::Unfinished { file } => (file.clone(), None),
        };
        std::mem::discriminant(self) == std::mem::discriminant(other) && place(self) == place(other)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Damage { file, offset, length, lost: Some((first, last)) } => write!(
                f,
                "{file}: {length} bytes at {offset} are not what was written: records {first} to {last} are lost; the disk or something beside this program has changed them"
            ),
            Finding::Damage { file, offset, length, lost: None } => {
                write!(f, "{file}: {length} bytes at {offset} are not what was written; no record is lost")
            }
            Finding::Torn { file, offset, sequences: (first, last) } if last < first => {
                write!(f, "{file}: bytes behind the last batch, at {offset}, are no batch; no record is lost")
            }
            Finding::Torn { file, offset, sequences: (first, last) } => write!(
                f,
                "{file}: the last write, at {offset}, is not whole and is cut off; it had records from {first} on, {last} at most, which may have been acknowledged if the disk has lost what it had synced"
            ),
            Finding::Header { file } => {
                write!(f, "{file}: its header is not what was written; its batches are read all the same")
            }
            Finding::Missing { before, lost: (first, last) } => write!(
                f,
                "segments before {before} are missing: records {first} to {last} are lost; put the files back if they were moved away"
            ),
            Finding::Foreign { file, reason } => write!(f, "{file} is left alone: {reason}"),
            Finding::Hidden { file, by } => write!(
                f,
                "{file} is not read: it belongs to another stream of this name than the newest segment, {by}; move away the one that was copied here"
            ),
            Finding::Unfinished { file } => {
                write!(f, "{file} has no content: a crash came while it was made; it will be removed")
            }
        }
    }
}

/// Findings in order; beyond [`FINDINGS_MAX`] they are only counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// The first ones.
    pub entries: Vec<Finding>,
    /// How many more there were.
    pub more: u64,
}

impl Findings {
    /// Whether everything is as it was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps what a second look found again. What was only there the first time belonged to a write that was under way.
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

/// Why a stream cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Somebody else has its directory.
    Lock(crate::disk::LockError),
    /// The system could not read something.
    Disk {
        /// The directory, or the file and the offset in it.
        place: String,
        /// What it said.
        source: std::io::Error,
    },
    /// The end of the stream could not be made durable, so nothing that builds on it may be acknowledged.
    Write {
        /// The file and the offset in it.
        place: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A segment has another format.
    Version {
        /// The directory.
        place: String,
        /// The file.
        file: String,
        /// Its version.
        version: u32,
    },
    /// No stream can have this name.
    Name(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Lock(error) => error.fmt(f),
            OpenError::Disk { place, source } => write!(f, "cannot read {place}: {source}"),
            OpenError::Write { place, source } => {
                write!(f, "cannot make durable what was found in {place}: {source}")
            }
            OpenError::Version { place, file, version } => write!(
                f,
                "{place}/{file} has format {version} and this program reads format {FORMAT_VERSION}: open it with the version of stilling that wrote it"
            ),
            OpenError::Name(name) => {
                write!(f, "a stream cannot be named {name:?}: it takes 1 to 255 bytes")
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
