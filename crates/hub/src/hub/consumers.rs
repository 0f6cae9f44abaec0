//! Consumers: those who follow a stream from a place in it, record by record.
//!
//! ```text
//!   asleep ──somebody listens──▶ reading ──chunk──▶ sending ──all of it──▶ gone ahead ──it has left──┐
//!                                   ▲                                                             │
//!                                   └──────────── more is visible ────────────────────────────────┤
//!                                following ◀───────────── nothing more is visible ────────────────┘
//! ```
//!
//! What lies behind is read in chunks, one at a time, and the next one is asked for when the last one has left the server:
//! so a consumer that reads slowly costs a chunk, however far it is behind. One that has caught up gets each record as it
//! becomes visible.

use std::collections::VecDeque;
use std::sync::Arc;

use stilling_journal::{Chunk, From, Kind, ReadOrder, Record};
use stilling_wire::nats::{AckSubject, FLOW_CONTROL, IDLE_HEARTBEAT};

use super::{Hub, Message, Outlets, UnixNanos};
use crate::intake::Client;
use crate::limits::CONSUMERS_MAX;
use crate::storage::Storage;
use crate::stream::Durability;
use crate::subscriptions::checked;

/// Records of one read.
const RECORDS_PER_READ: u32 = 4096;

/// Bytes that a consumer with flow control may have ahead of its last answer.
const FLOW_WINDOW: usize = 1024 * 1024;

/// Requests for messages that one consumer may have waiting.
const PULLS_MAX: usize = 512;

/// Bytes of the longest such table: consumers are looked at one by one when a time has come, at most so often.
pub(super) const LOOK_EVERY_NS: u64 = 50_000_000;

/// What somebody wants of a stream.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) stream: usize,
    /// The subject that messages are pushed to; without one they are asked for.
    pub(super) deliver: Option<Vec<u8>>,
    pub(super) filters: Vec<Box<[u8]>>,
    pub(super) from: From,
    pub(super) heartbeat_ns: Option<u64>,
    pub(super) has_flow_control: bool,
    pub(super) headers_only: bool,
    /// It goes when nobody has listened or asked for so long.
    pub(super) inactive_ns: u64,
    /// Its configuration, to be told when asked.
    pub(super) config: serde_json::Value,
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) wanted: Wanted,
    pub(super) created_ns: UnixNanos,
    state: State,
    /// The sequence that it looks at next, once it is known.
    pub(super) next: Option<u64>,
    /// How many it has got, and the sequence of the last.
    pub(super) delivered: u64,
    pub(super) last: u64,
    pub(super) pulls: VecDeque<Pull>,
    active_ns: UnixNanos,
    spoke_ns: UnixNanos,
    /// Bytes sent since the last flow control request, and whether it is unanswered.
    flow: usize,
    stalled: bool,
    /// It wants the next chunk, as soon as the others have had their turn.
    goes_on: bool,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody listens, or asks.
    #[default]
    Asleep,
    /// Records have been ordered; this sequence was the last visible one then.
    Reading(u64),
    /// So many records of the chunk have been looked at, which had everything up to that sequence if it says that it ends.
    Sending(Box<Chunk>, usize, u64),
    /// What was sent has not left the server by this connection.
    Ahead(Client),
    /// It has everything that is visible.
    Following,
}

/// Somebody asks for messages.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) reply: Vec<u8>,
    pub(super) left: u32,
    pub(super) bytes_left: Option<usize>,
    pub(super) no_wait: bool,
    pub(super) expires_ns: Option<UnixNanos>,
    pub(super) heartbeat_ns: Option<u64>,
    pub(super) spoke_ns: UnixNanos,
}

/// All consumers; a number is used again with another generation.
#[derive(Debug, Default)]
pub(super) struct Consumers {
    places: Vec<(u32, Option<Consumer>)>,
    free: Vec<u32>,
    /// Those with a chunk to be sent, as soon as there is room.
    pub(super) looked_ns: UnixNanos,
    /// One of them wants its next chunk.
    pub(super) go_on: bool,
}

/// A consumer's number in a mark or ticket.
type Ticket = u64;

impl Consumers {
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn ticket(&self, number: u32) -> Ticket {
        u64::from(self.places[number as usize].0) << 32 | u64::from(number)
    }

