//! Detaching and adopting connections.
//!
//! A connection is detached in three steps: its output is sent (as for a close), the driver releases the socket, the
//! session gets `closed` and goes to the detach handler. In the second step `Detached` is pending, so a connection that
//! has to end meanwhile only records that; its socket is closed with the event.

use std::io;

use stilling_ring::planted;

use super::Shard;
use super::connection::{CloseIntent, ConnectionState, ConnectionTimer, NEVER, PendingCall};
use super::output::{AfterSend, TurnStage};
use super::session::{Service, Session};
use crate::close_reason::CloseReason;
use crate::detached::{AdoptError, AdoptErrorKind, Detached};
use crate::driver::{Driver, SourceKind};
use crate::limits::LISTENERS_MAX;
use crate::store::Stash;
use crate::token::Token;

pub(super) type DetachHandler<V, S> = Box<dyn FnMut(&mut V, Detached<S, <V as Service>::Session>)>;

impl<D: Driver, V: Service> Shard<D, V> {
    /// Sets the handler for connections detached with [`Io::detach`](super::Io::detach), which passes them to their new
    /// owner. It runs on the shard's thread and must not block. Without a handler, the sockets are closed.
    pub fn on_detached(
        &mut self,
        detach_handler: impl FnMut(&mut V, Detached<D::Socket, V::Session>) + 'static,
    ) {
        self.detach_handler = Some(Box::new(detach_handler));
    }

    /// Makes an open stream socket a connection of this shard. Its session gets `opened`, then the unread bytes; or
    /// `closed`, if the driver cannot use the socket. The caller must run a turn afterwards.
    ///
    /// # Errors
    /// There is no room; the error returns the connection.
    pub fn adopt(
        &mut self,
        connection: Detached<D::Socket, V::Session>,
    ) -> Result<Token, AdoptError<D::Socket, V::Session>> {
        let rejected = |error_kind, connection| Err(AdoptError { error_kind, connection });
        if self.slots.is_full() {
            return rejected(AdoptErrorKind::NoFreeSlot, connection);
        }
        if !self.output.has_room_for(TurnStage::Events) {
            return rejected(AdoptErrorKind::OutputFull, connection);
        }
        let mut input = Stash::default();
        if !input.append(&mut self.held_input, &connection.unread) {
            return rejected(AdoptErrorKind::InputFull, connection);
        }
        // The last turn may be long ago, and the session sets its deadlines relative to now.
        self.now = self.clock.now();
        self.may_have_intents = true;
        Ok(self.insert_adopted(connection.socket, SourceKind::Stream, connection.session, input))
    }

    /// Makes a bound or connected datagram socket a source of this shard that is used like an
    /// [on-demand](super::Io::receive_on_demand) connection, with [`receive_from_now`](Self::receive_from_now) and
    /// [`send_to_now`](Self::send_to_now): its session must call `receive_on_demand` in `opened`. It has a slot and is
    /// counted like a connection. The caller must run a turn afterwards.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    pub fn adopt_datagram_socket(
        &mut self,
        socket: D::Socket,
        session: V::Session,
    ) -> Result<Token, AdoptError<D::Socket, V::Session>> {
        let connection = Detached::new(socket, session);
        if self.slots.is_full() {
            return Err(AdoptError { error_kind: AdoptErrorKind::NoFreeSlot, connection });
        }
        if !self.output.has_room_for(TurnStage::Events) {
            return Err(AdoptError { error_kind: AdoptErrorKind::OutputFull, connection });
        }
        self.now = self.clock.now();
        self.may_have_intents = true;
        let Detached { session, socket, .. } = connection;
        Ok(self.insert_adopted(socket, SourceKind::Datagram, session, Stash::default()))
    }

    /// Inserts a connection into a free slot, which the caller guarantees.
    pub(super) fn insert_adopted(
        &mut self,
        socket: D::Socket,
        kind: SourceKind,
        session: V::Session,
        input: Stash,
    ) -> Token {
        let token = self.slots.insert(session).expect("the caller keeps a slot free");
        let connection = &mut self.slots.get(token).expect("just inserted").connection;
        connection.input = input;
        if !connection.input.is_empty() {
            connection.pending_call = PendingCall::Received;
        }
        self.counters.adopted.add(1);
        self.update_open_counters();
        if self.slots.is_full() {
            self.close_gate();
        }
        match self.driver.attach(token, socket.into(), kind, false) {
            Ok(()) => self.call(token, Session::opened),
            Err(_) => self.free_unattached(token),
        }
        if let Some(reason) = self.aborting {
            self.abort_connection(token, reason);
        }
        token
    }

    /// Requests the socket from the driver as soon as the output is sent.
    pub(super) fn detach_when_sent(&mut self, token: Token) {
        let connection = &mut self.slots.get(token).expect("the caller looked it up").connection;
        if connection.blocked {
            return;
        }
        if let Some(item) = self.output.items.get_mut(connection.link as usize) {
            item.after = AfterSend::Revisit;
            return;
        }
        connection.state = ConnectionState::Detaching;
        (connection.deadline, connection.timer) = (NEVER, ConnectionTimer::Never);
        self.driver.detach(token);
    }

    pub(super) fn on_detached_event(&mut self, token: Token, socket: io::Result<D::Socket>) {
        if token.index() < LISTENERS_MAX {
            return self.on_listener_detached(token, socket);
        }
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if connection.finish == CloseIntent::Abort {
            drop(socket);
            return self.on_closed(token);
        }
        let Ok(socket) = socket else {
            connection.reason = CloseReason::SystemError;
            return self.on_closed(token);
        };
        let unread = match planted!("lost unread") {
            true => Vec::new(),
            false => connection.input.bytes(&self.held_input).to_vec(),
        };
        let session = self.free_connection(token).expect("it has a slot");
        if let Some(detach_handler) = &mut self.detach_handler {
            detach_handler(&mut self.service, Detached { session, socket, unread });
        }
        self.resume_accepting();
    }
}
