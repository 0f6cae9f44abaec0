//! The embedder's part: a [`Service`] per shard and a [`Session`] per connection.
//!
//! A session is a protocol's state machine. The shard calls it for each event with an [`Io`]; its requests take effect
//! when the call returns. It runs on the shard's thread and must not block: slow work belongs into a worker, which
//! returns its result as mail.

use std::any::Any;
use std::collections::VecDeque;
use std::net::IpAddr;

use stilling_ring::Time;

use super::datagram_io::{DatagramIo, DatagramPath, DatagramSender, PassedDatagram};
use super::io::{Io, OutputFull};
use super::listener::BacklogPolicy;
use crate::close_reason::CloseReason;
use crate::detached::{AdoptError, AdoptErrorKind, Detached};
use crate::driver::{Datagram, Destination};
use crate::store::{Stash, StashStore};
use crate::token::Token;

/// The error of [`Session::connect_failed`] when the shard has no slot for a connection. The system does not return it
/// for a connect.
pub const NO_FREE_SLOT: std::io::ErrorKind = std::io::ErrorKind::QuotaExceeded;

/// The recipient of a piece of mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recipient {
    /// A connection: its session gets [`delivered`](Session::delivered).
    Connection(Token),
    /// A peer of a datagram socket: the service gets [`delivered`](Service::delivered).
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

/// The state shared by the sessions of one shard, such as configuration, queues to workers, counters.
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

    /// The next piece of mail and its recipient. Mail for a closed connection or datagram socket is dropped. A service
    /// with mail implements [`has_mail`](Service::has_mail), too.
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

    /// A datagram was received, also one that a full ring drops, or was accepted by the system for sending; for a log of
    /// all datagrams. Only with [`ShardConfig::reports_datagrams`](crate::ShardConfig::reports_datagrams).
    fn datagram_passed(&mut self, now: Time, path: &DatagramPath, datagram: &PassedDatagram<'_>) {
        let _ = (now, path, datagram);
    }

    /// Mail arrived for a peer of a datagram socket; [`reply`](DatagramIo::reply) sends to that peer.
    fn delivered(&mut self, mail: Self::Mail, io: &mut DatagramIo<'_>) {
        let _ = (mail, io);
    }

    /// Called once per turn, after all events, to publish batches and to control the shard. Returns the latest time of
    /// the next call.
    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        let _ = control;
        None
    }
}

/// One connection's protocol.
pub trait Session: Sized {
    /// The state shared with the other sessions of its shard.
    type Service: Service<Session = Self>;

    /// The connection is open: accepted, or connected.
    fn opened(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (io, service);
    }

    /// Bytes arrived. `bytes` are all unconsumed bytes, oldest first; returns how many are consumed. The rest is shown
    /// again with later bytes appended. After [`Io::resume`] or [`Io::call_again`] it is called with the rest, which
    /// may be empty.
    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut Self::Service) -> usize;

    /// There is something to receive on an on-demand connection, an end or a failure: the call that
    /// [`Io::await_readable`] has requested. Nothing was consumed.
    fn readable(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (io, service);
    }

    /// An on-demand connection can send, or sending fails: the call that [`Io::await_writable`] has requested.
    fn writable(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (io, service);
    }

    /// The peer has ended its sending direction, and the session was shown all its bytes. Sending is still possible.
    fn ended(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = service;
        io.finish(CloseReason::PeerClosed);
    }

    /// All output that was blocked has been sent.
    fn flushed(&mut self, io: &mut Io<'_>, service: &mut Self::Service) {
        let _ = (io, service);
    }

    /// `count` of the offered bytes were sent, and more may be offered now: see [`Io::offer`]. Called once for each
    /// offer, in place of `flushed`.
    fn offer_sent(&mut self, count: usize, io: &mut Io<'_>, service: &mut Self::Service) {
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

    /// The session's deadline has expired. While output is blocked, only the write timeout applies (but see
    /// [`Io::keep_deadline`]).
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
    /// slot, or aborts all connections; the peer was not contacted.
    fn connect_failed(&mut self, error: &std::io::Error, service: &mut Self::Service) {
        let _ = (error, service);
    }

    /// A send failed; unsent bytes are lost. Returns whether to continue to receive, because the peer may have sent a
    /// response before it stopped reading; otherwise the connection is closed. `nothing_sent`: all earlier output had
    /// been sent, and no byte of this send was.
    fn send_error(&mut self, nothing_sent: bool) -> bool {
        let _ = nothing_sent;
        false
    }

    /// The length of the message at the start of `bytes`, a part of this session's output; `None` if unknown. It allows
    /// a last message for a slow consumer ([`slow_consumer`](Session::slow_consumer)). Called only for output that was
    /// sent in part. `bytes` may end before the message does, where a shared range follows. Each call of the session
    /// must send whole messages.
    fn message_len(&self, bytes: &[u8]) -> Option<usize> {
        let _ = bytes;
        None
    }

    /// The connection ends as a slow consumer: its unsent output is discarded, except the rest of a partly sent
    /// message. Called once. Returns the last message for the peer, which is sent after that rest, if the rest is at
    /// most [`PARTIAL_MESSAGE_REST_MAX`](crate::limits::PARTIAL_MESSAGE_REST_MAX) and both can be sent within the write
    /// timeout.
    fn slow_consumer(&mut self, service: &mut Self::Service) -> &'static [u8] {
        let _ = service;
        b""
    }

    /// The connection is closed. Called once, as the last method; with `Detached` the session goes to
    /// [`Shard::on_detached`](crate::Shard::on_detached).
    fn closed(&mut self, reason: CloseReason, service: &mut Self::Service) {
        let _ = (reason, service);
    }
}

