//! A link with a scripted server and a manual clock.

use std::time::{Duration, Instant};

use stilling_wire::nats::{ClientDecoder, ClientEvent, Headers, MESSAGE_ID, Msg, NatsLimits, encode_headers};

use crate::address::ServerUrl;
use crate::config::PublisherConfig;
use crate::connection_error::ConnectionError;
use crate::link::{LinkCommands, PublisherLink};
use crate::outcome::{PublishFailure, PublisherCounts};
use crate::spool::memory::MemorySpool;
use crate::spool_entry::{OutgoingMessage, SpoolEntry};
use crate::ticket::{OutcomeSender, OutcomeSlot, PublishTicket};

pub(super) fn config() -> PublisherConfig {
    let server: ServerUrl = "nats://127.0.0.1:1".parse().expect("an address");
    PublisherConfig { servers: vec![server], seed: Some(1), ..PublisherConfig::default() }
}

pub(super) fn stored(sequence: u64, duplicate: bool) -> Vec<u8> {
    let mut json = Vec::new();
    stilling_wire::nats::PubAck { stream: "s".into(), sequence, duplicate }.encode(&mut json);
    json
}

#[derive(Clone, Debug)]
pub(super) struct CapturedPublish {
    pub(super) subject: String,
    pub(super) reply: String,
    pub(super) id: String,
    pub(super) payload: Vec<u8>,
}

pub(super) struct LinkFixture {
    pub(super) link: PublisherLink,
    pub(super) now: Instant,
    pub(super) commands: LinkCommands,
    pub(super) is_stuck: bool,
    numbers: u64,
    decoder: ClientDecoder,
    input: Vec<u8>,
    published: Vec<CapturedPublish>,
    pings: u32,
    held: (u64, u64),
    submitted: u64,
    failures: Vec<PublishFailure>,
    counts: PublisherCounts,
}

impl LinkFixture {
    pub(super) fn new(config: PublisherConfig) -> LinkFixture {
        let now = Instant::now();
        let mut fixture = LinkFixture {
            link: PublisherLink::new(config, Box::new(MemorySpool::default()), 1, now),
            now,
            commands: LinkCommands::default(),
            is_stuck: false,
            numbers: 0,
            decoder: ClientDecoder::default(),
            input: Vec::new(),
            published: Vec::new(),
            pings: 0,
            held: (0, 0),
            submitted: 0,
            failures: Vec::new(),
            counts: PublisherCounts::default(),
        };
        fixture.turn();
        fixture
    }

    pub(super) fn submit(&mut self, subject: &str, payload: &[u8]) -> PublishTicket {
        let slot = OutcomeSlot::default();
        self.enqueue(subject, payload, Some(slot.clone()));
        PublishTicket::waiting(slot)
    }

    pub(super) fn submit_without_ticket(&mut self, subject: &str, payload: &[u8]) {
        self.enqueue(subject, payload, None);
    }

    fn enqueue(&mut self, subject: &str, payload: &[u8], ticket: Option<OutcomeSlot>) {
        self.numbers += 1;
        let mut headers = Vec::new();
        if self.link.config.mode != crate::PublishMode::OneWay {
            let id = format!("id-{}", self.numbers);
            encode_headers(&mut headers, None, &[(MESSAGE_ID, &id)]).expect("an id is a header");
        }
        let message = OutgoingMessage::new(subject.as_bytes(), &headers, payload);
        let cost = message.cost();
        let mut entry = SpoolEntry::new(message, cost);
        entry.ticket = ticket.map(OutcomeSender::new);
        entry.since = Some(self.now);
        self.submitted += 1;
        self.held.0 += 1;
        self.held.1 += cost;
        self.link.submit(entry);
        self.turn();
    }

    /// One turn, with all of its output accepted.
    fn turn(&mut self) {
        self.link.check_timeouts(self.now);
        let commands = self.link.turn(self.now, 0);
        self.commands.close |= commands.close;
        if commands.close {
            self.commands.connect = None;
            self.decoder = ClientDecoder::default();
            self.input.clear();
        }
        if commands.connect.is_some() {
            self.commands.connect = commands.connect;
        }
        if !self.is_stuck {
            self.input.extend_from_slice(self.link.output());
            self.link.sent(self.link.output().len());
        }
        self.read();
        let update = self.link.take_update();
        self.counts = update.counts;
        self.held.0 -= update.released.0;
        self.held.1 -= update.released.1;
        self.failures.extend(update.failures);
    }

    fn read(&mut self) {
        let limits = NatsLimits { whole_size_max: u32::MAX, ..NatsLimits::default() };
        let mut at = 0;
        loop {
            let step =
                self.decoder.decode(&limits, &self.input[at..]).expect("the link keeps to the protocol");
            at += step.consumed;
            match step.event {
                ClientEvent::NeedMore => break,
                ClientEvent::Publish(publish) => {
                    let headers = Headers::parse(publish.headers).ok();
                    let id = headers.and_then(|headers| headers.find(MESSAGE_ID)).unwrap_or_default();
                    self.published.push(CapturedPublish {
                        subject: publish.subject.as_str().to_owned(),
                        reply: publish.reply.map_or(String::new(), |reply| reply.as_str().to_owned()),
                        id: String::from_utf8_lossy(id).into_owned(),
                        payload: publish.payload.to_vec(),
                    });
                }
                ClientEvent::Ping => self.pings += 1,
                _ => {}
            }
        }
        self.input.drain(..at);
    }

