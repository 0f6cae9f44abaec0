//! The permission to ask a process one thing, and to have a connection to it.

use std::sync::Arc;

use stilling_ring::Time;

use super::process_slots::ProcessSlots;

/// The permission to ask the process one thing: one of its slots. Dropping it gives it back.
#[derive(Debug)]
pub struct SlotPermit {
    process_slots: Arc<ProcessSlots>,
    generation: u64,
    acquired_at: Time,
    /// It got no answer in time.
    is_overdue: bool,
    is_released: bool,
}

/// The permission to have a connection to a process, of which there are as many as slots. Dropping it gives it back.
#[derive(Debug)]
pub struct ConnectionPermit {
    process_slots: Arc<ProcessSlots>,
}

/// The wish of a pass for a line while others keep them all. Dropping it takes it back.
#[derive(Debug)]
pub struct ConnectionClaim {
    process_slots: Arc<ProcessSlots>,
}

impl SlotPermit {
    pub(super) fn new(process_slots: Arc<ProcessSlots>, generation: u64, acquired_at: Time) -> SlotPermit {
        SlotPermit { process_slots, generation, acquired_at, is_overdue: false, is_released: false }
    }

    /// The number of the process, from 0 on.
    #[must_use]
    pub fn process(&self) -> usize {
        self.process_slots.number
    }

    /// Which life of the process this is for: another number means that no connection of before is any good.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether this life takes no requests any more: it has died, is condemned or is to be replaced.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.process_slots.generation() != self.generation
    }

    /// Room for a connection. `None`: others keep as many as there may be; see [`claim`](SlotPermit::claim).
    #[must_use]
    pub fn connection_permit(&self) -> Option<ConnectionPermit> {
        self.process_slots
            .try_connect()
            .then(|| ConnectionPermit { process_slots: Arc::clone(&self.process_slots) })
    }

    /// Asks those who keep a connection that they do not use to close one. They knock when they have.
    #[must_use]
    pub fn claim(&self) -> ConnectionClaim {
        self.process_slots.claim();
        ConnectionClaim { process_slots: Arc::clone(&self.process_slots) }
    }

    /// Prints a line about the process, among what it prints itself. Does not wait: with no room it is not printed.
    pub fn print_line(&self, text: &str) {
        self.process_slots.print_line(text);
    }

    /// Something has come from the process: whatever else is late, it does not hang. Takes a lock only while there is
    /// a suspicion that it does.
    pub fn mark_responsive(&self) {
        self.process_slots.clear_suspicion(self.generation);
    }

    /// Gives it back: the request is done, at `now`.
    pub fn release(mut self, now: Time) {
        self.process_slots.admission_queue().tally.record_service_time(now.since(self.acquired_at));
        self.release_once();
    }

    /// Gives it back unused: the request goes back to the queue.
    pub fn release_unused(mut self) {
        debug_assert!(!self.is_overdue, "what was late has been asked");
        self.is_released = true;
        crate::counters::count(&self.process_slots.admission_queue().tally.lost);
        self.process_slots.release_unused();
    }

    /// There was no answer in time. The process is condemned if no request would be lost with it that is not late, too,
    /// or if a request before this one was late and nothing has been [mark_responsive](SlotPermit::mark_responsive) since. Returns whether it
    /// is; once. The slot stays taken, because the process may work on the request still, until this is given back.
    /// Takes a lock for a moment.
    pub fn mark_overdue(&mut self, now: Time) -> bool {
        !std::mem::replace(&mut self.is_overdue, true)
            && self.process_slots.mark_overdue(self.generation, self.acquired_at, now)
    }

    /// Whether there was no answer in time.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// The process is of no use any more: it is killed, and started again.
    pub fn request_kill(&self) {
        self.process_slots.request_kill(self.generation);
    }

    fn release_once(&mut self) {
        if !std::mem::replace(&mut self.is_released, true) {
            crate::counters::count(&self.process_slots.admission_queue().tally.done);
            if self.is_overdue {
                self.process_slots.release_overdue(self.generation);
            } else {
                self.process_slots.release(self.generation);
            }
        }
    }
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        self.release_once();
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.process_slots.disconnect();
    }
}

impl Drop for ConnectionClaim {
    fn drop(&mut self) {
        self.process_slots.release_claim();
    }
}
