//! Delivery batches: a shard's ready bytes for its connections, in order, and publish outcomes.
//!
//! ```text
//!   bytes      │ MSG a.b 1 5␍␊hello␍␊ │ MSG a.b 2 5␍␊ │ PONG␍␊ │ MSG a.c 1 4096␍␊ │ …
//!   entries    [ to 17: 0..22 ]  [ to 9: 22..35, then 13..20 ] … [ to 17: 41..57, block 0 from 9000, ␍␊ ] …
//!   blocks     [ block 0 ] …
//! ```
//!
//! The payload of a message for several connections of a shard is stored once. Consecutive items for one connection
//! form one entry. A payload in a shared block stays there.
//!
//! A shard processes a batch connection by connection, which makes the bytes of a connection consecutive. Only the
//! order per connection is significant.

use std::ops::Range;

use stilling_ring::SharedBlock;

use crate::encoding::EncodingClass;
use crate::limits::DELIVERY_BATCH_SIZE;
use crate::payload::{Payload, add_block};
use crate::publish_outcome::PublishOutcome;
use crate::reused_vec::ReusedVec;

/// An item for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveryItem<'a> {
    /// Bytes to send: the first part, then the second.
    Bytes(&'a [u8], &'a [u8]),
    /// A message with its payload in a shared block: line and headers, payload, terminator.
    Message(&'a [u8], Payload<'a>, &'static [u8]),
    /// Complete messages in a shared block, the same bytes for several connections.
    Feed(Payload<'a>),
    /// Complete messages, the same for several connections but for the sids.
    FeedWithSid(MessagesWithSid<'a>),
    /// The outcome of a published message.
    PublishOutcome {
        /// The publication's [ticket](crate::Publication::ticket).
        ticket: u32,
        /// The result of the publication.
        outcome: PublishOutcome,
    },
    /// The message was rejected by its stream's gate ([`RefusalReason::Gate`](crate::RefusalReason::Gate)).
    Rejection {
        /// The publication's [ticket](crate::Publication::ticket).
        ticket: u32,
        /// Number of the stream.
        stream: u32,
        /// The gate's reason: UTF-8.
        reason: &'a [u8],
    },
    /// Send [`HubRequest::MarkReached`](crate::HubRequest::MarkReached) to the hub when everything before has been
    /// sent.
    Mark(u64),
    /// Stop reading the connection: its publications wait for a full stream.
    Pause,
    /// Read the connection again.
    Resume,
    /// Close the connection: the hub has no room for its subscription.
    Refused,
    /// Close the connection as a slow consumer: its client has not gained on its stream in the time for that.
    SlowConsumer,
    /// Close the connection after what it was sent: it requested [`CloseAfterAcks`](crate::HubRequest::CloseAfterAcks),
    /// and all its publications are answered.
    Close,
}

/// Messages of a feed to be sent with a subscription's sid in place of placeholders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessagesWithSid<'a> {
    messages: &'a [u8],
    sid: &'a [u8],
    /// Where the placeholders begin, plus `base`.
    sid_starts: &'a [u32],
    base: u32,
}

impl MessagesWithSid<'_> {
    /// Returns the length in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.messages.len()
    }

    /// Appends the messages to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.messages);
        let copy = &mut out[start..];
        for sid_start in self.sid_starts {
            copy[(sid_start - self.base) as usize..][..self.sid.len()].copy_from_slice(self.sid);
        }
    }
}

/// Deliveries for the connections of a shard, in order.
#[derive(Debug, Default)]
pub struct DeliveryBatch {
    bytes: ReusedVec<u8>,
    entries: ReusedVec<DeliveryEntry>,
    next: usize,
    /// Span and message number of the last body of each encoding: subscribers with different encodings may alternate.
    bodies: [(ByteSpan, u64); EncodingClass::COUNT],
    /// Blocks of payloads passed by reference.
    blocks: Vec<SharedBlock>,
    /// Where the placeholders of sids begin in the blocks of feeds, and those of each such entry.
    sid_starts: ReusedVec<u32>,
    sids: ReusedVec<SidSpans>,
    shared_size: usize,
    counted: Option<u64>,
    /// Entries of a connection may not be consecutive.
    is_mixed: bool,
}

/// The part after a message's line, shared by all subscribers with the same encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageBody {
    pub(crate) message: u64,
    pub(crate) class: EncodingClass,
}

const MESSAGE_END: &[u8] = b"\r\n";

