//! The pool's counters, for the status page, the metrics and the tests.
//!
//! The counters order nothing between threads, so they are std atomics even under loom, where they would only multiply
//! the interleavings. Each is exact; a snapshot of all is not taken at one instant.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::job_result::JobResult;

/// A snapshot of the pool's counters. Fields without "now" count since the pool was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolCounters {
    /// Jobs submitted and not yet taken by a worker, now.
    pub queued: u64,
    /// Highest value of `queued`.
    pub queued_max: u64,
    /// Jobs taken and not yet answered, now.
    pub busy: u64,
    /// Jobs that completed.
    pub done: u64,
    /// Jobs rejected because a limit was reached.
    pub rejected: u64,
    /// Jobs not run because they had waited too long, including shed jobs.
    pub expired: u64,
    /// Jobs not run because they had waited twice the target in a standing queue.
    pub shed: u64,
    /// Jobs withdrawn before a worker took them, because their client had disconnected.
    pub cancelled: u64,
    /// Jobs that panicked or were dropped by a worker.
    pub panicked: u64,
    /// Jobs run inline in a submitter's own thread; also counted in `done` and `panicked`.
    pub inline: u64,
    /// Worker threads, now: the initial ones and those started since, without those that have retired. Closing the pool
    /// does not change it.
    pub threads: u64,
    /// Worker threads started, including the initial ones.
    pub threads_started: u64,
    /// Worker threads retired because the pool needed fewer.
    pub threads_ended: u64,
    /// Worker threads that the system could not start.
    pub threads_failed: u64,
    /// Total queueing time of all taken jobs.
    pub waited: Duration,
}

impl PoolCounters {
    /// The sum of the counters of two pools; `queued_max` is that of the pool in which more jobs waited.
    #[must_use]
    pub fn plus(self, other: PoolCounters) -> PoolCounters {
        PoolCounters {
            queued: self.queued + other.queued,
            queued_max: self.queued_max.max(other.queued_max),
            busy: self.busy + other.busy,
            done: self.done + other.done,
            rejected: self.rejected + other.rejected,
            expired: self.expired + other.expired,
            shed: self.shed + other.shed,
            cancelled: self.cancelled + other.cancelled,
            panicked: self.panicked + other.panicked,
            inline: self.inline + other.inline,
            threads: self.threads + other.threads,
            threads_started: self.threads_started + other.threads_started,
            threads_ended: self.threads_ended + other.threads_ended,
            threads_failed: self.threads_failed + other.threads_failed,
            waited: self.waited + other.waited,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct PoolTally {
    pub(crate) queued_max: AtomicU64,
    pub(crate) taken: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) shed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) panicked: AtomicU64,
    pub(crate) inline: AtomicU64,
    pub(crate) threads_started: AtomicU64,
    pub(crate) threads_ended: AtomicU64,
    pub(crate) threads_failed: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) wait_nanos: AtomicU64,
    /// Moving average of service times, in nanoseconds.
    pub(crate) service_nanos: AtomicU64,
}

/// Inverse weight of the newest job in the average of service times.
const SERVICE_WINDOW: u64 = 16;

impl PoolTally {
    pub(crate) fn counter_of<R>(&self, outcome: &JobResult<R>) -> &AtomicU64 {
        match outcome {
            JobResult::Done(_) => &self.done,
            JobResult::Panicked => &self.panicked,
            JobResult::Expired => &self.expired,
        }
    }

    /// Records a job's service time. Concurrent workers may overwrite each other's value, which an average tolerates.
    pub(crate) fn record_service_time(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.service_nanos.load(Relaxed);
        let mean = if before == 0 { took } else { before - before / SERVICE_WINDOW + took / SERVICE_WINDOW };
        self.service_nanos.store(mean, Relaxed);
    }

    /// Returns the average service time; 0 before the first job.
    pub(crate) fn service_mean(&self) -> Duration {
        Duration::from_nanos(self.service_nanos.load(Relaxed))
    }

    pub(crate) fn snapshot(&self, queued: u64, threads: u64) -> PoolCounters {
        // Results are read before `taken`, because every result follows its job's removal from the queue. The relaxed
        // loads may still be reordered, hence the saturating subtraction.
        let (done, expired, panicked) =
            (self.done.load(Relaxed), self.expired.load(Relaxed), self.panicked.load(Relaxed));
        let answered = done + expired + panicked + self.lost.load(Relaxed);
        PoolCounters {
            queued,
            queued_max: self.queued_max.load(Relaxed),
            busy: self.taken.load(Relaxed).saturating_sub(answered),
            done,
            rejected: self.rejected.load(Relaxed),
            expired,
            shed: self.shed.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            panicked,
            inline: self.inline.load(Relaxed),
            threads,
            threads_started: self.threads_started.load(Relaxed),
            threads_ended: self.threads_ended.load(Relaxed),
            threads_failed: self.threads_failed.load(Relaxed),
            waited: Duration::from_nanos(self.wait_nanos.load(Relaxed)),
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Relaxed) + 1
}
