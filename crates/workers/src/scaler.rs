//! The keeper: who starts an elastic pool's threads, and says when some may go.
//!
//! A thread of its own, because starting others takes long: a shard must not do it, and a worker that did would
//! hold up the job it has just taken. It sleeps until a worker calls or something is due; a pool at its first
//! size, with nothing going on, never wakes it. The simulator and the tests play it by calling
//! [`scale`](PoolScaler::scale) themselves.

use std::io;
use std::time::Duration;

use stilling_ring::Time;
use stilling_ring::sync::Arc;

use crate::counters::count;
use crate::growth::GrowthSchedule;
use crate::pool_core::PoolCore;
use crate::pool_size::PoolSize;

/// How long no thread is started after the system refused one. Jobs wait in the queue meanwhile.
const START_RETRY: Duration = Duration::from_millis(100);

/// Starts and dismisses the threads of one elastic pool; see [`Pool::scaler`](crate::Pool::scaler).
pub struct PoolScaler<R> {
    core: Arc<PoolCore<R>>,
    schedule: GrowthSchedule,
    base: u64,
    /// Since when the busiest moment is looked for: the last growth, or the last time the pool could shrink.
    since: Time,
    /// No thread is started before.
    retry_at: Option<Time>,
}

impl<R> PoolScaler<R> {
    pub(crate) fn new(core: Arc<PoolCore<R>>, pool_size: &PoolSize) -> PoolScaler<R> {
        let base = pool_size.target();
        let schedule = GrowthSchedule::new(pool_size.growth, base);
        PoolScaler { since: core.clock.now(), core, schedule, base, retry_at: None }
    }

    /// Whether a worker has taken a job since the last look and found the pool short of threads.
    #[must_use]
    pub fn is_scale_requested(&self) -> bool {
        self.retry_at.is_none() && self.core.pool_size.as_ref().is_some_and(PoolSize::is_scale_requested)
    }

    /// Makes the pool as large as its work wants it: calls `start` for each thread that is missing, which then
    /// has to become a worker, and lets idle ones go. Returns when to look again if no worker calls before; that
    /// is never, when nothing is left to do. A closed pool stays as it is.
    ///
    /// An error of `start` is counted and survived: the pool goes on with what it has, and a tenth of a second
    /// later the rest is tried again.
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
            (pool_size.target() > self.base).then(|| self.since.after(pool_size.growth.shrink_after));
        [period_ends, self.retry_at].into_iter().flatten().min()
    }

    /// One hunk more, if threads are short. Returns whether to ask again.
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
            // Counted first: it may take a job before `start` has returned.
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

    /// One hunk less, if the pool was larger than it needed for long enough.
    fn shrink(&mut self, pool_size: &PoolSize, now: Time) {
        let target = pool_size.target();
        if target == self.base || now < self.since.after(pool_size.growth.shrink_after) {
            return;
        }
        self.since = now;
        if let Some(next_smaller) = self.schedule.next_smaller(target, pool_size.take_busy_max()) {
            pool_size.set_target(next_smaller);
            self.core.idle.notify(usize::try_from(target - next_smaller).unwrap_or(usize::MAX));
        }
    }

    /// The keeper's life: looks and sleeps until the pool is closed. See [`scale`](PoolScaler::scale) for `start`.
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
        f.debug_struct("Keeper").field("course", &self.schedule).finish_non_exhaustive()
    }
}
