//! Exchanges of simulated clients with an endpoint, at times that the test chooses.

mod bridge;
mod observing;
mod plugtests;
mod plugtests_observe;
mod workers;

use std::time::Duration;

use proptest::prelude::*;
use stilling_wire::coap::{BlockSize, BlockValue, Code, MessageWriter, ObserveSequence, OptionNumber, Token};

use super::super::limits::BODY_SIZE_MAX;
use super::super::limits::{UNPROVEN_BUDGET_MAX, UNPROVEN_REPLY_SIZE_MAX};
use super::super::pending::AwaitedAnswer;
use super::*;

/// A message, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Received {
    kind: MessageType,
    code: Code,
    id: MessageId,
    token: Vec<u8>,
    options: Vec<(OptionNumber, Vec<u8>)>,
    payload: Vec<u8>,
}

impl Received {
    fn parse(datagram: &[u8]) -> Received {
        let message = CoapMessage::parse(datagram).expect("a message of the server is valid");
        Received {
            kind: message.kind,
            code: message.code,
            id: message.id,
            token: message.token.as_bytes().to_vec(),
            options: message.options.map(|option| (option.number, option.value.to_vec())).collect(),
            payload: message.payload.to_vec(),
        }
    }

    fn value(&self, number: OptionNumber) -> Option<&[u8]> {
        self.options.iter().find(|(of, _)| *of == number).map(|(_, value)| &value[..])
    }

    /// The sequence of a notification.
    fn observe(&self) -> Option<ObserveSequence> {
        self.value(OptionNumber::OBSERVE)
            .map(|value| ObserveSequence::decode(value).expect("3 bytes at most"))
    }

    fn block(&self, number: OptionNumber) -> Option<BlockValue> {
        self.value(number).map(|value| BlockValue::decode(value).expect("a valid block"))
    }
}

struct Fixture {
    shard: CoapShard,
    counters: Arc<CoapCounters>,
    now: Time,
    next_id: MessageId,
}

fn client(port: u16) -> DatagramPath {
    DatagramPath { socket: 0, peer: ([127, 0, 0, 1], port).into(), local: None }
}

fn stranger(port: u16) -> DatagramPath {
    DatagramPath { socket: 0, peer: ([192, 0, 2, 1], port).into(), local: None }
}

/// A request: the type, the method, the path and further options in order.
fn request(
    kind: MessageType,
    code: Code,
    id: MessageId,
    path: &str,
    others: &[(OptionNumber, Vec<u8>)],
    payload: &[u8],
) -> Vec<u8> {
    let mut options: Vec<(OptionNumber, Vec<u8>)> =
        path.split('/').map(|segment| (OptionNumber::URI_PATH, segment.into())).collect();
    options.extend_from_slice(others);
    options.sort_by_key(|(number, _)| *number);
    let mut buffer = vec![0; 2048];
    let token = Token::new(&id.to_be_bytes()).expect("a short token");
    let mut writer = MessageWriter::new(&mut buffer, kind, code, id, token).expect("there is room");
    for (number, value) in &options {
        writer.option(*number, value).expect("they are in order");
    }
    writer.payload(payload).expect("there is room").to_vec()
}

fn block_option(number: OptionNumber, block: u32, more: bool, size: usize) -> (OptionNumber, Vec<u8>) {
    let value = BlockValue::new(block, more, BlockSize::at_most(size)).expect("a small number");
    (number, value.encode().as_bytes().to_vec())
}

const CON: MessageType = MessageType::Confirmable;
const NON: MessageType = MessageType::NonConfirmable;

impl Fixture {
    fn new() -> Fixture {
        let counters = Arc::<CoapCounters>::default();
        let now = Time::ZERO.after(Duration::from_secs(1000));
        let shard = CoapShard::new(Arc::clone(&counters), HashKey(1, 2), now);
        Fixture { shard, counters, now, next_id: 0 }
    }

    /// Addresses have to prove themselves, without exception.
    fn strict() -> Fixture {
        let Fixture { shard, counters, now, next_id } = Fixture::new();
        let settings = CoapSettings { unproven: UnprovenPeers::All, ..CoapSettings::default() };
        Fixture { shard: shard.with_settings(settings, now), counters, now, next_id }
    }

    fn send(&mut self, path: &DatagramPath, datagram: &[u8]) -> Option<Received> {
        self.send_raw(path, datagram).as_deref().map(Received::parse)
    }