/// A range of `bytes`, which holds at most [`DELIVERY_BATCH_SIZE`] and one message: the hub checks for room before
/// each, and a message is far below 4 GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ByteSpan {
    start: u32,
    end: u32,
}

impl ByteSpan {
    const fn is_empty(self) -> bool {
        self.start == self.end
    }
}

#[derive(Clone, Copy, Debug)]
struct DeliveryEntry {
    to: u64,
    number: u32,
    kind: DeliveryKind,
}

/// As documented at [`MEMORY_CHECKED_EVERY`](crate::limits::MEMORY_CHECKED_EVERY).
const _: () = assert!(size_of::<DeliveryEntry>() <= 48);

#[derive(Clone, Copy, Debug)]
enum DeliveryKind {
    Bytes(ByteSpan, ByteSpan),
    /// A line with headers, and a payload in a block.
    Message {
        line: ByteSpan,
        block: u32,
        start: u32,
        size: u32,
    },
    /// Complete messages in a block.
    Feed {
        block: u32,
        start: u32,
        size: u32,
    },
    /// The same, with placeholders of sids.
    FeedWithSid {
        block: u32,
        start: u32,
        size: u32,
        sid: u32,
    },
    PublishOutcome {
        ticket: u32,
        outcome: PublishOutcome,
    },
    Rejection {
        ticket: u32,
        stream: u32,
        reason: ByteSpan,
    },
    Mark(u64),
    Pause,
    Resume,
    Refused,
    SlowConsumer,
    Close,
}

/// A sid, and where its placeholders begin: an index and a count in `sid_starts`.
#[derive(Clone, Copy, Debug)]
struct SidSpans {
    sid: ByteSpan,
    starts: (u32, u32),
}

impl DeliveryBatch {
    /// Creates an empty batch. It allocates at its first use.
    #[must_use]
    pub fn new() -> DeliveryBatch {
        DeliveryBatch::default()
    }

