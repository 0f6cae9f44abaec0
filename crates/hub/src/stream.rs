//! Streams: configuration and resume point.

use crate::time::UnixNanos;

mod config;

pub use self::config::{Durability, Retention, SlowSubscribers, StreamConfig};

/// Point at which a stream continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumePoint {
    /// First sequence kept; `next` if there is none.
    pub first: u64,
    /// Sequence of the next record.
    pub next: u64,
    /// Creation time of the stream; the epoch if it starts with the hub.
    pub created_ns: UnixNanos,
}

impl Default for ResumePoint {
    fn default() -> Self {
        ResumePoint { first: 1, next: 1, created_ns: UnixNanos::EPOCH }
    }
}
