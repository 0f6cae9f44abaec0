//! The two rings shared with the kernel: pushing, entering, and the user data of completions.

use std::io;

use io_uring::{EnterFlags, IoUring, squeue, types};
use stilling_ring::Time;

use crate::driver::Wait;
use crate::limits::{COMPLETION_QUEUE_SIZE, SUBMISSION_QUEUE_SIZE};
use crate::token::Token;

/// The operation of a completion, in the top byte of its user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum UringOp {
    /// Its result is not needed.
    Ignore = 0,
    Accept = 1,
    Receive = 2,
    Readable = 3,
    Writable = 4,
    Connect = 5,
    Close = 6,
    CloseAfterSend = 7,
    Send = 8,
    Wake = 9,
    /// A direct socket is created, to be connected.
    Socket = 10,
    /// The sending direction of a direct socket is ended.
    Shutdown = 11,
    /// An unused direct socket is closed.
    SlotClosed = 12,
    /// An operation that completes while its caller waits.
    Immediate = 13,
    /// An ordinary descriptor is created for a direct socket that is detached.
    Install = 14,
}

impl UringOp {
    const ALL: [UringOp; 15] = [
        UringOp::Ignore,
        UringOp::Accept,
        UringOp::Receive,
        UringOp::Readable,
        UringOp::Writable,
        UringOp::Connect,
        UringOp::Close,
        UringOp::CloseAfterSend,
        UringOp::Send,
        UringOp::Wake,
        UringOp::Socket,
        UringOp::Shutdown,
        UringOp::SlotClosed,
        UringOp::Immediate,
        UringOp::Install,
    ];

    pub(super) fn bits(self) -> u64 {
        (self as u64) << 56
    }

    pub(super) fn with(self, token: Token) -> u64 {
        self.bits() | token.bits()
    }

    pub(super) fn at(self, position: u32) -> u64 {
        self.bits() | u64::from(position)
    }

    pub(super) fn of(user_data: u64) -> UringOp {
        UringOp::ALL[(user_data >> 56) as usize]
    }
}

/// Consecutive enters that may fail with a transient error before the ring counts as failed.
const ATTEMPTS_MAX: u32 = 1024;

/// Whether an enter may be retried: the timeout expired, a signal arrived, or completions must be drained first.
fn is_transient(error: &io::Error) -> bool {
    let passing = [libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN];
    error.raw_os_error().is_some_and(|errno| passing.contains(&errno))
}

/// A copy of a completion queue entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) user_data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

pub(super) struct UringQueue {
    ring: IoUring,
    no_iowait: u32,
    /// The error of a failed enter, for good: the queued entries may point to freed memory and are never submitted.
    failed: Option<io::Error>,
}

