//! A UDP socket as a channel: one datagram per read and per write.
//!
//! ```text
//!  read ─▶ input: a datagram ─▶ input: "would block", which ends the read ─▶ watch: the read is over
//! ```
//!
//! Tcl's channels are streams: a read goes on until the driver would block, and what a script leaves is in the channel's
//! buffer. So after a datagram the driver would block until the read is over and the buffer is empty. Tcl reports the
//! end of every read by a call of `watch`.
//!
//! Nothing is queued for sending: Tcl would merge datagrams that wait. A datagram for which the system has no room is
//! refused with an error on a nonblocking channel.

mod datagram_options;
mod multicast;
mod open;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use self::open::{DatagramOpenError, DatagramOptions};

use self::multicast::Membership;
use self::open::{AddressScope, BoundSocket};
use crate::readiness::Readiness;
use crate::system_errors::system_error;
use crate::tcl::{
    Channel, ChannelDriver, ChannelType, CloseDirection, Interest, Interp, OptionError, OptionList,
    ThreadAction,
};
use crate::thread_sockets::{ShardSocket, SocketChannel, ThreadSockets};
use crate::trace::{self, TraceEvent};

/// Size of a channel's buffers by default: more than the longest datagram without extension headers (65,527 bytes over
/// IPv6), so a read gets it at once, and a full output buffer is one that the system refuses.
const BUFFER_SIZE: &std::ffi::CStr = c"65536";

/// No datagram is longer.
const DATAGRAM_SIZE_MAX: usize = 65_535;

/// The destination of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remote {
    /// The socket is connected: it receives from this address only, and learns of refused datagrams.
    Connected(SocketAddr),
    /// The socket receives from all addresses.
    Destination(SocketAddr),
}

impl Remote {
    fn address(self) -> SocketAddr {
        match self {
            Remote::Connected(address) | Remote::Destination(address) => address,
        }
    }
}

#[derive(Debug)]
enum DatagramState {
    /// No socket yet, or none any more.
    Closed,
    Open(ShardSocket),
    /// On its way to another thread.
    Moving(OwnedFd),
}

/// The part of a datagram that did not fit into Tcl's buffer.
#[derive(Debug, Default)]
struct DatagramRest {
    bytes: Vec<u8>,
    start: usize,
}

pub(crate) struct DatagramSocket {
    state: RefCell<DatagramState>,
    scope: AddressScope,
    readiness: Readiness,
    channel: Cell<Option<Channel>>,
    is_blocking: Cell<bool>,
    remote: Cell<Option<Remote>>,
    /// The sender of the last datagram that was received.
    sender: Cell<Option<SocketAddr>>,
    rest: RefCell<DatagramRest>,
    /// The next input would block, because the current read has its datagram.
    ends_read: Cell<bool>,
    /// The error of a datagram sent before, until a write or `-error` reports it.
    error: Cell<i32>,
    memberships: RefCell<Vec<Membership>>,
    is_closing: Cell<bool>,
    /// The script of the trace did not open it.
    is_traced: bool,
}

impl DatagramSocket {
    /// Opens a socket and its channel.
    pub(crate) fn open(
        sockets: &Rc<ThreadSockets>,
        options: &DatagramOptions,
    ) -> Result<Channel, DatagramOpenError> {
        let BoundSocket { descriptor, scope, peer } = open::open(options)?;
        let socket = Rc::new(DatagramSocket {
            state: RefCell::new(DatagramState::Moving(descriptor)),
            scope,
            readiness: Readiness::default(),
            channel: Cell::new(None),
            is_blocking: Cell::new(true),
            remote: Cell::new(peer.map(Remote::Connected)),
            sender: Cell::new(None),
            rest: RefCell::default(),
            ends_read: Cell::new(false),
            error: Cell::new(0),
            memberships: RefCell::default(),
            is_closing: Cell::new(false),
            is_traced: trace::may_trace_new_channel(),
        });
        if let Err(error) = socket.enter(sockets) {
            socket.leave();
            return Err(DatagramOpenError::System(system_error(&error)));
        }
        let channel = Rc::clone(&socket).into_channel();
        socket.trace(TraceEvent::Open, || socket.address_text());
        Ok(channel)
    }

