//! The next step of one connection, after every event that may have changed its state.

use stilling_ring::Time;

use super::Shard;
use super::connection::{
    CloseIntent, Connection, ConnectionState, ConnectionTimer, NEVER, NO_ITEM, PeerState, PendingCall,
    ReadState, SendState,
};
use super::io::Io;
use super::output::{AfterSend, ItemLocation, OutputItem};
use super::session::{Service, Session};
use crate::close_reason::CloseReason;
use crate::driver::Driver;
use crate::token::Token;

impl Connection {
    /// Whether something will continue this connection: an armed operation, output, a deadline, or a session that has
    /// paused input.
    pub(super) fn has_pending_event(&self) -> bool {
        match self.state {
            ConnectionState::Closing | ConnectionState::Detaching | ConnectionState::Free => true,
            ConnectionState::Connecting => {
                matches!(self.timer, ConnectionTimer::Connect(_)) || self.readiness.connects_without_timeout()
            }
            ConnectionState::Lingering => {
                self.reading != ReadState::Nothing && matches!(self.timer, ConnectionTimer::Linger(_))
            }
            // It belongs to the owner of the shard, which may leave it alone.
            ConnectionState::Open if self.readiness.is_on_demand() => true,
            // A peer that does not read causes no event: only the write timeout ends it.
            ConnectionState::Open if self.blocked => {
                matches!(self.timer, ConnectionTimer::Write(_)) || self.link != NO_ITEM
            }
            ConnectionState::Open => {
                self.reading != ReadState::Nothing
                    || self.has_output()
                    || matches!(self.pending_call, PendingCall::AfterOutput | PendingCall::OfferSent)
                    || self.paused
                    || self.deadline != NEVER
            }
        }
    }

    /// Whether closing at once might destroy the response: the system resets a connection that is closed with unread
    /// bytes, and a reset overtakes sent bytes. Nothing is unread when the peer has ended, when a receive is armed and
    /// idle, or when one of this turn has emptied the socket. (Bytes may still arrive between that receive and the
    /// close: the risk of a peer that sends after its last request.)
    ///
    /// A drain always lingers: the peer's next request may be on the way, and must not be answered by a reset.
    fn must_linger(&self, turn: u32) -> bool {
        let quiet = self.reading != ReadState::Nothing || self.emptied_turn == Some(turn);
        let unannounced = self.reason == CloseReason::Drained;
        self.peer == PeerState::Sending && (self.finish == CloseIntent::Linger || unannounced || !quiet)
    }

    pub(super) fn unblock(&mut self, park_at: Time) {
        self.blocked = false;
        // The write timeout is over; an armed receive may be parked again.
        self.timer = match self.reading {
            ReadState::Receive => ConnectionTimer::Park(park_at),
            ReadState::Nothing | ReadState::Parking | ReadState::Parked => ConnectionTimer::Never,
        };
        self.schedule_received();
    }

