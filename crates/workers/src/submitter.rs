//! A shard's handle to the pool. It never locks, waits or allocates.
//!
//! The submitter counts its outstanding jobs (submitted, with their result not yet fetched) and stops submitting at the
//! size of its result mailbox. A worker therefore always finds room for a result, and a shard that fetches no results
//! only blocks itself.

use std::fmt;

use stilling_ring::sync::Arc;
use stilling_ring::{InlineFn, Receiver, Sender};

use crate::context::JobContext;
use crate::counters::count;
use crate::job_claims::JobPosition;
use crate::job_result::{JobCompletion, JobResult};
use crate::pool_core::{Admission, EnqueueTime, Job, PoolCore};

/// One shard's handle to the pool. Jobs of a dropped submitter still run; their results are dropped.
pub struct JobSubmitter<R> {
    number: usize,
    jobs: Sender<Job<R>>,
    results: Receiver<JobCompletion<R>>,
    core: Arc<PoolCore<R>>,
    outstanding: usize,
    outstanding_max: usize,
    batch: usize,
    /// Whether the submitter has run a job in its own thread since the last `publish`: at most one.
    ran_inline: bool,
}

/// Why a job was rejected; carries the closure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SubmitError<F> {
    /// The queue is at its limit, or the submitter has too many unfetched results. Temporary.
    Full(F),
    /// The pool is closed. Permanent.
    Closed(F),
}

impl<F> SubmitError<F> {
    /// Returns the rejected closure.
    pub fn into_job(self) -> F {
        match self {
            SubmitError::Full(job) | SubmitError::Closed(job) => job,
        }
    }
}

impl<F> fmt::Debug for SubmitError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full(_) => "Full(..)",
            SubmitError::Closed(_) => "Closed(..)",
        })
    }
}

impl<F> fmt::Display for SubmitError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full(_) => "the worker queue is full",
            SubmitError::Closed(_) => "the worker pool is closed",
        })
    }
}

impl<F> std::error::Error for SubmitError<F> {}

impl<R> JobSubmitter<R> {
    pub(crate) fn new(
        number: usize,
        jobs: Sender<Job<R>>,
        results: Receiver<JobCompletion<R>>,
        core: Arc<PoolCore<R>>,
        outstanding_max: usize,
    ) -> JobSubmitter<R> {
        JobSubmitter {
            number,
            jobs,
            results,
            core,
            outstanding: 0,
            outstanding_max,
            batch: 0,
            ran_inline: false,
        }
    }

    /// Queues `job`, visible to workers after [`publish`](JobSubmitter::publish). Its result carries `ticket`, chosen
    /// by the caller. The closure may capture 96 bytes, checked at compile time.
    ///
    /// # Errors
    /// [`SubmitError`] with the closure.
    #[inline]
    pub fn submit<F>(&mut self, ticket: u64, job: F) -> Result<JobPosition, SubmitError<F>>
    where
        F: FnOnce(&mut JobContext) -> R + Send + 'static,
    {
        self.enqueue(ticket, false, job)
    }

    /// Like [`submit`](JobSubmitter::submit), for a job that continues work which could not be restarted: it is run
    /// however long it waits. Call it only when the submitter is not [full](JobSubmitter::is_full): the job is then
    /// accepted even if another submitter takes the last slot concurrently.
    ///
    /// # Errors
    /// The pool is closed, or the submitter was full.
    pub fn submit_continuation<F>(&mut self, ticket: u64, job: F) -> Result<JobPosition, SubmitError<F>>
    where
        F: FnOnce(&mut JobContext) -> R + Send + 'static,
    {
        self.enqueue(ticket, true, job)
    }

