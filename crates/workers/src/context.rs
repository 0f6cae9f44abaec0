//! What a job is given while it runs.
//!
//! A job may block; the one thing the pool has to know about it is waiting on purpose, because in the simulator
//! nothing may really wait: there the context only adds up how long the job would have slept, and the simulator
//! delivers the result that much later.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::seat::Seat;
use stilling_ring::Clock;

/// The world as a running job sees it.
pub struct JobContext {
    sleeps: Sleeps,
    slept: Duration,
    seat: Option<Box<dyn Seat>>,
}

#[derive(Debug)]
enum Sleeps {
    Really,
    Virtually,
}

impl JobContext {
    /// For a worker thread: sleeping blocks the thread.
    #[must_use]
    pub fn real() -> JobContext {
        JobContext { sleeps: Sleeps::Really, slept: Duration::ZERO, seat: None }
    }

    /// For a simulator or a test: sleeping returns at once and is only added up.
    #[must_use]
    pub fn simulated() -> JobContext {
        JobContext { sleeps: Sleeps::Virtually, slept: Duration::ZERO, seat: None }
    }

    /// For a worker thread with a seat of its own.
    #[must_use]
    pub fn seated(seat: Box<dyn Seat>) -> JobContext {
        JobContext { seat: Some(seat), ..JobContext::real() }
    }

    /// The seat of the thread that runs the job, if it has one of that type.
    pub fn seat<S: Seat>(&mut self) -> Option<&mut S> {
        let seat: &mut dyn Any = self.seat.as_deref_mut()?;
        seat.downcast_mut()
    }

    /// Whether the thread may take a job.
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn is_ready(&self) -> bool {
        self.seat.as_ref().is_none_or(|seat| seat.is_ready())
    }

    /// Waits until the thread may take a job.
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn wait_until_ready(&mut self) {
        if let Some(seat) = &mut self.seat {
            seat.wait();
        }
    }

    /// For a job of a pool on this clock: it really sleeps unless somebody moves the clock by hand.
    pub(crate) fn on(clock: &Clock) -> JobContext {
        if clock.is_manual() { JobContext::simulated() } else { JobContext::real() }
    }

    /// Waits for `span`.
    pub fn sleep(&mut self, span: Duration) {
        self.slept = self.slept.saturating_add(span);
        match self.sleeps {
            Sleeps::Really => std::thread::sleep(span),
            Sleeps::Virtually => {}
        }
    }

    /// How long jobs asked to sleep with this context since the last call; starts again at zero.
    pub fn take_slept(&mut self) -> Duration {
        std::mem::take(&mut self.slept)
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext").field("sleeps", &self.sleeps).finish_non_exhaustive()
    }
}
