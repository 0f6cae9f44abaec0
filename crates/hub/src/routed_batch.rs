//! Routed batches: messages with their registrations, and items for single connections, from the hub to a shard.
//!
//! ```text
//!   bytes      │ subject reply headers payload │ subject reply headers │ PONG␍␊ │ …
//!   entries    [ message 0.., registrations 0..2 ] [ message …, block 0 from 9000, registrations 2..3 ] [ to 9: PONG ]
//!   targets    [ 3/7 ] [ 12/1 ] [ 3/7 ] …              registrations of the shard, by number and serial
//!   blocks     [ block 0 ] …
//! ```
//!
//! A message is stored once, regardless of the number of subscribed connections: the shard's
//! [`ShardSubscriptions`](crate::ShardSubscriptions) turns it into a [`DeliveryBatch`](crate::DeliveryBatch). Routed
//! batches circulate like publication batches.

use stilling_ring::SharedBlock;

use crate::limits::DELIVERY_BATCH_SIZE;
use crate::message::{OutboundMessage, RecordPosition};
use crate::payload::{Payload, add_block};
use crate::publication_batch::RegistrationId;
use crate::publish_outcome::PublishOutcome;
use crate::resume::SubscriptionNotice;

/// Messages and other entries for one shard, in order.
#[derive(Debug, Default)]
pub struct RoutedBatch {
    bytes: Vec<u8>,
    entries: Vec<RoutedEntry>,
    targets: Vec<RegistrationId>,
    /// Positions of the messages that are records of streams.
    positions: Vec<RecordPosition>,
    /// Messages for single connections that catch up.
    caught_up: Vec<MessageEntry>,
    /// Blocks of payloads passed by reference.
    blocks: Vec<SharedBlock>,
    shared_size: usize,
    /// Number of the message in the last entry.
    last_message: Option<u64>,
    /// Progress of the shard in expanding the batch.
    pub(crate) position: ExpandPosition,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExpandPosition {
    pub(crate) entry: usize,
    /// Next registration of a message.
    pub(crate) target: usize,
    /// Age of that registration's next subscription.
    pub(crate) age: u64,
    /// The message of the entry has its number.
    pub(crate) is_begun: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RoutedEntry {
    Message(MessageEntry),
    Bytes {
        to: u64,
        start: u32,
        end: u32,
    },
    PublishOutcome {
        to: u64,
        ticket: u32,
        outcome: PublishOutcome,
    },
    /// The rejection of a message by a gate; the reason is a range of the bytes.
    Rejection {
        to: u64,
        ticket: u32,
        stream: u32,
        start: u32,
        end: u32,
    },
    Mark {
        to: MarkTarget,
        mark: u64,
    },
    /// Number of the shard's requests that the hub had processed.
    Processed(u64),
    Refused(RegistrationId),
    /// A record for a connection that catches up: an index of `caught_up`.
    Record {
        to: u64,
        message: u32,
    },
    Notice {
        to: u64,
        notice: SubscriptionNotice,
    },
    Pause {
        to: u64,
    },
    Resume {
        to: u64,
    },
    Close {
        to: u64,
    },
}

/// The connection that answers a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MarkTarget {
    Connection(u64),
    Registration(RegistrationId),
}

/// Block number of a payload in `bytes`.
const NO_BLOCK: u32 = u32::MAX;

/// Index of a message without a position.
const NO_POSITION: u32 = u32::MAX;

/// A message with its parts contiguous from `start`; a payload may be in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageEntry {
    start: u32,
    subject: u16,
    reply: u16,
    headers: u32,
    payload: u32,
    /// Block of the payload and its offset there, or [`NO_BLOCK`].
    block: u32,
    block_start: u32,
    targets: u32,
    targets_end: u32,
    /// Index of its position, or [`NO_POSITION`].
    position: u32,
    /// Connection that does not get the message back.
    pub(crate) excluded: Option<u64>,
    /// Number of the shard's requests that the hub had processed when it sent the message.
    pub(crate) processed: u64,
}

impl RoutedBatch {
    /// Creates an empty batch. It allocates at its first use.
    #[must_use]
    pub fn new() -> RoutedBatch {
        RoutedBatch::default()
    }

