//! What an embedder writes: a [`Service`] per shard and a [`Session`] per connection.
//!
//! A session is a protocol's state machine. The shard tells it what happened and lends it an
//! [`Io`]; whatever the session asks for takes effect when it returns. It runs on the shard's
//! thread, so it must not block: what takes time belongs into a worker, whose result comes back as
//! mail.

use std::any::Any;
use std::collections::VecDeque;
use std::net::IpAddr;

use stilling_ring::Time;

use super::datagram_io::{DatagramIo, DatagramPath, DatagramSender};
use super::io::{Io, OutputFull};
use super::listener::BacklogPolicy;
use crate::close_reason::CloseReason;
use crate::detached::{AdoptError, AdoptErrorKind, Detached};
use crate::driver::{Datagram, Destination};
use crate::store::{Stash, StashStore};
use crate::token::Token;

/// What [`Session::refused`] is told when this side has no place for a connection. No connect fails like that.
pub const NO_FREE_SLOT: std::io::ErrorKind = std::io::ErrorKind::QuotaExceeded;

/// The receiver of a piece of mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recipient {
    /// A connection: its session is told [`delivered`](Session::delivered).
    Connection(Token),
    /// A peer of a datagram socket: the service is told [`delivered`](Service::delivered), and may send to the peer.
    Peer(DatagramPath),
}

impl From<Token> for Recipient {
    fn from(connection: Token) -> Self {
        Recipient::Connection(connection)
    }
}

impl From<DatagramPath> for Recipient {
    fn from(path: DatagramPath) -> Self {
        Recipient::Peer(path)
    }
}

/// What the sessions of one shard share: configuration, lanes to workers, counters.
pub trait Service: Sized {
    /// The state of one connection.
    type Session: Session<Service = Self>;
    /// What other threads send to a connection, or to a peer of a datagram socket.
    type Mail;

    /// A session for a connection that listener number `listener` (in the order in which they were
    /// added to the shard) has accepted.
    fn accepted(&mut self, listener: u32) -> Self::Session;

    /// The same for a service that wants to know where the connection comes from; asking costs a system call.
    fn accepted_from(&mut self, listener: u32, peer: impl FnOnce() -> Option<IpAddr>) -> Self::Session {
        let _ = peer;
        self.accepted(listener)
    }

    /// The next piece of mail and its receiver. Mail for a connection that is gone, or by a datagram socket that is closed, is
    /// dropped. By default there is none; a service that has some has to say so by [`has_mail`](Service::has_mail), too.
    fn next_mail(&mut self) -> Option<(Recipient, Self::Mail)> {
        None
    }

    /// Whether mail is waiting; asked after the shard has announced that it is about to sleep.
    fn has_mail(&self) -> bool {
        false
    }

    /// A datagram came in by a socket given to
    /// [`Shard::receive_datagrams`](crate::Shard::receive_datagrams).
    fn datagram(&mut self, datagram: &Datagram<'_>, io: &mut DatagramIo<'_>) {
        let _ = (datagram, io);
    }

    /// Mail came for a peer of a datagram socket, which `io` [sends to](DatagramIo::reply).
    fn delivered(&mut self, mail: Self::Mail, io: &mut DatagramIo<'_>) {
        let _ = (mail, io);
    }

    /// Called once per turn, after all events: the place to publish batches and to steer the shard.
    /// Returns when it wants to be called again at the latest.
    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        let _ = control;
        None
    }
}

/// One connection's protocol. All methods but `received` have a sensible default.
pub trait Session: Sized {
    /// What it shares with the other sessions of its shard.
    type Service: Service<Session = Self>;

    /// The connection is up: accepted, or connected.
    fn opened(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (io, service);
    }

