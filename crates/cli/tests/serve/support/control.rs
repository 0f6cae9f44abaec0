//! One side of a hand-over, played by the test: lines and descriptors over the control socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};
use socket2::SockRef;

use super::HANG;

/// Descriptors that travel with one message here.
const SPACE: usize = rustix::cmsg_space!(ScmRights(64));

/// One end of a conversation.
pub(crate) struct Control(OwnedFd);

impl Control {
    fn new(socket: OwnedFd) -> Control {
        let options = SockRef::from(&socket);
        options.set_read_timeout(Some(HANG)).expect("a socket takes a timeout");
        Control(socket)
    }

    fn socket() -> OwnedFd {
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket")
    }

    /// Knocks at a server.
    pub(crate) fn knock(path: &Path) -> Control {
        let socket = Self::socket();
        connect(&socket, &SocketAddrUnix::new(path).expect("a short path"))
            .expect("the server listens there");
        Self::new(socket)
    }

    /// A door of the test's own.
    pub(crate) fn door(path: &Path) -> OwnedFd {
        let socket = Self::socket();
        bind(&socket, &SocketAddrUnix::new(path).expect("a short path")).expect("nobody is there");
        listen(&socket, 8).expect("it listens");
        socket
    }

    /// The next that knocks at a door.
    pub(crate) fn open(door: &OwnedFd) -> Control {
        Self::new(accept_with(door, SocketFlags::CLOEXEC).expect("somebody knocks"))
    }

    /// Says a line.
    pub(crate) fn say(&self, line: &str) {
        self.give(line, &[]);
    }

    /// Says a line with descriptors.
    pub(crate) fn give(&self, line: &str, descriptors: &[BorrowedFd<'_>]) {
        let line = format!("{line}\n");
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
        sendmsg(&self.0, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::NOSIGNAL)
            .expect("the server hears");
    }

    /// The next line, and what came with it; empty at the end.
    #[track_caller]
    pub(crate) fn hear(&self) -> (String, Vec<OwnedFd>) {
        let mut bytes = [0; 1024];
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
                .expect("the server speaks, or ends");
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        let descriptors = rights.flatten().collect();
        (String::from_utf8(bytes[..received.bytes].to_vec()).expect("it is text"), descriptors)
    }

    /// Demands that exactly this line comes next.
    #[track_caller]
    pub(crate) fn expect(&self, line: &str) -> Vec<OwnedFd> {
        let (heard, descriptors) = self.hear();
        assert_eq!(heard, format!("{line}\n"));
        descriptors
    }

    /// Demands that the other side leaves without another word.
    #[track_caller]
    pub(crate) fn expect_end(&self) {
        assert_eq!(self.hear().0, "");
    }

    /// Takes a server's offer of that many listeners, which all fit into one message.
    #[track_caller]
    pub(crate) fn take_offer(&self, count: usize) -> Vec<OwnedFd> {
        self.say("hand-over 1");
        let listeners = self.expect(&format!("listeners http {count}"));
        assert_eq!(listeners.len(), count);
        self.expect(&format!("end {count}"));
        listeners
    }

    /// Makes a server's offer.
    pub(crate) fn make_offer(&self, listener: &impl AsFd) {
        self.expect("hand-over 1");
        self.give("listeners http 1", &[listener.as_fd()]);
        self.say("end 1");
    }
}
