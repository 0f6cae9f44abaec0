//! Errors of a run without a report.

use std::fmt;
use std::io;

use stilling_wire::http1::HttpDecodeError;

use super::plan::InvalidHttpPlan;
use super::tally::RequestFailure;

/// Reason why a run has no report.
#[derive(Debug)]
pub enum HttpBenchError {
    /// The plan contradicts itself.
    InvalidPlan(InvalidHttpPlan),
    /// The required driver is not available.
    Driver(io::Error),
    /// Direct descriptors are required and not available.
    DirectDescriptors(io::Error),
    /// The descriptor limit is too low for the connections.
    Descriptors {
        /// Required connections.
        wanted: u32,
        /// Descriptor limit of the process.
        limit: u64,
    },
    /// The server does not accept connections.
    Connect(String, io::Error),
    /// The first answer, which would be the reference for all others, is wrong.
    FirstAnswer(RequestFailure, String),
    /// A thread could not be started.
    Threads(io::Error),
    /// A generator's engine failed.
    Engine(io::Error),
}

impl fmt::Display for HttpBenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpBenchError::InvalidPlan(error) => write!(f, "{error}"),
            HttpBenchError::Driver(error) => {
                write!(f, "io_uring is not available here ({error}); use --driver poll, or auto")
            }
            HttpBenchError::DirectDescriptors(error) => {
                write!(
                    f,
                    "direct descriptors are not available here: {error}; load without --direct-descriptors"
                )
            }
            HttpBenchError::Descriptors { wanted, limit } => write!(
                f,
                "{wanted} connections do not fit into the limit of {limit} open files; raise it (ulimit -n) or use fewer"
            ),
            HttpBenchError::Connect(to, error) => {
                write!(f, "cannot connect to {to}: {error}; is the server running?")
            }
            HttpBenchError::FirstAnswer(failure, evidence) => {
                write!(f, "the first answer is wrong ({}): {evidence}", failure.name())
            }
            HttpBenchError::Threads(error) => write!(f, "cannot start a thread: {error}"),
            HttpBenchError::Engine(error) => write!(f, "the generator's engine failed: {error}"),
        }
    }
}

impl std::error::Error for HttpBenchError {}

impl From<InvalidHttpPlan> for HttpBenchError {
    fn from(error: InvalidHttpPlan) -> Self {
        HttpBenchError::InvalidPlan(error)
    }
}

/// The decoder's error text without its status code.
pub(crate) fn error_detail(error: &HttpDecodeError) -> String {
    let text = error.to_string();
    text.split_once(": ").map_or(text.as_str(), |(_, detail)| detail).to_owned()
}
