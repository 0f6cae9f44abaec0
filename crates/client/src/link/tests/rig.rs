//! A link with a hand-played server and a clock that stands still until it is moved.

use std::time::{Duration, Instant};

use stilling_wire::nats::{ClientDecoder, ClientEvent, Headers, Limits, MESSAGE_ID, Msg, encode_headers};

use crate::address::Server;
use crate::config::Config;
use crate::entry::{Entry, Message};
use crate::link::{Link, Order};
use crate::outcome::{Counts, Failure};
use crate::spool::memory::Memory;
use crate::ticket::{Slot, Teller, Ticket};
use crate::trouble::Trouble;

/// One server, and no chance.
pub(super) fn config() -> Config {
    let server: Server = "nats://127.0.0.1:1".parse().expect("an address");
    Config { servers: vec![server], seed: Some(1), ..Config::default() }
}

/// A stream's acknowledgement.
pub(super) fn stored(sequence: u64, duplicate: bool) -> Vec<u8> {
    let mut json = Vec::new();
    stilling_wire::nats::PubAck { stream: "s".into(), sequence, duplicate }.encode(&mut json);
    json
}

/// What the link published.
#[derive(Clone, Debug)]
pub(super) struct Published {
    pub(super) subject: String,
    pub(super) reply: String,
    pub(super) id: String,
    pub(super) payload: Vec<u8>,
}

pub(super) struct Rig {
    pub(super) link: Link,
    pub(super) now: Instant,
    pub(super) order: Order,
    /// The socket takes nothing.
    pub(super) is_stuck: bool,
    numbers: u64,
    decoder: ClientDecoder,
    input: Vec<u8>,
    published: Vec<Published>,
    pings: u32,
    held: (u64, u64),
    submitted: u64,
    failures: Vec<Failure>,
    counts: Counts,
}

impl Rig {
    pub(super) fn new(config: Config) -> Rig {
        let now = Instant::now();
        let mut rig = Rig {
            link: Link::new(config, Box::new(Memory::default()), 1, now),
            now,
            order: Order::default(),
            is_stuck: false,
            numbers: 0,
            decoder: ClientDecoder::default(),
            input: Vec::new(),
            published: Vec::new(),
            pings: 0,
            held: (0, 0),
            submitted: 0,
            failures: Vec::new(),
            counts: Counts::default(),
        };
        rig.turn();
        rig
    }

    pub(super) fn submit(&mut self, subject: &str, payload: &[u8]) -> Ticket {
        let slot = Slot::default();
        self.give(subject, payload, Some(slot.clone()));
        Ticket::waiting(slot)
    }

    pub(super) fn submit_silently(&mut self, subject: &str, payload: &[u8]) {
        self.give(subject, payload, None);
    }

    fn give(&mut self, subject: &str, payload: &[u8], ticket: Option<Slot>) {
        self.numbers += 1;
        let mut headers = Vec::new();
        if self.link.config.mode != crate::Mode::OneWay {
            let id = format!("id-{}", self.numbers);
            encode_headers(&mut headers, None, &[(MESSAGE_ID, &id)]).expect("an id is a header");
        }
        let message = Message::new(subject.as_bytes(), &headers, payload);
        let cost = message.cost();
        let mut entry = Entry::new(message, cost);
        entry.ticket = ticket.map(Teller::new);
        entry.since = Some(self.now);
        self.submitted += 1;
        self.held.0 += 1;
        self.held.1 += cost;
        self.link.submit(entry);
        self.turn();
    }

    /// One turn, and all of its output taken.
    fn turn(&mut self) {
        self.link.judge(self.now);
        let order = self.link.turn(self.now, 0);
        self.order.close |= order.close;
        if order.close {
            self.order.connect = None;
            self.decoder = ClientDecoder::default();
            self.input.clear();
        }
        if order.connect.is_some() {
            self.order.connect = order.connect;
        }
        if !self.is_stuck {
            self.input.extend_from_slice(self.link.output());
            self.link.sent(self.link.output().len());
        }
        self.read();
        let news = self.link.news();
        self.counts = news.counts;
        self.held.0 -= news.released.0;
        self.held.1 -= news.released.1;
        self.failures.extend(news.failures);
    }

