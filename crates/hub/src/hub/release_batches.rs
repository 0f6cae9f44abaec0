//! Release of written batches: records to subscriptions and consumers, then acknowledgements.
//!
//! ```text
//!   answers ─▶ releases of each stream, in order ─▶ one batch of each stream in turn ─▶ routed batches
//!                                                    └─ a queue over its bound: the other streams go first
//! ```
//!
//! A shard that holds all its routed batches blocks no release: its deliveries wait in its queue. A release waits while
//! its next record would add to a queue over its bound, and later releases of its stream wait behind it. Requests are
//! still processed; only answers of the same stream to earlier messages, and closes of connections, are delayed.
//! Records of a stream with followers wait for all queues, since a consumer may send them to any shard.
//! Acknowledgements wait for the queues of all shards except their client's own: answers to a shard's own connections
//! are bounded by their publications, and the hub processes no more of these meanwhile.

use stilling_journal::{Batch, JournalAnswer, Record, RecordKind};
use stilling_ring::planted;
use stilling_wire::nats::strip_status;

use super::{Hub, OutboundMessage, ShardSenders};
use crate::fan_out::{MessageSender, VisibleRecord};
use crate::limits::SHARED_PAYLOAD_SIZE_MIN;
use crate::loss::Loss;
use crate::payload::Payload;
use crate::publication_batch::Ingress;
use crate::publish_outcome::{PublishOutcome, RefusalReason};
use crate::storage::Storage;
use crate::stream_writer::{AckTarget, AckedOutcome, PendingAck, Release};
use crate::time::{SteadyNanos, UnixNanos};

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    /// Receives the journal's answers and releases what has been written.
    pub(super) fn release_written(&mut self, now_ns: SteadyNanos) {
        loop {
            self.release_all(now_ns);
            let Some((answer, batch)) = self.storage.next_answer() else { return };
            self.streams.stalls().of(self.storage.writer(answer.stream())).end();
            self.handle_answer(answer, batch, now_ns);
        }
    }

    /// Handles an answer about a stream or its oldest batch in the journal.
    fn handle_answer(&mut self, answer: JournalAnswer, batch: Option<Batch>, now_ns: SteadyNanos) {
        let number = answer.stream() as usize;
        let stream = &mut self.streams[number];
        let (watermark, is_frozen) = match answer {
            JournalAnswer::Durable { watermark, .. } => {
                // The timer of the next batch starts now.
                stream.end_stall();
                (watermark, false)
            }
            JournalAnswer::Frozen { frozen, is_batch_lost: false, .. } if batch.is_none() => {
                return stream.freeze(frozen);
            }
            JournalAnswer::Frozen { watermark, frozen, .. } => {
                stream.freeze(frozen);
                (watermark, true)
            }
            JournalAnswer::Waiting { reason, kind, .. } => return stream.wait(&reason, kind, now_ns),
            JournalAnswer::WriteFailed { reason, .. } => return stream.health.write_failed(&reason),
            JournalAnswer::Resumed { .. } => return stream.resume(now_ns),
            JournalAnswer::Retained { first, removed, .. } => {
                return stream.retained(first, removed.as_ref().err());
            }
            JournalAnswer::SnapshotWritten { sequence, outcome, .. } => {
                return stream.note_snapshot(sequence, &outcome);
            }
        };
        // A batch that does not return was lost with the journal.
        let is_lost = batch.as_ref().map_or(is_frozen, |batch| batch.next() - 1 > watermark);
        let release = stream.answered(batch, watermark);
        if is_lost {
            for ingress in Ingress::ALL {
                self.losses.count(ingress, Loss::Frozen, release.acks.records(ingress));
            }
        }
        self.streams.queue_release(number, release);
    }

    /// Continues releases, one batch of each stream in turn, until all are done or none has room.
    pub(super) fn release_all(&mut self, now_ns: SteadyNanos) {
        let mut without_room = 0;
        while without_room < self.streams.releasing().len()
            && let Some((number, mut release)) = self.streams.next_release()
        {
            let is_done =
                self.send_records(number, &mut release, now_ns) && self.send_acks(number, &mut release);
            if is_done {
                without_room = 0;
                if let Some(batch) = self.streams.end_release(number, release) {
                    self.storage.return_batch(number as u32, batch);
                }
            } else {
                without_room += 1;
                self.streams.put_release_back(number, release);
            }
        }
    }

    /// Sends the records of a release to subscriptions and consumers. Returns whether there was room for all.
    fn send_records(&mut self, number: usize, release: &mut Release, now_ns: SteadyNanos) -> bool {
        let last = release.last();
        let Release { batch, block, acks, next_record, next_sender, .. } = release;
        let Some(batch) = batch else { return true };
        let is_wanted =
            self.router.matching_registrations(number) > 0 || self.consumers.table.has_following(number);
        if is_wanted && *next_record <= last {
            let mut matches = std::mem::take(&mut self.scratch.matches);
            let mut stripped = std::mem::take(&mut self.scratch.stripped);
            // One reference for all records, shared by the deliveries.
            let block = &*block.get_or_insert_with(|| batch.share());
            for (sequence, record) in batch.records() {
                if sequence < *next_record {
                    continue;
                }
                if sequence > last || !self.delivery().finish_unsent() {
                    break;
                }
                if self.fan_out.is_any_over() {
                    self.router.find(record.subject, &mut matches);
                    let is_followed = self.consumers.table.has_following(number);
                    if is_followed || self.fan_out.is_over_for(&self.router, &matches, None) {
                        break;
                    }
                }
                // Queued deliveries must not hold batches back from the disk, so they get copies.
                let is_long = record.payload.len() >= SHARED_PAYLOAD_SIZE_MIN && !self.fan_out.is_waiting();
                let range = if is_long { batch.payload_range(&record) } else { None };
                let payload = range.map_or(record.payload.into(), |range| Payload::shared(block, range));
                let record = record.with_payload(payload);
                if record.kind == RecordKind::Ordinary {
                    self.router.find(record.subject, &mut matches);
                    let sender = acks.of_record(sequence, next_sender);
                    let reply = match sender.map(|sender| sender.to) {
                        Some(AckTarget::Reply(start, size)) => acks.reply(start, size),
                        _ => b"",
                    };
                    let from = sender.map(message_sender);
                    let Record { subject, headers, payload, .. } = record;
                    let headers = strip_status(headers, &mut stripped);
                    let position = Some(self.streams[number].position(sequence, batch.time_ns()));
                    let message = OutboundMessage { subject, reply, headers, payload, position };
                    self.send(&matches, from, &message);
                }
                // Consumers skip records that do not match.
                let time_ns = UnixNanos::from_nanos(batch.time_ns());
                let visible = VisibleRecord { stream: number, sequence, time_ns, now_ns };
                self.delivery().follow(visible, &record);
                *next_record = sequence + 1;
            }
            (self.scratch.matches, self.scratch.stripped) = (matches, stripped);
            if *next_record <= last {
                return false;
            }
        }
        // Without subscribers the records are skipped: a later subscriber does not get them.
        *next_record = (*next_record).max(last + 1);
        self.consumers.table.note_offered(number, last);
        true
    }

    /// Sends the acknowledgements of a release. Returns whether there was room for all.
    fn send_acks(&mut self, number: usize, release: &mut Release) -> bool {
        let stream = number as u32;
        while let Some(ack) = release.acks.get(release.next_ack) {
            let PendingAck { client, sequence, outcome, to, .. } = ack;
            if matches!(to, AckTarget::Reply(_, 0)) {
                // No answer: the entry only identifies the sender of a record.
                release.next_ack += 1;
                continue;
            }
            if !self.delivery().finish_unsent() {
                return false;
            }
            if let AckTarget::Reply(start, size) = to
                && let reply = release.acks.reply(start, size)
                && self.fan_out.is_over_for_subject(&self.router, reply, Some(client))
            {
                return false;
            }
            release.next_ack += 1;
            let outcome = match outcome {
                _ if sequence > release.watermark => {
                    PublishOutcome::Refused(RefusalReason::Frozen { stream })
                }
                AckedOutcome::Stored => PublishOutcome::Stored { stream, sequence, duplicate: false },
                AckedOutcome::Duplicate => PublishOutcome::Stored { stream, sequence, duplicate: true },
                AckedOutcome::Rejected(start, size) => {
                    let answer = match to {
                        AckTarget::Reply(start, size) => (None, release.acks.reply(start, size)),
                        AckTarget::Ticket(ticket) => (Some(ticket), &b""[..]),
                        AckTarget::Close => continue,
                    };
                    self.answer_rejection(client, answer, stream, release.acks.reason(start, size));
                    continue;
                }
            };
            match to {
                AckTarget::Close => self.note_answered(client),
                AckTarget::Ticket(ticket) => self.answer(client, Some(ticket), b"", outcome),
                AckTarget::Reply(start, size) => {
                    let reply = release.acks.reply(start, size);
                    self.answer(client, None, reply, outcome);
                    if planted!("double acknowledgement") && sequence.is_multiple_of(8) {
                        self.answer(client, None, reply, outcome);
                    }
                }
            }
        }
        true
    }
}

/// The publisher of a record, as far as echoes concern it.
fn message_sender(ack: PendingAck) -> MessageSender {
    MessageSender { client: ack.client, no_echo: ack.no_echo, position: None }
}
