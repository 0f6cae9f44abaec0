//! The handle of a session. It records the session's requests; the shard carries them out when the session returns.

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
    pub(super) connection: &'a mut Connection,
    output: &'a mut Output,
    store: &'a mut StashStore,
    blocks: &'a mut InputBlocks,
    /// Bytes of this connection that the system does not have yet.
    unsent: usize,
    /// Maximum of `unsent` in this call, beside the connection's own.
    unsent_max: usize,
}

impl<'a> Io<'a> {
    pub(super) fn new(
        token: Token,
        now: Time,
        connection: &'a mut Connection,
        (output, store, blocks): (&'a mut Output, &'a mut StashStore, &'a mut InputBlocks),
    ) -> Self {
        let unsent = connection.output.len() + output.unsent(connection.link);
        Io { now, token, connection, output, store, blocks, unsent, unsent_max: usize::MAX }
    }

    /// Limits the call to `room` further bytes.
    pub(super) fn with_room(self, room: usize) -> Self {
        Io { unsent_max: self.unsent + room, ..self }
    }
}

impl Io<'_> {
    /// The time of this turn.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The connection's token, for mail.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Bytes that may be sent now. Zero after an [`offer`](Self::offer) or [`end_output`](Self::end_output).
    pub fn room(&self) -> usize {
        match (self.connection.pending_call, self.connection.sending) {
            (PendingCall::OfferSent, _) | (_, SendState::Ending | SendState::Ended) => 0,
            _ if self.connection.is_slow_consumer() => 0,
            (_, SendState::Open) => {
                (self.connection.send_max as usize).min(self.unsent_max).saturating_sub(self.unsent)
            }
        }
    }

    /// Like [`room`](Self::room), limited to a fair share of the shard's output store: zero when half of it may be
    /// used. Sending more may disconnect the connection that holds most.
    pub fn spare_room(&self) -> usize {
        self.room().min(self.spare())
    }

    /// Bytes of output that this connection may leave unsent before half of the store may be full.
    fn spare(&self) -> usize {
        // All output of this turn may be blocked.
        self.store.spare().saturating_sub(self.output.size())
    }

