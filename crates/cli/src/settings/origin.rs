//! Where a setting was said, so that whoever reads about it knows where to change it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::EXIT_USAGE;

/// Where a setting was said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SettingOrigin {
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
pub(super) enum SourceRank {
    BuiltIn,
    File,
    Environment,
    CommandLine,
}

impl SettingOrigin {
    pub(super) fn rank(&self) -> SourceRank {
        match self {
            SettingOrigin::Default => SourceRank::BuiltIn,
            SettingOrigin::File(..) => SourceRank::File,
            SettingOrigin::Variable(_) => SourceRank::Environment,
            SettingOrigin::Flag(_) => SourceRank::CommandLine,
        }
    }

    /// A line of a file.
    pub(super) fn line(path: &Path, line: usize) -> Self {
        SettingOrigin::File(path.to_owned(), line)
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Default => f.write_str("default"),
            SettingOrigin::File(path, line) => write!(f, "{}:{line}", path.display()),
            SettingOrigin::Variable(name) => f.write_str(name),
            SettingOrigin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnostic {
    /// Where.
    pub(crate) origin: SettingOrigin,
    /// What, and what would be right.
    pub(crate) reason: String,
}

impl Diagnostic {
    pub(crate) fn new(origin: &SettingOrigin, reason: impl Into<String>) -> Self {
        Diagnostic { origin: origin.clone(), reason: reason.into() }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            // Nobody has said it, so the reason has to name it.
            SettingOrigin::Default => f.write_str(&self.reason),
            SettingOrigin::File(..) | SettingOrigin::Variable(_) | SettingOrigin::Flag(_) => {
                write!(f, "{}: {}", self.origin, self.reason)
            }
        }
    }
}

/// Everything that is wrong, to be mended at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnostics(pub(crate) Vec<Diagnostic>);

impl Diagnostics {
    /// All errors in the order of their sources and lines.
    pub(crate) fn sorted(mut all: Vec<Diagnostic>) -> Self {
        all.sort_by(|one, other| one.origin.cmp(&other.origin));
        Diagnostics(all)
    }

    /// Whether something is wrong on the command line.
    fn is_usage(&self) -> bool {
        self.0.iter().any(|wrong| matches!(wrong.origin, SettingOrigin::Flag(_) | SettingOrigin::Default))
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
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\nstilling: ")?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}
