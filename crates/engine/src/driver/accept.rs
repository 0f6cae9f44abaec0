//! What the drivers of this system share about accepting: what a failed accept means, and how a client is
//! turned away for whom there is no descriptor.
//!
//! The one decision: an error that nobody has thought of stops the listener. Trying again at once what
//! fails at once would keep a core busy; the shard tries again after a rest.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::limits::ACCEPTS_PER_TURN;

/// What a failed accept says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptFailure {
    /// It was about one connection, which is gone, or about nothing: the next may be fine.
    Transient,
    /// There is no descriptor for a connection.
    NoDescriptor,
    /// The listener cannot accept, now or at all.
    Listener,
}

impl AcceptFailure {
    /// Reads an error of accept(2).
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

    /// Whether an accept stopped because descriptors ran out.
    pub(crate) fn is_descriptor_shortage(error: &io::Error) -> bool {
        Errno::from_io_error(error)
            .is_some_and(|errno| AcceptFailure::of(errno) == AcceptFailure::NoDescriptor)
    }
}

/// Accepts the oldest connection that waits at a listener, if one does. An error that is about descriptors says that
/// one waits and there is none for it.
pub(crate) fn accept_now(listener: impl AsFd, flags: SocketFlags) -> io::Result<Option<OwnedFd>> {
    // Whoever holds the listener as well may have made it a blocking one since.
    rustix::io::ioctl_fionbio(&listener, true)?;
    for _ in 0..ACCEPTS_PER_TURN {
        match rustix::net::accept_with(&listener, flags) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => match AcceptFailure::of(error) {
                // The next one may be fine.
                AcceptFailure::Transient => {}
                AcceptFailure::NoDescriptor if !has_waiting_connection(&listener) => return Ok(None),
                AcceptFailure::NoDescriptor | AcceptFailure::Listener => return Err(error.into()),
            },
        }
    }
    Ok(None)
}

/// Whether a connection waits at a listener. (An accept does not tell when descriptors have run out: it
/// asks for one first.)
pub(crate) fn has_waiting_connection(listener: impl AsFd) -> bool {
    let mut poll_fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    poll(&mut poll_fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

/// A descriptor to give up when there are no others.
#[derive(Debug)]
pub(crate) struct ReserveDescriptor(Option<OwnedFd>);

impl ReserveDescriptor {
    pub(crate) fn new() -> Self {
        ReserveDescriptor(File::open("/dev/null").ok().map(OwnedFd::from))
    }

    /// Accepts the oldest connection that waits at a listener, and closes it.
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

    /// Row 3.27: what is not known to pass is not tried again at once.
    #[test]
    fn an_unknown_error_is_the_listeners() {
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
