//! A NATS server with one stream and one configurable fault. Its records outlive its connections, so it can be killed
//! and restarted.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use stilling_wire::nats::{
    ClientDecoder, ClientEvent, Filter, Info, Msg, NatsLimits, PING, PONG, PubAck, Publish, Subject,
    encode_err,
};

/// The fault; numbers count publications to the stream or deliveries, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectFault {
    Nothing,
    Silence(u64),
    TwiceAcknowledged(u64),
    OtherStream(u64),
    /// The acknowledgement has the sequence of the previous one.
    OldSequence(u64),
    Duplicate(u64),
    Garbage(u64),
    Refusal(u64),
    NoResponders(u64),
    /// An acknowledgement for a message that is not sent yet.
    FutureAcknowledgement(u64),
    /// The connection closes instead of an acknowledgement.
    Close(u64),
    Error(u64),
    AcknowledgedNotStored(u64),
    Undelivered(u64),
    DeliveredTwice(u64),
    Corrupted(u64),
    /// A PING between other messages.
    Ping(u64),
    NoPong,
    /// At the first start after a kill the first record is missing.
    LostAtStart,
    /// At the next start the last two records are swapped.
    SwappedAtStart,
    /// At the next start there is an additional record.
    InventedAtStart,
    /// At the next start the last record exists twice.
    TwiceAtStart,
    /// At the second start after a kill the first record has another content.
    LostLater,
    /// A message that is sent again is stored again; the first one is never acknowledged.
    IdsIgnored,
}

type CollectServerWriter = Arc<Mutex<TcpStream>>;

struct CollectServerState {
    fault: CollectFault,
    is_alive: bool,
    starts: u32,
    records: Vec<(Vec<u8>, Vec<u8>)>,
    /// The sequence by header block, which contains only the message's id.
    ids: std::collections::HashMap<Vec<u8>, u64>,
    /// Publications to the stream, stored or not.
    publications: u64,
    deliveries: u64,
    subscribers: Vec<(Vec<u8>, Vec<u8>, CollectServerWriter)>,
    sockets: Vec<TcpStream>,
}

impl CollectServerState {
    /// The number of the current start; `None` while the server is down.
    fn start_number(&self) -> Option<u32> {
        self.is_alive.then_some(self.starts)
    }
}

/// A running fake, stopped on drop.
pub(crate) struct FakeCollectServer {
    address: SocketAddr,
    state: Arc<Mutex<CollectServerState>>,
    thread: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

fn locked(state: &Mutex<CollectServerState>) -> MutexGuard<'_, CollectServerState> {
    state.lock().expect("nobody panics with it")
}

impl FakeCollectServer {
    pub(crate) fn start(fault: CollectFault) -> FakeCollectServer {
        FakeCollectServer::listening(fault, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"))
    }

    pub(crate) fn listening(fault: CollectFault, listener: TcpListener) -> FakeCollectServer {
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(Mutex::new(CollectServerState {
            fault,
            is_alive: true,
            starts: 0,
            records: Vec::new(),
            ids: std::collections::HashMap::new(),
            publications: 0,
            deliveries: 0,
            subscribers: Vec::new(),
            sockets: Vec::new(),
        }));
        let is_over = Arc::new(AtomicBool::new(false));
        let (shared, stop) = (Arc::clone(&state), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                let state = Arc::clone(&shared);
                let start_number = locked(&state).start_number();
                if let Some(start_number) = start_number {
                    std::thread::spawn(move || serve(stream, &state, start_number));
                }
            }
        });
        FakeCollectServer { address, state, thread: Some(thread), is_over }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn records(&self) -> usize {
        locked(&self.state).records.len()
    }

    /// Simulates a kill: closes every connection, stores and answers nothing more.
    pub(crate) fn die(&self) {
        let mut state = locked(&self.state);
        state.is_alive = false;
        for socket in state.sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        state.subscribers.clear();
    }

    /// Restarts the server with the stored records, after the fault is applied.
    pub(crate) fn live(&self) {
        // Connections from before the restart must still be rejected. This connection queues behind them; its read
        // returns when its turn comes.
        let mut last = TcpStream::connect(self.address).expect("the listener lives on");
        let _ = last.read(&mut [0]);
        let mut state = locked(&self.state);
        state.is_alive = true;
        state.starts += 1;
        let end = state.records.len();
        match state.fault {
            CollectFault::LostAtStart if end > 0 && state.starts == 2 => drop(state.records.remove(0)),
            CollectFault::SwappedAtStart if end > 1 => state.records.swap(end - 1, end - 2),
            CollectFault::InventedAtStart if end > 0 => {
                state.records.push((b"events.0".to_vec(), vec![b'0'; 64]));
            }
            CollectFault::TwiceAtStart if end > 0 => {
                let last = state.records[end - 1].clone();
                state.records.push(last);
            }
            CollectFault::LostLater if end > 1 && state.starts == 3 => {
                state.records[0] = state.records[end - 1].clone();
            }
            _ => {}
        }
    }
}

