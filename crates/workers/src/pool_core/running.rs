//! A job from the moment a worker takes it until its answer is on the way.
//!
//! Three steps, so that the simulator can put virtual time between them: taken ([`RunningJob`]), run
//! ([`FinishedJob`]), delivered. The answer is owed by an inner `PendingResult` that pays when it is dropped: whatever
//! becomes of the worker, every taken job is answered exactly once.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stilling_ring::Time;
use stilling_ring::sync::Arc;

use super::{Job, PoolCore};
use crate::context::JobContext;
use crate::counters::count;
use crate::job_claims::LanePosition;
use crate::job_result::{JobCompletion, JobResult};

/// A job that a worker has taken. Dropping it without [`run`](RunningJob::run) answers [`JobResult::Panicked`].
#[must_use = "dropping a taken job answers it as panicked"]
pub struct RunningJob<R> {
    job: Job<R>,
    expired: bool,
    pending_result: PendingResult<R>,
}

impl<R> RunningJob<R> {
    pub(crate) fn new(
        core: Arc<PoolCore<R>>,
        (lane, position): (usize, LanePosition),
        job: Job<R>,
        taken: Time,
        expired: bool,
        lost: bool,
    ) -> RunningJob<R> {
        let pending_result = PendingResult {
            core,
            lane,
            position,
            ticket: job.ticket,
            taken,
            lost,
            outcome: Some(JobResult::Panicked),
        };
        RunningJob { job, expired, pending_result }
    }

    /// The ticket that the job was submitted with.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.pending_result.ticket
    }

    /// Which lane the job came from, in the order of the wakes given to [`Pool::new`](crate::Pool::new).
    #[must_use]
    pub fn lane(&self) -> usize {
        self.pending_result.lane
    }

    /// Runs the job, unless it expired. A panic in it ends here.
    pub fn run(self, context: &mut JobContext) -> FinishedJob<R> {
        let RunningJob { job, expired, mut pending_result } = self;
        let work = job.work;
        pending_result.outcome = Some(if expired {
            // What the job captured is the user's, and may panic while it is dropped.
            contain(|| drop(work));
            JobResult::Expired
        } else {
            contain(|| work.call(context)).map_or(JobResult::Panicked, JobResult::Done)
        });
        FinishedJob { pending_result }
    }
}

/// A job that has run; its answer leaves with [`deliver`](FinishedJob::deliver), or at the latest when this is dropped.
#[must_use = "the answer leaves when this is delivered"]
pub struct FinishedJob<R> {
    pending_result: PendingResult<R>,
}

impl<R> FinishedJob<R> {
    /// The ticket that the job was submitted with.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.pending_result.ticket
    }

    /// Which lane the answer goes to.
    #[must_use]
    pub fn lane(&self) -> usize {
        self.pending_result.lane
    }

    /// Puts the answer where the lane finds it and wakes the lane's shard.
    pub fn deliver(self) {
        drop(self.pending_result);
    }
}

/// The answer owed for one taken job.
struct PendingResult<R> {
    core: Arc<PoolCore<R>>,
    lane: usize,
    position: LanePosition,
    ticket: u64,
    taken: Time,
    lost: bool,
    outcome: Option<JobResult<R>>,
}

impl<R> Drop for PendingResult<R> {
    fn drop(&mut self) {
        if let Some(pool_size) = &self.core.pool_size {
            pool_size.job_finished();
        }
        if self.lost {
            count(&self.core.tally.lost);
        } else if let Some(outcome) = self.outcome.take() {
            if !matches!(outcome, JobResult::Expired) {
                self.core.tally.record_service_time(self.core.clock.now().since(self.taken));
            }
            self.core
                .deliver(self.lane, JobCompletion { ticket: self.ticket, position: self.position, outcome });
        }
    }
}

/// Runs foreign code; a panic in it, or in the dropping of what it panicked with, goes no further.
pub(crate) fn contain<T>(run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(payload) => {
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                // A payload that panics when dropped, carrying another: leaking it is the only way out.
                std::mem::forget(again);
            }
            None
        }
    }
}
