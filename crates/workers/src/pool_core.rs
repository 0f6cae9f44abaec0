//! State shared by submitters and workers, and the protocols between them.
//!
//! **Falling asleep.** A worker without a job takes a ticket from the event count, checks the queue again and only then
//! waits; a submitter publishes its batch first and notifies afterwards. The event count's fences ensure that one of
//! the two sees the other.
//!
//! **Closing.** `queued` counts every accepted job from before it is pushed until it is taken, including jobs a
//! submitter has not published yet; a withdrawn job is subtracted at once. Workers end when the pool is closed and
//! `queued` is zero. A submitter counts first and checks `closed` afterwards, a worker checks `closed` first and
//! `queued` afterwards, each with a fence between: no worker ends while an accepted job remains.
//!
//! **Retiring from a shrinking pool.** A worker checks for a job once more after it has stopped counting as a sleeper,
//! with a fence between: a job it does not see is published so late that the submitter wakes another worker.
//! `pool_size` and `scaler` do the rest of growing and shrinking.

mod running;

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use stilling_ring::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, fence};
use stilling_ring::{Clock, EventCount, InlineFn, Receiver, Sender, Time, Wake, planted};

use self::running::catch_panic;
use crate::context::JobContext;
use crate::counters::{PoolCounters, PoolTally, count};
use crate::job_claims::{JobClaims, JobPosition};
use crate::job_result::{JobCompletion, JobResult};
use crate::limits::PoolLimits;
use crate::pool_size::PoolSize;
use crate::queue_target::StandingQueueDetector;

pub use self::running::{ClaimedJob, FinishedJob};

/// A job in the queue: two cache lines.
pub(crate) struct Job<R> {
    pub(crate) work: InlineFn<JobContext, R>,
    pub(crate) ticket: u64,
    pub(crate) enqueued: EnqueueTime,
}

/// Time at which a job was queued, and whether it may expire: in one word, because a job fills its two cache lines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EnqueueTime(u64);

impl EnqueueTime {
    pub(crate) fn new(now: Time, is_continuation: bool) -> EnqueueTime {
        EnqueueTime(now.as_nanos() << 1 | u64::from(is_continuation))
    }

    fn at(self) -> Time {
        Time::from_nanos(self.0 >> 1)
    }

    fn is_continuation(self) -> bool {
        self.0 & 1 != 0
    }
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Job<()>>() == 128);

pub(crate) struct PoolCore<R> {
    pub(crate) limits: PoolLimits,
    pub(crate) clock: Clock,
    pub(crate) idle: EventCount,
    pub(crate) tally: PoolTally,
    /// Only in a pool that may grow.
    pub(crate) pool_size: Option<PoolSize>,
    /// Submitters currently running a job in their own thread.
    inline: AtomicU64,
    queued: AtomicU64,
    closed: AtomicBool,
    job_queue: Mutex<JobQueue<R>>,
    /// By submitter: which of its queued jobs are unclaimed.
    pub(crate) claims: Vec<JobClaims>,
    result_queues: Vec<ResultQueue<R>>,
}

/// Source of jobs. Only workers lock it.
struct JobQueue<R> {
    receivers: Vec<Receiver<Job<R>>>,
    standing: Option<StandingQueueDetector>,
}

/// Destination of one submitter's results. Only workers lock it.
pub(crate) struct ResultQueue<R> {
    pub(crate) results: Mutex<Sender<JobCompletion<R>>>,
    pub(crate) wake: Arc<Wake>,
}

enum QueueFront<R> {
    Owned(DequeuedJob<R>),
    Withdrawn(Job<R>),
}

struct DequeuedJob<R> {
    submitter: usize,
    position: JobPosition,
    job: Job<R>,
    now: Time,
    /// The job is not to be run, because the queue is standing.
    shed: bool,
}

pub(crate) enum Admission {
    Admitted,
    Full,
    Closed,
}

impl<R> PoolCore<R> {
    pub(crate) fn new(
        limits: PoolLimits,
        clock: Clock,
        job_receivers: Vec<Receiver<Job<R>>>,
        claims: Vec<JobClaims>,
        result_queues: Vec<ResultQueue<R>>,
    ) -> PoolCore<R> {
        let pool_size =
            limits.scaling.is_enabled().then(|| PoolSize::new(limits.scaling, limits.threads as u64));
        PoolCore {
            limits,
            clock,
            idle: EventCount::new(),
            tally: PoolTally::default(),
            pool_size,
            inline: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            job_queue: Mutex::new(JobQueue {
                receivers: job_receivers,
                standing: limits.queue_target.map(StandingQueueDetector::new),
            }),
            claims,
            result_queues,
        }
    }

    /// Counts one more job into the queue, unless the pool is closed or the queue is full. When submitters race for the
    /// last slot, all may be rejected.
    ///
    /// A continuation is not rejected at the limit, because its submitter has checked the limit before: submitters that
    /// race for the last slot exceed it by one job each.
    pub(crate) fn admit(&self, is_continuation: bool) -> Admission {
        let before = self.queued.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_closed() {
            self.release_queue_slot();
            Admission::Closed
        } else if !is_continuation && before >= self.limits.queue_max as u64 {
            self.release_queue_slot();
            Admission::Full
        } else {
            self.tally.queued_max.fetch_max(before + 1, Relaxed);
            Admission::Admitted
        }
    }

    /// Counts one job out of the queue. The last job of a closed pool wakes the idle workers, so that they end.
    pub(crate) fn release_queue_slot(&self) {
        if self.queued.fetch_sub(1, Ordering::AcqRel) == 1 {
            fence(Ordering::SeqCst);
            if self.is_closed() {
                self.idle.notify_all();
            }
        }
    }