impl Drop for FakeCollectServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.die();
        // The connection wakes the thread from its accept.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<CollectServerState>, start_number: u32) {
    let _ = stream.set_nodelay(true);
    let (Ok(copy), Ok(writer)) = (stream.try_clone(), stream.try_clone()) else { return };
    let writer: CollectServerWriter = Arc::new(Mutex::new(writer));
    {
        let mut state = locked(state);
        if state.start_number() != Some(start_number) {
            return;
        }
        state.sockets.push(copy);
    }
    let mut out = Vec::new();
    Info { version: "2.10.0".into(), headers: true, max_payload: 1 << 20, ..Info::default() }
        .encode(&mut out);
    let mut conversation = FakeCollectSession { state, start_number, writer, own: Vec::new() };
    let (limits, mut decoder) =
        (NatsLimits { whole_size_max: 1 << 21, ..NatsLimits::default() }, ClientDecoder::default());
    let (mut unread, mut piece) = (Vec::new(), vec![0; 65_536]);
    loop {
        if !conversation.flush(&mut out) {
            break;
        }
        let Ok(count @ 1..) = stream.read(&mut piece) else { break };
        unread.extend_from_slice(&piece[..count]);
        let mut at = 0;
        loop {
            let Ok(step) = decoder.decode(&limits, &unread[at..]) else { return };
            at += step.consumed;
            match step.event {
                ClientEvent::NeedMore => break,
                event => {
                    if !conversation.handle_event(event, &mut out) {
                        conversation.flush(&mut out);
                        let _ = stream.shutdown(Shutdown::Both);
                        return;
                    }
                }
            }
        }
        unread.drain(..at);
    }
    let _ = stream.shutdown(Shutdown::Both);
}

struct FakeCollectSession<'k> {
    state: &'k Mutex<CollectServerState>,
    /// Input read before a restart is discarded.
    start_number: u32,
    writer: CollectServerWriter,
    own: Vec<(Vec<u8>, Vec<u8>)>,
}

fn filter_matches(filter: &[u8], subject: &[u8]) -> bool {
    let limits = NatsLimits::default().subject;
    match (Filter::parse(filter, &limits), Subject::parse(subject, &limits)) {
        (Ok(filter), Ok(subject)) => filter.matches(subject),
        _ => false,
    }
}

