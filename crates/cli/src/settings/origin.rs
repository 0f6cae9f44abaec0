//! The origin of a setting, so that a message shows where to change it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::EXIT_USAGE;

/// The origin of a setting, in increasing precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SettingOrigin {
    /// Not set in any source.
    Default,
    /// A file and a line, counted from 1.
    File(PathBuf, usize),
    /// The name of a variable.
    Variable(String),
    /// The name of an option.
    Flag(String),
}

/// The precedence of a source: the greater one wins.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnostic {
    pub(crate) origin: SettingOrigin,
    /// The error and how to correct it.
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
            // Without an origin the reason names the setting.
            SettingOrigin::Default => f.write_str(&self.reason),
            SettingOrigin::File(..) | SettingOrigin::Variable(_) | SettingOrigin::Flag(_) => {
                write!(f, "{}: {}", self.origin, self.reason)
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnostics(pub(crate) Vec<Diagnostic>);

impl Diagnostics {
    pub(crate) fn sorted(mut all: Vec<Diagnostic>) -> Self {
        all.sort_by(|one, other| one.origin.cmp(&other.origin));
        Diagnostics(all)
    }

    /// Returns whether an error is on the command line.
    fn is_usage(&self) -> bool {
        self.0.iter().any(|wrong| matches!(wrong.origin, SettingOrigin::Flag(_) | SettingOrigin::Default))
    }

    /// The exit status: a usage error if the command line is involved, else a failure.
    pub(crate) fn status(&self) -> ExitCode {
        if self.is_usage() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
    }

    pub(crate) fn hint(&self) -> &'static str {
        if self.is_usage() { "\nstilling: --help lists all options" } else { "" }
    }
}

/// One line per error, each in the form of a single error.
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
