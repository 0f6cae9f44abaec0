//! The handle through which a session acts. It notes what the session wants; the shard does it when
//! the session returns.

use std::ops::Range;

use stilling_ring::{SharedBlock, Time};

use super::connection::{CloseIntent, Connection, NEVER, PeerState, PendingCall, SendState};
use super::input_blocks::InputBlocks;
use super::output::Output;
use crate::close_reason::CloseReason;
use crate::limits::{OFFER_MAX, SHARED_MIN};
use crate::store::{OUTPUT_STASH_MAX, StashStore};
use crate::token::Token;

/// There was no room for the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputFull;

/// A connection as its session sees it during one call.
pub struct Io<'a> {
    now: Time,
    token: Token,
    connection: &'a mut Connection,
    output: &'a mut Output,
    store: &'a mut StashStore,
    blocks: &'a mut InputBlocks,
    /// Bytes of this connection that are not with the system yet.
    unsent: usize,
    /// Bytes that they may become in this call, whatever the connection may have unsent.
    unsent_max: usize,
}

impl<'a> Io<'a> {
    /// What a session is lent for one call.
    pub(super) fn lend(
        token: Token,
        now: Time,
        connection: &'a mut Connection,
        (output, store, blocks): (&'a mut Output, &'a mut StashStore, &'a mut InputBlocks),
    ) -> Self {
        let unsent = connection.output.len() + output.unsent(connection.link);
        Io { now, token, connection, output, store, blocks, unsent, unsent_max: usize::MAX }
    }

    /// The same for a call that is to send no more than so many bytes.
    pub(super) fn with_room(self, room: usize) -> Self {
        Io { unsent_max: self.unsent + room, ..self }
    }
}

impl Io<'_> {
    /// The time of this turn.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The connection's name, for mail.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Bytes that may still be sent before what is unsent has gone. None behind an [`offer`](Self::offer) or
    /// [`end_output`](Self::end_output).
    pub fn room(&self) -> usize {
        match (self.connection.pending_call, self.connection.sending) {
            (PendingCall::Taken, _) | (_, SendState::Ending | SendState::Ended) => 0,
            _ if self.connection.is_slow_consumer() => 0,
            (_, SendState::Open) => {
                (self.connection.send_max as usize).min(self.unsent_max).saturating_sub(self.unsent)
            }
        }
    }

    /// The same without more than a fair part of the store that all connections share: none once half of the store may be
    /// full of what their peers do not take. What is sent beyond may disconnect the connection that holds most.
    pub fn spare_room(&self) -> usize {
        self.room().min(self.spare())
    }

    /// Bytes that may still be held up before half of the store may be full.
    fn spare(&self) -> usize {
        // Whatever goes out in this turn may come back.
        self.store.spare().saturating_sub(self.output.size())
    }

