//! Acknowledgements that wait until a batch is durable: of the open batch, and of those with the journal.

use std::collections::VecDeque;

use crate::limits::{PENDING_ACKS_KEPT_MAX, REPLIES_KEPT_SIZE_MAX, SPARE_PENDING_ACKS_MAX};
use crate::publication_batch::{ClientId, Ingress};

/// What a connection is told when a batch is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PendingAck {
    pub(crate) client: ClientId,
    pub(crate) sequence: u64,
    pub(crate) is_duplicate: bool,
    /// It does not want to get back what it published itself.
    pub(crate) no_echo: bool,
    pub(crate) to: AckTarget,
}

impl PendingAck {
    /// The end of a connection.
    pub(super) fn close(client: ClientId) -> PendingAck {
        PendingAck { client, sequence: 0, is_duplicate: false, no_echo: false, to: AckTarget::Close }
    }
}

/// How a connection is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckTarget {
    /// By a message to this place among the reply subjects; of no bytes where no answer is wanted, and only the sender is to
    /// be known.
    Reply(u32, u16),
    /// By a verdict.
    Ticket(u32),
    /// It may be closed, as far as this stream is concerned.
    Close,
}

/// The acknowledgements of one batch.
#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    /// Reply subjects, one behind the other.
    replies: Vec<u8>,
    acks: Vec<PendingAck>,
    /// How many records of the batch came by which door.
    records: [u64; Ingress::ALL.len()],
}

impl PendingAcks {
    /// The acknowledgement at a place.
    pub(crate) fn get(&self, index: usize) -> Option<PendingAck> {
        self.acks.get(index).copied()
    }

    /// A reply subject.
    pub(crate) fn reply(&self, start: u32, size: u16) -> &[u8] {
        &self.replies[start as usize..][..usize::from(size)]
    }

    /// How many records of the batch came by a door.
    pub(crate) fn records(&self, ingress: Ingress) -> u64 {
        self.records[ingress as usize]
    }

    /// The acknowledgement of the record `sequence`, by which its sender is known. Records are asked for in order: `from` is
    /// moved on behind those before it.
    pub(crate) fn of_record(&self, sequence: u64, from: &mut usize) -> Option<PendingAck> {
        // Duplicates and closing connections stand between them, and are no records of the batch.
        let is_before =
            |ack: &&PendingAck| ack.is_duplicate || ack.to == AckTarget::Close || ack.sequence < sequence;
        *from += self.acks.get(*from..)?.iter().take_while(is_before).count();
        self.acks.get(*from).copied().filter(|ack| ack.sequence == sequence)
    }

    fn push(&mut self, ack: PendingAck, reply: &[u8]) {
        let to = match ack.to {
            AckTarget::Reply(..) => AckTarget::Reply(self.replies.len() as u32, reply.len() as u16),
            other => other,
        };
        self.replies.extend_from_slice(reply);
        self.acks.push(PendingAck { to, ..ack });
    }

    /// Forgets them; keeps their memory, but not that of an unusual burst.
    fn clear(&mut self) {
        self.replies.clear();
        self.replies.shrink_to(REPLIES_KEPT_SIZE_MAX);
        self.acks.clear();
        self.acks.shrink_to(PENDING_ACKS_KEPT_MAX);
        self.records = Default::default();
    }
}

/// The acknowledgements of a stream, in the order in which they are given.
#[derive(Debug, Default)]
pub(crate) struct AckQueue {
    /// Those of the open batch.
    open: PendingAcks,
    /// Those of the batches with the journal.
    under_way: VecDeque<PendingAcks>,
    spare: Vec<PendingAcks>,
    /// How many there are in all, and the bytes of their reply subjects.
    count: usize,
    replies_size: usize,
}

impl AckQueue {
    /// How many there are, with those that were taken and are not given yet.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Bytes of their reply subjects.
    pub(crate) fn replies_size(&self) -> usize {
        self.replies_size
    }

    /// Batches that are with the journal.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Counts a record of the open batch.
    pub(crate) fn count_record(&mut self, ingress: Ingress) {
        self.open.records[ingress as usize] += 1;
    }

    /// Adds one behind all others: to the open batch, or, if there is none (`has_open` is false), to the last one under way.
    pub(crate) fn push(&mut self, has_open: bool, ack: PendingAck, reply: &[u8]) {
        let acks = match self.under_way.back_mut() {
            Some(last) if !has_open => last,
            _ => &mut self.open,
        };
        acks.push(ack, reply);
        self.count += 1;
        self.replies_size += reply.len();
    }

    /// The open batch goes to the journal.
    pub(crate) fn seal(&mut self) {
        let fresh = self.spare.pop().unwrap_or_default();
        self.under_way.push_back(std::mem::replace(&mut self.open, fresh));
    }

