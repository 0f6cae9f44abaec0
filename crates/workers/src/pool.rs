//! The owner's handle to the pool: created, started, closed and joined; or driven by a simulator.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use stilling_ring::sync::{Arc, Mutex};
use stilling_ring::{Clock, Wake, mailbox};

use crate::context::JobContext;
use crate::counters::PoolCounters;
use crate::job_claims::JobClaims;
use crate::limits::{PoolLimits, QUEUE_MAX_LIMIT};
use crate::pool_core::{ClaimedJob, PoolCore, ResultQueue};
use crate::scaler::PoolScaler;
use crate::submitter::JobSubmitter;
use crate::threads::WorkerThreads;

/// A bounded pool of worker threads. Clones are handles to the same pool; dropping the last one closes it.
pub struct Pool<R> {
    core: Arc<PoolCore<R>>,
    threads: std::sync::Arc<CloseOnDrop<R>>,
}

impl<R> Clone for Pool<R> {
    fn clone(&self) -> Pool<R> {
        Pool { core: Arc::clone(&self.core), threads: std::sync::Arc::clone(&self.threads) }
    }
}

impl<R> Pool<R> {
    /// Creates a pool and one submitter per wake. No thread exists before [`start`](Pool::start).
    ///
    /// The queues are allocated here for the worst case; the operating system backs them with memory as they fill. Each
    /// submitter's wake is notified after a result was delivered to it.
    ///
    /// # Panics
    /// If a limit is out of its range.
    #[must_use]
    pub fn new(limits: PoolLimits, clock: Clock, wakes: Vec<Arc<Wake>>) -> (Pool<R>, Vec<JobSubmitter<R>>) {
        let PoolLimits { threads, queue_max, scaling, .. } = limits;
        let threads_max = if scaling.is_enabled() { scaling.threads_max } else { threads };
        assert!(
            (1..=QUEUE_MAX_LIMIT).contains(&queue_max) && threads_max <= QUEUE_MAX_LIMIT,
            "queue_max must be 1 to {QUEUE_MAX_LIMIT} and the pool may have at most {QUEUE_MAX_LIMIT} threads: {limits:?}"
        );
        assert!(scaling.is_valid_for(threads), "a pool of {threads} threads cannot grow by {scaling:?}");
        // A submitter may have a full queue, a job in every worker, and as many results still to be fetched.
        let outstanding_max = 2 * (queue_max + threads_max);
        let mut job_receivers = Vec::with_capacity(wakes.len());
        let mut result_queues = Vec::with_capacity(wakes.len());
        let mut ends = Vec::with_capacity(wakes.len());
        let mut claims = Vec::with_capacity(wakes.len());
        for wake in wakes {
            // Room for as many withdrawn jobs as waiting ones.
            let (jobs, job_receiver) = mailbox(2 * queue_max);
            claims.push(JobClaims::new(jobs.capacity()));
            let (results, result_receiver) = mailbox(outstanding_max);
            job_receivers.push(job_receiver);
            result_queues.push(ResultQueue { results: Mutex::new(results), wake });
            ends.push((jobs, result_receiver));
        }
        let core = Arc::new(PoolCore::new(limits, clock, job_receivers, claims, result_queues));
        let submitters = ends
            .into_iter()
            .enumerate()
            .map(|(number, (jobs, result_receiver))| {
                JobSubmitter::new(number, jobs, result_receiver, Arc::clone(&core), outstanding_max)
            })
            .collect();
        let close_on_drop = CloseOnDrop {
            core: Arc::clone(&core),
            threads: WorkerThreads::new(threads),
            has_scaler: AtomicBool::new(!scaling.is_enabled()),
        };
        (Pool { core, threads: std::sync::Arc::new(close_on_drop) }, submitters)
    }

    /// Takes the oldest published job of all submitters, as a worker thread does: for a simulator or a helping thread.
    #[must_use]
    pub fn take_job(&self) -> Option<ClaimedJob<R>> {
        PoolCore::take_job(&self.core)
    }

    /// Makes the calling thread a worker until the pool is closed and its queue is empty.
    pub fn run_worker(&self, context: &mut JobContext) {
        PoolCore::run_worker(&self.core, context);
    }

    /// Retires an idle worker, if the pool has more than its target; for a simulator. A worker thread does this in
    /// [`run_worker`](Pool::run_worker).
    #[must_use]
    pub fn retire(&self) -> bool {
        self.core.retire()
    }

    /// Returns the scaler of a pool that may grow, once, for a simulator or a test; [`start`](Pool::start) takes it
    /// too. `None` if the pool does not grow.
    #[must_use]
    pub fn scaler(&self) -> Option<PoolScaler<R>> {
        let pool_size = self.core.pool_size.as_ref()?;
        let first = !self.threads.has_scaler.swap(true, Relaxed);
        first.then(|| PoolScaler::new(Arc::clone(&self.core), pool_size))
    }

    /// Rejects new jobs from now on. Jobs accepted before still run and are answered; then the workers end.
    pub fn close(&self) {
        self.core.close();
    }

    /// Whether [`close`](Pool::close) has been called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core.is_closed()
    }

    /// Returns a snapshot of the counters.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        self.core.counters()
    }
}

#[cfg(not(loom))]
impl<R: Send + 'static> Pool<R> {
    /// Creates all threads of the pool, and the scaler's if the pool may grow, which creates more on demand. A pool of
    /// zero threads creates none.
    ///
    /// # Errors
    /// The operating system's error when it cannot create a thread; the pool is then closed. Starting twice is
    /// [`AlreadyExists`](std::io::ErrorKind::AlreadyExists).
    pub fn start(&self) -> std::io::Result<()> {
        let started = self.threads.threads.start(&self.core, self.scaler());
        if started.as_ref().is_err_and(|error| error.kind() != std::io::ErrorKind::AlreadyExists) {
            self.close();
        }
        started
    }

    /// Waits until all threads have ended, which they do after [`close`](Pool::close), until `deadline` on the pool's
    /// clock (a manual clock is read once, the rest is waited out in real time).
    ///
    /// # Errors
    /// [`JoinTimeout`](crate::JoinTimeout) with the number of threads still running at the deadline.
    pub fn join(&self, deadline: stilling_ring::Time) -> Result<(), crate::JoinTimeout> {
        self.threads.threads.join(deadline.since(self.core.clock.now()))
    }
}

/// Closes the pool when its last handle is dropped, so that its threads end.
struct CloseOnDrop<R> {
    core: Arc<PoolCore<R>>,
    #[cfg_attr(loom, allow(dead_code))]
    threads: WorkerThreads,
    has_scaler: AtomicBool,
}

impl<R> Drop for CloseOnDrop<R> {
    fn drop(&mut self) {
        self.core.close();
    }
}