    pub(crate) fn queued(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.idle.notify_all();
        if let Some(pool_size) = &self.pool_size {
            pool_size.wake_scaler();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn is_finished(&self) -> bool {
        if !self.is_closed() {
            return false;
        }
        fence(Ordering::SeqCst);
        self.queued() == 0
    }

    /// Takes the published job that was submitted first.
    pub(crate) fn take_job(core: &Arc<PoolCore<R>>) -> Option<ClaimedJob<R>> {
        let DequeuedJob { submitter, position, job, now, shed } = loop {
            match PoolCore::pop(core)? {
                QueueFront::Owned(dequeued) => break dequeued,
                // The submitter has accounted for it. Dropping user captures may panic.
                QueueFront::Withdrawn(job) => drop(catch_panic(|| drop(job))),
            }
        };
        let taken = count(&core.tally.taken);
        core.release_queue_slot();
        if let Some(pool_size) = &core.pool_size {
            pool_size.job_started();
        }
        let waited = now.since(job.enqueued.at());
        let wait_nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        core.tally.wait_nanos.fetch_add(wait_nanos, Relaxed);
        let lost = planted!("lost job") && taken.is_multiple_of(16);
        if shed {
            count(&core.tally.shed);
        }
        let expired = shed || waited > core.limits.age_max && !job.enqueued.is_continuation();
        Some(ClaimedJob::new(Arc::clone(core), (submitter, position), job, now, expired, lost))
    }

    /// Takes the first entry of the queue, which may have been withdrawn.
    fn pop(core: &Arc<PoolCore<R>>) -> Option<QueueFront<R>> {
        let mut job_queue = lock(&core.job_queue);
        let JobQueue { receivers, standing } = &mut *job_queue;
        let oldest =
            |(submitter, jobs): (usize, &mut Receiver<Job<R>>)| Some((jobs.peek()?.enqueued, submitter));
        let (_, submitter) = receivers.iter_mut().enumerate().filter_map(oldest).min()?;
        let position = receivers[submitter].popped();
        let is_owned = core.claims[submitter].claim(position);
        let job = receivers[submitter].pop()?;
        if !is_owned {
            return Some(QueueFront::Withdrawn(job));
        }
        let now = core.clock.now();
        let service = core.tally.service_mean();
        let shed = |standing: &mut StandingQueueDetector| {
            standing.should_shed(now, now.since(job.enqueued.at()), service)
        };
        let shed = standing.as_mut().is_some_and(shed) && !job.enqueued.is_continuation();
        Some(QueueFront::Owned(DequeuedJob {
            submitter,
            position: JobPosition::new(position),
            job,
            now,
            shed,
        }))
    }

    /// Worker loop: runs jobs until the pool is closed and its queue is empty, or until the pool retires this worker.
    pub(crate) fn run_worker(core: &Arc<PoolCore<R>>, context: &mut JobContext) {
        loop {
            while let Some(running) = PoolCore::take_job(core) {
                running.run(context).deliver();
            }
            if core.has_surplus() {
                fence(Ordering::SeqCst);
                if let Some(running) = PoolCore::take_job(core) {
                    running.run(context).deliver();
                    continue;
                }
                if core.retire() {
                    return;
                }
            }
            let ticket = core.idle.listen();
            if let Some(running) = PoolCore::take_job(core) {
                core.idle.cancel(ticket);
                running.run(context).deliver();
            } else if core.is_finished() {
                return core.idle.cancel(ticket);
            } else if core.has_surplus() {
                core.idle.cancel(ticket);
            } else {
                core.idle.wait(ticket);
            }
        }
    }

    fn has_surplus(&self) -> bool {
        self.pool_size.as_ref().is_some_and(PoolSize::has_surplus)
    }

    pub(crate) fn retire(&self) -> bool {
        let retires = self.pool_size.as_ref().is_some_and(PoolSize::try_retire);
        if retires {
            count(&self.tally.threads_ended);
        }
        retires
    }

    pub(crate) fn run_inline<F>(&self, job: F) -> Result<JobResult<R>, F>
    where
        F: FnOnce(&mut JobContext) -> R,
    {
        let inline_max = self.limits.inline_max as u64;
        let one_more = |inline: u64| (inline < inline_max).then_some(inline + 1);
        if self.is_closed()
            || self.inline.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).is_err()
        {
            return Err(job);
        }
        count(&self.tally.taken);
        count(&self.tally.inline);
        let mut context = JobContext::for_clock(&self.clock);
        let outcome = catch_panic(|| job(&mut context)).map_or(JobResult::Panicked, JobResult::Done);
        self.inline.fetch_sub(1, Ordering::AcqRel);
        count(self.tally.counter_of(&outcome));
        Ok(outcome)
    }

    pub(crate) fn counters(&self) -> PoolCounters {
        let threads = self.pool_size.as_ref().map_or(self.limits.threads as u64, PoolSize::threads);
        self.tally.snapshot(self.queued(), threads)
    }

    pub(crate) fn deliver(&self, submitter: usize, completed: JobCompletion<R>) {
        let JobCompletion { ticket, position, .. } = completed;
        let answered = count(self.tally.counter_of(&completed.outcome));
        let result_queue = &self.result_queues[submitter];
        {
            let mut results = lock(&result_queue.results);
            let pushed = results.push(completed);
            assert!(
                pushed.is_ok() || planted::AVAILABLE,
                "submitter {submitter} has more jobs outstanding than its result mailbox holds"
            );
            if planted!("double answer") && answered.is_multiple_of(8) {
                // The copy cannot repeat the value, so it claims another outcome for the same ticket.
                drop(results.push(JobCompletion { ticket, position, outcome: JobResult::Panicked }));
            }
            results.publish();
        }
        result_queue.wake.notify();
    }
}

/// No update under these locks can be interrupted half-way, so a poisoned mutex is still consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
