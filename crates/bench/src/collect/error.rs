//! Errors of a run without a report.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// A plan that contradicts itself, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCollectPlan(pub(super) String);

impl fmt::Display for InvalidCollectPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidCollectPlan {}

impl From<String> for InvalidCollectPlan {
    fn from(reason: String) -> Self {
        InvalidCollectPlan(reason)
    }
}

/// Reason why a run has no report.
#[derive(Debug)]
pub enum CollectError {
    /// The plan contradicts itself.
    InvalidPlan(InvalidCollectPlan),
    /// The server does not accept connections.
    Connect(SocketAddr, io::Error),
    /// The server violates the protocol or refuses a request.
    Server(String),
    /// A thread, file or process on this side failed.
    Local(String),
}

impl CollectError {
    pub(super) fn server(detail: impl Into<String>) -> CollectError {
        CollectError::Server(detail.into())
    }
}

impl fmt::Display for CollectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectError::InvalidPlan(error) => write!(f, "{error}"),
            CollectError::Connect(to, error) => {
                write!(f, "cannot connect to {to}: {error}; is the server running?")
            }
            CollectError::Server(detail) => write!(f, "server error: {detail}"),
            CollectError::Local(detail) => write!(f, "local error: {detail}"),
        }
    }
}

impl std::error::Error for CollectError {}

impl From<InvalidCollectPlan> for CollectError {
    fn from(error: InvalidCollectPlan) -> Self {
        CollectError::InvalidPlan(error)
    }
}
