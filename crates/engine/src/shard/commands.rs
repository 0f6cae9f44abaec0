//! Commands of the service at the end of a turn: connects, adoptions, drain, stop.

use std::time::Duration;

use super::Shard;
use super::between_turns::ConnectError;
use super::connection::{ConnectionState, ConnectionTimer};
use super::datagram_io::DatagramSender;
use super::output::TurnStage;
use super::session::{AdoptContext, NO_FREE_SLOT, Service, Session, ShardCommand, ShardControl};
use crate::close_reason::CloseReason;
use crate::driver::{Destination, Driver, SourceKind};
use crate::token::Token;

impl<D: Driver, V: Service> Shard<D, V> {
    /// `has_datagrams`: this turn has received some.
    pub(super) fn run_service_turn(&mut self, has_datagrams: bool) {
        let pending_arrivals = self.pending_arrivals();
        let open = self.slots.open();
        let listeners = self.listeners.counts();
        let adopt_context = AdoptContext {
            sockets: &mut self.adopted,
            store: &mut self.held_input,
            slots: self.slots.free_for_incoming(),
            reserved_slots: self.slots.free_reserved(),
        };
        let room = self.output.room_at_turn_end();
        let datagrams = DatagramSender::new(&mut self.output, &self.listeners, &self.counters, room);
        let mut control = ShardControl {
            now: self.now,
            open,
            pending_arrivals,
            datagram_sockets: listeners.datagram_sockets,
            receiving_datagram_sockets: listeners.receiving_datagrams,
            has_datagrams,
            commands: &mut self.commands,
            adopt_context,
            datagrams,
        };
        self.service_deadline = self.service.turn(&mut control);
        self.may_have_intents |= !self.commands.is_empty();
        let mut commands = std::mem::take(&mut self.commands);
        for command in commands.drain(..) {
            match command {
                ShardCommand::Connect(to, session) => self.start_connect(&to, session),
                ShardCommand::Adopt(session, input) => {
                    let socket = self.adopted.pop_front().expect("one per command");
                    self.insert_adopted(socket, SourceKind::Stream, session, input);
                }
                ShardCommand::ConnectOpen(session) => {
                    let socket = self.adopted.pop_front().expect("one per command");
                    self.connect_open(socket, session);
                }
                ShardCommand::CloseListeners(backlog) => self.close_listeners(backlog),
                ShardCommand::CloseDatagramSockets => self.close_datagram_sockets(),
                ShardCommand::StopDatagramSockets => self.stop_datagram_sockets(),
                ShardCommand::Drain => self.drain_notify_from = Some(0),
                ShardCommand::AbortAll(reason) => self.abort_all(reason),
                ShardCommand::Stop => self.is_stopping = true,
            }
        }
        self.commands = commands;
        self.notify_drain();
    }

    /// Notifies the sessions of a drain, slot by slot, in several turns if needed. It waits for the dispatch of all
    /// events, because a connection whose request is among them looks idle and would be closed; and for room for the
    /// sessions' output.
    fn notify_drain(&mut self) {
        while let Some(at) = self.drain_notify_from {
            if self.dispatched < self.events.len() || !self.output.has_room_for(TurnStage::Events) {
                return;
            }
            self.drain_notify_from = (at + 1 < self.slots.used_slots()).then_some(at + 1);
            self.may_have_intents = true;
            if let Some(token) = self.slots.token_at(at)
                && self.is_in_state(token, ConnectionState::Open)
            {
                self.call(token, Session::draining);
            }
        }
    }

    /// Closes all connections, drops those that wait for a slot, and admits no more.
    fn abort_all(&mut self, reason: CloseReason) {
        self.aborting = Some(reason);
        self.counters.refused_full.add(self.waiting.len() as u64);
        self.waiting.clear();
        for at in 0..self.slots.used_slots() {
            if let Some(token) = self.slots.token_at(at) {
                self.abort_connection(token, reason);
            }
        }
    }

    /// Ends a session whose connect was not started.
    fn refuse_connect(&mut self, ConnectError { error, mut session }: ConnectError<V::Session>) {
        self.counters.closed(CloseReason::ConnectFailed).add(1);
        session.connect_failed(&error, &mut self.service);
        session.closed(CloseReason::ConnectFailed, &mut self.service);
    }

    fn connect_open(&mut self, socket: D::Socket, session: V::Session) {
        if self.slots.is_exhausted() || self.aborting.is_some() {
            return self.refuse_connect(ConnectError { error: NO_FREE_SLOT.into(), session });
        }
        let token = self.slots.insert(session).expect("there is a free slot");
        self.slots.mark_outgoing(token);
        self.counters.connected.add(1);
        self.update_open_counters();
        match self.driver.attach(token, socket.into(), SourceKind::Stream, false) {
            Ok(()) => {
                self.driver.set_shared(token);
                self.call(token, Session::opened);
            }
            Err(_) => self.free_unattached(token),
        }
    }

    fn start_connect(&mut self, to: &Destination, session: V::Session) {
        if let Err(error) = self.begin_connect(to, session, Some(self.config.connect_timeout)) {
            self.refuse_connect(error);
        }
    }

    /// Starts a connect in a free slot.
    pub(super) fn begin_connect(
        &mut self,
        to: &Destination,
        session: V::Session,
        timeout: Option<Duration>,
    ) -> Result<Token, ConnectError<V::Session>> {
        if self.slots.is_exhausted() || self.aborting.is_some() {
            return Err(ConnectError { error: NO_FREE_SLOT.into(), session });
        }
        let token = self.slots.insert(session).expect("there is a free slot");
        if let Err(error) = self.driver.connect(token, to) {
            let session = self.slots.remove(token).expect("just inserted");
            return Err(ConnectError { error, session });
        }
        self.slots.mark_outgoing(token);
        let connection = &mut self.slots.get(token).expect("just inserted").connection;
        connection.state = ConnectionState::Connecting;
        match timeout.map(|timeout| self.now.after(timeout)) {
            Some(deadline) => {
                connection.timer = ConnectionTimer::Connect(deadline);
                self.wheel.set(token.index(), deadline);
            }
            None => connection.readiness.connect_without_timeout(),
        }
        self.update_open_counters();
        Ok(token)
    }
}