    /// Appends bytes to the output.
    ///
    /// # Errors
    /// [`OutputFull`]: they exceed the [`room`](Self::room); none were accepted.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), OutputFull> {
        if bytes.len() > self.room() {
            return Err(OutputFull);
        }
        self.send_with(|out| out.extend_from_slice(bytes))
    }

    /// Appends a range of a shared block to the output, without a copy. The part that is not sent in this turn is
    /// copied and held like other output, so no peer pins a block beyond the turn. A range shorter than
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

    /// A reference to bytes, for other threads: in place if they are input just received into a shared block, else to a
    /// copy in such a block. The block is not reset before the last clone of the reference is dropped.
    ///
    /// `None` if there are fewer than [`SHARED_MIN`](crate::limits::SHARED_MIN) bytes, or no block has room for a copy:
    /// the caller has to copy the bytes elsewhere.
    #[inline]
    pub fn share(&mut self, bytes: &[u8]) -> Option<(&SharedBlock, Range<usize>)> {
        self.blocks.share(bytes)
    }

    /// Lets `write` append the bytes to be sent directly to the shard's arena, which saves a copy. It must append no
    /// more than [`room`](Self::room) bytes and not change existing bytes.
    ///
    /// # Errors
    /// [`OutputFull`]: `write` appended more than the room, and the connection is closed with `OutputFull`, because the
    /// response is incomplete. Or the connection is disconnected as a slow consumer, before or after a call of `write`.
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
        let mut is_accepted = written <= room;
        if blocked {
            // Earlier output is blocked: append to it.
            let bytes = &self.output.arena[start..];
            if is_accepted && !self.connection.output.append_owned(self.token.index(), self.store, bytes) {
                // The store does not accept a byte string of that length.
                self.end_slow_consumer();
                is_accepted = false;
            }
            self.output.arena.truncate(start);
        } else if is_accepted {
            self.output.extend_item(self.connection.link, start);
        } else {
            self.output.arena.truncate(start);
        }
        if is_accepted {
            return Ok(());
        }
        if self.connection.finish != CloseIntent::SlowConsumer {
            self.abort(CloseReason::OutputFull);
        }
        Err(OutputFull)
    }

    /// Tries to send bytes once. Unsent bytes are not stored, so a long response needs no room in the store, however
    /// slowly its peer reads: [`offer_sent`](crate::Session::offer_sent) reports how many were sent, when more can be
    /// sent. Until then the session gets no input and cannot send. If it requests the end meanwhile, the unsent rest is
    /// dropped.
    ///
    /// At most [`OFFER_MAX`](crate::limits::OFFER_MAX) bytes are tried, and none while earlier output is blocked;
    /// `offer_sent` is called in any case.
    pub fn offer(&mut self, bytes: &[u8]) {
        let held_up = !self.connection.output.is_empty();
        let count = if held_up { 0 } else { bytes.len().min(self.room()).min(OFFER_MAX) };
        if self.connection.pending_call == PendingCall::OfferSent {
            return;
        }
        if count > 0 {
            self.connection.link = self.output.open_item(self.connection.link, self.token);
            let start = self.output.arena.len();
            self.output.arena.extend_from_slice(&bytes[..count]);
            self.output.extend_item(self.connection.link, start);
            self.unsent += count;
        }
        self.connection.offered = count as u16;
        self.connection.pending_call = PendingCall::OfferSent;
    }

    /// Sets the time at which `deadline` is called; `None` removes it. The call is delayed while output is blocked,
    /// unless the session [keeps reading](Self::keep_reading) or [keeps its deadline](Self::keep_deadline).
    pub fn set_deadline(&mut self, deadline: Option<Time>) {
        self.connection.deadline = deadline.unwrap_or(NEVER);
    }

    /// The deadline.
    pub fn deadline(&self) -> Option<Time> {
        Some(self.connection.deadline).filter(|deadline| *deadline != NEVER)
    }

    /// From now on, `deadline` is called also while output is blocked. Does not affect input.
    pub fn keep_deadline(&mut self) {
        self.connection.keeps_deadline = true;
    }

    /// Stops input until [`resume`](Self::resume); TCP's flow control slows the peer.
    pub fn pause(&mut self) {
        self.connection.paused = true;
    }

    /// Resumes input, starting with unconsumed bytes.
    pub fn resume(&mut self) {
        if std::mem::take(&mut self.connection.paused) {
            self.connection.schedule_received();
        }
    }

    /// Closes the connection with `PeerReset` if the peer has reset it or ended both directions, which is not noticed
    /// otherwise while input is paused. The end of the peer's sending direction alone does not count.
    pub fn check_peer(&mut self) {
        self.connection.checks_peer = true;
    }

    /// Requests a call of `received` with the unconsumed bytes (possibly none) when this turn's output is sent. Not
    /// needed after an [`offer`](Self::offer).
    pub fn call_again(&mut self) {
        if self.connection.pending_call != PendingCall::OfferSent {
            self.connection.pending_call = PendingCall::AfterOutput;
        }
    }

    /// Ends the sending direction when all output is sent: the peer sees the end of the stream. Input continues.
    pub fn end_output(&mut self) {
        if self.connection.sending == SendState::Open {
            self.connection.sending = SendState::Ending;
        }
    }

    /// Closes when all output is sent.
    pub fn finish(&mut self, reason: CloseReason) {
        self.end(CloseIntent::Close, reason);
    }

    /// Ends the sending direction when all output is sent and discards input for a while before closing (lingering
    /// close): for a last response to a peer that may still be sending.
    pub fn finish_lingering(&mut self, reason: CloseReason) {
        self.end(CloseIntent::Linger, reason);
    }

    /// Detaches the connection when all output is sent: its session, socket and unconsumed input go to the handler of
    /// [`Shard::on_detached`](super::Shard::on_detached). Until then the session gets no input or events, then `closed`
    /// with `Detached`, or with the reason of an earlier end: a failure, the write timeout, [`abort`](Self::abort). No
    /// effect after a request to close the connection.
    pub fn detach(&mut self) {
        self.end(CloseIntent::Detach, CloseReason::Detached);
    }

    /// Disconnects the connection as a slow consumer: see [`slow_consumer`](crate::Session::slow_consumer).
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

    /// Whether the session has paused input.
    pub fn is_paused(&self) -> bool {
        self.connection.paused
    }

    /// Whether unconsumed input is stored. Not known during `received`.
    pub fn has_unread(&self) -> bool {
        !self.connection.input.is_empty()
    }

    /// Whether the session has requested the end or a detach.
    pub fn is_finishing(&self) -> bool {
        self.connection.finish != CloseIntent::No
    }

    /// Whether the peer has ended its sending direction.
    pub fn peer_ended(&self) -> bool {
        self.connection.peer != PeerState::Sending
    }

    /// Sets the maximum of unsent bytes (default [`SEND_MAX`](crate::limits::SEND_MAX)), at most
    /// [`OUTPUT_STASH_MAX`](crate::store::OUTPUT_STASH_MAX): for messages that are sent whether the peer reads or not.
    /// When the shard's output store is full, the connections that hold most are disconnected as slow consumers.
    pub fn set_send_max(&mut self, bytes: usize) {
        self.connection.send_max = bytes.min(OUTPUT_STASH_MAX) as u32;
    }

    /// Shows input also while output is blocked, as long as that is less than half of the connection's maximum
    /// ([`set_send_max`](Self::set_send_max)) and the shard's output store has ample room: for peers that send
    /// everything before they read the first response. The write timeout continues, and `deadline` is called as well; a
    /// session that sends more than its [`room`](Self::room) is closed.
    pub fn keep_reading(&mut self) {
        self.connection.reads_while_blocked = true;
    }

    /// Whether output is blocked.
    pub fn is_output_blocked(&self) -> bool {
        self.connection.blocked
    }

    /// Whether input waits until blocked output is sent.
    pub fn is_input_blocked(&self) -> bool {
        self.connection.is_input_blocked(self.store)
    }

    /// Bytes of output that the system does not have yet.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Whether output of this or an earlier call is not sent yet.
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
