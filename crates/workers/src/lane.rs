//! A shard's way into the pool and back: it never locks, waits or allocates.
//!
//! The lane counts its outstanding jobs (submitted and their result not yet fetched) and stops submitting at the
//! size of its result mailbox. So a worker always finds room for a result, and a shard that fetches none only stops
//! itself.

use std::fmt;

use stilling_ring::sync::Arc;
use stilling_ring::{InlineFn, Receiver, Sender};

use crate::context::JobContext;
use crate::counters::count;
use crate::job_claims::LanePosition;
use crate::job_result::{JobCompletion, JobResult};
use crate::pool_core::{Admission, EnqueueTime, Job, PoolCore};

/// One shard's access to the pool. Jobs of a dropped lane still run; their results are dropped.
pub struct Lane<R> {
    /// Its number among the lanes of the pool.
    number: usize,
    jobs: Sender<Job<R>>,
    results: Receiver<JobCompletion<R>>,
    core: Arc<PoolCore<R>>,
    outstanding: usize,
    outstanding_max: usize,
    batch: usize,
    /// Jobs run in the lane's own thread since the last `publish`: never more than one.
    ran_inline: bool,
}

/// Why a job was not accepted; the closure comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SubmitError<F> {
    /// The queue is as long as its limit, or the lane has too many results to fetch. Later there is room again.
    Full(F),
    /// The pool is closed for good.
    Closed(F),
}

impl<F> SubmitError<F> {
    /// The closure that was refused.
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

impl<R> Lane<R> {
    pub(crate) fn new(
        number: usize,
        jobs: Sender<Job<R>>,
        results: Receiver<JobCompletion<R>>,
        core: Arc<PoolCore<R>>,
        outstanding_max: usize,
    ) -> Lane<R> {
        Lane { number, jobs, results, core, outstanding: 0, outstanding_max, batch: 0, ran_inline: false }
    }

    /// Queues `job`, which a worker will see after [`publish`](Lane::publish). Its answer carries `ticket`, which
    /// is the caller's to choose. The closure may capture 96 bytes, checked when it is compiled.
    ///
    /// # Errors
    /// [`SubmitError`] with the closure.
    #[inline]
    pub fn submit<F>(&mut self, ticket: u64, job: F) -> Result<LanePosition, SubmitError<F>>
    where
        F: FnOnce(&mut JobContext) -> R + Send + 'static,
    {
        self.enqueue(ticket, false, job)
    }

    /// The same for a job that goes on with what has begun and could not be begun again: once it is in the queue
    /// it is run, however long it has waited. To be asked for only when the lane is not [full](Lane::is_full): then
    /// it is accepted, even if another lane takes the last place at this moment.
    ///
    /// # Errors
    /// The pool is closed, or the lane was full.
    pub fn submit_continuation<F>(&mut self, ticket: u64, job: F) -> Result<LanePosition, SubmitError<F>>
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
    ) -> Result<LanePosition, SubmitError<F>>
    where
        F: FnOnce(&mut JobContext) -> R + Send + 'static,
    {
        if self.outstanding >= self.outstanding_max {
            count(&self.core.tally.refused);
            return Err(SubmitError::Full(job));
        }
        match self.core.admit(is_continuation) {
            Admission::Admitted => {}
            Admission::Full => {
                count(&self.core.tally.refused);
                return Err(SubmitError::Full(job));
            }
            Admission::Closed => return Err(SubmitError::Closed(job)),
        }
        let position = LanePosition::new(self.jobs.pushed());
        let enqueued = EnqueueTime::new(self.core.clock.now(), is_continuation);
        let Some(vacancy) = self.jobs.vacancy() else {
            self.core.leave_queue();
            count(&self.core.tally.refused);
            return Err(SubmitError::Full(job));
        };
        self.core.claims[self.number].open(position.0);
        vacancy.fill(|| Job { work: InlineFn::new(job), ticket, enqueued });
        self.outstanding += 1;
        self.batch += 1;
        Ok(position)
    }

    /// Whether the queue would refuse a job now, as far as this lane can see: another one may take the last place.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // Withdrawn jobs have their places until a worker passes them.
        let places_used = self.jobs.pushed() - self.jobs.taken();
        self.outstanding >= self.outstanding_max
            || self.core.queued() >= self.core.limits.queue_max as u64
            || places_used >= self.jobs.capacity() as u64
    }

    /// Runs `job` here and now, in the calling thread, and returns what became of it; or returns the job to be
    /// submitted, because [`PoolLimits::inline_max`](crate::PoolLimits::inline_max) lanes do so already, or because this
    /// one has since it last published. While the job runs, its shard does nothing else.
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

    /// Makes everything submitted since the last call visible, and wakes as many idle workers as that needs. Call
    /// it once per turn.
    pub fn publish(&mut self) {
        self.ran_inline = false;
        if self.jobs.publish() {
            self.core.idle.notify(std::mem::take(&mut self.batch));
        }
    }

    /// Whether the job put at `position` has not been taken by a worker yet.
    #[must_use]
    pub fn is_waiting(&self, position: LanePosition) -> bool {
        self.core.claims[self.number].is_waiting(position.0)
    }

    /// Takes the job at `position` out of the queue, unless a worker has taken it. It is not run and has no result; it
    /// leaves the queue's length and the [outstanding](Lane::outstanding) jobs now, and its place in the queue when a
    /// worker passes it. What it captured is dropped then, so a job with much memory shares it with its submitter.
    /// `is_late`: it counts as expired, otherwise as cancelled.
    pub fn withdraw(&mut self, position: LanePosition, is_late: bool) -> bool {
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
        core.leave_queue();
        self.outstanding -= 1;
        true
    }

    /// The next answer, in the order in which workers delivered them.
    pub fn next_result(&mut self) -> Option<JobCompletion<R>> {
        let completed = self.results.pop()?;
        // Only a planted double answer makes this more than the jobs submitted.
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(completed)
    }

    /// Whether [`next_result`](Lane::next_result) has something: the last look before the shard sleeps.
    #[must_use]
    pub fn has_result(&self) -> bool {
        !self.results.is_empty()
    }

    /// How many submitted jobs have not been answered to this shard yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }
}

impl<R> Drop for Lane<R> {
    fn drop(&mut self) {
        // Accepted jobs are counted in the queue, and the pool closes only when all of them were taken.
        self.publish();
    }
}