    /// The connection's deadline in the wheel.
    pub(super) fn earliest_deadline(&self) -> Time {
        match self.state {
            ConnectionState::Free | ConnectionState::Closing | ConnectionState::Detaching => NEVER,
            // While output is blocked, only the write timeout applies.
            _ if !self.reports_deadline() => self.timer.at(),
            _ => self.timer.at().min(self.deadline),
        }
    }
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// Calls a session's method, then carries out its requests.
    pub(super) fn call(&mut self, token: Token, method: impl FnOnce(&mut V::Session, &mut Io<'_>, &mut V)) {
        self.call_session(token, method);
        self.run_steps(token);
    }

    /// Calls a session's method; its requests are only recorded.
    pub(super) fn call_session(
        &mut self,
        token: Token,
        method: impl FnOnce(&mut V::Session, &mut Io<'_>, &mut V),
    ) {
        let Some(slot) = self.slots.get(token) else { return };
        let session = slot.session.as_mut().expect("a used slot has a session");
        let connection = &mut slot.connection;
        let lent = (&mut self.output, &mut self.held_output, &mut self.blocks);
        let mut io = Io::new(token, self.now, connection, lent);
        method(session, &mut io, &mut self.service);
        self.enforce_output_budget(token);
    }

    /// Runs the connection's next steps, until it has to wait.
    pub(super) fn run_steps(&mut self, token: Token) {
        while self.step(token) {}
        let Some(slot) = self.slots.get(token) else { return };
        let needs_revisit = match slot.connection.pending_call {
            PendingCall::AfterOutput => true,
            PendingCall::OfferSent => !slot.connection.blocked,
            PendingCall::Nothing | PendingCall::Received => false,
        };
        if needs_revisit && slot.connection.state == ConnectionState::Open {
            // A duplicate does no harm.
            self.to_revisit.push(token);
        }
        match slot.connection.earliest_deadline() {
            NEVER => self.wheel.clear(token.index()),
            deadline => self.wheel.set(token.index(), deadline),
        }
    }

    /// One step; false when there is nothing to do now.
    pub(super) fn step(&mut self, token: Token) -> bool {
        let Some(slot) = self.slots.get(token) else { return false };
        let connection = &mut slot.connection;
        if connection.state != ConnectionState::Open {
            return false;
        }
        match connection.finish {
            CloseIntent::No => {}
            CloseIntent::Abort => {
                self.begin_close(token);
                return false;
            }
            CloseIntent::SlowConsumer => {
                self.end_slow_consumer(token);
                return false;
            }
            CloseIntent::Detach => {
                self.detach_when_sent(token);
                return false;
            }
            CloseIntent::Close | CloseIntent::Linger if connection.readiness.is_on_demand() => {
                self.begin_close(token);
                return false;
            }
            CloseIntent::Close | CloseIntent::Linger => {
                let is_read = connection.input.is_empty();
                if !is_read {
                    connection.emptied_turn = None;
                }
                connection.input.clear(&mut self.held_input);
                self.finish_when_sent(token, is_read);
                return false;
            }
        }
        if std::mem::take(&mut connection.checks_peer) && self.driver.is_hung_up(token) {
            (connection.finish, connection.reason) = (CloseIntent::Abort, CloseReason::PeerReset);
            return true;
        }
        // While output is blocked, a later step does this.
        if connection.sending == SendState::Ending && !connection.blocked {
            match self.output.items.get_mut(connection.link as usize) {
                Some(item) => item.after = AfterSend::Revisit,
                None => {
                    connection.sending = SendState::Ended;
                    self.driver.shutdown(token);
                }
            }
        }
        if connection.readiness.is_on_demand() {
            self.arm_waits(token);
            return false;
        }
        let waits = matches!(connection.pending_call, PendingCall::AfterOutput | PendingCall::OfferSent);
        if connection.paused || connection.is_input_blocked(&self.held_output) || waits {
            if connection.waits_for_other_output(&self.held_output) && !connection.is_in_input_blocked_list {
                connection.is_in_input_blocked_list = true;
                self.input_blocked.push(token);
            }
            return false;
        }
        if connection.pending_call == PendingCall::Received {
            self.pass_held_input(token);
            return true;
        }
        match connection.peer {
            PeerState::Sending => {}
            PeerState::Ended => {
                connection.peer = PeerState::EndReported;
                self.call_session(token, Session::ended);
                return true;
            }
            PeerState::EndReported => return false,
        }
        if connection.reading == ReadState::Nothing {
            connection.reading = ReadState::Receive;
            if !connection.blocked {
                connection.timer = ConnectionTimer::Park(self.now.after(self.config.park_after));
            }
            self.driver.receive(token);
        }
        false
    }

    /// Closes or lingers as soon as the output is sent. `is_read`: the session has consumed all received input.
    fn finish_when_sent(&mut self, token: Token, is_read: bool) {
        let turn = self.turn_number;
        let connection = &mut self.slots.get(token).expect("the caller looked it up").connection;
        // A paused session has not read; a check is cheaper than an unnecessary linger.
        if connection.finish == CloseIntent::Close
            && connection.reading == ReadState::Nothing
            && connection.emptied_turn != Some(turn)
            && is_read
            && connection.must_linger(turn)
            && self.driver.has_no_unread_input(token)
        {
            connection.emptied_turn = Some(turn);
        }
        let lingers = connection.must_linger(turn);
        if connection.blocked {
            return;
        }
        match self.output.items.get_mut(connection.link as usize) {
            Some(item) if lingers => item.after = AfterSend::Revisit,
            Some(item) => {
                item.after = AfterSend::Close;
                connection.state = ConnectionState::Closing;
            }
            None if lingers => self.start_linger(token),
            None => self.begin_close(token),
        }
    }

    fn start_linger(&mut self, token: Token) {
        let connection = &mut self.slots.get(token).expect("the caller looked it up").connection;
        connection.state = ConnectionState::Lingering;
        connection.timer = ConnectionTimer::Linger(self.now.after(self.config.linger_timeout));
        connection.deadline = NEVER;
        if connection.sending != SendState::Ended {
            self.driver.shutdown(token);
        }
        match connection.reading {
            ReadState::Nothing => {
                connection.reading = ReadState::Receive;
                self.driver.receive(token);
            }
            ReadState::Receive | ReadState::Parking | ReadState::Parked => {}
        }
    }

    /// Closes now; unsent output of this turn is dropped.
    pub(super) fn begin_close(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if connection.state == ConnectionState::Detaching {
            // `Detached` is pending: its handler closes the socket.
            connection.finish = CloseIntent::Abort;
            return;
        }
        (connection.state, connection.timer) = (ConnectionState::Closing, ConnectionTimer::Never);
        connection.output.clear(&mut self.held_output);
        let link = std::mem::replace(&mut connection.link, NO_ITEM);
        if link != NO_ITEM {
            self.output.items.swap_remove(link as usize);
            if let Some(moved) = self.output.items.get(link as usize) {
                let token = moved.token;
                if let Some(slot) = self.slots.get(token) {
                    slot.connection.link = link;
                }
            }
        }
        self.driver.close(token);
    }

    pub(super) fn on_writable(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if !connection.output.is_empty() {
            return self.send_held(token);
        }
        // An offer was sent only in part, and nothing is stored. The connection stays blocked, with its write timeout,
        // until its peer has received more.
        if connection.pending_call == PendingCall::OfferSent && connection.finish == CloseIntent::No {
            let count = connection.finish_offer();
            self.call_session(token, |session, io, service| session.offer_sent(count, io, service));
        }
        let connection = &mut self.slots.get(token).expect("a callback frees no slot").connection;
        if !connection.output.is_empty() {
            self.send_held(token);
        } else if let Some(item) = self.output.items.get_mut(connection.link as usize) {
            item.after = AfterSend::Revisit;
        } else {
            connection.unblock(self.now.after(self.config.park_after));
        }
        self.run_steps(token);
    }

    fn send_held(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        let closes = connection.finish == CloseIntent::Close && !connection.must_linger(self.turn_number);
        let after = if closes { AfterSend::Close } else { AfterSend::Revisit };
        if closes {
            connection.state = ConnectionState::Closing;
        }
        connection.link = self.output.items.len() as u32;
        self.output.items.push(OutputItem { token, location: ItemLocation::Stash, after, is_stopped: false });
    }
}
