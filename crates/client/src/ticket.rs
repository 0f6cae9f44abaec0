//! Where one caller waits for one message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::outcome::{DropReason, PublishOutcome};

/// What becomes of a message that was [submitted](crate::Publisher::submit).
#[derive(Debug)]
#[must_use = "only the ticket tells what became of the message, unless it is dropped after having been queued"]
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

    /// What became of it, if that is known.
    #[must_use]
    pub fn outcome(&self) -> Option<PublishOutcome> {
        match &self.state {
            TicketState::Resolved(outcome) => Some(outcome.clone()),
            TicketState::Waiting(slot) => slot.outcome(),
        }
    }

    /// Waits until it is known, at most for `timeout`. Nothing: not yet; ask again.
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
    /// From now on nobody waits: what goes wrong is told as any other failure.
    fn drop(&mut self) {
        if let TicketState::Waiting(slot) = &self.state {
            slot.detach();
        }
    }
}

/// The end of a slot that goes with the message. Whatever becomes of the message, whoever waits hears of it: also if it is
/// only let go, as by a thread that panics.
#[derive(Debug)]
pub(crate) struct OutcomeSender {
    slot: OutcomeSlot,
    is_retained: bool,
}

impl OutcomeSender {
    pub(crate) fn new(slot: OutcomeSlot) -> OutcomeSender {
        OutcomeSender { slot, is_retained: false }
    }

    /// The message is safe: what lets it go here does not lose it.
    pub(crate) fn mark_retained(&mut self) {
        self.is_retained = true;
    }

    /// Tells the outcome; the first one counts. False: nobody is there to hear it.
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

/// The place that caller and link share.
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
    /// The caller does not look any more.
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

    /// The caller goes on without waiting. Returns what has been told until then.
    pub(crate) fn detach(&self) -> Option<PublishOutcome> {
        let mut state = self.lock();
        state.is_detached = true;
        state.outcome.clone()
    }

    /// The caller wants the message not to be sent any more.
    pub(crate) fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Relaxed)
    }
}