    fn send_raw(&mut self, path: &DatagramPath, datagram: &[u8]) -> Option<Vec<u8>> {
        let endpoint = CoapEndpoint { demo: true };
        self.shard.receive(self.now, path, datagram, false, endpoint).map(<[u8]>::to_vec)
    }

    /// Sends a confirmable request and returns its answer.
    fn ask(
        &mut self,
        path: &DatagramPath,
        code: Code,
        uri: &str,
        options: &[(OptionNumber, Vec<u8>)],
        payload: &[u8],
    ) -> Received {
        self.next_id += 1;
        let id = self.next_id;
        let answer = self.send(path, &request(CON, code, id, uri, options, payload)).expect("it is answered");
        assert_eq!((answer.kind, answer.id), (MessageType::Acknowledgement, id));
        answer
    }

    fn transmit(&mut self) -> Vec<(DatagramPath, Received)> {
        let mut sent = Vec::new();
        while let Some((path, message)) = self.shard.poll_transmit(self.now) {
            sent.push((path, Received::parse(message)));
            self.shard.transmitted();
        }
        sent
    }

    /// Proceeds until something is sent.
    fn advance(&mut self) -> Vec<(DatagramPath, Received)> {
        loop {
            let deadline = self.shard.next_deadline(self.now).expect("something is pending");
            self.now = deadline.max(self.now.after(Duration::from_millis(1)));
            let sent = self.transmit();
            if !sent.is_empty() {
                return sent;
            }
        }
    }

    /// Registers an observer under the token of the message id; its answer.
    fn observe(&mut self, path: &DatagramPath, id: MessageId, uri: &str) -> Received {
        let register = (OptionNumber::OBSERVE, Vec::new());
        self.send(path, &request(CON, Code::GET, id, uri, &[register], b"")).expect("it is answered")
    }

    /// Acknowledges a confirmable message.
    fn acknowledge(&mut self, path: &DatagramPath, id: MessageId) {
        assert_eq!(self.send(path, &encode_empty(MessageType::Acknowledgement, id)), None);
    }

    /// Rejects a message.
    fn reset(&mut self, path: &DatagramPath, id: MessageId) {
        assert_eq!(self.send(path, &encode_empty(MessageType::Reset, id)), None);
    }

    /// Changes a demo resource, as another client.
    fn change(&mut self, uri: &str, body: &[u8]) {
        assert_eq!(self.ask(&client(999), Code::PUT, uri, &[], body).code, Code::CHANGED);
    }

    fn classes(&self) -> [u64; 6] {
        DatagramClass::ALL.map(|class| self.counters.datagrams(class))
    }
}

/// Row 1.14: each datagram counts in exactly one class.
#[test]
fn each_class_has_a_counter() {
    let mut fixture = Fixture::new();
    let me = client(1);
    let get = request(CON, Code::GET, 1, "large", &[], b"");
    assert_eq!(fixture.send(&me, &get).expect("an answer").code, Code::CONTENT);
    assert!(fixture.send(&me, &get).is_some());
    let next =
        request(CON, Code::GET, 2, "large", &[block_option(OptionNumber::BLOCK2, 1, false, 1024)], b"");
    assert_eq!(fixture.send(&me, &next).expect("an answer").payload.len(), 1700 - 1024);
    assert_eq!(fixture.send_raw(&me, b"\x00\x01"), None, "too short");
    assert_eq!(fixture.send_raw(&me, b"\x80\x01\x00\x07"), None, "another version");
    assert_eq!(fixture.send_raw(&me, b"\x4f\x01\x00\x07").as_deref(), Some(&b"\x70\x00\x00\x07"[..]));
    assert_eq!(
        fixture.send_raw(&me, b"\x40\x00\x12\x34").as_deref(),
        Some(&b"\x70\x00\x12\x34"[..]),
        "a ping"
    );
    assert_eq!(fixture.send_raw(&me, b"\x60\x00\x12\x34"), None, "an unexpected acknowledgement");
    assert_eq!(fixture.classes(), [3, 1, 1, 0, 1, 2]);
}

