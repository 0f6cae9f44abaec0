//! Wakes the waiting supervisor: an eventfd, and the stop request.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct SupervisorWaker {
    event: OwnedFd,
    /// Shortest requested grace in nanoseconds, once a stop was requested.
    grace: AtomicU64,
}

impl SupervisorWaker {
    pub(super) fn new() -> io::Result<SupervisorWaker> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(SupervisorWaker { event, grace: AtomicU64::new(NEVER) })
    }

    pub(super) fn wake(&self) {
        // Fails only when the counter is full, and then the supervisor is already being woken.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    pub(super) fn stop(&self, grace: Duration) {
        let nanos = u64::try_from(grace.as_nanos()).unwrap_or(NEVER).min(NEVER - 1);
        self.grace.fetch_min(nanos, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn stop_grace(&self) -> Option<Duration> {
        match self.grace.load(Ordering::SeqCst) {
            NEVER => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// Resets the eventfd; the caller handles the pending changes afterwards.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl AsFd for SupervisorWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
