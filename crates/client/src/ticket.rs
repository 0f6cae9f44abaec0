//! Where one caller waits for one message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::outcome::{Outcome, Reason};

/// What becomes of a message that was [submitted](crate::Publisher::submit).
#[derive(Debug)]
#[must_use = "only the ticket tells what became of the message, unless it is dropped after having been queued"]
pub struct Ticket {
    state: State,
}

#[derive(Debug)]
enum State {
    Known(Outcome),
    Waiting(Slot),
}

impl Ticket {
    pub(crate) fn known(outcome: Outcome) -> Ticket {
        Ticket { state: State::Known(outcome) }
    }

    pub(crate) fn waiting(slot: Slot) -> Ticket {
        Ticket { state: State::Waiting(slot) }
    }

    /// What became of it, if that is known.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        match &self.state {
            State::Known(outcome) => Some(outcome.clone()),
            State::Waiting(slot) => slot.look(),
        }
    }

    /// Waits until it is known, at most for `timeout`. Nothing: not yet; ask again.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<Outcome> {
        match &self.state {
            State::Known(outcome) => Some(outcome.clone()),
            State::Waiting(slot) => slot.wait(timeout),
        }
    }

    pub(crate) fn slot(&self) -> Option<&Slot> {
        match &self.state {
            State::Known(_) => None,
            State::Waiting(slot) => Some(slot),
        }
    }
}

impl Drop for Ticket {
    /// From now on nobody waits: what goes wrong is told as any other failure.
    fn drop(&mut self) {
        if let State::Waiting(slot) = &self.state {
            slot.leave();
        }
    }
}

/// The end of a slot that goes with the message. Whatever becomes of the message, whoever waits hears of it: also if it is
/// only let go, as by a thread that panics.
#[derive(Debug)]
pub(crate) struct Teller {
    slot: Slot,
    is_kept: bool,
}

impl Teller {
    pub(crate) fn new(slot: Slot) -> Teller {
        Teller { slot, is_kept: false }
    }

    /// The message is safe: what lets it go here does not lose it.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Tells the outcome; the first one counts. False: nobody is there to hear it.
    pub(crate) fn tell(&self, outcome: Outcome) -> bool {
        self.slot.tell(outcome)
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.slot.is_abandoned()
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        let untold = if self.is_kept { Outcome::Queued } else { Outcome::Dropped(Reason::Closed) };
        self.slot.tell(untold);
    }
}

/// The place that caller and link share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    place: Mutex<Place>,
    told: Condvar,
    abandoned: AtomicBool,
}

#[derive(Debug, Default)]
struct Place {
    outcome: Option<Outcome>,
    /// The caller does not look any more.
    is_left: bool,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Place> {
        self.shared.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, outcome: Outcome) -> bool {
        let mut place = self.lock();
        place.outcome.get_or_insert(outcome);
        self.shared.told.notify_all();
        !place.is_left
    }

    pub(crate) fn look(&self) -> Option<Outcome> {
        self.lock().outcome.clone()
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Option<Outcome> {
        let begun = Instant::now();
        let mut place = self.lock();
        while place.outcome.is_none() {
            let left = timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
            let woken = self.shared.told.wait_timeout(place, left);
            place = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        place.outcome.clone()
    }

    /// The caller goes on without waiting. Returns what has been told until then.
    pub(crate) fn leave(&self) -> Option<Outcome> {
        let mut place = self.lock();
        place.is_left = true;
        place.outcome.clone()
    }

    /// The caller wants the message not to be sent any more.
    pub(crate) fn abandon(&self) {
        self.shared.abandoned.store(true, Ordering::Relaxed);
    }

    fn is_abandoned(&self) -> bool {
        self.shared.abandoned.load(Ordering::Relaxed)
    }
}
