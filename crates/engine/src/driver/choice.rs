//! Choice of the driver, once per process.

use std::fmt;

#[cfg(target_os = "linux")]
use super::uring::Uring;

/// The driver requested by the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// `uring` if the system permits it, else `poll`.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Readiness polling.
    Poll,
}

/// The driver in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring.
    Uring,
    /// io_uring with sockets in descriptor tables of the rings.
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

/// The selected driver and, after a fallback, the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedDriver {
    /// The driver.
    pub kind: DriverKind,
    /// Why the automatic choice fell back to `poll`.
    pub fallback: Option<String>,
}

impl DriverChoice {
    /// Selects a driver with direct descriptors, without a fallback.
    ///
    /// # Errors
    /// `InvalidInput`: `poll` was requested, which has no direct descriptors. Else the reason why the system does not
    /// permit io_uring or direct descriptors.
    pub fn resolve_direct(self) -> std::io::Result<SelectedDriver> {
        if self == DriverChoice::Poll {
            let message = "they are slots of an io_uring ring, which the driver poll does not have";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, message));
        }
        Uring::probe()?;
        Uring::probe_direct_descriptors()?;
        Ok(SelectedDriver { kind: DriverKind::UringDirect, fallback: None })
    }

    /// Selects a driver; probes the system if necessary.
    ///
    /// # Errors
    /// The system's error if `uring` was requested and is not permitted.
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