    #[inline]
    fn enqueue<F>(
        &mut self,
        ticket: u64,
        is_continuation: bool,
        job: F,
    ) -> Result<JobPosition, SubmitError<F>>
    where
        F: FnOnce(&mut JobContext) -> R + Send + 'static,
    {
        if self.outstanding >= self.outstanding_max {
            count(&self.core.tally.rejected);
            return Err(SubmitError::Full(job));
        }
        match self.core.admit(is_continuation) {
            Admission::Admitted => {}
            Admission::Full => {
                count(&self.core.tally.rejected);
                return Err(SubmitError::Full(job));
            }
            Admission::Closed => return Err(SubmitError::Closed(job)),
        }
        let position = JobPosition::new(self.jobs.pushed());
        let enqueued = EnqueueTime::new(self.core.clock.now(), is_continuation);
        let Some(vacant_slot) = self.jobs.vacant_slot() else {
            self.core.release_queue_slot();
            count(&self.core.tally.rejected);
            return Err(SubmitError::Full(job));
        };
        self.core.claims[self.number].mark_waiting(position.0);
        vacant_slot.fill(|| Job { work: InlineFn::new(job), ticket, enqueued });
        self.outstanding += 1;
        self.batch += 1;
        Ok(position)
    }

    /// Whether the queue would reject a job now; another submitter may take the last slot concurrently.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // Withdrawn jobs occupy their slots until a worker passes them.
        let slots_used = self.jobs.pushed() - self.jobs.popped();
        self.outstanding >= self.outstanding_max
            || self.core.queued() >= self.core.limits.queue_max as u64
            || slots_used >= self.jobs.capacity() as u64
    }

    /// Runs `job` in the calling thread and returns its result; or returns the job for submission, because
    /// [`PoolLimits::inline_max`](crate::PoolLimits::inline_max) submitters are doing so, or because this submitter has
    /// done so since its last `publish`. The shard is blocked while the job runs.
    ///
    /// # Errors
    /// The closure, if it is not to run here.
    pub fn run_inline<F>(&mut self, job: F) -> Result<JobResult<R>, F>
    where
        F: FnOnce(&mut JobContext) -> R,
    {
        if self.ran_inline {
            return Err(job);
        }
        let outcome = self.core.run_inline(job);
        self.ran_inline = outcome.is_ok();
        outcome
    }

    /// Publishes all jobs submitted since the last call, and wakes as many idle workers as needed. Call it once per
    /// turn.
    pub fn publish(&mut self) {
        self.ran_inline = false;
        if self.jobs.publish() {
            self.core.idle.notify(std::mem::take(&mut self.batch));
        }
    }

    /// Whether the job at `position` still waits: no worker has taken it, and it has not been withdrawn.
    #[must_use]
    pub fn is_waiting(&self, position: JobPosition) -> bool {
        self.core.claims[self.number].is_waiting(position.0)
    }

    /// Withdraws the job at `position`, unless a worker has taken it. It is not run and has no result. It stops
    /// counting as queued and [outstanding](JobSubmitter::outstanding) now, but its slot and captures are freed only
    /// when a worker passes it, so a job should share a large buffer with its submitter instead of capturing it.
    /// `is_late`: counts as expired, otherwise as cancelled.
    pub fn withdraw(&mut self, position: JobPosition, is_late: bool) -> bool {
        let core = &self.core;
        if !core.claims[self.number].claim(position.0) {
            return false;
        }
        if is_late {
            count(&core.tally.taken);
            count(&core.tally.expired);
        } else {
            count(&core.tally.cancelled);
        }
        core.release_queue_slot();
        self.outstanding -= 1;
        true
    }

    /// Returns the next result, in the order in which workers delivered them.
    pub fn next_result(&mut self) -> Option<JobCompletion<R>> {
        let completed = self.results.pop()?;
        // Only the planted bug "double answer" delivers more results than jobs were submitted.
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(completed)
    }

    /// Whether [`next_result`](JobSubmitter::next_result) would return a result: the final check before the shard
    /// sleeps.
    #[must_use]
    pub fn has_result(&self) -> bool {
        !self.results.is_empty()
    }

    /// Returns the number of submitted jobs without a fetched result.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }
}

impl<R> Drop for JobSubmitter<R> {
    fn drop(&mut self) {
        // Accepted jobs are counted as queued, and the pool closes only when all of them have been taken.
        self.publish();
    }
}
