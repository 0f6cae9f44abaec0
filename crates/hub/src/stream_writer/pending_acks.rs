//! Acknowledgements that wait until a batch is durable: those of the open batch and of batches with the journal.

use std::collections::VecDeque;

use crate::limits::{PENDING_ACKS_CAPACITY_MAX, REPLIES_CAPACITY_MAX, SPARE_PENDING_ACKS_MAX};
use crate::publication_batch::{ClientId, Ingress};

/// An answer to a connection, due when a batch is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PendingAck {
    pub(crate) client: ClientId,
    /// Sent when this record is durable.
    pub(crate) sequence: u64,
    pub(crate) outcome: AckedOutcome,
    /// The publisher does not get the message back.
    pub(crate) no_echo: bool,
    pub(crate) to: AckTarget,
}

impl PendingAck {
    pub(super) fn close(client: ClientId) -> PendingAck {
        PendingAck {
            client,
            sequence: 0,
            outcome: AckedOutcome::Stored,
            no_echo: false,
            to: AckTarget::Close,
        }
    }
}

/// Outcome of a message, once the record of the acknowledgement is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckedOutcome {
    /// It is that record.
    Stored,
    Duplicate,
    /// The gate rejected it on the state after that record. The range of the reason's text among the reply subjects.
    Rejected(u32, u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckTarget {
    /// A message to a range of the reply subjects; an empty range sends nothing and only records the sender.
    Reply(u32, u16),
    Ticket(u32),
    /// Closes the connection once all streams have answered.
    Close,
}

#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    /// Reply subjects, and reasons of rejections.
    replies: Vec<u8>,
    acks: Vec<PendingAck>,
    records: [u64; Ingress::ALL.len()],
}

impl PendingAcks {
    pub(crate) fn get(&self, index: usize) -> Option<PendingAck> {
        self.acks.get(index).copied()
    }

    pub(crate) fn reply(&self, start: u32, size: u16) -> &[u8] {
        &self.replies[start as usize..][..usize::from(size)]
    }

    /// Returns the reason of a rejection.
    pub(crate) fn reason(&self, start: u32, size: u8) -> &[u8] {
        &self.replies[start as usize..][..usize::from(size)]
    }

    pub(crate) fn records(&self, ingress: Ingress) -> u64 {
        self.records[ingress as usize]
    }

    /// Returns the acknowledgement of record `sequence`, which identifies the sender. Called with ascending sequences:
    /// `from` advances past earlier entries.
    pub(crate) fn of_record(&self, sequence: u64, from: &mut usize) -> Option<PendingAck> {
        // Skips what is not about a record of the batch: duplicates, rejections and closes.
        let is_before = |ack: &&PendingAck| {
            ack.outcome != AckedOutcome::Stored || ack.to == AckTarget::Close || ack.sequence < sequence
        };
        *from += self.acks.get(*from..)?.iter().take_while(is_before).count();
        self.acks.get(*from).copied().filter(|ack| ack.sequence == sequence)
    }

    fn push(&mut self, ack: PendingAck, reply: &[u8], reason: &str) {
        let to = match ack.to {
            AckTarget::Reply(..) => AckTarget::Reply(self.replies.len() as u32, reply.len() as u16),
            other => other,
        };
        self.replies.extend_from_slice(reply);
        let outcome = match ack.outcome {
            AckedOutcome::Rejected(..) => {
                let start = self.replies.len() as u32;
                self.replies.extend_from_slice(reason.as_bytes());
                // A reason has at most 128 bytes.
                AckedOutcome::Rejected(start, reason.len() as u8)
            }
            other => other,
        };
        self.acks.push(PendingAck { to, outcome, ..ack });
    }

    /// Empties the acknowledgements; keeps the memory except after an unusual burst.
    fn clear(&mut self) {
        self.replies.clear();
        self.replies.shrink_to(REPLIES_CAPACITY_MAX);
        self.acks.clear();
        self.acks.shrink_to(PENDING_ACKS_CAPACITY_MAX);
        self.records = Default::default();
    }
}

/// The acknowledgements of a stream, in the order of sending.
#[derive(Debug, Default)]
pub(crate) struct AckQueue {
    open: PendingAcks,
    under_way: VecDeque<PendingAcks>,
    spare: Vec<PendingAcks>,
    /// Total number, and the bytes of all reply subjects and reasons.
    count: usize,
    replies_size: usize,
}

