//! What a stream is: its name, its subjects, what of it is kept, and where it goes on.

use crate::time::UnixNanos;

mod config;

pub use self::config::{Durability, Retention, StreamConfig};

/// Where a stream goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumePoint {
    /// The first sequence that is kept; `next` if there is none.
    pub first: u64,
    /// The sequence that the next record gets.
    pub next: u64,
    /// When the stream was created; the epoch if it begins with the hub.
    pub created_ns: UnixNanos,
}

impl Default for ResumePoint {
    fn default() -> Self {
        ResumePoint { first: 1, next: 1, created_ns: UnixNanos::EPOCH }
    }
}
