//! Clients: publishers that resend unacknowledged messages, HTTP posters that do the same, subscribers, and followers
//! that resume by sequence.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stilling_ring::Time;

use super::ledger::StreamLedger;
use super::message::{MEMORY, MessageName, ON_DISK, STREAMS, UNSTORED};
use super::publication_queue::PublicationQueue;
use super::stepped_client::{ClientContext, ClientRole, StepEnd, SteppedClient};
use super::wire::{ClientWire, NatsInput, NatsMessage, WireError, number_of};
use crate::SplitMix64;
use crate::network::{Address, Network};

/// Timeout of a publication: longer than any disk hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(100);

/// The date in a stream's creation time: every world takes place on this day.
const WORLD_DATE: &str = "2023-11-14T";

/// The world as seen by one client during a step.
pub(super) struct StreamsClientContext<'a> {
    pub(super) network: &'a Network,
    pub(super) now: Time,
    pub(super) nats: &'a Address,
    pub(super) http: &'a Address,
    pub(super) ledgers: &'a mut [StreamLedger],
    pub(super) random: &'a mut SplitMix64,
    pub(super) totals: &'a mut ClientTotals,
    /// Increases when a server starts and when it is requested to end.
    pub(super) server_generation: u32,
    /// A server accepts and has not been requested to end.
    pub(super) is_served: bool,
}

/// Counts over all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTotals {
    /// Messages acknowledged.
    pub acknowledged: u64,
    /// Of `acknowledged`: duplicates of stored messages.
    pub duplicates: u64,
    /// Publications refused and retried later.
    pub refused: u64,
    /// Messages without a known outcome.
    pub unknown: u64,
    /// Messages received by subscribers.
    pub seen: u64,
    /// Records received by followers.
    pub followed: u64,
    /// Sequences reported to followers as gaps.
    pub skipped: u64,
    /// Connections made.
    pub connections: u64,
}

pub(super) type StreamsClient = SteppedClient<StreamsRole>;

#[derive(Debug)]
pub(super) enum StreamsRole {
    StreamsPublisher(StreamsPublisher),
    HttpPoster(HttpPoster),
    Subscriber { seen: BTreeSet<MessageName> },
    StreamFollower(StreamFollower),
}

#[derive(Debug)]
pub(super) struct StreamsPublisher {
    number: u32,
    has_ids: bool,
    queue: PublicationQueue,
    burst: u32,
    pause: Duration,
    left_in_burst: u32,
    /// Last acknowledged sequence of each stream on this connection, except duplicates.
    last: BTreeMap<String, u64>,
}

/// Publishes by HTTP, one request at a time.
#[derive(Debug)]
pub(super) struct HttpPoster {
    number: u32,
    total: u32,
    /// Messages per request; with more than one, they have no ids.
    lines: u32,
    next: u32,
    is_waiting: bool,
    resume_at: Time,
    pause: Duration,
    answered_at: Time,
}

#[derive(Debug)]
pub(super) struct StreamFollower {
    number: usize,
    stream: usize,
    /// Last sequence received or reported as a gap.
    last: u64,
    received: u64,
    has_consumer: bool,
    /// The follower ends after receiving this sequence.
    until: Option<u64>,
}

impl StreamsClient {
    pub(super) fn publisher(
        number: u32,
        start: Time,
        pace: Duration,
        random: &mut SplitMix64,
    ) -> StreamsClient {
        let has_ids = random.chance(700);
        let (total, window) = (random.between(5, 60) as u32, random.between(1, 24) as usize);
        let publisher = StreamsPublisher {
            number,
            has_ids,
            queue: PublicationQueue::new(total, window, ANSWER_TIMEOUT, start),
            burst: random.between(1, 20) as u32,
            pause: Duration::from_micros(random.between(100, 2 * pace.as_micros() as u64)),
            left_in_burst: 0,
            last: BTreeMap::new(),
        };
        StreamsClient::new(StreamsRole::StreamsPublisher(publisher), start)
    }

