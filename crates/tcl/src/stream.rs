//! A stream socket as a channel: outgoing or accepted.
//!
//! ```text
//!  LookingUp ──▶ Connecting ──▶ Connected
//!      │             │  next pair of addresses
//!      └─────────────┴────────▶ Failed(error)
//! ```
//!
//! Bytes go directly between the socket and the channel's buffers ("zero-byte" mode of IOCPSOCK): the shard only
//! reports readiness, once per request. So data that the kernel has is visible to a read at once.

mod direct;
mod host_connect;
mod moving;
pub(crate) mod stream_options;
mod stream_trace;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use stilling_engine::driver::Destination;

use self::host_connect::{EarlySwitches, HostConnect};
use crate::dialect::Dialect;
use crate::fcopy;
use crate::options::{set_unsent_mark, unsent_bytes, unsent_mark};
use crate::read_ahead::{BURST_BUFFER_SIZE, ReadAhead, ReceiveMode};
use crate::readiness::Readiness;
use crate::slab::SlabKey;
use crate::system_errors::{lacks_descriptors, system_error};
use crate::tcl::{
    Channel, ChannelDriver, CloseDirection, Interest, Interp, OptionError, OptionList, ThreadAction,
};
use crate::thread_sockets::{ShardSocket, SocketChannel, ThreadSockets};
use crate::trace::{self, TraceEvent};

/// A pair of addresses to try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectPair {
    pub(crate) to: SocketAddr,
    pub(crate) from: SocketAddr,
}

/// The pairs of a connect that have not been tried, in reverse order, and the one being tried.
#[derive(Debug)]
struct ConnectAttempts {
    rest: Vec<ConnectPair>,
    current: Option<ConnectPair>,
    switches: EarlySwitches,
}

#[derive(Debug)]
enum StreamState {
    /// No socket yet, or between two threads.
    Idle,
    /// A look-up of a host name in the background, before the connect.
    LookingUp(Box<HostConnect>),
    /// A connect in the background.
    Connecting(ShardSocket, Box<ConnectAttempts>),
    Connected(ShardSocket),
    /// The look-up or the last connect failed with this error (negative: of the resolver); 0: it was read by `-error`.
    Failed(i32),
    /// On its way to another thread: the socket, or the connect to repeat.
    Moving(Option<OwnedFd>, Option<Box<ConnectAttempts>>),
    Closed,
}

pub(crate) struct Stream {
    pub(crate) dialect: Dialect,
    state: RefCell<StreamState>,
    readiness: Readiness,
    channel: Cell<Option<Channel>>,
    is_blocking: Cell<bool>,
    is_closing: Cell<bool>,
    /// Others may have its descriptor, for example a child process.
    is_shared: Cell<bool>,
    /// The script of the trace did not open it.
    is_traced: Cell<bool>,
    /// The next event is one of writability, whatever Tcl waits for.
    resumes_flush: Cell<bool>,
    /// What was received ahead of the script, in the receive modes that do so.
    read_ahead: Cell<Option<Box<ReadAhead>>>,
    send_cap: Cell<u16>,
    /// At least the bytes that TCP has accepted and not transmitted.
    unsent_max: Cell<u32>,
    /// Unsent bytes below which the system reports writability; 0: not limited yet.
    unsent_mark: Cell<u32>,
    /// For other users of the socket: a descriptor of a socket that has none.
    handle: Cell<Option<OwnedFd>>,
}

const _: () = assert!(size_of::<Stream>() <= 88, "every socket has one");

/// The outcome of starting a connect.
pub(crate) type ConnectResult = Result<Rc<Stream>, i32>;

impl Stream {
    fn new(dialect: Dialect, sockets: &Rc<ThreadSockets>) -> Rc<Self> {
        let stream = Rc::new(Stream {
            dialect,
            state: RefCell::new(StreamState::Idle),
            readiness: Readiness::default(),
            channel: Cell::new(None),
            is_blocking: Cell::new(true),
            is_closing: Cell::new(false),
            is_shared: Cell::new(false),
            is_traced: Cell::new(trace::may_trace_new_channel()),
            resumes_flush: Cell::new(false),
            read_ahead: Cell::default(),
            send_cap: Cell::new(dialect.send_cap()),
            unsent_max: Cell::new(0),
            unsent_mark: Cell::new(0),
            handle: Cell::default(),
        });
        stream.readiness.enter(sockets.insert(SocketChannel::Stream(Rc::clone(&stream))));
        crate::stats::socket_opened();
        stream
    }

