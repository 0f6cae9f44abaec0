//! The interface between a shard and the operating system: intents in, events out.
//!
//! A driver owns sockets, receive buffers and its registrations with the system. The shard gives it intents (`accept`,
//! `receive`, `close`, …); none of them blocks or takes effect at once. Once per turn the shard calls [`Driver::turn`]
//! with all its output: the driver carries out all intents, sends, waits for events if requested, and returns them as
//! [`DriverEvent`]s.
//!
//! Guarantees of every driver, checked by the driver suite:
//!
//! - **Sends are over when `turn` returns.** A send either sent all bytes (without an event) or stopped short, which is
//!   reported in `stops` of the same turn. Bytes in several pieces ([`Gather::Many`]) are one send: one call sends them
//!   in order, and a stop counts the bytes of all of them. No driver keeps a pointer to send memory beyond the call;
//!   the borrow of [`Outgoing`] enforces that.
//! - **One intent, one event.** `receive` yields exactly one of `Received`, `Ended`, `Failed`, `ReceiveCancelled`;
//!   `await_readable` one `Readable` (or, when cancelled, `ReceiveCancelled`); `await_writable` one `Writable`;
//!   `connect` one `Connected` or `Failed`; `close` one `Closed`, after which the token is free; `detach` one
//!   `Detached`, likewise. The exception is `accept`, which continues until `AcceptStopped`.
//! - **A failure is final.** Anything armed on a source may be answered by `Failed` (also `await_readable` and
//!   `await_writable`, when the system cannot watch the source), and `Failed` answers all of it: only `Closed` or
//!   `Detached` follows. A failed connection can only be closed; intents from before the shard handled the failure need
//!   not be answered. A datagram socket may `receive` again.
//! - **No stale events.** After `close(token)` no later turn returns an event with that token except `Closed`, and
//!   `Closed` comes only when nothing of it is in flight. (The event that made the shard close may be followed by
//!   others of the same turn.) The same holds for `detach` and `Detached`, but events of armed operations may come in
//!   between, because received bytes must not be lost.
//! - **Buffers come back.** A `Received` buffer belongs to the shard until `release`. When all are lent out, receives
//!   wait inside the driver, counted, and continue as buffers are released.
//!
//! Obligations of a shard: at most one outgoing item per connection and turn (any number per datagram socket, each in
//! one piece), at most [`PIECES_MAX`](crate::limits::PIECES_MAX) pieces in an item, and no `shutdown` before the output
//! is sent, because the two are not ordered within a turn.
//!
//! Hazards: a token must not be attached twice, a source must not have two receives at once, and a driver is used only
//! by the thread that created it.

#[cfg(unix)]
pub(crate) mod accept;
pub mod allocator;
pub mod choice;
mod gather;
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
#[cfg(target_os = "linux")]
pub mod uring;

use std::io;
use std::net::{IpAddr, SocketAddr};

use stilling_ring::Time;

pub use self::gather::{ChainedBytes, Gather, GatherSlices, PieceChain, PieceList};

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
    /// The driver has released the source, nothing of it is in flight, the token is free. Events with received bytes
    /// came before; unreceived bytes are still in the socket.
    Detached {
        /// The former source.
        token: Token,
        /// Its open socket, an ordinary descriptor that closes when it is dropped. Or the error that prevented making
        /// one; then the connection is closed.
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
    /// System calls of the driver on behalf of its sources: to wait, to submit, and, where that is not done through a
    /// ring, to accept, to receive, to send, to watch and to close.
    pub enters: u64,
    /// Receives that found no free buffer and waited for one.
    pub starved: u64,
    /// Completions for a closed source, or for a previous user of its slot. Every close that cancels an operation
    /// leaves at least one: this is normal.
    pub stale: u64,
    /// Overflows of the completion queue in turns that sent something.
    pub overflows: u64,
}

/// A shard's interface to the operating system. The module documentation lists the guarantees of every driver.
pub trait Driver: Sized {
    /// An owned descriptor; dropping it closes it.
    type Socket: 'static;

