//! Access to the socket past the channel, for copies that the system makes.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::{Stream, StreamState};
use crate::system_errors::system_error;
use crate::tcl::Interest;
use crate::thread_sockets::ShardSocket;

impl Stream {
    fn connected(&self) -> Result<ShardSocket, i32> {
        match *self.state.borrow() {
            StreamState::Connected(socket) => Ok(socket),
            _ => Err(libc::ENOTCONN),
        }
    }

    /// Whether the system can copy from or to the socket.
    pub(crate) fn prepare_direct_copy(&self) -> Result<(), i32> {
        self.with_nonblocking(|_| Ok(()))
    }

    /// Whether bytes are, or may be, received ahead of the script.
    pub(crate) fn receives_ahead(&self) -> bool {
        self.with_read_ahead(|read_ahead| {
            read_ahead.as_ref().is_some_and(|ahead| ahead.has_input() || ahead.wants_more())
        })
    }

    /// Calls `act` with the descriptor of the connected socket, which does not block: sendfile(2) and splice(2) have no
    /// flag for it. A child that has the socket may change that at any time. The drivers work with both.
    pub(crate) fn with_nonblocking<R>(
        &self,
        act: impl FnOnce(BorrowedFd<'_>) -> Result<R, i32>,
    ) -> Result<R, i32> {
        let act = |socket: BorrowedFd<'_>| {
            let flags = fcntl_getfl(socket).map_err(Errno::raw_os_error)?;
            if !flags.contains(OFlags::NONBLOCK) {
                fcntl_setfl(socket, flags | OFlags::NONBLOCK).map_err(Errno::raw_os_error)?;
            }
            act(socket)
        };
        self.sockets().with_descriptor(self.connected()?, act).map_err(|error| system_error(&error))?
    }

    /// Receives what the system has.
    pub(crate) fn receive_now(&self, into: &mut [u8]) -> Result<usize, i32> {
        match self.sockets().receive(self.connected()?, into) {
            // As for a read of the channel: the end of the stream.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
            other => other.map_err(|error| system_error(&error)),
        }
    }

    /// Sends what the system accepts, within the send cap.
    pub(crate) fn send_now(&self, bytes: &[u8]) -> Result<usize, i32> {
        let room = self.room_to_send(bytes.len())?.min(bytes.len());
        if room == 0 {
            return Err(libc::EAGAIN);
        }
        let sent = self.sockets().send(self.connected()?, &bytes[..room]);
        let sent = sent.map_err(|error| system_error(&error))?;
        self.sent_directly(sent);
        Ok(sent)
    }

    /// Bytes that may be sent now, at most `wanted`; 0: wait until the socket is writable.
    pub(crate) fn room_to_send(&self, wanted: usize) -> Result<usize, i32> {
        Ok(self.send_room(self.connected()?, wanted).min(wanted))
    }

    /// Counts bytes that were sent past the channel.
    pub(crate) fn sent_directly(&self, count: usize) {
        self.unsent_max.set(self.unsent_max.get().saturating_add(u32::try_from(count).unwrap_or(u32::MAX)));
    }

    /// The system has rejected a send past the driver.
    pub(crate) fn send_was_rejected(&self) {
        if let Ok(socket) = self.connected() {
            self.sockets().forget_writable(socket);
        }
    }

    /// Waits for the socket without running scripts.
    pub(crate) fn wait(&self, direction: Interest) -> Result<(), i32> {
        self.wait_until(self.connected()?, direction)
    }
}
