//! Two NATS servers for tests: one scripted step by step, and an independent, well-behaved one with one stream in
//! memory. They share no code with the clients they test, and panic at anything a well-behaved client would not send.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;

use crate::HANG_TIMEOUT;

/// The servers' default `INFO`.
pub const INFO: &str = r#"{"server_id":"fake","version":"2.10.0","proto":1,"headers":true,"max_payload":1048576,"jetstream":true}"#;

/// An operation received from a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReceivedOperation {
    /// The client's options.
    Connect(String),
    /// A publication.
    Pub(ReceivedPub),
    /// A subscription.
    Sub {
        /// The filter.
        filter: String,
        /// The subscription id.
        sid: String,
    },
    /// The end of a subscription.
    Unsub {
        /// The subscription id.
        sid: String,
    },
    /// A `PING`.
    Ping,
    /// A `PONG`.
    Pong,
    /// The end of the connection.
    Closed,
}

/// A message that a client published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedPub {
    /// The destination.
    pub subject: String,
    /// The reply subject; empty if absent.
    pub reply: String,
    /// The header block.
    pub headers: String,
    /// The payload.
    pub payload: Vec<u8>,
}

impl ReceivedPub {
    /// Returns the value of a header; empty if absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        let mut lines = self.headers.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    /// Returns the message id for de-duplication.
    #[must_use]
    pub fn id(&self) -> &str {
        self.header("Nats-Msg-Id")
    }
}

/// The server's end of one connection, controlled by the test.
#[derive(Debug)]
pub struct ScriptedServer {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl ScriptedServer {
    /// Accepts the next connection.
    #[track_caller]
    pub fn accept(listener: &TcpListener) -> ScriptedServer {
        let (stream, _) = listener.accept().expect("a client connects");
        ScriptedServer::from_stream(stream)
    }

    fn from_stream(stream: TcpStream) -> ScriptedServer {
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        stream.set_write_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        stream.set_nodelay(true).expect("a socket takes options");
        ScriptedServer { stream, buffer: Vec::new() }
    }

    /// Completes the handshake. Returns the client's options.
    #[track_caller]
    pub fn complete_handshake(&mut self) -> String {
        self.send_bytes(format!("INFO {INFO}\r\n"));
        let ReceivedOperation::Connect(options) = self.next_operation() else {
            panic!("CONNECT comes first")
        };
        assert_eq!(self.next_operation(), ReceivedOperation::Ping);
        self.send_bytes("PONG\r\n");
        options
    }

    /// Sends bytes; ignores a closed connection.
    pub fn send_bytes(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Returns the next message published; answers other operations.
    #[track_caller]
    pub fn published(&mut self) -> ReceivedPub {
        loop {
            match self.next_operation() {
                ReceivedOperation::Pub(message) => return message,
                ReceivedOperation::Ping => self.send_bytes("PONG\r\n"),
                ReceivedOperation::Sub { .. } | ReceivedOperation::Unsub { .. } | ReceivedOperation::Pong => {
                }
                other => panic!("{other:?} instead of a message"),
            }
        }
    }

    /// Acknowledges a message.
    pub fn acknowledge(&mut self, message: &ReceivedPub, sequence: u64, is_duplicate: bool) {
        self.answer(message, "", &acknowledgement(sequence, is_duplicate));
    }

    /// Replies to a message.
    pub fn answer(&mut self, message: &ReceivedPub, headers: &str, payload: &str) {
        self.deliver(&message.reply, "1", "", headers, payload.as_bytes());
    }

    /// Delivers a message.
    pub fn deliver(&mut self, subject: &str, sid: &str, reply: &str, headers: &str, payload: &[u8]) {
        self.send_bytes(delivery(subject, sid, reply, headers, payload));
    }

    /// Returns the client's next operation.
    #[track_caller]
    pub fn next_operation(&mut self) -> ReceivedOperation {
        self.try_next_operation().expect("the client sends an operation or closes")
    }

    fn try_next_operation(&mut self) -> Option<ReceivedOperation> {
        let line = match self.line() {
            Ok(Some(line)) => line,
            Ok(None) => return Some(ReceivedOperation::Closed),
            Err(()) => return None,
        };
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        Some(match word {
            "CONNECT" => ReceivedOperation::Connect(rest.to_owned()),
            "PING" => ReceivedOperation::Ping,
            "PONG" => ReceivedOperation::Pong,
            "SUB" => {
                let sid = words.last().copied().unwrap_or_default().to_owned();
                ReceivedOperation::Sub { filter: words[0].to_owned(), sid }
            }
            "UNSUB" => ReceivedOperation::Unsub { sid: words[0].to_owned() },
            "PUB" | "HPUB" => {
                let sizes = if word == "PUB" { 1 } else { 2 };
                let (names, sizes) = words.split_at(words.len() - sizes);
                let sizes: Vec<usize> = sizes.iter().map(|size| size.parse().expect("a size")).collect();
                let total = *sizes.last().expect("at least one");
                let headers = if sizes.len() == 2 { sizes[0] } else { 0 };
                let Some(bytes) = self.read_exactly(total + 2) else {
                    return Some(ReceivedOperation::Closed);
                };
                assert_eq!(&bytes[total..], b"\r\n", "a message ends after its announced size");
                ReceivedOperation::Pub(ReceivedPub {
                    subject: names[0].to_owned(),
                    reply: names.get(1).copied().unwrap_or_default().to_owned(),
                    headers: String::from_utf8(bytes[..headers].to_vec()).expect("headers are text"),
                    payload: bytes[headers..total].to_vec(),
                })
            }
            other => panic!("unexpected client operation {other:?}"),
        })
    }

    /// Resets the connection.
    pub fn reset(self) {
        SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .expect("a socket can linger for nothing");
    }

    /// Reads `count` bytes and resets the connection.
    #[track_caller]
    pub fn reset_after(mut self, count: usize) {
        assert!(self.read_exactly(count).is_some(), "the client sends {count} bytes");
        self.reset();
    }

    fn line(&mut self) -> Result<Option<String>, ()> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return Ok(Some(String::from_utf8(line[..at].to_vec()).expect("lines are text")));
            }
            if !self.receive()? {
                return Ok(None);
            }
        }
    }

    fn read_exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            if !self.receive().ok()? {
                return None;
            }
        }
        Some(self.buffer.drain(..count).collect())
    }

    /// Receives more input. False: the client has closed. An error: a timeout.
    fn receive(&mut self) -> Result<bool, ()> {
        let mut bytes = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(count) => {
                    self.buffer.extend_from_slice(&bytes[..count]);
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(());
                }
                Err(_) => return Ok(false),
            }
        }
    }
}

