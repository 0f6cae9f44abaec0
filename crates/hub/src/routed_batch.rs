//! What the hub hands to a shard: messages with what takes them there, and what it has to tell single connections.
//!
//! ```text
//!   bytes      │ subject reply headers payload │ subject reply headers │ PONG␍␊ │ …
//!   entries    [ message 0.., registrations 0..2 ] [ message …, block 0 from 9000, registrations 2..3 ] [ to 9: PONG ] …
//!   targets    [ 3/7 ] [ 12/1 ] [ 3/7 ] …              registrations of the shard, by number and serial
//!   blocks     [ block 0 ] …
//! ```
//!
//! A message is in there once, however many connections of the shard are subscribed: the shard's
//! [`ShardTable`](crate::ShardTable) makes [`DeliveryBatch`](crate::DeliveryBatch) of it. Pieces go round like intakes.

use stilling_ring::SharedBlock;

use crate::deliveries::PublishOutcome;
use crate::limits::DELIVERY_BATCH_SIZE;
use crate::message::OutboundMessage;
use crate::payload::{Payload, keep_block};
use crate::publication_batch::RegistrationId;

/// Messages and other entries for one shard, in order.
#[derive(Debug, Default)]
pub struct RoutedBatch {
    bytes: Vec<u8>,
    entries: Vec<RoutedEntry>,
    targets: Vec<RegistrationId>,
    /// The blocks of payloads that are passed on by reference.
    blocks: Vec<SharedBlock>,
    /// Bytes of these payloads.
    shared_size: usize,
    /// The message that the last entry is, by the hub's count.
    last_message: Option<u64>,
    /// How far the shard has come.
    pub(crate) position: ExpandPosition,
}

/// How far a shard has dealt with a piece.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExpandPosition {
    /// The entry that comes next.
    pub(crate) entry: usize,
    /// Of a message: the registration that comes next.
    pub(crate) target: usize,
    /// Of that: the subscription that comes next, by its age.
    pub(crate) age: u64,
}

/// Something in a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RoutedEntry {
    Message(MessageEntry),
    /// Bytes for a connection.
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
    Mark {
        to: MarkTarget,
        mark: u64,
    },
    /// The hub had processed so many requests of the shard.
    Processed(u64),
    /// There was no room for a registration.
    Refused(RegistrationId),
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

/// Which connection answers a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MarkTarget {
    /// This one.
    Connection(u64),
    /// One that is subscribed there.
    Registration(RegistrationId),
}

/// The block of a payload that lies in `bytes`.
const NO_BLOCK: u32 = u32::MAX;

/// A message: its parts lie one behind the other from `start`, a payload perhaps in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageEntry {
    start: u32,
    subject: u16,
    reply: u16,
    headers: u32,
    payload: u32,
    /// Which block the payload lies in, from where; or [`NO_BLOCK`].
    block: u32,
    block_start: u32,
    /// Its registrations among the targets.
    targets: u32,
    targets_end: u32,
    /// The connection that does not get it back.
    pub(crate) silent: Option<u64>,
    /// How many requests of the shard the hub had processed when it sent the message.
    pub(crate) processed: u64,
}

impl RoutedBatch {
    /// An empty piece. Its memory comes with its first use.
    #[must_use]
    pub fn new() -> RoutedBatch {
        RoutedBatch::default()
    }

