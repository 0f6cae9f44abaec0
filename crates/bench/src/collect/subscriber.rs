//! A subscribing connection: checks every payload byte by byte, and that each client's messages arrive once and in
//! order.

use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

use stilling_wire::nats::{NatsLimits, PING, PONG, ServerDecoder, ServerEvent, encode_sub};

use super::buffer::{ReceiveBuffer, would_block};
use super::collect_run::CollectRun;
use super::connection::connect;
use super::error::CollectError;
use super::lag_window::LagWindow;
use super::limits::POLL_SPAN;
use super::nats::{self, limits};
use super::tally::{CollectTally, MessageFailure};

const SID: &[u8] = b"1";

pub(super) struct SubscriberConnection {
    number: usize,
    stream: TcpStream,
    input: ReceiveBuffer,
    decoder: ServerDecoder,
    limits: NatsLimits,
    next: Vec<u64>,
    tally: CollectTally,
}

impl SubscriberConnection {
    /// Connects; returns when the server has processed the subscription.
    pub(super) fn open(run: &CollectRun, number: usize) -> Result<SubscriberConnection, CollectError> {
        let plan = &run.plan;
        let failed = |error| CollectError::Connect(plan.to, error);
        let mut stream = connect(plan.to, plan.timeout).map_err(failed)?;
        stream.set_read_timeout(Some(POLL_SPAN)).map_err(failed)?;
        let mut out = Vec::new();
        nats::connect(&mut out);
        encode_sub(&mut out, format!("{}.*", plan.subject).as_bytes(), None, SID);
        out.extend_from_slice(PING);
        stream.write_all(&out).map_err(failed)?;
        let mut subscriber = SubscriberConnection {
            number,
            stream,
            input: ReceiveBuffer::default(),
            decoder: ServerDecoder::default(),
            limits: limits(),
            next: vec![0; plan.clients.into()],
            tally: CollectTally::new(),
        };
        let begun = Instant::now();
        loop {
            match subscriber.read(run) {
                Ok(true) => return Ok(subscriber),
                Ok(false) if begun.elapsed() < plan.timeout => {}
                Ok(false) => return Err(CollectError::server("no answer to a subscription")),
                Err(detail) => return Err(CollectError::Server(detail)),
            }
        }
    }

    /// Reads once and processes all complete items; returns whether a PONG was among them.
    fn read(&mut self, run: &CollectRun) -> Result<bool, String> {
        match self.input.fill(&mut self.stream) {
            Ok(0) => return Err("it closed a subscriber's connection".to_owned()),
            Ok(_) => {}
            Err(error) if would_block(&error) => return Ok(false),
            Err(error) => return Err(format!("a subscriber's connection: {error}")),
        }
        let now = run.now();
        let mut has_pong = false;
        loop {
            let step = self.decoder.decode(&self.limits, self.input.unread());
            let step = step.map_err(|error| error.to_string())?;
            match step.event {
                ServerEvent::NeedMore => {
                    self.input.consume(step.consumed);
                    return Ok(has_pong);
                }
                ServerEvent::Message(message) => {
                    let id = run.pattern.check(message.payload);
                    let known = id.filter(|id| usize::from(id.client) < self.next.len());
                    let Some(id) = known.filter(|_| message.sid == SID && message.headers.is_empty()) else {
                        let head = &message.payload[..message.payload.len().min(32)];
                        let shown = String::from_utf8_lossy(head);
                        let detail = || format!("{} bytes, {shown:?}…", message.payload.len());
                        self.tally.fault(MessageFailure::WrongPayload, 1, detail);
                        self.input.consume(step.consumed);
                        continue;
                    };
                    let (client, counter) = (usize::from(id.client), id.counter);
                    let expected = self.next[client];
                    let detail = || format!("client {client}: message {counter} after {expected} others");
                    if counter < expected {
                        self.tally.fault(MessageFailure::DeliveredTwice, 1, detail);
                    } else if counter >= run.lag_windows[client].sent() {
                        self.tally.fault(MessageFailure::NeverSent, 1, detail);
                    } else {
                        let detail = || format!("client {client}: messages {expected} up to {counter}");
                        if counter > expected {
                            self.tally.fault(MessageFailure::Undelivered, counter - expected, detail);
                        }
                        self.next[client] = counter + 1;
                        let begun = run.lag_windows[client].deliver(self.number, counter);
                        self.tally.delivery_time.saturating_record(now.saturating_sub(begun));
                        self.tally.deliveries += 1;
                        self.tally.last_ns = now;
                    }
                }
                ServerEvent::Ping => {
                    self.stream.write_all(PONG).map_err(|error| error.to_string())?;
                }
                ServerEvent::Pong => has_pong = true,
                ServerEvent::Info(_) | ServerEvent::Ok => {}
                ServerEvent::Err(text) => return Err(String::from_utf8_lossy(text).into_owned()),
                // With these limits messages are never split.
                ServerEvent::MessageStart(_) | ServerEvent::Piece(_) | ServerEvent::MessageEnd => {}
            }
            self.input.consume(step.consumed);
        }
    }

    /// Reads until every publisher has finished and all messages have arrived, or until nothing arrives any more.
    pub(super) fn drive(mut self, run: &CollectRun) -> CollectTally {
        let mut last_delivery = Instant::now();
        let mut deliveries = 0;
        loop {
            if let Err(detail) = self.read(run) {
                self.tally.fault(MessageFailure::Protocol, 1, || detail);
                break;
            }
            if self.tally.deliveries > deliveries {
                (deliveries, last_delivery) = (self.tally.deliveries, Instant::now());
            }
            let all: Option<Vec<u64>> = run.lag_windows.iter().map(LagWindow::total).collect();
            if let Some(all) = all {
                let is_whole = all.iter().zip(&self.next).all(|(all, next)| next >= all);
                if is_whole || last_delivery.elapsed() >= run.plan.timeout {
                    break;
                }
            }
        }
        for (client, (lead, next)) in run.lag_windows.iter().zip(&self.next).enumerate() {
            let missing = lead.sent().saturating_sub(*next);
            let detail = || format!("client {client}: the last {missing} messages");
            self.tally.fault(MessageFailure::Undelivered, missing, detail);
        }
        self.tally
    }
}