    /// Returns whether the batch has reached [`DELIVERY_BATCH_SIZE`].
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.size() >= DELIVERY_BATCH_SIZE
    }

    /// Bytes that the batch counts for, payloads in shared blocks included.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        let sids = size_of_val(&self.sid_starts[..]) + size_of_val(&self.sids[..]);
        self.bytes.len() + self.shared_size + size_of_val(&self.entries[..]) + sids
    }

    /// Returns whether no entries remain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next == self.entries.len()
    }

    /// Appends bytes for the connection `to`, written by `write`.
    ///
    /// The caller checks [`is_full`](DeliveryBatch::is_full) first.
    #[inline]
    pub fn bytes(&mut self, to: u64, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len() as u32;
        write(&mut self.bytes);
        let end = self.bytes.len() as u32;
        self.add_bytes(to, ByteSpan { start, end }, ByteSpan::default());
    }

    /// Appends a line for the connection `to`, followed by the body of a message, which `write` produces if the batch
    /// does not contain it yet. Message numbers are unique until [`clear`](DeliveryBatch::clear).
    #[inline]
    pub(crate) fn message(
        &mut self,
        to: u64,
        body: MessageBody,
        line: impl FnOnce(&mut Vec<u8>),
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.bytes.len() as u32;
        line(&mut self.bytes);
        let end = self.bytes.len() as u32;
        let (body_span, of) = self.bodies[body.class.index()];
        if of == body.message && !body_span.is_empty() {
            let line = ByteSpan { start, end };
            return match line.is_empty() {
                true => self.add_bytes(to, body_span, ByteSpan::default()),
                false => self.add_bytes(to, line, body_span),
            };
        }
        write(&mut self.bytes);
        let whole = ByteSpan { start, end: self.bytes.len() as u32 };
        self.bodies[body.class.index()] = (ByteSpan { start: end, end: whole.end }, body.message);
        self.add_bytes(to, whole, ByteSpan::default());
    }

    /// Appends a line with headers for the connection `to`, followed by a block range as the payload of message
    /// `number`, and the terminator. Numbers are those of [`message`](DeliveryBatch::message).
    pub(crate) fn shared_message(
        &mut self,
        to: u64,
        number: u64,
        line: impl FnOnce(&mut Vec<u8>),
        (block, range): (&SharedBlock, Range<usize>),
    ) {
        let start = self.bytes.len() as u32;
        line(&mut self.bytes);
        let line = ByteSpan { start, end: self.bytes.len() as u32 };
        if self.counted.replace(number) != Some(number) {
            self.shared_size += range.len();
        }
        let block = add_block(&mut self.blocks, block);
        // A block is shorter than 4 GiB.
        self.add(
            to,
            DeliveryKind::Message { line, block, start: range.start as u32, size: range.len() as u32 },
        );
    }

    /// Counts bytes of a feed, which is handed to several connections.
    pub(crate) fn count_feed(&mut self, size: usize) {
        self.shared_size += size;
    }

    /// Appends complete messages in a block for the connection `to`.
    pub(crate) fn feed(&mut self, to: u64, (block, range): (&SharedBlock, Range<usize>)) {
        let block = add_block(&mut self.blocks, block);
        // A block is shorter than 4 GiB.
        self.add(to, DeliveryKind::Feed { block, start: range.start as u32, size: range.len() as u32 });
    }

    /// The same, with the connection's sid in place of the placeholders that begin at `sid_starts` in the block.
    pub(crate) fn feed_with_sid(
        &mut self,
        to: u64,
        (block, range): (&SharedBlock, Range<usize>),
        (sid, sid_starts): (&[u8], &[u32]),
    ) {
        let block = add_block(&mut self.blocks, block);
        let (start, size) = (range.start as u32, range.len() as u32);
        let last = self.entries.last().map(|last| last.kind);
        let starts = match (last, self.sids.last()) {
            // Most connections get the same messages.
            (Some(DeliveryKind::FeedWithSid { block: of, start: from, size: length, .. }), Some(last))
                if (of, from, length) == (block, start, size) =>
            {
                last.starts
            }
            _ => {
                let first = self.sid_starts.len() as u32;
                self.sid_starts.extend_from_slice(sid_starts);
                (first, sid_starts.len() as u32)
            }
        };
        let from = self.bytes.len() as u32;
        self.bytes.extend_from_slice(sid);
        self.sids.push(SidSpans { sid: ByteSpan { start: from, end: self.bytes.len() as u32 }, starts });
        let sid = self.sids.len() as u32 - 1;
        self.add(to, DeliveryKind::FeedWithSid { block, start, size, sid });
    }

    #[inline]
    fn add_bytes(&mut self, to: u64, first: ByteSpan, second: ByteSpan) {
        let is_unread = self.next < self.entries.len();
        if let Some(DeliveryEntry {
            to: last,
            kind: DeliveryKind::Bytes(span, ByteSpan { start: 0, end: 0 }),
            ..
        }) = self.entries.last_mut()
            && *last == to
            && span.end == first.start
            && second.is_empty()
            && is_unread
        {
            span.end = first.end;
            return;
        }
        self.add(to, DeliveryKind::Bytes(first, second));
    }

    /// Appends a publish outcome.
    pub fn outcome(&mut self, to: u64, ticket: u32, outcome: PublishOutcome) {
        self.add(to, DeliveryKind::PublishOutcome { ticket, outcome });
    }

    /// Appends the rejection of a message by a gate.
    pub fn rejection(&mut self, to: u64, (ticket, stream): (u32, u32), reason: &[u8]) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(reason);
        let reason = ByteSpan { start, end: self.bytes.len() as u32 };
        self.add(to, DeliveryKind::Rejection { ticket, stream, reason });
    }

    /// Appends a mark.
    pub fn mark(&mut self, to: u64, mark: u64) {
        self.add(to, DeliveryKind::Mark(mark));
    }

    /// Stops reading a connection until it is [resumed](Self::resume).
    pub fn pause(&mut self, to: u64) {
        self.add(to, DeliveryKind::Pause);
    }

    /// Reads a connection again.
    pub fn resume(&mut self, to: u64) {
        self.add(to, DeliveryKind::Resume);
    }

    /// Refuses a connection's subscription.
    pub(crate) fn refuse(&mut self, to: u64) {
        self.add(to, DeliveryKind::Refused);
    }

    /// Closes a slow consumer's connection.
    pub(crate) fn slow_consumer(&mut self, to: u64) {
        self.add(to, DeliveryKind::SlowConsumer);
    }

    /// Closes a connection.
    pub fn close(&mut self, to: u64) {
        self.add(to, DeliveryKind::Close);
    }

    fn add(&mut self, to: u64, kind: DeliveryKind) {
        self.is_mixed |= self.entries.last().is_some_and(|last| last.to > to);
        let number = self.entries.len() as u32;
        self.entries.push(DeliveryEntry { to, number, kind });
    }

    /// Groups the entries by connection and keeps the order within each. Called when the batch is complete, before the
    /// first entry is read.
    pub fn group(&mut self) {
        if std::mem::take(&mut self.is_mixed) && self.next == 0 {
            // In place: a stable sort allocates.
            self.entries.sort_unstable_by_key(|entry| (entry.to, entry.number));
        }
    }

    /// Advances to the next entry and returns its connection; [`current`](DeliveryBatch::current) returns the entry.
    pub fn advance(&mut self) -> Option<u64> {
        let entry = self.entries.get(self.next)?;
        self.next += 1;
        Some(entry.to)
    }

    /// Advances to the next entry if it is a message with a shared payload, or messages of a feed, for the same
    /// connection as the current one.
    #[inline]
    pub fn advance_message(&mut self) -> bool {
        let Some(current) = self.next.checked_sub(1).and_then(|at| self.entries.get(at)) else {
            return false;
        };
        let is_next = self.entries.get(self.next).is_some_and(|next| {
            let is_message = matches!(
                next.kind,
                DeliveryKind::Message { .. } | DeliveryKind::Feed { .. } | DeliveryKind::FeedWithSid { .. }
            );
            next.to == current.to && is_message
        });
        self.next += usize::from(is_next);
        is_next
    }

    /// Returns the current entry.
    #[must_use]
    pub fn current(&self) -> Option<DeliveryItem<'_>> {
        Some(self.delivery(self.entries.get(self.next.checked_sub(1)?)?))
    }

    /// Returns the entries after the current one, in order, with their connections.
    pub fn rest(&self) -> impl Iterator<Item = (u64, DeliveryItem<'_>)> {
        self.entries[self.next..].iter().map(|entry| (entry.to, self.delivery(entry)))
    }

    #[inline]
    fn delivery(&self, entry: &DeliveryEntry) -> DeliveryItem<'_> {
        let part = |span: ByteSpan| &self.bytes[span.start as usize..span.end as usize];
        match entry.kind {
            DeliveryKind::Bytes(first, second) => DeliveryItem::Bytes(part(first), part(second)),
            DeliveryKind::Message { line, block, start, size } => {
                let range = start as usize..start as usize + size as usize;
                let payload = Payload::shared(&self.blocks[block as usize], range);
                DeliveryItem::Message(part(line), payload, MESSAGE_END)
            }
            DeliveryKind::Feed { block, start, size } => {
                let range = start as usize..start as usize + size as usize;
                DeliveryItem::Feed(Payload::shared(&self.blocks[block as usize], range))
            }
            DeliveryKind::FeedWithSid { block, start, size, sid } => {
                let range = start as usize..start as usize + size as usize;
                let SidSpans { sid, starts: (first, count) } = self.sids[sid as usize];
                DeliveryItem::FeedWithSid(MessagesWithSid {
                    messages: self.blocks[block as usize].bytes(range),
                    sid: part(sid),
                    sid_starts: &self.sid_starts[first as usize..][..count as usize],
                    base: start,
                })
            }
            DeliveryKind::PublishOutcome { ticket, outcome } => {
                DeliveryItem::PublishOutcome { ticket, outcome }
            }
            DeliveryKind::Rejection { ticket, stream, reason } => {
                DeliveryItem::Rejection { ticket, stream, reason: part(reason) }
            }
            DeliveryKind::Mark(mark) => DeliveryItem::Mark(mark),
            DeliveryKind::Pause => DeliveryItem::Pause,
            DeliveryKind::Resume => DeliveryItem::Resume,
            DeliveryKind::Refused => DeliveryItem::Refused,
            DeliveryKind::SlowConsumer => DeliveryItem::SlowConsumer,
            DeliveryKind::Close => DeliveryItem::Close,
        }
    }

    /// Empties the batch and releases the blocks of its payloads; keeps its memory except after an unusual burst. What
    /// feeds hand out has an entry per connection, so a batch may be much longer than [`DELIVERY_BATCH_SIZE`].
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.sid_starts.recycle();
        self.sids.recycle();
        self.shared_size = 0;
        self.entries.recycle();
        self.bytes.recycle();
        if self.bytes.capacity() > 4 * DELIVERY_BATCH_SIZE {
            *self.bytes = Vec::new();
        }
        (self.next, self.bodies, self.counted, self.is_mixed) = (0, Default::default(), None, false);
    }
}

