//! A NATS server with one configurable fault, which always concerns the first subscriber. Subjects that end in `open`,
//! `bid` and `close` are those of one auction. At another address it serves the same messages over SSE and WebSocket.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use stilling_bench::collect::{Pattern, PayloadId};
use stilling_wire::nats::{
    ClientDecoder, ClientEvent, Filter, Info, Msg, NatsLimits, PING, PONG, PubAck, Publish, Subject,
    SubjectLimits, encode_err,
};

/// The fault; numbers count messages from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BroadcastFault {
    Nothing,
    /// Each delivery arrives in two pieces, at a changing position.
    Pieces,
    /// A PING in two pieces before the delivery.
    Ping(u64),
    Dropped(u64),
    /// The message arrives after the next one.
    Swapped(u64),
    Repeated(u64),
    /// One byte of the payload is changed.
    Changed(u64),
    OtherSid(u64),
    /// A correct payload of a later message, in addition.
    Invented(u64),
    Error(u64),
    Closed(u64),
    /// After so many bids, the next one at the current price is accepted, too.
    EqualBid(u64),
}

/// What a subscriber receives for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FakeFormat {
    Nats,
    Sse,
    WebSocketRaw,
    WebSocketJson,
}

struct FakeSubscriber {
    format: FakeFormat,
    filter: Vec<u8>,
    sid: Vec<u8>,
    stream: TcpStream,
    /// A delivery to be sent after the next one.
    delayed: Vec<u8>,
}

#[derive(Default)]
struct FakeState {
    subscribers: Vec<FakeSubscriber>,
    messages: u64,
    price: Option<u64>,
    bids: u64,
    has_equal_bid: bool,
}

pub(crate) struct FakeBroadcastServer {
    pub(crate) address: SocketAddr,
    pub(crate) http: SocketAddr,
}

/// Accepts connections until the process ends, each with a thread.
fn listen(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

impl FakeBroadcastServer {
    /// Starts a server that serves until the process ends.
    pub(crate) fn start(fault: BroadcastFault) -> FakeBroadcastServer {
        let state: Arc<Mutex<FakeState>> = Arc::default();
        let of_http = Arc::clone(&state);
        let http = listen(move |stream| serve_http(stream, &of_http));
        FakeBroadcastServer { address: listen(move |stream| serve(stream, &state, fault)), http }
    }
}

/// Answers `GET /subscribe/SUBJECT?…`, and keeps the connection as a subscriber.
fn serve_http(mut stream: TcpStream, state: &Mutex<FakeState>) {
    let _ = stream.set_nodelay(true);
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            // The generator probes whether the server listens.
            _ => return,
        }
    }
    let head = String::from_utf8(head).expect("a head is text");
    let path = head.strip_prefix("GET /subscribe/").expect("the path of a subscription");
    let (subject, _) = path.split_once('?').expect("a start");
    let format = match (head.contains("Sec-WebSocket-Key: "), head.contains("format=raw")) {
        (false, _) => FakeFormat::Sse,
        (true, true) => FakeFormat::WebSocketRaw,
        (true, false) => FakeFormat::WebSocketJson,
    };
    let mut state = state.lock().expect("no thread panics with it");
    let position = format!("3-{}", state.messages);
    let answer = match format {
        FakeFormat::Sse => format!("HTTP/1.1 200 OK\r\n\r\nretry: 1000\n\nid: {position}\n\n").into_bytes(),
        _ => {
            let mut answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n".to_vec();
            push_frame(0x81, format!("{{\"position\":\"{position}\"}}").as_bytes(), &mut answer);
            answer
        }
    };
    if stream.write_all(&answer).is_ok() {
        let (filter, sid, delayed) = (subject.as_bytes().to_vec(), b"1".to_vec(), Vec::new());
        state.subscribers.push(FakeSubscriber { format, filter, sid, stream, delayed });
    }
}