    fn into_channel(self: Rc<Self>) -> Channel {
        static TYPE: OnceLock<ChannelType> = OnceLock::new();
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("udp{:x}", NEXT.fetch_add(1, Ordering::Relaxed));
        let channel_type = *TYPE.get_or_init(|| ChannelType::new::<DatagramSocket>(c"udp"));
        let channel = Channel::create(channel_type, &name, Rc::clone(&self), Interest::BOTH);
        self.channel.set(Some(channel));
        channel.set_option(c"-translation", c"binary");
        channel.set_option(c"-buffering", c"none");
        channel.set_option(c"-buffersize", BUFFER_SIZE);
        channel
    }

    /// Adds the socket to this thread's shard. After an error the channel is in the thread without a socket.
    fn enter(self: &Rc<Self>, sockets: &Rc<ThreadSockets>) -> io::Result<()> {
        let key = sockets.insert(SocketChannel::Datagram(Rc::clone(self)));
        self.readiness.enter(key);
        crate::stats::socket_opened();
        let state = self.state.replace(DatagramState::Closed);
        if let DatagramState::Moving(descriptor) = state {
            let socket = sockets.attach_datagram_socket(descriptor, key)?;
            self.state.replace(DatagramState::Open(socket));
        }
        Ok(())
    }

    fn leave(&self) {
        if let Some(key) = self.readiness.leave() {
            ThreadSockets::of_channel().remove(key);
            crate::stats::socket_closed();
        }
    }

    fn trace(&self, event: TraceEvent, detail: impl FnOnce() -> String) {
        if trace::is_on() && self.is_traced {
            trace::record(event, self.channel.get(), detail);
        }
    }

    fn socket(&self) -> Result<ShardSocket, i32> {
        match *self.state.borrow() {
            DatagramState::Open(socket) => Ok(socket),
            _ => Err(libc::ENOTCONN),
        }
    }

    // ---- Readiness ----

    pub(crate) fn on_ready(&self, directions: Interest) {
        self.readiness.reported(directions);
        self.readiness.set_ready(directions);
        self.interest_changed();
    }

    /// The driver cannot use the socket: reads and writes report that.
    pub(crate) fn on_broken(&self) {
        self.state.replace(DatagramState::Closed);
        self.readiness.set_ready(Interest::BOTH);
    }

    pub(crate) fn interest_changed(&self) {
        self.readiness.schedule_check();
    }

    /// The directions to request from the shard.
    pub(crate) fn next_interest(&self) -> Option<(ShardSocket, Interest)> {
        self.readiness.begin_check();
        let Ok(socket) = self.socket() else {
            self.readiness.set_ready(Interest::BOTH);
            return None;
        };
        if !self.rest.borrow().bytes.is_empty() {
            self.readiness.set_ready(Interest::READABLE);
        }
        let wanted = self.readiness.take_requests(Interest::NONE, Interest::NONE);
        (!wanted.is_none()).then_some((socket, wanted))
    }

    /// The readiness to report to Tcl.
    pub(crate) fn next_event(&self) -> Option<(Channel, Interest)> {
        let ready = self.readiness.take_ready();
        self.channel.get().filter(|_| !ready.is_none()).map(|channel| (channel, ready))
    }

    fn wait_until(&self, socket: ShardSocket, directions: Interest) -> Result<(), i32> {
        let waited = ThreadSockets::of_channel().wait_for_socket(socket, directions);
        waited.map_err(|error| system_error(&error))
    }

    // ---- Reading ----

