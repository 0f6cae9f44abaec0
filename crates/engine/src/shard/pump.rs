//! What comes next for one connection: called after everything that may have changed its notes.

use stilling_ring::Time;

use super::Shard;
use super::connection::{Connection, Due, Finish, NEVER, NO_ITEM, Owed, Peer, Reading, Sending, State};
use super::io::Io;
use super::output::{After, Item, Place};
use super::session::{Service, Session};
use crate::close_reason::CloseReason;
use crate::driver::Driver;
use crate::token::Token;

impl Connection {
    /// Whether something will happen to this connection: an armed operation, output, a deadline or
    /// the session's own doing.
    pub(super) fn has_a_future(&self) -> bool {
        match self.state {
            State::Closing | State::Detaching | State::Free => true,
            State::Connecting => matches!(self.due, Due::Connect(_)),
            State::Lingering => self.reading != Reading::Nothing && matches!(self.due, Due::Linger(_)),
            // A peer that takes nothing tells nothing either: only time ends it.
            State::Open if self.blocked => matches!(self.due, Due::Write(_)) || self.link != NO_ITEM,
            State::Open => {
                self.reading != Reading::Nothing
                    || self.has_output()
                    || matches!(self.owed, Owed::AfterOutput | Owed::Taken)
                    || self.paused
                    || self.deadline != NEVER
            }
        }
    }

    /// Whether closing at once might destroy the answer: the system resets a connection that is closed
    /// with bytes unread, and a reset overtakes what was sent. Nothing is unread when the peer has
    /// ended, when a receive is waiting in vain, or when one of this turn has emptied the socket. (What
    /// arrives between that receive and the close is not known of: a peer that sends behind its last
    /// request takes that risk with any server that does not linger after each.)
    ///
    /// A peer that is sent away by a drain between two requests did not know that the last one was the last:
    /// its next one may be on the way, and must meet an end in good order, not a reset.
    fn must_linger(&self, turn: u32) -> bool {
        let quiet = self.reading != Reading::Nothing || self.quiet_turn == Some(turn);
        let unannounced = self.reason == CloseReason::Drained;
        self.peer == Peer::Sending && (self.finish == Finish::Linger || unannounced || !quiet)
    }

    /// No output is held up any more.
    pub(super) fn unblock(&mut self, park_at: Time) {
        self.blocked = false;
        // The write timeout is over; a receive that is still armed may be parked again.
        self.due = match self.reading {
            Reading::Receive => Due::Park(park_at),
            Reading::Nothing | Reading::Parking | Reading::Parked => Due::Never,
        };
        self.owe_received();
    }

