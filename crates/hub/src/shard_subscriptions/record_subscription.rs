//! The state of a subscription over WebSocket or SSE: it receives the records of its stream in the order of their
//! sequences, each once.
//!
//! ```text
//!   live messages:  ignored while it catches up │ from CaughtUp { through } on: sequences above `through`
//!   catch-up:       records, gaps …  CaughtUp   │
//! ```
//!
//! A live subscription whose client is too slow catches up again.

use stilling_ring::planted;

use crate::deliveries::{DeliveryBatch, MessageBody};
use crate::encoding::{EncodingClass, MessageFormat};
use crate::message::OutboundMessage;

/// Last sequence while a subscription catches up: no live record is next.
const CATCHING_UP: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct RecordSubscription {
    pub(super) format: MessageFormat,
    /// The only stream that has subjects of the filter; its records have ids.
    pub(super) stream: Option<u32>,
    /// Last sequence that was sent, or [`CATCHING_UP`].
    last: u64,
}

impl RecordSubscription {
    pub(super) fn new(format: MessageFormat, stream: Option<u32>) -> RecordSubscription {
        RecordSubscription { format, stream, last: CATCHING_UP }
    }

    /// Returns whether a live record of the stream is to be sent, and notes its sequence.
    pub(super) fn advance(&mut self, sequence: u64) -> bool {
        let is_next = sequence > self.last;
        if is_next {
            self.last = sequence;
        }
        is_next
    }

    /// Ends the catch-up: records after `through` follow.
    pub(super) fn go_live(&mut self, through: u64) {
        let through = through + u64::from(planted!("lost hand-over"));
        self.last = if planted!("early live records") { 0 } else { through };
    }

    /// Returns the last sequence that was sent, unless the subscription catches up or has no stream. Does not include
    /// what a feed has sent.
    pub(super) fn last(&self) -> Option<u64> {
        self.stream.map(|_| self.last).filter(|last| *last != CATCHING_UP)
    }

    /// Returns whether live records of its stream are ignored: it must not read a feed.
    pub(super) fn is_catching_up(&self) -> bool {
        self.stream.is_some() && self.last == CATCHING_UP
    }

    /// Notes that a feed has sent everything up to a sequence.
    pub(super) fn note_sent(&mut self, sequence: u64) {
        self.last = self.last.max(sequence);
    }

    /// Ignores live records until the next [`go_live`](Self::go_live).
    pub(super) fn stop_live(&mut self) {
        self.last = CATCHING_UP;
    }

    /// Appends a live message, with the number that identifies it in the batch.
    pub(super) fn encode(
        &self,
        into: &mut DeliveryBatch,
        (token, number): (u64, u64),
        message: &OutboundMessage<'_>,
    ) {
        let has_id = self.has_id(message);
        let class = EncodingClass::Format { format: self.format, has_id };
        let body = MessageBody { message: number, class };
        into.message(token, body, |_| (), |out| self.format.encode(out, message, has_id));
    }

    /// Appends a message for this subscription alone.
    pub(super) fn encode_alone(&self, out: &mut Vec<u8>, message: &OutboundMessage<'_>) {
        self.format.encode(out, message, self.has_id(message));
    }

    fn has_id(&self, message: &OutboundMessage<'_>) -> bool {
        message.position.is_some_and(|position| self.stream == Some(position.stream))
    }
}
