//! A job from its removal from the queue to the delivery of its result.
//!
//! Three steps, so that the simulator can put virtual time between them: taken ([`ClaimedJob`]), run ([`FinishedJob`]),
//! delivered. An inner `PendingResult` delivers the result when it is dropped: every taken job is answered exactly
//! once, even if its worker fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stilling_ring::Time;
use stilling_ring::sync::Arc;

use super::{Job, PoolCore};
use crate::context::JobContext;
use crate::counters::count;
use crate::job_claims::JobPosition;
use crate::job_result::{JobCompletion, JobResult};

/// A job taken by a worker. Dropping it without [`run`](ClaimedJob::run) answers [`JobResult::Panicked`].
#[must_use = "dropping a taken job answers it as panicked"]
pub struct ClaimedJob<R> {
    job: Job<R>,
    expired: bool,
    pending_result: PendingResult<R>,
}

impl<R> ClaimedJob<R> {
    pub(crate) fn new(
        core: Arc<PoolCore<R>>,
        (submitter, position): (usize, JobPosition),
        job: Job<R>,
        taken: Time,
        expired: bool,
        lost: bool,
    ) -> ClaimedJob<R> {
        let pending_result = PendingResult {
            core,
            submitter,
            position,
            ticket: job.ticket,
            taken,
            lost,
            outcome: Some(JobResult::Panicked),
        };
        ClaimedJob { job, expired, pending_result }
    }

    /// The ticket passed to `submit`.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.pending_result.ticket
    }

    /// Index of the job's submitter, in the order of the wakes passed to [`Pool::new`](crate::Pool::new).
    #[must_use]
    pub fn submitter(&self) -> usize {
        self.pending_result.submitter
    }

    /// Runs the job, unless it expired. Catches a panic.
    pub fn run(self, context: &mut JobContext) -> FinishedJob<R> {
        let ClaimedJob { job, expired, mut pending_result } = self;
        let work = job.work;
        pending_result.outcome = Some(if expired {
            // Dropping user captures may panic.
            catch_panic(|| drop(work));
            JobResult::Expired
        } else {
            catch_panic(|| work.call(context)).map_or(JobResult::Panicked, JobResult::Done)
        });
        FinishedJob { pending_result }
    }
}

/// A completed job; its result is delivered by [`deliver`](FinishedJob::deliver) or on drop.
#[must_use = "the result is sent by `deliver`"]
pub struct FinishedJob<R> {
    pending_result: PendingResult<R>,
}

impl<R> FinishedJob<R> {
    /// The ticket passed to `submit`.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.pending_result.ticket
    }

    /// Index of the submitter that receives the result.
    #[must_use]
    pub fn submitter(&self) -> usize {
        self.pending_result.submitter
    }

    /// Delivers the result to the submitter and wakes the submitter's shard.
    pub fn deliver(self) {
        drop(self.pending_result);
    }
}

struct PendingResult<R> {
    core: Arc<PoolCore<R>>,
    submitter: usize,
    position: JobPosition,
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
            self.core.deliver(
                self.submitter,
                JobCompletion { ticket: self.ticket, position: self.position, outcome },
            );
        }
    }
}

/// Runs user code and catches its panic, and a panic while dropping the payload.
pub(crate) fn catch_panic<T>(run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(payload) => {
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                // Leaks a payload that panicked while the first was dropped.
                std::mem::forget(again);
            }
            None
        }
    }
}
