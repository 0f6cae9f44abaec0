//! The supervisor's counters, for the status page, the metrics and the tests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A snapshot. Fields without "now" count since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounters {
    /// Configured number of processes.
    pub configured: u64,
    /// Processes that accept requests, now.
    pub ready: u64,
    /// Processes that wait to be restarted, now.
    pub backing_off: u64,
    /// The longest of those delays, now.
    pub backoff: Duration,
    /// Processes started.
    pub started: u64,
    /// Processes that exited by themselves, or failed to start.
    pub exited: u64,
    /// Processes killed after a timeout: of a request, of the start, of the stop.
    pub killed: u64,
    /// Processes stopped because they had reached `requests_max`.
    pub recycled: u64,
    /// Processes stopped because they exceeded `memory_max`.
    pub recycled_memory: u64,
    /// Reloads that replaced all processes.
    pub reloaded: u64,
    /// Reloads whose processes did not become ready.
    pub reloads_failed: u64,
}

#[derive(Debug, Default)]
pub(super) struct ProcessTally {
    pub(super) ready: AtomicU64,
    pub(super) backing_off: AtomicU64,
    pub(super) backoff_nanos: AtomicU64,
    pub(super) started: AtomicU64,
    pub(super) exited: AtomicU64,
    pub(super) killed: AtomicU64,
    pub(super) recycled: AtomicU64,
    pub(super) recycled_memory: AtomicU64,
    pub(super) reloaded: AtomicU64,
    pub(super) reloads_failed: AtomicU64,
    is_finished: Mutex<bool>,
    finished_changed: Condvar,
}

impl ProcessTally {
    pub(super) fn snapshot(&self, configured: usize) -> ProcessCounters {
        ProcessCounters {
            configured: configured as u64,
            ready: self.ready.load(Relaxed),
            backing_off: self.backing_off.load(Relaxed),
            backoff: Duration::from_nanos(self.backoff_nanos.load(Relaxed)),
            started: self.started.load(Relaxed),
            exited: self.exited.load(Relaxed),
            killed: self.killed.load(Relaxed),
            recycled: self.recycled.load(Relaxed),
            recycled_memory: self.recycled_memory.load(Relaxed),
            reloaded: self.reloaded.load(Relaxed),
            reloads_failed: self.reloads_failed.load(Relaxed),
        }
    }

    pub(super) fn set_finished(&self) {
        *self.is_finished.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.finished_changed.notify_all();
    }

    pub(super) fn wait_until_finished(&self, timeout: Duration) -> bool {
        let is_finished = self.is_finished.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_finished, _) = self
            .finished_changed
            .wait_timeout_while(is_finished, timeout, |is_finished| !*is_finished)
            .unwrap_or_else(PoisonError::into_inner);
        *is_finished
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
