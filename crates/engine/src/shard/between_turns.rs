//! Actions on a connection between two turns, by the owner of a shard: a foreign event loop or a script's command.

use super::Shard;
use super::connection::ConnectionState;
use super::io::Io;
use super::output::TurnStage;
use super::session::Service;
use crate::driver::Driver;
use crate::token::Token;

impl<D: Driver, V: Service> Shard<D, V> {
    /// Acts on an open connection like a method of its session. The effects requested from [`Io`] apply when `act`
    /// returns, or in the next turn if this one has no more room; its output leaves with the next turn, which the
    /// caller must run. Returns `None`, without a call of `act`, if the connection is not open.
    ///
    /// All such calls between two turns share the room of one turn's output: when that is used up, [`Io::room`] is zero
    /// until the next turn.
    pub fn with<R>(
        &mut self,
        token: Token,
        act: impl FnOnce(&mut V::Session, &mut Io<'_>) -> R,
    ) -> Option<R> {
        let slot = self.slots.get(token).filter(|slot| slot.connection.state == ConnectionState::Open)?;
        // The last turn may be long ago, and the session sets its deadlines relative to now.
        self.now = self.clock.now();
        // A receive of the last turn that emptied the socket is outdated.
        self.turn_number = self.turn_number.wrapping_add(1);
        self.has_acted = true;
        let room = self.output.room_between_turns();
        let session = slot.session.as_mut().expect("a used slot has a session");
        let lent = (&mut self.output, &mut self.held_output, &mut self.blocks);
        let mut io = Io::lend(token, self.now, &mut slot.connection, lent).with_room(room);
        let outcome = act(session, &mut io);
        self.enforce_output_budget(token);
        if self.output.has_room_for(TurnStage::Events) {
            self.pump(token);
        } else {
            // Its session may be due another call, for which this turn has no room.
            self.to_revisit.push(token);
        }
        Some(outcome)
    }

    /// The unconsumed input of a connection, oldest byte first; empty if the connection is gone. It stays until
    /// [`consume`](Self::consume) or the session consumes it.
    pub fn unread(&mut self, token: Token) -> &[u8] {
        match self.slots.get(token) {
            Some(slot) => slot.connection.input.bytes(&self.held_input),
            None => &[],
        }
    }

    /// Consumes the first bytes of [`unread`](Self::unread) in place of the session. No effect if the connection is
    /// gone.
    ///
    /// # Panics
    /// If fewer bytes are unread.
    pub fn consume(&mut self, token: Token, count: usize) {
        if let Some(slot) = self.slots.get(token) {
            slot.connection.input.consume(&mut self.held_input, count);
        }
    }
}
