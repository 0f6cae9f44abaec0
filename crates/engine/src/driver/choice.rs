//! Which driver runs: chosen once per process, and said aloud.

use std::fmt;

#[cfg(target_os = "linux")]
use super::uring::Uring;

/// What the operator asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// `uring` where the system grants it, else `poll`.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Readiness polling.
    Poll,
}

/// The driver that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring.
    Uring,
    /// Readiness polling.
    Poll,
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DriverKind::Uring => "uring",
            DriverKind::Poll => "poll",
        })
    }
}

/// A driver and, if it is not the first choice, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The driver.
    pub kind: DriverKind,
    /// Why the automatic choice fell back, in a few words.
    pub fallback: Option<String>,
}

impl DriverChoice {
    /// Decides, asking the system if need be.
    ///
    /// # Errors
    /// `uring` was demanded and the system does not grant it: its error.
    pub fn resolve(self) -> std::io::Result<Chosen> {
        if self == DriverChoice::Poll {
            return Ok(Chosen { kind: DriverKind::Poll, fallback: None });
        }
        match (Uring::probe(), self) {
            (Ok(()), _) => Ok(Chosen { kind: DriverKind::Uring, fallback: None }),
            (Err(error), DriverChoice::Uring) => Err(error),
            (Err(error), _) => {
                let fallback = Some(format!("io_uring is not available: {error}"));
                Ok(Chosen { kind: DriverKind::Poll, fallback })
            }
        }
    }
}