/// Returns a stream's acknowledgement.
#[must_use]
pub fn acknowledgement(sequence: u64, is_duplicate: bool) -> String {
    let duplicate = if is_duplicate { r#","duplicate":true"# } else { "" };
    format!(r#"{{"stream":"events","seq":{sequence}{duplicate}}}"#)
}

/// Returns an encoded delivery.
#[must_use]
pub fn delivery(subject: &str, sid: &str, reply: &str, headers: &str, payload: &[u8]) -> Vec<u8> {
    let reply = if reply.is_empty() { String::new() } else { format!(" {reply}") };
    let total = headers.len() + payload.len();
    let line = if headers.is_empty() {
        format!("MSG {subject} {sid}{reply} {total}\r\n")
    } else {
        format!("HMSG {subject} {sid}{reply} {} {total}\r\n", headers.len())
    };
    [line.as_bytes(), headers.as_bytes(), payload, b"\r\n"].concat()
}

/// A record of the fake stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredMessage {
    /// Its subject.
    pub subject: String,
    /// Its `Nats-Msg-Id`.
    pub id: String,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A fault of the fake server, for one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
    /// Stores the message, does not acknowledge it and resets the connection.
    LoseAcknowledgement,
    /// Rejects the message with a retry delay of 0.1 s.
    RetryLater,
    /// Resets the connection before storing the message.
    Reset,
}

#[derive(Default)]
struct FakeServerState {
    records: Vec<StoredMessage>,
    ids: HashMap<String, u64>,
    faults: Vec<InjectedFault>,
    /// Subscriptions of all connections: connection, sid, filter, and a handle to write with.
    subscriptions: Vec<(u64, String, String, TcpStream)>,
    /// Number of deliveries of each consumer, by its delivery subject.
    consumers: BTreeMap<String, u64>,
    connections: Vec<(u64, TcpStream)>,
    connected: u64,
    stopped: bool,
}

/// An independent server in memory: it has the stream `events` with the subjects `events.>`, de-duplicates messages,
/// supports consumers of the stream, answers requests to `echo` and routes other messages.
pub struct FakeNatsServer {
    /// The listening address.
    pub address: SocketAddr,
    state: Arc<Mutex<FakeServerState>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeNatsServer {
    /// Starts a server.
    #[must_use]
    pub fn start() -> FakeNatsServer {
        FakeNatsServer::at(TcpListener::bind("127.0.0.1:0").expect("a port is free"), Vec::new())
    }

    /// Starts a server on `listener` with the given records.
    #[must_use]
    pub fn at(listener: TcpListener, records: Vec<StoredMessage>) -> FakeNatsServer {
        let address = listener.local_addr().expect("a listener has an address");
        let ids = records.iter().zip(1..).map(|(record, sequence)| (record.id.clone(), sequence)).collect();
        let state = Arc::new(Mutex::new(FakeServerState { records, ids, ..FakeServerState::default() }));
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || serve(&listener, &shared));
        FakeNatsServer { address, state, thread: Some(thread) }
    }

    /// Returns the URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Returns the stream's records.
    #[must_use]
    pub fn records(&self) -> Vec<StoredMessage> {
        lock(&self.state).records.clone()
    }

    /// Returns the number of connections so far.
    #[must_use]
    pub fn connected(&self) -> u64 {
        lock(&self.state).connected
    }

    /// Injects faults, one per incoming message, the last one first.
    pub fn fail(&self, faults: impl IntoIterator<Item = InjectedFault>) {
        lock(&self.state).faults = faults.into_iter().collect();
    }

    /// Closes all connections.
    pub fn disconnect_all(&self) {
        let mut state = lock(&self.state);
        state.subscriptions.clear();
        for (_, stream) in state.connections.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Stops the server, closes all connections and returns the stream's records.
    pub fn stop(mut self) -> Vec<StoredMessage> {
        self.end();
        self.records()
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        lock(&self.state).stopped = true;
        self.disconnect_all();
        // The thread is in accept: a connection wakes it.
        let _ = TcpStream::connect(self.address);
        thread.join().expect("the fake server does not panic");
    }
}

impl Drop for FakeNatsServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

fn lock(state: &Mutex<FakeServerState>) -> MutexGuard<'_, FakeServerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(listener: &TcpListener, state: &Arc<Mutex<FakeServerState>>) {
    let mut threads = Vec::new();
    loop {
        let (stream, _) = listener.accept().expect("a client connects");
        let mut now = lock(state);
        if now.stopped {
            drop(now);
            break;
        }
        now.connected += 1;
        let number = now.connected;
        now.connections.push((number, stream.try_clone().expect("a descriptor")));
        drop(now);
        let state = Arc::clone(state);
        threads.push(std::thread::spawn(move || {
            serve_connection(number, ScriptedServer::from_stream(stream), &state);
        }));
    }
    for thread in threads {
        thread.join().expect("the fake server does not panic");
    }
}

fn serve_connection(number: u64, mut scripted: ScriptedServer, state: &Mutex<FakeServerState>) {
    scripted.send_bytes(format!("INFO {INFO}\r\n"));
    loop {
        match scripted.try_next_operation() {
            None | Some(ReceivedOperation::Closed) => break,
            Some(ReceivedOperation::Ping) => {
                // The lock keeps it out of the middle of a delivery.
                let _guard = lock(state);
                scripted.send_bytes("PONG\r\n");
            }
            Some(ReceivedOperation::Connect(_) | ReceivedOperation::Pong) => {}
            Some(ReceivedOperation::Sub { filter, sid }) => {
                let writer = scripted.stream.try_clone().expect("a descriptor");
                lock(state).subscriptions.push((number, sid, filter, writer));
            }
            Some(ReceivedOperation::Unsub { sid }) => {
                lock(state).subscriptions.retain(|(other, its, ..)| (*other, its) != (number, &sid));
            }
            Some(ReceivedOperation::Pub(message)) => {
                if handle_publish(message, &mut lock(state)) == ConnectionAction::Reset {
                    lock(state).subscriptions.retain(|(other, ..)| *other != number);
                    lock(state).connections.retain(|(other, _)| *other != number);
                    return scripted.reset();
                }
            }
        }
    }
    let mut state = lock(state);
    state.subscriptions.retain(|(other, ..)| *other != number);
    state.connections.retain(|(other, _)| *other != number);
}

#[derive(PartialEq, Eq)]
enum ConnectionAction {
    Continue,
    Reset,
}

fn handle_publish(message: ReceivedPub, state: &mut FakeServerState) -> ConnectionAction {
    if message.subject.starts_with("events.") {
        let fault = state.faults.pop();
        match fault {
            Some(InjectedFault::RetryLater) => {
                let headers = "NATS/1.0 429\r\nRetry-After: 0.1\r\n\r\n";
                state.send(&message.reply, "", headers, b"");
                return ConnectionAction::Continue;
            }
            Some(InjectedFault::Reset) => return ConnectionAction::Reset,
            Some(InjectedFault::LoseAcknowledgement) | None => {}
        }
        let before = state.ids.get(message.id()).copied().filter(|_| !message.id().is_empty());
        let sequence = before.unwrap_or_else(|| state.store(&message));
        if fault == Some(InjectedFault::LoseAcknowledgement) {
            return ConnectionAction::Reset;
        }
        state.send(&message.reply, "", "", acknowledgement(sequence, before.is_some()).as_bytes());
    } else if let Some(stream) = message.subject.strip_prefix("$JS.API.STREAM.INFO.") {
        state.send_stream_info(stream, &message);
    } else if let Some(stream) = message.subject.strip_prefix("$JS.API.CONSUMER.CREATE.") {
        state.create_consumer(stream, &message);
    } else if message.subject == "echo" {
        state.send(&message.reply, "", "", &message.payload);
    } else if !state.send(&message.subject, &message.reply, &message.headers, &message.payload) {
        state.send(&message.reply, "", "NATS/1.0 503\r\n\r\n", b"");
    }
    ConnectionAction::Continue
}

impl FakeServerState {
    fn store(&mut self, message: &ReceivedPub) -> u64 {
        let ReceivedPub { subject, payload, .. } = message.clone();
        self.records.push(StoredMessage { subject: subject.clone(), id: message.id().to_owned(), payload });
        let sequence = self.records.len() as u64;
        self.ids.insert(message.id().to_owned(), sequence);
        self.send(&subject, "", &message.headers, &message.payload);
        for deliver in self.consumers.keys().cloned().collect::<Vec<_>>() {
            self.push(&deliver, sequence);
        }
        sequence
    }

    /// Delivers to all matching subscriptions; false if there is none.
    fn send(&mut self, subject: &str, reply: &str, headers: &str, payload: &[u8]) -> bool {
        let mut is_wanted = false;
        for (_, sid, filter, stream) in &mut self.subscriptions {
            if filter_matches(filter, subject) {
                is_wanted = true;
                let _ = stream.write_all(&delivery(subject, sid, reply, headers, payload));
            }
        }
        is_wanted
    }

    /// Rejects a request for an unknown stream.
    fn is_known(&mut self, stream: &str, message: &ReceivedPub) -> bool {
        let is_known = stream == "events";
        if !is_known {
            let refusal = r#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#;
            self.send(&message.reply, "", "", refusal.as_bytes());
        }
        is_known
    }

    fn send_stream_info(&mut self, stream: &str, message: &ReceivedPub) {
        if self.is_known(stream, message) {
            let last = self.records.len();
            let state = format!(r#"{{"state":{{"first_seq":1,"last_seq":{last}}}}}"#);
            self.send(&message.reply, "", "", state.as_bytes());
        }
    }

    fn create_consumer(&mut self, stream: &str, message: &ReceivedPub) {
        if !self.is_known(stream, message) {
            return;
        }
        let request: serde_json::Value = serde_json::from_slice(&message.payload).expect("it is JSON");
        let config = &request["config"];
        let deliver = config["deliver_subject"].as_str().expect("it delivers somewhere").to_owned();
        let last = self.records.len() as u64;
        let first = match config["deliver_policy"].as_str() {
            Some("all" | "by_start_time") => 1,
            Some("new") => last + 1,
            Some("by_start_sequence") => config["opt_start_seq"].as_u64().expect("a sequence"),
            other => panic!("no policy is {other:?}"),
        };
        let delivered = first - 1;
        let granted = format!(
            r#"{{"name":"c","stream_name":"events","delivered":{{"consumer_seq":0,"stream_seq":{delivered}}}}}"#
        );
        self.send(&message.reply, "", "", granted.as_bytes());
        self.consumers.insert(deliver.clone(), 0);
        for sequence in first..=last {
            self.push(&deliver, sequence);
        }
    }

    fn push(&mut self, deliver: &str, sequence: u64) {
        let record = self.records[sequence as usize - 1].clone();
        let count = self.consumers.get_mut(deliver).expect("it is there");
        *count += 1;
        let reply = format!("$JS.ACK.events.c.1.{sequence}.{count}.1700000000000000000.0");
        let mut is_wanted = false;
        for (_, sid, filter, stream) in &mut self.subscriptions {
            if filter_matches(filter, deliver) {
                is_wanted = true;
                // Delivers under the record's subject, not the subscription's.
                let _ = stream.write_all(&delivery(&record.subject, sid, &reply, "", &record.payload));
            }
        }
        if !is_wanted {
            self.consumers.remove(deliver);
        }
    }
}

fn filter_matches(filter: &str, subject: &str) -> bool {
    let (mut filter, mut subject) = (filter.split('.'), subject.split('.'));
    loop {
        match (filter.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}
