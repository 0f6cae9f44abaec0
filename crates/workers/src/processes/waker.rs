//! Wakes the waiting supervisor: an eventfd, and the requests to stop and to reload.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::WorkerProgram;

const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct SupervisorWaker {
    event: OwnedFd,
    /// Shortest requested grace in nanoseconds, once a stop was requested.
    grace: AtomicU64,
    pending_reload: PendingReload,
}

/// The program of the next reload: the latest requested one.
#[derive(Default)]
struct PendingReload(Mutex<Option<Box<dyn WorkerProgram>>>);

impl fmt::Debug for PendingReload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingReload").finish_non_exhaustive()
    }
}

impl SupervisorWaker {
    pub(super) fn new() -> io::Result<SupervisorWaker> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let pending_reload = PendingReload::default();
        Ok(SupervisorWaker { event, grace: AtomicU64::new(NEVER), pending_reload })
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

    /// Requests a reload; an earlier one that has not begun is dropped.
    pub(super) fn request_reload(&self, program: Box<dyn WorkerProgram>) {
        *self.pending_reload.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
        self.wake();
    }

    pub(super) fn take_reload(&self) -> Option<Box<dyn WorkerProgram>> {
        self.pending_reload.0.lock().unwrap_or_else(PoisonError::into_inner).take()
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
