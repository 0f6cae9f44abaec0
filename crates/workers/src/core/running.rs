//! A job from the moment a worker takes it until its answer is on the way.
//!
//! Three steps, so that the simulator can put virtual time between them: taken ([`Running`]), run
//! ([`Finished`]), delivered. The answer is owed by an inner `Duty` that pays when it is dropped: whatever
//! becomes of the worker, every taken job is answered exactly once.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stilling_ring::Time;
use stilling_ring::sync::Arc;

use super::{Core, Job};
use crate::claims::Position;
use crate::context::JobContext;
use crate::counters::count;
use crate::outcome::{Completed, Outcome};

/// A job that a worker has taken. Dropping it without [`run`](Running::run) answers [`Outcome::Panicked`].
#[must_use = "dropping a taken job answers it as panicked"]
pub struct Running<R> {
    job: Job<R>,
    expired: bool,
    duty: Duty<R>,
}

impl<R> Running<R> {
    pub(crate) fn new(
        core: Arc<Core<R>>,
        (lane, position): (usize, Position),
        job: Job<R>,
        taken: Time,
        expired: bool,
        lost: bool,
    ) -> Running<R> {
        let duty =
            Duty { core, lane, position, ticket: job.ticket, taken, lost, outcome: Some(Outcome::Panicked) };
        Running { job, expired, duty }
    }

    /// The ticket that the job was submitted with.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.duty.ticket
    }

    /// Which lane the job came from, in the order of the wakes given to [`Pool::new`](crate::Pool::new).
    #[must_use]
    pub fn lane(&self) -> usize {
        self.duty.lane
    }

    /// Runs the job, unless it expired. A panic in it ends here.
    pub fn run(self, context: &mut JobContext) -> Finished<R> {
        let Running { job, expired, mut duty } = self;
        let work = job.work;
        duty.outcome = Some(if expired {
            // What the job captured is the user's, and may panic while it is dropped.
            contain(|| drop(work));
            Outcome::Expired
        } else {
            contain(|| work.call(context)).map_or(Outcome::Panicked, Outcome::Done)
        });
        Finished { duty }
    }
}

/// A job that has run; its answer leaves with [`deliver`](Finished::deliver), or at the latest when this is dropped.
#[must_use = "the answer leaves when this is delivered"]
pub struct Finished<R> {
    duty: Duty<R>,
}

impl<R> Finished<R> {
    /// The ticket that the job was submitted with.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.duty.ticket
    }

    /// Which lane the answer goes to.
    #[must_use]
    pub fn lane(&self) -> usize {
        self.duty.lane
    }

    /// Puts the answer where the lane finds it and wakes the lane's shard.
    pub fn deliver(self) {
        drop(self.duty);
    }
}

/// The answer owed for one taken job.
struct Duty<R> {
    core: Arc<Core<R>>,
    lane: usize,
    position: Position,
    ticket: u64,
    taken: Time,
    lost: bool,
    outcome: Option<Outcome<R>>,
}

impl<R> Drop for Duty<R> {
    fn drop(&mut self) {
        if let Some(strength) = &self.core.strength {
            strength.answered();
        }
        if self.lost {
            count(&self.core.tally.lost);
        } else if let Some(outcome) = self.outcome.take() {
            if !matches!(outcome, Outcome::Expired) {
                self.core.tally.served(self.core.clock.now().since(self.taken));
            }
            self.core.deliver(self.lane, Completed { ticket: self.ticket, position: self.position, outcome });
        }
    }
}

/// Runs foreign code; a panic in it, or in the dropping of what it panicked with, goes no further.
pub(crate) fn contain<T>(run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(payload) => {
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                // A payload that panics when dropped, carrying another: leaking it is the only way out.
                std::mem::forget(again);
            }
            None
        }
    }
}
