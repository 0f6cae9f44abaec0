//! The scaler: starts an elastic pool's threads, and decides when some may retire.
//!
//! It has its own thread, because starting others takes long: a shard must not do it, and a worker would delay the job
//! it has just taken. It sleeps until a worker requests scaling or a deadline is due; an idle pool at its initial size
//! never wakes it. The simulator and the tests call [`scale`](PoolScaler::scale) directly.

use std::io;
use std::time::Duration;

use stilling_ring::Time;
use stilling_ring::sync::Arc;

use crate::counters::count;
use crate::pool_core::PoolCore;
use crate::pool_size::PoolSize;
use crate::scaling::ScalingSchedule;

/// Delay after a failed start of a thread, during which no thread is started. Jobs wait in the queue meanwhile.
const START_RETRY: Duration = Duration::from_millis(100);

/// Starts and retires the threads of one elastic pool; see [`Pool::scaler`](crate::Pool::scaler).
pub struct PoolScaler<R> {
    core: Arc<PoolCore<R>>,
    schedule: ScalingSchedule,
    base: u64,
    /// Start of the span over which the peak demand is measured: the last growth, or the last check for shrinking.
    since: Time,
    retry_at: Option<Time>,
}

impl<R> PoolScaler<R> {
    pub(crate) fn new(core: Arc<PoolCore<R>>, pool_size: &PoolSize) -> PoolScaler<R> {
        let base = pool_size.target();
        let schedule = ScalingSchedule::new(pool_size.scaling, base);
        PoolScaler { since: core.clock.now(), core, schedule, base, retry_at: None }
    }

    /// Whether a worker has found the pool short of threads since the last run.
    #[must_use]
    pub fn is_scale_requested(&self) -> bool {
        self.retry_at.is_none() && self.core.pool_size.as_ref().is_some_and(PoolSize::is_scale_requested)
    }

    /// Adapts the pool's size to its work: calls `start` for each missing thread, which must then become a worker, and
    /// lets surplus idle ones retire. Returns when to call again if no worker requests it before; `None` if nothing is
    /// due. A closed pool stays as it is.
    ///
    /// An error of `start` is counted and tolerated: the pool continues with its threads, and retries 0.1 s later.
    pub fn scale(&mut self, mut start: impl FnMut() -> io::Result<()>) -> Option<Time> {
        let core = Arc::clone(&self.core);
        let pool_size = core.pool_size.as_ref()?;
        pool_size.clear_request();
        let now = core.clock.now();
        if self.retry_at.is_some_and(|until| now >= until) {
            self.retry_at = None;
        }
        self.shrink(pool_size, now);
        while self.retry_at.is_none() && self.grow(pool_size, now, &mut start) {}
        if self.retry_at.is_some() {
            pool_size.suppress_requests();
        }
        let period_ends =
            (pool_size.target() > self.base).then(|| self.since.after(pool_size.scaling.shrink_after));
        [period_ends, self.retry_at].into_iter().flatten().min()
    }

    /// Adds one hunk, if threads are short. Returns whether to call again.
    fn grow(&mut self, pool_size: &PoolSize, now: Time, start: &mut impl FnMut() -> io::Result<()>) -> bool {
        if self.core.is_closed() {
            return false;
        }
        let Some(target) = self.schedule.next_larger(pool_size.target(), pool_size.busy()) else {
            return false;
        };
        pool_size.set_target(target);
        self.since = now;
        pool_size.take_busy_max();
        while pool_size.threads() < target {
            if self.core.is_closed() {
                return false;
            }
            // Counted first: the thread may take a job before `start` has returned.
            pool_size.add_thread();
            if start().is_err() {
                count(&self.core.tally.threads_failed);
                pool_size.start_failed();
                self.retry_at = Some(now.after(START_RETRY));
                return false;
            }
            count(&self.core.tally.threads_started);
        }
        true
    }

    /// Removes one hunk, if the pool was larger than needed for long enough.
    fn shrink(&mut self, pool_size: &PoolSize, now: Time) {
        let target = pool_size.target();
        if target == self.base || now < self.since.after(pool_size.scaling.shrink_after) {
            return;
        }
        self.since = now;
        if let Some(next_smaller) = self.schedule.next_smaller(target, pool_size.take_busy_max()) {
            pool_size.set_target(next_smaller);
            self.core.idle.notify(usize::try_from(target - next_smaller).unwrap_or(usize::MAX));
        }
    }

    /// Scaler loop: runs until the pool is closed. See [`scale`](PoolScaler::scale) for `start`.
    pub fn run(mut self, mut start: impl FnMut() -> io::Result<()>) {
        let core = Arc::clone(&self.core);
        let Some(pool_size) = core.pool_size.as_ref() else { return };
        while !core.is_closed() {
            let next = self.scale(&mut start);
            pool_size.sleep(next.map(|next| next.since(core.clock.now())));
        }
    }
}

impl<R> std::fmt::Debug for PoolScaler<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolScaler").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}
