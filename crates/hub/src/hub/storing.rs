//! Storing: stream decisions about publications, and the answers to publishers.

use stilling_journal::{Record, RecordKind};
use stilling_ring::planted;

use super::{Hub, Now, OutboundMessage, RequestOrigin, ShardSenders, StallReason};
use crate::fan_out::VisibleRecord;
use crate::gate::{GateRecords, RejectReason};
use crate::limits::SHARED_PAYLOAD_SIZE_MIN;
use crate::loss::Loss;
use crate::payload::Payload;
use crate::publication_batch::{ClientId, Publication};
use crate::publish_outcome::{PublishOutcome, RefusalReason};
use crate::storage::Storage;
use crate::stream::Durability;
use crate::stream_writer::{AckTarget, AckedOutcome, ApplyError, PendingAck, StoreDecision};
use crate::time::UnixNanos;

/// Deliveries may refer to the payloads that batches refer to.
const _: () = assert!(SHARED_PAYLOAD_SIZE_MIN == stilling_journal::limits::DEFERRED_COPY_SIZE_MIN);

/// Where a message is stored, and the registrations that its subject matches.
#[derive(Clone, Copy)]
pub(super) struct StoreTarget<'a> {
    pub(super) stream: usize,
    pub(super) matches: &'a [u32],
}

/// What a stream stores for an accepted message.
#[derive(Clone, Copy)]
struct AcceptedMessage<'a> {
    /// The message's id, if it has one.
    id: Option<u128>,
    /// The records that a gate stores instead.
    records: Option<&'a GateRecords>,
}

