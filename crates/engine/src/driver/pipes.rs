//! Writes to pipes without `SIGPIPE`.
//!
//! A send to a dead socket can suppress the signal (`MSG_NOSIGNAL`); a write to a pipe without a reader cannot. An
//! embedding program may have the default action, which ends the process, so the signal is blocked during the write,
//! and consumed.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// Writes to a non-blocking pipe; `EPIPE` is returned as an error only, never raised as a signal.
pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    without_signal(|| rustix::io::write(fd, bytes))
}

/// Runs a write to a pipe; `EPIPE` is returned as an error only, never raised as a signal.
pub(crate) fn without_signal(write: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let guard = SignalGuard::new();
    let outcome = write();
    if outcome == Err(Errno::PIPE) {
        guard.discard_pending();
    }
    outcome
}

/// Blocks `SIGPIPE` for this thread.
struct SignalGuard {
    pipe: libc::sigset_t,
    previous_mask: libc::sigset_t,
}

impl SignalGuard {
    fn new() -> Self {
        let mut pipe = MaybeUninit::uninit();
        let mut previous_mask = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises `pipe`, and pthread_sigmask fills in `previous_mask`: with these arguments
        // neither can fail.
        unsafe {
            libc::sigemptyset(pipe.as_mut_ptr());
            libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), previous_mask.as_mut_ptr());
            SignalGuard { pipe: pipe.assume_init(), previous_mask: previous_mask.assume_init() }
        }
    }

    /// Consumes the signal of a failed write before it is unblocked. If it was blocked before, it belongs to the
    /// embedding program.
    fn discard_pending(&self) {
        let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both sets were initialised by `new`; a null siginfo is allowed.
        unsafe {
            if libc::sigismember(&self.previous_mask, libc::SIGPIPE) == 0 {
                libc::sigtimedwait(&self.pipe, std::ptr::null_mut(), &no_wait);
            }
        }
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        // SAFETY: `previous_mask` was filled in by `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.previous_mask, std::ptr::null_mut()) };
    }
}
