//! The seam between a shard and the operating system: intents in, events out.
//!
//! A driver owns sockets, receive buffers and whatever the system wants to hear about them. The
//! shard tells it what it would like (`accept`, `receive`, `close`, …); nothing of that blocks,
//! and nothing happens at once. Once per turn the shard calls [`Driver::turn`] with everything
//! it has to send: the driver carries out all intents, sends, waits for news if asked to, and
//! returns the news as [`DriverEvent`]s.
//!
//! What every driver promises, and the driver suite checks on each:
//!
//! - **Sends are over when `turn` returns.** A send either took all bytes (then there is no
//!   news of it) or stopped short, which is reported in `stops` of the same turn. Bytes in several pieces
//!   ([`Gather::Many`]) are one send: they leave in order with one call, and a stop counts the bytes of all of
//!   them. No driver keeps a pointer to send memory beyond the call; the borrow of [`Outgoing`] says so to the compiler.
//! - **One intent, one event.** `receive` yields exactly one of `Received`, `Ended`, `Failed`,
//!   `ReceiveCancelled`; `await_readable` one `Readable` (or, when cancelled, `ReceiveCancelled`);
//!   `await_writable` one `Writable`; `connect` one `Connected` or `Failed`; `close` one `Closed`,
//!   after which the token is free; `detach` one `Detached`, likewise. The exception is `accept`, which
//!   goes on until `AcceptStopped`.
//! - **A failure is the last word.** Whatever was armed on a source may be answered by `Failed` (also
//!   `await_readable` and `await_writable`, when the system refuses to watch), and `Failed` answers all of it: nothing
//!   but `Closed` or `Detached` follows. A connection that has failed can only be closed; what was asked of
//!   it before the failure was looked at need not be answered. A datagram socket may be asked to `receive`
//!   again.
//! - **No stale news.** After `close(token)` no later turn's event but `Closed` carries that token,
//!   and `Closed` comes only when nothing of it is in flight. (News of the same turn may lie behind
//!   the event that made the shard close.) The same holds for `detach` and `Detached`, but the news of
//!   what was armed may come in between, because bytes that were received must not be lost.
//! - **Buffers come back.** A `Received` buffer belongs to the shard until `release`. When all are
//!   lent out, receives wait inside the driver, counted, and go on as buffers are released.
//!
//! What a shard owes in return: at most one outgoing item per connection and turn (any number per
//! datagram socket, each in one piece), at most [`PIECES_MAX`](crate::limits::PIECES_MAX) pieces in an item, and no
//! `shutdown` before the output has gone, because the two are not ordered within a turn.
//!
//! Hazards: a token must not be attached twice, two receives must not be asked for at once, and
//! a driver is used by the thread that made it alone.

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

/// What kind of descriptor a source is; fixed when it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A connected stream socket: TCP or Unix.
    Stream,
    /// One end of a pipe: reading or writing, not both.
    Pipe,
    /// A datagram socket: UDP or Unix datagram.
    Datagram,
}

/// Where a `connect` goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A TCP endpoint, from a local address if one is named (port 0: any).
    Tcp {
        /// The endpoint.
        to: SocketAddr,
        /// The local address to bind before connecting.
        from: Option<SocketAddr>,
    },
    /// A Unix stream socket by its path.
    Unix(std::path::PathBuf),
}

/// A receive buffer lent by the driver, named by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u16);

/// What happened to a source.
#[derive(Debug)]
pub enum DriverEvent<S, A = S> {
    /// A listener gave a connection; it is not attached yet.
    Accepted {
        /// The listener.
        listener: Token,
        /// The connection. Dropping it closes it.
        socket: A,
    },
    /// Accepting stopped by itself or after `pause_accept`; it takes `accept` to go on.
    AcceptStopped {
        /// The listener.
        listener: Token,
        /// Why, unless it was asked for. `EMFILE` and `ENFILE` mean that descriptors ran out.
        error: Option<io::Error>,
        /// Connections that the system has closed because it had no room for them.
        refused: u32,
    },
    /// A `connect` succeeded.
    Connected {
        /// The connection.
        token: Token,
    },
    /// Bytes came; `len` ≥ 1.
    Received {
        /// The source.
        token: Token,
        /// Where they are, until `release`.
        buffer: BufferId,
        /// How many.
        len: u32,
    },
    /// The peer has finished sending (end of stream). Our side may still send.
    Ended {
        /// The connection.
        token: Token,
    },
    /// A receive, connect or wait failed: the connection is dead.
    Failed {
        /// The connection.
        token: Token,
        /// Why.
        error: io::Error,
    },
    /// There is something to receive, an end or a failure; no byte was taken.
    Readable {
        /// The source.
        token: Token,
    },
    /// A blocked connection takes bytes again (or has failed, which the next send will tell).
    Writable {
        /// The connection.
        token: Token,
    },
    /// The receive (or `await_readable`) was cancelled; nothing is armed for reading now.
    ReceiveCancelled {
        /// The source.
        token: Token,
    },
    /// A datagram came: see [`Driver::datagram`].
    Datagram {
        /// The socket.
        token: Token,
        /// Where it is, until `release`.
        buffer: BufferId,
    },
    /// The source is closed, nothing of it is in flight, the token is free.
    Closed {
        /// The former source.
        token: Token,
    },
    /// The source is the driver's no more, nothing of it is in flight, the token is free. Bytes that
    /// had been received came before; what had not been received is still in the socket.
    Detached {
        /// The former source.
        token: Token,
        /// Its socket, open as it was, an ordinary descriptor that closes when it is dropped. Or why it could
        /// not be made one; then the connection is closed.
        socket: io::Result<S>,
    },
    /// Somebody called the wake handle.
    Woken,
}

