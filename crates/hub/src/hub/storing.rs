//! Into a stream: what a message's headers demand, whether it is there already, and the batch that takes it.

use stilling_journal::{Kind, Record, Refused};
use stilling_ring::planted;
use stilling_wire::nats::{EXPECTED_LAST_SEQUENCE, Headers, MESSAGE_ID};

use super::unsent::Visible;
use super::{Hub, Message, Now, Outlets, Stalled, SteadyNanos, UnixNanos};
use crate::deliveries::{Refusal, Verdict};
use crate::intake::{Client, Publication, Traits};
use crate::limits::NOTICES_MAX;
use crate::storage::Storage;
use crate::stream::{Durability, Promise, PromisedTo, Stream};

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Has a stream take a message, or wait for its disk; refuses it when that has been waited for too long.
    pub(super) fn store_or_wait(
        &mut self,
        client: Client,
        traits: Traits,
        (number, found): (usize, &mut Vec<u32>),
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), Stalled> {
        self.store(client, traits, (number, found), publication, now).or_else(|stalled| {
            let stream = number as u32;
            let refusal = if self.streams[number].waiting_since.is_some() {
                // Publications behind it, which may be for other streams, do not wait for room on this one's disk.
                Refusal::NoRoom { stream }
            } else {
                let stall = self.stalls.of(self.storage.writer(stream));
                stall.begin(now.steady_ns);
                if !(stall.is_hung() || self.streams[number].stall.is_hung()) {
                    return Err(stalled);
                }
                Refusal::Hung { stream }
            };
            self.refuse(client, publication, refusal);
            Ok(())
        })
    }

    /// Has a stream take a message.
    fn store(
        &mut self,
        client: Client,
        traits: Traits,
        (number, found): (usize, &mut Vec<u32>),
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), Stalled> {
        let &Publication { door, subject, reply, headers, payload, ticket } = publication;
        let stream = &mut self.streams[number];
        let (mut id, mut refusal) = (None, None);
        if stream.closed.is_some() {
            self.refuse(client, publication, Refusal::Closed { stream: number as u32 });
            return Ok(());
        }
        if stream.frozen.is_some() {
            self.refuse(client, publication, Refusal::Frozen { stream: number as u32 });
            return Ok(());
        }
        if headers.len() + payload.len() > stream.config.message_size_max {
            self.refuse(client, publication, Refusal::TooLarge { stream: number as u32 });
            return Ok(());
        }
        if !headers.is_empty() {
            (id, refusal) = conditions(stream, number as u32, headers);
        }
        let promise = |sequence, is_duplicate| Promise {
            client,
            sequence,
            is_duplicate,
            no_echo: traits.no_echo,
            to: ticket.map_or(PromisedTo::Reply(0, 0), PromisedTo::Ticket),
        };
        let wants_answer = ticket.is_some() || !reply.is_empty();
        if let Some(id) = id
            && let Some(original) = stream.dedup.find(id, now.steady_ns)
        {
            let is_pending = original > stream.visible && !planted!("unsynced duplicate");
            let must_wait = is_pending && wants_answer;
            if must_wait && (!stream.has_room_for(reply) || stream.has_waited_too_long(now.steady_ns)) {
                return Err(Stalled);
            }
            self.totals.duplicates += 1;
            if is_pending {
                if wants_answer {
                    stream.promise(promise(original, true), reply);
                    stream.note_pending();
                }
            } else {
                let stored = Verdict::Stored { stream: number as u32, sequence: original, duplicate: true };
                self.answer(client, ticket, reply, stored);
            }
            return Ok(());
        }
        // Behind the duplicates: who sends again what was taken names what was the last one then.
        if let Some(refusal) = refusal {
            self.refuse(client, publication, refusal);
            return Ok(());
        }
        // Who listens is sent it when it is durable, with its reply subject, unless it is the sender and wants no echo.
        let is_promised = wants_answer || traits.no_echo && stream.listeners > 0;
        if stream.config.durability == Durability::Disk
            && (!stream.has_room_for(if is_promised { reply } else { b"" })
                || stream.has_waited_too_long(now.steady_ns))
        {
            return Err(Stalled);
        }
        let record = Record { kind: Kind::Ordinary, subject, headers, payload };
        let outcome = match stream.config.durability {
            Durability::Disk => self.fill(number, &record, now.unix_ns)?,
            Durability::Memory => stream.keep(&record, now.unix_ns, self.memory_batch_size),
            Durability::None => Ok(()),
        };
        if outcome.is_err() {
            self.refuse(client, publication, Refusal::TooLarge { stream: number as u32 });
            return Ok(());
        }
        let stream = &mut self.streams[number];
        let sequence = stream.next;
        stream.next += 1;
        if let Some(id) = id {
            stream.dedup.note(id, sequence, now.steady_ns);
        }
        if stream.config.durability == Durability::Disk {
            stream.promises.records[door as usize] += 1;
            if planted!("early sight") {
                self.send(found, None, &Message { subject, reply: b"", headers, payload });
                return Ok(());
            }
            if is_promised {
                stream.promise(promise(sequence, false), reply);
            }
            stream.note_pending();
            return Ok(());
        }
        (stream.visible, stream.newest_ns) = (sequence, Some(now.unix_ns));
        let visible = Visible { stream: number, sequence, time_ns: now.unix_ns, now_ns: now.steady_ns };
        self.follow(visible, &record);
        self.send(found, Some((client, traits)), &Message { subject, reply, headers, payload });
        let stored = Verdict::Stored { stream: number as u32, sequence, duplicate: false };
        self.answer(client, ticket, reply, stored);
        Ok(())
    }

    /// Puts a record into the open batch of a stream on disk.
    pub(super) fn fill(
        &mut self,
        number: usize,
        record: &Record<'_>,
        now_ns: UnixNanos,
    ) -> Result<Result<(), Refused>, Stalled> {
        let Hub { streams, storage, batches_max, .. } = self;
        let stream = &mut streams[number];
        for _ in 0..2 {
            if stream.open.is_none() {
                if stream.batches() >= *batches_max {
                    return Err(Stalled);
                }
                let batch = storage.batch(number as u32).ok_or(Stalled)?;
                stream.begin(batch, now_ns);
            }
            let outcome = stream.open.as_mut().map_or(Err(Refused::TooLarge), |batch| batch.push(record));
            match outcome {
                Ok(_) => return Ok(Ok(())),
                Err(Refused::TooLarge) => return Ok(Err(Refused::TooLarge)),
                Err(Refused::Full) => {
                    if let Some(batch) = stream.seal() {
                        storage.append(number as u32, batch, stream.dedup.first(stream.next));
                    }
                }
            }
        }
        Ok(Err(Refused::TooLarge))
    }
}

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Times the writes that are under way, and collects log lines. Connections that are to be closed do not wait for a stream
    /// without room, or whose disk hangs while others answer.
    pub(super) fn watch_disks(&mut self, now_ns: SteadyNanos) {
        for number in 0..self.streams.len() {
            if self.streams[number].watch_disk(now_ns) {
                self.end_farewells_of(number);
            }
            let stream = &mut self.streams[number];
            while self.notices.len() < NOTICES_MAX
                && let Some(line) = stream.health.next_line(&stream.config.name, now_ns)
            {
                self.notices.push_back(line);
            }
        }
    }

    /// A line for the log: a change of a stream's condition, why, and what to do.
    pub fn next_notice(&mut self) -> Option<String> {
        self.notices.pop_front()
    }
}