    /// Returns whether the batch has reached [`DELIVERY_BATCH_SIZE`].
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.size() >= DELIVERY_BATCH_SIZE
    }

    /// Bytes that the batch counts for, payloads in shared blocks included.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
            + self.shared_size
            + self.entries.len() * size_of::<RoutedEntry>()
            + self.targets.len() * size_of::<RegistrationId>()
            + self.positions.len() * size_of::<RecordPosition>()
            + self.caught_up.len() * size_of::<MessageEntry>()
    }

    /// Returns whether no entries remain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.position.entry == self.entries.len()
    }

    /// Appends a registration that gets message `number`, and the message itself unless it is the last entry.
    #[inline]
    pub(crate) fn message(
        &mut self,
        (number, processed): (u64, u64),
        excluded: Option<u64>,
        message: &OutboundMessage<'_>,
        target: RegistrationId,
    ) {
        if self.last_message != Some(number) {
            let entry = self.add_message(processed, excluded, message);
            self.entries.push(RoutedEntry::Message(entry));
            self.last_message = Some(number);
        }
        self.targets.push(target);
        if let Some(RoutedEntry::Message(entry)) = self.entries.last_mut() {
            entry.targets_end += 1;
        }
    }

    /// Returns whether message `number` is the last entry, to which further registrations are added.
    #[inline]
    pub(crate) fn ends_with(&self, number: u64) -> bool {
        self.last_message == Some(number)
    }

    fn add_message(
        &mut self,
        processed: u64,
        excluded: Option<u64>,
        message: &OutboundMessage<'_>,
    ) -> MessageEntry {
        let &OutboundMessage { subject, reply, headers, payload, position } = message;
        let start = self.bytes.len() as u32;
        for part in [subject, reply, headers] {
            self.bytes.extend_from_slice(part);
        }
        let (block, block_start) = match payload.block() {
            None => {
                self.bytes.extend_from_slice(payload.bytes());
                (NO_BLOCK, 0)
            }
            Some((block, range)) => {
                self.shared_size += range.len();
                // A block is shorter than 4 GiB.
                (add_block(&mut self.blocks, block), range.start as u32)
            }
        };
        let position = position.map_or(NO_POSITION, |position| {
            self.positions.push(position);
            (self.positions.len() - 1) as u32
        });
        let targets = self.targets.len() as u32;
        MessageEntry {
            start,
            subject: subject.len() as u16,
            reply: reply.len() as u16,
            headers: headers.len() as u32,
            payload: payload.len() as u32,
            block,
            block_start,
            targets,
            targets_end: targets,
            position,
            excluded,
            processed,
        }
    }

    /// Appends a record for the connection `to`, which catches up.
    pub(crate) fn record(&mut self, to: u64, message: &OutboundMessage<'_>) {
        let entry = self.add_message(0, None, message);
        self.caught_up.push(entry);
        self.add(RoutedEntry::Record { to, message: (self.caught_up.len() - 1) as u32 });
    }

    pub(crate) fn notice(&mut self, to: u64, notice: SubscriptionNotice) {
        self.add(RoutedEntry::Notice { to, notice });
    }

    /// Appends bytes for the connection `to`, written by `write`.
    ///
    /// The caller checks [`is_full`](Self::is_full) first.
    pub fn bytes(&mut self, to: u64, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len() as u32;
        write(&mut self.bytes);
        let end = self.bytes.len() as u32;
        self.add(RoutedEntry::Bytes { to, start, end });
    }

    /// Appends the rejection of a message by a gate.
    pub(crate) fn rejection(&mut self, to: u64, (ticket, stream): (u32, u32), reason: &[u8]) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(reason);
        let end = self.bytes.len() as u32;
        self.add(RoutedEntry::Rejection { to, ticket, stream, start, end });
    }

    /// Appends a publish outcome.
    pub fn outcome(&mut self, to: u64, ticket: u32, outcome: PublishOutcome) {
        self.add(RoutedEntry::PublishOutcome { to, ticket, outcome });
    }

    pub(crate) fn mark(&mut self, to: MarkTarget, mark: u64) {
        self.add(RoutedEntry::Mark { to, mark });
    }

    pub(crate) fn processed(&mut self, processed: u64) {
        self.add(RoutedEntry::Processed(processed));
    }

    pub(crate) fn refused(&mut self, id: RegistrationId) {
        self.add(RoutedEntry::Refused(id));
    }

    /// Stops reading a connection until it is [resumed](Self::resume).
    pub fn pause(&mut self, to: u64) {
        self.add(RoutedEntry::Pause { to });
    }

    /// Reads a connection again.
    pub fn resume(&mut self, to: u64) {
        self.add(RoutedEntry::Resume { to });
    }

    /// Closes a connection.
    pub fn close(&mut self, to: u64) {
        self.add(RoutedEntry::Close { to });
    }

    #[inline]
    fn add(&mut self, entry: RoutedEntry) {
        self.last_message = None;
        self.entries.push(entry);
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<RoutedEntry> {
        self.entries.get(self.position.entry).copied()
    }

    #[inline]
    pub(crate) fn advance(&mut self) {
        self.position = ExpandPosition { entry: self.position.entry + 1, ..ExpandPosition::default() };
    }

    #[inline]
    pub(crate) fn targets(&self, entry: &MessageEntry) -> &[RegistrationId] {
        &self.targets[entry.targets as usize..entry.targets_end as usize]
    }

    #[inline]
    pub(crate) fn part(&self, start: u32, end: u32) -> &[u8] {
        &self.bytes[start as usize..end as usize]
    }

    /// Returns the message of a [`RoutedEntry::Record`].
    pub(crate) fn record_parts(&self, message: u32) -> OutboundMessage<'_> {
        self.parts(&self.caught_up[message as usize])
    }

    #[inline]
    pub(crate) fn parts(&self, entry: &MessageEntry) -> OutboundMessage<'_> {
        let mut rest = &self.bytes[entry.start as usize..];
        let mut part = |size: usize| {
            let (part, behind) = rest.split_at(size);
            rest = behind;
            part
        };
        let payload_size = entry.payload as usize;
        OutboundMessage {
            subject: part(entry.subject.into()),
            reply: part(entry.reply.into()),
            headers: part(entry.headers as usize),
            payload: if entry.block == NO_BLOCK {
                part(payload_size).into()
            } else {
                let range = entry.block_start as usize..entry.block_start as usize + payload_size;
                Payload::shared(&self.blocks[entry.block as usize], range)
            },
            position: self.positions.get(entry.position as usize).copied(),
        }
    }

    /// Empties the batch and releases the blocks of its payloads; keeps its memory except after an unusual burst.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.shared_size = 0;
        self.entries.clear();
        self.bytes.clear();
        self.targets.clear();
        self.positions.clear();
        self.caught_up.clear();
        if self.bytes.capacity() > 4 * DELIVERY_BATCH_SIZE {
            self.bytes = Vec::new();
        }
        self.targets.shrink_to(DELIVERY_BATCH_SIZE / size_of::<RegistrationId>());
        (self.last_message, self.position) = (None, ExpandPosition::default());
    }
}

