//! Into a stream: what becomes of a message that its writer has judged, and the answers to its publisher.

use stilling_journal::{Kind, Record};
use stilling_ring::planted;

use super::{Hub, Message, Now, Origin, Outlets, Stalled};
use crate::deliveries::{Refusal, Verdict};
use crate::fan_out::Visible;
use crate::intake::{Client, Publication};
use crate::limits::SHARED_PAYLOAD_SIZE_MIN;
use crate::payload::Payload;
use crate::storage::Storage;
use crate::stream::Durability;
use crate::stream_writer::{AckTarget, ApplyError, Judgement, PendingAck};

/// Deliveries refer to the payloads that batches refer to.
const _: () = assert!(SHARED_PAYLOAD_SIZE_MIN == stilling_journal::limits::BUILT_LATER_SIZE_MIN);

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Has a stream take a message, or wait for its disk; refuses it when that has been waited for too long.
    pub(super) fn store_or_wait(
        &mut self,
        origin: Origin,
        (number, found): (usize, &[u32]),
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), Stalled> {
        self.store(origin, (number, found), publication, now).or_else(|stalled| {
            let stream = number as u32;
            let refusal = if self.streams[number].waiting_since.is_some() {
                // Publications behind it, which may be for other streams, do not wait for room on this one's disk.
                Refusal::NoRoom { stream }
            } else {
                if self.streams[number].waits_for_references() {
                    return Err(stalled);
                }
                let writer = self.storage.writer(stream);
                let has_same_writer = |&other: &usize| self.storage.writer(other as u32) == writer;
                if self.streams.releasing().iter().any(has_same_writer) {
                    // It waits for shards, not for the disk: what that has written holds batches.
                    return Err(stalled);
                }
                let stall = self.streams.stalls().of(writer);
                stall.begin(now.steady_ns);
                if !(stall.is_hung() || self.streams[number].is_hung()) {
                    return Err(stalled);
                }
                Refusal::Hung { stream }
            };
            self.refuse(origin.client, publication, refusal);
            Ok(())
        })
    }

    /// Has a stream take a message.
    fn store(
        &mut self,
        origin: Origin,
        (number, found): (usize, &[u32]),
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), Stalled> {
        let Origin { client, traits, .. } = origin;
        let id = match self.streams[number].judge(publication, now.steady_ns) {
            Judgement::Accept(id) => id,
            Judgement::Duplicate(sequence) => {
                return self.acknowledge_again(origin, (number, sequence), publication, now);
            }
            Judgement::Reject(refusal) => {
                self.refuse(client, publication, refusal);
                return Ok(());
            }
        };
        let &Publication { door, subject, reply, headers, payload, ticket } = publication;
        let Hub { streams, storage, router, .. } = self;
        let stream = &mut streams[number];
        let is_on_disk = stream.config.durability == Durability::Disk;
        // Subscribers receive it once it is durable, with its reply subject, except the publisher if it asked for no echo.
        let has_ack = ticket.is_some() || !reply.is_empty() || traits.no_echo && router.listeners(number) > 0;
        if is_on_disk && !stream.has_room_for(if has_ack { reply } else { b"" }, now.steady_ns) {
            return Err(Stalled::Stream(number));
        }
        let record = Record { kind: Kind::Ordinary, subject, headers, payload };
        let sequence = match stream.apply(&record, id, storage, now) {
            Ok(sequence) => sequence,
            Err(ApplyError::NoBatch) => return Err(Stalled::Stream(number)),
            Err(ApplyError::TooLarge) => {
                self.refuse(client, publication, Refusal::TooLarge { stream: number as u32 });
                return Ok(());
            }
        };
        if is_on_disk {
            stream.count_record(door);
            if planted!("early sight") {
                self.send(found, None, &Message { subject, reply: b"", headers, payload });
                return Ok(());
            }
            if has_ack {
                stream.push_ack(pending_ack(origin, ticket, (sequence, false)), reply);
            }
            stream.note_pending();
            return Ok(());
        }
        self.send_stored(origin, (number, sequence, found), publication, now);
        Ok(())
    }

    /// Sends a message that a stream in memory has taken to subscriptions and consumers, and acknowledges it.
    fn send_stored(
        &mut self,
        origin: Origin,
        (number, sequence, found): (usize, u64, &[u32]),
        publication: &Publication<'_>,
        now: Now,
    ) {
        let &Publication { subject, reply, headers, payload, ticket, .. } = publication;
        let stream = &mut self.streams[number];
        let stored = if payload.len() >= SHARED_PAYLOAD_SIZE_MIN {
            stream.take_stored_payload(payload.len())
        } else {
            None
        };
        // What is delivered refers to where the stream keeps it.
        let payload = stored.as_ref().map_or(payload, |(block, range)| Payload::shared(block, range.clone()));
        let visible = Visible { stream: number, sequence, time_ns: now.unix_ns, now_ns: now.steady_ns };
        self.delivery().follow(visible, &Record { kind: Kind::Ordinary, subject, headers, payload });
        self.send(found, Some(origin.publisher()), &Message { subject, reply, headers, payload });
        if let Some((block, _)) = stored {
            self.streams[number].put_stored_back(block);
        }
        let stored = Verdict::Stored { stream: number as u32, sequence, duplicate: false };
        self.answer(origin.client, ticket, reply, stored);
    }

    /// Acknowledges a message that its stream has taken before under `sequence`, when that is durable.
    fn acknowledge_again(
        &mut self,
        origin: Origin,
        (number, sequence): (usize, u64),
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), Stalled> {
        let &Publication { reply, ticket, .. } = publication;
        let stream = &mut self.streams[number];
        let is_pending = stream.is_pending(sequence) && !planted!("unsynced duplicate");
        if !is_pending {
            self.totals.duplicates += 1;
            let stored = Verdict::Stored { stream: number as u32, sequence, duplicate: true };
            self.answer(origin.client, ticket, reply, stored);
            return Ok(());
        }
        if ticket.is_some() || !reply.is_empty() {
            if !stream.has_room_for(reply, now.steady_ns) {
                return Err(Stalled::Stream(number));
            }
            stream.push_duplicate(pending_ack(origin, ticket, (sequence, true)), reply);
            stream.note_pending();
        }
        self.totals.duplicates += 1;
        Ok(())
    }

    /// Has a connection closed behind everything that waits for it in streams.
    pub(super) fn close_after_answers(&mut self, client: Client, now: Now) {
        let mut awaited = 0;
        for stream in self.streams.iter_mut() {
            awaited += u32::from(stream.push_close(client, now.steady_ns));
        }
        if self.clients.close_after(client, awaited) {
            self.fan_out.close(client);
        }
    }

    /// A stream has given the answers that waited before the end of a connection, or is not waited for any more.
    pub(super) fn note_answered(&mut self, client: Client) {
        if self.clients.note_answered(client) {
            self.fan_out.close(client);
        }
    }
}

fn pending_ack(
    Origin { client, traits, .. }: Origin,
    ticket: Option<u32>,
    (sequence, is_duplicate): (u64, bool),
) -> PendingAck {
    let to = ticket.map_or(AckTarget::Reply(0, 0), AckTarget::Ticket);
    PendingAck { client, sequence, is_duplicate, no_echo: traits.no_echo, to }
}
