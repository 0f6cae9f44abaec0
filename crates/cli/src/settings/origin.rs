//! Where a setting was said, so that whoever reads about it knows where to change it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::EXIT_USAGE;

/// Where a setting was said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// Nowhere.
    Default,
    /// In a file, on a line from 1.
    File(PathBuf, usize),
    /// In the environment, by this name.
    Variable(String),
    /// On the command line, by this name.
    Flag(String),
}

/// Which of two places wins: the greater one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    BuiltIn,
    File,
    Environment,
    Typed,
}

impl Origin {
    pub(super) fn rank(&self) -> Rank {
        match self {
            Origin::Default => Rank::BuiltIn,
            Origin::File(..) => Rank::File,
            Origin::Variable(_) => Rank::Environment,
            Origin::Flag(_) => Rank::Typed,
        }
    }

    /// A line of a file.
    pub(super) fn line(path: &Path, line: usize) -> Self {
        Origin::File(path.to_owned(), line)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) => f.write_str(name),
            Origin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// Where.
    pub(crate) origin: Origin,
    /// What, and what would be right.
    pub(crate) reason: String,
}

impl Complaint {
    pub(crate) fn new(origin: &Origin, reason: impl Into<String>) -> Self {
        Complaint { origin: origin.clone(), reason: reason.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            // Nobody has said it, so the reason has to name it.
            Origin::Default => f.write_str(&self.reason),
            Origin::File(..) | Origin::Variable(_) | Origin::Flag(_) => {
                write!(f, "{}: {}", self.origin, self.reason)
            }
        }
    }
}

/// Everything that is wrong, to be mended at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaints(pub(crate) Vec<Complaint>);

impl Complaints {
    /// All errors in the order of their sources and lines.
    pub(crate) fn sorted(mut all: Vec<Complaint>) -> Self {
        all.sort_by(|one, other| one.origin.cmp(&other.origin));
        Complaints(all)
    }

    /// Whether something is wrong on the command line.
    fn is_usage(&self) -> bool {
        self.0.iter().any(|wrong| matches!(wrong.origin, Origin::Flag(_) | Origin::Default))
    }

    /// The exit status: a usage error if the command line takes part in it, else a failure.
    pub(crate) fn status(&self) -> ExitCode {
        if self.is_usage() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
    }

    /// The last line of a usage error.
    pub(crate) fn hint(&self) -> &'static str {
        if self.is_usage() { "\nstilling: --help lists all options" } else { "" }
    }
}

/// One line each, as if each had been the only one.
impl fmt::Display for Complaints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, complaint) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\nstilling: ")?;
            }
            write!(f, "{complaint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Complaints {}