/// Row 1.11: a lost reply is sent again without executing the request again. A different token is a new request.
#[test]
fn a_duplicate_gets_the_same_bytes_and_executes_nothing() {
    let mut fixture = Fixture::new();
    let post = request(CON, Code::POST, 9, "large-create", &[], b"one");
    let first = fixture.send_raw(&client(1), &post).expect("an answer");
    assert_eq!(Received::parse(&first).code, Code::CREATED);
    let other = request(NON, Code::POST, 10, "large-create", &[], b"two");
    assert!(fixture.send(&client(2), &other).is_some());
    fixture.now = fixture.now.after(Duration::from_secs(246));
    assert_eq!(fixture.send_raw(&client(1), &post), Some(first));
    assert_eq!(fixture.ask(&client(3), Code::GET, "large-create", &[], b"").payload, b"two");
    assert_eq!(fixture.counters.datagrams(DatagramClass::Duplicate), 1);
    let mut same_id = post.clone();
    same_id[4] ^= 1;
    assert!(fixture.send(&client(1), &same_id).is_some());
    assert_eq!(fixture.counters.datagrams(DatagramClass::Duplicate), 1, "another token");
}

#[test]
fn a_long_answer_is_read_in_blocks_of_any_size() {
    for size in [16, 64, 512, 1024] {
        let mut fixture = Fixture::new();
        let (mut body, mut number, mut etag) = (Vec::new(), 0, None);
        loop {
            let option = block_option(OptionNumber::BLOCK2, number, false, size);
            let answer = fixture.ask(&client(1), Code::GET, "large", &[option], b"");
            let block = answer.block(OptionNumber::BLOCK2).expect("it is a block");
            assert_eq!((block.number(), block.size.bytes()), (number, size));
            let tag = answer.value(OptionNumber::ETAG).map(<[u8]>::to_vec);
            assert!(tag.is_some() && *etag.get_or_insert_with(|| tag.clone()) == tag);
            body.extend_from_slice(&answer.payload);
            if !block.more {
                break;
            }
            number += 1;
        }
        assert_eq!(body.len(), 1700);
    }
}

#[test]
fn a_long_request_is_received_in_blocks() {
    let mut fixture = Fixture::new();
    let body: Vec<u8> = (0..3000_u32).map(|at| at as u8).collect();
    for (number, piece) in body.chunks(512).enumerate() {
        let more = (number + 1) * 512 < body.len();
        let option = block_option(OptionNumber::BLOCK1, number as u32, more, 512);
        let answer = fixture.ask(&client(1), Code::PUT, "large-update", std::slice::from_ref(&option), piece);
        assert_eq!(answer.code, if more { Code::CONTINUE } else { Code::CHANGED });
        assert_eq!(answer.value(OptionNumber::BLOCK1), Some(&option.1[..]));
    }
    assert_eq!(fixture.ask(&client(1), Code::GET, "large-update", &[], b"").payload, body[..1024]);
    let alone = block_option(OptionNumber::BLOCK1, 3, true, 16);
    let answer = fixture.ask(&client(1), Code::PUT, "large-update", &[alone], &[0; 16]);
    assert_eq!(answer.code, Code::REQUEST_ENTITY_INCOMPLETE);
    let announced =
        [block_option(OptionNumber::BLOCK1, 0, true, 16), (OptionNumber::SIZE1, vec![1, 0, 0, 0])];
    let answer = fixture.ask(&client(1), Code::PUT, "large-update", &announced, &[0; 16]);
    assert_eq!(answer.code, Code::REQUEST_ENTITY_TOO_LARGE);
    assert_eq!(answer.value(OptionNumber::SIZE1), Some(&[1, 0, 0][..]), "64 KiB");
}

/// Row 1.12: clients that read and write long bodies in turn, with losses and duplicates, get their own bytes.
#[test]
fn interleaved_clients_get_their_own_answers() {
    let mut fixture = Fixture::new();
    let body_of = |port: u16| -> Vec<u8> {
        (0..2000 + u32::from(port)).map(|at| b'a' + ((at * u32::from(port)) % 26) as u8).collect()
    };
    let clients: Vec<u16> = (1..=20).collect();
    let mut received = vec![Vec::new(); clients.len()];
    for number in 0..40 {
        for (at, &port) in clients.iter().enumerate() {
            let (path, body) = (client(port), body_of(port));
            let pieces = body.chunks(128).count();
            let answer = if number < pieces {
                let piece = body.chunks(128).nth(number).expect("it is counted");
                let option = block_option(OptionNumber::BLOCK1, number as u32, number + 1 < pieces, 128);
                let last = block_option(OptionNumber::BLOCK2, 0, false, 128);
                fixture.ask(&path, Code::POST, "large-post", &[last, option], piece)
            } else {
                let option = block_option(OptionNumber::BLOCK2, (number - pieces + 1) as u32, false, 128);
                if (number - pieces + 1) * 128 >= body.len() {
                    continue;
                }
                fixture.ask(&path, Code::POST, "large-post", &[option], b"")
            };
            if answer.code == Code::CHANGED {
                received[at].extend_from_slice(&answer.payload);
            }
        }
    }
    for (body, port) in received.iter().zip(clients) {
        assert_eq!(*body, body_of(port).to_ascii_uppercase(), "{port}");
    }
}

