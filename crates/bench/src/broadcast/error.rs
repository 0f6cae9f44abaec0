//! Errors of a run without a report.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// A plan that contradicts itself, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidBroadcastPlan(pub(super) String);

impl fmt::Display for InvalidBroadcastPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidBroadcastPlan {}

impl From<String> for InvalidBroadcastPlan {
    fn from(reason: String) -> Self {
        InvalidBroadcastPlan(reason)
    }
}

/// Reason why a run has no report.
#[derive(Debug)]
pub enum BroadcastError {
    /// The plan contradicts itself.
    InvalidPlan(InvalidBroadcastPlan),
    /// The server does not accept connections.
    Connect(SocketAddr, io::Error),
    /// The server violates the protocol or refuses a request before the load begins.
    Server(String),
    /// A system call on this side failed.
    Local(io::Error),
}

impl fmt::Display for BroadcastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BroadcastError::InvalidPlan(error) => write!(f, "{error}"),
            BroadcastError::Connect(to, error) => {
                write!(f, "cannot connect to {to}: {error}; is the server running?")
            }
            BroadcastError::Server(detail) => write!(f, "server error: {detail}"),
            BroadcastError::Local(error) => write!(f, "local error: {error}"),
        }
    }
}

impl std::error::Error for BroadcastError {}

impl From<InvalidBroadcastPlan> for BroadcastError {
    fn from(error: InvalidBroadcastPlan) -> Self {
        BroadcastError::InvalidPlan(error)
    }
}