    /// Advances the clock to the link's deadlines until `look` returns a value.
    pub(super) fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut LinkFixture) -> Option<T>) -> T {
        for _ in 0..1000 {
            self.turn();
            if let Some(found) = look(self) {
                return found;
            }
            self.now = self.now.max(self.link.deadline().expect("it wants to be called"));
        }
        panic!("it never happened: {what}")
    }

    pub(super) fn until_connect(&mut self) -> Instant {
        self.until("it connects", |fixture| fixture.commands.connect.is_some().then_some(fixture.now))
    }

    pub(super) fn until_published(&mut self) -> Vec<CapturedPublish> {
        self.until("it publishes", |fixture| {
            let published = std::mem::take(&mut fixture.published);
            (!published.is_empty()).then_some(published)
        })
    }

    pub(super) fn refuse_connection(&mut self) {
        self.until_connect();
        let server = self.commands.connect.take().expect("it connects").to_string();
        let kind = std::io::ErrorKind::ConnectionRefused;
        self.link.closed(self.now, ConnectionError::Connect { server, kind, detail: "refused".to_owned() });
        self.turn();
    }

    pub(super) fn complete_handshake(&mut self) {
        self.until_connect();
        self.accept_handshake();
    }

    pub(super) fn complete_handshake_with(&mut self, info: &str) {
        self.until_connect();
        self.accept_handshake_with(info);
    }

    pub(super) fn accept_handshake(&mut self) {
        self.accept_handshake_with("{\"headers\":true,\"max_payload\":1048576}");
    }

    fn accept_handshake_with(&mut self, info: &str) {
        self.commands = LinkCommands::default();
        self.pings = 0;
        self.decoder = ClientDecoder::default();
        self.input.clear();
        self.link.connected(self.now);
        self.server_sends(format!("INFO {info}\r\n").as_bytes());
        assert!(std::mem::take(&mut self.pings) == 1, "CONNECT goes with a PING");
        self.server_sends(b"PONG\r\n");
    }

    pub(super) fn server_sends(&mut self, bytes: &[u8]) {
        // In two pieces, as a socket may deliver it.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.link.received(self.now, first);
        self.link.received(self.now, second);
        self.turn();
    }

    pub(super) fn answer(&mut self, published: &CapturedPublish, headers: &str, payload: &[u8]) {
        self.answer_to(&published.reply, headers, payload);
    }

    pub(super) fn answer_to(&mut self, subject: &str, headers: &str, payload: &[u8]) {
        let mut out = Vec::new();
        let subject = if subject.is_empty() { b"nowhere" } else { subject.as_bytes() };
        Msg { subject, sid: b"1", reply: None, headers: headers.as_bytes(), payload }.encode(&mut out);
        self.server_sends(&out);
    }

    pub(super) fn close(&mut self, connection_error: ConnectionError) {
        self.link.closed(self.now, connection_error);
        self.commands.connect = None;
        self.decoder = ClientDecoder::default();
        self.input.clear();
        self.turn();
    }

    /// Advances the clock, with turns at the link's deadlines.
    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        for _ in 0..1000 {
            self.turn();
            match self.link.deadline().filter(|at| *at <= end) {
                Some(at) if at > self.now => self.now = at,
                Some(_) => self.now += Duration::from_micros(1),
                None => break,
            }
            if self.commands.connect.is_some() || self.commands.close {
                break;
            }
        }
        self.now = self.now.max(end);
        self.turn();
    }

    pub(super) fn published(&mut self) -> Vec<CapturedPublish> {
        self.turn();
        std::mem::take(&mut self.published)
    }

    pub(super) fn exponent(&self) -> u32 {
        self.link.backoff.exponent()
    }

    pub(super) fn pings(&mut self) -> u32 {
        std::mem::take(&mut self.pings)
    }

    pub(super) fn failures(&mut self) -> Vec<PublishFailure> {
        std::mem::take(&mut self.failures)
    }

    pub(super) fn counts(&mut self) -> PublisherCounts {
        let update = self.link.take_update();
        self.counts = update.counts;
        self.held.0 -= update.released.0;
        self.held.1 -= update.released.1;
        self.failures.extend(update.failures);
        let (held, held_bytes) = self.held;
        PublisherCounts { submitted: self.submitted, held, held_bytes, ..self.counts }
    }

    #[track_caller]
    pub(super) fn check_nothing_held(&mut self, delivered: u64, dropped: u64) -> PublisherCounts {
        let counts = self.counts();
        assert_eq!(
            (counts.delivered, counts.dropped, counts.held, counts.held_bytes),
            (delivered, dropped, 0, 0)
        );
        assert!(counts.is_balanced(), "{counts:?}");
        counts
    }
}