    fn by_ticket(&self, ticket: Ticket) -> Option<u32> {
        let (number, generation) = (ticket as u32, (ticket >> 32) as u32);
        let (now, consumer) = self.places.get(number as usize)?;
        (*now == generation && consumer.is_some()).then_some(number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Consumer> {
        self.places.get_mut(number as usize)?.1.as_mut()
    }

    pub(super) fn get(&self, number: u32) -> Option<&Consumer> {
        self.places.get(number as usize)?.1.as_ref()
    }

    pub(super) fn find(&self, stream: usize, name: &str) -> Option<u32> {
        let is_it = |consumer: &Consumer| consumer.wanted.stream == stream && consumer.wanted.name == name;
        self.numbers().find(|&number| self.get(number).is_some_and(is_it))
    }

    pub(super) fn of_stream(&self, stream: usize) -> impl Iterator<Item = &Consumer> {
        self.places
            .iter()
            .filter_map(|(_, consumer)| consumer.as_ref())
            .filter(move |consumer| consumer.wanted.stream == stream)
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.places.len() as u32
    }

    /// Adds one, if there is room.
    pub(super) fn add(&mut self, wanted: Wanted, now_ns: UnixNanos) -> Option<u32> {
        if self.len() >= CONSUMERS_MAX {
            return None;
        }
        let next = match wanted.from {
            From::Sequence(sequence) => Some(sequence),
            From::Time(_) => None,
        };
        let consumer = Consumer {
            wanted,
            created_ns: now_ns,
            state: State::Asleep,
            next,
            delivered: 0,
            last: 0,
            pulls: VecDeque::new(),
            active_ns: now_ns,
            spoke_ns: now_ns,
            flow: 0,
            stalled: false,
            goes_on: false,
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        self.places[number as usize].1 = Some(consumer);
        Some(number)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Consumer> {
        let (generation, place) = self.places.get_mut(number as usize)?;
        let consumer = place.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(number);
        Some(consumer)
    }
}

impl Consumer {
    fn wants(&self, record: &Record<'_>) -> bool {
        record.kind == Kind::Ordinary
            && (self.wanted.filters.is_empty()
                || self.wanted.filters.iter().any(|filter| {
                    let subject = checked(record.subject).and_then(|subject| subject.literal());
                    checked(filter).zip(subject).is_some_and(|(filter, subject)| filter.takes(subject))
                }))
    }

    /// Where its next message goes; nobody may want one.
    fn target(&self) -> Option<&[u8]> {
        match &self.wanted.deliver {
            Some(deliver) => (!self.stalled).then_some(deliver),
            None => self.pulls.front().map(|pull| pull.reply.as_slice()),
        }
    }
}

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Has a consumer go on, if it can.
    pub(super) fn advance(&mut self, number: u32, now_ns: UnixNanos) {
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        match consumer.state {
            State::Asleep | State::Following => {}
            State::Sending(..) => return self.send_chunk(number, now_ns),
            State::Reading(_) | State::Ahead(_) => return,
        }
        let stream = consumer.wanted.stream;
        let has_target = match consumer.target() {
            Some(target) => {
                let (target, is_pulled) = (target.to_vec(), consumer.wanted.deliver.is_none());
                is_pulled || self.is_heard(&target)
            }
            None => false,
        };
        let state = &self.streams[stream];
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        if !has_target {
            consumer.state = State::Asleep;
            return;
        }
        consumer.active_ns = now_ns;
        let order = match consumer.next {
            Some(next) if next > state.visible => {
                consumer.state = State::Following;
                return self.end_pulls(number, now_ns);
            }
            Some(next) => From::Sequence(next.max(state.first)),
            None => consumer.wanted.from,
        };
        let records_max = match &consumer.wanted.deliver {
            Some(_) => RECORDS_PER_READ,
            None => consumer.pulls.front().map_or(1, |pull| pull.left.min(RECORDS_PER_READ)),
        };
        let order = ReadOrder {
            ticket: self.consumers.ticket(number),
            stream: stream as u32,
            from: order,
            records_max: if self.consumers.get(number).is_some_and(|c| c.wanted.filters.is_empty()) {
                records_max
            } else {
                RECORDS_PER_READ
            },
        };
        let visible = state.visible;
        let chunk = match state.config.durability {
            Durability::Disk => {
                if self.storage.read(order)
                    && let Some(consumer) = self.consumers.get_mut(number)
                {
                    consumer.state = State::Reading(visible);
                }
                return;
            }
            Durability::Memory => state.read_memory(&order),
            Durability::None => {
                let mut chunk = Chunk::empty(&order);
                chunk.next = state.next;
                chunk
            }
        };
        self.take_chunk(chunk, now_ns);
    }

    /// Records have come.
    pub(super) fn take_chunk(&mut self, chunk: Chunk, now_ns: UnixNanos) {
        let Some(number) = self.consumers.by_ticket(chunk.ticket) else { return self.answer_read(chunk) };
        if let Some(consumer) = self.consumers.get_mut(number) {
            let visible = match consumer.state {
                State::Reading(visible) => visible,
                // It was read from memory, just now.
                _ => self.streams[consumer.wanted.stream].visible,
            };
            consumer.state = State::Sending(Box::new(chunk), 0, visible);
        }
        self.send_chunk(number, now_ns);
    }

    fn send_chunk(&mut self, number: u32, now_ns: UnixNanos) {
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        let State::Sending(chunk, from, visible) = std::mem::take(&mut consumer.state) else { return };
        let mut last_client = None;
        for at in from..chunk.len() {
            let Some((sequence, time_ns, record)) = chunk.get(at) else { break };
            let has_room = self.has_room();
            let Some(consumer) = self.consumers.get_mut(number) else { return };
            if !has_room {
                consumer.state = State::Sending(chunk, at, visible);
                return;
            }
            if consumer.wants(&record) {
                if consumer.target().is_none() {
                    // The pulls are satisfied, or the flow is to be answered first.
                    consumer.next = Some(sequence);
                    consumer.state = State::Asleep;
                    return self.mark(number, last_client);
                }
                last_client = self.send_record(number, sequence, time_ns, &record, now_ns).or(last_client);
            } else {
                consumer.next = Some(sequence + 1);
            }
        }
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        let durable_end = chunk.next.max(consumer.next.unwrap_or(0));
        consumer.next = Some(durable_end);
        if chunk.is_end {
            // What lies between the last record and what comes next belongs to nobody.
            // Not what has become visible since: nobody has read that.
            consumer.next = Some(durable_end.max(visible + 1));
        }
        consumer.state = State::Asleep;
        if last_client.is_some() {
            return self.mark(number, last_client);
        }
        if chunk.failure.is_some() {
            // Asked for again when the next look comes.
            return;
        }
        consumer.goes_on = true;
        self.consumers.go_on = true;
    }

    /// Has whoever got the last message say when it has left.
    fn mark(&mut self, number: u32, client: Option<Client>) {
        let ticket = self.consumers.ticket(number);
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        if let Some(client) = client {
            consumer.state = State::Ahead(client);
            self.outs[client.shard as usize].mark(client.token, ticket);
        }
    }

    /// What stood before a mark has left.
    pub(super) fn reached(&mut self, ticket: Ticket, now_ns: UnixNanos) {
        let Some(number) = self.consumers.by_ticket(ticket) else { return };
        if let Some(consumer) = self.consumers.get_mut(number)
            && matches!(consumer.state, State::Ahead(_))
        {
            consumer.state = State::Asleep;
            self.advance(number, now_ns);
        }
    }

    /// A connection is gone: nobody will say that what it was sent has left.
    pub(super) fn stop_waiting_for(&mut self, client: Client) {
        for number in self.consumers.numbers() {
            if let Some(consumer) = self.consumers.get_mut(number)
                && matches!(consumer.state, State::Ahead(ahead) if ahead == client)
            {
                consumer.state = State::Asleep;
            }
        }
    }

    /// A record has become visible.
    pub(super) fn follow(
        &mut self,
        stream: usize,
        sequence: u64,
        time_ns: UnixNanos,
        record: &Record<'_>,
        now_ns: UnixNanos,
    ) {
        for number in self.consumers.numbers() {
            let Some(consumer) = self.consumers.get_mut(number) else { continue };
            if consumer.wanted.stream != stream || !matches!(consumer.state, State::Following) {
                continue;
            }
            match consumer.next {
                Some(next) if next == sequence => {}
                Some(next) if next > sequence => continue,
                _ => {
                    consumer.state = State::Asleep;
                    continue;
                }
            }
            if !consumer.wants(record) {
                consumer.next = Some(sequence + 1);
            } else if consumer.target().is_none() {
                consumer.state = State::Asleep;
            } else if self.send_record(number, sequence, time_ns, record, now_ns).is_none()
                && let Some(consumer) = self.consumers.get_mut(number)
            {
                // Nobody listens any more.
                (consumer.state, consumer.next) = (State::Asleep, Some(sequence));
            }
        }
    }

    /// Sends a record to where the consumer's messages go. Returns one of those who got it.
    fn send_record(
        &mut self,
        number: u32,
        sequence: u64,
        time_ns: UnixNanos,
        record: &Record<'_>,
        now_ns: UnixNanos,
    ) -> Option<Client> {
        let consumer = self.consumers.get_mut(number)?;
        let stream = &self.streams[consumer.wanted.stream];
        let target = consumer.target()?.to_vec();
        let mut reply = Vec::with_capacity(128);
        let ack = AckSubject {
            stream: &stream.config.name,
            consumer: &consumer.wanted.name,
            delivered: 1,
            stream_sequence: sequence,
            consumer_sequence: consumer.delivered + 1,
            time_ns,
            pending: stream.visible.saturating_sub(sequence),
        };
        ack.encode(&mut reply);
        let payload = if consumer.wanted.headers_only { b"" } else { record.payload };
        let size = record.headers.len() + payload.len();
        consumer.next = Some(sequence + 1);
        let mut found = std::mem::take(&mut self.found_again);
        found.clear();
        self.interest.find(&target, &mut found);
        let client = found.iter().find_map(|&id| self.subscriptions.get(id)).map(|to| to.client);
        let message = Message { subject: record.subject, reply: &reply, headers: record.headers, payload };
        let count = self.send(&found, None, &message);
        self.found_again = found;
        let consumer = self.consumers.get_mut(number)?;
        if count == 0 && consumer.wanted.deliver.is_some() {
            consumer.next = Some(sequence);
            return None;
        }
        consumer.delivered += 1;
        consumer.last = sequence;
        (consumer.spoke_ns, consumer.active_ns) = (now_ns, now_ns);
        if let Some(pull) = consumer.pulls.front_mut() {
            pull.left = pull.left.saturating_sub(1);
            pull.spoke_ns = now_ns;
            let is_full = pull.bytes_left.as_mut().is_some_and(|left| {
                *left = left.saturating_sub(size);
                *left == 0
            });
            if pull.left == 0 || is_full {
                consumer.pulls.pop_front();
            }
        }
        consumer.flow += size + reply.len();
        if consumer.wanted.has_flow_control && consumer.flow > FLOW_WINDOW / 2 {
            (consumer.flow, consumer.stalled) = (0, true);
            let reply =
                flow_subject(&self.streams[consumer.wanted.stream].config.name, &consumer.wanted.name);
            self.send_status(&target, &reply, FLOW_CONTROL);
        }
        client
    }

    /// The answer to a flow control request.
    pub(super) fn flow_answered(&mut self, stream: usize, name: &str, now_ns: UnixNanos) {
        let Some(number) = self.consumers.find(stream, name) else { return };
        if let Some(consumer) = self.consumers.get_mut(number) {
            (consumer.stalled, consumer.active_ns) = (false, now_ns);
            self.advance(number, now_ns);
        }
    }

    /// Somebody asks for messages. Returns whether there is room to ask.
    pub(super) fn pull(&mut self, number: u32, pull: Pull, now_ns: UnixNanos) -> bool {
        let Some(consumer) = self.consumers.get_mut(number) else { return false };
        if consumer.pulls.len() >= PULLS_MAX {
            return false;
        }
        consumer.active_ns = now_ns;
        consumer.pulls.push_back(pull);
        self.advance(number, now_ns);
        true
    }

    /// Ends the pulls that do not wait, when there is nothing more for them.
    fn end_pulls(&mut self, number: u32, now_ns: UnixNanos) {
        self.end_pulls_if(number, |pull| {
            let is_late = pull.expires_ns.is_some_and(|at| at <= now_ns);
            match (is_late, pull.no_wait) {
                (true, _) => Some(REQUEST_TIMEOUT),
                (false, true) => Some(NO_MESSAGES),
                (false, false) => None,
            }
        });
    }

    fn end_pulls_if(&mut self, number: u32, why: impl Fn(&Pull) -> Option<&'static [u8]>) {
        let mut ended = Vec::new();
        if let Some(consumer) = self.consumers.get_mut(number) {
            consumer.pulls.retain_mut(|pull| match why(pull) {
                Some(status) => {
                    ended.push((std::mem::take(&mut pull.reply), status));
                    false
                }
                None => true,
            });
        }
        for (reply, status) in ended {
            self.send_status(&reply, b"", status);
        }
    }

    /// Sends a message without payload that says something about the consumer itself.
    pub(super) fn send_status(&mut self, to: &[u8], reply: &[u8], headers: &[u8]) {
        self.send_by_subject(&Message { subject: to, reply, headers, payload: b"" });
    }

    /// Sends a message of the hub's own to whoever listens to its subject; to nobody, if it has none.
    pub(super) fn send_by_subject(&mut self, message: &Message<'_>) {
        if message.subject.is_empty() {
            return;
        }
        let mut found = std::mem::take(&mut self.found_again);
        found.clear();
        self.interest.find(message.subject, &mut found);
        self.send(&found, None, message);
        self.found_again = found;
    }

    /// Looks after all consumers: those who can go on, whose time has come, or whom nobody wants.
    pub(super) fn look_after_consumers(&mut self, now_ns: UnixNanos) {
        let is_time = now_ns >= self.consumers.looked_ns + LOOK_EVERY_NS;
        if is_time {
            self.consumers.looked_ns = now_ns;
        }
        self.consumers.go_on = false;
        for number in self.consumers.numbers() {
            let Some(consumer) = self.consumers.get_mut(number) else { continue };
            let goes_on = std::mem::take(&mut consumer.goes_on);
            let lags = consumer.next.is_none_or(|next| next <= self.streams[consumer.wanted.stream].visible);
            match consumer.state {
                State::Sending(..) => self.send_chunk(number, now_ns),
                State::Following if lags => self.advance(number, now_ns),
                State::Asleep if is_time || goes_on => self.advance(number, now_ns),
                _ => {}
            }
            if is_time {
                self.keep_time(number, now_ns);
            }
        }
    }

    fn keep_time(&mut self, number: u32, now_ns: UnixNanos) {
        self.end_pulls_if(number, |pull| {
            pull.expires_ns.is_some_and(|at| at <= now_ns).then_some(REQUEST_TIMEOUT)
        });
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        let is_unwanted = matches!(consumer.state, State::Asleep | State::Following)
            && consumer.pulls.is_empty()
            && now_ns > consumer.active_ns.saturating_add(consumer.wanted.inactive_ns);
        let is_heard = consumer.wanted.deliver.clone().is_some_and(|deliver| self.is_heard(&deliver));
        if is_unwanted && !is_heard {
            self.consumers.remove(number);
            return;
        }
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        if is_heard {
            consumer.active_ns = now_ns;
        }
        let mut beats: Vec<(Arc<[u8]>, Vec<u8>)> = Vec::new();
        if let (Some(every), Some(deliver)) = (consumer.wanted.heartbeat_ns, &consumer.wanted.deliver)
            && now_ns >= consumer.spoke_ns.saturating_add(every)
        {
            consumer.spoke_ns = now_ns;
            let mut headers = b"NATS/1.0 100 Idle Heartbeat\r\n".to_vec();
            for (name, value) in
                [("Nats-Last-Consumer", consumer.delivered), ("Nats-Last-Stream", consumer.last)]
            {
                headers.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
            if consumer.stalled {
                let stream = &self.streams[consumer.wanted.stream].config.name;
                let subject = flow_subject(stream, &consumer.wanted.name);
                headers.extend_from_slice(b"Nats-Consumer-Stalled: ");
                headers.extend_from_slice(&subject);
                headers.extend_from_slice(b"\r\n");
            }
            headers.extend_from_slice(b"\r\n");
            beats.push((deliver.as_slice().into(), headers));
        }
        if let Some(pull) = consumer.pulls.front_mut()
            && pull.heartbeat_ns.is_some_and(|every| now_ns >= pull.spoke_ns.saturating_add(every))
        {
            pull.spoke_ns = now_ns;
            beats.push((pull.reply.as_slice().into(), IDLE_HEARTBEAT.to_vec()));
        }
        for (to, headers) in beats {
            self.send_status(&to, b"", &headers);
        }
    }

    /// Whether somebody is subscribed to a subject.
    pub(super) fn is_heard(&mut self, subject: &[u8]) -> bool {
        let mut found = std::mem::take(&mut self.found_again);
        found.clear();
        self.interest.find(subject, &mut found);
        let is_heard = found.iter().any(|&id| self.subscriptions.get(id).is_some());
        self.found_again = found;
        is_heard
    }
}

const NO_MESSAGES: &[u8] = b"NATS/1.0 404 No Messages\r\n\r\n";
const REQUEST_TIMEOUT: &[u8] = b"NATS/1.0 408 Request Timeout\r\n\r\n";

/// Where a flow control request is answered to.
fn flow_subject(stream: &str, consumer: &str) -> Vec<u8> {
    format!("$JS.FC.{stream}.{consumer}").into_bytes()
}