    /// Bytes came. `bytes` are all that is unconsumed, older ones first; returns how many it is done
    /// with. The rest is shown again, with more behind it. A session that stops because it paused or
    /// asked for [`Io::call_again`] is called as soon as it can go on, with the rest, which may be empty.
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut Self::Service) -> usize;

    /// The peer will send no more, and has been shown everything that it sent. We may still send.
    fn ended(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = service;
        io.finish(CloseReason::PeerClosed);
    }

    /// All output is with the system again, after it had been held up.
    fn flushed(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (io, service);
    }

    /// So many of the bytes that were offered have been taken, and more may be taken now: see
    /// [`Io::offer`]. It comes once for each offer; if output was held up, instead of `flushed`.
    fn taken(&mut self, count: usize, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (count, io, service);
    }

    /// Mail came.
    fn delivered(
        &mut self,
        mail: <Self::Service as Service>::Mail,
        io: &mut Io<'_>,
        service: &mut Self::Service,
    ) {
        let _ = (mail, io, service);
    }

    /// The deadline that the session had set has come. It is not told while output is held up: then
    /// the write timeout counts, and `flushed` follows (but see [`Io::keep_deadline`]).
    fn deadline(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = service;
        io.abort(CloseReason::IdleTimeout);
    }

    /// The server drains: an idle connection should finish, a busy one after its work.
    fn draining(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = service;
        io.finish(CloseReason::Drained);
    }

    /// The connect failed with this error; `closed` with `ConnectFailed` follows. [`NO_FREE_SLOT`]: the shard has no slot for
    /// it, or lets nobody in any more; the other side has not been asked.
    fn refused(&mut self, error: &std::io::Error, service: &mut Self::Service) {
        let _ = (error, service);
    }

    /// A send failed; what was not sent is lost. Returns whether the session goes on receiving nevertheless, because
    /// the peer may have said something before it stopped listening; otherwise the connection is closed. `nothing_sent`:
    /// this send was the first after all earlier output had gone, and the system took none of it.
    fn unsendable(&mut self, nothing_sent: bool) -> bool {
        let _ = nothing_sent;
        false
    }

    /// The length of the message that begins `bytes`, as this session has sent it; `None` where that is unknown. With it a
    /// slow consumer can be sent a last message ([`slow_consumer`](Session::slow_consumer)). Called for output that the
    /// system has taken in part only. `bytes` may end before the message does: where a shared range follows, or where the
    /// output ends, as each call in which the session sends something has to end with the end of a message.
    fn message_len(&self, bytes: &[u8]) -> Option<usize> {
        let _ = bytes;
        None
    }

    /// The connection ends as a slow consumer: what it has not read is discarded. Called once; nothing can be sent any more.
    /// Returns the last message for the peer, which is sent behind the message that the system has taken in part, if that
    /// is short ([`LAST_MESSAGE_REST_MAX`](crate::limits::LAST_MESSAGE_REST_MAX)) and goes within the write timeout.
    fn slow_consumer(&mut self, service: &mut Self::Service) -> &'static [u8] {
        let _ = service;
        b""
    }

    /// The connection is gone. Called once, last; with `Detached` the session moves on to whoever takes
    /// the socket.
    fn closed(&mut self, reason: CloseReason, service: &mut Self::Service) {
        let _ = (reason, service);
    }
}

/// What a service may have its shard adopt in this turn.
pub(super) struct AdoptContext<'a> {
    /// A `VecDeque` of the driver's sockets, which the service knows by their type only.
    pub(super) sockets: &'a mut dyn Any,
    pub(super) store: &'a mut StashStore,
    /// Slots that nobody has been promised yet.
    pub(super) slots: u32,
}

/// What a service may ask of its shard, once per turn.
pub struct ShardControl<'a, V: Service> {
    /// The time of this turn.
    pub now: Time,
    /// Connections that are open.
    pub open: u32,
    /// Connections that are accepted but have no slot yet, and listeners that are not closed.
    pub(super) pending_arrivals: usize,
    pub(super) datagram_sockets: usize,
    pub(super) commands: &'a mut Vec<ShardCommand<V>>,
    pub(super) adopt_context: AdoptContext<'a>,
    pub(super) datagrams: DatagramSender<'a>,
}

/// Something for the shard to do at the end of a turn.
pub(super) enum ShardCommand<V: Service> {
    Connect(Destination, V::Session),
    /// The next socket is this session's, with bytes that it has not read.
    Adopt(V::Session, Stash),
    CloseListeners(BacklogPolicy),
    CloseDatagramSockets,
    Drain,
    AbortAll(CloseReason),
    Stop,
}

