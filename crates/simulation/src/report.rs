//! What a run of a world comes to.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stilling_ring::Time;

use crate::faults::FaultCounts;

/// A world that went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// Equal for equal runs.
    pub trace_hash: u64,
    /// What went wrong in it, and was survived.
    pub faults: FaultCounts,
    /// The virtual time when all was done.
    pub until: Time,
}

/// A world that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedFailure {
    /// Which one.
    pub seed: u64,
    /// What was found: a checker's finding or the message of a panic.
    pub why: String,
    /// The text of the run, if it was kept.
    pub text: Vec<String>,
}

impl std::fmt::Display for SeedFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.why)
    }
}

impl std::error::Error for SeedFailure {}

/// Plays a world; a panic in it, also one of the code under test, is a failure like any other.
pub(crate) fn attempt<R>(seed: u64, play: impl FnOnce() -> Result<R, String>) -> Result<R, SeedFailure> {
    let result = catch_unwind(AssertUnwindSafe(play)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panic: {message}"))
    });
    result.map_err(|why| SeedFailure { seed, why, text: Vec::new() })
}
