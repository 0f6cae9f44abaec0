//! Clients: publishers that resend unacknowledged messages, HTTP posters that do the same, subscribers, and followers
//! that resume by sequence.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stilling_ring::Time;

use super::ledger::StreamLedger;
use super::message::{MEMORY, MessageName, ON_DISK, STREAMS, UNSTORED};
use super::wire::{ClientWire, WireError, WireInput, number_of};
use crate::SplitMix64;
use crate::network::{Address, Network, PeerKey};

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

#[derive(Debug)]
pub(super) struct StreamsClient {
    role: StreamsRole,
    wire: ClientWire,
    wake_at: Option<Time>,
    /// Server generation of the last connection.
    server_generation: u32,
    is_done: bool,
}

#[derive(Debug)]
enum StreamsRole {
    StreamsPublisher(StreamsPublisher),
    HttpPoster(HttpPoster),
    Subscriber { seen: BTreeSet<MessageName> },
    StreamFollower(StreamFollower),
}

#[derive(Debug)]
pub(super) struct StreamsPublisher {
    number: u32,
    has_ids: bool,
    total: u32,
    window: usize,
    burst: u32,
    pause: Duration,
    next: u32,
    waiting: BTreeSet<u32>,
    again: BTreeSet<u32>,
    resume_at: Time,
    left_in_burst: u32,
    /// Last acknowledged sequence of each stream on this connection, except duplicates.
    last: BTreeMap<String, u64>,
    answered_at: Time,
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
    fn new(role: StreamsRole, start: Time) -> StreamsClient {
        StreamsClient {
            role,
            wire: ClientWire::default(),
            wake_at: Some(start),
            server_generation: 0,
            is_done: false,
        }
    }

