//! What a job is given while it runs.
//!
//! A job may block; the one thing the pool has to know about it is waiting on purpose, because in the simulator
//! nothing may really wait: there the context only adds up how long the job would have slept, and the simulator
//! delivers the result that much later.

use std::fmt;
use std::time::Duration;

use stilling_ring::Clock;

/// The world as a running job sees it.
pub struct JobContext {
    sleep_mode: SleepMode,
    slept: Duration,
}

#[derive(Debug)]
enum SleepMode {
    Real,
    Virtual,
}

impl JobContext {
    /// For a worker thread: sleeping blocks the thread.
    #[must_use]
    pub fn real() -> JobContext {
        JobContext { sleep_mode: SleepMode::Real, slept: Duration::ZERO }
    }

    /// For a simulator or a test: sleeping returns at once and is only added up.
    #[must_use]
    pub fn simulated() -> JobContext {
        JobContext { sleep_mode: SleepMode::Virtual, slept: Duration::ZERO }
    }

    /// For a job of a pool on this clock: it really sleeps unless somebody moves the clock by hand.
    pub(crate) fn for_clock(clock: &Clock) -> JobContext {
        if clock.is_manual() { JobContext::simulated() } else { JobContext::real() }
    }

    /// Waits for `span`.
    pub fn sleep(&mut self, span: Duration) {
        self.slept = self.slept.saturating_add(span);
        match self.sleep_mode {
            SleepMode::Real => std::thread::sleep(span),
            SleepMode::Virtual => {}
        }
    }

    /// How long jobs asked to sleep with this context since the last call; starts again at zero.
    pub fn take_slept(&mut self) -> Duration {
        std::mem::take(&mut self.slept)
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext").field("sleeps", &self.sleep_mode).finish_non_exhaustive()
    }
}
