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
    /// io_uring, whose sockets live in descriptor tables of the rings.
    UringDirect,
    /// Readiness polling.
    Poll,
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DriverKind::Uring => "uring",
            DriverKind::UringDirect => "uring-direct",
            DriverKind::Poll => "poll",
        })
    }
}

/// A driver and, if it is not the first choice, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedDriver {
    /// The driver.
    pub kind: DriverKind,
    /// Why the automatic choice fell back, in a few words.
    pub fallback: Option<String>,
}

impl DriverChoice {
    /// Decides for a driver with direct descriptors. Who asks for them counts on them, so there is no
    /// falling back.
    ///
    /// # Errors
    /// `InvalidInput`: readiness polling was demanded, which has none. Else why the system does not grant
    /// io_uring, or direct descriptors as they are needed.
    pub fn resolve_direct(self) -> std::io::Result<SelectedDriver> {
        if self == DriverChoice::Poll {
            let words = "they are slots of an io_uring ring, which the driver poll does not have";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, words));
        }
        Uring::probe()?;
        Uring::probe_direct_descriptors()?;
        Ok(SelectedDriver { kind: DriverKind::UringDirect, fallback: None })
    }

    /// Decides, asking the system if need be.
    ///
    /// # Errors
    /// `uring` was demanded and the system does not grant it: its error.
    pub fn resolve(self) -> std::io::Result<SelectedDriver> {
        if self == DriverChoice::Poll {
            return Ok(SelectedDriver { kind: DriverKind::Poll, fallback: None });
        }
        match (Uring::probe(), self) {
            (Ok(()), _) => Ok(SelectedDriver { kind: DriverKind::Uring, fallback: None }),
            (Err(error), DriverChoice::Uring) => Err(error),
            (Err(error), _) => {
                let fallback = Some(format!("io_uring is not available: {error}"));
                Ok(SelectedDriver { kind: DriverKind::Poll, fallback })
            }
        }
    }
}
