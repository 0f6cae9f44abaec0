//! Input on its way to the sessions: from a receive buffer, the store, or a shared block.
//!
//! ```text
//!  a receive ─▶ buffer, 4 KiB ─▶ session ─▶ unconsumed rest: store ─┐
//!  the buffer was full: read on ─▶ shared block, 64 KiB ◀───────────┘
//!                                  └─▶ session, once, with all bytes
//! ```

use std::io;
use std::ops::Range;

use stilling_ring::SharedBlock;

use super::Shard;
use super::connection::{CloseIntent, Connection, ConnectionState, PeerState, PendingCall, ReadState};
use super::io::Io;
use super::session::{Service, Session};
use crate::close_reason::CloseReason;
use crate::driver::{BufferId, Driver};
use crate::limits::{LONG_READ_SIZE, RECEIVE_BUFFER_SIZE};
use crate::store::StashStore;
use crate::token::Token;

enum InputLocation {
    Buffer(BufferId, usize),
    Long(SharedBlock, Range<usize>),
    Stash,
}

impl Connection {
    fn wants_more(&self, held_output: &StashStore) -> bool {
        self.state == ConnectionState::Open
            && self.finish == CloseIntent::No
            && matches!(self.pending_call, PendingCall::Nothing | PendingCall::Received)
            && self.peer == PeerState::Sending
            && self.reading == ReadState::Nothing
            && !self.paused
            && !self.is_input_blocked(held_output)
            && self.input.len() <= LONG_READ_SIZE / 2
    }
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// Passes bytes of a receive buffer to the session, or stores them until it may be called.
    pub(super) fn receive_buffer(&mut self, token: Token, buffer: BufferId, len: usize) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        let held_up = connection.paused
            || connection.is_input_blocked(&self.held_output)
            || connection.finish != CloseIntent::No;
        if connection.input.is_empty() && !held_up {
            self.pass_input(token, InputLocation::Buffer(buffer, len));
        } else {
            let bytes = &self.driver.buffer(buffer)[..len];
            if connection.input.append(&mut self.held_input, bytes) {
                connection.schedule_received();
            } else {
                (connection.finish, connection.reason) = (CloseIntent::Abort, CloseReason::InputFull);
            }
        }
        if len == RECEIVE_BUFFER_SIZE {
            self.continue_reading(token);
        }
        self.run_steps(token);
    }

    pub(super) fn pass_held_input(&mut self, token: Token) {
        self.pass_input(token, InputLocation::Stash);
    }

    /// Does a long read after a receive that filled its buffer, in place of many short ones, each with a turn, a wait
    /// and a split message. Once per receive, to be fair to other connections; and only while the store has room for
    /// the unconsumed rest.
    fn continue_reading(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if !connection.wants_more(&self.held_output) || self.held_input.used() > self.held_input.budget() / 2
        {
            return;
        }
        let Some(room) = self.blocks.long_read() else { return };
        let held = connection.input.len();
        room[..held].copy_from_slice(connection.input.bytes(&self.held_input));
        match self.driver.recv_now(token, &mut room[held..]) {
            Ok(0) => connection.peer = PeerState::Ended,
            Ok(count) => {
                let len = held + count;
                connection.input.clear(&mut self.held_input);
                connection.emptied_turn = (len < LONG_READ_SIZE).then_some(self.turn_number);
                self.counters.received_bytes.add(count as u64);
                let (block, range) = self.blocks.commit(len);
                self.pass_input(token, InputLocation::Long(block, range));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.emptied_turn = Some(self.turn_number);
            }
            Err(error) => {
                // Input from before the failure is delivered first.
                while self.step(token) && self.is_in_state(token, ConnectionState::Open) {}
                self.on_failed(token, &error);
            }
        }
    }

    /// Passes unconsumed input to the session and stores the rest.
    fn pass_input(&mut self, token: Token, from: InputLocation) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if connection.pending_call == PendingCall::Received {
            connection.pending_call = PendingCall::Nothing;
        }
        let mut stash = std::mem::take(&mut connection.input);
        let bytes = match &from {
            InputLocation::Buffer(buffer, len) => &self.driver.buffer(*buffer)[..*len],
            InputLocation::Long(block, range) => block.bytes(range.clone()),
            InputLocation::Stash => stash.bytes(&self.held_input),
        };
        self.blocks.set_pinned(matches!(from, InputLocation::Long(..)));
        let lent = (&mut self.output, &mut self.held_output, &mut self.blocks);
        let mut io = Io::new(token, self.now, connection, lent);
        let session = slot.session.as_mut().expect("a used slot has a session");
        let consumed = session.received(bytes, &mut io, &mut self.service);
        self.blocks.set_pinned(false);
        let connection = &mut slot.connection;
        let is_stored = match from {
            InputLocation::Stash => {
                stash.consume(&mut self.held_input, consumed);
                true
            }
            // The session has finished: the rest is not needed.
            InputLocation::Buffer(..) | InputLocation::Long(..)
                if !matches!(connection.finish, CloseIntent::No | CloseIntent::Detach) =>
            {
                connection.emptied_turn = connection.emptied_turn.filter(|_| consumed == bytes.len());
                true
            }
            InputLocation::Buffer(buffer, len) => {
                stash.append(&mut self.held_input, &self.driver.buffer(buffer)[consumed..len])
            }
            InputLocation::Long(ref block, ref range) => {
                stash.append(&mut self.held_input, &block.bytes(range.clone())[consumed..])
            }
        };
        connection.input = stash;
        if !is_stored {
            (connection.finish, connection.reason) = (CloseIntent::Abort, CloseReason::InputFull);
        }
        self.enforce_output_budget(token);
    }
}