#[cfg(test)]
mod tests {
    use stilling_ring::BlockWriter;

    use super::*;
    use crate::limits::MEMORY_CHECKED_EVERY;

    fn plain(message: u64) -> MessageBody {
        MessageBody { message, class: EncodingClass::Nats { has_headers: false } }
    }

    fn all(deliveries: &mut DeliveryBatch) -> Vec<(u64, String)> {
        let mut all = Vec::new();
        while let Some(to) = deliveries.advance() {
            let text = match deliveries.current().expect("there is one") {
                DeliveryItem::Bytes(first, second) => String::from_utf8([first, second].concat()).unwrap(),
                DeliveryItem::Message(line, payload, end) => {
                    String::from_utf8([line, payload.bytes(), end].concat()).unwrap()
                }
                other => format!("{other:?}"),
            };
            all.push((to, text));
        }
        all
    }

    #[test]
    fn what_alternates_is_put_in_a_row_for_each_connection() {
        let mut deliveries = DeliveryBatch::new();
        for number in 0..100_u64 {
            let to = 7 - number % 3;
            match number % 10 {
                9 => deliveries.mark(to, number),
                _ => deliveries.message(
                    to,
                    plain(number / 3),
                    |out| out.extend_from_slice(format!("{number} ").as_bytes()),
                    |out| out.extend_from_slice(b"body "),
                ),
            }
        }
        deliveries.group();
        let all = all(&mut deliveries);
        assert!(all.is_sorted_by_key(|(to, _)| *to), "each in a row");
        let numbers = |(_, text): &(u64, String)| -> u64 {
            let digits = text.trim_start_matches("Mark(").chars().take_while(char::is_ascii_digit);
            digits.collect::<String>().parse().expect("a number")
        };
        for to in 5..8 {
            let got: Vec<u64> = all.iter().filter(|(other, _)| *other == to).map(numbers).collect();
            let expected: Vec<u64> = (0..100).filter(|number| 7 - number % 3 == to).collect();
            assert_eq!(got, expected, "in its order");
        }
        assert!(all.iter().all(|(_, text)| text.starts_with("Mark") || text.ends_with("body ")));
    }

