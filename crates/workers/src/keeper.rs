//! The keeper: who starts an elastic pool's threads, and says when some may go.
//!
//! A thread of its own, because starting others takes long: a shard must not do it, and a worker that did would
//! hold up the job it has just taken. It sleeps until a worker calls or something is due; a pool at its first
//! size, with nothing going on, never wakes it. The simulator and the tests play it by calling
//! [`look`](Keeper::look) themselves.

use std::io;
use std::time::Duration;

use stilling_ring::Time;
use stilling_ring::sync::Arc;

use crate::core::Core;
use crate::counters::count;
use crate::growth::Course;
use crate::strength::Strength;

/// How long no thread is started after the system refused one. Jobs wait in the queue meanwhile.
const START_RETRY: Duration = Duration::from_millis(100);

/// Starts and dismisses the threads of one elastic pool; see [`Pool::keeper`](crate::Pool::keeper).
pub struct Keeper<R> {
    core: Arc<Core<R>>,
    course: Course,
    base: u64,
    /// Since when the busiest moment is looked for: the last growth, or the last time the pool could shrink.
    since: Time,
    /// No thread is started before.
    rest_until: Option<Time>,
}

impl<R> Keeper<R> {
    pub(crate) fn new(core: Arc<Core<R>>, strength: &Strength) -> Keeper<R> {
        let base = strength.aim();
        let course = Course::new(strength.growth, base);
        Keeper { since: core.clock.now(), core, course, base, rest_until: None }
    }

    /// Whether a worker has taken a job since the last look and found the pool short of threads.
    #[must_use]
    pub fn is_called(&self) -> bool {
        self.rest_until.is_none() && self.core.strength.as_ref().is_some_and(Strength::is_called)
    }

    /// Makes the pool as large as its work wants it: calls `start` for each thread that is missing, which then
    /// has to become a worker, and lets idle ones go. Returns when to look again if no worker calls before; that
    /// is never, when nothing is left to do. A closed pool stays as it is.
    ///
    /// An error of `start` is counted and survived: the pool goes on with what it has, and a tenth of a second
    /// later the rest is tried again.
    pub fn look(&mut self, mut start: impl FnMut() -> io::Result<()>) -> Option<Time> {
        let core = Arc::clone(&self.core);
        let strength = core.strength.as_ref()?;
        strength.hear();
        let now = core.clock.now();
        if self.rest_until.is_some_and(|until| now >= until) {
            self.rest_until = None;
        }
        self.shrink(strength, now);
        while self.rest_until.is_none() && self.grow(strength, now, &mut start) {}
        if self.rest_until.is_some() {
            strength.hear_nobody();
        }
        let period_ends =
            (strength.aim() > self.base).then(|| self.since.after(strength.growth.shrink_after));
        [period_ends, self.rest_until].into_iter().flatten().min()
    }

    /// One hunk more, if threads are short. Returns whether to ask again.
    fn grow(&mut self, strength: &Strength, now: Time, start: &mut impl FnMut() -> io::Result<()>) -> bool {
        if self.core.is_closed() {
            return false;
        }
        let Some(aim) = self.course.grown(strength.aim(), strength.busy()) else { return false };
        strength.aim_at(aim);
        self.since = now;
        strength.take_busy_max();
        while strength.threads() < aim {
            if self.core.is_closed() {
                return false;
            }
            // Counted first: it may take a job before `start` has returned.
            strength.starts();
            if start().is_err() {
                count(&self.core.tally.threads_failed);
                strength.start_failed();
                self.rest_until = Some(now.after(START_RETRY));
                return false;
            }
            count(&self.core.tally.threads_started);
        }
        true
    }

    /// One hunk less, if the pool was larger than it needed for long enough.
    fn shrink(&mut self, strength: &Strength, now: Time) {
        let aim = strength.aim();
        if aim == self.base || now < self.since.after(strength.growth.shrink_after) {
            return;
        }
        self.since = now;
        if let Some(shrunk) = self.course.shrunk(aim, strength.take_busy_max()) {
            strength.aim_at(shrunk);
            self.core.idle.notify(usize::try_from(aim - shrunk).unwrap_or(usize::MAX));
        }
    }

    /// The keeper's life: looks and sleeps until the pool is closed. See [`look`](Keeper::look) for `start`.
    pub fn keep(mut self, mut start: impl FnMut() -> io::Result<()>) {
        let core = Arc::clone(&self.core);
        let Some(strength) = core.strength.as_ref() else { return };
        while !core.is_closed() {
            let next = self.look(&mut start);
            strength.sleep(next.map(|next| next.since(core.clock.now())));
        }
    }
}

impl<R> std::fmt::Debug for Keeper<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("course", &self.course).finish_non_exhaustive()
    }
}
