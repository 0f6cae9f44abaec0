//! The embedder's part: a [`Service`] per shard and a [`Session`] per connection.
//!
//! A session is a protocol's state machine. The shard notifies it of events and lends it an [`Io`]; the session's
//! requests take effect when it returns. It runs on the shard's thread and must not block: slow work belongs into a
//! worker, which returns its result as mail.

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

/// The error of [`Session::refused`] when the shard has no slot for a connection. No real connect fails with it.
pub const NO_FREE_SLOT: std::io::ErrorKind = std::io::ErrorKind::QuotaExceeded;

/// The receiver of a piece of mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recipient {
    /// A connection: its session gets [`delivered`](Session::delivered).
    Connection(Token),
    /// A peer of a datagram socket: the service gets [`delivered`](Service::delivered), and may send to the peer.
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

/// The shared state of the sessions of one shard: configuration, lanes to workers, counters.
pub trait Service: Sized {
    /// The state of one connection.
    type Session: Session<Service = Self>;
    /// A message from another thread to a connection, or to a peer of a datagram socket.
    type Mail;

    /// A session for a connection that listener number `listener` (in the order in which they were added to the shard)
    /// has accepted.
    fn accepted(&mut self, listener: u32) -> Self::Session;

    /// The same for a service that needs the peer's address; calling `peer` costs a system call.
    fn accepted_from(&mut self, listener: u32, peer: impl FnOnce() -> Option<IpAddr>) -> Self::Session {
        let _ = peer;
        self.accepted(listener)
    }

    /// The next piece of mail and its receiver. Mail for a closed connection or datagram socket is dropped. By default
    /// there is none; a service with mail implements [`has_mail`](Service::has_mail), too.
    fn next_mail(&mut self) -> Option<(Recipient, Self::Mail)> {
        None
    }

    /// Whether mail is waiting; called after the shard has announced a sleep.
    fn has_mail(&self) -> bool {
        false
    }

    /// A datagram arrived at a socket of [`Shard::receive_datagrams`](crate::Shard::receive_datagrams).
    fn datagram(&mut self, datagram: &Datagram<'_>, io: &mut DatagramIo<'_>) {
        let _ = (datagram, io);
    }

    /// Mail arrived for a peer of a datagram socket; [`reply`](DatagramIo::reply) sends to that peer.
    fn delivered(&mut self, mail: Self::Mail, io: &mut DatagramIo<'_>) {
        let _ = (mail, io);
    }

    /// Called once per turn, after all events: the place to publish batches and to control the shard. Returns the
    /// latest time of the next call.
    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        let _ = control;
        None
    }
}

/// One connection's protocol. All methods but `received` have a default.
pub trait Session: Sized {
    /// The state shared with the other sessions of its shard.
    type Service: Service<Session = Self>;

    /// The connection is open: accepted, or connected.
    fn opened(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (io, service);
    }

    /// Bytes arrived. `bytes` are all unconsumed ones, oldest first; returns how many are consumed. The rest is shown
    /// again with later bytes appended. A session that stops because it paused or called [`Io::call_again`] is called
    /// as soon as it can continue, with the rest, which may be empty.
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut Self::Service) -> usize;

    /// The peer has ended its sending direction, and the session has seen all its bytes. Sending is still possible.
    fn ended(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = service;
        io.finish(CloseReason::PeerClosed);
    }

    /// All output that was held up has been sent.
    fn flushed(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (io, service);
    }

    /// `count` of the offered bytes were sent, and more may be offered now: see [`Io::offer`]. Called once for each
    /// offer; if output was held up, instead of `flushed`.
    fn taken(&mut self, count: usize, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (count, io, service);
    }

    /// Mail arrived.
    fn delivered(
        &mut self,
        mail: <Self::Service as Service>::Mail,
        io: &mut Io<'_>,
        service: &mut Self::Service,
    ) {
        let _ = (mail, io, service);
    }

    /// The session's deadline has come. Not called while output is held up: then the write timeout applies, and
    /// `flushed` follows (but see [`Io::keep_deadline`]).
    fn deadline(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = service;
        io.abort(CloseReason::IdleTimeout);
    }

    /// The server drains: an idle connection should finish now, a busy one after its work.
    fn draining(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = service;
        io.finish(CloseReason::Drained);
    }

    /// The connect failed with this error; `closed` with `ConnectFailed` follows. [`NO_FREE_SLOT`]: the shard has no
    /// slot for it, or admits no more connections; the peer was not contacted.
    fn refused(&mut self, error: &std::io::Error, service: &mut Self::Service) {
        let _ = (error, service);
    }

    /// A send failed; unsent bytes are lost. Returns whether the session continues to receive, because the peer may
    /// have sent something before it stopped reading; otherwise the connection is closed. `nothing_sent`: this send was
    /// the first after all earlier output, and none of it was sent.
    fn unsendable(&mut self, nothing_sent: bool) -> bool {
        let _ = nothing_sent;
        false
    }

    /// The length of the message at the start of `bytes`, which this session has sent; `None` if unknown. It allows a
    /// last message for a slow consumer ([`slow_consumer`](Session::slow_consumer)). Called only for output that was
    /// sent in part. `bytes` may end before the message does: where a shared range follows, or at the end of the
    /// output, because each call in which the session sends has to end at the end of a message.
    fn message_len(&self, bytes: &[u8]) -> Option<usize> {
        let _ = bytes;
        None
    }

    /// The connection ends as a slow consumer: its unread output is discarded. Called once; nothing can be sent any
    /// more. Returns the last message for the peer. It is sent after the partly sent message, if the rest of that is
    /// short ([`LAST_MESSAGE_REST_MAX`](crate::limits::LAST_MESSAGE_REST_MAX)) and can be sent within the write
    /// timeout.
    fn slow_consumer(&mut self, service: &mut Self::Service) -> &'static [u8] {
        let _ = service;
        b""
    }

    /// The connection is closed. Called once, as the last method; with `Detached` the session moves on to the new owner
    /// of the socket.
    fn closed(&mut self, reason: CloseReason, service: &mut Self::Service) {
        let _ = (reason, service);
    }
}