/// Whether a header that begins with `Nats-` and goes on like this asks for something that streams do not have here: it is
/// refused, since a message that is stored without it would not be what was asked for.
fn is_unknown_condition(rest: &[u8]) -> bool {
    let is_one_of = |all: [&[u8]; 3]| all.contains(&rest);
    [&b"Expected-"[..], b"Batch-", b"Schedule"].iter().any(|start| rest.starts_with(start))
        || is_one_of([b"Rollup", b"TTL", b"Incr"])
}

/// What the headers of a message demand: the name of its id, and what does not hold.
fn conditions(stream: &Stream, number: u32, headers: &[u8]) -> (Option<u128>, Option<Refusal>) {
    let Ok(headers) = Headers::parse(headers) else { return (None, None) };
    let (mut id, mut refusal) = (None, None);
    for (name, value) in headers {
        let Some(rest) = name.strip_prefix(b"Nats-") else { continue };
        if name == MESSAGE_ID.as_bytes() {
            // The first counts, as when the window is built again.
            id.get_or_insert_with(|| stream.dedup.name(value));
        } else if name == EXPECTED_LAST_SEQUENCE.as_bytes() {
            let last = stream.next - 1;
            let expected = std::str::from_utf8(value).ok().and_then(|value| value.parse::<u64>().ok());
            if expected != Some(last) {
                refusal = Some(Refusal::WrongLastSequence { stream: number, last });
            }
        } else if rest == b"Expected-Stream" {
            if value != stream.config.name.as_bytes() {
                refusal = Some(Refusal::WrongStream { stream: number });
            }
        } else if is_unknown_condition(rest) {
            refusal = Some(Refusal::UnknownCondition { stream: number });
        }
    }
    (id.flatten(), refusal)
}