/// Appends an unmasked frame.
fn push_frame(first: u8, payload: &[u8], out: &mut Vec<u8>) {
    let size = payload.len() as u16;
    out.push(first);
    if size < 126 {
        out.push(size as u8);
    } else {
        out.push(126);
        out.extend_from_slice(&size.to_be_bytes());
    }
    out.extend_from_slice(payload);
}

fn serve(mut stream: TcpStream, state: &Mutex<FakeState>, fault: BroadcastFault) {
    let _ = stream.set_nodelay(true);
    let mut greeting = Vec::new();
    Info { headers: true, max_payload: 1 << 20, ..Info::default() }.encode(&mut greeting);
    if stream.write_all(&greeting).is_err() {
        return;
    }
    let limits = NatsLimits { whole_size_max: u32::MAX, ..NatsLimits::default() };
    let mut decoder = ClientDecoder::default();
    let (mut input, mut piece) = (Vec::new(), vec![0; 65_536]);
    loop {
        let step = decoder.decode(&limits, &input).expect("the generator sends valid input");
        let consumed = step.consumed;
        let is_all = matches!(step.event, ClientEvent::NeedMore);
        match step.event {
            ClientEvent::Publish(message) => {
                state.lock().expect("no thread panics with it").publish(&message, fault, &stream);
            }
            ClientEvent::Subscribe(subscribe) => {
                let subscriber = FakeSubscriber {
                    format: FakeFormat::Nats,
                    filter: subscribe.filter.as_bytes().to_vec(),
                    sid: subscribe.sid.to_vec(),
                    stream: stream.try_clone().expect("it can be duplicated"),
                    delayed: Vec::new(),
                };
                state.lock().expect("no thread panics with it").subscribers.push(subscriber);
            }
            ClientEvent::Ping => {
                let _ = stream.write_all(PONG);
            }
            _ => {}
        }
        input.drain(..consumed);
        if is_all {
            match stream.read(&mut piece) {
                Ok(0) | Err(_) => return,
                Ok(count) => input.extend_from_slice(&piece[..count]),
            }
        }
    }
}

fn msg(subject: &[u8], sid: &[u8], reply: Option<&[u8]>, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Msg { subject, sid, reply, headers: b"", payload }.encode(&mut out);
    out
}

impl FakeState {
    fn publish(&mut self, message: &Publish<'_>, fault: BroadcastFault, from: &TcpStream) {
        let subject = message.subject.as_bytes();
        let mut payload = message.payload.to_vec();
        if subject.ends_with(b".open") {
            self.price = Some(0);
        } else if subject.ends_with(b".bid") {
            let price = field(&payload, "price");
            let current = self.price.expect("the auction is open");
            let is_due = matches!(fault, BroadcastFault::EqualBid(after) if self.bids >= after);
            let is_fault = is_due && !self.has_equal_bid;
            if price < current || (price == current && !is_fault) {
                return;
            }
            self.has_equal_bid |= price == current;
            self.price = Some(price);
            self.bids += 1;
        } else if subject.ends_with(b".close") {
            payload =
                format!("{{\"price\":{},\"bids\":{}}}", self.price.unwrap_or(0), self.bids).into_bytes();
        }
        let reply = message.reply.map(|reply| reply.as_bytes());
        self.deliver(subject, reply, &payload, fault);
        if let Some(reply) = message.reply {
            let mut ack = Vec::new();
            PubAck { stream: "auction".into(), sequence: 1, duplicate: false }.encode(&mut ack);
            self.reply(reply.as_bytes(), &ack, from);
        }
    }

    /// Sends an acknowledgement to the connection of the publisher.
    fn reply(&self, reply: &[u8], ack: &[u8], from: &TcpStream) {
        let peer = from.peer_addr().ok();
        for subscriber in self.subscribers.iter().filter(|one| one.stream.peer_addr().ok() == peer) {
            let _ = (&subscriber.stream).write_all(&msg(reply, &subscriber.sid, None, ack));
        }
    }