    /// Receives a datagram, or moves the rest of one. `None`: it was an empty one.
    fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let socket = self.socket().map_err(io::Error::from_raw_os_error)?;
        let sockets = ThreadSockets::of_channel();
        if into.len() >= DATAGRAM_SIZE_MAX {
            let datagram = sockets.receive_from(socket, into)?;
            self.sender.set(datagram.from);
            self.ends_read.set(datagram.len > 0);
            return Ok((datagram.len > 0).then_some(datagram.len));
        }
        let mut bytes = vec![0; DATAGRAM_SIZE_MAX];
        let datagram = sockets.receive_from(socket, &mut bytes)?;
        self.sender.set(datagram.from);
        bytes.truncate(datagram.len);
        self.rest.replace(DatagramRest { bytes, start: 0 });
        Ok(self.read_rest(into))
    }

    fn read_rest(&self, into: &mut [u8]) -> Option<usize> {
        let mut rest = self.rest.borrow_mut();
        let unread = &rest.bytes[rest.start..];
        if unread.is_empty() {
            return None;
        }
        let count = unread.len().min(into.len());
        into[..count].copy_from_slice(&unread[..count]);
        rest.start += count;
        if rest.start == rest.bytes.len() {
            *rest = DatagramRest::default();
            self.ends_read.set(true);
        }
        Some(count)
    }

    /// The error of a datagram sent before: of a refused one, for example. It is reported once.
    fn take_error(&self) -> i32 {
        let kept = self.error.replace(0);
        if kept != 0 {
            return kept;
        }
        let Ok(socket) = self.socket() else { return 0 };
        let pending = ThreadSockets::of_channel()
            .with_descriptor(socket, |descriptor| rustix::net::sockopt::socket_error(descriptor));
        match pending {
            Ok(Ok(Err(error))) => error.raw_os_error(),
            _ => 0,
        }
    }
}

/// Whether an error of a receive means the socket itself, and not a datagram sent before.
fn is_of_socket(error: i32) -> bool {
    matches!(
        error,
        libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::EFAULT | libc::ENOTCONN | libc::ENOMEM
    )
}

impl ChannelDriver for DatagramSocket {
    fn begin_close(&self) {
        self.is_closing.set(true);
    }

    fn unclosed_channel(&self) -> Option<Channel> {
        self.channel.get().filter(|_| !self.is_closing.get())
    }

    fn close(self: Rc<Self>) -> Result<(), i32> {
        self.trace(TraceEvent::Close, String::new);
        if let DatagramState::Open(socket) = self.state.replace(DatagramState::Closed) {
            ThreadSockets::of_channel().close(socket);
        }
        self.channel.set(None);
        self.leave();
        Ok(())
    }

    fn close_direction(&self, _: CloseDirection) -> Result<(), i32> {
        Err(libc::EINVAL)
    }

    fn input(&self, into: &mut [u8]) -> Result<usize, i32> {
        if let Some(count) = self.read_rest(into) {
            return Ok(count);
        }
        if self.ends_read.replace(false) {
            return Err(libc::EAGAIN);
        }
        loop {
            match self.receive(into) {
                Ok(Some(count)) => return Ok(count),
                // No bytes would be the end of the stream; a script sees the sender change.
                Ok(None) if !self.is_blocking.get() => return Err(libc::EAGAIN),
                Ok(None) => {}
                Err(error) => match system_error(&error) {
                    libc::EAGAIN if self.is_blocking.get() => {
                        self.wait_until(self.socket()?, Interest::READABLE)?;
                    }
                    libc::EAGAIN => return Err(libc::EAGAIN),
                    error if is_of_socket(error) || self.is_blocking.get() => return Err(error),
                    error => {
                        self.trace(TraceEvent::Error, || crate::tcl::error_text(error));
                        self.error.set(error);
                    }
                },
            }
        }
    }

