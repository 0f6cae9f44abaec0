//! The interface between a shard and the operating system.
//!
//! A driver owns sockets, receive buffers and registrations with the system. The shard's requests (*intents*: `accept`,
//! `receive`, `close`, …) do not block, and are carried out later. Once per turn the shard calls [`Driver::turn`] with
//! all its output: the driver carries out all intents, sends, waits for events if requested, and returns them as
//! [`DriverEvent`]s.
//!
//! Guarantees of every driver, checked by the driver suite:
//!
//! - **Sends complete before `turn` returns.** A send either sent all bytes (without an event) or stopped short, which
//!   `incomplete_sends` of the same turn reports. Several pieces ([`Gather::Many`]) are one send: one call sends them in
//!   order, and a stop counts the bytes of all. No driver keeps a pointer to send memory beyond the call; the borrow of
//!   [`Outgoing`] enforces that.
//! - **One intent, one event.** `receive` yields exactly one of `Received`, `Ended`, `Failed`, `ReceiveCancelled`;
//!   `await_readable` one `Readable` (or, when cancelled, `ReceiveCancelled`); `await_writable` one `Writable`;
//!   `connect` one `Connected` or `Failed`; `close` one `Closed`, after which the token is free; `detach` one
//!   `Detached`, likewise. The exception is `accept`, which continues until `AcceptStopped`.
//! - **A failure is final.** Any armed operation may yield `Failed` (also `await_readable` and `await_writable`, when
//!   the system cannot watch the source), which ends all armed operations of the source: only `Closed` or `Detached`
//!   follows. The shard can only close a failed connection; its intents from before it handled the failure may yield no
//!   event. A datagram socket may `receive` again.
//! - **No stale events.** After `close(token)` no later turn returns an event with that token except `Closed`, and only
//!   when no operation of the source is in flight. (Events that the current turn has already returned may follow.) The
//!   same holds for `detach` and `Detached`, except that events of armed operations may come in between, because
//!   received bytes must not be lost.
//! - **Buffers are lent.** A `Received` buffer belongs to the shard until `release`. While all are lent, receives wait
//!   inside the driver, counted, and continue as buffers are released.
//! - **Immediate operations do not wait and keep nothing.** `recv_now`, `send_now`, `recv_from_now` and `send_to_now`
//!   move bytes between the socket and the caller's memory, which the system no longer uses when they return. They may be
//!   called between turns, and while `await_readable` or `await_writable` is armed, whose event may then be outdated: it reports that the source was
//!   ready at some time since the wait was armed.
//!
//! Obligations of a shard: at most one outgoing item per connection and turn (any number per datagram socket, each in
//! one piece), at most [`PIECES_MAX`](crate::limits::PIECES_MAX) pieces in an item, and no `shutdown` before the output
//! is sent, because the two are not ordered within a turn. No `recv_now` while a `receive` is armed, and no `send_now`
//! between queueing an item and the turn that sends it: bytes would be reordered.
//!
//! Hazards: a token must not be attached twice, a source must not have two receives at once, and a driver is used only
//! by the thread that created it.

#[cfg(unix)]
pub(crate) mod accept;
pub mod allocator;
pub mod choice;
mod descriptor_gap;
mod gather;
#[cfg(target_os = "linux")]
mod immediate_datagram;
pub mod inherited;
#[cfg(target_os = "linux")]
mod message_headers;
pub mod peer;
pub(crate) mod pipes;
#[cfg(target_os = "linux")]
mod pktinfo;
#[cfg(target_os = "linux")]
pub mod poll;
mod role;
pub mod signals;
pub(crate) mod sockopt;
mod source_descriptor;
#[cfg(target_os = "linux")]
pub mod uring;

use std::io;
use std::net::{IpAddr, SocketAddr};

use stilling_ring::Time;

pub use self::gather::{ChainedBytes, Gather, GatherSlices, PieceChain, PieceList};
pub use self::source_descriptor::SourceDescriptor;

use crate::token::Token;

/// The kind of a source's descriptor; fixed when it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A connected stream socket: TCP or Unix.
    Stream,
    /// One end of a pipe: reading or writing, not both.
    Pipe,
    /// A datagram socket: UDP or Unix datagram.
    Datagram,
}

/// The destination of a `connect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A TCP endpoint, from a local address if given (port 0: any).
    Tcp {
        /// The endpoint.
        to: SocketAddr,
        /// The local address to bind before connecting.
        from: Option<SocketAddr>,
    },
    /// A Unix stream socket by its path.
    Unix(std::path::PathBuf),
}

/// The number of a receive buffer lent by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u16);