    /// Connects to the first of these pairs that accepts. With `in_background` it returns when the first connect has
    /// begun.
    pub(crate) fn connect(
        dialect: Dialect,
        sockets: &Rc<ThreadSockets>,
        mut pairs: Vec<ConnectPair>,
        in_background: bool,
    ) -> ConnectResult {
        pairs.reverse();
        let stream = Self::new(dialect, sockets);
        let switches = EarlySwitches::default();
        let attempts = Box::new(ConnectAttempts { rest: pairs, current: None, switches });
        stream.try_pairs(attempts, libc::EHOSTUNREACH);
        let failed = if in_background {
            stream.failure_before_connect()
        } else {
            stream.wait_while_connecting();
            stream.failure()
        };
        match failed {
            Some(error) => {
                stream.leave();
                Err(error)
            }
            None => Ok(stream),
        }
    }

    /// An accepted connection.
    pub(crate) fn accepted(dialect: Dialect, sockets: &Rc<ThreadSockets>, socket: ShardSocket) -> Rc<Self> {
        let stream = Self::new(dialect, sockets);
        sockets.assign(socket, stream.key());
        stream.state.replace(StreamState::Connected(socket));
        stream
    }

    /// Sets the options that an accepted connection has from its listener, beside those of the socket itself.
    pub(crate) fn inherit(&self, mode: ReceiveMode, send_cap: u16, is_traced: bool) {
        self.send_cap.set(send_cap);
        self.is_traced.set(is_traced);
        self.set_receive_mode(mode);
    }

    /// A connected socket that is in no shard.
    pub(crate) fn from_descriptor(
        dialect: Dialect,
        sockets: &Rc<ThreadSockets>,
        descriptor: OwnedFd,
    ) -> io::Result<Rc<Self>> {
        let stream = Self::new(dialect, sockets);
        match sockets.attach(descriptor, stream.key()) {
            Ok(socket) => {
                stream.state.replace(StreamState::Connected(socket));
                Ok(stream)
            }
            Err(error) => {
                stream.leave();
                Err(error)
            }
        }
    }

    /// Creates the channel, which owns the stream.
    pub(crate) fn into_channel(self: Rc<Self>) -> Channel {
        let name = self.dialect.next_channel_name();
        let stream = Rc::clone(&self);
        let channel = Channel::create(self.dialect.stream_type(), &name, self, Interest::BOTH);
        stream.channel.set(Some(channel));
        channel.set_option(c"-translation", c"auto crlf");
        channel
    }

    fn key(&self) -> SlabKey {
        self.readiness.key().expect("a channel of this thread")
    }

    fn sockets(&self) -> Rc<ThreadSockets> {
        ThreadSockets::of_channel()
    }

    /// Calls `act` with what was received ahead, which it must not use by another way.
    fn with_read_ahead<R>(&self, act: impl FnOnce(&mut Option<Box<ReadAhead>>) -> R) -> R {
        let mut read_ahead = self.read_ahead.take();
        let outcome = act(&mut read_ahead);
        self.read_ahead.set(read_ahead);
        outcome
    }

    fn leave(&self) {
        if let Some(key) = self.readiness.leave() {
            self.sockets().remove(key);
            crate::stats::socket_closed();
        }
    }

    // ---- Connecting ----

    /// Starts a connect to the next pair for which that is possible.
    fn try_pairs(&self, mut attempts: Box<ConnectAttempts>, mut last_error: i32) {
        while let Some(pair) = attempts.rest.pop() {
            // Any address and port: the system chooses both in the connect.
            let is_any = pair.from.ip().is_unspecified() && pair.from.port() == 0;
            let to = Destination::Tcp { to: pair.to, from: (!is_any).then_some(pair.from) };
            self.trace(TraceEvent::Connect, || pair.text());
            match self.sockets().connect(&to, self.key()) {
                Ok(socket) => {
                    attempts.current = Some(pair);
                    self.state.replace(StreamState::Connecting(socket, attempts));
                    return;
                }
                Err(error) => {
                    last_error = system_error(&error);
                    self.trace_connect_failed(Some(pair), last_error);
                }
            }
        }
        self.state.replace(StreamState::Failed(last_error));
        self.readiness.set_ready(Interest::BOTH);
    }