pub(super) struct AdoptContext<'a> {
    /// A `VecDeque` of the driver's sockets; the service does not know their type.
    pub(super) sockets: &'a mut dyn Any,
    pub(super) store: &'a mut StashStore,
    /// Free slots that no command has claimed yet.
    pub(super) slots: u32,
}

/// Commands of a service to its shard, once per turn.
pub struct ShardControl<'a, V: Service> {
    /// The time of this turn.
    pub now: Time,
    /// Connections open now.
    pub open: u32,
    /// Accepted connections without a slot, and listeners that are not closed.
    pub(super) pending_arrivals: usize,
    pub(super) datagram_sockets: usize,
    pub(super) commands: &'a mut Vec<ShardCommand<V>>,
    pub(super) adopt_context: AdoptContext<'a>,
    pub(super) datagrams: DatagramSender<'a>,
}

pub(super) enum ShardCommand<V: Service> {
    Connect(Destination, V::Session),
    /// Adopts the next socket with this session and its unread bytes.
    Adopt(V::Session, Stash),
    CloseListeners(BacklogPolicy),
    CloseDatagramSockets,
    Drain,
    AbortAll(CloseReason),
    Stop,
}

impl<V: Service> ShardControl<'_, V> {
    /// Whether no connection is open or waiting, and none can arrive any more.
    pub fn is_empty(&self) -> bool {
        self.open == 0 && self.pending_arrivals == 0
    }

    /// The same, not counting datagram sockets.
    pub fn is_empty_but_for_datagrams(&self) -> bool {
        self.open == 0 && self.pending_arrivals == self.datagram_sockets
    }

    /// Whether at most `count` connections are open, none is waiting, and none can arrive any more.
    pub fn has_at_most(&self, count: u32) -> bool {
        self.open <= count && self.pending_arrivals == 0
    }

    /// Opens a connection; the session gets `opened`, or `closed` with `ConnectFailed`.
    pub fn connect(&mut self, to: Destination, session: V::Session) {
        self.adopt_context.slots = self.adopt_context.slots.saturating_sub(1);
        self.commands.push(ShardCommand::Connect(to, session));
    }

    /// Stops accepting and closes the listeners and the datagram sockets. Accepted connections are still served.
    /// Connections in the backlog stay for other holders of the listener; without one the system resets them.
    pub fn close_listeners(&mut self) {
        self.stop_accepting();
        self.close_datagram_sockets();
    }

    /// The same for the listeners only: datagrams are still received.
    pub fn stop_accepting(&mut self) {
        self.commands.push(ShardCommand::CloseListeners(BacklogPolicy::Leave));
    }

    /// Closes the datagram sockets after the service has received all datagrams that the system had received for this
    /// shard. Datagrams in a socket's queue stay for other holders of the socket.
    pub fn close_datagram_sockets(&mut self) {
        self.commands.push(ShardCommand::CloseDatagramSockets);
    }

    /// Whether a datagram socket of the shard is open.
    pub fn has_datagram_sockets(&self) -> bool {
        self.datagram_sockets > 0
    }

    /// Closes the listeners when their backlogs are empty: waiting connections are accepted, also beyond the capacity,
    /// as far as there is room to wait for a slot ([`WAITING_ACCEPTS_MAX`](crate::limits::WAITING_ACCEPTS_MAX)). The
    /// system resets a connection that arrives between the last accept and the close. Connections at a listener with
    /// other holders ([`Shard::leave_backlog`](crate::Shard::leave_backlog)) are left to them. Datagram sockets stay.
    pub fn empty_and_close_listeners(&mut self) {
        self.commands.push(ShardCommand::CloseListeners(BacklogPolicy::Accept));
    }

    /// Notifies every session of the drain, after the events that have already arrived for it: in this turn, or in the
    /// next ones if there is much to do. Sessions created meanwhile may be notified or not.
    pub fn drain(&mut self) {
        self.commands.push(ShardCommand::Drain);
    }

    /// Closes every connection at once, also waiting and later ones. For the end of a shard. A connection that is
    /// already ending keeps its reason.
    pub fn abort_all(&mut self, reason: CloseReason) {
        self.commands.push(ShardCommand::AbortAll(reason));
    }

    /// Ends the shard's loop after this turn.
    pub fn stop(&mut self) {
        self.commands.push(ShardCommand::Stop);
    }

    /// Sends a datagram outside of a callback: a retransmission, a separate response, a notification. A datagram for a
    /// closed socket is dropped and counted.
    ///
    /// # Errors
    /// [`OutputFull`]: the turn has no more room; there is always room for 64 KiB of datagrams, each of which counts
    /// some 100 bytes beside its payload. Nothing of this datagram is sent. A service with more to send returns
    /// [`now`](Self::now) from [`turn`](Service::turn).
    pub fn send_datagram(&mut self, path: &DatagramPath, payload: &[u8]) -> Result<(), OutputFull> {
        self.datagrams.send(path, payload)
    }

    /// Makes an open stream socket, of the type that the shard's driver uses, a connection at the end of this turn. Its
    /// session gets `opened`, then the unread bytes; or `closed`, if the driver cannot use the socket.
    ///
    /// # Errors
    /// There is no room; the error returns the connection. A service that keeps it for later must not count it in
    /// `has_mail`, or the shard does not sleep until a slot is free.
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