/// An event of a source.
#[derive(Debug)]
pub enum DriverEvent<S, A = S> {
    /// A listener accepted a connection; it is not attached yet.
    Accepted {
        /// The listener.
        listener: Token,
        /// The connection. Dropping it closes it.
        socket: A,
    },
    /// Accepting stopped by itself or after `pause_accept`; `accept` resumes it.
    AcceptStopped {
        /// The listener.
        listener: Token,
        /// The error, unless the stop was requested. `EMFILE` and `ENFILE` mean that descriptors ran out.
        error: Option<io::Error>,
        /// Connections that the system has closed because it had no room for them.
        refused: u32,
    },
    /// A `connect` succeeded.
    Connected {
        /// The connection.
        token: Token,
    },
    /// Bytes arrived; `len` ≥ 1.
    Received {
        /// The source.
        token: Token,
        /// Their buffer, until `release`.
        buffer: BufferId,
        /// Their number.
        len: u32,
    },
    /// The peer has ended its sending direction (end of stream). Sending is still possible.
    Ended {
        /// The connection.
        token: Token,
    },
    /// A receive, connect or wait failed: the connection is dead.
    Failed {
        /// The connection.
        token: Token,
        /// The error.
        error: io::Error,
    },
    /// There is something to receive, an end or a failure; no byte was consumed.
    Readable {
        /// The source.
        token: Token,
    },
    /// A blocked connection can send again (or has failed, which the next send reports).
    Writable {
        /// The connection.
        token: Token,
    },
    /// The receive (or `await_readable`) was cancelled; nothing is armed for reading now.
    ReceiveCancelled {
        /// The source.
        token: Token,
    },
    /// A datagram arrived: see [`Driver::datagram`].
    Datagram {
        /// The socket.
        token: Token,
        /// Its buffer, until `release`.
        buffer: BufferId,
    },
    /// The source is closed, nothing of it is in flight, the token is free.
    Closed {
        /// The former source.
        token: Token,
    },
    /// The source is released, nothing of it is in flight, the token is free. Events with received bytes came before;
    /// unreceived bytes are in the socket.
    Detached {
        /// The former source.
        token: Token,
        /// Its open socket, an ordinary descriptor that closes when it is dropped; or the error of creating that
        /// descriptor, and the connection is closed.
        socket: io::Result<S>,
    },
    /// The wake handle was called.
    Woken,
}

/// A datagram in a receive buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The local address to answer from, if the socket is bound to all addresses and the system reports it.
    pub local: Option<IpAddr>,
    /// Its payload.
    pub payload: &'a [u8],
    /// It was longer than the buffer; the rest is lost.
    pub truncated: bool,
}

/// A datagram that [`Driver::recv_from_now`] received into the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// Its length. More than that of the memory: the rest is lost.
    pub len: usize,
    /// The sender, if it has an internet address.
    pub from: Option<SocketAddr>,
}

/// An item to send in this turn.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The connection or datagram socket.
    pub token: Token,
    /// The bytes; for a datagram the whole payload, in one piece.
    pub bytes: Gather<'a>,
    /// The destination of a datagram; `None` on streams.
    pub to: Option<SocketAddr>,
    /// The local address of a datagram, if it is of the destination's family; `None`: the system chooses.
    pub from: Option<IpAddr>,
    /// Closes the connection (as [`Driver::close`]) when all bytes are sent.
    pub close: bool,
}

impl<'a> Outgoing<'a> {
    /// Bytes for a stream or a pipe.
    pub fn stream(token: Token, bytes: Gather<'a>, close: bool) -> Self {
        Outgoing { token, bytes, to: None, from: None, close }
    }
}

/// A send that did not send all its bytes.
#[derive(Debug)]
pub struct IncompleteSend {
    /// Index of the outgoing item in the turn.
    pub position: u32,
    /// Bytes sent.
    pub sent: u32,
    /// The error; `None`: it would have blocked.
    pub error: Option<io::Error>,
}

/// How long a turn may wait for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until this time.
    Until(Time),
    /// Without a limit.
    Forever,
}

/// A driver's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCounters {
    /// System calls of the driver for its sources: waits and submissions, and the operations that do not go through a
    /// ring.
    pub system_calls: u64,
    /// Receives that found no free buffer and waited for one.
    pub starved: u64,
    /// Completions for a closed source, or for an earlier use of its slot. Normal: every close that cancels an
    /// operation causes at least one.
    pub stale: u64,
    /// Overflows of the completion queue in turns that sent something.
    pub overflows: u64,
    /// Nanoseconds of passing datagrams to the system, as far as they are measured.
    pub send_nanos: u64,
    /// Datagrams whose send was measured.
    pub sends_timed: u64,
}