    fn failure(&self) -> Option<i32> {
        match *self.state.borrow() {
            StreamState::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// A failure that is one of the command, and not of the connect in the background. With direct descriptors a socket is
    /// created and bound in a turn only.
    fn failure_before_connect(&self) -> Option<i32> {
        let binds = match &*self.state.borrow() {
            StreamState::Connecting(_, attempts) => {
                attempts.current.is_some_and(|pair| !pair.from.ip().is_unspecified() || pair.from.port() != 0)
            }
            _ => return self.failure(),
        };
        if !binds || !self.sockets().has_direct_descriptors() {
            return None;
        }
        self.sockets().turn_while_ready();
        let is_of_bind =
            |&error: &i32| matches!(error, libc::EADDRNOTAVAIL | libc::EADDRINUSE | libc::EACCES);
        self.failure().filter(is_of_bind)
    }

    fn is_connecting(&self) -> bool {
        matches!(*self.state.borrow(), StreamState::Connecting(..) | StreamState::LookingUp(_))
    }

    /// Waits for the end of all attempts, without running scripts.
    fn wait_while_connecting(&self) {
        let sockets = self.sockets();
        loop {
            sockets.turn_until_done();
            if !self.is_connecting() {
                return;
            }
            sockets.wait_for_event();
        }
    }

    /// Continues a connect in the background as far as possible now; waits for its end on a blocking channel.
    fn finish_connect(&self) -> Result<ShardSocket, i32> {
        if self.is_connecting() {
            if self.is_blocking.get() {
                self.wait_while_connecting();
            } else {
                self.sockets().turn_until_done();
            }
        }
        match *self.state.borrow() {
            StreamState::Connected(socket) => Ok(socket),
            StreamState::Connecting(..) | StreamState::LookingUp(_) => Err(libc::EAGAIN),
            _ => Err(libc::ENOTCONN),
        }
    }

    pub(crate) fn on_connected(&self) {
        let state = self.state.replace(StreamState::Idle);
        self.state.replace(match state {
            StreamState::Connecting(socket, attempts) => {
                // It fails only for a socket that reports more than that.
                let _ =
                    self.sockets().with_descriptor(socket, |descriptor| attempts.switches.apply(descriptor));
                StreamState::Connected(socket)
            }
            other => other,
        });
        self.trace(TraceEvent::Connected, String::new);
        self.readiness.set_ready(Interest::WRITABLE);
        self.interest_changed();
    }

    pub(crate) fn on_connect_failed(&self, error: i32) {
        let state = self.state.replace(StreamState::Idle);
        match state {
            StreamState::Connecting(_, attempts) => {
                self.trace_connect_failed(attempts.current, error);
                self.try_pairs(attempts, error);
            }
            other => {
                self.state.replace(other);
            }
        }
    }

    // ---- Readiness ----

    pub(crate) fn on_ready(&self, directions: Interest) {
        self.readiness.reported(directions);
        if directions.has(Interest::READABLE) {
            self.fill_read_ahead();
        }
        self.readiness.set_ready(directions);
        self.interest_changed();
    }

    /// Receives ahead, in the modes that do so.
    fn fill_read_ahead(&self) {
        let StreamState::Connected(socket) = *self.state.borrow() else { return };
        self.with_read_ahead(|read_ahead| {
            let Some(ahead) = read_ahead else { return };
            let buffer_size = self.channel.get().map_or(BURST_BUFFER_SIZE, Channel::buffer_size);
            let sockets = self.sockets();
            let receive =
                |into: &mut [u8]| sockets.receive(socket, into).map_err(|error| system_error(&error));
            ahead.fill(sockets.now(), buffer_size, receive);
        });
    }

    fn set_receive_mode(&self, mode: ReceiveMode) {
        self.with_read_ahead(|read_ahead| match (read_ahead, mode) {
            (None, ReceiveMode::ZeroByte) => {}
            (Some(ahead), mode) => ahead.set_mode(mode),
            (none, mode) => *none = Some(Box::new(ReadAhead::new(mode))),
        });
        self.interest_changed();
    }

    /// The driver cannot use the socket: reads and writes report why.
    pub(crate) fn on_broken(&self) {
        self.trace(TraceEvent::Error, || "the driver cannot use the socket".into());
        self.state.replace(StreamState::Closed);
        self.readiness.set_ready(Interest::BOTH);
    }

    pub(crate) fn interest_changed(&self) {
        self.readiness.schedule_check();
    }

    /// The directions to request from the shard.
    pub(crate) fn next_interest(&self) -> Option<(ShardSocket, Interest)> {
        self.readiness.begin_check();
        match *self.state.borrow() {
            StreamState::Connected(socket) => {
                let (has_input, wants_more) = self.with_read_ahead(|read_ahead| {
                    let ahead = read_ahead.as_ref();
                    (
                        ahead.is_some_and(|ahead| ahead.has_input()),
                        ahead.is_some_and(|ahead| ahead.wants_more()),
                    )
                });
                if has_input {
                    self.readiness.set_ready(Interest::READABLE);
                }
                let readable_if = |condition| if condition { Interest::READABLE } else { Interest::NONE };
                let wanted = self.readiness.take_requests(readable_if(has_input), readable_if(wants_more));
                (!wanted.is_none()).then_some((socket, wanted))
            }
            // A failure repeats until the script closes the channel.
            StreamState::Failed(_) | StreamState::Closed => {
                self.readiness.set_ready(Interest::BOTH);
                None
            }
            StreamState::Idle
            | StreamState::LookingUp(_)
            | StreamState::Connecting(..)
            | StreamState::Moving(..) => None,
        }
    }

    /// The readiness to report to Tcl. Afterwards the caller has the interest checked again, if the channel is still here:
    /// its script may have closed it, or passed it to another thread.
    pub(crate) fn next_event(&self) -> Option<(Channel, Interest)> {
        let mut ready = self.readiness.take_ready();
        if self.resumes_flush.replace(false) {
            ready = ready.with(Interest::WRITABLE);
        }
        self.channel.get().filter(|_| !ready.is_none()).map(|channel| (channel, ready))
    }

    fn wait_until(&self, socket: ShardSocket, directions: Interest) -> Result<(), i32> {
        self.sockets().wait_for_socket(socket, directions).map_err(|error| system_error(&error))
    }

    fn take_attempts(mut attempts: Box<ConnectAttempts>) -> Box<ConnectAttempts> {
        attempts.rest.extend(attempts.current.take());
        attempts
    }
}

impl ChannelDriver for Stream {
    fn begin_close(&self) {
        self.is_closing.set(true);
    }

    fn unclosed_channel(&self) -> Option<Channel> {
        self.channel.get().filter(|_| !self.is_closing.get())
    }

    fn close(self: Rc<Self>) -> Result<(), i32> {
        self.trace_close();
        let state = self.state.replace(StreamState::Closed);
        if let StreamState::Connected(socket) | StreamState::Connecting(socket, _) = state {
            self.sockets().close(socket);
        }
        self.channel.set(None);
        self.leave();
        Ok(())
    }

    fn close_direction(&self, direction: CloseDirection) -> Result<(), i32> {
        // Tcl 9 closes the reading direction of every channel before the channel, and permits this error: a pending
        // connect must not delay that.
        let StreamState::Connected(socket) = *self.state.borrow() else { return Err(libc::ENOTCONN) };
        let how = match direction {
            CloseDirection::Read => Shutdown::Read,
            CloseDirection::Write => Shutdown::Write,
        };
        match self.sockets().with_descriptor(socket, |descriptor| rustix::net::shutdown(descriptor, how)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.raw_os_error()),
            // A direct descriptor needs an ordinary one for shutdown(2).
            Err(error) if lacks_descriptors(&error) => {
                match direction {
                    // Tcl reads no more in any case; a copy learns of it.
                    CloseDirection::Read => fcopy::continue_copy_from(self),
                    CloseDirection::Write => self.sockets().end_output(socket),
                }
                Ok(())
            }
            Err(error) => Err(system_error(&error)),
        }
    }

    fn input(&self, into: &mut [u8]) -> Result<usize, i32> {
        loop {
            // Also when the socket was lost since, and again after each wait, which may have received ahead.
            let received_ahead =
                self.with_read_ahead(|read_ahead| read_ahead.as_mut().and_then(|ahead| ahead.read(into)));
            if let Some(outcome) = received_ahead {
                self.interest_changed();
                return outcome.or_else(|error| if error == libc::ECONNRESET { Ok(0) } else { Err(error) });
            }
            let socket = self.finish_connect()?;
            match self.sockets().receive(socket, into) {
                Ok(count) => return Ok(count),
                // As in Tcl's core: the end of the stream.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.is_blocking.get() => {
                    self.wait_until(socket, Interest::READABLE)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(system_error(&error)),
            }
        }
    }

    fn output(&self, from: &[u8]) -> Result<usize, i32> {
        let socket = self.finish_connect()?;
        if from.is_empty() {
            return Ok(0);
        }
        loop {
            let room = self.send_room(socket, from.len());
            let sent = match room {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                room => self.sockets().send(socket, &from[..room.min(from.len())]),
            };
            match sent {
                Ok(count) => {
                    self.unsent_max.set(self.unsent_max.get().saturating_add(count as u32));
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.is_blocking.get() => {
                    self.wait_until(socket, Interest::WRITABLE)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(system_error(&error)),
            }
        }
    }

    fn set_option(&self, name: &str, value: &str) -> Result<(), OptionError> {
        self.set_socket_option(name, value)
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
        self.readiness.watch(interest);
    }

    fn descriptor(&self) -> Option<RawFd> {
        let socket = self.socket().ok()?;
        let sockets = self.sockets();
        let found = sockets.with_descriptor(socket, |descriptor| {
            // Another program expects the mode that the script has chosen; the driver's own calls never wait.
            let _ = rustix::io::ioctl_fionbio(descriptor, !self.is_blocking.get());
            let owned = sockets.has_direct_descriptors().then(|| descriptor.try_clone_to_owned());
            (descriptor.as_raw_fd(), owned)
        });
        let (raw, owned) = found.ok()?;
        let Some(owned) = owned else {
            self.is_shared.set(true);
            sockets.share_descriptor(socket);
            return Some(raw);
        };
        let handle = self.handle.take().or(owned.ok());
        let raw = handle.as_ref().map(AsRawFd::as_raw_fd);
        self.handle.set(handle);
        raw
    }

    fn set_blocking(&self, blocking: bool) -> Result<(), i32> {
        self.is_blocking.set(blocking);
        Ok(())
    }

    fn change_thread(self: Rc<Self>, action: ThreadAction) {
        match action {
            // Tcl takes a channel out of its thread before it closes it.
            ThreadAction::Remove if self.is_closing.get() => {}
            ThreadAction::Remove if self.channel.get().is_some_and(Channel::is_closed_by_script) => {
                // It has waited for its output, and runs no close handlers.
                crate::fcopy::end_copies_of(&self);
            }
            ThreadAction::Remove => self.leave_thread(),
            ThreadAction::Insert => self.enter_thread(),
        }
    }
}

impl Stream {
    /// Bytes that may be sent now; 0: the socket has as many unsent bytes as its send cap permits.
    fn send_room(&self, socket: ShardSocket, wanted: usize) -> usize {
        let unsent_max = usize::from(self.send_cap.get()) * self.send_size();
        if self.unsent_max.get() as usize + wanted <= unsent_max {
            return wanted;
        }
        let sockets = self.sockets();
        if sockets.is_ending() {
            // What the system does not accept now is lost.
            if self.unsent_mark.replace(0) != 0 {
                let _ = sockets.with_descriptor(socket, |descriptor| set_unsent_mark(descriptor, u32::MAX));
            }
            return wanted;
        }
        let unsent = sockets.with_descriptor(socket, unsent_bytes).unwrap_or(0);
        self.unsent_max.set(u32::try_from(unsent).unwrap_or(u32::MAX));
        let room = unsent_max.saturating_sub(unsent);
        if room == 0 && self.has_failed(socket) {
            // The send reports it.
            return wanted;
        }
        if room == 0 {
            self.limit_unsent(socket);
            sockets.forget_writable(socket);
        }
        room
    }

    /// Makes the system report writability only while there is room for another send.
    fn limit_unsent(&self, socket: ShardSocket) {
        let mark = unsent_mark(self.send_cap.get(), self.send_size());
        if self.unsent_mark.replace(mark) != mark {
            // Without it the wait ends early, and the room is checked again.
            let _ = self.sockets().with_descriptor(socket, |descriptor| set_unsent_mark(descriptor, mark));
        }
    }

    /// Whether the system has given up the connection: it was reset, or both directions have ended.
    fn has_failed(&self, socket: ShardSocket) -> bool {
        let failed = self.sockets().with_descriptor(socket, |descriptor| {
            let mut asked = [PollFd::new(&descriptor, PollFlags::OUT)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut asked, Some(&now)).is_ok()
                && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
        });
        failed.unwrap_or(true)
    }
}
