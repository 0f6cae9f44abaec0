//! Subscribers that disturb a fan-out run, on a thread of their own: stopped, trickling, joining and leaving, reconnecting.
//! The window of the run does not wait for them. Stopped and trickling ones use the protocol of the run if that is SSE or a
//! WebSocket of Stilling, and all others NATS.
//!
//! What they receive is verified: every payload is one of the run, and within a subscription the messages follow each
//! other without a gap, a repetition or a change.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use stilling_wire::nats::{PING, PONG, encode_sub, encode_unsub};

use super::codec::{line, shown};
use super::connection::{open, would_block};
use super::error::BroadcastError;
use super::limits::{
    DISTURBANCE_TICK, JOINING_CONNECTIONS, READ_SIZE, RECONNECTING_MAX, TRICKLE_SIZE, TRICKLE_SPAN,
};
use super::nats::opening_size;
use super::plan::{BroadcastPlan, DisturbancePlan};
use super::slow_web_reader::SlowWebReader;
use super::tally::DeliveryFailure;
use crate::collect::{Pattern, connect, encode_nats_connect};

/// Results of the disturbing subscribers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DisturbanceReport {
    /// Time in which they disturbed, in seconds.
    pub elapsed_s: f64,
    /// Subscriptions that began on open connections; each ended again.
    pub joins: u64,
    /// Connections that were opened, subscribed and closed.
    pub reconnects: u64,
    /// Correct deliveries to disturbing subscribers.
    pub deliveries: u64,
    /// Trickling connections that the server closed; each was opened again.
    pub disconnected: u64,
}

/// A running thread of disturbing subscribers.
pub(super) struct Disturbance {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<DisturbanceOutcome>,
}

/// Report and failures.
#[derive(Default)]
pub(super) struct DisturbanceOutcome {
    pub(super) report: DisturbanceReport,
    pub(super) failures: Vec<(DeliveryFailure, String)>,
}