    /// Whether it is as full as it should be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.size() >= DELIVERY_BATCH_SIZE
    }

    /// Bytes that it counts for, payloads in shared blocks included.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
            + self.shared_size
            + self.entries.len() * size_of::<RoutedEntry>()
            + self.targets.len() * size_of::<RegistrationId>()
    }

    /// Whether nothing is left in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.position.entry == self.entries.len()
    }

    /// Appends a registration that takes the message `number`, and the message itself if it is not the last entry.
    #[inline]
    pub(crate) fn message(
        &mut self,
        (number, processed): (u64, u64),
        silent: Option<u64>,
        message: &OutboundMessage<'_>,
        target: RegistrationId,
    ) {
        if self.last_message != Some(number) {
            self.add_message(processed, silent, message);
            self.last_message = Some(number);
        }
        self.targets.push(target);
        if let Some(RoutedEntry::Message(entry)) = self.entries.last_mut() {
            entry.targets_end += 1;
        }
    }

    /// Whether the message `number` is its last entry, to which further registrations are added.
    #[inline]
    pub(crate) fn ends_with(&self, number: u64) -> bool {
        self.last_message == Some(number)
    }

    fn add_message(&mut self, processed: u64, silent: Option<u64>, message: &OutboundMessage<'_>) {
        let &OutboundMessage { subject, reply, headers, payload } = message;
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
                (keep_block(&mut self.blocks, block), range.start as u32)
            }
        };
        let targets = self.targets.len() as u32;
        self.entries.push(RoutedEntry::Message(MessageEntry {
            start,
            subject: subject.len() as u16,
            reply: reply.len() as u16,
            headers: headers.len() as u32,
            payload: payload.len() as u32,
            block,
            block_start,
            targets,
            targets_end: targets,
            silent,
            processed,
        }));
    }

    /// Appends bytes for the connection `to`, as `write` makes them.
    ///
    /// The caller checks before whether it [is full](Self::is_full).
    pub fn bytes(&mut self, to: u64, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len() as u32;
        write(&mut self.bytes);
        let end = self.bytes.len() as u32;
        self.add(RoutedEntry::Bytes { to, start, end });
    }

    /// Appends a verdict.
    pub fn outcome(&mut self, to: u64, ticket: u32, outcome: PublishOutcome) {
        self.add(RoutedEntry::PublishOutcome { to, ticket, outcome });
    }

    /// Appends a mark.
    pub(crate) fn mark(&mut self, to: MarkTarget, mark: u64) {
        self.add(RoutedEntry::Mark { to, mark });
    }

    /// Says how many requests of the shard are processed.
    pub(crate) fn processed(&mut self, processed: u64) {
        self.add(RoutedEntry::Processed(processed));
    }

    /// Refuses a registration.
    pub(crate) fn refused(&mut self, id: RegistrationId) {
        self.add(RoutedEntry::Refused(id));
    }

    /// Has a connection's input not read until it is [resumed](Self::resume).
    pub fn pause(&mut self, to: u64) {
        self.add(RoutedEntry::Pause { to });
    }

    /// Has a connection's input read again.
    pub fn resume(&mut self, to: u64) {
        self.add(RoutedEntry::Resume { to });
    }

    /// Has a connection closed.
    pub fn close(&mut self, to: u64) {
        self.add(RoutedEntry::Close { to });
    }

    #[inline]
    fn add(&mut self, entry: RoutedEntry) {
        self.last_message = None;
        self.entries.push(entry);
    }

    /// The entry that comes next.
    #[inline]
    pub(crate) fn next(&self) -> Option<RoutedEntry> {
        self.entries.get(self.position.entry).copied()
    }

    /// The entry is dealt with.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.position = ExpandPosition { entry: self.position.entry + 1, ..ExpandPosition::default() };
    }

    /// What a message goes to.
    #[inline]
    pub(crate) fn targets(&self, entry: &MessageEntry) -> &[RegistrationId] {
        &self.targets[entry.targets as usize..entry.targets_end as usize]
    }

    /// The bytes of an entry.
    #[inline]
    pub(crate) fn part(&self, start: u32, end: u32) -> &[u8] {
        &self.bytes[start as usize..end as usize]
    }

    /// A message with its parts.
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
        }
    }

    /// Forgets what is in it, and the blocks of its payloads; keeps its memory, but not that of an unusual burst.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.shared_size = 0;
        self.entries.clear();
        self.bytes.clear();
        self.targets.clear();
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
        OutboundMessage { subject: b"a.b", reply: b"r", headers: b"h", payload }
    }

    #[test]
    fn a_message_is_there_once_for_all_registrations_of_the_shard() {
        let mut piece = RoutedBatch::new();
        for target in 0..100 {
            piece.message((1, 5), Some(9), &message(b"payload".as_slice().into()), id(target));
        }
        piece.message((2, 6), None, &message(b"".as_slice().into()), id(7));
        assert!(piece.ends_with(2) && piece.bytes.len() < 2 * 12 + 8);
        piece.pause(3);
        assert!(!piece.ends_with(2), "the next registration needs the message again");
        let Some(RoutedEntry::Message(entry)) = piece.next() else { panic!("a message") };
        assert_eq!((piece.targets(&entry).len(), entry.silent, entry.processed), (100, Some(9), 5));
        assert_eq!(piece.parts(&entry), message(b"payload".as_slice().into()));
        piece.advance();
        let Some(RoutedEntry::Message(entry)) = piece.next() else { panic!("a message") };
        assert_eq!(piece.targets(&entry), [id(7)]);
        piece.advance();
        assert!(matches!(piece.next(), Some(RoutedEntry::Pause { to: 3 })) && !piece.is_empty());
        piece.advance();
        assert!(piece.next().is_none() && piece.is_empty());
        piece.clear();
        assert_eq!((piece.size(), piece.is_empty()), (0, true));
    }

    #[test]
    fn a_payload_in_a_block_stays_there_and_counts() {
        let mut writer = BlockWriter::new(DELIVERY_BATCH_SIZE);
        let range = writer.append(&vec![b'x'; DELIVERY_BATCH_SIZE]).expect("there is room");
        let mut piece = RoutedBatch::new();
        assert!(!piece.is_full());
        piece.message((1, 0), None, &message(Payload::shared(writer.shared(), range.clone())), id(1));
        assert!(piece.is_full() && piece.bytes.len() == 5);
        let Some(RoutedEntry::Message(entry)) = piece.next() else { panic!("a message") };
        assert!(std::ptr::eq(piece.parts(&entry).payload.bytes(), writer.bytes(range)));
        assert!(!writer.renew());
        piece.clear();
        assert!(writer.renew());
    }
}