impl FakeCollectSession<'_> {
    fn flush(&self, out: &mut Vec<u8>) -> bool {
        let said = self.writer.lock().is_ok_and(|mut writer| writer.write_all(out).is_ok());
        out.clear();
        said
    }

    fn handle_event(&mut self, event: ClientEvent<'_>, out: &mut Vec<u8>) -> bool {
        match event {
            ClientEvent::Ping if locked(self.state).fault == CollectFault::NoPong => {}
            ClientEvent::Ping => out.extend_from_slice(PONG),
            ClientEvent::Subscribe(wanted) => {
                let (filter, sid) = (wanted.filter.as_bytes().to_vec(), wanted.sid.to_vec());
                if filter.starts_with(b"_INBOX") {
                    self.own.push((filter, sid));
                } else {
                    locked(self.state).subscribers.push((filter, sid, Arc::clone(&self.writer)));
                }
            }
            ClientEvent::Publish(message) if message.subject.as_str().starts_with("$JS.API.") => {
                self.answer(&message, out);
            }
            ClientEvent::Publish(message) => return self.publish(&message, out),
            _ => {}
        }
        true
    }

    /// A message to a subscription of this connection.
    fn reply(&self, to: &[u8], headers: &[u8], payload: &[u8], from: Option<&[u8]>, out: &mut Vec<u8>) {
        let sid =
            self.own.iter().rev().find(|(filter, _)| filter_matches(filter, to)).map(|(_, sid)| &sid[..]);
        if let Some(sid) = sid {
            Msg { subject: to, sid, reply: from, headers, payload }.encode(out);
        }
    }

    fn publish(&self, message: &Publish<'_>, out: &mut Vec<u8>) -> bool {
        let mut state = locked(self.state);
        if state.start_number() != Some(self.start_number) {
            return false;
        }
        let number = state.publications;
        state.publications += 1;
        let fault = state.fault;
        let ack = |sequence, stream: &str, duplicate| {
            let mut json = Vec::new();
            PubAck { stream: stream.to_owned().into(), sequence, duplicate }.encode(&mut json);
            json
        };
        if !message.headers.is_empty() && fault != CollectFault::IdsIgnored {
            let next = state.records.len() as u64 + 1;
            let first = *state.ids.entry(message.headers.to_vec()).or_insert(next);
            if first != next {
                if let Some(reply) = message.reply {
                    self.reply(reply.as_bytes(), b"", &ack(first, "events", true), None, out);
                }
                return true;
            }
        }
        if fault != CollectFault::AcknowledgedNotStored(number) {
            state.records.push((message.subject.as_bytes().to_vec(), message.payload.to_vec()));
        }
        self.deliver(&mut state, message);
        let Some(reply) = message.reply else { return true };
        let sequence =
            state.records.len() as u64 + u64::from(fault == CollectFault::AcknowledgedNotStored(number));
        let right = ack(sequence, "events", false);
        let to = reply.as_bytes();
        let mut say = |payload: &[u8]| self.reply(to, b"", payload, None, out);
        match fault {
            CollectFault::Silence(at) if at == number => {}
            CollectFault::IdsIgnored if number == 0 => {}
            CollectFault::TwiceAcknowledged(at) if at == number => {
                say(&right);
                say(&right);
            }
            CollectFault::OtherStream(at) if at == number => say(&ack(sequence, "others", false)),
            CollectFault::OldSequence(at) if at == number => say(&ack(sequence - 1, "events", false)),
            CollectFault::Duplicate(at) if at == number => say(&ack(sequence, "events", true)),
            CollectFault::Garbage(at) if at == number => say(b"{\"stream\":\"events\"}"),
            CollectFault::Refusal(at) if at == number => {
                say(br#"{"error":{"code":503,"err_code":10077,"description":"no room"},"stream":"events","seq":0}"#);
            }
            CollectFault::NoResponders(at) if at == number => {
                self.reply(to, b"NATS/1.0 503\r\n\r\n", b"", None, out);
            }
            CollectFault::FutureAcknowledgement(at) if at == number => {
                say(&right);
                let dot = to.iter().rposition(|&byte| byte == b'.').expect("an inbox has tokens");
                let inbox = [&to[..=dot], b"999999"].concat();
                self.reply(&inbox, b"", &ack(sequence + 1, "events", false), None, out);
            }
            CollectFault::Close(at) if at == number => return false,
            CollectFault::Error(at) if at == number => {
                encode_err(out, "Permissions Violation for Publish");
            }
            CollectFault::Ping(at) if at == number => {
                out.extend_from_slice(PING);
                self.reply(to, b"", &right, None, out);
            }
            _ => say(&right),
        }
        true
    }

    fn deliver(&self, state: &mut CollectServerState, message: &Publish<'_>) {
        let subject = message.subject.as_bytes();
        for at in 0..state.subscribers.len() {
            let number = state.deliveries;
            let (filter, sid, writer) = &state.subscribers[at];
            if !filter_matches(filter, subject) {
                continue;
            }
            let mut payload = message.payload.to_vec();
            let count = match state.fault {
                CollectFault::Undelivered(at) if at == number => 0,
                CollectFault::DeliveredTwice(at) if at == number => 2,
                CollectFault::Corrupted(at) if at == number => {
                    *payload.last_mut().expect("it is not empty") ^= 1;
                    1
                }
                _ => 1,
            };
            let mut out = Vec::new();
            for _ in 0..count {
                Msg { subject, sid, reply: None, headers: b"", payload: &payload }.encode(&mut out);
            }
            let _ = writer.lock().expect("nobody panics with it").write_all(&out);
            state.deliveries += 1;
        }
    }

    /// Handles requests: create a stream, its state, a replay.
    fn answer(&self, message: &Publish<'_>, out: &mut Vec<u8>) {
        let Some(reply) = message.reply else { return };
        let state = locked(self.state);
        let last = state.records.len();
        let body: serde_json::Value = serde_json::from_slice(message.payload).unwrap_or_default();
        let answer = format!(r#"{{"state":{{"messages":{last},"first_seq":1,"last_seq":{last}}}}}"#);
        self.reply(reply.as_bytes(), b"", answer.as_bytes(), None, out);
        let config = &body["config"];
        let (Some(deliver), Some(from)) =
            (config["deliver_subject"].as_str(), config["opt_start_seq"].as_u64())
        else {
            return;
        };
        let records = state.records.iter().enumerate().skip(from as usize - 1);
        for (delivered, (at, (_, payload))) in records.enumerate() {
            let place = format!("$JS.ACK.events.c.1.{}.{}.0.{}", at + 1, delivered + 1, last - at - 1);
            self.reply(deliver.as_bytes(), b"", payload, Some(place.as_bytes()), out);
        }
    }
}
