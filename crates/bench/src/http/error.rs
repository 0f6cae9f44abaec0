//! Why a run gave no report at all.

use std::fmt;
use std::io;

use stilling_wire::http1::DecodeError;

use super::plan::BadPlan;
use super::tally::Failure;

/// Why a run gave no report.
#[derive(Debug)]
pub enum BenchError {
    /// The plan contradicts itself.
    Plan(BadPlan),
    /// The demanded driver is not available.
    Driver(io::Error),
    /// Direct descriptors were demanded and are not available.
    DirectDescriptors(io::Error),
    /// The descriptor limit is too low for the connections.
    Descriptors {
        /// Connections wanted.
        wanted: u32,
        /// Descriptors that the process may have.
        limit: u64,
    },
    /// Nobody accepts connections there.
    Connect(String, io::Error),
    /// The first answer, by which all others are judged, was not right itself.
    FirstAnswer(Failure, String),
    /// A thread could not be started.
    Threads(io::Error),
    /// A generator's engine failed.
    Engine(io::Error),
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Plan(error) => write!(f, "{error}"),
            BenchError::Driver(error) => {
                write!(f, "io_uring is not available here ({error}); use --driver poll, or auto")
            }
            BenchError::DirectDescriptors(error) => {
                write!(
                    f,
                    "direct descriptors are not available here: {error}; load without --direct-descriptors"
                )
            }
            BenchError::Descriptors { wanted, limit } => write!(
                f,
                "{wanted} connections do not fit into the limit of {limit} open files; raise it (ulimit -n) or use fewer"
            ),
            BenchError::Connect(to, error) => {
                write!(f, "cannot connect to {to}: {error}; is the server running?")
            }
            BenchError::FirstAnswer(failure, evidence) => {
                write!(f, "the first answer is not right ({}): {evidence}", failure.name())
            }
            BenchError::Threads(error) => write!(f, "cannot start a thread: {error}"),
            BenchError::Engine(error) => write!(f, "the generator's engine failed: {error}"),
        }
    }
}

impl std::error::Error for BenchError {}

impl From<BadPlan> for BenchError {
    fn from(error: BadPlan) -> Self {
        BenchError::Plan(error)
    }
}

/// What is wrong with a response, without the status that would answer a request.
pub(crate) fn objection(error: &DecodeError) -> String {
    let text = error.to_string();
    text.split_once(": ").map_or(text.as_str(), |(_, words)| words).to_owned()
}
