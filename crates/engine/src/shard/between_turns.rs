//! Actions on a connection between two turns, by the owner of a shard in a foreign event loop.

use super::Shard;
use super::connection::ConnectionState;
use super::io::Io;
use super::output::TurnStage;
use super::session::Service;
use crate::driver::Driver;
use crate::token::Token;

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
}
