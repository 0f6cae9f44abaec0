//! Detached connections: released by one shard, for a thread or another shard.
//!
//! A session that needs blocking reads or an event loop of its own detaches its socket with
//! [`Io::detach`](crate::Io::detach). When all output is sent and no operation on the socket is in flight, the shard
//! passes a [`Detached`] to the callback of [`Shard::on_detached`](crate::Shard::on_detached), which passes it to
//! another thread or another shard.
//!
//! ```text
//!  Io::detach ─▶ output sent ─▶ driver releases ─▶ Session::closed(Detached) ─▶ on_detached ─┬▶ a thread
//!                                                                                            └▶ Shard::adopt
//! ```
//!
//! Hazards:
//! - The socket may be non-blocking. A thread that serves it synchronously calls
//!   [`net::set_blocking`](crate::net::set_blocking) first, and sets timeouts, because those of the shard no longer
//!   apply.
//! - `unread` comes before the bytes in the socket.

/// An open connection that belongs to no shard.
#[derive(Debug)]
pub struct Detached<S, N> {
    /// Its session.
    pub session: N,
    /// Its socket: an `OwnedFd` on the real drivers. Dropping it closes it.
    pub socket: S,
    /// Received bytes that the session has not consumed; those in the socket follow. At most
    /// [`STASH_MAX`](crate::store::STASH_MAX).
    pub unread: Vec<u8>,
}

impl<S, N> Detached<S, N> {
    /// A connected socket from which nothing was read.
    pub fn new(socket: S, session: N) -> Self {
        Detached { session, socket, unread: Vec::new() }
    }

    /// The same connection with another session.
    pub fn with_session<M>(self, session: impl FnOnce(N) -> M) -> Detached<S, M> {
        Detached { session: session(self.session), socket: self.socket, unread: self.unread }
    }
}

/// The reason why a shard did not adopt a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdoptErrorKind {
    /// All slots are in use, until a connection closes.
    NoFreeSlot,
    /// This turn's output has no room for the session's: retry after a turn.
    OutputFull,
    /// The shard's input store has no room for the unread bytes, or they exceed `STASH_MAX`.
    InputFull,
    /// The shard's driver uses another kind of socket: an error of the caller.
    ForeignSocket,
}

/// A connection that a shard did not adopt, returned unchanged.
#[derive(Debug)]
pub struct AdoptError<S, N> {
    /// The reason.
    pub error_kind: AdoptErrorKind,
    /// The connection.
    pub connection: Detached<S, N>,
}