    /// Takes those of the oldest batch under way, which are to be [given](Self::finish).
    pub(crate) fn take_oldest(&mut self) -> PendingAcks {
        self.under_way.pop_front().unwrap_or_default()
    }

    /// Adds one behind those that were taken.
    pub(crate) fn push_taken(&mut self, taken: &mut PendingAcks, ack: PendingAck, reply: &[u8]) {
        taken.push(ack, reply);
        self.count += 1;
        self.replies_size += reply.len();
    }

    /// Takes the connections that are to be closed behind these batches.
    pub(crate) fn take_closing(&mut self) -> Vec<ClientId> {
        let mut clients = Vec::new();
        for acks in self.under_way.iter_mut().chain([&mut self.open]) {
            acks.acks.retain(|ack| {
                let is_closing = ack.to == AckTarget::Close;
                if is_closing {
                    clients.push(ack.client);
                }
                !is_closing
            });
        }
        self.count -= clients.len();
        clients
    }

    /// All that were taken have been given. Keeps their memory.
    pub(crate) fn finish(&mut self, mut acks: PendingAcks) {
        self.count -= acks.acks.len();
        self.replies_size -= acks.replies.len();
        if self.spare.len() < SPARE_PENDING_ACKS_MAX {
            acks.clear();
            self.spare.push(acks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: ClientId = ClientId { shard: 0, token: 1 };

    fn ack(sequence: u64, to: AckTarget) -> PendingAck {
        PendingAck { client: ALICE, sequence, is_duplicate: false, no_echo: false, to }
    }

    #[test]
    fn acknowledgements_go_with_their_batches_in_order() {
        let mut queue = AckQueue::default();
        queue.count_record(Ingress::Http);
        queue.push(true, ack(1, AckTarget::Ticket(7)), b"");
        queue.seal();
        queue.push(false, ack(1, AckTarget::Reply(0, 0)), b"inbox.1");
        queue.push(true, ack(2, AckTarget::Reply(0, 0)), b"inbox.22");
        assert_eq!((queue.count(), queue.replies_size(), queue.under_way()), (3, 15, 1));
        let mut first = queue.take_oldest();
        assert_eq!((first.records(Ingress::Http), first.records(Ingress::Nats)), (1, 0));
        assert_eq!(first.get(0), Some(ack(1, AckTarget::Ticket(7))));
        assert_eq!(first.get(1), Some(ack(1, AckTarget::Reply(0, 7))));
        assert_eq!((first.reply(0, 7), first.get(2)), (&b"inbox.1"[..], None));
        queue.push_taken(&mut first, ack(1, AckTarget::Reply(0, 0)), b"r");
        assert_eq!((queue.count(), queue.replies_size(), queue.under_way()), (4, 16, 0));
        assert_eq!(first.get(2), Some(ack(1, AckTarget::Reply(7, 1))));
        queue.finish(first);
        assert_eq!((queue.count(), queue.replies_size()), (1, 8));
        queue.seal();
        let second = queue.take_oldest();
        assert_eq!(second.get(0), Some(ack(2, AckTarget::Reply(0, 8))));
        queue.finish(second);
        queue.seal();
        assert_eq!(queue.take_oldest().get(0), None, "what was used again is empty");
        assert_eq!((queue.count(), queue.replies_size()), (0, 0));
    }

    #[test]
    fn the_sender_of_a_record_is_found_between_duplicates_and_closing_connections() {
        let mut acks = PendingAcks::default();
        acks.push(PendingAck { is_duplicate: true, ..ack(3, AckTarget::Ticket(1)) }, b"");
        acks.push(ack(0, AckTarget::Close), b"");
        acks.push(ack(4, AckTarget::Ticket(2)), b"");
        acks.push(ack(6, AckTarget::Reply(0, 0)), b"r");
        let mut from = 0;
        let are_found: Vec<bool> =
            (3..8).map(|sequence| acks.of_record(sequence, &mut from).is_some()).collect();
        assert_eq!(are_found, [false, true, false, true, false]);
    }

    #[test]
    fn closing_connections_are_taken_from_all_batches() {
        let mut queue = AckQueue::default();
        queue.push(true, ack(0, AckTarget::Close), b"");
        queue.push(true, ack(1, AckTarget::Ticket(1)), b"");
        queue.seal();
        queue.push(true, ack(0, AckTarget::Close), b"");
        assert_eq!(queue.take_closing(), [ALICE, ALICE]);
        assert_eq!((queue.count(), queue.take_closing()), (1, vec![]));
        assert_eq!(queue.take_oldest().get(0), Some(ack(1, AckTarget::Ticket(1))));
    }
}
