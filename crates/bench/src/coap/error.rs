//! Errors of a run without a report.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// A plan that contradicts itself, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCoapPlan(pub(super) String);

impl fmt::Display for InvalidCoapPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidCoapPlan {}

impl From<String> for InvalidCoapPlan {
    fn from(reason: String) -> Self {
        InvalidCoapPlan(reason)
    }
}

/// Reason why a run has no report.
#[derive(Debug)]
pub enum CoapBenchError {
    /// The plan contradicts itself.
    InvalidPlan(InvalidCoapPlan),
    /// The server did not answer the first requests correctly.
    Server(SocketAddr, String),
    /// A system call on this side failed.
    Local(io::Error),
}

impl fmt::Display for CoapBenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoapBenchError::InvalidPlan(error) => write!(f, "{error}"),
            CoapBenchError::Server(to, detail) => {
                write!(f, "no correct answer from {to} before the load: {detail}; is the server running?")
            }
            CoapBenchError::Local(error) => write!(f, "local error: {error}"),
        }
    }
}

impl std::error::Error for CoapBenchError {}

impl From<InvalidCoapPlan> for CoapBenchError {
    fn from(error: InvalidCoapPlan) -> Self {
        CoapBenchError::InvalidPlan(error)
    }
}

impl From<io::Error> for CoapBenchError {
    fn from(error: io::Error) -> Self {
        CoapBenchError::Local(error)
    }
}