/// Records that a gate stored instead of a message, consecutively up to `last`.
struct StoredGateRecords<'a> {
    stream: usize,
    last: u64,
    records: &'a GateRecords,
}

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    /// Stores a message, parks it while the disk is busy, or refuses it after the stall timeout.
    pub(super) fn store_or_wait(
        &mut self,
        origin: RequestOrigin,
        target: StoreTarget<'_>,
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), StallReason> {
        self.store(origin, target, publication, now).or_else(|stalled| {
            let number = target.stream;
            let stream = number as u32;
            let refusal = if self.streams[number].waiting_since.is_some() {
                // Refused instead of parked, so that later requests of the connection do not wait for room on this
                // disk.
                RefusalReason::NoRoom { stream }
            } else {
                if self.streams[number].waits_for_references() {
                    return Err(stalled);
                }
                let writer = self.storage.writer(stream);
                let has_same_writer = |&other: &usize| self.storage.writer(other as u32) == writer;
                if self.streams.releasing().iter().any(has_same_writer) {
                    // The stream waits for shards, not for the disk: written batches are not released yet.
                    return Err(stalled);
                }
                let stall = self.streams.stalls().of(writer);
                stall.begin(now.steady_ns);
                if !(stall.is_hung() || self.streams[number].is_hung()) {
                    return Err(stalled);
                }
                RefusalReason::Hung { stream }
            };
            self.refuse(origin.client, publication, refusal);
            Ok(())
        })
    }

    fn store(
        &mut self,
        origin: RequestOrigin,
        target: StoreTarget<'_>,
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), StallReason> {
        let number = target.stream;
        match self.streams[number].decide(publication, now) {
            StoreDecision::Accept(id) => {
                let accepted = AcceptedMessage { id, records: None };
                self.store_accepted(origin, target, publication, accepted, now)
            }
            StoreDecision::AcceptAs(id, records) => {
                let accepted = AcceptedMessage { id, records: Some(&records) };
                self.store_accepted(origin, target, publication, accepted, now)
            }
            StoreDecision::Duplicate(sequence) => {
                self.acknowledge_duplicate(origin, number, sequence, publication, now)
            }
            StoreDecision::Reject(refusal) => {
                self.refuse(origin.client, publication, refusal);
                Ok(())
            }
            StoreDecision::RejectByGate(reason) => self.reject(origin, number, publication, &reason, now),
        }
    }

    /// Stores an accepted message, or the records that its gate stores instead.
    fn store_accepted(
        &mut self,
        origin: RequestOrigin,
        target: StoreTarget<'_>,
        publication: &Publication<'_>,
        AcceptedMessage { id, records }: AcceptedMessage<'_>,
        now: Now,
    ) -> Result<(), StallReason> {
        let StoreTarget { stream: number, matches } = target;
        let RequestOrigin { client, client_options, .. } = origin;
        let &Publication { ingress, subject, reply, headers, payload, ticket } = publication;
        let Hub { streams, storage, router, .. } = self;
        let stream = &mut streams[number];
        let is_on_disk = stream.config.durability == Durability::Disk;
        // Subscribers receive the message once it is durable, so its reply subject, and a sender that gets no echo, are
        // stored until then.
        let has_ack = ticket.is_some()
            || !reply.is_empty()
            || client_options.no_echo && router.matching_registrations(number) > 0;
        if is_on_disk && !stream.has_room_for(if has_ack { reply.len() } else { 0 }, now.steady_ns) {
            return Err(StallReason::Stream(number));
        }
        let record = Record { kind: RecordKind::Ordinary, subject, headers, payload };
        let outcome = match records {
            None => stream.apply(&record, id, storage, now),
            Some(records) => stream.apply_all(records, headers, id, storage, now),
        };
        let sequence = match outcome {
            Ok(sequence) => sequence,
            Err(ApplyError::NoBatch) => return Err(StallReason::Stream(number)),
            Err(ApplyError::TooLarge) => {
                self.refuse(client, publication, RefusalReason::TooLarge { stream: number as u32 });
                return Ok(());
            }
        };
        stream.count_judged(true);
        if is_on_disk {
            stream.count_record(ingress);
            if planted!("early visibility") {
                self.send(
                    matches,
                    None,
                    &OutboundMessage { subject, reply: b"", headers, payload, position: None },
                );
                return Ok(());
            }
            if has_ack {
                stream.push_ack(pending_ack(origin, ticket, sequence, AckedOutcome::Stored), reply);
            }
            stream.note_pending();
            if planted!("early delivery") {
                let position = Some(stream.position(sequence, now.unix_ns.as_nanos()));
                let message = OutboundMessage { subject, reply: b"", headers, payload, position };
                self.send(matches, None, &message);
            }
            return Ok(());
        }
        match records {
            None => self.send_stored(origin, target, sequence, publication, now),
            Some(records) => {
                let stored = StoredGateRecords { stream: number, last: sequence, records };
                self.send_gate_records(origin, stored, publication, now);
            }
        }
        let stored = PublishOutcome::Stored { stream: number as u32, sequence, duplicate: false };
        self.answer(client, ticket, reply, stored);
        Ok(())
    }

    /// Answers a publication that the gate has rejected, once the records that the gate's state includes are durable.
    fn reject(
        &mut self,
        origin: RequestOrigin,
        number: usize,
        publication: &Publication<'_>,
        reason: &RejectReason,
        now: Now,
    ) -> Result<(), StallReason> {
        let &Publication { ingress, reply, ticket, .. } = publication;
        let (stream, reason) = (&mut self.streams[number], reason.as_str());
        let last = stream.next - 1;
        if !stream.is_pending(last) || planted!("early rejection") {
            self.answer_rejection(origin.client, (ticket, reply), number as u32, reason.as_bytes());
        } else if ticket.is_some() || !reply.is_empty() {
            if !stream.has_room_for(reply.len() + reason.len(), now.steady_ns) {
                return Err(StallReason::Stream(number));
            }
            let ack = pending_ack(origin, ticket, last, AckedOutcome::Rejected(0, 0));
            stream.push_answer(ack, reply, reason);
            stream.note_pending();
        }
        self.streams[number].count_judged(false);
        self.losses.count(ingress, Loss::Rejected, 1);
        Ok(())
    }

    /// The time of the newest record of a memory stream: that under which catch-ups find it.
    fn time_of_newest(&self, number: usize, now: Now) -> UnixNanos {
        self.streams[number].newest_ns.unwrap_or(now.unix_ns)
    }

    /// Sends the records that a gate stored in a memory stream instead of a message to subscriptions and consumers. Only
    /// the last one counts as the publisher's.
    fn send_gate_records(
        &mut self,
        origin: RequestOrigin,
        StoredGateRecords { stream: number, last, records }: StoredGateRecords<'_>,
        publication: &Publication<'_>,
        now: Now,
    ) {
        let time_ns = self.time_of_newest(number, now);
        let mut matches = std::mem::take(&mut self.scratch.gate_found);
        let first = last + 1 - records.len() as u64;
        for (sequence, (subject, payload)) in (first..).zip(records.iter()) {
            let is_last = sequence == last;
            let headers = if is_last { publication.headers } else { b"" };
            let reply = if is_last { publication.reply } else { b"" };
            let payload = Payload::from(payload);
            let visible = VisibleRecord { stream: number, sequence, time_ns, now_ns: now.steady_ns };
            self.delivery()
                .follow(visible, &Record { kind: RecordKind::Ordinary, subject, headers, payload });
            self.router.find(subject, &mut matches);
            let from = is_last.then(|| origin.publisher());
            let position = Some(self.streams[number].position(sequence, time_ns.as_nanos()));
            self.send(&matches, from, &OutboundMessage { subject, reply, headers, payload, position });
        }
        self.scratch.gate_found = matches;
    }

    /// Sends a message stored in a memory stream to subscriptions and consumers.
    fn send_stored(
        &mut self,
        origin: RequestOrigin,
        StoreTarget { stream: number, matches }: StoreTarget<'_>,
        sequence: u64,
        publication: &Publication<'_>,
        now: Now,
    ) {
        let &Publication { subject, reply, headers, payload, .. } = publication;
        let time_ns = self.time_of_newest(number, now);
        let stream = &mut self.streams[number];
        let stored = if payload.len() >= SHARED_PAYLOAD_SIZE_MIN {
            stream.take_stored_payload(payload.len())
        } else {
            None
        };
        // Deliveries refer to the stream's copy.
        let payload = stored.as_ref().map_or(payload, |(block, range)| Payload::shared(block, range.clone()));
        let visible = VisibleRecord { stream: number, sequence, time_ns, now_ns: now.steady_ns };
        self.delivery().follow(visible, &Record { kind: RecordKind::Ordinary, subject, headers, payload });
        let position = Some(self.streams[number].position(sequence, time_ns.as_nanos()));
        let message = OutboundMessage { subject, reply, headers, payload, position };
        self.send(matches, Some(origin.publisher()), &message);
        if let Some((block, _)) = stored {
            self.streams[number].put_stored_back(block);
        }
    }

    /// Acknowledges a message that its stream already has under `sequence`, once that is durable.
    fn acknowledge_duplicate(
        &mut self,
        origin: RequestOrigin,
        number: usize,
        sequence: u64,
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), StallReason> {
        let &Publication { reply, ticket, .. } = publication;
        let stream = &mut self.streams[number];
        let is_pending = stream.is_pending(sequence) && !planted!("unsynced duplicate");
        if !is_pending {
            self.totals.duplicates += 1;
            let stored = PublishOutcome::Stored { stream: number as u32, sequence, duplicate: true };
            self.answer(origin.client, ticket, reply, stored);
            return Ok(());
        }
        if ticket.is_some() || !reply.is_empty() {
            if !stream.has_room_for(reply.len(), now.steady_ns) {
                return Err(StallReason::Stream(number));
            }
            stream.push_answer(pending_ack(origin, ticket, sequence, AckedOutcome::Duplicate), reply, "");
            stream.note_pending();
        }
        self.totals.duplicates += 1;
        Ok(())
    }

    pub(super) fn close_after_answers(&mut self, client: ClientId, now: Now) {
        let mut awaited = 0;
        for stream in self.streams.iter_mut() {
            awaited += u32::from(stream.push_close(client, now.steady_ns));
        }
        if self.clients.close_after(client, awaited) {
            self.fan_out.close(client);
        }
    }

    /// Notes that a stream has sent its answers before a connection's close, or is no longer waited for.
    pub(super) fn note_answered(&mut self, client: ClientId) {
        if self.clients.note_answered(client) {
            self.fan_out.close(client);
        }
    }
}

fn pending_ack(
    RequestOrigin { client, client_options, .. }: RequestOrigin,
    ticket: Option<u32>,
    sequence: u64,
    outcome: AckedOutcome,
) -> PendingAck {
    let to = ticket.map_or(AckTarget::Reply(0, 0), AckTarget::Ticket);
    PendingAck { client, sequence, outcome, no_echo: client_options.no_echo, to }
}
