//! Tickets: a caller waits for the outcome of its message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::outcome::{DropReason, PublishOutcome};

/// A handle to the outcome of a message that was [submitted](crate::Publisher::submit).
#[derive(Debug)]
#[must_use = "only the ticket reports the outcome of the message, unless it is dropped after it was queued"]
pub struct PublishTicket {
    state: TicketState,
}

#[derive(Debug)]
enum TicketState {
    Resolved(PublishOutcome),
    Waiting(OutcomeSlot),
}

impl PublishTicket {
    pub(crate) fn resolved(outcome: PublishOutcome) -> PublishTicket {
        PublishTicket { state: TicketState::Resolved(outcome) }
    }

    pub(crate) fn waiting(slot: OutcomeSlot) -> PublishTicket {
        PublishTicket { state: TicketState::Waiting(slot) }
    }

    /// The outcome, if it is known.
    #[must_use]
    pub fn outcome(&self) -> Option<PublishOutcome> {
        match &self.state {
            TicketState::Resolved(outcome) => Some(outcome.clone()),
            TicketState::Waiting(slot) => slot.outcome(),
        }
    }

    /// Waits for the outcome, at most for `timeout`; `None` if it is still unknown.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<PublishOutcome> {
        match &self.state {
            TicketState::Resolved(outcome) => Some(outcome.clone()),
            TicketState::Waiting(slot) => slot.wait(timeout),
        }
    }

    pub(crate) fn slot(&self) -> Option<&OutcomeSlot> {
        match &self.state {
            TicketState::Resolved(_) => None,
            TicketState::Waiting(slot) => Some(slot),
        }
    }
}

impl Drop for PublishTicket {
    /// Failures after this go to [`Publisher::failures`](crate::Publisher::failures).
    fn drop(&mut self) {
        if let TicketState::Waiting(slot) = &self.state {
            slot.detach();
        }
    }
}

/// The sending half of a slot, which travels with the message. Dropping it also sends an outcome, even when a thread
/// panics.
#[derive(Debug)]
pub(crate) struct OutcomeSender {
    slot: OutcomeSlot,
    is_retained: bool,
}

impl OutcomeSender {
    pub(crate) fn new(slot: OutcomeSlot) -> OutcomeSender {
        OutcomeSender { slot, is_retained: false }
    }

    /// The message is on disk: dropping this sender does not lose it.
    pub(crate) fn mark_retained(&mut self) {
        self.is_retained = true;
    }

    /// Sends the outcome; only the first one has an effect. Returns false if the caller no longer waits.
    pub(crate) fn complete(&self, outcome: PublishOutcome) -> bool {
        self.slot.complete(outcome)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.slot.is_cancelled()
    }
}

impl Drop for OutcomeSender {
    fn drop(&mut self) {
        let fallback = if self.is_retained {
            PublishOutcome::Queued
        } else {
            PublishOutcome::Dropped(DropReason::Closed)
        };
        self.slot.complete(fallback);
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct OutcomeSlot {
    shared: Arc<SlotShared>,
}

#[derive(Debug, Default)]
struct SlotShared {
    state: Mutex<SlotState>,
    changed: Condvar,
    cancelled: AtomicBool,
}

#[derive(Debug, Default)]
struct SlotState {
    outcome: Option<PublishOutcome>,
    is_detached: bool,
}

impl OutcomeSlot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, outcome: PublishOutcome) -> bool {
        let mut state = self.lock();
        state.outcome.get_or_insert(outcome);
        self.shared.changed.notify_all();
        !state.is_detached
    }

    pub(crate) fn outcome(&self) -> Option<PublishOutcome> {
        self.lock().outcome.clone()
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Option<PublishOutcome> {
        let begun = Instant::now();
        let mut state = self.lock();
        while state.outcome.is_none() {
            let left = timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
            let woken = self.shared.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.outcome.clone()
    }

    pub(crate) fn detach(&self) -> Option<PublishOutcome> {
        let mut state = self.lock();
        state.is_detached = true;
        state.outcome.clone()
    }

    pub(crate) fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Relaxed)
    }
}
