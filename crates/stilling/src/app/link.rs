//! One connection to a process: blocking, with a deadline for each wait.
//!
//! The deadline is kept by the socket's own timeouts, which are set when the connection is made and changed only when
//! a wait begins much later than the first: an exchange of two system calls stays one of two.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use stilling_wire::http1::{DecodeError, Fault};

use super::limits::LISTENER_LOOK;

/// Why an exchange did not come to its end.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A kept connection was dead before anything was seen of an answer.
    Stale {
        /// Nothing of the request had been taken either.
        nothing_sent: bool,
    },
    /// The deadline has passed.
    Late,
    /// The process closed the connection, or the system did.
    Lost(io::Error),
    /// What the process said is not HTTP, or more than is taken.
    Garbage(DecodeError),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Stale { .. } => f.write_str("a kept connection was closed instead of an answer"),
            Trouble::Late => f.write_str("no answer in time"),
            Trouble::Lost(error) => write!(f, "no answer: {error}"),
            Trouble::Garbage(error) => write!(f, "an answer that is not HTTP: {error}"),
        }
    }
}

impl From<DecodeError> for Trouble {
    fn from(error: DecodeError) -> Trouble {
        match error.fault() {
            Fault::Truncated => Trouble::Lost(ErrorKind::UnexpectedEof.into()),
            _ => Trouble::Garbage(error),
        }
    }
}

pub(super) struct Link {
    stream: UnixStream,
    /// Exchanges that it has carried before.
    pub(super) used: u64,
    /// Whether the process has taken anything of the present exchange: from then on a failure may hide an answer.
    has_sent: bool,
    /// What the socket's timeouts are.
    armed: Duration,
    /// When the present wait for the process must be over.
    until: Instant,
}

impl Link {
    pub(super) fn connect(address: &SocketAddrUnix, timeout: Duration) -> io::Result<Link> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Also a connect may wait: for room in the backlog of a process that does not accept.
        set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
        connect(&socket, address)?;
        Ok(Link {
            stream: socket.into(),
            used: 0,
            has_sent: false,
            armed: timeout,
            until: Instant::now() + timeout,
        })
    }

    /// Another exchange begins, for which the process has so long until its first sign of life.
    pub(super) fn begin(&mut self, timeout: Duration) {
        self.has_sent = false;
        self.give(timeout);
    }

    /// From now on the process has so long until the next sign of life.
    pub(super) fn give(&mut self, timeout: Duration) {
        self.until = Instant::now() + timeout;
    }

    /// Sends all of the parts.
    pub(super) fn send(&mut self, mut parts: &mut [IoSlice<'_>]) -> Result<(), Trouble> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.stream.write_vectored(parts) {
                Ok(count) => {
                    self.has_sent = true;
                    IoSlice::advance_slices(&mut parts, count);
                    if !parts.is_empty() {
                        self.arm()?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.judge(error)),
            }
        }
        Ok(())
    }

    /// Receives into `room`; 0 is the end.
    pub(super) fn receive(&mut self, room: &mut [u8]) -> Result<usize, Trouble> {
        loop {
            match self.stream.read(room) {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.judge(error)),
            }
        }
    }

    /// Whether something is there to be received within `patience`.
    pub(super) fn is_readable(&self, patience: Duration) -> bool {
        let patience = Timespec::try_from(patience).ok();
        poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], patience.as_ref()).is_ok_and(|count| count > 0)
    }

    /// Waits for something to receive, as long as there is time and `is_wanted`, which is asked again and again.
    /// Returns whether it is still wanted.
    pub(super) fn wait(&self, is_wanted: impl Fn() -> bool) -> bool {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_readable(left.min(LISTENER_LOOK)) {
                return true;
            }
            if !is_wanted() {
                return false;
            }
        }
    }

    /// Makes the socket's timeouts what is left until the deadline, unless they are about that.
    pub(super) fn arm(&mut self) -> Result<(), Trouble> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Trouble::Late);
        }
        if left.abs_diff(self.armed) > self.armed / 16 {
            let set = self.stream.set_read_timeout(Some(left));
            set.and_then(|()| self.stream.set_write_timeout(Some(left))).map_err(Trouble::Lost)?;
            self.armed = left;
        }
        Ok(())
    }

    fn judge(&self, error: io::Error) -> Trouble {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Trouble::Late,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset if self.used > 0 => {
                Trouble::Stale { nothing_sent: !self.has_sent }
            }
            _ => Trouble::Lost(error),
        }
    }
}