    pub(super) fn poster(number: u32, start: Time, pace: Duration, random: &mut SplitMix64) -> StreamsClient {
        let lines = if random.chance(400) { random.between(2, 8) as u32 } else { 1 };
        StreamsClient::new(
            StreamsRole::HttpPoster(HttpPoster {
                number,
                total: lines * random.between(2, 12) as u32,
                lines,
                next: 0,
                is_waiting: false,
                resume_at: start,
                pause: Duration::from_micros(random.between(100, 2 * pace.as_micros() as u64)),
                answered_at: start,
            }),
            start,
        )
    }

    pub(super) fn subscriber(start: Time) -> StreamsClient {
        StreamsClient::new(StreamsRole::Subscriber { seen: BTreeSet::new() }, start)
    }

    pub(super) fn follower(
        (number, stream): (usize, usize),
        start: Time,
        until: Option<u64>,
    ) -> StreamsClient {
        let follower = StreamFollower { number, stream, last: 0, received: 0, has_consumer: false, until };
        StreamsClient::new(StreamsRole::StreamFollower(follower), start)
    }

    pub(super) fn is_source(&self) -> bool {
        matches!(self.role, StreamsRole::StreamsPublisher(_) | StreamsRole::HttpPoster(_))
    }
}

impl ClientContext for StreamsClientContext<'_> {
    fn network(&self) -> &Network {
        self.network
    }

    fn now(&self) -> Time {
        self.now
    }

    fn random(&mut self) -> &mut SplitMix64 {
        self.random
    }

    fn server_generation(&self) -> u32 {
        self.server_generation
    }

    fn is_served(&self) -> bool {
        self.is_served
    }
}

impl ClientRole<StreamsClientContext<'_>> for StreamsRole {
    const UNSERVED_PAUSE_MAX: u64 = 400_000;

    fn address(&self, context: &StreamsClientContext<'_>) -> Address {
        if matches!(self, StreamsRole::HttpPoster(_)) { context.http.clone() } else { context.nats.clone() }
    }

    fn dialled(&mut self, wire: &mut ClientWire, context: &mut StreamsClientContext<'_>) {
        context.totals.connections += 1;
        if !matches!(self, StreamsRole::HttpPoster(_)) {
            wire.line("CONNECT {\"verbose\":false,\"headers\":true}");
        }
        match self {
            StreamsRole::StreamsPublisher(publisher) => publisher.begin(wire, context),
            StreamsRole::HttpPoster(poster) => poster.is_waiting = false,
            StreamsRole::Subscriber { seen } => {
                seen.clear();
                for stream in STREAMS {
                    wire.line(&format!("SUB {stream}.> {stream}"));
                }
            }
            StreamsRole::StreamFollower(follower) => follower.begin(wire),
        }
    }

    fn exchange(
        &mut self,
        wire: &mut ClientWire,
        context: &mut StreamsClientContext<'_>,
    ) -> Result<StepEnd, WireError> {
        let has_ended = wire.fill()?;
        if let StreamsRole::HttpPoster(poster) = self {
            while let Some((status, body, is_kept)) = wire.next_answer()? {
                poster.answered(status, &body, context).map_err(WireError::Wrong)?;
                if !is_kept {
                    return Err(WireError::Ended("the server closes".to_owned()));
                }
            }
        } else {
            while let Some(input) = wire.next_nats()? {
                if let NatsInput::Message(message) = input
                    && self.receive(&message, wire.attempt, context).map_err(WireError::Wrong)?
                {
                    return Ok(StepEnd::Done);
                }
            }
        }
        if has_ended {
            return Err(WireError::Ended("the end came".to_owned()));
        }
        match self {
            StreamsRole::StreamsPublisher(publisher) => publisher.send_more(wire, context),
            StreamsRole::HttpPoster(poster) => poster.send_more(wire, context),
            StreamsRole::Subscriber { .. } | StreamsRole::StreamFollower(_) => Ok(StepEnd::Continue(None)),
        }
    }

    fn may_end(&self, why: &str, _: &StreamsClientContext<'_>) -> bool {
        matches!(self, StreamsRole::HttpPoster(_)) && why == "the server closes"
    }

    fn disconnected(&mut self, context: &mut StreamsClientContext<'_>) {
        match self {
            StreamsRole::StreamsPublisher(publisher) => publisher.lost(context.totals),
            StreamsRole::HttpPoster(poster) => poster.lost(context.totals),
            StreamsRole::Subscriber { .. } | StreamsRole::StreamFollower(_) => {}
        }
    }
}