/// A shard's interface to the operating system. The module documentation lists the guarantees of every driver.
pub trait Driver: Sized {
    /// An owned descriptor; dropping it closes it.
    type Socket: 'static;

    /// An accepted connection that is not attached yet; dropping it closes it. It may be no ordinary descriptor, so
    /// only the driver that accepted it can attach it.
    type Accepted: From<Self::Socket>;

    /// The name for banners and metrics: `uring`, `poll`, `sim`.
    fn name(&self) -> &'static str;

    /// Reserves room for sources with indices below `count`, so that none of them costs an allocation. Memory without a
    /// source stays untouched.
    fn reserve(&mut self, count: usize) {
        let _ = count;
    }

    /// The peer address of an accepted connection, if the system reports it.
    fn peer(&self, socket: &Self::Accepted) -> Option<IpAddr> {
        let _ = socket;
        None
    }

    /// Adds a listening socket. Nothing is accepted until [`accept`](Self::accept).
    fn listen(&mut self, token: Token, socket: Self::Socket) -> io::Result<()>;

    /// Starts accepting connections. No effect while accepting.
    fn accept(&mut self, listener: Token);

    /// Stops accepting; connections accepted before are still reported. Yields one `AcceptStopped` if the listener was
    /// accepting, or if `accept` was called since the last turn. An `accept` before that event takes effect after it.
    fn pause_accept(&mut self, listener: Token);

    /// Accepts the oldest connection in a listener's backlog at once. For a listener that is not accepting and is to be
    /// closed. `None`: the backlog is empty.
    ///
    /// # Errors
    /// `EMFILE` and `ENFILE` when a connection waits and there is no descriptor for it; any other error when the
    /// listener cannot accept.
    fn accept_now(&mut self, listener: Token) -> io::Result<Option<Self::Accepted>>;

    /// Accepts the oldest connection in a listener's backlog with a reserved descriptor, and closes it: when
    /// descriptors have run out, so that a client does not wait in vain. Returns false if none waits, or if that fails
    /// as well.
    fn refuse_one(&mut self, listener: Token) -> bool;

    /// Adds an accepted connection, a connected socket, a pipe end or a bound datagram socket. `readable_now`: it
    /// probably has data already (its listener has `TCP_DEFER_ACCEPT`).
    fn attach(
        &mut self,
        token: Token,
        socket: Self::Accepted,
        kind: SourceKind,
        readable_now: bool,
    ) -> io::Result<()>;

    /// Declares that other descriptors of the source's socket may outlive its `close`: nothing is reported for it after
    /// that.
    fn set_shared(&mut self, token: Token) {
        let _ = token;
    }

    /// Creates a stream socket and connects it. An error means that no socket could be created; the token is then still
    /// free.
    fn connect(&mut self, token: Token, to: &Destination) -> io::Result<()>;

    /// Receives once into a shared buffer. A datagram socket continues to receive until `close`: every datagram is an
    /// event of its own.
    fn receive(&mut self, token: Token);

    /// Reports once when there is something to receive; uses no buffer meanwhile.
    fn await_readable(&mut self, token: Token);

    /// Cancels a `receive` or `await_readable`, which then yields its event or `ReceiveCancelled`, also while it waits
    /// for a buffer. No effect without an armed operation.
    fn cancel_receive(&mut self, token: Token);

    /// Receives at once into the caller's memory. `Ok(0)` is the end of the stream; [`io::ErrorKind::WouldBlock`] means
    /// that no bytes are available.
    fn recv_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize>;

    /// Sends at once from the caller's memory, as many bytes as the system accepts; [`io::ErrorKind::WouldBlock`] means
    /// that it accepts none now.
    fn send_now(&mut self, token: Token, bytes: &[u8]) -> io::Result<usize>;