pub(super) struct AdoptContext<'a> {
    /// A `VecDeque` of the driver's socket type, which the service does not know.
    pub(super) sockets: &'a mut dyn Any,
    pub(super) store: &'a mut StashStore,
    /// Free slots for adopted connections that no command has claimed yet.
    pub(super) slots: u32,
    /// The same for connects only.
    pub(super) reserved_slots: u32,
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
    pub(super) receiving_datagram_sockets: usize,
    /// This turn has received datagrams.
    pub(super) has_datagrams: bool,
    pub(super) commands: &'a mut Vec<ShardCommand<V>>,
    pub(super) adopt_context: AdoptContext<'a>,
    pub(super) datagrams: DatagramSender<'a>,
}

pub(super) enum ShardCommand<V: Service> {
    Connect(Destination, V::Session),
    /// Makes the next socket an outgoing connection with this session.
    ConnectOpen(V::Session),
    /// Adopts the next socket with this session and its unread bytes.
    Adopt(V::Session, Stash),
    CloseListeners(BacklogPolicy),
    CloseDatagramSockets,
    StopDatagramSockets,
    Drain,
    AbortAll(CloseReason),
    Stop,
}

impl<V: Service> ShardControl<'_, V> {
    /// Whether no connection is open or waiting, and no listener or datagram socket is open.
    pub fn is_empty(&self) -> bool {
        self.open == 0 && self.pending_arrivals == 0
    }

    /// The same, except for datagram sockets.
    pub fn is_empty_except_datagrams(&self) -> bool {
        self.open == 0 && self.pending_arrivals == self.datagram_sockets
    }

    /// Whether at most `count` connections are open, none is waiting, and no listener or datagram socket is open.
    pub fn has_at_most(&self, count: u32) -> bool {
        self.open <= count && self.pending_arrivals == 0
    }

    /// Opens a connection; the session gets `opened`, or `closed` with `ConnectFailed`.
    pub fn connect(&mut self, to: Destination, session: V::Session) {
        self.claim_slot_for_connect();
        self.commands.push(ShardCommand::Connect(to, session));
    }

    /// Makes an open stream socket an outgoing connection: as [`connect`](Self::connect), but it is connected already.
    /// Other descriptors of the socket may outlive the connection.
    ///
    /// # Panics
    /// If the shard's driver uses another type of socket.
    pub fn connect_open<S: 'static>(&mut self, socket: S, session: V::Session) {
        self.claim_slot_for_connect();
        let sockets = self.adopt_context.sockets.downcast_mut::<VecDeque<S>>();
        sockets.expect("a socket of the driver's type").push_back(socket);
        self.commands.push(ShardCommand::ConnectOpen(session));
    }

    fn claim_slot_for_connect(&mut self) {
        let AdoptContext { slots, reserved_slots, .. } = &mut self.adopt_context;
        let claimed = if *reserved_slots > 0 { reserved_slots } else { slots };
        *claimed = claimed.saturating_sub(1);
    }

    /// Closes the listeners and the datagram sockets. Accepted connections are still served. Connections in a backlog
    /// stay for other holders of the listener; without one the system resets them.
    pub fn close_listeners(&mut self) {
        self.close_stream_listeners();
        self.close_datagram_sockets();
    }

    /// The same for the listeners only.
    pub fn close_stream_listeners(&mut self) {
        self.commands.push(ShardCommand::CloseListeners(BacklogPolicy::Leave));
    }

    /// Closes the datagram sockets after the service got all datagrams that are already in receive buffers. Datagrams
    /// in a socket's queue stay for other holders of the socket.
    pub fn close_datagram_sockets(&mut self) {
        self.commands.push(ShardCommand::CloseDatagramSockets);
    }

    /// Stops receiving datagrams, as [`close_datagram_sockets`](Self::close_datagram_sockets) does, but keeps the sockets
    /// open for sending. Takes effect after this turn.
    pub fn stop_datagram_sockets(&mut self) {
        self.commands.push(ShardCommand::StopDatagramSockets);
    }

    /// Whether the service may still get datagrams.
    pub fn receives_datagrams(&self) -> bool {
        self.receiving_datagram_sockets > 0
    }

    /// Whether this turn has received datagrams: their sockets may have more.
    pub fn has_received_datagrams(&self) -> bool {
        self.has_datagrams
    }

    /// Whether a datagram socket of the shard is open.
    pub fn has_datagram_sockets(&self) -> bool {
        self.datagram_sockets > 0
    }

    /// Accepts the connections in the backlogs, also beyond the capacity (up to
    /// [`WAITING_ACCEPTS_MAX`](crate::limits::WAITING_ACCEPTS_MAX) wait for a slot), then closes the listeners. The
    /// system resets a connection that arrives in between. Listeners with other holders
    /// ([`Shard::leave_backlog`](crate::Shard::leave_backlog)) are only closed. Datagram sockets stay.
    pub fn accept_backlogs_and_close_listeners(&mut self) {
        self.commands.push(ShardCommand::CloseListeners(BacklogPolicy::Accept));
    }

    /// Notifies every session of the drain, after the events that have already arrived for it, in this turn or the next
    /// ones. Sessions created meanwhile may be notified or not.
    pub fn drain(&mut self) {
        self.commands.push(ShardCommand::Drain);
    }

    /// Closes every connection at once, also waiting and later ones, before the shard stops. A connection that is
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
    /// [`OutputFull`]: the turn has no more room (at least 64 KiB per call of [`turn`](Service::turn); each datagram
    /// counts some 100 bytes beside its payload), and the datagram is not sent. To send more, return [`now`](Self::now)
    /// from [`turn`](Service::turn).
    pub fn send_datagram(&mut self, path: &DatagramPath, payload: &[u8]) -> Result<(), OutputFull> {
        self.datagrams.send(path, payload)
    }

    /// Makes an open stream socket, of the type that the shard's driver uses, a connection at the end of this turn. Its
    /// session gets `opened`, then the unread bytes; or `closed`, if the driver cannot use the socket.
    ///
    /// # Errors
    /// There is no room; the error returns the connection. While a service keeps it for a retry, `has_mail` must not
    /// return true for it: the shard would not sleep until a slot is free.
    pub fn adopt<S: 'static>(
        &mut self,
        connection: Detached<S, V::Session>,
    ) -> Result<(), AdoptError<S, V::Session>> {
        let rejected = |error_kind, connection| Err(AdoptError { error_kind, connection });
        let Some(sockets) = self.adopt_context.sockets.downcast_mut::<VecDeque<S>>() else {
            return rejected(AdoptErrorKind::ForeignSocket, connection);
        };
        if self.adopt_context.slots == 0 {
            return rejected(AdoptErrorKind::NoFreeSlot, connection);
        }
        let mut input = Stash::default();
        if !input.append(self.adopt_context.store, &connection.unread) {
            return rejected(AdoptErrorKind::InputFull, connection);
        }
        self.adopt_context.slots -= 1;
        sockets.push_back(connection.socket);
        self.commands.push(ShardCommand::Adopt(connection.session, input));
        Ok(())
    }
}