impl StreamsRole {
    /// Handles a NATS message. Returns whether the client is done.
    fn receive(
        &mut self,
        message: &NatsMessage,
        attempt: u32,
        context: &mut StreamsClientContext<'_>,
    ) -> Result<bool, String> {
        let NatsMessage { subject, payload, .. } = message;
        match self {
            StreamsRole::StreamsPublisher(publisher) => {
                publisher.answered((subject, attempt), payload, context).map(|()| false)
            }
            StreamsRole::Subscriber { seen } => record_seen(seen, subject, payload, context).map(|()| false),
            StreamsRole::StreamFollower(follower) => follower.handle_message(message, context),
            StreamsRole::HttpPoster(_) => Ok(false),
        }
    }
}

fn record_seen(
    seen: &mut BTreeSet<MessageName>,
    subject: &str,
    payload: &[u8],
    context: &mut StreamsClientContext<'_>,
) -> Result<(), String> {
    let name = MessageName::of(payload).ok_or_else(|| format!("a message of {subject} is damaged"))?;
    let stream = STREAMS.iter().position(|stream| subject == format!("{stream}.{}", name.publisher));
    let stream = stream.ok_or_else(|| format!("{name} arrived on subject {subject}"))?;
    context.totals.seen += 1;
    if stream >= ON_DISK {
        return Ok(());
    }
    if !seen.insert(name) {
        return Err(format!("{name} was seen twice on one connection"));
    }
    context.ledgers[stream].record_seen(name)
}

impl StreamsPublisher {
    fn begin(&mut self, wire: &mut ClientWire, context: &StreamsClientContext<'_>) {
        self.last.clear();
        self.queue.restart_timeout(context.now);
        // Answers to messages of an earlier connection may still arrive.
        wire.line(&format!("SUB {}* 1", self.inbox(wire.attempt)));
        wire.line("PING");
    }

    /// Handles the loss of the connection and of its pending answers.
    fn lost(&mut self, totals: &mut ClientTotals) {
        let waiting = self.queue.take_waiting();
        if self.has_ids {
            waiting.into_iter().for_each(|message| self.queue.send_again(message));
        } else {
            totals.unknown += waiting.len() as u64;
        }
    }

    fn name(&self, message: u32) -> MessageName {
        MessageName { publisher: self.number, message }
    }

    /// Sends what may be sent.
    fn send_more(
        &mut self,
        wire: &mut ClientWire,
        context: &mut StreamsClientContext<'_>,
    ) -> Result<StepEnd, WireError> {
        self.queue.check_answers(context.now)?;
        while let Some(message) = self.queue.next_to_send(context.now) {
            self.send(message, wire, context);
            if self.left_in_burst == 0 {
                self.left_in_burst = self.burst;
                self.queue.resume_at(context.now.after(self.pause));
            }
            self.left_in_burst -= 1;
        }
        Ok(self.queue.step_end(context.now))
    }

    fn send(&mut self, message: u32, wire: &mut ClientWire, context: &mut StreamsClientContext<'_>) {
        let name = self.name(message);
        let stream = name.stream();
        if let Some(ledger) = context.ledgers.get_mut(stream).filter(|_| stream < ON_DISK) {
            ledger.send(name);
        }
        let id = if self.has_ids { format!("{}-{message}", self.number) } else { String::new() };
        let subject = format!("{}.{}", STREAMS[stream], self.number);
        let reply = format!("{}{message}", self.inbox(wire.attempt));
        wire.publish(&subject, &reply, &id, &name.payload());
        if context.random.chance(100) {
            wire.publish(&format!("{}.{}", STREAMS[UNSTORED], self.number), "", "", &name.payload());
        }
        if context.random.chance(100) {
            wire.line("PING");
        }
    }

    /// Prefix of its reply subjects on a connection.
    fn inbox(&self, attempt: u32) -> String {
        format!("_INBOX.{}.{attempt}.", self.number)
    }

