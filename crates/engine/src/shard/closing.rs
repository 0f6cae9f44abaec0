//! The end of connections: the peer's end, a failure, a deadline, an abort; and the cleanup after the driver has closed
//! one.

use std::io;

use super::Shard;
use super::connection::{
    CloseIntent, Connection, ConnectionState, ConnectionTimer, NEVER, NO_ITEM, PeerState, ReadState,
};
use super::listener::ListenerState;
use super::session::{Service, Session};
use crate::close_reason::CloseReason;
use crate::driver::Driver;
use crate::limits::LISTENERS_MAX;
use crate::token::Token;

impl<D: Driver, V: Service> Shard<D, V> {
    pub(super) fn on_ended(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        connection.reading = ReadState::Nothing;
        if connection.peer == PeerState::Sending {
            connection.peer = PeerState::Ended;
        }
        match connection.state {
            ConnectionState::Lingering => self.begin_close(token),
            ConnectionState::Open => self.run_steps(token),
            ConnectionState::Free
            | ConnectionState::Connecting
            | ConnectionState::Closing
            | ConnectionState::Detaching => {}
        }
    }

    pub(super) fn on_failed(&mut self, token: Token, error: &io::Error) {
        if token.index() < LISTENERS_MAX {
            return self.on_datagrams_failed(token.index());
        }
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        connection.reading = ReadState::Nothing;
        match connection.state {
            ConnectionState::Connecting => {
                connection.reason = CloseReason::ConnectFailed;
                if let Some(session) = &mut slot.session {
                    session.connect_failed(error, &mut self.service);
                }
            }
            // The session set its reason before the peer disappeared.
            ConnectionState::Lingering => {}
            ConnectionState::Open | ConnectionState::Detaching => {
                connection.set_reason(CloseReason::from_error(error));
            }
            ConnectionState::Free | ConnectionState::Closing => return,
        }
        self.begin_close(token);
    }

    pub(super) fn on_closed(&mut self, token: Token) {
        if token.index() < LISTENERS_MAX {
            if let Some(number) = self.listeners.number_of(token) {
                self.listeners.set_state(number, ListenerState::Closed);
            }
            return;
        }
        if self.free_connection(token).is_some() {
            self.resume_accepting();
        }
    }

    /// Frees the slot of a connection that the driver has released, after a call of `Session::closed`.
    pub(super) fn free_connection(&mut self, token: Token) -> Option<V::Session> {
        let slot = self.slots.get(token)?;
        let Connection { input, output, reason, .. } = &mut slot.connection;
        input.clear(&mut self.held_input);
        output.clear(&mut self.held_output);
        let reason = *reason;
        self.wheel.clear(token.index());
        let mut session = self.slots.remove(token)?;
        session.closed(reason, &mut self.service);
        self.counters.closed(reason).add(1);
        self.update_open_counters();
        Some(session)
    }

    /// Frees a connection that never reached the driver.
    pub(super) fn free_unattached(&mut self, token: Token) {
        if let Some(slot) = self.slots.get(token) {
            slot.connection.reason = CloseReason::SystemError;
        }
        self.on_closed(token);
    }

    pub(super) fn expire_connection(&mut self, index: u32) {
        let now = self.now;
        let Some(token) = self.slots.token_at((index - LISTENERS_MAX) as usize) else { return };
        let connection = &mut self.slots.get(token).expect("a used slot").connection;
        match connection.timer {
            timer if now < timer.at() => {}
            ConnectionTimer::Linger(_) => return self.begin_close(token),
            ConnectionTimer::Connect(_) => {
                connection.reason = CloseReason::ConnectFailed;
                return self.begin_close(token);
            }
            // This turn's output may still be sent; if not, `store_unsent` closes the connection.
            ConnectionTimer::Write(_) if connection.link != NO_ITEM => {}
            ConnectionTimer::Write(_) => {
                connection.set_reason(CloseReason::WriteTimeout);
                return self.begin_close(token);
            }
            ConnectionTimer::Park(_) => {
                connection.timer = ConnectionTimer::Never;
                if connection.state == ConnectionState::Open && connection.reading == ReadState::Receive {
                    connection.reading = ReadState::Parking;
                    self.driver.cancel_receive(token);
                }
            }
            ConnectionTimer::Never => {}
        }
        let connection = &mut self.slots.get(token).expect("a used slot").connection;
        let is_reported = connection.state == ConnectionState::Open && connection.reports_deadline();
        let is_due = now >= connection.deadline && is_reported;
        if is_due {
            // Also if the session has requested the end and is not called.
            connection.deadline = NEVER;
        }
        if is_due && connection.finish == CloseIntent::No {
            self.call(token, Session::deadline);
        } else {
            self.run_steps(token);
        }
    }

    /// Closes a connection at once. If its close is part of this turn's output and that stops short, `store_unsent`
    /// closes it.
    pub(super) fn abort_connection(&mut self, token: Token, reason: CloseReason) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if connection.state == ConnectionState::Closing {
            return;
        }
        match connection.finish {
            CloseIntent::No | CloseIntent::Detach => connection.reason = reason,
            CloseIntent::Close | CloseIntent::Linger if connection.has_output() => {
                connection.set_reason(reason);
            }
            // Its end is already under way.
            CloseIntent::Close | CloseIntent::Linger | CloseIntent::Abort | CloseIntent::SlowConsumer => {}
        }
        self.begin_close(token);
    }
}