    fn deliver(&mut self, subject: &[u8], reply: Option<&[u8]>, payload: &[u8], fault: BroadcastFault) {
        let number = self.messages;
        self.messages += 1;
        let limits = SubjectLimits::default();
        let parsed = Subject::parse(subject, &limits).expect("it was decoded");
        let mut is_first = true;
        for subscriber in &mut self.subscribers {
            let filter = Filter::parse(&subscriber.filter, &limits).expect("it was decoded");
            if filter.matches(parsed) {
                let fault = if is_first { fault } else { BroadcastFault::Nothing };
                is_first = false;
                subscriber.send(number, subject, reply, payload, fault);
            }
        }
    }
}

impl FakeSubscriber {
    fn encode(&self, sequence: u64, subject: &[u8], reply: Option<&[u8]>, payload: &[u8]) -> Vec<u8> {
        let (subject_text, text) = (String::from_utf8_lossy(subject), String::from_utf8_lossy(payload));
        let time = "2026-01-31T12:00:00.000000000Z";
        let object = format!(
            "{{\"seq\":{sequence},\"subject\":\"{subject_text}\",\"time\":\"{time}\",\"text\":\"{text}\"}}"
        );
        let mut out = Vec::new();
        match self.format {
            FakeFormat::Nats => return msg(subject, &self.sid, reply, payload),
            FakeFormat::Sse => out = format!("id: 3-{sequence}\ndata: {object}\n\n").into_bytes(),
            FakeFormat::WebSocketRaw => {
                push_frame(0x82, &[&sequence.to_be_bytes(), payload].concat(), &mut out);
            }
            FakeFormat::WebSocketJson => push_frame(0x81, object.as_bytes(), &mut out),
        }
        out
    }

    fn send(
        &mut self,
        number: u64,
        subject: &[u8],
        reply: Option<&[u8]>,
        payload: &[u8],
        fault: BroadcastFault,
    ) {
        let mut whole = self.encode(number + 1, subject, reply, payload);
        let mut cut = whole.len();
        let is_now = |at: u64| at == number;
        match fault {
            BroadcastFault::Pieces => cut = number as usize % whole.len(),
            BroadcastFault::Ping(at) if is_now(at) => {
                whole = [PING, &whole].concat();
                cut = 3;
            }
            BroadcastFault::Dropped(at) if is_now(at) => whole.clear(),
            BroadcastFault::Swapped(at) if is_now(at) => self.delayed = std::mem::take(&mut whole),
            BroadcastFault::Repeated(at) if is_now(at) => whole = whole.repeat(2),
            BroadcastFault::Changed(at) if is_now(at) => {
                let last = whole.len() - 3;
                whole[last] ^= 1;
            }
            BroadcastFault::OtherSid(at) if is_now(at) => whole = msg(subject, b"77", reply, payload),
            BroadcastFault::Invented(at) if is_now(at) => {
                let mut later = Vec::new();
                let id = PayloadId { client: 0, counter: number + 1000 };
                Pattern::new(payload.len() as u32).write(id, &mut later);
                whole.extend_from_slice(&msg(subject, &self.sid, reply, &later));
            }
            BroadcastFault::Error(at) if is_now(at) => {
                whole.clear();
                encode_err(&mut whole, "Slow Consumer");
            }
            BroadcastFault::Closed(at) if is_now(at) => {
                let _ = self.stream.shutdown(std::net::Shutdown::Both);
                return;
            }
            _ => {}
        }
        if !whole.is_empty() && !self.delayed.is_empty() {
            whole.append(&mut self.delayed);
            cut = whole.len();
        }
        for piece in [&whole[..cut.min(whole.len())], &whole[cut.min(whole.len())..]] {
            let _ = self.stream.write_all(piece);
        }
    }
}

/// A number of a JSON object.
fn field(payload: &[u8], name: &str) -> u64 {
    let object: serde_json::Value = serde_json::from_slice(payload).expect("a bid is JSON");
    object[name].as_u64().expect("it is a number")
}