/// A datagram as it lies in a receive buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// The local address to answer from, if the socket is bound to all addresses and the system tells.
    pub local: Option<IpAddr>,
    /// Its payload.
    pub payload: &'a [u8],
    /// It was longer than the buffer; the rest is gone.
    pub truncated: bool,
}

/// Something to send in this turn.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The connection or datagram socket.
    pub token: Token,
    /// The bytes; for a datagram the whole payload, in one piece.
    pub bytes: Gather<'a>,
    /// Where a datagram goes; `None` on streams.
    pub to: Option<SocketAddr>,
    /// The local address that a datagram leaves from, if it is of the destination's family; `None`: the system chooses.
    pub from: Option<IpAddr>,
    /// When all bytes were taken, close the connection (as by [`Driver::close`]).
    pub close: bool,
}

impl<'a> Outgoing<'a> {
    /// Bytes for a stream or a pipe.
    pub fn stream(token: Token, bytes: Gather<'a>, close: bool) -> Self {
        Outgoing { token, bytes, to: None, from: None, close }
    }
}

/// A send that did not take all its bytes.
#[derive(Debug)]
pub struct IncompleteSend {
    /// Which of the turn's outgoing items, counted from 0.
    pub position: u32,
    /// Bytes that were taken.
    pub sent: u32,
    /// Why it failed; `None`: it would have blocked.
    pub error: Option<io::Error>,
}

/// How long a turn may wait for news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until this point in time.
    Until(Time),
    /// As long as it takes.
    Forever,
}

/// What a driver counts about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCounters {
    /// System calls of the driver on behalf of its sources: to wait, to submit, and, where that is not done through a
    /// ring, to accept, to receive, to send, to watch and to close.
    pub enters: u64,
    /// Receives that found no free buffer and waited for one.
    pub starved: u64,
    /// Completions for a source that was closed, or whose slot had another tenant by then. Every close that
    /// takes something back leaves at least one: this is no sign of trouble.
    pub stale: u64,
    /// Times the completion queue overflowed in a turn that sent something.
    pub overflows: u64,
}

/// The operating system as a shard sees it. See the module page for what every driver promises.
pub trait Driver: Sized {
    /// An owned descriptor; dropping it closes it.
    type Socket: 'static;

    /// An accepted connection that is not attached yet; dropping it closes it. Not every driver keeps it in
    /// an ordinary descriptor, so only the driver that accepted it takes it.
    type Accepted: From<Self::Socket>;

    /// The name for banners and metrics: `uring`, `poll`, `sim`.
    fn name(&self) -> &'static str;

    /// Makes room for sources with indices below `count`, so that none of them costs an allocation.
    /// Memory that no source uses stays untouched.
    fn reserve(&mut self, count: usize) {
        let _ = count;
    }

    /// Where an accepted connection comes from, if the system tells.
    fn peer(&self, socket: &Self::Accepted) -> Option<IpAddr> {
        let _ = socket;
        None
    }

    /// Adopts a listening socket. Nothing is accepted until [`accept`](Self::accept).
    fn listen(&mut self, token: Token, socket: Self::Socket) -> io::Result<()>;

    /// Accepts connections from now on. May be called while accepting: nothing changes.
    fn accept(&mut self, listener: Token);

    /// Stops accepting; connections accepted before still come. Answered by one `AcceptStopped`
    /// if the listener was accepting. An `accept` that follows before the answer counts: the answer
    /// comes, and accepting goes on behind it. Likewise an `accept` that is paused before the next turn
    /// is answered as if it had begun.
    fn pause_accept(&mut self, listener: Token);