    fn answered(
        &mut self,
        (subject, attempt): (&str, u32),
        payload: &[u8],
        context: &mut StreamsClientContext<'_>,
    ) -> Result<(), String> {
        let message = subject.strip_prefix(&self.inbox(attempt)).and_then(|rest| rest.parse().ok());
        let message: u32 = message.ok_or_else(|| format!("unexpected message on {subject}"))?;
        self.queue.answered(message, context.now)?;
        let text = String::from_utf8_lossy(payload).into_owned();
        if text.contains("\"error\"") {
            context.totals.refused += 1;
            if self.has_ids {
                self.queue.send_again(message);
            } else {
                context.totals.unknown += 1;
            }
            let span = Duration::from_millis(context.random.between(50, 1000));
            self.queue.resume_at(context.now.after(span));
            return Ok(());
        }
        let name = self.name(message);
        let stream = name.stream();
        if !text.contains(&format!("\"stream\":\"{}\"", STREAMS[stream])) {
            return Err(format!("{name} was published to {} and answered with {text}", STREAMS[stream]));
        }
        let sequence = number_of(&text, "seq").ok_or_else(|| format!("{name} was answered with {text}"))?;
        let is_duplicate = text.contains("\"duplicate\":true");
        context.totals.acknowledged += 1;
        context.totals.duplicates += u64::from(is_duplicate);
        if !is_duplicate {
            let last = self.last.insert(STREAMS[stream].to_owned(), sequence);
            if last.is_some_and(|last| last >= sequence) {
                return Err(format!("{name} was acknowledged as {sequence} after {last:?}"));
            }
        }
        if stream == MEMORY {
            Ok(())
        } else {
            context.ledgers[stream].acknowledge(name, sequence, is_duplicate)
        }
    }
}

impl HttpPoster {
    fn lost(&mut self, totals: &mut ClientTotals) {
        if std::mem::take(&mut self.is_waiting) && self.lines > 1 {
            // Messages without ids are not resent.
            totals.unknown += u64::from(self.lines);
            self.next += self.lines;
        }
    }

    fn stream(&self) -> usize {
        self.number as usize % ON_DISK
    }

    fn names(&self) -> impl Iterator<Item = MessageName> + use<> {
        let publisher = self.number;
        (self.next..self.next + self.lines).map(move |message| MessageName { publisher, message })
    }

    fn send_more(
        &mut self,
        wire: &mut ClientWire,
        context: &mut StreamsClientContext<'_>,
    ) -> Result<StepEnd, WireError> {
        if self.is_waiting && context.now > self.answered_at.after(ANSWER_TIMEOUT) {
            return Err(WireError::Wrong("a request was never answered".to_owned()));
        }
        if !self.is_waiting && context.now >= self.resume_at {
            if self.next >= self.total {
                return Ok(StepEnd::Done);
            }
            self.send(wire, context);
        }
        let late = self.answered_at.after(ANSWER_TIMEOUT + Duration::from_secs(1));
        Ok(StepEnd::Continue(Some(if self.is_waiting { late } else { self.resume_at })))
    }

    fn send(&mut self, wire: &mut ClientWire, context: &mut StreamsClientContext<'_>) {
        (self.is_waiting, self.answered_at) = (true, context.now);
        let mut body = Vec::new();
        for name in self.names() {
            context.ledgers[self.stream()].send(name);
            body.extend(name.payload());
            if self.lines > 1 {
                body.push(b'\n');
            }
        }
        wire.line(&format!("POST /publish/{}.{} HTTP/1.1", STREAMS[self.stream()], self.number));
        wire.line("Host: localhost");
        match self.lines {
            1 => wire.line(&format!("Nats-Msg-Id: {}-{}", self.number, self.next)),
            _ => wire.line("Content-Type: application/x-ndjson"),
        }
        wire.line(&format!("Content-Length: {}\r\n", body.len()));
        wire.bytes(&body);
    }