/// RFC 7252 §5.2.2: an empty acknowledgement, then a confirmable response until it is acknowledged.
#[test]
fn a_slow_answer_is_separate() {
    let mut fixture = Fixture::new();
    let me = client(1);
    let get = request(CON, Code::GET, 5, "separate", &[], b"");
    assert_eq!(fixture.send(&me, &get), None);
    let sent = fixture.advance();
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].0, sent[0].1.kind, &sent[0].1.payload[..]),
        (me, MessageType::Acknowledgement, &b"separate"[..])
    );
    // One that takes longer is acknowledged first.
    fixture.shard.exchange.pending.insert(
        RequestContext {
            key: ExchangeKey { path: me, id: 6, token: Token::EMPTY },
            kind: CON,
            block1: None,
            block2: None,
            observe: None,
            no_response: Default::default(),
            size: 10,
        },
        AwaitedAnswer::Demo(fixture.now.after(Duration::from_secs(3))),
        None,
        fixture.now,
    );
    let sent = fixture.advance();
    assert_eq!(
        (sent[0].1.kind, sent[0].1.code, sent[0].1.id),
        (MessageType::Acknowledgement, Code::EMPTY, 6)
    );
    let sent = fixture.advance();
    assert_eq!((sent[0].1.kind, sent[0].1.code), (CON, Code::CONTENT));
    // RFC 7252 §4.4: an id that this client has not seen from the server as that of another message.
    let id = sent[0].1.id;
    assert_eq!(id, 6, "that of its request");
    let again = fixture.advance();
    assert_eq!(again, sent, "a retransmission has the same bytes");
    assert_eq!(fixture.send(&me, &encode_empty(MessageType::Acknowledgement, id)), None);
    assert_eq!(fixture.shard.next_deadline(fixture.now), None);
}

#[test]
fn unknown_critical_options_are_refused() {
    let mut fixture = Fixture::new();
    let unknown = [(OptionNumber(9), vec![1])];
    let answer = fixture.ask(&client(1), Code::GET, "test", &unknown, b"");
    assert_eq!((answer.code, &answer.payload[..]), (Code::BAD_OPTION, &b"unknown critical option 9"[..]));
    let non = request(NON, Code::GET, 77, "test", &unknown, b"");
    assert_eq!(fixture.send_raw(&client(1), &non).as_deref(), Some(&b"\x70\x00\x00\x4d"[..]));
    let elective = [(OptionNumber(10), vec![1])];
    assert_eq!(fixture.ask(&client(1), Code::GET, "test", &elective, b"").code, Code::CONTENT);
    let proxy = [(OptionNumber::PROXY_SCHEME, b"coap".to_vec())];
    assert_eq!(fixture.ask(&client(1), Code::GET, "test", &proxy, b"").code, Code::PROXYING_NOT_SUPPORTED);
    assert_eq!(fixture.counters.bad_options.get(), 2);
}

#[test]
fn unwanted_responses_are_not_sent() {
    let mut fixture = Fixture::new();
    let no_success = [(OptionNumber::NO_RESPONSE, vec![2])];
    let non = request(NON, Code::PUT, 1, "test", &no_success, b"x");
    assert_eq!(fixture.send(&client(1), &non), None);
    assert_eq!(fixture.send(&client(1), &non), None, "nor for a duplicate");
    fixture.next_id = 100;
    let answer = fixture.ask(&client(1), Code::GET, "test", &no_success, b"");
    assert_eq!((answer.code, answer.payload.len()), (Code::EMPTY, 0), "an empty acknowledgement");
    let missing = request(NON, Code::GET, 3, "missing", &no_success, b"");
    assert_eq!(fixture.send(&client(1), &missing).expect("an error is wanted").code, Code::NOT_FOUND);
}