    #[test]
    fn what_goes_to_one_in_a_row_is_one_entry_and_a_body_is_there_once() {
        let mut deliveries = DeliveryBatch::new();
        for round in 0..2 {
            deliveries.bytes(1, |out| out.extend_from_slice(b"PONG "));
            for (to, number) in [(1, 1), (2, 1), (2, 1), (3, 2)] {
                deliveries.message(
                    to,
                    plain(number),
                    |out| out.extend_from_slice(format!("line{to} ").as_bytes()),
                    |out| out.extend_from_slice(format!("body{number} ").as_bytes()),
                );
            }
            deliveries.mark(3, 9);
            deliveries.close(3);
            let size = deliveries.bytes.len();
            let delivered = all(&mut deliveries);
            let expected = [
                (1, "PONG line1 body1 "),
                (2, "line2 body1 "),
                (2, "line2 body1 "),
                (3, "line3 body2 "),
                (3, "Mark(9)"),
                (3, "Close"),
            ];
            let expected: Vec<_> = expected.iter().map(|(to, text)| (*to, (*text).to_owned())).collect();
            assert_eq!(delivered, expected, "round {round}");
            assert_eq!(size, "PONG line1 body1 line2 line2 line3 body2 ".len());
            deliveries.clear();
        }
    }

    #[test]
    fn payloads_in_blocks_keep_their_order_and_stay_where_they_are() {
        let mut writer = BlockWriter::new(16);
        let range = writer.append(b"shared").expect("there is room");
        let mut deliveries = DeliveryBatch::new();
        let write = |text: &'static str| move |out: &mut Vec<u8>| out.extend_from_slice(text.as_bytes());
        deliveries.bytes(2, write("PONG "));
        for (to, number) in [(2, 1), (1, 1), (2, 2)] {
            deliveries.shared_message(to, number, write("line "), (writer.shared(), range.clone()));
        }
        // Another connection may need the same message inline, with its own body.
        deliveries.message(1, plain(2), write("line "), write("body "));
        deliveries.message(2, plain(2), write("line "), write("body "));
        deliveries.bytes(2, write("PONG "));
        deliveries.close(2);
        assert_eq!((deliveries.shared_size, deliveries.blocks.len()), (12, 1), "each message counts once");
        deliveries.group();
        let to: Vec<u64> = deliveries.rest().map(|(to, _)| to).collect();
        assert_eq!(to, [1, 1, 2, 2, 2, 2, 2, 2]);
        let copy = "line shared\r\n";
        let expected = [
            (1, copy),
            (1, "line body "),
            (2, "PONG "),
            (2, copy),
            (2, copy),
            (2, "line body "),
            (2, "PONG "),
            (2, "Close"),
        ];
        let expected: Vec<_> = expected.iter().map(|(to, text)| (*to, (*text).to_owned())).collect();
        assert_eq!(all(&mut deliveries), expected);
        deliveries.next = 1;
        let Some(DeliveryItem::Message(_, payload, _)) = deliveries.current() else { panic!("a shared one") };
        assert!(std::ptr::eq(payload.bytes(), writer.bytes(range.clone())));
        assert!(!writer.reset());
        deliveries.clear();
        assert!(writer.reset() && deliveries.is_empty());
        let range = writer.append(b"next").expect("there is room");
        deliveries.shared_message(1, 2, write("line "), (writer.shared(), range));
        assert_eq!(all(&mut deliveries), [(1, "line next\r\n".to_owned())]);
    }

