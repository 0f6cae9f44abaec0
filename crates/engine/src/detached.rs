//! A connection on its way: out of one shard, and perhaps into another.
//!
//! A session that needs what a shard cannot give (blocking reads, an event loop of its own) asks for its
//! socket with [`Io::detach`](crate::Io::detach). When all output is with the system and nothing of the
//! connection is in flight, the shard lets go of it and hands over a [`Detached`]: to whoever was named
//! with [`Shard::on_detached`](crate::Shard::on_detached), who serves it on a thread of their own, or has
//! another shard adopt it.
//!
//! ```text
//!  Io::detach ─▶ output gone ─▶ driver lets go ─▶ Session::closed(Detached) ─▶ on_detached ─┬▶ a thread
//!                                                                                           └▶ Shard::adopt
//! ```
//!
//! Hazards: the socket comes as it is. A driver's sockets may be non-blocking, so a thread that serves one
//! synchronously calls [`net::set_blocking`](crate::net::set_blocking) first, and sets timeouts, because
//! the shard's no longer count. And `unread` comes before what is in the socket.

/// An open connection that no shard has.
#[derive(Debug)]
pub struct Detached<S, N> {
    /// The state of its protocol.
    pub session: N,
    /// Its socket: an `OwnedFd` on the real drivers, wherever the driver kept it. Dropping it closes it.
    pub socket: S,
    /// Bytes that were received and not consumed; what is in the socket comes behind them. At most
    /// [`STASH_MAX`](crate::store::STASH_MAX).
    pub unread: Vec<u8>,
}

impl<S, N> Detached<S, N> {
    /// A connected socket of which nothing was read.
    pub fn new(socket: S, session: N) -> Self {
        Detached { session, socket, unread: Vec::new() }
    }

    /// The same connection under another session.
    pub fn with_session<M>(self, session: impl FnOnce(N) -> M) -> Detached<S, M> {
        Detached { session: session(self.session), socket: self.socket, unread: self.unread }
    }
}

/// Why a shard did not adopt a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdoptErrorKind {
    /// All slots are taken, until a connection closes.
    Slots,
    /// This turn's output has no room for what the session may send: try again after a turn.
    Output,
    /// The unread bytes have no room in the shard's input store, or are more than a stash may hold.
    Input,
    /// The shard's driver has another kind of socket: the caller's mistake.
    ForeignSocket,
}

/// A connection that a shard did not adopt: it is the caller's again, as it was.
#[derive(Debug)]
pub struct AdoptError<S, N> {
    /// Why.
    pub error_kind: AdoptErrorKind,
    /// The connection.
    pub connection: Detached<S, N>,
}