    /// When the wheel must look at this connection.
    pub(super) fn earliest_deadline(&self) -> Time {
        match self.state {
            State::Free | State::Closing | State::Detaching => NEVER,
            // While output is held up, only its own timeout counts, unless the session asked for its deadline.
            _ if !self.has_deadline_reported() => self.due.at(),
            _ => self.due.at().min(self.deadline),
        }
    }
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// Calls a session's method, then does what it asked for.
    pub(super) fn call(&mut self, token: Token, method: impl FnOnce(&mut V::Session, &mut Io<'_>, &mut V)) {
        self.tell(token, method);
        self.pump(token);
    }

    /// Calls a session's method; its wishes are noted only.
    pub(super) fn tell(&mut self, token: Token, method: impl FnOnce(&mut V::Session, &mut Io<'_>, &mut V)) {
        let Some(slot) = self.slots.get(token) else { return };
        let session = slot.session.as_mut().expect("a tenant has a session");
        let connection = &mut slot.connection;
        let lent = (&mut self.output, &mut self.held_output, &mut self.blocks);
        let mut io = Io::lend(token, self.now, connection, lent);
        method(session, &mut io, &mut self.service);
        self.relieve_output(token);
    }

    /// Does whatever is next for the connection, until it has to wait.
    pub(super) fn pump(&mut self, token: Token) {
        while self.step(token) {}
        let Some(slot) = self.slots.get(token) else { return };
        let looks_again = match slot.connection.owed {
            Owed::AfterOutput => true,
            Owed::Taken => !slot.connection.blocked,
            Owed::Nothing | Owed::Received => false,
        };
        if looks_again && slot.connection.state == State::Open {
            // Perhaps not for the first time; the second look will find nothing to do.
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
        if connection.state != State::Open {
            return false;
        }
        match connection.finish {
            Finish::No => {}
            Finish::Abort => {
                self.begin_close(token);
                return false;
            }
            Finish::SlowConsumer => {
                self.end_slow_consumer(token);
                return false;
            }
            Finish::Detach => {
                self.detach_when_sent(token);
                return false;
            }
            Finish::Close | Finish::Linger => {
                let is_read = connection.input.is_empty();
                if !is_read {
                    connection.quiet_turn = None;
                }
                connection.input.clear(&mut self.held_input);
                self.finish_when_sent(token, is_read);
                return false;
            }
        }
        if std::mem::take(&mut connection.looks) && self.driver.is_gone(token) {
            (connection.finish, connection.reason) = (Finish::Abort, CloseReason::PeerReset);
            return true;
        }
        // Held-up output that has gone leads here again.
        if connection.sending == Sending::Ending && !connection.blocked {
            match self.output.items.get_mut(connection.link as usize) {
                Some(item) => item.after = After::LookAgain,
                None => {
                    connection.sending = Sending::Ended;
                    self.driver.shutdown(token);
                }
            }
        }
        let waits = matches!(connection.owed, Owed::AfterOutput | Owed::Taken);
        if connection.paused || connection.is_held_back(&self.held_output) || waits {
            if connection.waits_for_others(&self.held_output) && !connection.is_listed {
                connection.is_listed = true;
                self.held_back.push(token);
            }
            return false;
        }
        if connection.owed == Owed::Received {
            self.show_held(token);
            return true;
        }
        match connection.peer {
            Peer::Sending => {}
            Peer::Ended => {
                connection.peer = Peer::EndTold;
                self.tell(token, Session::ended);
                return true;
            }
            Peer::EndTold => return false,
        }
        if connection.reading == Reading::Nothing {
            connection.reading = Reading::Receive;
            if !connection.blocked {
                connection.due = Due::Park(self.now.after(self.config.park_after));
            }
            self.driver.receive(token);
        }
        false
    }

    /// The session has said everything: close (or linger) as soon as the output has gone. `is_read`: it has read all
    /// that had come.
    fn finish_when_sent(&mut self, token: Token, is_read: bool) {
        let turn = self.turn_number;
        let connection = &mut self.slots.get(token).expect("the caller looked it up").connection;
        // Nobody has looked while the session was paused; looking now is cheaper than to linger for nothing.
        if connection.finish == Finish::Close
            && connection.reading == Reading::Nothing
            && connection.quiet_turn != Some(turn)
            && is_read
            && connection.must_linger(turn)
            && self.driver.is_quiet(token)
        {
            connection.quiet_turn = Some(turn);
        }
        let lingers = connection.must_linger(turn);
        if connection.blocked {
            return;
        }
        match self.output.items.get_mut(connection.link as usize) {
            Some(item) if lingers => item.after = After::LookAgain,
            Some(item) => {
                item.after = After::Close;
                connection.state = State::Closing;
            }
            None if lingers => self.start_linger(token),
            None => self.begin_close(token),
        }
    }

    fn start_linger(&mut self, token: Token) {
        let connection = &mut self.slots.get(token).expect("the caller looked it up").connection;
        connection.state = State::Lingering;
        connection.due = Due::Linger(self.now.after(self.config.linger_timeout));
        connection.deadline = NEVER;
        if connection.sending != Sending::Ended {
            self.driver.shutdown(token);
        }
        match connection.reading {
            Reading::Nothing => {
                connection.reading = Reading::Receive;
                self.driver.receive(token);
            }
            Reading::Receive | Reading::Parking | Reading::Parked => {}
        }
    }

    /// Closes now; output of this turn that has not been sent is dropped.
    pub(super) fn begin_close(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if connection.state == State::Detaching {
            // The driver owes the socket, which is closed when it comes.
            connection.finish = Finish::Abort;
            return;
        }
        (connection.state, connection.due) = (State::Closing, Due::Never);
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

    /// Held-up output may go on.
    pub(super) fn on_writable(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if !connection.output.is_empty() {
            return self.send_held(token);
        }
        // An offer was cut short, and nothing is held. The connection stays blocked, with its write timeout, until
        // its peer has taken something.
        if connection.owed == Owed::Taken && connection.finish == Finish::No {
            let count = connection.take_offer();
            self.tell(token, |session, io, service| session.taken(count, io, service));
        }
        let connection = &mut self.slots.get(token).expect("telling frees no slot").connection;
        if !connection.output.is_empty() {
            self.send_held(token);
        } else if let Some(item) = self.output.items.get_mut(connection.link as usize) {
            item.after = After::LookAgain;
        } else {
            connection.unblock(self.now.after(self.config.park_after));
        }
        self.pump(token);
    }

    fn send_held(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        let closes = connection.finish == Finish::Close && !connection.must_linger(self.turn_number);
        let after = if closes { After::Close } else { After::LookAgain };
        if closes {
            connection.state = State::Closing;
        }
        connection.link = self.output.items.len() as u32;
        self.output.items.push(Item { token, place: Place::Stash, after, is_stopped: false });
    }
}
