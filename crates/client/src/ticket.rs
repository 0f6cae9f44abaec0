//! Where one caller waits for one message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::outcome::Outcome;

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

/// The place that caller and link share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    outcome: Mutex<Option<Outcome>>,
    told: Condvar,
    abandoned: AtomicBool,
}

impl Slot {
    /// Tells the outcome. The first one counts.
    pub(crate) fn tell(&self, outcome: Outcome) {
        let mut place = self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        place.get_or_insert(outcome);
        self.shared.told.notify_all();
    }

    pub(crate) fn look(&self) -> Option<Outcome> {
        self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Option<Outcome> {
        let begun = Instant::now();
        let mut place = self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        while place.is_none() {
            let left = timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
            let woken = self.shared.told.wait_timeout(place, left);
            place = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        place.clone()
    }

    /// The caller wants the message not to be sent any more.
    pub(crate) fn abandon(&self) {
        self.shared.abandoned.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.shared.abandoned.load(Ordering::Relaxed)
    }
}