    pub(super) fn publisher(
        number: u32,
        start: Time,
        pace: Duration,
        random: &mut SplitMix64,
    ) -> StreamsClient {
        StreamsClient::new(
            StreamsRole::StreamsPublisher(StreamsPublisher {
                number,
                has_ids: random.chance(700),
                total: random.between(5, 60) as u32,
                window: random.between(1, 24) as usize,
                burst: random.between(1, 20) as u32,
                pause: Duration::from_micros(random.between(100, 2 * pace.as_micros() as u64)),
                next: 0,
                waiting: BTreeSet::new(),
                again: BTreeSet::new(),
                resume_at: start,
                left_in_burst: 0,
                last: BTreeMap::new(),
                answered_at: start,
            }),
            start,
        )
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

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    pub(super) fn key(&self) -> Option<PeerKey> {
        self.wire.key()
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.wake_at.filter(|_| !self.is_done)
    }

    pub(super) fn finish_role(&mut self) {
        (self.is_done, self.wake_at) = (true, None);
        self.wire.hang_up();
    }

    pub(super) fn step(&mut self, context: &mut StreamsClientContext<'_>) -> Result<(), String> {
        if self.is_done {
            return Ok(());
        }
        let is_due = self.wake_at.is_some_and(|at| at <= context.now);
        if is_due {
            self.wake_at = None;
        }
        if !self.wire.is_open() {
            if !is_due {
                return Ok(());
            }
            self.dial(context);
        }
        match self.exchange(context) {
            Ok(()) => {
                if self.is_done {
                    self.finish_role();
                }
                Ok(())
            }
            Err(WireError::Wrong(why)) => Err(self.failure_message(&why)),
            Err(WireError::Ended(why)) => self.ended(&why, context),
        }
    }

    fn dial(&mut self, context: &mut StreamsClientContext<'_>) {
        let to = if matches!(self.role, StreamsRole::HttpPoster(_)) { context.http } else { context.nats };
        self.wire.dial(context.network, to);
        context.totals.connections += 1;
        self.server_generation = context.server_generation;
        let wire = &mut self.wire;
        if !matches!(self.role, StreamsRole::HttpPoster(_)) {
            wire.line("CONNECT {\"verbose\":false,\"headers\":true}");
        }
        match &mut self.role {
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

    fn exchange(&mut self, context: &mut StreamsClientContext<'_>) -> Result<(), WireError> {
        let has_ended = self.wire.fill()?;
        if let StreamsRole::HttpPoster(poster) = &mut self.role {
            while let Some((status, body, is_kept)) = self.wire.next_answer()? {
                poster.answered(status, &body, context).map_err(WireError::Wrong)?;
                if !is_kept {
                    return Err(WireError::Ended("the server closes".to_owned()));
                }
            }
        } else {
            while let Some(input) = self.wire.next_input()? {
                self.handle_input(input, context)?;
                if self.is_done {
                    return Ok(());
                }
            }
        }
        if has_ended {
            return Err(WireError::Ended("the end came".to_owned()));
        }
        let (wire, role) = (&mut self.wire, &mut self.role);
        let (again_at, is_done) = match role {
            StreamsRole::StreamsPublisher(publisher) => publisher.send_more(wire, context)?,
            StreamsRole::HttpPoster(poster) => poster.send_more(wire, context)?,
            StreamsRole::Subscriber { .. } | StreamsRole::StreamFollower(_) => (None, false),
        };
        self.is_done = is_done;
        if let Some(at) = again_at {
            self.wake_at = Some(self.wake_at.map_or(at, |other| other.min(at)));
        }
        self.wire.flush(context.random)
    }

    fn handle_input(
        &mut self,
        input: WireInput,
        context: &mut StreamsClientContext<'_>,
    ) -> Result<(), WireError> {
        let (subject, reply, payload) = match input {
            WireInput::Pong | WireInput::Info => return Ok(()),
            WireInput::Ping => {
                self.wire.line("PONG");
                return Ok(());
            }
            WireInput::Error(line) => return Err(WireError::Ended(line)),
            WireInput::Message { subject, reply, payload } => (subject, reply, payload),
        };
        let done = match &mut self.role {
            StreamsRole::StreamsPublisher(publisher) => {
                publisher.answered((&subject, self.wire.attempt), &payload, context).map(|()| false)
            }
            StreamsRole::Subscriber { seen } => {
                record_seen(seen, &subject, &payload, context).map(|()| false)
            }
            StreamsRole::StreamFollower(follower) => {
                follower.handle_message(&subject, &reply, &payload, context)
            }
            StreamsRole::HttpPoster(_) => Ok(false),
        };
        self.is_done |= done.map_err(WireError::Wrong)?;
        Ok(())
    }

    /// Handles the end of the connection: acceptable after a network fault and when a server starts or ends.
    fn ended(&mut self, why: &str, context: &mut StreamsClientContext<'_>) -> Result<(), String> {
        let is_expected = self.wire.is_damaged()
            || context.server_generation != self.server_generation
            || !context.is_served;
        let is_server_close = matches!(self.role, StreamsRole::HttpPoster(_)) && why == "the server closes";
        if !is_expected && !is_server_close {
            return Err(self.failure_message(why));
        }
        self.wire.hang_up();
        match &mut self.role {
            StreamsRole::StreamsPublisher(publisher) => publisher.lost(context.totals),
            StreamsRole::HttpPoster(poster) => poster.lost(context.totals),
            StreamsRole::Subscriber { .. } | StreamsRole::StreamFollower(_) => {}
        }
        let most = if context.is_served { 50_000 } else { 400_000 };
        self.wake_at = Some(context.now.after(Duration::from_micros(context.random.between(1, most))));
        Ok(())
    }

    pub(super) fn failure_message(&self, what: &str) -> String {
        format!("{:?}: {what}\n  {}", self.role, self.wire.describe())
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
        self.answered_at = context.now;
        // Answers to messages of an earlier connection may still arrive.
        wire.line(&format!("SUB {}* 1", self.inbox(wire.attempt)));
        wire.line("PING");
    }

    /// Handles the loss of the connection and of its pending answers.
    fn lost(&mut self, totals: &mut ClientTotals) {
        let waiting = std::mem::take(&mut self.waiting);
        if self.has_ids {
            self.again.extend(waiting);
        } else {
            totals.unknown += waiting.len() as u64;
        }
    }

    fn name(&self, message: u32) -> MessageName {
        MessageName { publisher: self.number, message }
    }

    /// Sends what may be sent. Returns the time to continue, and whether all is done.
    fn send_more(
        &mut self,
        wire: &mut ClientWire,
        context: &mut StreamsClientContext<'_>,
    ) -> Result<(Option<Time>, bool), WireError> {
        if !self.waiting.is_empty() && context.now > self.answered_at.after(ANSWER_TIMEOUT) {
            return Err(WireError::Wrong(format!("{:?} were never answered", self.waiting)));
        }
        while context.now >= self.resume_at && self.waiting.len() < self.window {
            let Some(message) = self.again.pop_first().or_else(|| {
                let next = Some(self.next).filter(|next| *next < self.total);
                self.next += u32::from(next.is_some());
                next
            }) else {
                break;
            };
            self.send(message, wire, context);
            if self.left_in_burst == 0 {
                self.left_in_burst = self.burst;
                self.resume_at = context.now.after(self.pause);
            }
            self.left_in_burst -= 1;
        }
        let has_more = !self.again.is_empty() || self.next < self.total;
        let is_done = !has_more && self.waiting.is_empty();
        let more = Some(self.resume_at).filter(|at| has_more && *at > context.now);
        let late = (!self.waiting.is_empty())
            .then(|| self.answered_at.after(ANSWER_TIMEOUT + Duration::from_secs(1)));
        Ok((more.into_iter().chain(late).min(), is_done))
    }

    fn send(&mut self, message: u32, wire: &mut ClientWire, context: &mut StreamsClientContext<'_>) {
        let name = self.name(message);
        let stream = name.stream();
        if let Some(ledger) = context.ledgers.get_mut(stream).filter(|_| stream < ON_DISK) {
            ledger.send(name);
        }
        if self.waiting.is_empty() {
            self.answered_at = context.now;
        }
        self.waiting.insert(message);
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
        if !self.waiting.remove(&message) {
            return Err(format!("message {message} was answered, but was not pending"));
        }
        self.answered_at = context.now;
        let text = String::from_utf8_lossy(payload).into_owned();
        if text.contains("\"error\"") {
            context.totals.refused += 1;
            if self.has_ids {
                self.again.insert(message);
            } else {
                context.totals.unknown += 1;
            }
            self.resume_at = context.now.after(Duration::from_millis(context.random.between(50, 1000)));
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
    ) -> Result<(Option<Time>, bool), WireError> {
        if self.is_waiting && context.now > self.answered_at.after(ANSWER_TIMEOUT) {
            return Err(WireError::Wrong("a request was never answered".to_owned()));
        }
        let mut is_done = false;
        if !self.is_waiting && context.now >= self.resume_at {
            is_done = self.next >= self.total;
            if !is_done {
                self.send(wire, context);
            }
        }
        let late = self.answered_at.after(ANSWER_TIMEOUT + Duration::from_secs(1));
        Ok((Some(if self.is_waiting { late } else { self.resume_at }), is_done))
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
        subject: &str,
        reply: &str,
        payload: &[u8],
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