impl<V: Service> ShardControl<'_, V> {
    /// Whether no connection is open, none waits, and none can come any more.
    pub fn is_empty(&self) -> bool {
        self.open == 0 && self.pending_arrivals == 0
    }

    /// The same, whatever datagram sockets there are.
    pub fn is_empty_but_for_datagrams(&self) -> bool {
        self.open == 0 && self.pending_arrivals == self.datagram_sockets
    }

    /// Whether no more connections than `count` are open, none waits, and none can come any more.
    pub fn has_at_most(&self, count: u32) -> bool {
        self.open <= count && self.pending_arrivals == 0
    }

    /// Opens a connection; the session hears `opened`, or `closed` with `ConnectFailed`.
    pub fn connect(&mut self, to: Destination, session: V::Session) {
        self.adopt_context.slots = self.adopt_context.slots.saturating_sub(1);
        self.commands.push(ShardCommand::Connect(to, session));
    }

    /// Accepts nothing more and closes the listeners, and the datagram sockets. Connections that are accepted already are
    /// still served. Connections in the backlog stay for other holders of the listener; without one the system
    /// resets them.
    pub fn close_listeners(&mut self) {
        self.stop_accepting();
        self.close_datagram_sockets();
    }

    /// The same for the listeners alone: datagrams are received on.
    pub fn stop_accepting(&mut self) {
        self.commands.push(ShardCommand::CloseListeners(BacklogPolicy::Leave));
    }

    /// Closes the datagram sockets when everything that the system had received for this shard has been shown to the
    /// service. Datagrams in a socket's queue are left to other holders of the socket.
    pub fn close_datagram_sockets(&mut self) {
        self.commands.push(ShardCommand::CloseDatagramSockets);
    }

    /// Whether a datagram socket of the shard is open.
    pub fn has_datagram_sockets(&self) -> bool {
        self.datagram_sockets > 0
    }

    /// Closes the listeners when nobody waits at them any more: who is in a backlog is accepted, beyond the capacity, too,
    /// as far as there is room to wait for a slot ([`WAITING_ACCEPTS_MAX`](crate::limits::WAITING_ACCEPTS_MAX)). Who comes between the
    /// last look and the close is reset by the system. Those at a listener that others hold as well
    /// ([`Shard::leave_backlog`](crate::Shard::leave_backlog)) are left to them. Datagram sockets stay.
    pub fn empty_and_close_listeners(&mut self) {
        self.commands.push(ShardCommand::CloseListeners(BacklogPolicy::Accept));
    }

    /// Tells every session that the server drains, as soon as it has seen what had come for it: in this
    /// turn, or in the next ones if there is much to do. Sessions that come meanwhile may be told, or not.
    pub fn drain(&mut self) {
        self.commands.push(ShardCommand::Drain);
    }

    /// Closes every connection at once, also those that wait for a slot and those that come from now on.
    /// For the end of a shard. One that had said everything keeps its own reason.
    pub fn abort_all(&mut self, reason: CloseReason) {
        self.commands.push(ShardCommand::AbortAll(reason));
    }

    /// Ends the shard's loop after this turn.
    pub fn stop(&mut self) {
        self.commands.push(ShardCommand::Stop);
    }

    /// Sends a datagram that answers none: one that is sent again, a separate response, a notification. One by a socket
    /// that is closed is dropped, and counted.
    ///
    /// # Errors
    /// [`OutputFull`]: the turn has no more room, of which there is always as much as for 64 KiB of datagrams, each of which
    /// counts some 100 bytes beside its payload; nothing of this one is sent. A service with more to send returns from
    /// [`turn`](Service::turn) that it wants to be called [now](Self::now).
    pub fn send_datagram(&mut self, path: &DatagramPath, payload: &[u8]) -> Result<(), OutputFull> {
        self.datagrams.send(path, payload)
    }

    /// Makes an open stream socket, of the type that the shard's driver uses, a connection at the end of
    /// this turn. Its session is told `opened`, then shown the unread bytes; or, if the driver cannot
    /// take the socket, `closed`.
    ///
    /// # Errors
    /// There is no room; the connection comes back. A service that keeps it for later must not count it
    /// in `has_mail`, or the shard would not sleep until a slot is free.
    pub fn adopt<S: 'static>(
        &mut self,
        connection: Detached<S, V::Session>,
    ) -> Result<(), AdoptError<S, V::Session>> {
        let refused = |error_kind, connection| Err(AdoptError { error_kind, connection });
        let Some(sockets) = self.adopt_context.sockets.downcast_mut::<VecDeque<S>>() else {
            return refused(AdoptErrorKind::ForeignSocket, connection);
        };
        if self.adopt_context.slots == 0 {
            return refused(AdoptErrorKind::Slots, connection);
        }
        let mut input = Stash::default();
        if !input.append(self.adopt_context.store, &connection.unread) {
            return refused(AdoptErrorKind::Input, connection);
        }
        self.adopt_context.slots -= 1;
        sockets.push_back(connection.socket);
        self.commands.push(ShardCommand::Adopt(connection.session, input));
        Ok(())
    }
}
