//! Slow consumers: selects the connections to disconnect when the held output of all exceeds its budget, and sends
//! their last messages.
//!
//! ```text
//!  held   │ rest of a message │ message │ message │ …      the first message is partly sent
//!  sent   │ rest of a message │ last message │             then the end, within the write timeout
//! ```

use stilling_ring::planted;

use super::Shard;
use super::connection::{CloseIntent, ConnectionState, ConnectionTimer, NEVER, PendingCall, UNKNOWN_REST};
use super::session::{Service, Session};
use crate::close_reason::CloseReason;
use crate::driver::{Driver, GatherSlices};
use crate::limits::{LARGEST_OUTPUTS_COMPARED, LISTENERS_MAX, PARTIAL_MESSAGE_REST_MAX};
use crate::token::Token;

/// Bytes after the first `sent` bytes of `slices` up to the end of the partly sent message. The first `rest` bytes of
/// `slices` are the end of an earlier message.
pub(super) fn message_rest_after(
    rest: u32,
    mut slices: GatherSlices<'_>,
    sent: usize,
    len_of: impl Fn(&[u8]) -> Option<usize>,
) -> u32 {
    if rest == UNKNOWN_REST {
        return UNKNOWN_REST;
    }
    let all = slices.remaining();
    let mut end = rest as usize;
    // The current slice, and the number of bytes before it.
    let (mut slice, mut before): (&[u8], usize) = (b"", 0);
    while end < sent {
        while end >= before + slice.len() {
            before += slice.len();
            let Some(next) = slices.next() else { return UNKNOWN_REST };
            slice = next;
        }
        match len_of(&slice[end - before..]) {
            Some(len) if len > 0 && len <= all - end => end += len,
            _ => return UNKNOWN_REST,
        }
    }
    (end - sent) as u32
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// Disconnects the connections that hold most until the output store is within its budget. `requester` has just
    /// appended output.
    #[inline]
    pub(super) fn enforce_output_budget(&mut self, requester: Token) {
        if self.held_output.is_over_budget() {
            self.disconnect_largest(requester);
        }
    }

    #[cold]
    fn disconnect_largest(&mut self, requester: Token) {
        while self.held_output.is_over_budget() {
            let Some(mut largest) = self.largest_holder() else { return };
            if planted!("a full store closes the requesting connection") {
                largest = requester;
            }
            self.end_slow_consumer(largest);
        }
    }

    /// The connection that holds most, among the first [`LARGEST_OUTPUTS_COMPARED`] of the largest block size in use.
    /// First moves bytes in oversized blocks to smaller ones; `None` if the store is then within its budget.
    fn largest_holder(&mut self) -> Option<Token> {
        while self.held_output.is_over_budget() {
            let mut owners = [0; LARGEST_OUTPUTS_COMPARED];
            let count = self.held_output.largest_owners(&mut owners);
            let mut largest: Option<(usize, Token)> = None;
            let mut has_shrunk = false;
            for owner in &owners[..count] {
                let Some(token) = self.slots.token_at((owner - LISTENERS_MAX) as usize) else { continue };
                let Some(slot) = self.slots.get(token) else { continue };
                let output = &mut slot.connection.output;
                if output.shrink(&mut self.held_output) {
                    has_shrunk = true;
                } else if largest.is_none_or(|(len, _)| output.len() > len) {
                    largest = Some((output.len(), token));
                }
            }
            if !has_shrunk {
                return largest.map(|(_, token)| token);
            }
        }
        None
    }

    /// Disconnects a slow consumer, at once or after its last message.
    pub(super) fn end_slow_consumer(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        let is_first = connection.reason != CloseReason::SlowConsumer;
        let is_serving = is_first
            && connection.state == ConnectionState::Open
            && matches!(connection.finish, CloseIntent::No | CloseIntent::SlowConsumer);
        connection.reason = CloseReason::SlowConsumer;
        let mut last_message: &[u8] = b"";
        if is_first && let Some(session) = &mut slot.session {
            last_message = session.slow_consumer(&mut self.service);
        }
        if !is_serving || !self.queue_last_message(token, last_message) {
            self.begin_close(token);
        }
    }

    /// Replaces the held output by the rest of the partly sent message and the last message. Returns false if there is
    /// no last message, or no room for it.
    fn queue_last_message(&mut self, token: Token, message: &[u8]) -> bool {
        let Some(slot) = self.slots.get(token) else { return false };
        let connection = &mut slot.connection;
        let rest = connection.message_rest as usize;
        // An unknown rest exceeds any limit.
        if message.is_empty() || !connection.blocked || rest > PARTIAL_MESSAGE_REST_MAX {
            return false;
        }
        connection.output.truncate(&mut self.held_output, rest);
        if !connection.output.append_owned(token.index(), &mut self.held_output, message) {
            return false;
        }
        connection.input.clear(&mut self.held_input);
        (connection.finish, connection.pending_call) = (CloseIntent::Linger, PendingCall::Nothing);
        let until = self.now.after(self.config.write_timeout);
        (connection.timer, connection.deadline) = (ConnectionTimer::Write(until), NEVER);
        self.wheel.set(token.index(), until);
        true
    }
}

#[cfg(test)]
mod tests {
    use stilling_ring::BlockWriter;

    use super::*;
    use crate::driver::{Gather, PieceChain, PieceList};

    /// A message is its length followed by that many bytes less one.
    fn len_of(bytes: &[u8]) -> Option<usize> {
        bytes.first().map(|len| usize::from(*len)).filter(|len| *len < 9)
    }

    /// Row 4.35: the end of the partly sent message is found, however the messages are split into pieces.
    #[test]
    fn the_rest_of_a_message_is_computed_for_any_pieces() {
        let bytes = [2, 0, 5, 0, 0, 0, 0, 1, 3, 0, 0];
        let rests = [0, 1, 0, 4, 3, 2, 1, 0, 0, 2, 1, 0];
        let mut writer = BlockWriter::new(4);
        writer.append(&bytes[3..7]).expect("there is room");
        let (mut pieces, mut chain) = (PieceList::default(), PieceChain::default());
        pieces.push_private(&mut chain, 0..3);
        pieces.push_shared(&mut chain, &writer.share(), 0..4);
        pieces.push_private(&mut chain, 3..7);
        let arena = [&bytes[..3], &bytes[7..]].concat();
        for gather in [Gather::One(&bytes), pieces.gather(chain, &arena)] {
            for (sent, rest) in rests.into_iter().enumerate() {
                assert_eq!(
                    message_rest_after(0, gather.slices(), sent, len_of),
                    rest,
                    "{sent} of {gather:?}"
                );
            }
            assert_eq!(message_rest_after(2, gather.slices(), 1, len_of), 1);
            assert_eq!(message_rest_after(2, gather.slices(), 3, len_of), 4);
            assert_eq!(message_rest_after(UNKNOWN_REST, gather.slices(), 1, len_of), UNKNOWN_REST);
            assert_eq!(
                message_rest_after(1, gather.slices(), 2, len_of),
                UNKNOWN_REST,
                "no message begins there"
            );
        }
    }
}