#[cfg(test)]
mod tests {
    use stilling_ring::BlockWriter;

    use super::*;

    fn id(number: u32) -> RegistrationId {
        RegistrationId { number, serial: 1 }
    }

    fn message(payload: Payload<'_>) -> OutboundMessage<'_> {
        OutboundMessage { subject: b"a.b", reply: b"r", headers: b"h", payload, position: None }
    }

    #[test]
    fn a_message_is_there_once_for_all_registrations_of_the_shard() {
        let mut routed_batch = RoutedBatch::new();
        for target in 0..100 {
            routed_batch.message((1, 5), Some(9), &message(b"payload".as_slice().into()), id(target));
        }
        routed_batch.message((2, 6), None, &message(b"".as_slice().into()), id(7));
        assert!(routed_batch.ends_with(2) && routed_batch.bytes.len() < 2 * 12 + 8);
        routed_batch.pause(3);
        assert!(!routed_batch.ends_with(2), "the next registration needs the message again");
        let Some(RoutedEntry::Message(entry)) = routed_batch.next() else { panic!("a message") };
        assert_eq!((routed_batch.targets(&entry).len(), entry.excluded, entry.processed), (100, Some(9), 5));
        assert_eq!(routed_batch.parts(&entry), message(b"payload".as_slice().into()));
        routed_batch.advance();
        let Some(RoutedEntry::Message(entry)) = routed_batch.next() else { panic!("a message") };
        assert_eq!(routed_batch.targets(&entry), [id(7)]);
        routed_batch.advance();
        assert!(
            matches!(routed_batch.next(), Some(RoutedEntry::Pause { to: 3 })) && !routed_batch.is_empty()
        );
        routed_batch.advance();
        assert!(routed_batch.next().is_none() && routed_batch.is_empty());
        routed_batch.clear();
        assert_eq!((routed_batch.size(), routed_batch.is_empty()), (0, true));
    }

    #[test]
    fn a_payload_in_a_block_stays_there_and_counts() {
        let mut writer = BlockWriter::new(DELIVERY_BATCH_SIZE);
        let range = writer.append(&vec![b'x'; DELIVERY_BATCH_SIZE]).expect("there is room");
        let mut routed_batch = RoutedBatch::new();
        assert!(!routed_batch.is_full());
        routed_batch.message((1, 0), None, &message(Payload::shared(writer.shared(), range.clone())), id(1));
        assert!(routed_batch.is_full() && routed_batch.bytes.len() == 5);
        let Some(RoutedEntry::Message(entry)) = routed_batch.next() else { panic!("a message") };
        assert!(std::ptr::eq(routed_batch.parts(&entry).payload.bytes(), writer.bytes(range)));
        assert!(!writer.reset());
        routed_batch.clear();
        assert!(writer.reset());
    }
}