    /// Accepts the oldest connection that waits at a listener at once, however many its `accept` would give. For a
    /// listener that is not accepting, and is to be closed. `None`: nobody waits.
    ///
    /// # Errors
    /// The system's: `EMFILE` and `ENFILE` when one waits and there is no descriptor for it, anything else when the
    /// listener cannot accept.
    fn accept_now(&mut self, listener: Token) -> io::Result<Option<Self::Accepted>>;

    /// Closes the oldest connection that waits at a listener, with a descriptor kept for this purpose:
    /// for an `AcceptStopped` for want of descriptors, so that a peer does not wait for an answer that
    /// cannot come. False: nobody waited, or not even this was possible.
    fn refuse_one(&mut self, listener: Token) -> bool;

    /// Adopts an accepted connection, or a connected socket, pipe end or bound datagram socket. With `readable_now` the caller
    /// expects that data is waiting already (an accepted connection of a deferring listener).
    fn attach(
        &mut self,
        token: Token,
        socket: Self::Accepted,
        kind: SourceKind,
        readable_now: bool,
    ) -> io::Result<()>;

    /// Makes a stream socket and connects it. An error here means that no socket could be made;
    /// the token is then still free.
    fn connect(&mut self, token: Token, to: &Destination) -> io::Result<()>;

    /// Receives once into a shared buffer. On a datagram socket it goes on until `close`: every
    /// datagram is an event of its own.
    fn receive(&mut self, token: Token);

    /// Tells once when there is something to receive; owns no buffer while it waits.
    fn await_readable(&mut self, token: Token);

    /// Takes back a `receive` or `await_readable`. Answered by the event that was about to come, or by
    /// `ReceiveCancelled`, also while it waits for a buffer. Without anything armed it does nothing.
    fn cancel_receive(&mut self, token: Token);

    /// Receives at once into the caller's memory. `Ok(0)` is the end of the stream;
    /// [`io::ErrorKind::WouldBlock`] means that nothing is there.
    fn recv_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize>;

    /// Whether the peer of a stream has reset it, or takes and says nothing any more, as far as the system knows; unread
    /// bytes do not matter. For connections on which nothing is armed. A driver that cannot tell says no. (A ring's own
    /// descriptor does not tell of a reset behind bytes or behind an end.)
    fn is_hung_up(&mut self, token: Token) -> bool {
        let _ = token;
        false
    }

    /// Whether nothing lies unread in a stream on which nothing is armed, not even its end. A driver that cannot tell
    /// says no.
    fn has_no_unread_input(&mut self, token: Token) -> bool {
        let _ = token;
        false
    }

    /// Tells once when the connection takes bytes again.
    fn await_writable(&mut self, token: Token);

    /// Ends our sending direction; the peer sees the end of the stream.
    fn shutdown(&mut self, token: Token);

    /// Closes a source of any kind, taking back whatever is armed. Ends in one `Closed`.
    fn close(&mut self, token: Token);

    /// Gives a stream back with its socket open, taking back whatever is armed. Ends in one `Detached`.
    /// Until then nothing else may be asked of it, not even `close`, and all that was sent has gone in
    /// earlier turns.
    fn detach(&mut self, token: Token);

    /// The bytes of a lent receive buffer, from its start to its capacity.
    fn buffer(&self, buffer: BufferId) -> &[u8];

    /// The datagram in a lent receive buffer.
    fn datagram(&self, buffer: BufferId) -> Datagram<'_>;

    /// Datagrams that the system has dropped at a datagram socket since the socket was made, because its receive buffer
    /// was full or a checksum wrong, modulo 2^32. `None`: the driver cannot tell.
    fn dropped_datagrams(&mut self, token: Token) -> Option<u32> {
        let _ = token;
        None
    }

    /// Gives a receive buffer back.
    fn release(&mut self, buffer: BufferId);

    /// Receive buffers that are lent to the shard now; 0 between turns unless somebody keeps one.
    fn buffers_lent(&self) -> usize;

    /// Carries out all intents and sends, then waits for news as `wait` says, but not when there
    /// is some already; it may also come back without news. News is appended to `events` and `stops`.
    ///
    /// `now` is the caller's time, the one that `Wait::Until` refers to.
    fn turn<'a>(
        &mut self,
        now: Time,
        wait: Wait,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        stops: &mut Vec<IncompleteSend>,
        events: &mut Vec<DriverEvent<Self::Socket, Self::Accepted>>,
    ) -> io::Result<()>;

    /// Something any thread (and a signal handler) may call to end a wait; leads to one `Woken`
    /// for one or more calls.
    fn wake_handle(&self) -> WakeHandle;

    /// A descriptor that polls readable when the system has news for `turn` (intents that were just
    /// made are not news: they take effect in the next turn), for a shard that lives in
    /// a foreign event loop; `None` where the driver has none. It may poll readable once more for
    /// news that a turn has taken already.
    fn waitable(&mut self) -> Option<i32>;

    /// What the driver counted so far.
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
