//! Slow and flapping subscribers over WebSocket and SSE that resume behind their last message, on a thread of their own.
//!
//! Each accounts for every published message: it is delivered once and in order, or a gap notice names it. Delivered and
//! reported messages must add up to the published ones.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::connection::would_block;
use super::error::BroadcastError;
use super::limits::{
    DISTURBANCE_TICK, FLAP_OPEN_MS_MAX, FLAP_PAUSE_MS_MAX, READ_SIZE, RESUMED_ITEM_SIZE_MAX, SLOW_BYTES_PER_S,
};
use super::plan::{BroadcastPlan, ResumingPlan};
use super::record::{head_size, parse_position};
use super::resumed_items::{HttpFormat, ResumedItem, next_item};
use super::tally::DeliveryFailure;
use super::websocket::push_handshake;
use crate::collect::{Pattern, connect};

/// Results of the resuming subscribers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumingReport {
    /// Resuming subscribers.
    pub subscribers: u32,
    /// Messages that each of them must account for.
    pub published: u64,
    /// Messages that they received.
    pub delivered: u64,
    /// Messages that gap notices named.
    pub reported: u64,
    /// Gap notices.
    pub gaps: u64,
    /// Connections after the first of each subscriber.
    pub resumes: u64,
    /// Connections that the server closed.
    pub closed_by_server: u64,
}

/// A running thread of resuming subscribers.
pub(super) struct Resuming {
    /// Number of published messages, when publishing has ended; until then the maximum.
    published: Arc<AtomicU64>,
    thread: JoinHandle<ResumingOutcome>,
}

/// Report and failures.
#[derive(Default)]
pub(super) struct ResumingOutcome {
    pub(super) report: ResumingReport,
    pub(super) failures: Vec<(DeliveryFailure, u64, String)>,
}

impl Resuming {
    /// Subscribes all, and starts their thread. The first message of the run comes after their first positions.
    pub(super) fn start(plan: &BroadcastPlan, to: SocketAddr) -> Result<Resuming, BroadcastError> {
        let published = Arc::new(AtomicU64::new(u64::MAX));
        let mut group = ResumingGroup::new(plan, to);
        let until = Instant::now() + plan.timeout;
        while !group.subscribers.iter().all(|subscriber| subscriber.position.is_some()) {
            group.tick();
            if let Some((_, _, detail)) = group.outcome.failures.first() {
                return Err(BroadcastError::Server(detail.clone()));
            }
            if Instant::now() >= until {
                return Err(BroadcastError::Server("no position for a resuming subscriber".to_owned()));
            }
            thread::sleep(DISTURBANCE_TICK);
        }
        let of_thread = Arc::clone(&published);
        let thread = thread::spawn(move || group.run(&of_thread));
        Ok(Resuming { published, thread })
    }

