//! The context passed to a running job.
//!
//! A job may block. Deliberate waiting goes through the context, because the simulator must not wait in real time:
//! there the context only adds up the requested sleep, and the simulator delivers the result that much later.

use std::fmt;
use std::time::Duration;

use stilling_ring::Clock;

/// Context of a running job.
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
    /// Creates the context of a worker thread: sleeping blocks the thread.
    #[must_use]
    pub fn real() -> JobContext {
        JobContext { sleep_mode: SleepMode::Real, slept: Duration::ZERO }
    }

    /// Creates the context of a simulator or test: sleeping returns at once and is only added up.
    #[must_use]
    pub fn simulated() -> JobContext {
        JobContext { sleep_mode: SleepMode::Virtual, slept: Duration::ZERO }
    }

    /// Creates the context for a pool on `clock`: real, unless the clock is advanced manually.
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

    /// Returns the total sleep requested through this context since the last call, and resets it to zero.
    pub fn take_slept(&mut self) -> Duration {
        std::mem::take(&mut self.slept)
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext").field("sleep_mode", &self.sleep_mode).finish_non_exhaustive()
    }
}
