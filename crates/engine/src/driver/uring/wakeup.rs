//! Wakes a sleeping shard: by an eventfd that its ring reads, and, for a shard in a foreign event loop, by a second
//! eventfd that the loop polls.
//!
//! The kernel writes the second one on completions, but not reliably on the completion of a read of the first one
//! (Linux 6.18 was observed to do so only once per ring). So every wake writes both.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, eventfd};

pub(super) struct Wakeup {
    event: OwnedFd,
    /// Written on new events, once a waitable descriptor has been requested.
    waitable_event: OnceLock<OwnedFd>,
}

impl Wakeup {
    pub(super) fn new() -> io::Result<Wakeup> {
        // Blocking, so that the ring waits for it instead of reporting `EAGAIN`.
        Ok(Wakeup { event: eventfd(0, EventfdFlags::CLOEXEC)?, waitable_event: OnceLock::new() })
    }

    pub(super) fn event(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Ends the shard's sleep, or its next one. From any thread, also in a signal handler.
    pub(super) fn wake(&self) {
        // It can fail only if the counter is full, and then a wake is pending.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        self.signal_waitable();
    }

    /// The eventfd that a foreign loop polls; the first call creates it and passes it to `register`.
    pub(super) fn waitable(&self, register: impl FnOnce(RawFd) -> io::Result<()>) -> io::Result<RawFd> {
        if let Some(waitable_event) = self.waitable_event.get() {
            return Ok(waitable_event.as_raw_fd());
        }
        // Non-blocking: it is read whether or not it was written.
        let waitable_event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        register(waitable_event.as_raw_fd())?;
        Ok(self.waitable_event.get_or_init(|| waitable_event).as_raw_fd())
    }

    /// Ends the foreign loop's wait, or its next one.
    pub(super) fn signal_waitable(&self) {
        if let Some(waitable_event) = self.waitable_event.get() {
            let _ = rustix::io::write(waitable_event, &1_u64.to_ne_bytes());
        }
    }

    /// Clears earlier signals; called at the start of a turn.
    pub(super) fn clear_waitable(&self) {
        if let Some(waitable_event) = self.waitable_event.get() {
            let _ = rustix::io::read(waitable_event, &mut [0; 8]);
        }
    }
}