    /// An accepted connection that is not attached yet; dropping it closes it. Not every driver keeps it in an ordinary
    /// descriptor, so only the driver that accepted it can attach it.
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

    /// Stops accepting; connections accepted before are still reported. Answered by one `AcceptStopped` if the listener
    /// was accepting. An `accept` before that answer counts: the answer comes, and accepting continues after it.
    /// Likewise an `accept` that is paused before the next turn is answered as if it had started.
    fn pause_accept(&mut self, listener: Token);

    /// Accepts the oldest connection in a listener's backlog at once, beyond any limit of `accept`. For a listener that
    /// is not accepting, and is to be closed. `None`: the backlog is empty.
    ///
    /// # Errors
    /// The system's: `EMFILE` and `ENFILE` when a connection waits and there is no descriptor for it, anything else
    /// when the listener cannot accept.
    fn accept_now(&mut self, listener: Token) -> io::Result<Option<Self::Accepted>>;

    /// Closes the oldest connection in a listener's backlog, with a descriptor reserved for this purpose: for an
    /// `AcceptStopped` for lack of descriptors, so that a client does not wait for a response that cannot come. Returns
    /// false if none waited, or if that failed as well.
    fn refuse_one(&mut self, listener: Token) -> bool;

    /// Adds an accepted connection, or a connected socket, pipe end or bound datagram socket. `readable_now`: the
    /// caller expects waiting data (an accepted connection of a deferring listener).
    fn attach(
        &mut self,
        token: Token,
        socket: Self::Accepted,
        kind: SourceKind,
        readable_now: bool,
    ) -> io::Result<()>;

    /// Creates a stream socket and connects it. An error means that no socket could be created; the token is then still
    /// free.
    fn connect(&mut self, token: Token, to: &Destination) -> io::Result<()>;

    /// Receives once into a shared buffer. A datagram socket continues to receive until `close`: every datagram is an
    /// event of its own.
    fn receive(&mut self, token: Token);

    /// Reports once when there is something to receive; owns no buffer while it waits.
    fn await_readable(&mut self, token: Token);

    /// Cancels a `receive` or `await_readable`. Answered by the event that was about to come, or by `ReceiveCancelled`,
    /// also while it waits for a buffer. No effect without an armed operation.
    fn cancel_receive(&mut self, token: Token);

    /// Receives at once into the caller's memory. `Ok(0)` is the end of the stream; [`io::ErrorKind::WouldBlock`] means
    /// that no bytes are available.
    fn recv_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize>;

    /// Whether the peer of a stream has reset it, or neither reads nor sends any more, as far as the system knows;
    /// unread bytes do not matter. For connections on which nothing is armed. A driver that cannot know returns false.
    /// (A ring's own descriptor does not report a reset behind bytes or behind an end.)
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

    /// Closes a source of any kind and cancels its armed operations. Ends in one `Closed`.
    fn close(&mut self, token: Token);

    /// Returns a stream with its socket open and cancels its armed operations. Ends in one `Detached`. Until then no
    /// other intent is allowed for it, not even `close`, and all its output was sent in earlier turns.
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

    /// Receive buffers lent to the shard now; 0 between turns unless one is kept.
    fn buffers_lent(&self) -> usize;

    /// Carries out all intents and sends, then waits for events as `wait` permits, unless some are already available;
    /// it may also return without events. Appends to `events` and `stops`.
    ///
    /// `now` is the caller's time, to which `Wait::Until` refers.
    fn turn<'a>(
        &mut self,
        now: Time,
        wait: Wait,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        stops: &mut Vec<IncompleteSend>,
        events: &mut Vec<DriverEvent<Self::Socket, Self::Accepted>>,
    ) -> io::Result<()>;

    /// A handle for any thread (and a signal handler) to end a wait; one or more calls lead to one `Woken`.
    fn wake_handle(&self) -> WakeHandle;

    /// A descriptor that polls readable when the system has events for `turn` (new intents are no events: they take
    /// effect in the next turn), for a shard in a foreign event loop; `None` if the driver has none. It may poll
    /// readable once more for events that a turn has already returned.
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
