//! One connection between two servers: messages with descriptors, each in bounded time.
//!
//! It is a sequenced-packet socket: the kernel keeps messages and their descriptors apart, so there is no framing
//! that could fail between two messages. When a process ends, for whatever reason, the kernel closes its end, and the
//! other side detects that.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};

use stilling_engine::driver::peer::{self, PeerCredentials};

use super::error::HandOverError;
use super::limits::{DESCRIPTORS_PER_MESSAGE, MESSAGE_SIZE_MAX};
use super::message::HandoverMessage;

/// Flags of every hand-over socket: it never blocks and is not inherited by children.
pub(super) const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

#[derive(Debug)]
pub(super) enum Incoming {
    Received(HandoverMessage, Vec<OwnedFd>),
    /// The other process has ended or closed the connection.
    Ended,
    /// Nothing yet.
    Nothing,
}

/// The process at the other end, for display.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerProcess(Option<NonZeroU32>);

impl fmt::Display for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "process {number}"),
            None => f.write_str("a process of another namespace"),
        }
    }
}

#[derive(Debug)]
pub(super) struct ControlConnection(OwnedFd);

impl ControlConnection {
    pub(super) fn accepted(socket: OwnedFd) -> ControlConnection {
        ControlConnection(socket)
    }

    /// Connects to the socket at `path`; waits for room in its backlog until `deadline`. `None`: nothing listens
    /// there.
    pub(super) fn connect(
        path: &Path,
        deadline: Instant,
    ) -> Result<Option<ControlConnection>, HandOverError> {
        let doing = || format!("connect to {}", path.display());
        let socket = packet_socket()?;
        let address = SocketAddrUnix::new(path).map_err(HandOverError::system(doing()))?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => return Ok(Some(ControlConnection(socket))),
                Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(None),
                Err(Errno::INTR) => {}
                // The backlog is full, and a Unix socket does not report when there is room.
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(CONNECT_RETRY_INTERVAL),
                Err(error) => return Err(HandOverError::system(doing())(error)),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn pair() -> (ControlConnection, ControlConnection) {
        let types = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (one, other) = rustix::net::socketpair(types.0, types.1, FLAGS, None).unwrap();
        (ControlConnection(one), ControlConnection(other))
    }

    pub(super) fn peer(&self) -> Result<PeerCredentials, HandOverError> {
        peer::peer_credentials(&self.0)
            .map_err(HandOverError::system("get the peer credentials of the control socket"))
    }

    /// Refuses a process of another user.
    pub(super) fn check_peer(&self) -> Result<PeerProcess, HandOverError> {
        let (peer, user) = (self.peer()?, rustix::process::geteuid().as_raw());
        if peer.uid != user {
            return Err(HandOverError::ForeignPeer { peer: peer.uid, user });
        }
        Ok(PeerProcess(peer.pid))
    }

    /// Sends a message with at most [`DESCRIPTORS_PER_MESSAGE`] descriptors by `deadline`.
    pub(super) fn send(
        &self,
        message: &HandoverMessage,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), HandOverError> {
        let line = message.to_line();
        let mut space = [MaybeUninit::uninit(); SPACE];
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fits = descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(fits, "more than {DESCRIPTORS_PER_MESSAGE} descriptors in one message");
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.0, &[IoSlice::new(line.as_bytes())], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if wait_ready(&self.0, PollFlags::OUT, deadline)? => {}
                Err(Errno::AGAIN) => {
                    return Err(HandOverError::System {
                        doing: format!("send `{message}`"),
                        error: std::io::ErrorKind::TimedOut.into(),
                    });
                }
                Err(error) => return Err(HandOverError::system(format!("send `{message}`"))(error)),
            }
        }
    }

    /// Receives a message without waiting. `expected` names the expected message in errors.
    pub(super) fn try_receive(&self, expected: &'static str) -> Result<Incoming, HandOverError> {
        let mut bytes = [0; MESSAGE_SIZE_MAX];
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut descriptors = Vec::new();
        let received = loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(received) => {
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(rights) = message {
                            descriptors.extend(rights);
                        }
                    }
                    break received;
                }
                Err(Errno::AGAIN) => return Ok(Incoming::Nothing),
                // The other side closed with unread data. The error is reported once; messages that it sent before
                // can still be read, then the end.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(error) => return Err(HandOverError::system("read from the control socket")(error)),
            }
        };
        if received.bytes == 0 && descriptors.is_empty() {
            return Ok(Incoming::Ended);
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            let error = Errno::MFILE;
            return Err(HandOverError::system("receive listeners: too few open files are allowed")(error));
        }
        let bytes = &bytes[..received.bytes];
        let expects = |message: &HandoverMessage| match message {
            HandoverMessage::Listeners { count } => *count,
            HandoverMessage::Exchanges { .. } => 1,
            _ => 0,
        };
        match HandoverMessage::parse(bytes) {
            Ok(message)
                if !received.flags.contains(ReturnFlags::TRUNC) && expects(&message) == descriptors.len() =>
            {
                Ok(Incoming::Received(message, descriptors))
            }
            _ => {
                let received = bytes.escape_ascii();
                let got = format!("\"{received}\" with {} descriptors", descriptors.len());
                Err(HandOverError::Unexpected { expected, got })
            }
        }
    }

    /// Waits for the next message until `deadline`, which is `timeout` after the beginning of the step.
    pub(super) fn receive(
        &self,
        expected: &'static str,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Incoming, HandOverError> {
        loop {
            match self.try_receive(expected)? {
                Incoming::Nothing => {}
                incoming => return Ok(incoming),
            }
            if !wait_ready(&self.0, PollFlags::IN, deadline)? {
                return Err(HandOverError::TimedOut { expected, after: timeout });
            }
        }
    }
}