    /// Waits until all have accounted for `published` messages; without progress at most for the timeout of the run.
    pub(super) fn end(self, published: u64) -> ResumingOutcome {
        self.published.store(published, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

struct ResumingGroup {
    subject: String,
    to: SocketAddr,
    timeout: Duration,
    pattern: Pattern,
    subscribers: Vec<ResumingSubscriber>,
    buffer: Vec<u8>,
    outcome: ResumingOutcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResumingKind {
    /// Reads at most [`SLOW_BYTES_PER_S`].
    Slow,
    /// Closes its connection again and again.
    Flapping,
}

struct ResumingSubscriber {
    number: u32,
    kind: ResumingKind,
    format: HttpFormat,
    stream: Option<TcpStream>,
    has_head: bool,
    input: Vec<u8>,
    /// Epoch, and the last sequence that is accounted for.
    position: Option<(u64, u64)>,
    /// The sequence before the first message of the run.
    base: u64,
    delivered: u64,
    reported: u64,
    /// Time of the next close or connect.
    flap_at: Instant,
    /// Time from which the next bytes may be read.
    read_at: Instant,
    random: u64,
}

/// Failure of a subscriber, with the number of messages concerned.
type ResumeFailure = (DeliveryFailure, u64, String);

impl ResumingGroup {
    fn new(plan: &BroadcastPlan, to: SocketAddr) -> ResumingGroup {
        let ResumingPlan { slow, flapping, .. } = plan.resuming;
        let kind = |number| if number < slow { ResumingKind::Slow } else { ResumingKind::Flapping };
        ResumingGroup {
            subject: plan.subject.clone(),
            to,
            timeout: plan.timeout,
            pattern: Pattern::new(plan.size),
            subscribers: (0..slow + flapping)
                .map(|number| ResumingSubscriber::new(number, kind(number)))
                .collect(),
            buffer: vec![0; READ_SIZE],
            outcome: ResumingOutcome::default(),
        }
    }

    fn run(mut self, published: &AtomicU64) -> ResumingOutcome {
        let mut progress = (0, Instant::now());
        loop {
            let total = published.load(Ordering::Relaxed);
            let is_ending = total != u64::MAX;
            for subscriber in self.subscribers.iter_mut().filter(|_| is_ending) {
                subscriber.read_at = Instant::now();
            }
            self.tick();
            let accounted: u64 = self.subscribers.iter().map(ResumingSubscriber::accounted).sum();
            if accounted > progress.0 || !is_ending {
                progress = (accounted, Instant::now());
            }
            let is_done = self.subscribers.iter().all(|subscriber| subscriber.accounted() >= total);
            if is_done || progress.1.elapsed() >= self.timeout {
                return self.finish(total);
            }
            thread::sleep(DISTURBANCE_TICK);
        }
    }

    fn tick(&mut self) {
        let ResumingGroup { subject, to, timeout, pattern, subscribers, buffer, outcome } = self;
        for subscriber in subscribers {
            let target = ResumeTarget { subject, to: *to, timeout: *timeout, pattern };
            if let Err((failure, count, detail)) = subscriber.tick(&target, buffer, &mut outcome.report) {
                let detail = format!("resuming subscriber {}: {detail}", subscriber.number);
                outcome.failures.push((failure, count, detail));
            }
        }
    }

    /// Adds up, and counts what is neither delivered nor reported.
    fn finish(mut self, published: u64) -> ResumingOutcome {
        let report = &mut self.outcome.report;
        report.subscribers = self.subscribers.len() as u32;
        report.published = published;
        for subscriber in &self.subscribers {
            report.delivered += subscriber.delivered;
            report.reported += subscriber.reported;
            let accounted = subscriber.delivered + subscriber.reported;
            if accounted != published {
                let detail = format!(
                    "resuming subscriber {}: {} delivered and {} reported of {published}",
                    subscriber.number, subscriber.delivered, subscriber.reported
                );
                let count = published.abs_diff(accounted);
                self.outcome.failures.push((DeliveryFailure::Undelivered, count, detail));
            }
        }
        self.outcome
    }
}

/// What a subscriber connects to, and what it expects.
struct ResumeTarget<'a> {
    subject: &'a str,
    to: SocketAddr,
    timeout: Duration,
    pattern: &'a Pattern,
}

impl ResumingSubscriber {
    fn new(number: u32, kind: ResumingKind) -> ResumingSubscriber {
        let now = Instant::now();
        ResumingSubscriber {
            number,
            kind,
            format: HttpFormat::ALL[number as usize % HttpFormat::ALL.len()],
            stream: None,
            has_head: false,
            input: Vec::new(),
            position: None,
            base: 0,
            delivered: 0,
            reported: 0,
            flap_at: now,
            read_at: now,
            random: u64::from(number) + 1,
        }
    }

    fn accounted(&self) -> u64 {
        self.position.map_or(0, |(_, sequence)| sequence - self.base)
    }

    /// A number from 1 to `max`, by xorshift.
    fn random(&mut self, max: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        1 + self.random % max
    }

    fn tick(
        &mut self,
        target: &ResumeTarget<'_>,
        buffer: &mut [u8],
        report: &mut ResumingReport,
    ) -> Result<(), ResumeFailure> {
        let now = Instant::now();
        if self.stream.is_none() {
            return if now >= self.flap_at { self.connect(target, report) } else { Ok(()) };
        }
        let is_flap = self.kind == ResumingKind::Flapping && self.position.is_some();
        if is_flap && now >= self.flap_at {
            self.close(FLAP_PAUSE_MS_MAX);
            return Ok(());
        }
        if now < self.read_at {
            return Ok(());
        }
        self.read(target, buffer, report)
    }

    /// Closes the connection; the next one opens within `pause_ms_max`.
    fn close(&mut self, pause_ms_max: u64) {
        self.stream = None;
        self.input.clear();
        self.flap_at = Instant::now() + Duration::from_millis(self.random(pause_ms_max));
    }

    fn connect(
        &mut self,
        target: &ResumeTarget<'_>,
        report: &mut ResumingReport,
    ) -> Result<(), ResumeFailure> {
        report.resumes += u64::from(self.position.is_some());
        let from = match self.position {
            None => "new".to_owned(),
            Some((epoch, sequence)) => format!("{epoch}-{sequence}"),
        };
        let path = format!("/subscribe/{}?from={from}&format={}", target.subject, self.format.parameter());
        let mut request = Vec::new();
        if self.format == HttpFormat::Sse {
            request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
                .into_bytes();
        } else {
            push_handshake(&path, &mut request);
        }
        let opened = connect(target.to, target.timeout).and_then(|mut stream| {
            stream.write_all(&request)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let stream = opened.map_err(|error| (DeliveryFailure::Broken, 1, format!("cannot connect: {error}")));
        self.flap_at = Instant::now() + Duration::from_millis(self.random(FLAP_OPEN_MS_MAX));
        self.has_head = false;
        self.stream = Some(stream?);
        Ok(())
    }

    fn read(
        &mut self,
        target: &ResumeTarget<'_>,
        buffer: &mut [u8],
        report: &mut ResumingReport,
    ) -> Result<(), ResumeFailure> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let size = if self.kind == ResumingKind::Slow { SLOW_BYTES_PER_S / 100 } else { buffer.len() };
        match stream.read(&mut buffer[..size]) {
            Err(error) if would_block(&error) => return Ok(()),
            Ok(0) | Err(_) => {
                report.closed_by_server += 1;
                self.close(FLAP_PAUSE_MS_MAX);
                return Ok(());
            }
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                if self.kind == ResumingKind::Slow {
                    let pause = count as f64 / SLOW_BYTES_PER_S as f64;
                    self.read_at = Instant::now() + Duration::from_secs_f64(pause);
                }
            }
        }
        let input = std::mem::take(&mut self.input);
        let size = match self.decode(&input, target, report) {
            Ok(size) => size,
            Err(failure) => {
                self.close(FLAP_PAUSE_MS_MAX);
                return Err(failure);
            }
        };
        if self.stream.is_some() {
            self.input.extend_from_slice(&input[size..]);
        }
        Ok(())
    }

    /// Decodes all complete items; returns their size.
    fn decode(
        &mut self,
        input: &[u8],
        target: &ResumeTarget<'_>,
        report: &mut ResumingReport,
    ) -> Result<usize, ResumeFailure> {
        let protocol = |detail| (DeliveryFailure::Protocol, 1, detail);
        let mut start = 0;
        if !self.has_head {
            let status: &[u8] =
                if self.format == HttpFormat::Sse { b"HTTP/1.1 200 " } else { b"HTTP/1.1 101 " };
            let Some(size) = head_size(input, status).map_err(protocol)? else { return Ok(0) };
            (start, self.has_head) = (size, true);
        }
        while let Some((item, size)) = next_item(self.format, &input[start..]).map_err(protocol)? {
            start += size;
            match item {
                ResumedItem::Message { sequence, payload } => self.receive(sequence, payload, target)?,
                ResumedItem::Gap { first, last } => {
                    report.gaps += 1;
                    self.miss(first, last)?;
                }
                ResumedItem::Position(text) => self.set_position(text)?,
                ResumedItem::Answer(answer) => {
                    if let Some(stream) = &mut self.stream {
                        let _ = stream.write_all(answer);
                    }
                }
                ResumedItem::Nothing => {}
                ResumedItem::Closed => {
                    report.closed_by_server += 1;
                    self.close(FLAP_PAUSE_MS_MAX);
                    return Ok(start);
                }
            }
        }
        if input.len() - start > RESUMED_ITEM_SIZE_MAX {
            return Err(protocol("an item without an end".to_owned()));
        }
        Ok(start)
    }

    fn receive(
        &mut self,
        sequence: u64,
        payload: &[u8],
        target: &ResumeTarget<'_>,
    ) -> Result<(), ResumeFailure> {
        let Some((_, last)) = &mut self.position else {
            return Err((DeliveryFailure::NeverSent, 1, "a message before the first position".to_owned()));
        };
        let expected = *last + 1;
        if sequence < expected {
            return Err((DeliveryFailure::Repeated, 1, format!("sequence {sequence} instead of {expected}")));
        }
        *last = sequence;
        self.delivered += 1;
        let id = target.pattern.check(payload);
        if id.is_none_or(|id| id.counter != sequence - self.base - 1) {
            return Err((DeliveryFailure::WrongPayload, 1, format!("{id:?} at sequence {sequence}")));
        }
        if sequence > expected {
            let detail = format!("sequence {sequence} instead of {expected}, without a notice");
            return Err((DeliveryFailure::Undelivered, sequence - expected, detail));
        }
        Ok(())
    }

    /// Accounts for the sequences of a gap notice.
    fn miss(&mut self, first: u64, last: u64) -> Result<(), ResumeFailure> {
        let Some((_, position)) = &mut self.position else { return Ok(()) };
        let expected = *position + 1;
        if first != expected || last < first {
            let detail = format!("a notice of {first} to {last} instead of from {expected} on");
            return Err((DeliveryFailure::WrongSequence, 1, detail));
        }
        self.reported += last - first + 1;
        *position = last;
        Ok(())
    }

    fn set_position(&mut self, text: &[u8]) -> Result<(), ResumeFailure> {
        let position = parse_position(text);
        match (self.position, position) {
            (_, None) => Err((DeliveryFailure::Protocol, 1, "a position without a sequence".to_owned())),
            (None, Some(position)) => {
                self.base = position.1;
                self.position = Some(position);
                Ok(())
            }
            (Some((epoch, last)), Some((new_epoch, sequence))) => {
                if epoch != new_epoch || sequence != last {
                    let detail = format!("position {new_epoch}-{sequence} instead of {epoch}-{last}");
                    return Err((DeliveryFailure::WrongSequence, 1, detail));
                }
                Ok(())
            }
        }
    }
}
