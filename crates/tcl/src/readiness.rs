//! What Tcl waits for on a channel, and how far that has got.
//!
//! ```text
//!  Tcl: watch ─▶ interest ─▶ take_requests ─▶ requested ─▶ the shard reports ─▶ ready ─▶ queued event ─▶ take_ready ─▶ Tcl
//! ```
//!
//! A direction is requested or ready at most once, so a channel has at most one event in Tcl's queue. After an event the
//! interest is checked again: what Tcl still waits for is requested anew, so readiness repeats until it is served.

use std::cell::Cell;

use crate::slab::SlabKey;
use crate::tcl::Interest;
use crate::thread_sockets::ThreadSockets;

#[derive(Debug, Default)]
pub(crate) struct Readiness {
    /// The channel's entry in its thread's table; `None` between two threads, and after the close.
    key: Cell<Option<SlabKey>>,
    /// What Tcl waits for.
    interest: Cell<Interest>,
    /// Directions of which the shard will report the readiness.
    requested: Cell<Interest>,
    /// Directions that are ready and not reported to Tcl yet.
    ready: Cell<Interest>,
    is_event_queued: Cell<bool>,
    /// The channel is in its thread's list of those to check before the next wait.
    is_check_scheduled: Cell<bool>,
}

impl Readiness {
    pub(crate) fn key(&self) -> Option<SlabKey> {
        self.key.get()
    }

    /// The channel has entered a thread. The interest stays: Tcl does not repeat it.
    pub(crate) fn enter(&self, key: SlabKey) {
        self.key.set(Some(key));
        self.requested.set(Interest::NONE);
        self.ready.set(Interest::NONE);
        self.is_event_queued.set(false);
        self.is_check_scheduled.set(false);
    }

    /// The channel leaves its thread; returns its entry there.
    pub(crate) fn leave(&self) -> Option<SlabKey> {
        self.key.take()
    }

    /// Sets what Tcl waits for.
    pub(crate) fn watch(&self, interest: Interest) {
        if self.interest.replace(interest) != interest || !interest.is_none() {
            self.schedule_check();
        }
    }

    /// Has the interest of the channel checked before the thread's next wait.
    pub(crate) fn schedule_check(&self) {
        if let Some(key) = self.key.get()
            && !self.is_check_scheduled.replace(true)
        {
            ThreadSockets::of_channel().interest_changed(key);
        }
    }

    /// The check of the interest begins.
    pub(crate) fn begin_check(&self) {
        self.is_check_scheduled.set(false);
    }

    /// The directions to request from the shard, which will report each once: what Tcl waits for, without some, and more.
    pub(crate) fn take_requests(&self, without: Interest, more: Interest) -> Interest {
        let wanted = self.interest.get().without(without).with(more);
        let wanted = wanted.without(self.requested.get()).without(self.ready.get());
        self.requested.set(self.requested.get().with(wanted));
        wanted
    }

    /// The shard has reported these directions.
    pub(crate) fn reported(&self, directions: Interest) {
        self.requested.set(self.requested.get().without(directions));
    }

    /// These directions are ready: queues the channel's event if Tcl waits for one of them.
    pub(crate) fn set_ready(&self, directions: Interest) {
        let ready = directions.and(self.interest.get());
        if !ready.is_none() {
            self.ready.set(self.ready.get().with(ready));
            self.queue_event();
        }
    }

    /// Queues the channel's event, unless it is queued.
    pub(crate) fn queue_event(&self) {
        if let Some(key) = self.key.get()
            && !self.is_event_queued.replace(true)
        {
            ThreadSockets::of_channel().queue_event(key);
        }
    }

    /// The event is handled: returns the directions to report to Tcl.
    pub(crate) fn take_ready(&self) -> Interest {
        self.is_event_queued.set(false);
        self.ready.replace(Interest::NONE).and(self.interest.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A channel in no thread, as far as the thread's lists are concerned.
    fn readiness(interest: Interest) -> Readiness {
        let readiness = Readiness::default();
        readiness.watch(interest);
        readiness
    }

    #[test]
    fn a_direction_is_requested_once_until_it_is_reported() {
        let readiness = readiness(Interest::BOTH);
        assert_eq!(readiness.take_requests(Interest::NONE, Interest::NONE), Interest::BOTH);
        assert_eq!(readiness.take_requests(Interest::NONE, Interest::NONE), Interest::NONE);
        readiness.reported(Interest::READABLE);
        assert_eq!(readiness.take_requests(Interest::NONE, Interest::NONE), Interest::READABLE);
    }

    #[test]
    fn a_ready_direction_is_not_requested_before_tcl_knows_it() {
        let readiness = readiness(Interest::READABLE);
        readiness.set_ready(Interest::BOTH);
        assert_eq!(readiness.take_requests(Interest::NONE, Interest::NONE), Interest::NONE);
        assert_eq!(readiness.take_ready(), Interest::READABLE);
        assert_eq!(readiness.take_ready(), Interest::NONE);
        assert_eq!(readiness.take_requests(Interest::NONE, Interest::NONE), Interest::READABLE);
    }

    #[test]
    fn what_tcl_does_not_wait_for_is_not_reported() {
        let readiness = readiness(Interest::READABLE);
        readiness.set_ready(Interest::READABLE);
        readiness.watch(Interest::NONE);
        assert_eq!(readiness.take_ready(), Interest::NONE);
    }

    #[test]
    fn receiving_ahead_waits_without_tcl() {
        let readiness = readiness(Interest::NONE);
        assert_eq!(readiness.take_requests(Interest::NONE, Interest::READABLE), Interest::READABLE);
        readiness.watch(Interest::READABLE);
        readiness.reported(Interest::READABLE);
        assert_eq!(readiness.take_requests(Interest::READABLE, Interest::NONE), Interest::NONE);
    }
}