impl AsFd for ControlConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Delay between two tries to connect to a server with a full backlog.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Bytes of control data of a message with the most descriptors.
const SPACE: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE));

pub(super) fn packet_socket() -> Result<OwnedFd, HandOverError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
        .map_err(HandOverError::system("create a control socket"))
}

/// Waits for a descriptor. Returns false at `deadline`.
fn wait_ready(descriptor: &OwnedFd, flags: PollFlags, deadline: Instant) -> Result<bool, HandOverError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::new(descriptor, flags)], Some(&timespec(left))) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(HandOverError::system("wait for the control socket")(error)),
        }
    }
}

pub(super) fn timespec(span: Duration) -> Timespec {
    // Spans here are seconds; an overflow is as good as no timeout.
    Timespec::try_from(span).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

#[cfg(test)]
mod tests {
    use rustix::net::{recv, send};

    use super::*;

    fn test_deadline() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    /// Row 4.37: descriptors arrive with their message, up to the maximum.
    #[test]
    fn listeners_travel_with_their_message() {
        let (from, to) = ControlConnection::pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        let files = vec![file.as_fd(); DESCRIPTORS_PER_MESSAGE];
        let message = HandoverMessage::Listeners { count: DESCRIPTORS_PER_MESSAGE };
        from.send(&message, &files, test_deadline()).unwrap();
        from.send(&HandoverMessage::End { total: 64 }, &[], test_deadline()).unwrap();
        let incoming = to.receive("listeners", test_deadline(), Duration::ZERO).unwrap();
        let Incoming::Received(received, descriptors) = incoming else { panic!("{incoming:?}") };
        assert_eq!((received, descriptors.len()), (message, DESCRIPTORS_PER_MESSAGE));
        let closed_on_exec = rustix::io::fcntl_getfd(&descriptors[0]).unwrap();
        assert_eq!(closed_on_exec, rustix::io::FdFlags::CLOEXEC);
        assert!(matches!(
            to.try_receive("end"),
            Ok(Incoming::Received(HandoverMessage::End { total: 64 }, _))
        ));
        assert!(matches!(to.try_receive("more"), Ok(Incoming::Nothing)));
    }

    /// Row 4.37: a number of descriptors that does not fit the message, and a truncated message, are errors.
    #[test]
    fn descriptors_too_few_or_too_many_or_a_cut_line_are_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        for (line, descriptors) in
            [("listeners http 2\n", 1), ("listeners http 1\n", 0), ("ready\n", 1), ("end 1\n", 1)]
        {
            let (from, to) = ControlConnection::pair();
            let message = HandoverMessage::parse(line.as_bytes()).unwrap();
            from.send(&message, &vec![file.as_fd(); descriptors], test_deadline()).unwrap();
            let error = to.try_receive("something else").unwrap_err();
            assert!(matches!(error, HandOverError::Unexpected { .. }), "{error}");
        }
        let (from, to) = ControlConnection::pair();
        let long = format!("refused {}\n{}", "x".repeat(100), " ".repeat(MESSAGE_SIZE_MAX));
        send(&from.0, long.as_bytes(), SendFlags::empty()).unwrap();
        assert!(matches!(to.try_receive("ready"), Err(HandOverError::Unexpected { .. })));
    }

    /// Row 4.37: messages of a peer that left with unread data can still be read.
    #[test]
    fn messages_of_a_closed_peer_are_received() {
        let (from, to) = ControlConnection::pair();
        to.send(&HandoverMessage::PathTaken, &[], test_deadline()).unwrap();
        from.send(&HandoverMessage::Refused("too late".to_owned()), &[], test_deadline()).unwrap();
        drop(from);
        let incoming = to.receive("anything", test_deadline(), Duration::ZERO).unwrap();
        assert!(matches!(incoming, Incoming::Received(HandoverMessage::Refused(_), _)), "{incoming:?}");
        assert!(matches!(to.try_receive("anything"), Ok(Incoming::Ended)));
        assert!(to.send(&HandoverMessage::Ready, &[], test_deadline()).is_err());
    }

    /// Row 4.37: a peer that neither sends nor reads is waited for in bounded time.
    #[test]
    fn a_receive_from_a_silent_peer_times_out() {
        let (from, to) = ControlConnection::pair();
        let past = Instant::now();
        let error = to.receive("ready", past, Duration::from_secs(7)).unwrap_err();
        assert!(error.to_string().contains("`ready` within 7 seconds"), "{error}");
        let full = loop {
            if let Err(error) = from.send(&HandoverMessage::Ready, &[], past) {
                break error;
            }
        };
        assert!(full.to_string().starts_with("cannot send `ready`: timed out"), "{full}");
        assert_eq!(recv(&to.0, &mut [0; 16], RecvFlags::DONTWAIT).unwrap().0, 6);
    }
}