/// The limit of amplification: an address that is not proved gets at most three times its bytes until it returns an
/// Echo value.
#[test]
fn an_unproven_address_gets_little_until_it_returns_an_echo() {
    let mut fixture = Fixture::strict();
    let me = stranger(1);
    let get = request(CON, Code::GET, 1, "large", &[], b"");
    let reply = fixture.send_raw(&me, &get).expect("an answer");
    assert!(reply.len() <= 3 * get.len());
    let answer = Received::parse(&reply);
    let echo = match answer.value(OptionNumber::ECHO) {
        Some(echo) => echo.to_vec(),
        None => fixture.shard.exchange.peers.echo(me.peer, fixture.now).to_vec(),
    };
    let proved = request(CON, Code::GET, 2, "large", &[(OptionNumber::ECHO, echo.clone())], b"");
    let answer = fixture.send(&me, &proved).expect("an answer");
    assert_eq!((answer.code, answer.payload.len()), (Code::CONTENT, 1024));
    let other = request(CON, Code::GET, 2, "large", &[(OptionNumber::ECHO, echo)], b"");
    assert!(fixture.send_raw(&stranger(2), &other).is_none_or(|reply| reply.len() <= 3 * other.len()));
}

/// Rows 1.12, 1.24: a request with an effect, so short that its answer may not fit, is not executed before its address is
/// proved: the client repeats it, and it is executed once.
#[test]
fn a_short_request_with_an_effect_is_executed_after_the_proof_only() {
    let mut fixture = Fixture::strict();
    let (me, delete) = (stranger(1), request(CON, Code::DELETE, 1, "test", &[], b""));
    let answer = fixture.send(&me, &delete).expect("a refusal");
    let echo = answer.value(OptionNumber::ECHO).expect("an Echo value").to_vec();
    assert_eq!((answer.code, fixture.counters.echo_required.get()), (Code::UNAUTHORIZED, 1));
    let answer = fixture.send(&me, &delete).expect("the same for a duplicate");
    assert_eq!(answer.code, Code::UNAUTHORIZED);
    fixture.next_id = 10;
    let answer = fixture.ask(&me, Code::DELETE, "test", &[(OptionNumber::ECHO, echo)], b"");
    assert_eq!(answer.code, Code::DELETED);
}

/// Clients without Echo are served within the common budget, also if they repeat a request; beyond it they get Echo, and
/// the budget bounds the bytes of all of them together. It fills again.
#[test]
fn the_budget_of_unproven_addresses_bounds_amplification() {
    let mut fixture = Fixture::new();
    let get = |id| request(NON, Code::GET, id, "large", &[], b"");
    let long = get(0);
    let (mut excess, mut served) = (0, 0);
    for id in 1..1000 {
        for _ in 0..2 {
            let request = get(id);
            let Some(reply) = fixture.send_raw(&stranger(id), &request) else { continue };
            excess += reply.len().saturating_sub(3 * request.len());
            served += u32::from(Received::parse(&reply).code == Code::CONTENT);
        }
    }
    assert!(excess <= UNPROVEN_BUDGET_MAX && served > 50, "{excess} bytes, {served} served");
    let reply = fixture.send_raw(&stranger(1001), &long);
    assert!(reply.is_none_or(|reply| reply.len() <= 3 * long.len()), "the budget is spent");
    let refused = fixture.counters.amplification_limited.get();
    assert!(refused > 0 && fixture.counters.unproven_replies.get() > 0);
    fixture.now = fixture.now.after(Duration::from_secs(1));
    let reply = fixture.send_raw(&stranger(1002), &long).expect("there is a budget again");
    assert_eq!(Received::parse(&reply).code, Code::CONTENT);
    assert!(reply.len() <= UNPROVEN_REPLY_SIZE_MAX);
}

/// A deterministic source of hostile datagrams: random ones, requests with changed bytes, and their prefixes.
struct HostileDatagrams {
    random: stilling_ring::SplitMix64,
    templates: Vec<Vec<u8>>,
}