    fn read(&mut self) {
        let limits = Limits { whole_size_max: u32::MAX, ..Limits::default() };
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
                    self.published.push(Published {
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

    /// Moves time to when the link wants to be called, until something has happened.
    pub(super) fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Rig) -> Option<T>) -> T {
        for _ in 0..1000 {
            self.turn();
            if let Some(found) = look(self) {
                return found;
            }
            self.now = self.now.max(self.link.deadline().expect("it wants to be called"));
        }
        panic!("it never happened: {what}")
    }

    /// When the link next wants to connect.
    pub(super) fn until_connect(&mut self) -> Instant {
        self.until("it connects", |rig| rig.order.connect.is_some().then_some(rig.now))
    }

    pub(super) fn until_published(&mut self) -> Vec<Published> {
        self.until("it publishes", |rig| {
            let published = std::mem::take(&mut rig.published);
            (!published.is_empty()).then_some(published)
        })
    }

    pub(super) fn refuse_connection(&mut self) {
        self.until_connect();
        let server = self.order.connect.take().expect("it connects").to_string();
        let kind = std::io::ErrorKind::ConnectionRefused;
        self.link.closed(self.now, Trouble::Connect { server, kind, said: "refused".to_owned() });
        self.turn();
    }

    /// Lets it in.
    pub(super) fn greet(&mut self) {
        self.until_connect();
        self.welcome();
    }

    pub(super) fn greet_with(&mut self, info: &str) {
        self.until_connect();
        self.welcome_with(info);
    }

    /// Lets in the one that connects now.
    pub(super) fn welcome(&mut self) {
        self.welcome_with("{\"headers\":true,\"max_payload\":1048576}");
    }

    fn welcome_with(&mut self, info: &str) {
        self.order = Order::default();
        self.pings = 0;
        self.decoder = ClientDecoder::default();
        self.input.clear();
        self.link.connected(self.now);
        self.say(format!("INFO {info}\r\n").as_bytes());
        assert!(std::mem::take(&mut self.pings) == 1, "CONNECT goes with a PING");
        self.say(b"PONG\r\n");
    }

    pub(super) fn say(&mut self, bytes: &[u8]) {
        // In two pieces, as it may come.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.link.received(self.now, first);
        self.link.received(self.now, second);
        self.turn();
    }

    pub(super) fn answer(&mut self, published: &Published, headers: &str, payload: &[u8]) {
        self.answer_to(&published.reply, headers, payload);
    }

    pub(super) fn answer_to(&mut self, subject: &str, headers: &str, payload: &[u8]) {
        let mut out = Vec::new();
        let subject = if subject.is_empty() { b"nowhere" } else { subject.as_bytes() };
        Msg { subject, sid: b"1", reply: None, headers: headers.as_bytes(), payload }.encode(&mut out);
        self.say(&out);
    }

    pub(super) fn close(&mut self, trouble: Trouble) {
        self.link.closed(self.now, trouble);
        self.order.connect = None;
        self.decoder = ClientDecoder::default();
        self.input.clear();
        self.turn();
    }

    /// Lets time pass, with turns where the link wants them.
    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        for _ in 0..1000 {
            self.turn();
            match self.link.deadline().filter(|at| *at <= end) {
                Some(at) if at > self.now => self.now = at,
                Some(_) => self.now += Duration::from_micros(1),
                None => break,
            }
            if self.order.connect.is_some() || self.order.close {
                break;
            }
        }
        self.now = self.now.max(end);
        self.turn();
    }

    pub(super) fn published(&mut self) -> Vec<Published> {
        self.turn();
        std::mem::take(&mut self.published)
    }

    /// How far it is from its best pace.
    pub(super) fn rung(&self) -> u32 {
        self.link.ladder.rung()
    }

    pub(super) fn pings(&mut self) -> u32 {
        std::mem::take(&mut self.pings)
    }

    pub(super) fn failures(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failures)
    }

    pub(super) fn counts(&mut self) -> Counts {
        let news = self.link.news();
        self.counts = news.counts;
        self.held.0 -= news.released.0;
        self.held.1 -= news.released.1;
        self.failures.extend(news.failures);
        let (held, held_bytes) = self.held;
        Counts { submitted: self.submitted, held, held_bytes, ..self.counts }
    }

    /// Nothing is held, and so much was delivered and dropped.
    #[track_caller]
    pub(super) fn check_settled(&mut self, delivered: u64, dropped: u64) -> Counts {
        let counts = self.counts();
        assert_eq!(
            (counts.delivered, counts.dropped, counts.held, counts.held_bytes),
            (delivered, dropped, 0, 0)
        );
        assert!(counts.is_balanced(), "{counts:?}");
        counts
    }
}
