//! Actions on connections and listeners between two turns, by the owner of a shard in a foreign event loop.

use std::io;
use std::net::SocketAddr;

use stilling_ring::planted;

use super::Shard;
use super::connection::ConnectionState;
use super::io::Io;
use super::listener::{ListenerState, ShardListener};
use super::output::TurnStage;
use super::session::Service;
use crate::close_reason::CloseReason;
use crate::driver::{Destination, Driver, SourceDescriptor};
use crate::net;
use crate::token::Token;

/// A connect that was not started; the session is returned without a call.
#[derive(Debug)]
pub struct ConnectError<N> {
    /// [`NO_FREE_SLOT`](super::NO_FREE_SLOT), or the error of creating or binding the socket.
    pub error: io::Error,
    /// The session.
    pub session: N,
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// Calls `act` on an open connection, like a method of its session. The requests of [`Io`] take effect when `act`
    /// returns, or in the next turn if this one has no more room; output is sent with the next turn, which the caller
    /// must run. Returns `None`, without a call of `act`, if the connection is not open.
    ///
    /// All such calls between two turns share one turn's room for output: when that is used up, [`Io::room`] is zero
    /// until the next turn.
    pub fn with<R>(
        &mut self,
        token: Token,
        act: impl FnOnce(&mut V::Session, &mut Io<'_>) -> R,
    ) -> Option<R> {
        let slot = self.slots.get(token).filter(|slot| slot.connection.state == ConnectionState::Open)?;
        // The last turn may be long ago, and the session sets its deadlines relative to now.
        self.now = self.clock.now();
        // That a receive of the last turn emptied the socket is outdated.
        self.turn_number = self.turn_number.wrapping_add(1);
        self.may_have_intents = true;
        let room = self.output.room_between_turns();
        let session = slot.session.as_mut().expect("a used slot has a session");
        let lent = (&mut self.output, &mut self.held_output, &mut self.blocks);
        let mut io = Io::new(token, self.now, &mut slot.connection, lent).with_room(room);
        let outcome = act(session, &mut io);
        self.enforce_output_budget(token);
        if self.output.has_room_for(TurnStage::Events) {
            self.run_steps(token);
        } else {
            // Another call of its session may be due, for which this turn has no room.
            self.to_revisit.push(token);
        }
        Some(outcome)
    }

    /// The stored unconsumed input of a connection; empty if the connection is closed.
    pub fn unread(&mut self, token: Token) -> &[u8] {
        match self.slots.get(token) {
            Some(slot) => slot.connection.input.bytes(&self.held_input),
            None => &[],
        }
    }

    /// Consumes the first bytes of [`unread`](Self::unread) in place of the session. No effect if the connection is
    /// closed.
    ///
    /// # Panics
    /// If fewer bytes are unread.
    pub fn consume(&mut self, token: Token, count: usize) {
        if let Some(slot) = self.slots.get(token) {
            slot.connection.input.consume(&mut self.held_input, count);
        }
    }

    /// Starts a connect without a timeout; [`abort`](Self::abort) ends it. The session gets `opened` later, or
    /// `connect_failed` and then `closed` with `ConnectFailed`. The caller must run a turn afterwards. (A socket that is
    /// connected already is [adopted](Self::adopt).)
    ///
    /// # Errors
    /// There is no free slot, the descriptors ran out, or the source address is not local. A driver with direct
    /// descriptors creates the socket in its next turn, and reports the latter two to the session. All drivers report
    /// the errors of connect(2) itself to the session.
    pub fn connect(
        &mut self,
        to: &Destination,
        session: V::Session,
    ) -> Result<Token, ConnectError<V::Session>> {
        self.begin_owner_call();
        self.begin_connect(to, session, None)
    }

    /// Closes a connection at once, also one that is still connecting; unsent output is dropped. No effect on one that
    /// is closed. The caller must run a turn afterwards.
    pub fn abort(&mut self, token: Token, reason: CloseReason) {
        self.begin_owner_call();
        self.abort_connection(token, reason);
    }

    /// Stops accepting from a listener, and closes it. Connections in its backlog stay for other holders of the
    /// listener; without one the system resets them. Connections that were accepted already and have no slot yet are
    /// closed. Its number is unused again when the driver has closed it, in one of the next turns. The caller must run a
    /// turn afterwards. No effect on a datagram socket or a closed listener.
    pub fn close_listener(&mut self, listener: u32) {
        if !self.begin_close_of_listener(listener) {
            return;
        }
        self.listeners[listener].drops_accepted = true;
        self.driver.close(self.listeners.token(listener));
        self.refuse_waiting(listener);
    }

    /// Stops accepting from a listener, and releases its socket in one of the next turns, for
    /// [`take_detached_listener`](Self::take_detached_listener). It needs no descriptor. Connections in its backlog stay
    /// there; those that the driver has accepted already still arrive before. Returns false, without an effect, for a
    /// datagram socket or a closed listener. The caller must run a turn afterwards. The registration of
    /// [`keep_watched`](Self::keep_watched) is dropped.
    pub fn detach_listener(&mut self, listener: u32) -> bool {
        if !self.begin_close_of_listener(listener) {
            return false;
        }
        if planted!("accepts dropped at detach") {
            self.listeners[listener].drops_accepted = true;
        }
        let token = self.listeners.token(listener);
        self.driver.pause_accept(token);
        self.driver.detach(token);
        true
    }

    /// The socket of a listener that was [detached](Self::detach_listener), once the driver has released it. The number
    /// is unused then, so the owner must take the socket before it adds another listener.
    pub fn take_detached_listener(&mut self, listener: u32) -> Option<D::Socket> {
        let at = self.detached_listeners.iter().position(|(number, _)| *number == listener)?;
        Some(self.detached_listeners.swap_remove(at).1)
    }

    /// The driver has released a listening socket. Connections that it has accepted and that have no slot are closed,
    /// because its number may be reused.
    pub(super) fn on_listener_detached(&mut self, token: Token, socket: io::Result<D::Socket>) {
        let Some(number) = self.listeners.number_of(token) else { return };
        self.refuse_waiting(number);
        self.listeners.set_state(number, ListenerState::Closed);
        // Listening sockets have ordinary descriptors, so none had to be created.
        self.detached_listeners.extend(socket.ok().map(|socket| (number, socket)));
    }

    /// Returns false if it is a datagram socket, or is closed or closing.
    fn begin_close_of_listener(&mut self, listener: u32) -> bool {
        let is_open = self.listeners.get(listener).is_some_and(|listener| {
            let is_closing = matches!(listener.state(), ListenerState::Closing | ListenerState::Closed);
            !is_closing && !listener.is_datagram_socket
        });
        if is_open {
            self.begin_owner_call();
            self.listeners.set_state(listener, ListenerState::Closing);
            self.wheel.clear(listener);
        }
        is_open
    }

    fn refuse_waiting(&mut self, listener: u32) {
        let before = self.waiting.len();
        self.waiting.retain(|(accepted_by, _)| *accepted_by != listener);
        self.counters.refused_full.add((before - self.waiting.len()) as u64);
    }

    /// Stops accepting from a listener until [`resume_listener`](Self::resume_listener); connections wait in its backlog.
    /// Those that the driver has accepted already still arrive. The caller must run a turn afterwards.
    pub fn pause_listener(&mut self, listener: u32) {
        let Some(state) = self.listeners.get(listener).map(ShardListener::state) else { return };
        self.begin_owner_call();
        self.listeners[listener].is_held = true;
        if state == ListenerState::Accepting {
            self.counters.gate_closed.add(1);
            self.listeners.set_state(listener, ListenerState::Paused);
            self.driver.pause_accept(self.listeners.token(listener));
        }
    }

    /// Accepts again after [`pause_listener`](Self::pause_listener). The caller must run a turn afterwards.
    pub fn resume_listener(&mut self, listener: u32) {
        if self.listeners.get(listener).is_some() {
            self.begin_owner_call();
            self.listeners[listener].is_held = false;
            self.resume_accepting();
        }
    }

    /// The socket of a connection that is open or connecting, for system calls such as getsockopt(2). Receiving, sending
    /// and polling through it is not allowed.
    ///
    /// # Errors
    /// `NotConnected`: the connection is closed; or its socket is not created yet, which a driver with direct
    /// descriptors does in its next turn. `Unsupported`: the driver has no descriptors. `EMFILE`: a direct descriptor
    /// needs an ordinary one for the time of the value.
    pub fn descriptor(&mut self, token: Token) -> io::Result<SourceDescriptor<'_>> {
        let state = self.slots.get(token).map(|slot| slot.connection.state);
        match state {
            Some(ConnectionState::Open | ConnectionState::Connecting) => self.driver.descriptor(token),
            Some(_) | None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Declares that the connection's descriptor was given to others, for example to a child process, and may keep the
    /// socket open: nothing is reported for it after its close.
    pub fn share_descriptor(&mut self, token: Token) {
        self.driver.set_shared(token);
    }

    /// The socket of a listener, or the datagram socket, with this number.
    ///
    /// # Errors
    /// `NotConnected`: it is closed. `Unsupported`: the driver has no descriptors.
    pub fn listener_descriptor(&mut self, listener: u32) -> io::Result<SourceDescriptor<'_>> {
        match self.listeners.get(listener).map(ShardListener::state) {
            None | Some(ListenerState::Closing | ListenerState::Closed) => {
                Err(io::ErrorKind::NotConnected.into())
            }
            Some(_) => self.driver.descriptor(self.listeners.token(listener)),
        }
    }

    /// The address of a connection's peer.
    ///
    /// # Errors
    /// Those of [`descriptor`](Self::descriptor) and of getpeername(2); `InvalidInput`: it is a Unix socket.
    pub fn peer_address(&mut self, token: Token) -> io::Result<SocketAddr> {
        net::peer_addr(&self.descriptor(token)?)
    }

    /// The local address of a connection.
    ///
    /// # Errors
    /// Those of [`descriptor`](Self::descriptor) and of getsockname(2); `InvalidInput`: it is a Unix socket.
    pub fn local_address(&mut self, token: Token) -> io::Result<SocketAddr> {
        net::local_addr(&self.descriptor(token)?)
    }

    /// Prepares for requests between turns.
    fn begin_owner_call(&mut self) {
        // The last turn may be long ago.
        self.now = self.clock.now();
        self.may_have_intents = true;
    }
}