    /// Sends bytes, after those sent before.
    ///
    /// # Errors
    /// [`OutputFull`]: they are more than there is [`room`](Self::room) for; none were taken.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), OutputFull> {
        if bytes.len() > self.room() {
            return Err(OutputFull);
        }
        self.send_with(|out| out.extend_from_slice(bytes))
    }

    /// Sends a range of a shared block, after what was sent before, from where it lies. What the system does not take in this
    /// turn is copied and held like other output, so no peer keeps a block beyond the turn. A range shorter than
    /// [`SHARED_MIN`](crate::limits::SHARED_MIN) is copied at once, which costs less.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Panics
    /// If the range is not a committed part of the block.
    pub fn send_shared(&mut self, block: &SharedBlock, range: Range<usize>) -> Result<(), OutputFull> {
        let bytes = block.bytes(range.clone());
        if bytes.len() < SHARED_MIN || self.connection.blocked {
            return self.send(bytes);
        }
        if bytes.len() > self.room() {
            return Err(OutputFull);
        }
        self.connection.link = self.output.item(self.connection.link, self.token);
        if !self.output.share(self.connection.link, block, range) {
            return self.send(bytes);
        }
        self.unsent += bytes.len();
        Ok(())
    }

    /// A reference to bytes that may go to other threads without another copy: to where they lie if they are input that has just
    /// been received into a shared block, else to a copy in such a block. The block is not filled anew before the last clone of
    /// the reference is dropped.
    ///
    /// None if there are fewer than [`SHARED_MIN`](crate::limits::SHARED_MIN) bytes, or no block has room for a copy: the bytes
    /// have to be copied elsewhere.
    #[inline]
    pub fn share(&mut self, bytes: &[u8]) -> Option<(&SharedBlock, Range<usize>)> {
        self.blocks.share(bytes)
    }

    /// Lets `write` append the bytes to be sent to the end of the shard's arena, which saves a copy.
    /// It must append no more than [`room`](Self::room) bytes and leave alone what is there.
    ///
    /// # Errors
    /// [`OutputFull`]: it wrote more than there is room for. An answer with a hole would be worse than none,
    /// so the connection is closed with `OutputFull`. Or it is being disconnected as a slow consumer, and `write` is not called.
    pub fn send_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), OutputFull> {
        if self.connection.is_slow_consumer() {
            return Err(OutputFull);
        }
        let room = self.room();
        let blocked = self.connection.blocked;
        if !blocked {
            self.connection.link = self.output.open_item(self.connection.link, self.token);
        }
        let start = self.output.arena.len();
        write(&mut self.output.arena);
        let written = self.output.arena.len() - start;
        self.unsent += written;
        let mut kept = written <= room;
        if blocked {
            // Earlier output is held up: this goes behind it.
            let bytes = &self.output.arena[start..];
            if kept && !self.connection.output.append_owned(self.token.index(), self.store, bytes) {
                // The store takes no run that long.
                self.end_slow_consumer();
                kept = false;
            }
            self.output.arena.truncate(start);
        } else if kept {
            self.output.extend_item(self.connection.link, start);
        } else {
            self.output.arena.truncate(start);
        }
        if kept {
            return Ok(());
        }
        if self.connection.finish != CloseIntent::SlowConsumer {
            self.abort(CloseReason::OutputFull);
        }
        Err(OutputFull)
    }

    /// Tries to send bytes without a promise: what the system does not take is not kept, and the session hears
    /// by [`taken`](crate::Session::taken) how many went, when more can go. So a long answer needs no room in
    /// the store, however slowly its peer reads. Until then the session is shown no input and can send nothing
    /// else. An end that it asks for meanwhile does not wait for the rest.
    ///
    /// At most [`OFFER_MAX`](crate::limits::OFFER_MAX) bytes are tried, and none while earlier output is held up; the answer comes all the same.
    pub fn offer(&mut self, bytes: &[u8]) {
        let held_up = !self.connection.output.is_empty();
        let count = if held_up { 0 } else { bytes.len().min(self.room()).min(OFFER_MAX) };
        if self.connection.pending_call == PendingCall::Taken {
            return;
        }
        if count > 0 {
            self.connection.link = self.output.open_item(self.connection.link, self.token);
            let start = self.output.arena.len();
            self.output.arena.extend_from_slice(&bytes[..count]);
            self.output.extend_item(self.connection.link, start);
            self.unsent += count;
        }
        // Not more than `OFFER_MAX`.
        self.connection.offered = count as u16;
        self.connection.pending_call = PendingCall::Taken;
    }

    /// Sets the point in time at which `deadline` is called; `None` takes it away. While output is held up it is called when
    /// that has gone, unless the session [keeps reading](Self::keep_reading) or [keeps its deadline](Self::keep_deadline).
    pub fn set_deadline(&mut self, deadline: Option<Time>) {
        self.connection.deadline = deadline.unwrap_or(NEVER);
    }

    /// The deadline that is set.
    pub fn deadline(&self) -> Option<Time> {
        Some(self.connection.deadline).filter(|deadline| *deadline != NEVER)
    }

    /// Has `deadline` called also while output is held up, for as long as the connection lasts. No input is shown for that.
    pub fn keep_deadline(&mut self) {
        self.connection.keeps_deadline = true;
    }

    /// Shows no more input until [`resume`](Self::resume); the peer is slowed down by TCP.
    pub fn pause(&mut self) {
        self.connection.paused = true;
    }

    /// Shows input again, beginning with what was left over.
    pub fn resume(&mut self) {
        if std::mem::take(&mut self.connection.paused) {
            self.connection.schedule_received();
        }
    }

    /// Looks whether the peer is gone for good, which nobody notices while the session is paused: the connection is
    /// closed with `PeerReset` then. One that has only ended its own sending is not gone.
    pub fn check_peer(&mut self) {
        self.connection.checks_peer = true;
    }

    /// Asks for `received` with the unconsumed bytes (there may be none) when this turn's output has
    /// gone. After an [`offer`](Self::offer) it is called anyway.
    pub fn call_again(&mut self) {
        if self.connection.pending_call != PendingCall::Taken {
            self.connection.pending_call = PendingCall::AfterOutput;
        }
    }

    /// Ends our direction when all output is sent: the peer sees the end of the stream. What it says is shown as
    /// before; nothing can be sent any more.
    pub fn end_output(&mut self) {
        if self.connection.sending == SendState::Open {
            self.connection.sending = SendState::Ending;
        }
    }

    /// Closes when all output is sent.
    pub fn finish(&mut self, reason: CloseReason) {
        self.end(CloseIntent::Close, reason);
    }

    /// Ends our direction when all output is sent and discards input for a while before closing:
    /// for a last answer to a peer that may still be sending.
    pub fn finish_lingering(&mut self, reason: CloseReason) {
        self.end(CloseIntent::Linger, reason);
    }

    /// Asks for the socket, which leaves the shard with all unconsumed input when all output is sent:
    /// see [`Shard::on_detached`](super::Shard::on_detached). The session hears nothing more of the peer;
    /// it is told `closed` with `Detached` when that has happened. Whatever ends the connection before
    /// then (a failure, the write timeout, [`abort`](Self::abort)) ends it with that reason instead; once
    /// the end was asked for, asking for the socket does nothing.
    pub fn detach(&mut self) {
        self.end(CloseIntent::Detach, CloseReason::Detached);
    }

    /// Disconnects a slow consumer: what the peer has not read is discarded, and
    /// [`slow_consumer`](crate::Session::slow_consumer) says what it is sent instead.
    pub fn end_slow_consumer(&mut self) {
        if self.connection.finish == CloseIntent::No {
            self.connection.finish = CloseIntent::SlowConsumer;
        }
    }

    /// Closes at once; unsent output is dropped.
    pub fn abort(&mut self, reason: CloseReason) {
        if self.connection.finish != CloseIntent::Abort {
            (self.connection.finish, self.connection.reason) = (CloseIntent::Abort, reason);
        }
    }

    /// Whether the session has paused.
    pub fn is_paused(&self) -> bool {
        self.connection.paused
    }

    /// Whether input is kept that the session has not consumed. Not known during `received`.
    pub fn has_unread(&self) -> bool {
        !self.connection.input.is_empty()
    }

    /// Whether the session has asked for the end, or for its socket.
    pub fn is_finishing(&self) -> bool {
        self.connection.finish != CloseIntent::No
    }

    /// Whether the peer has finished sending.
    pub fn peer_ended(&self) -> bool {
        self.connection.peer != PeerState::Sending
    }

    /// Lets the connection have so many bytes unsent instead of `SEND_MAX`, at most
    /// [`OUTPUT_STASH_MAX`](crate::store::OUTPUT_STASH_MAX): for messages that come whether the peer reads or not. When the
    /// store that all connections share is full, those that hold most are disconnected as slow consumers.
    pub fn set_send_max(&mut self, bytes: usize) {
        self.connection.send_max = bytes.min(OUTPUT_STASH_MAX) as u32;
    }

    /// Shows input also while output is held up, as long as that is less than half of what the connection may have unsent
    /// ([`set_send_max`](Self::set_send_max)), and as long as half of the store that all share is not nearly full: for peers
    /// that say all they have to say before they read the first answer.
    /// The write timeout goes on, and the session hears its deadline as well; a session that answers without looking for
    /// [`room`](Self::room) is closed.
    pub fn keep_reading(&mut self) {
        self.connection.reads_while_blocked = true;
    }

    /// Whether earlier output waits for the peer to read.
    pub fn is_output_blocked(&self) -> bool {
        self.connection.blocked
    }

    /// Whether input waits until held-up output has gone.
    pub fn is_input_blocked(&self) -> bool {
        self.connection.is_input_blocked(self.store)
    }

    /// Whether output of this or an earlier call is not with the system yet.
    pub fn has_unsent(&self) -> bool {
        self.connection.has_output()
    }

    fn end(&mut self, finish: CloseIntent, reason: CloseReason) {
        if self.connection.finish == CloseIntent::No {
            self.connection.finish = finish;
            self.connection.reason = reason;
        }
    }
}
