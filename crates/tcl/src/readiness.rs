//! What Tcl waits for on a channel, and how far that has got.
//!
//! ```text
//!  Tcl: watch ─▶ interest ─▶ next_wait ─▶ awaited ─▶ the shard reports ─▶ ready ─▶ queued event ─▶ take_ready ─▶ Tcl
//! ```
//!
//! A direction is awaited or ready at most once, so a channel has at most one event in Tcl's queue. After an event the
//! interest is looked at again: what Tcl still waits for is requested anew, so readiness repeats until it is served.

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
    awaited: Cell<Interest>,
    /// Directions that are ready and not reported to Tcl yet.
    ready: Cell<Interest>,
    is_event_queued: Cell<bool>,
    /// The channel is in its thread's list of those to look at before the next wait.
    is_changed: Cell<bool>,
}

impl Readiness {
    pub(crate) fn key(&self) -> Option<SlabKey> {
        self.key.get()
    }

    /// The channel has entered a thread. The interest stays: Tcl does not repeat it.
    pub(crate) fn enter(&self, key: SlabKey) {
        self.key.set(Some(key));
        self.awaited.set(Interest::NONE);
        self.ready.set(Interest::NONE);
        self.is_event_queued.set(false);
        self.is_changed.set(false);
    }

    /// The channel leaves its thread; returns its entry there.
    pub(crate) fn leave(&self) -> Option<SlabKey> {
        self.key.take()
    }

    /// Sets what Tcl waits for.
    pub(crate) fn watch(&self, interest: Interest) {
        if self.interest.replace(interest) != interest || !interest.is_none() {
            self.look_again();
        }
    }

    /// Has the channel looked at before the thread's next wait.
    pub(crate) fn look_again(&self) {
        if let Some(key) = self.key.get()
            && !self.is_changed.replace(true)
        {
            ThreadSockets::of_channel().interest_changed(key);
        }
    }

    /// The channel is being looked at.
    pub(crate) fn begin_look(&self) {
        self.is_changed.set(false);
    }

    /// The directions to request from the shard, which will report each once: what Tcl waits for, without some, and more.
    pub(crate) fn next_wait(&self, without: Interest, more: Interest) -> Interest {
        let wanted = self.interest.get().without(without).with(more);
        let wanted = wanted.without(self.awaited.get()).without(self.ready.get());
        self.awaited.set(self.awaited.get().with(wanted));
        wanted
    }

    /// The shard has reported these directions.
    pub(crate) fn reported(&self, directions: Interest) {
        self.awaited.set(self.awaited.get().without(directions));
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
        assert_eq!(readiness.next_wait(Interest::NONE, Interest::NONE), Interest::BOTH);
        assert_eq!(readiness.next_wait(Interest::NONE, Interest::NONE), Interest::NONE);
        readiness.reported(Interest::READABLE);
        assert_eq!(readiness.next_wait(Interest::NONE, Interest::NONE), Interest::READABLE);
    }

    #[test]
    fn a_ready_direction_is_not_requested_before_tcl_knows_it() {
        let readiness = readiness(Interest::READABLE);
        readiness.set_ready(Interest::BOTH);
        assert_eq!(readiness.next_wait(Interest::NONE, Interest::NONE), Interest::NONE);
        assert_eq!(readiness.take_ready(), Interest::READABLE);
        assert_eq!(readiness.take_ready(), Interest::NONE);
        assert_eq!(readiness.next_wait(Interest::NONE, Interest::NONE), Interest::READABLE);
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
        assert_eq!(readiness.next_wait(Interest::NONE, Interest::READABLE), Interest::READABLE);
        readiness.watch(Interest::READABLE);
        readiness.reported(Interest::READABLE);
        assert_eq!(readiness.next_wait(Interest::READABLE, Interest::NONE), Interest::NONE);
    }
}