    fn answered(
        &mut self,
        status: u16,
        body: &str,
        context: &mut StreamsClientContext<'_>,
    ) -> Result<(), String> {
        if !std::mem::take(&mut self.is_waiting) {
            return Err(format!("an answer without a request: {status} {body}"));
        }
        match status {
            200 => {
                let (first, last) = (number_of(body, "first"), number_of(body, "last"));
                let (Some(first), Some(last)) = (first, last) else {
                    return Err(format!("200 was answered with {body}"));
                };
                if last - first + 1 < u64::from(self.lines) {
                    return Err(format!("{} messages are from {first} to {last}", self.lines));
                }
                let is_duplicate = body.contains("\"duplicate\":true");
                let ledger = &mut context.ledgers[self.stream()];
                let is_exact = last - first + 1 == u64::from(self.lines);
                for (sequence, name) in (first..).zip(self.names()).filter(|_| is_exact) {
                    ledger.acknowledge(name, sequence, is_duplicate)?;
                }
                context.totals.acknowledged += u64::from(self.lines);
                context.totals.duplicates += u64::from(is_duplicate);
                self.next += self.lines;
                self.resume_at = context.now.after(self.pause);
            }
            503 | 507 => {
                context.totals.refused += 1;
                if self.lines > 1 {
                    // Some of them may be stored, now or later.
                    context.totals.unknown += u64::from(self.lines);
                    self.next += self.lines;
                }
                self.resume_at = context.now.after(Duration::from_millis(context.random.between(50, 1000)));
            }
            _ => return Err(format!("it was answered {status}: {body}")),
        }
        Ok(())
    }
}

impl StreamFollower {
    fn begin(&mut self, wire: &mut ClientWire) {
        (self.received, self.has_consumer) = (0, false);
        let (stream, next) = (STREAMS[self.stream], self.last + 1);
        // A consumer of an earlier connection may still exist.
        let own = format!("{}.{}", self.number, wire.attempt);
        let config = format!(
            "{{\"stream_name\":\"{stream}\",\"config\":{{\"deliver_subject\":\"_D.{own}\",\"ack_policy\":\"none\",\
             \"deliver_policy\":\"by_start_sequence\",\"opt_start_seq\":{next}}}}}"
        );
        wire.line(&format!("SUB _D.{own} 1"));
        wire.line(&format!("SUB _R.{own} 2"));
        let reply = format!("_R.{own}");
        wire.publish(&format!("$JS.API.CONSUMER.CREATE.{stream}"), &reply, "", config.as_bytes());
        for stream in &STREAMS[..=MEMORY] {
            wire.publish(&format!("$JS.API.STREAM.INFO.{stream}"), &format!("_R.{own}"), "", b"");
        }
    }

    /// Handles a message. Returns whether the follower has now received everything up to `until`.
    fn handle_message(
        &mut self,
        NatsMessage { subject, reply, payload, .. }: &NatsMessage,
        context: &mut StreamsClientContext<'_>,
    ) -> Result<bool, String> {
        if subject.starts_with("_R.") {
            let text = String::from_utf8_lossy(payload);
            if text.contains("stream_info_response") {
                // Streams are created in the world, under its clock.
                let is_world_date = text.contains(&format!("\"created\":\"{WORLD_DATE}"));
                return if is_world_date {
                    Ok(false)
                } else {
                    Err(format!("a stream was created at another time: {text}"))
                };
            }
            self.has_consumer = !text.contains("\"error\"");
            return if self.has_consumer { Ok(false) } else { Err(format!("there is no consumer: {text}")) };
        }
        if subject.starts_with("_D.") || reply.is_empty() {
            // A status message of the server.
            return Ok(false);
        }
        let mut numbers = reply.split('.').skip(5).map(|word| word.parse::<u64>().ok());
        let (Some(Some(sequence)), Some(Some(received))) = (numbers.next(), numbers.next()) else {
            return Err(format!("a record has the reply subject {reply}"));
        };
        let name = MessageName::of(payload).ok_or_else(|| format!("the record at {sequence} is damaged"))?;
        if sequence <= self.last {
            return Err(format!("{name} arrived at {sequence} after {}", self.last));
        }
        self.received += 1;
        if received != self.received {
            return Err(format!("{name} has consumer sequence {received}, expected {}", self.received));
        }
        let ledger = &mut context.ledgers[self.stream];
        if sequence > self.last + 1 {
            context.totals.skipped += sequence - self.last - 1;
            ledger.skip(self.last + 1, sequence - 1);
        }
        ledger.record_seen_at(name, sequence)?;
        self.last = sequence;
        context.totals.followed += 1;
        Ok(self.until.is_some_and(|until| sequence >= until))
    }
}