impl UringQueue {
    pub(super) fn new() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETION_QUEUE_SIZE)
            .build(SUBMISSION_QUEUE_SIZE)?;
        let parameters = ring.params();
        if !parameters.is_feature_ext_arg() || !parameters.is_feature_skip_cqe_on_success() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let no_iowait = if parameters.is_feature_no_iowait() { EnterFlags::NO_IOWAIT.bits() } else { 0 };
        Ok(UringQueue { ring, no_iowait, failed: None })
    }

    pub(super) fn has_queued(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    pub(super) fn ring(&mut self) -> &mut IoUring {
        &mut self.ring
    }

    pub(super) fn room(&mut self) -> usize {
        let queue = self.ring.submission();
        queue.capacity() - queue.len()
    }

    /// Queues an entry; the caller ensures that there is room. A failed ring ignores it, and its next turn returns the
    /// error.
    pub(super) fn push(&mut self, entry: &squeue::Entry) {
        if self.failed.is_some() {
            return;
        }
        // SAFETY: the memory that entries point to outlives their submission: send bytes are borrowed for the whole
        // turn, addresses, message headers and the wake counter live in the driver and do not move, buffers are
        // registered memory that outlives the ring.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the submission queue was full although there was room");
    }

    /// Submits the queue without waiting. Returns the number of system calls.
    pub(super) fn submit_all(&mut self) -> u32 {
        let mut calls = 0;
        loop {
            let queued = self.ring.submission().len() as u32;
            if queued == 0 || self.failed.is_some() {
                return calls;
            }
            calls += 1;
            // EBUSY and EAGAIN require completions to be drained first; running task work makes room, and the kernel
            // keeps overflowing completions, so that a retry succeeds.
            let outcome = self.enter_once(queued, Time::ZERO, Wait::No);
            self.failed = outcome.err().filter(|error| !is_transient(error) || calls == ATTEMPTS_MAX);
        }
    }

    /// Submits the queue, runs task work, and waits. Returns the number of system calls.
    pub(super) fn enter(&mut self, now: Time, wait: Wait) -> io::Result<u32> {
        let mut calls = 0;
        let mut wait = wait;
        loop {
            if let Some(error) = &self.failed {
                let kind = error.kind();
                return Err(io::Error::new(kind, format!("io_uring has failed: {error}")));
            }
            let queued = self.ring.submission().len() as u32;
            if calls > 0 && queued == 0 {
                return Ok(calls);
            }
            calls += 1;
            let outcome = self.enter_once(queued, now, wait);
            self.failed = outcome.err().filter(|error| !is_transient(error) || calls == ATTEMPTS_MAX);
            if self.failed.is_some() {
                continue;
            }
            wait = Wait::No;
        }
    }

    fn enter_once(&mut self, queued: u32, now: Time, wait: Wait) -> io::Result<usize> {
        let flags = EnterFlags::GETEVENTS.bits() | self.no_iowait;
        let submitter = self.ring.submitter();
        let until = match wait {
            // SAFETY: no argument structure is passed.
            Wait::No => return unsafe { submitter.enter::<libc::sigset_t>(queued, 0, flags, None) },
            // SAFETY: as above.
            Wait::Forever => return unsafe { submitter.enter::<libc::sigset_t>(queued, 1, flags, None) },
            Wait::Until(until) => until,
        };
        let timeout = types::Timespec::from(until.since(now));
        let arguments = types::SubmitArgs::new().timespec(&timeout);
        let flags = flags | EnterFlags::EXT_ARG.bits();
        // SAFETY: EXT_ARG declares the argument as this structure, which outlives the call.
        unsafe { submitter.enter(queued, 1, flags, Some(&arguments)) }
    }

    pub(super) fn overflowed(&mut self) -> bool {
        self.ring.submission().cq_overflow()
    }

    /// Whether the kernel has more completions than it delivers in one enter.
    pub(super) fn has_pending_completions(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    pub(super) fn drain(&mut self, into: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            into.push(Completion {
                user_data: entry.user_data(),
                result: entry.result(),
                flags: entry.flags(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use io_uring::opcode;

    use super::*;

    /// Row 3.27: a ring that the system takes away returns an error with its reason and does not panic, however many
    /// entries are pushed meanwhile.
    #[test]
    fn a_failed_ring_returns_its_error_and_accepts_no_entries() {
        let mut queue = UringQueue::new().expect("a ring");
        let no_ring = std::fs::File::open("/dev/null").expect("there is one");
        // SAFETY: both are open; the ring's own mappings outlive its descriptor, which is closed once, by its owner.
        let replaced = unsafe { libc::dup2(no_ring.as_raw_fd(), queue.ring().as_raw_fd()) };
        assert!(replaced >= 0);
        for _ in 0..2 * SUBMISSION_QUEUE_SIZE {
            if queue.room() == 0 {
                queue.submit_all();
            }
            queue.push(&opcode::Nop::new().build());
        }
        for _ in 0..2 {
            let error = queue.enter(Time::ZERO, Wait::No).expect_err("the ring is replaced");
            assert!(error.to_string().starts_with("io_uring has failed: "), "{error}");
            assert_eq!(error.kind(), io::Error::from_raw_os_error(libc::EOPNOTSUPP).kind());
        }
    }
}