    /// Receives the next datagram at once into the caller's memory. [`io::ErrorKind::WouldBlock`] means that there is
    /// none. Another error may be that of a datagram sent before ("port unreachable"), and later datagrams follow. An
    /// `await_readable` is completed by such an error as well. A driver without it returns `Unsupported`.
    fn recv_from_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        let _ = (token, into);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends a datagram at once, to the peer of a connected socket if `to` is `None`. The error may be that of a datagram
    /// sent before, and this one is not sent then. A driver without it returns `Unsupported`.
    fn send_to_now(&mut self, token: Token, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<()> {
        let _ = (token, bytes, to);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes a later [`await_writable`](Self::await_writable) ask the system, although no send has been rejected: for an
    /// owner that stops by itself, because of `TCP_NOTSENT_LOWAT` (tcp(7)), which the readiness depends on. A driver that
    /// always asks has nothing to do.
    fn forget_writable(&mut self, token: Token) {
        let _ = token;
    }

    /// Whether there is something to receive on a stream, an end or a failure. Consumes nothing, not even the failure.
    /// A driver that cannot know returns true.
    fn is_readable(&mut self, token: Token) -> bool {
        let _ = token;
        true
    }

    /// The socket of a connection, of one that is still connecting, or of a listener, for system calls such as
    /// getsockopt(2). Receiving, sending and polling through it is not allowed, except for sendfile(2) and splice(2) on a
    /// connection whose owner receives and sends by itself: when the system rejects one, the owner calls
    /// [`forget_writable`](Self::forget_writable) or [`recv_now`](Self::recv_now) before it waits.
    ///
    /// # Errors
    /// `NotConnected`: the source is closing, or the driver creates its socket only in its next turn. `Unsupported`: the
    /// driver has no descriptors. `EMFILE`: a direct descriptor needs an ordinary one for the time of the value.
    fn descriptor(&mut self, token: Token) -> io::Result<SourceDescriptor<'_>> {
        let _ = token;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether the peer of a stream has reset it, or ended both directions, as far as the system knows; unread bytes do
    /// not matter. For connections on which nothing is armed. A driver that cannot know returns false. (A direct
    /// descriptor does not report a reset behind unread bytes or an unread end.)
    fn is_hung_up(&mut self, token: Token) -> bool {
        let _ = token;
        false
    }

    /// Whether a stream on which nothing is armed has no unread bytes and no unread end. A driver that cannot know
    /// returns false.
    fn has_no_unread_input(&mut self, token: Token) -> bool {
        let _ = token;
        false
    }

    /// Reports once when the connection can send again.
    fn await_writable(&mut self, token: Token);

    /// Ends the sending direction; the peer sees the end of the stream.
    fn shutdown(&mut self, token: Token);

    /// Closes a source of any kind and cancels its armed operations. Yields one `Closed`.
    fn close(&mut self, token: Token);

    /// Releases a stream or a listener with its socket open and cancels its armed operations. Yields one `Detached`. All
    /// its output must have been sent in earlier turns, and no other intent is allowed for it any more, not even `close`.
    /// A listener must have been paused; connections that are accepted already are reported before.
    fn detach(&mut self, token: Token);

    /// The bytes of a lent receive buffer, from its start to its capacity.
    fn buffer(&self, buffer: BufferId) -> &[u8];

    /// The datagram in a lent receive buffer.
    fn datagram(&self, buffer: BufferId) -> Datagram<'_>;

    /// Datagrams that the system has dropped at a datagram socket since its creation, because its receive buffer was
    /// full or a checksum wrong, modulo 2^32. `None`: the driver cannot know.
    fn dropped_datagrams(&mut self, token: Token) -> Option<u32> {
        let _ = token;
        None
    }

    /// Returns a receive buffer.
    fn release(&mut self, buffer: BufferId);

    /// Receive buffers lent to the shard now; 0 between turns unless the shard keeps one.
    fn buffers_lent(&self) -> usize;

    /// Carries out all intents and sends, then waits for events as `wait` permits, unless some are available already.
    /// May return without events. Appends to `events` and `incomplete_sends`.
    ///
    /// `now` is the caller's time, to which `Wait::Until` refers.
    fn turn<'a>(
        &mut self,
        now: Time,
        wait: Wait,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        incomplete_sends: &mut Vec<IncompleteSend>,
        events: &mut Vec<DriverEvent<Self::Socket, Self::Accepted>>,
    ) -> io::Result<()>;

    /// A handle that ends a wait, for any thread and for signal handlers; one or more calls yield one `Woken`.
    fn wake_handle(&self) -> WakeHandle;

    /// For a shard in a foreign event loop: a descriptor that polls readable when the system has events for `turn`;
    /// `None` if the driver has none. New intents do not make it readable: run a turn. It may poll readable once more
    /// for events that a turn has already returned.
    fn waitable(&mut self) -> Option<i32>;

    /// The driver's counters.
    fn counters(&self) -> DriverCounters;
}

/// Ends the wait of one driver, from any thread.
#[derive(Clone)]
pub struct WakeHandle(std::sync::Arc<dyn Fn() + Send + Sync>);

impl WakeHandle {
    /// A handle that runs `action`, which must be safe to run in a signal handler.
    pub fn new(action: impl Fn() + Send + Sync + 'static) -> Self {
        WakeHandle(std::sync::Arc::new(action))
    }

    /// Wakes the driver.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for WakeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WakeHandle")
    }
}
