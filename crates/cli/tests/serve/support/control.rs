//! One side of a hand-over, simulated by the test: lines and descriptors over the control socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};
use socket2::SockRef;

use super::{HANG_TIMEOUT, eventually};

const ANCILLARY_SIZE: usize = rustix::cmsg_space!(ScmRights(64));

pub(crate) struct ControlPeer(OwnedFd);

impl ControlPeer {
    fn new(socket: OwnedFd) -> ControlPeer {
        let options = SockRef::from(&socket);
        options.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes a timeout");
        ControlPeer(socket)
    }

    fn socket() -> OwnedFd {
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket")
    }

    #[track_caller]
    pub(crate) fn connect_to(path: &Path) -> ControlPeer {
        Self::try_connect(path).expect("the server listens there")
    }

    fn try_connect(path: &Path) -> Option<ControlPeer> {
        let socket = Self::socket();
        connect(&socket, &SocketAddrUnix::new(path).expect("a short path")).ok()?;
        Some(Self::new(socket))
    }

    pub(crate) fn is_offered(path: &Path) -> bool {
        let Some(control) = Self::try_connect(path) else { return false };
        let offered = control.try_send("hand-over 2") && control.receive().0.starts_with("listeners ");
        if offered {
            assert!(control.receive().0.starts_with("end "));
            control.refuse();
        }
        offered
    }

    /// Connects until the server has noticed the end of the previous successor, and takes its offer: `count` listeners,
    /// which fit into one message. (A copy of the previous descriptor may stay open for a moment in a process that
    /// another test is starting.)
    #[track_caller]
    pub(crate) fn request_offer(path: &Path, count: usize) -> (ControlPeer, Vec<OwnedFd>) {
        eventually("the server has time", || {
            let control = Self::connect_to(path);
            if !control.try_send("hand-over 2") {
                return None;
            }
            let (line, listeners) = control.receive();
            if line == "refused another server is taking over now\n" {
                return None;
            }
            assert_eq!((line, listeners.len()), (format!("listeners http {count}\n"), count));
            control.expect(&format!("end {count}"));
            Some((control, listeners))
        })
    }

    /// Refuses and disconnects: the server then accepts other successors.
    pub(crate) fn refuse(self) {
        self.send("refused enough");
        self.expect("refused the other server refused: enough");
        self.expect_end();
    }

    pub(crate) fn control_socket(path: &Path) -> OwnedFd {
        let socket = Self::socket();
        bind(&socket, &SocketAddrUnix::new(path).expect("a short path")).expect("nobody is there");
        listen(&socket, 8).expect("it listens");
        socket
    }

    pub(crate) fn accept(control_socket: &OwnedFd) -> ControlPeer {
        Self::new(accept_with(control_socket, SocketFlags::CLOEXEC).expect("somebody knocks"))
    }

    pub(crate) fn send(&self, line: &str) {
        self.send_descriptors(line, &[]);
    }

    fn try_send(&self, line: &str) -> bool {
        rustix::net::send(&self.0, format!("{line}\n").as_bytes(), SendFlags::NOSIGNAL).is_ok()
    }

    pub(crate) fn send_descriptors(&self, line: &str, descriptors: &[BorrowedFd<'_>]) {
        let line = format!("{line}\n");
        let mut space = [MaybeUninit::uninit(); ANCILLARY_SIZE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
        sendmsg(&self.0, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::NOSIGNAL)
            .expect("the server hears");
    }

    /// The next line and its descriptors; empty at the end.
    #[track_caller]
    pub(crate) fn receive(&self) -> (String, Vec<OwnedFd>) {
        let mut bytes = [0; 1024];
        let mut space = [MaybeUninit::uninit(); ANCILLARY_SIZE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut receive = || {
            // A socket with a receive timeout reports signals of the process as an error (signal(7)).
            let receive = || {
                recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
            };
            rustix::io::retry_on_intr(receive).map(|received| received.bytes)
        };
        // If the peer closed with unread bytes, the reset is reported first, then its last data.
        let received = match receive() {
            Err(Errno::CONNRESET) => receive(),
            outcome => outcome,
        };
        let received = received.expect("the server speaks, or ends");
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        let descriptors = rights.flatten().collect();
        (String::from_utf8(bytes[..received].to_vec()).expect("it is text"), descriptors)
    }

    /// Checks that exactly this line comes next.
    #[track_caller]
    pub(crate) fn expect(&self, line: &str) -> Vec<OwnedFd> {
        let (received_line, descriptors) = self.receive();
        assert_eq!(received_line, format!("{line}\n"));
        descriptors
    }

    /// Checks that the other side closes without another line.
    #[track_caller]
    pub(crate) fn expect_end(&self) {
        assert_eq!(self.receive().0, "");
    }

    /// The same, optionally after this line.
    #[track_caller]
    pub(crate) fn expect_end_perhaps_after(&self, line: &str) {
        let (received_line, _) = self.receive();
        if received_line == format!("{line}\n") {
            return self.expect_end();
        }
        assert_eq!(received_line, "");
    }

    pub(crate) fn make_offer(&self, listener: &impl AsFd) {
        self.expect("hand-over 2");
        self.send_descriptors("listeners http 1", &[listener.as_fd()]);
        self.send("end 1");
    }
}
