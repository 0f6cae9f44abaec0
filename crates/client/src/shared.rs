//! State shared by callers and the publisher's thread: submitted messages, held bytes, counters, unfetched failures.
//! One lock, held briefly; no code blocks while holding it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::connection_error::ConnectionError;
use crate::limits::FAILURES_MAX;
use crate::link::LinkUpdate;
use crate::outcome::{DropReason, PublishFailure, PublishOutcome, PublisherCounts};
use crate::spool_entry::SpoolEntry;

pub(crate) type Callback = Box<dyn FnMut(&PublishFailure) + Send>;

pub(crate) struct SharedState {
    state: Mutex<PublisherState>,
    changed: Condvar,
    waker: mio::Waker,
}

#[derive(Default)]
pub(crate) struct PublisherState {
    pub(crate) submissions: VecDeque<SpoolEntry>,
    /// Number and cost of the messages held, those in `submissions` included.
    pub(crate) held: (u64, u64),
    pub(crate) submitted: u64,
    pub(crate) recovered: u64,
    /// Messages dropped before the thread received them.
    pub(crate) dropped: u64,
    pub(crate) link: PublisherCounts,
    pub(crate) failures: VecDeque<PublishFailure>,
    pub(crate) failures_lost: u64,
    pub(crate) callback: Option<Callback>,
    pub(crate) connection_error: Option<ConnectionError>,
    pub(crate) is_ready: bool,
    pub(crate) stop: bool,
    pub(crate) ended: bool,
    /// The thread sleeps and needs the waker.
    is_asleep: bool,
}

impl fmt::Debug for PublisherState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublisherState")
            .field("held", &self.held)
            .field("stop", &self.stop)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedState").finish_non_exhaustive()
    }
}

impl PublisherState {
    pub(crate) fn counts(&self) -> PublisherCounts {
        PublisherCounts {
            submitted: self.submitted,
            recovered: self.recovered,
            dropped: self.link.dropped + self.dropped,
            held: self.held.0,
            held_bytes: self.held.1,
            ..self.link
        }
    }

    pub(crate) fn fail(&mut self, failure: PublishFailure) {
        if self.failures.len() >= FAILURES_MAX {
            self.failures.pop_front();
            self.failures_lost += 1;
        }
        self.failures.push_back(failure);
    }
}

impl SharedState {
    pub(crate) fn new(waker: mio::Waker) -> SharedState {
        SharedState { state: Mutex::default(), changed: Condvar::new(), waker }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PublisherState> {
        // A panic leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change until `deadline`. Returns false if the deadline has passed.
    pub(crate) fn wait<'a>(
        &self,
        state: MutexGuard<'a, PublisherState>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, PublisherState>, bool) {
        let Some(deadline) = deadline else {
            return (self.changed.wait(state).unwrap_or_else(PoisonError::into_inner), true);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (state, false);
        }
        (self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0, true)
    }

    pub(crate) fn wake(&self, state: &mut PublisherState) {
        if std::mem::take(&mut state.is_asleep) {
            // The waker fails only after the thread has ended.
            let _ = self.waker.wake();
        }
    }

    /// Marks the thread as asleep. Returns false if there is work.
    pub(crate) fn prepare_sleep(&self) -> bool {
        let mut state = self.lock();
        state.is_asleep = state.submissions.is_empty() && !state.stop;
        state.is_asleep
    }

    pub(crate) fn set_awake(&self) {
        self.lock().is_asleep = false;
    }

    pub(crate) fn apply_update(&self, update: LinkUpdate) {
        let (callback, failures) = {
            let mut state = self.lock();
            let LinkUpdate { counts, released, failures, connection_error, is_ready } = update;
            state.link = counts;
            state.held.0 -= released.0;
            state.held.1 -= released.1;
            state.connection_error = connection_error;
            state.is_ready = is_ready;
            let callback = if failures.is_empty() { None } else { state.callback.take() };
            if callback.is_none() {
                for failure in failures {
                    state.fail(failure);
                }
                self.changed.notify_all();
                return;
            }
            self.changed.notify_all();
            (callback, failures)
        };
        // The callback runs without the lock, so it may use the publisher. After a panic it is dropped, and further
        // failures are kept for `failures`.
        if let Some(mut callback) = callback {
            let mut notified = 0;
            let notify = || {
                for failure in &failures {
                    notified += 1;
                    callback(failure);
                }
            };
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(notify)).is_err();
            let mut state = self.lock();
            if panicked {
                for failure in failures.into_iter().skip(notified) {
                    state.fail(failure);
                }
                self.changed.notify_all();
            } else {
                state.callback.get_or_insert(callback);
            }
        }
    }

    /// Called when the thread has ended. Messages that it has not received are dropped, and their callers notified.
    /// Without a spool on disk, messages that a panic left held count as dropped, too.
    pub(crate) fn end(&self, is_retained: bool) {
        let mut state = self.lock();
        state.ended = true;
        state.is_ready = false;
        for entry in std::mem::take(&mut state.submissions) {
            state.held.0 -= 1;
            state.held.1 -= entry.cost;
            state.dropped += 1;
            let reason = DropReason::Closed;
            if !entry.ticket.as_ref().is_some_and(|it| it.complete(PublishOutcome::Dropped(reason.clone()))) {
                let subject = String::from_utf8_lossy(entry.message.subject()).into_owned();
                state.fail(PublishFailure { subject, id: entry.message.id(), reason });
            }
        }
        if !is_retained {
            let (held, _) = std::mem::take(&mut state.held);
            state.dropped += held;
        }
        self.changed.notify_all();
    }
}
