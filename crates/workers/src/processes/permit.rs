//! Permits to send a process a request, and to have a connection to it.

use std::sync::Arc;

use stilling_ring::Time;

use super::process_slots::ProcessSlots;

/// Permit for one request to a process: one of its slots. Released on drop.
#[derive(Debug)]
pub struct SlotPermit {
    process_slots: Arc<ProcessSlots>,
    generation: u64,
    acquired_at: Time,
    is_overdue: bool,
    is_released: bool,
}

/// Permit for one connection to a process, limited to the number of slots. Released on drop.
#[derive(Debug)]
pub struct ConnectionPermit {
    process_slots: Arc<ProcessSlots>,
}

/// A [`SlotPermit`]'s claim to a connection while other shards hold them all. Released on drop.
#[derive(Debug)]
pub struct ConnectionClaim {
    process_slots: Arc<ProcessSlots>,
}

impl SlotPermit {
    pub(super) fn new(process_slots: Arc<ProcessSlots>, generation: u64, acquired_at: Time) -> SlotPermit {
        SlotPermit { process_slots, generation, acquired_at, is_overdue: false, is_released: false }
    }

    /// The number of the process, from 0.
    #[must_use]
    pub fn process(&self) -> usize {
        self.process_slots.number
    }

    /// The run of the process that this permit is for; connections of another generation are unusable.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether this generation accepts no more requests: it has exited, is to be killed or is being replaced.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.process_slots.generation() != self.generation
    }

    /// Takes a connection permit; `None` if all are in use, see [`claim`](SlotPermit::claim).
    #[must_use]
    pub fn connection_permit(&self) -> Option<ConnectionPermit> {
        self.process_slots
            .try_connect()
            .then(|| ConnectionPermit { process_slots: Arc::clone(&self.process_slots) })
    }

    /// Asks the shards to close an idle connection to the process. A closed connection notifies all shards.
    #[must_use]
    pub fn claim(&self) -> ConnectionClaim {
        self.process_slots.claim();
        ConnectionClaim { process_slots: Arc::clone(&self.process_slots) }
    }

    /// Prints a line about the process into its output. Never blocks: without room the line is dropped.
    pub fn print_line(&self, text: &str) {
        self.process_slots.print_line(text);
    }

    /// Records that the process has sent something, so it does not hang. Takes a lock only while the process is
    /// suspect.
    pub fn mark_responsive(&self) {
        self.process_slots.clear_suspicion(self.generation);
    }

    /// Releases the slot: the request completed at `now`.
    pub fn release(mut self, now: Time) {
        self.process_slots.admission_queue().tally.record_service_time(now.since(self.acquired_at));
        self.release_once();
    }

    /// Releases the slot unused: the request goes back to the queue.
    pub fn release_unused(mut self) {
        debug_assert!(!self.is_overdue, "an overdue request cannot be released unused");
        self.is_released = true;
        crate::counters::count(&self.process_slots.admission_queue().tally.lost);
        self.process_slots.release_unused();
    }

    /// Records that the request got no response in time. The process is to be killed if all its requests are overdue,
    /// or if an earlier request was overdue and nothing has been received since
    /// ([`mark_responsive`](SlotPermit::mark_responsive)). Returns true if so, and only once. The slot stays in use
    /// until the permit is released, because the process may still work on the request. Takes a lock briefly.
    pub fn mark_overdue(&mut self, now: Time) -> bool {
        !std::mem::replace(&mut self.is_overdue, true)
            && self.process_slots.mark_overdue(self.generation, self.acquired_at, now)
    }

    /// Whether the request got no response in time.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// Requests that the process is killed and started again.
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

impl ConnectionPermit {
    /// Requests that this run of the process is killed and started again.
    pub fn request_kill(&self, generation: u64) {
        self.process_slots.request_kill(generation);
    }

    /// Prints a line about the process, as [`SlotPermit::print_line`] does.
    pub fn print_line(&self, text: &str) {
        self.process_slots.print_line(text);
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
