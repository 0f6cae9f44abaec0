//! The pool as its owner sees it: made, started, closed and joined; or played by a simulator.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use stilling_ring::sync::{Arc, Mutex};
use stilling_ring::{Clock, Wake, mailbox};

use crate::claims::Claims;
use crate::context::JobContext;
use crate::core::{Core, Outlet, Running};
use crate::counters::Counters;
use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::limits::{Limits, QUEUE_MAX_LIMIT};
use crate::threads::Threads;

/// A bounded pool of worker threads. Clones are handles to the same pool; dropping the last one closes it.
pub struct Pool<R> {
    core: Arc<Core<R>>,
    threads: std::sync::Arc<Closing<R>>,
}

impl<R> Clone for Pool<R> {
    fn clone(&self) -> Pool<R> {
        Pool { core: Arc::clone(&self.core), threads: std::sync::Arc::clone(&self.threads) }
    }
}

impl<R> Pool<R> {
    /// A pool and one lane per wake. No thread exists before [`start`](Pool::start).
    ///
    /// The queues are allocated here, for the worst case; the operating system backs them with memory as they
    /// fill. Each lane's wake is notified after results were delivered to it.
    ///
    /// # Panics
    /// If a limit is out of its range.
    #[must_use]
    pub fn new(limits: Limits, clock: Clock, wakes: Vec<Arc<Wake>>) -> (Pool<R>, Vec<Lane<R>>) {
        let Limits { threads, queue_max, growth, .. } = limits;
        let threads_max = if growth.is_enabled() { growth.threads_max } else { threads };
        assert!(
            (1..=QUEUE_MAX_LIMIT).contains(&queue_max) && threads_max <= QUEUE_MAX_LIMIT,
            "a pool queues 1 to {QUEUE_MAX_LIMIT} jobs and has at most as many threads, asked for {limits:?}"
        );
        assert!(growth.fits(threads), "a pool of {threads} threads cannot grow by {growth:?}");
        // A lane may have a full queue, a job in every worker, and as many results still to be fetched.
        let outstanding_max = 2 * (queue_max + threads_max);
        let mut intake = Vec::with_capacity(wakes.len());
        let mut outlets = Vec::with_capacity(wakes.len());
        let mut ends = Vec::with_capacity(wakes.len());
        let mut claims = Vec::with_capacity(wakes.len());
        for wake in wakes {
            // As many withdrawn jobs as waiting ones may have places.
            let (jobs, taken) = mailbox(2 * queue_max);
            claims.push(Claims::new(jobs.capacity()));
            let (results, fetched) = mailbox(outstanding_max);
            intake.push(taken);
            outlets.push(Outlet { results: Mutex::new(results), wake });
            ends.push((jobs, fetched));
        }
        let core = Arc::new(Core::new(limits, clock, intake, claims, outlets));
        let lanes = ends
            .into_iter()
            .enumerate()
            .map(|(number, (jobs, fetched))| {
                Lane::new(number, jobs, fetched, Arc::clone(&core), outstanding_max)
            })
            .collect();
        let closing = Closing {
            core: Arc::clone(&core),
            threads: Threads::new(threads),
            is_kept: AtomicBool::new(!growth.is_enabled()),
        };
        (Pool { core, threads: std::sync::Arc::new(closing) }, lanes)
    }

    /// Takes the oldest published job of all lanes, as a worker thread does: for a simulator that plays the
    /// worker, or a thread that helps out.
    #[must_use]
    pub fn take(&self) -> Option<Running<R>> {
        Core::take(&self.core)
    }

    /// Makes the calling thread a worker until the pool is closed and its queue is empty.
    pub fn work(&self, context: &mut JobContext) {
        Core::work(&self.core, context);
    }

    /// Counts a worker out that found nothing to do, if the pool has more than it is to have; for a simulator that
    /// plays the workers. A thread does it in [`work`](Pool::work).
    #[must_use]
    pub fn retire(&self) -> bool {
        self.core.retire()
    }

    /// Whoever starts the threads of a pool that grows, to be played by a simulator or a test. There is one;
    /// [`start`](Pool::start) takes it too. A pool that does not grow has none.
    #[must_use]
    pub fn keeper(&self) -> Option<Keeper<R>> {
        let strength = self.core.strength.as_ref()?;
        let first = !self.threads.is_kept.swap(true, Relaxed);
        first.then(|| Keeper::new(Arc::clone(&self.core), strength))
    }

    /// Refuses new jobs from now on. Jobs accepted before still run and are answered; then the workers end.
    pub fn close(&self) {
        self.core.close();
    }

    /// Whether [`close`](Pool::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core.is_closed()
    }

    /// The pool's counters at about this moment.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.core.counters()
    }
}

#[cfg(not(loom))]
impl<R: Send + 'static> Pool<R> {
    /// Creates all threads of the pool, now and never later, unless it may grow; then also the keeper's, which
    /// creates more when there is need. A pool of zero threads creates none.
    ///
    /// # Errors
    /// What the operating system says when it will not create a thread; the pool is closed then. Starting twice
    /// is [`AlreadyExists`](std::io::ErrorKind::AlreadyExists).
    pub fn start(&self) -> std::io::Result<()> {
        let started = self.threads.threads.start(&self.core, self.keeper());
        if started.as_ref().is_err_and(|error| error.kind() != std::io::ErrorKind::AlreadyExists) {
            self.close();
        }
        started
    }

    /// Waits until all threads have ended, which they do after [`close`](Pool::close), but not beyond `deadline`
    /// on the pool's clock (a clock that stands still is read once, the rest is waited out in real time).
    ///
    /// # Errors
    /// [`Unfinished`](crate::Unfinished) with the number of threads that still run at the deadline.
    pub fn join(&self, deadline: stilling_ring::Time) -> Result<(), crate::Unfinished> {
        self.threads.threads.join(deadline.since(self.core.clock.now()))
    }
}

/// Closes the pool when the last handle to it is gone, lest its threads wait for jobs for ever.
struct Closing<R> {
    core: Arc<Core<R>>,
    #[cfg_attr(loom, allow(dead_code))]
    threads: Threads,
    is_kept: AtomicBool,
}

impl<R> Drop for Closing<R> {
    fn drop(&mut self) {
        self.core.close();
    }
}