impl HostileDatagrams {
    fn new(seed: u64) -> HostileDatagrams {
        let block = block_option(OptionNumber::BLOCK2, 0, false, 1024);
        let body = block_option(OptionNumber::BLOCK1, 0, true, 64);
        let templates = vec![
            request(CON, Code::GET, 1, "large", &[], b""),
            request(NON, Code::GET, 2, "large", &[block], b""),
            request(CON, Code::GET, 3, "separate", &[], b""),
            request(NON, Code::GET, 4, ".well-known/core", &[], b""),
            request(CON, Code::PUT, 5, "large-update", &[body], &[b'x'; 64]),
            request(CON, Code::POST, 6, "large-post", &[], b"body"),
            request(CON, Code::GET, 7, "test", &[(OptionNumber(65001), vec![1])], b""),
            encode_empty(MessageType::Confirmable, 8).to_vec(),
        ];
        HostileDatagrams { random: stilling_ring::SplitMix64::new(seed), templates }
    }

    fn next(&mut self) -> Vec<u8> {
        let random = self.random.bits();
        let mut datagram = self.templates[random as usize % self.templates.len()].clone();
        match random >> 8 & 7 {
            0 => (0..random >> 16 & 63).map(|_| self.random.bits() as u8).collect(),
            1 => datagram[..(random >> 16) as usize % (datagram.len() + 1)].to_vec(),
            2 | 3 => {
                // Another message id.
                datagram[2..4].copy_from_slice(&(random >> 16 & 0x3fff).to_be_bytes()[6..]);
                datagram
            }
            _ => {
                let at = (random >> 16) as usize % datagram.len();
                datagram[at] ^= (random >> 40) as u8;
                datagram
            }
        }
    }
}

/// Hostile datagrams: with `--coap-unproven all` no address gets more than three times the bytes that it has
/// sent, replies, separate responses and retransmissions together.
#[test]
fn hostile_datagrams_are_never_answered_with_more_than_three_times_their_bytes() {
    const DATAGRAMS: u32 = 100_000;
    const PEERS: u16 = 64;
    let mut fixture = Fixture::strict();
    let mut hostile = HostileDatagrams::new(1);
    let mut received = vec![0; usize::from(PEERS)];
    let mut sent = vec![0; usize::from(PEERS)];
    for number in 0..DATAGRAMS {
        let datagram = hostile.next();
        let port = (number % u32::from(PEERS)) as u16;
        received[usize::from(port)] += datagram.len();
        if let Some(reply) = fixture.send_raw(&client(port), &datagram) {
            assert!(reply.len() <= 3 * datagram.len(), "{datagram:?} {reply:?}");
            sent[usize::from(port)] += reply.len();
        }
        if number % 100 == 0 {
            fixture.now = fixture.now.after(Duration::from_millis(700));
        }
        while let Some((path, message)) = fixture.shard.poll_transmit(fixture.now) {
            sent[usize::from(path.peer.port())] += message.len();
            fixture.shard.transmitted();
        }
    }
    for (received, sent) in received.iter().zip(&sent) {
        assert!(sent <= &(3 * received) && *sent > 0, "{sent} for {received}");
    }
    let classes = fixture.classes();
    assert_eq!(classes.iter().sum::<u64>(), u64::from(DATAGRAMS));
    assert!(classes[0] > 1000 && classes[4] > 1000, "{classes:?}");
}

/// A hot restart: the successor answers repeated requests that may have changed something with the same bytes and
/// executes none of them again, for the rest of their lifetime; it forgets other sockets and what does not fit.
#[test]
fn a_successor_recognises_unsafe_requests() {
    let mut old = Fixture::new();
    let me = DatagramPath { socket: 3, ..client(1) };
    let post = request(CON, Code::POST, 1, "large-post", &[], b"body");
    let lost = request(NON, Code::PUT, 2, "test", &[], b"");
    let get = request(CON, Code::GET, 3, "test", &[], b"");
    let replies = [&post, &lost, &get].map(|request| old.send_raw(&me, request));
    let elsewhere = DatagramPath { socket: 4, ..me };
    old.send_raw(&elsewhere, &post).expect("a reply");
    old.now = old.now.after(Duration::from_secs(200));
    let id_of = |socket| (socket == 3).then_some(77);
    let handed = old.shard.handed_exchanges(old.now, 10_000, id_of);
    let last = old.shard.handed_exchanges(old.now, handed.len() - 1, id_of);
    assert!(!last.is_empty() && handed.ends_with(&last), "the newest are handed over");

    let mut new = Fixture::new();
    new.now = Time::ZERO.after(Duration::from_secs(300));
    new.shard.restore_exchanges(new.now, &handed, |id| (id == 77).then_some(5));
    let at_successor = DatagramPath { socket: 5, ..me };
    for (request, reply) in [&post, &lost].into_iter().zip(&replies) {
        assert_eq!(new.send_raw(&at_successor, request), *reply);
    }
    assert_eq!(new.classes()[DatagramClass::Duplicate as usize], 2);
    assert!(new.send_raw(&at_successor, &get).is_some());
    assert_eq!(new.classes()[DatagramClass::New as usize], 1, "a safe request is executed again");
    new.now = new.now.after(Duration::from_secs(47));
    assert!(new.send_raw(&at_successor, &post).is_some());
    assert_eq!(new.classes()[DatagramClass::New as usize], 2, "its lifetime is over");
}