impl Disturbance {
    /// Opens the disturbing subscribers, and starts their thread.
    pub(super) fn start(plan: &BroadcastPlan) -> Result<Disturbance, BroadcastError> {
        let stop: Arc<AtomicBool> = Arc::default();
        let mut disturber = Disturber::open(plan)?;
        let seen = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !seen.load(Relaxed) {
                disturber.tick();
                thread::sleep(DISTURBANCE_TICK);
            }
            disturber.outcome.report.elapsed_s = disturber.start.elapsed().as_secs_f64();
            disturber.outcome
        });
        Ok(Disturbance { stop, thread })
    }

    pub(super) fn end(self) -> DisturbanceOutcome {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

struct Disturber {
    plan: BroadcastPlan,
    start: Instant,
    /// Only kept open.
    _stopped: Vec<SlowReader>,
    trickling: Vec<SlowReader>,
    next_trickle: Instant,
    joining: Vec<NatsReader>,
    reconnecting: Vec<NatsReader>,
    pattern: Pattern,
    buffer: Vec<u8>,
    outcome: DisturbanceOutcome,
}

/// A stopped or trickling subscriber.
enum SlowReader {
    Nats(NatsReader),
    Web(SlowWebReader),
}

impl SlowReader {
    fn open(plan: &BroadcastPlan) -> Result<SlowReader, BroadcastError> {
        match plan.protocol.is_subscription_over_http() {
            true => SlowWebReader::open(plan).map(SlowReader::Web),
            false => NatsReader::open(plan).map(SlowReader::Nats),
        }
    }

    fn received(&self) -> u64 {
        match self {
            SlowReader::Nats(reader) => reader.received,
            SlowReader::Web(reader) => reader.received,
        }
    }
}

/// A failure of a disturbing subscriber, with what it received.
pub(super) type DisturbanceFailure = (DeliveryFailure, String);

/// A connection with at most one current subscription. Subscription ids rise.
struct NatsReader {
    stream: TcpStream,
    unfinished: Vec<u8>,
    /// Last subscription id that was sent.
    sid: u64,
    /// Counter of the next message of each subscription that may deliver.
    next: BTreeMap<u64, u64>,
    received: u64,
    has_pong: bool,
}

/// State of a connection after a read.
#[derive(PartialEq, Eq)]
pub(super) enum ReadOutcome {
    Open,
    /// The server closed it, or announced that it will.
    Closed,
}

impl Disturber {
    fn open(plan: &BroadcastPlan) -> Result<Disturber, BroadcastError> {
        let DisturbancePlan { stopped, trickling, joins_per_s, .. } = plan.disturbance;
        let open_slow = |count| (0..count).map(|_| SlowReader::open(plan)).collect::<Result<Vec<_>, _>>();
        let joining = if joins_per_s > 0 { JOINING_CONNECTIONS } else { 0 };
        Ok(Disturber {
            plan: plan.clone(),
            start: Instant::now(),
            _stopped: open_slow(stopped)?,
            trickling: open_slow(trickling)?,
            next_trickle: Instant::now(),
            joining: (0..joining).map(|_| NatsReader::open(plan)).collect::<Result<_, _>>()?,
            reconnecting: Vec::new(),
            pattern: Pattern::new(plan.size),
            buffer: vec![0; READ_SIZE],
            outcome: DisturbanceOutcome::default(),
        })
    }

    /// Number of events of this rate that are due.
    fn due(&self, per_s: u32) -> u64 {
        (self.start.elapsed().as_secs_f64() * f64::from(per_s)) as u64
    }

    fn tick(&mut self) {
        if Instant::now() >= self.next_trickle {
            self.next_trickle += TRICKLE_SPAN;
            self.trickle();
        }
        self.join();
        self.reconnect();
    }

    fn fail(&mut self, failure: DeliveryFailure, detail: String) {
        self.outcome.failures.push((failure, detail));
    }

    /// Reads a little from each trickling connection, and replaces those that the server has closed.
    fn trickle(&mut self) {
        let mut trickling = std::mem::take(&mut self.trickling);
        for reader in &mut trickling {
            if self.receive_slowly(reader) == ReadOutcome::Closed {
                self.outcome.report.disconnected += 1;
                match SlowReader::open(&self.plan) {
                    Ok(opened) => *reader = opened,
                    Err(error) => self.fail(DeliveryFailure::Broken, error.to_string()),
                }
            }
        }
        self.trickling = trickling;
    }

    /// Replaces the subscription of joining connections in turn, as often as it is due.
    fn join(&mut self) {
        let mut joining = std::mem::take(&mut self.joining);
        let due = self.due(self.plan.disturbance.joins_per_s);
        let count = joining.len() as u64;
        let missing = if count > 0 { due.saturating_sub(self.outcome.report.joins) } else { 0 };
        for (number, reader) in (0..).zip(&mut joining) {
            let share = missing / count + u64::from(number < missing % count);
            if let Err(error) = reader.replace_subscription(&self.plan.subject, share) {
                self.fail(DeliveryFailure::Broken, format!("a joining connection: {error}"));
            }
            if self.receive(reader, READ_SIZE) == ReadOutcome::Closed {
                self.fail(DeliveryFailure::Broken, "the server closed a joining connection".to_owned());
            }
        }
        self.outcome.report.joins += missing;
        self.joining = joining;
    }

    /// Opens connections as often as it is due, and closes those that have subscribed.
    fn reconnect(&mut self) {
        let rate = self.plan.disturbance.reconnects_per_s;
        if rate == 0 {
            return;
        }
        let mut reconnecting = std::mem::take(&mut self.reconnecting);
        let begun = self.outcome.report.reconnects + reconnecting.len() as u64;
        let missing =
            self.due(rate).saturating_sub(begun).min((RECONNECTING_MAX - reconnecting.len()) as u64);
        for _ in 0..missing {
            match NatsReader::begin(&self.plan) {
                Ok(reader) => reconnecting.push(reader),
                Err(error) => self.fail(DeliveryFailure::Broken, format!("a reconnect: {error}")),
            }
        }
        reconnecting.retain_mut(|reader| {
            if self.receive(reader, READ_SIZE) == ReadOutcome::Closed {
                self.fail(DeliveryFailure::Broken, "the server closed a new connection".to_owned());
                return false;
            }
            self.outcome.report.reconnects += u64::from(reader.has_pong);
            !reader.has_pong
        });
        self.reconnecting = reconnecting;
    }

    /// Reads at most [`TRICKLE_SIZE`] bytes and verifies them.
    fn receive_slowly(&mut self, reader: &mut SlowReader) -> ReadOutcome {
        let before = reader.received();
        let buffer = &mut self.buffer[..TRICKLE_SIZE];
        let received = match reader {
            SlowReader::Nats(reader) => reader.receive(buffer, &self.pattern, &self.plan.subject),
            SlowReader::Web(reader) => reader.receive(buffer, &self.pattern, &self.plan),
        };
        self.note_received(reader.received() - before, received)
    }

    /// Reads at most `size` bytes and verifies them.
    fn receive(&mut self, reader: &mut NatsReader, size: usize) -> ReadOutcome {
        let before = reader.received;
        let received = reader.receive(&mut self.buffer[..size], &self.pattern, &self.plan.subject);
        self.note_received(reader.received - before, received)
    }

    fn note_received(
        &mut self,
        deliveries: u64,
        received: Result<ReadOutcome, DisturbanceFailure>,
    ) -> ReadOutcome {
        self.outcome.report.deliveries += deliveries;
        match received {
            Ok(outcome) => outcome,
            Err((failure, detail)) => {
                self.fail(failure, detail);
                ReadOutcome::Closed
            }
        }
    }
}

fn opening(subject: &str) -> Vec<u8> {
    let mut opening = Vec::new();
    encode_nats_connect(&mut opening);
    encode_sub(&mut opening, subject.as_bytes(), None, b"1");
    opening.extend_from_slice(PING);
    opening
}

impl NatsReader {
    fn new(stream: TcpStream, unfinished: Vec<u8>) -> NatsReader {
        let next = BTreeMap::new();
        NatsReader { stream, unfinished, sid: 1, next, received: 0, has_pong: false }
    }

    /// Opens a connection, and returns when it has subscribed.
    fn open(plan: &BroadcastPlan) -> Result<NatsReader, BroadcastError> {
        let to = plan.publish_to.unwrap_or(plan.to);
        let (stream, input) = open(to, plan.timeout, &opening(&plan.subject), opening_size)?;
        Ok(NatsReader::new(stream, input))
    }

    /// Opens a connection that has subscribed when its PONG arrives.
    fn begin(plan: &BroadcastPlan) -> std::io::Result<NatsReader> {
        let mut stream = connect(plan.publish_to.unwrap_or(plan.to), plan.timeout)?;
        stream.write_all(&opening(&plan.subject))?;
        stream.set_nonblocking(true)?;
        Ok(NatsReader::new(stream, Vec::new()))
    }

    /// Subscribes `count` times, and ends each time the subscription before.
    fn replace_subscription(&mut self, subject: &str, count: u64) -> std::io::Result<()> {
        let mut lines = Vec::new();
        for _ in 0..count {
            let before = itoa::Buffer::new().format(self.sid).to_owned();
            self.sid += 1;
            let sid = itoa::Buffer::new().format(self.sid).to_owned();
            encode_sub(&mut lines, subject.as_bytes(), None, sid.as_bytes());
            encode_unsub(&mut lines, before.as_bytes(), None);
        }
        // Few and short lines: the socket has room.
        self.stream.write_all(&lines)
    }

    fn receive(
        &mut self,
        buffer: &mut [u8],
        pattern: &Pattern,
        subject: &str,
    ) -> Result<ReadOutcome, DisturbanceFailure> {
        if let Some(outcome) = read_once(&mut self.stream, buffer, &mut self.unfinished) {
            return Ok(outcome);
        }
        let input = std::mem::take(&mut self.unfinished);
        let mut start = 0;
        while let Some((line, size)) = line(&input[start..]) {
            if let Some(message) = line.strip_prefix(b"MSG ") {
                let payload = start + size;
                let end = payload + pattern.size() + 2;
                if input.len() < end {
                    break;
                }
                let sid = sid_of(message, subject, pattern.size())
                    .filter(|_| input.get(end - 2..end) == Some(b"\r\n"))
                    .ok_or_else(|| (DeliveryFailure::Protocol, shown(line)))?;
                self.check(sid, &input[payload..end - 2], pattern)?;
                start = end;
                continue;
            }
            match line {
                b"PING" => {
                    let _ = self.stream.write_all(PONG);
                }
                b"PONG" => self.has_pong = true,
                _ if line.starts_with(b"INFO ") => {}
                _ if line.starts_with(b"-ERR 'Slow Consumer") => return Ok(ReadOutcome::Closed),
                _ => return Err((DeliveryFailure::Protocol, shown(line))),
            }
            start += size;
        }
        self.unfinished.extend_from_slice(&input[start..]);
        Ok(ReadOutcome::Open)
    }

    /// Checks a payload: right, and the next one of its subscription.
    fn check(&mut self, sid: u64, payload: &[u8], pattern: &Pattern) -> Result<(), DisturbanceFailure> {
        let next = self.next.get(&sid).copied();
        let after = check_next(payload, pattern, next, format_args!("subscription {sid}"))?;
        self.next.insert(sid, after);
        self.received += 1;
        // Lines are processed in order: a subscription that delivers has ended the one before its predecessor.
        self.next.retain(|other, _| *other + 1 >= sid);
        Ok(())
    }
}

/// Reads once. Returns the state of the connection if there is nothing new to decode.
pub(super) fn read_once(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    unfinished: &mut Vec<u8>,
) -> Option<ReadOutcome> {
    match stream.read(buffer) {
        Ok(0) => Some(ReadOutcome::Closed),
        Ok(count) => {
            unfinished.extend_from_slice(&buffer[..count]);
            None
        }
        Err(error) if would_block(&error) => Some(ReadOutcome::Open),
        // A server that closes with unread input resets the connection.
        Err(_) => Some(ReadOutcome::Closed),
    }
}

/// Checks that a payload is right, and the message with the counter `next` if that is known. Returns the next counter.
pub(super) fn check_next(
    payload: &[u8],
    pattern: &Pattern,
    next: Option<u64>,
    subscriber: impl Display,
) -> Result<u64, DisturbanceFailure> {
    let id = pattern.check(payload).ok_or_else(|| (DeliveryFailure::WrongPayload, shown(payload)))?;
    let next = next.unwrap_or(id.counter);
    let failure = match id.counter.cmp(&next) {
        Ordering::Less => DeliveryFailure::Repeated,
        Ordering::Equal => return Ok(next + 1),
        Ordering::Greater => DeliveryFailure::Undelivered,
    };
    Err((failure, format!("{subscriber}: message {} instead of {next}", id.counter)))
}

/// The subscription id of a message with this subject and size.
fn sid_of(message: &[u8], subject: &str, payload_size: usize) -> Option<u64> {
    let words = std::str::from_utf8(message).ok()?.split(' ').collect::<Vec<_>>();
    let [of, sid, size] = words[..] else { return None };
    (of == subject && size.parse() == Ok(payload_size)).then(|| sid.parse().ok())?
}
