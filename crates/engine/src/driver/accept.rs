//! Accept errors and refusals, shared by the drivers of this system.
//!
//! An unknown error stops the listener, because an immediate retry might spin. The shard retries after a pause.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::limits::ACCEPTS_PER_TURN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptFailure {
    /// It concerns at most one lost connection: the next accept may succeed.
    Transient,
    NoDescriptor,
    /// The listener cannot accept, now or at all.
    Listener,
}

impl AcceptFailure {
    pub(crate) fn of(error: Errno) -> Self {
        match error {
            Errno::MFILE | Errno::NFILE => AcceptFailure::NoDescriptor,
            Errno::AGAIN
            | Errno::INTR
            | Errno::CONNABORTED
            | Errno::PROTO
            | Errno::PERM
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::TIMEDOUT => AcceptFailure::Transient,
            _ => AcceptFailure::Listener,
        }
    }

    pub(crate) fn is_descriptor_shortage(error: &io::Error) -> bool {
        Errno::from_io_error(error)
            .is_some_and(|errno| AcceptFailure::of(errno) == AcceptFailure::NoDescriptor)
    }
}

/// Accepts the oldest connection in a listener's backlog, if any. A descriptor shortage is an error only if a
/// connection waits.
pub(crate) fn accept_now(listener: impl AsFd, flags: SocketFlags) -> io::Result<Option<OwnedFd>> {
    // Another holder of the listener may have made it blocking.
    rustix::io::ioctl_fionbio(&listener, true)?;
    for _ in 0..ACCEPTS_PER_TURN {
        match rustix::net::accept_with(&listener, flags) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => match AcceptFailure::of(error) {
                AcceptFailure::Transient => {}
                AcceptFailure::NoDescriptor if !has_waiting_connection(&listener) => return Ok(None),
                AcceptFailure::NoDescriptor | AcceptFailure::Listener => return Err(error.into()),
            },
        }
    }
    Ok(None)
}

/// Whether a connection waits at a listener. (When descriptors have run out, accept(2) fails whether or not one waits.)
pub(crate) fn has_waiting_connection(listener: impl AsFd) -> bool {
    let mut poll_fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    poll(&mut poll_fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

/// An open descriptor that can be closed to accept one connection when descriptors have run out.
#[derive(Debug)]
pub(crate) struct ReserveDescriptor(Option<OwnedFd>);

impl ReserveDescriptor {
    pub(crate) fn new() -> Self {
        ReserveDescriptor(File::open("/dev/null").ok().map(OwnedFd::from))
    }

    /// Accepts the oldest connection in a listener's backlog, and closes it.
    pub(crate) fn refuse_one(&mut self, listener: impl AsFd) -> bool {
        self.0 = None;
        let refused = matches!(accept_now(listener, SocketFlags::CLOEXEC), Ok(Some(_)));
        *self = ReserveDescriptor::new();
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 3.27: an unknown error is not retried at once.
    #[test]
    fn an_unknown_error_stops_the_listener() {
        let check = |error, expected| assert_eq!(AcceptFailure::of(error), expected, "{error:?}");
        check(Errno::NOTSOCK, AcceptFailure::Listener);
        check(Errno::NOMEM, AcceptFailure::Listener);
        check(Errno::INVAL, AcceptFailure::Listener);
        check(Errno::CONNABORTED, AcceptFailure::Transient);
        check(Errno::MFILE, AcceptFailure::NoDescriptor);
        assert!(AcceptFailure::is_descriptor_shortage(&Errno::NFILE.into()));
        assert!(!AcceptFailure::is_descriptor_shortage(&io::ErrorKind::Other.into()));
    }
}
