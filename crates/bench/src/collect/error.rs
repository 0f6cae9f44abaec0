//! Why a run gave no report at all.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// A plan that cannot be carried out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCollectPlan(pub(super) String);

impl fmt::Display for InvalidCollectPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidCollectPlan {}

/// Why a run gave no report.
#[derive(Debug)]
pub enum CollectError {
    /// The plan contradicts itself.
    InvalidPlan(InvalidCollectPlan),
    /// Nobody accepts connections there.
    Connect(SocketAddr, io::Error),
    /// The server does not speak the protocol as it should, or refuses what is asked of it.
    Server(String),
    /// Something on this side: a thread, a file, a process.
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
            CollectError::Server(detail) => write!(f, "the server is at fault: {detail}"),
            CollectError::Local(detail) => write!(f, "this side is at fault: {detail}"),
        }
    }
}

impl std::error::Error for CollectError {}

impl From<InvalidCollectPlan> for CollectError {
    fn from(error: InvalidCollectPlan) -> Self {
        CollectError::InvalidPlan(error)
    }
}