    fn output(&self, from: &[u8]) -> Result<usize, i32> {
        let socket = self.socket()?;
        if from.is_empty() {
            return Ok(0);
        }
        // A full buffer may be the first part of a longer datagram.
        if self.channel.get().is_some_and(|channel| from.len() >= channel.buffer_size()) {
            return Err(libc::EMSGSIZE);
        }
        let kept = self.error.replace(0);
        if kept != 0 {
            return Err(kept);
        }
        let to = match self.remote.get() {
            None => return Err(libc::EDESTADDRREQ),
            Some(Remote::Connected(_)) => None,
            Some(Remote::Destination(address)) => Some(address),
        };
        loop {
            match ThreadSockets::of_channel().send_to(socket, from, to) {
                Ok(()) => return Ok(from.len()),
                Err(error) => match system_error(&error) {
                    libc::EAGAIN if self.is_blocking.get() => self.wait_until(socket, Interest::WRITABLE)?,
                    // Tcl would keep it, and merge it with the next one.
                    libc::EAGAIN => return Err(libc::ENOBUFS),
                    error => return Err(error),
                },
            }
        }
    }

    fn set_option(&self, name: &str, value: &str) -> Result<(), OptionError> {
        self.set_datagram_option(name, value)
    }

    fn get_option(
        &self,
        interp: Option<Interp>,
        name: Option<&str>,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        match name {
            Some(name) => self.append_option(interp, name, into),
            None => self.append_all_options(interp, into),
        }
    }

    fn watch(self: Rc<Self>, interest: Interest) {
        if !interest.is_none() {
            self.enter_when_lost();
        }
        // A read is over; the next one gets the next datagram, unless a script has left bytes of this one.
        if self.channel.get().is_none_or(|channel| channel.input_buffered() == 0) {
            self.ends_read.set(false);
        }
        self.readiness.watch(interest);
    }

    fn descriptor(&self) -> Option<RawFd> {
        let socket = self.socket().ok()?;
        let sockets = ThreadSockets::of_channel();
        sockets.with_descriptor(socket, |descriptor| descriptor.as_fd().as_raw_fd()).ok()
    }

    fn set_blocking(&self, blocking: bool) -> Result<(), i32> {
        self.is_blocking.set(blocking);
        Ok(())
    }

    fn change_thread(self: Rc<Self>, action: ThreadAction) {
        match action {
            // Tcl takes a channel out of its thread before it closes it.
            ThreadAction::Remove if self.is_closing.get() => {}
            ThreadAction::Remove => {
                self.trace(TraceEvent::Leave, String::new);
                let state = self.state.replace(DatagramState::Closed);
                if let DatagramState::Open(socket) = state
                    && let Ok(descriptor) = ThreadSockets::of_channel().detach(socket)
                {
                    self.state.replace(DatagramState::Moving(descriptor));
                }
                self.leave();
            }
            ThreadAction::Insert => self.enter_thread(),
        }
    }
}

impl DatagramSocket {
    fn enter_thread(self: Rc<Self>) {
        if self.readiness.key().is_some() {
            // A new channel: its socket is here already.
            return;
        }
        // Without its socket the channel reports an error to reads and writes.
        match ThreadSockets::get().and_then(|sockets| self.enter(&sockets)) {
            Ok(()) => self.trace(TraceEvent::Enter, String::new),
            Err(_) => {
                self.state.replace(DatagramState::Closed);
                self.trace(TraceEvent::Error, || "lost in the move to another thread".into());
            }
        }
        self.interest_changed();
    }

    /// Makes a lost channel known to the thread, if that could not have sockets before, so that its scripts run.
    fn enter_when_lost(self: &Rc<Self>) {
        let is_lost = self.readiness.key().is_none() && matches!(*self.state.borrow(), DatagramState::Closed);
        if is_lost
            && !self.is_closing.get()
            && let Ok(sockets) = ThreadSockets::get()
        {
            // It has no socket that could fail to enter.
            let _ = self.enter(&sockets);
        }
    }
}