#[test]
fn conditions_and_validators_hold() {
    let mut fixture = Fixture::new();
    let me = client(1);
    let answer = fixture.ask(&me, Code::GET, "validate", &[], b"");
    let etag = answer.value(OptionNumber::ETAG).expect("it has one").to_vec();
    let known = [(OptionNumber::ETAG, etag.clone())];
    assert_eq!(fixture.ask(&me, Code::GET, "validate", &known, b"").code, Code::VALID);
    let matches = [(OptionNumber::IF_MATCH, etag)];
    assert_eq!(fixture.ask(&me, Code::PUT, "validate", &matches, b"new").code, Code::CHANGED);
    assert_eq!(fixture.ask(&me, Code::PUT, "validate", &matches, b"newer").code, Code::PRECONDITION_FAILED);
    assert_eq!(fixture.ask(&me, Code::GET, "validate", &known, b"").code, Code::CONTENT);
    let absent = [(OptionNumber::IF_NONE_MATCH, Vec::new())];
    assert_eq!(fixture.ask(&me, Code::PUT, "create1", &absent, b"a").code, Code::CREATED);
    assert_eq!(fixture.ask(&me, Code::PUT, "create1", &absent, b"b").code, Code::PRECONDITION_FAILED);
    assert_eq!(fixture.ask(&me, Code::GET, "test", &matches, b"").code, Code::BAD_OPTION);
}

#[test]
fn a_resource_is_the_same_in_all_shards() {
    let settings = CoapSettings::default();
    let [mut one, mut other] = [(), ()].map(|()| {
        let Fixture { shard, counters, now, next_id } = Fixture::new();
        Fixture { shard: shard.with_settings(settings.clone(), now), counters, now, next_id }
    });
    assert_eq!(one.ask(&client(1), Code::PUT, "create1", &[], b"shared").code, Code::CREATED);
    assert_eq!(other.ask(&client(2), Code::GET, "create1", &[], b"").payload, b"shared");
}

#[test]
fn the_resources_are_listed_and_filtered() {
    let mut fixture = Fixture::new();
    let all = fixture.ask(&client(1), Code::GET, ".well-known/core", &[], b"");
    assert_eq!(all.value(OptionNumber::CONTENT_FORMAT), Some(&[40][..]));
    assert!(all.payload.starts_with(b"</test>;rt=\"test\";ct=0;title=\"Default test resource\",</separate>"));
    let blocks = [(OptionNumber::URI_QUERY, b"rt=block".to_vec())];
    let some = fixture.ask(&client(1), Code::GET, ".well-known/core", &blocks, b"");
    let text = String::from_utf8(some.payload).expect("it is text");
    assert!(text.starts_with("</large>;") && !text.contains("</test>"), "{text}");
}

proptest! {
    /// Invariant 10: no datagram ends the process, and with the limit none is answered with more than three times its
    /// bytes.
    #[test]
    fn any_datagram_is_survived(
        datagrams in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..200)), 1..50),
    ) {
        let mut fixture = Fixture::strict();
        let mut last = request(CON, Code::GET, 1, "large", &[], b"");
        for (is_mutation, bytes) in datagrams {
            let datagram = if is_mutation {
                for (at, byte) in bytes.iter().enumerate().step_by(7) {
                    let index = at % last.len();
                    last[index] ^= byte;
                }
                last.clone()
            } else {
                bytes
            };
            if let Some(reply) = fixture.send_raw(&client(1), &datagram) {
                prop_assert!(reply.len() <= 3 * datagram.len().max(4), "{datagram:?}");
            }
            fixture.transmit();
        }
    }
}
