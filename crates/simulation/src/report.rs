//! Results of a run of a world.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stilling_ring::Time;

use crate::faults::FaultCounts;

/// Result of a world without failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// Hash of all events; equal runs have equal hashes.
    pub trace_hash: u64,
    /// Faults that struck during the run.
    pub faults: FaultCounts,
    /// Virtual time at the end of the run.
    pub until: Time,
}

/// Failure of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedFailure {
    /// Seed of the world.
    pub seed: u64,
    /// Finding of a checker, or the message of a panic.
    pub why: String,
    /// The events as text, if recorded.
    pub text: Vec<String>,
}

impl std::fmt::Display for SeedFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.why)
    }
}

impl std::error::Error for SeedFailure {}

/// Runs a world and turns a panic, also one in the code under test, into a [`SeedFailure`].
pub(crate) fn attempt<R>(seed: u64, play: impl FnOnce() -> Result<R, String>) -> Result<R, SeedFailure> {
    let result = catch_unwind(AssertUnwindSafe(play)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panic: {message}"))
    });
    result.map_err(|why| SeedFailure { seed, why, text: Vec::new() })
}