impl AckQueue {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn replies_size(&self) -> usize {
        self.replies_size
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    pub(crate) fn count_record(&mut self, ingress: Ingress) {
        self.open.records[ingress as usize] += 1;
    }

    /// Appends an acknowledgement to the open batch, or without one (`has_open` is false) to the last batch with the
    /// journal.
    pub(crate) fn push(&mut self, has_open: bool, ack: PendingAck, reply: &[u8], reason: &str) {
        let acks = match self.under_way.back_mut() {
            Some(last) if !has_open => last,
            _ => &mut self.open,
        };
        acks.push(ack, reply, reason);
        self.count += 1;
        self.replies_size += reply.len() + reason.len();
    }

    /// Moves the open batch's acknowledgements to the batches with the journal.
    pub(crate) fn seal(&mut self) {
        let fresh = self.spare.pop().unwrap_or_default();
        self.under_way.push_back(std::mem::replace(&mut self.open, fresh));
    }

    /// Takes the acknowledgements of the oldest batch with the journal; the caller sends and [finishes](Self::finish)
    /// them.
    pub(crate) fn take_oldest(&mut self) -> PendingAcks {
        self.under_way.pop_front().unwrap_or_default()
    }

    /// Appends an acknowledgement to taken ones.
    pub(crate) fn push_released(
        &mut self,
        released: &mut PendingAcks,
        ack: PendingAck,
        reply: &[u8],
        reason: &str,
    ) {
        released.push(ack, reply, reason);
        self.count += 1;
        self.replies_size += reply.len() + reason.len();
    }

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

    /// Ends taken acknowledgements after all are sent. Keeps their memory.
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
        PendingAck { client: ALICE, sequence, outcome: AckedOutcome::Stored, no_echo: false, to }
    }

    #[test]
    fn acknowledgements_go_with_their_batches_in_order() {
        let mut queue = AckQueue::default();
        queue.count_record(Ingress::Http);
        queue.push(true, ack(1, AckTarget::Ticket(7)), b"", "");
        queue.seal();
        queue.push(false, ack(1, AckTarget::Reply(0, 0)), b"inbox.1", "");
        queue.push(true, ack(2, AckTarget::Reply(0, 0)), b"inbox.22", "");
        assert_eq!((queue.count(), queue.replies_size(), queue.under_way()), (3, 15, 1));
        let mut first = queue.take_oldest();
        assert_eq!((first.records(Ingress::Http), first.records(Ingress::Nats)), (1, 0));
        assert_eq!(first.get(0), Some(ack(1, AckTarget::Ticket(7))));
        assert_eq!(first.get(1), Some(ack(1, AckTarget::Reply(0, 7))));
        assert_eq!((first.reply(0, 7), first.get(2)), (&b"inbox.1"[..], None));
        queue.push_released(&mut first, ack(1, AckTarget::Reply(0, 0)), b"r", "");
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
        acks.push(PendingAck { outcome: AckedOutcome::Duplicate, ..ack(3, AckTarget::Ticket(1)) }, b"", "");
        acks.push(
            PendingAck { outcome: AckedOutcome::Rejected(0, 0), ..ack(4, AckTarget::Ticket(1)) },
            b"",
            "no",
        );
        assert_eq!((acks.acks[1].outcome, acks.reason(0, 2)), (AckedOutcome::Rejected(0, 2), &b"no"[..]));
        acks.push(ack(0, AckTarget::Close), b"", "");
        acks.push(ack(4, AckTarget::Ticket(2)), b"", "");
        acks.push(ack(6, AckTarget::Reply(0, 0)), b"r", "");
        let mut from = 0;
        let are_found: Vec<bool> =
            (3..8).map(|sequence| acks.of_record(sequence, &mut from).is_some()).collect();
        assert_eq!(are_found, [false, true, false, true, false]);
    }

    #[test]
    fn closing_connections_are_removed_from_all_batches() {
        let mut queue = AckQueue::default();
        queue.push(true, ack(0, AckTarget::Close), b"", "");
        queue.push(true, ack(1, AckTarget::Ticket(1)), b"", "");
        queue.seal();
        queue.push(true, ack(0, AckTarget::Close), b"", "");
        assert_eq!(queue.take_closing(), [ALICE, ALICE]);
        assert_eq!((queue.count(), queue.take_closing()), (1, vec![]));
        assert_eq!(queue.take_oldest().get(0), Some(ack(1, AckTarget::Ticket(1))));
    }
}