    #[test]
    fn messages_for_one_connection_are_moved_on_to_in_a_row() {
        let mut writer = BlockWriter::new(16);
        let range = writer.append(b"shared").expect("there is room");
        let mut deliveries = DeliveryBatch::new();
        assert!(!deliveries.advance_message());
        for (to, number) in [(1, 1), (1, 2), (2, 2)] {
            deliveries.shared_message(to, number, |_| (), (writer.shared(), range.clone()));
        }
        deliveries.mark(2, 7);
        assert!(!deliveries.advance_message(), "nothing is current");
        assert_eq!(deliveries.advance(), Some(1));
        assert!(deliveries.advance_message() && !deliveries.advance_message(), "the third is for another");
        assert_eq!(deliveries.advance(), Some(2));
        assert!(!deliveries.advance_message(), "a mark is no message");
        assert_eq!((deliveries.advance(), deliveries.current()), (Some(2), Some(DeliveryItem::Mark(7))));
        assert!(!deliveries.advance_message() && deliveries.is_empty());
    }

    #[test]
    fn shared_payloads_fill_a_piece() {
        let mut writer = BlockWriter::new(DELIVERY_BATCH_SIZE);
        let range = writer.append(&vec![b'x'; DELIVERY_BATCH_SIZE / 2]).expect("there is room");
        let mut deliveries = DeliveryBatch::new();
        for number in [1, 1, 2] {
            assert!(!deliveries.is_full());
            deliveries.shared_message(7, number, |_| (), (writer.shared(), range.clone()));
        }
        assert!(deliveries.is_full());
    }

    /// A burst to many subscribers of a feed.
    #[test]
    fn the_memory_of_a_hand_out_to_many_connections_is_freed_when_later_ones_are_small() {
        const MANY: u64 = 100_000;
        let mut writer = BlockWriter::new(16);
        let range = writer.append(b"line 1 x").expect("there is room");
        let mut deliveries = DeliveryBatch::new();
        let mut hand_out = |connections: u64| {
            for to in 0..connections {
                deliveries.feed_with_sid(to, (writer.shared(), range.clone()), (b"17", &[5]));
            }
            let held = deliveries.entries.capacity() * size_of::<DeliveryEntry>()
                + deliveries.sids.capacity() * size_of::<SidSpans>();
            deliveries.clear();
            held
        };
        assert!(hand_out(MANY) > 20 * DELIVERY_BATCH_SIZE);
        (0..2 * MEMORY_CHECKED_EVERY).for_each(|_| _ = hand_out(10));
        assert!(hand_out(10) <= 2 * DELIVERY_BATCH_SIZE);
    }

    /// Clients with and without headers may have subscribed alternately.
    #[test]
    fn a_message_is_there_and_counts_once_however_its_encodings_alternate() {
        let mut deliveries = DeliveryBatch::new();
        for number in 0..100_u64 {
            let class = EncodingClass::Nats { has_headers: number % 2 == 0 };
            let body = MessageBody { message: 1 + number / 50, class };
            deliveries.message(number, body, |_| (), |out| out.extend_from_slice(b"body"));
        }
        assert_eq!(deliveries.bytes.len(), 4 * "body".len(), "two messages in two encodings");
        let mut writer = BlockWriter::new(16);
        let range = writer.append(b"shared").expect("there is room");
        for number in 0..100_u64 {
            deliveries.shared_message(number, number / 50, |_| (), (writer.shared(), range.clone()));
            deliveries.message(number, plain(9), |_| (), |out| out.extend_from_slice(b"other"));
        }
        assert_eq!((deliveries.shared_size, deliveries.bytes.len()), (12, 4 * "body".len() + 5));
    }
}
