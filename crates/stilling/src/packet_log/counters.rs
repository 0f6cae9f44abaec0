//! What the packet log counts.

use std::sync::{Arc, Mutex, PoisonError};

use stilling_engine::counters::Counter;

/// Counters of a shard's part, written by the shard.
#[derive(Debug, Default)]
pub struct CaptureCounters {
    /// Datagrams passed to the thread of the log.
    pub recorded: Counter,
    /// Datagrams dropped from the log because all buffers were in use.
    pub dropped: Counter,
}

/// Counters of the packet log.
#[derive(Debug, Default)]
pub struct PacketLogCounters {
    /// Those of each shard.
    pub shards: Vec<Arc<CaptureCounters>>,
    /// Bytes written.
    pub written: Counter,
    /// Files begun.
    pub files: Counter,
    /// Errors of the file system.
    pub errors: Counter,
    /// Datagrams discarded because of an error.
    pub discarded: Counter,
    failure: Mutex<Option<String>>,
}

impl PacketLogCounters {
    pub(super) fn new(shards: usize) -> PacketLogCounters {
        PacketLogCounters { shards: (0..shards).map(|_| Arc::default()).collect(), ..Default::default() }
    }

    /// The sum of a counter over all shards.
    pub fn sum(&self, counter: impl Fn(&CaptureCounters) -> &Counter) -> u64 {
        self.shards.iter().map(|shard| counter(shard).get()).sum()
    }

    /// The error because of which nothing is written now.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether there was a failure before.
    pub(super) fn set_failure(&self, failure: Option<String>) -> bool {
        let mut current = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, failure).is_some()
    }
}
