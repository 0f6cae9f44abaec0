//! A blocking client for stream requests: create a stream, read its state, replay its messages.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use stilling_wire::nats::{
    AckSubject, GAP_CAUSE, GAP_FIRST, GAP_LAST, Headers, NatsLimits, PONG, Pub, ServerDecoder, ServerEvent,
    encode_sub, encode_unsub,
};

use super::buffer::{ReceiveBuffer, would_block};
use super::connection::connect;
use super::error::CollectError;
use super::limits::POLL_SPAN;
use super::nats::{connect as encode_connect, limits};
use super::plan::CollectStorage;

/// Subscription id of the replies and of a replay.
const REPLY_SID: &[u8] = b"1";
const REPLAY_SID: &[u8] = b"2";

/// Heartbeat interval of a replay in nanoseconds.
const HEARTBEAT_NS: u64 = 500_000_000;

/// Heartbeats in a row that end a replay before its last sequence: that sequence belonged to a write torn by a crash.
const HEARTBEATS_AT_END: u32 = 4;

/// State of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct ReportedStreamState {
    /// Messages stored now.
    pub messages: u64,
    /// Sequence of the first stored message.
    #[serde(rename = "first_seq")]
    pub first: u64,
    /// Last assigned sequence.
    #[serde(rename = "last_seq")]
    pub last: u64,
}

/// A message read back from a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedMessage<'a> {
    /// Sequence in the stream.
    pub sequence: u64,
    /// Subject of the message.
    pub subject: &'a [u8],
    /// Payload of the message.
    pub payload: &'a [u8],
}

/// A blocking JetStream client with one request in flight.
pub struct JetStreamApi {
    server: SocketAddr,
    stream: TcpStream,
    input: ReceiveBuffer,
    decoder: ServerDecoder,
    limits: NatsLimits,
    timeout: Duration,
    inbox: String,
    request_count: u64,
}

struct ApiMessage<'a> {
    subject: &'a [u8],
    sid: &'a [u8],
    reply: Option<&'a [u8]>,
    headers: &'a [u8],
    payload: &'a [u8],
}

/// State of a replay. Its methods return the result when the replay ends.
struct ApiReplay<'a> {
    name: &'a str,
    expected: &'a mut u64,
    last: u64,
    heartbeats: u32,
}

impl ApiReplay<'_> {
    fn server_error(&self, detail: &str) -> Option<Result<(), CollectError>> {
        Some(Err(CollectError::Server(format!("replay of {}: {detail}", self.name))))
    }

    /// Checks the reply to the consumer request on `subject`.
    fn answer(&self, message: &ApiMessage<'_>, subject: &str) -> Option<Result<(), CollectError>> {
        if !message.headers.is_empty() {
            return self.server_error(&format!("no responder for {subject}"));
        }
        let answer: Value = serde_json::from_slice(message.payload).unwrap_or_default();
        let error = &answer["error"];
        if error.is_null() { None } else { self.server_error(&error.to_string()) }
    }

    fn status(
        &mut self,
        code: u16,
        message: &ApiMessage<'_>,
        answers: &mut Vec<u8>,
    ) -> Option<Result<(), CollectError>> {
        // Status 100 with a reply subject is flow control and needs a reply; without one it is a heartbeat.
        if let (100, Some(reply)) = (code, message.reply) {
            Pub { subject: reply, reply: None, headers: b"", payload: b"" }.encode(answers);
            return None;
        }
        if code != 100 {
            return self.server_error(&format!("status {code}"));
        }
        let Some(gap) = ReportedGap::of(message.headers) else {
            self.heartbeats += 1;
            return (self.heartbeats == HEARTBEATS_AT_END).then_some(Ok(()));
        };
        if !gap.is_torn || gap.first != *self.expected {
            return self.server_error(&format!("{gap:?} instead of sequence {}", self.expected));
        }
        *self.expected = gap.last + 1;
        (gap.last >= self.last).then_some(Ok(()))
    }

    fn delivery(
        &mut self,
        message: &ApiMessage<'_>,
        each: &mut impl FnMut(&ReplayedMessage<'_>) -> Result<(), String>,
    ) -> Option<Result<(), CollectError>> {
        self.heartbeats = 0;
        let Some(ack_subject) = message.reply.and_then(AckSubject::parse) else {
            return self.server_error("a delivery without an acknowledgement subject");
        };
        let sequence = ack_subject.stream_sequence;
        if sequence != *self.expected {
            return self.server_error(&format!("sequence {sequence} instead of {}", self.expected));
        }
        *self.expected += 1;
        match each(&ReplayedMessage { sequence, subject: message.subject, payload: message.payload }) {
            Err(detail) => Some(Err(CollectError::Server(detail))),
            Ok(()) => (sequence >= self.last).then_some(Ok(())),
        }
    }
}

impl JetStreamApi {
    /// Connects.
    ///
    /// # Errors
    /// The server does not accept the connection.
    pub fn connect(to: SocketAddr, timeout: Duration) -> Result<JetStreamApi, CollectError> {
        let failed = |error| CollectError::Connect(to, error);
        let mut stream = connect(to, timeout).map_err(failed)?;
        stream.set_read_timeout(Some(POLL_SPAN)).map_err(failed)?;
        let port = stream.local_addr().map_err(failed)?.port();
        let inbox = format!("_INBOX.api{:x}{port:x}", std::process::id());
        let mut out = Vec::new();
        encode_connect(&mut out);
        encode_sub(&mut out, format!("{inbox}.*").as_bytes(), None, REPLY_SID);
        stream.write_all(&out).map_err(failed)?;
        Ok(JetStreamApi {
            server: to,
            stream,
            input: ReceiveBuffer::default(),
            decoder: ServerDecoder::default(),
            limits: limits(),
            timeout,
            inbox,
            request_count: 0,
        })
    }

    /// Address of the server.
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CollectError> {
        self.stream
            .write_all(bytes)
            .map_err(|error| CollectError::Server(format!("cannot send a request: {error}")))
    }

    /// Reads until `done` returns a result for a message.
    fn receive_until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&ApiMessage<'_>, &mut Vec<u8>) -> Option<Result<T, CollectError>>,
    ) -> Result<T, CollectError> {
        let mut last_received = Instant::now();
        let mut answers = Vec::new();
        loop {
            let step = self.decoder.decode(&self.limits, self.input.unread());
            let step = step.map_err(|error| CollectError::Server(format!("{what}: {error}")))?;
            let verdict = match step.event {
                ServerEvent::Message(delivery) => {
                    let message = ApiMessage {
                        subject: delivery.subject,
                        sid: delivery.sid,
                        reply: delivery.reply,
                        headers: delivery.headers,
                        payload: delivery.payload,
                    };
                    done(&message, &mut answers)
                }
                ServerEvent::Ping => {
                    answers.extend_from_slice(PONG);
                    None
                }
                ServerEvent::Err(text) => {
                    Some(Err(CollectError::Server(format!("{what}: {}", String::from_utf8_lossy(text)))))
                }
                _ => None,
            };
            let is_all = matches!(step.event, ServerEvent::NeedMore);
            let consumed = step.consumed;
            self.input.consume(consumed);
            if !answers.is_empty() {
                let answers = std::mem::take(&mut answers);
                self.write(&answers)?;
            }
            if let Some(verdict) = verdict {
                return verdict;
            }
            if !is_all {
                continue;
            }
            match self.input.fill(&mut self.stream) {
                Ok(0) => return Err(CollectError::Server(format!("{what}: it closed the connection"))),
                Ok(_) => last_received = Instant::now(),
                Err(error) if would_block(&error) && last_received.elapsed() < self.timeout => {}
                Err(error) => return Err(CollectError::Server(format!("{what}: no answer ({error})"))),
            }
        }
    }

    /// Sends a request and returns the JSON of the reply.
    ///
    /// # Errors
    /// No reply in time, no responder, or an error as the reply.
    pub(crate) fn request(&mut self, subject: &str, body: &Value) -> Result<Value, CollectError> {
        self.request_count += 1;
        let inbox = format!("{}.{}", self.inbox, self.request_count);
        let mut out = Vec::new();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let reply = Some(inbox.as_bytes());
        Pub { subject: subject.as_bytes(), reply, headers: b"", payload: body.as_bytes() }.encode(&mut out);
        self.write(&out)?;
        self.receive_until(subject, |message, _| {
            if message.sid != REPLY_SID || message.subject != inbox.as_bytes() {
                return None;
            }
            if !message.headers.is_empty() {
                return Some(Err(CollectError::Server(format!("no responder for {subject}"))));
            }
            let server_error = |detail: String| CollectError::Server(format!("{subject}: {detail}"));
            let answer: Result<Value, _> = serde_json::from_slice(message.payload);
            Some(match answer {
                Err(error) => Err(server_error(error.to_string())),
                Ok(answer) if !answer["error"].is_null() => Err(server_error(answer["error"].to_string())),
                Ok(answer) => Ok(answer),
            })
        })
    }

    /// Creates a stream with the subjects of `filter`.
    ///
    /// # Errors
    /// The server does not create it.
    pub fn make_stream(
        &mut self,
        name: &str,
        filter: &str,
        storage: CollectStorage,
    ) -> Result<(), CollectError> {
        let storage = match storage {
            CollectStorage::File => "file",
            CollectStorage::Memory => "memory",
        };
        let body = json!({
            "name": name, "subjects": [filter], "storage": storage, "retention": "limits", "discard": "old",
            "num_replicas": 1, "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msg_size": -1,
        });
        self.request(&format!("$JS.API.STREAM.CREATE.{name}"), &body).map(|_| ())
    }

    /// Reads the state of a stream.
    ///
    /// # Errors
    /// The server does not report it.
    pub fn stream_state(&mut self, name: &str) -> Result<ReportedStreamState, CollectError> {
        let answer = self.request(&format!("$JS.API.STREAM.INFO.{name}"), &Value::Null)?;
        let state = ReportedStreamState::deserialize(&answer["state"]);
        state.map_err(|error| CollectError::Server(format!("the state of {name}: {error}")))
    }

    /// Passes the messages of a stream to `each` in order, from sequence `from` to the last one at the time of the
    /// call. Returns the last sequence. A skipped sequence is an error of the server, unless the server reports it as
    /// part of a write torn by a crash.
    ///
    /// # Errors
    /// The server does not deliver the messages, or `each` fails: its message becomes the error.
    pub fn replay(
        &mut self,
        name: &str,
        from: u64,
        mut each: impl FnMut(&ReplayedMessage<'_>) -> Result<(), String>,
    ) -> Result<u64, CollectError> {
        let last = self.stream_state(name)?.last;
        if last < from {
            return Ok(last);
        }
        self.request_count += 1;
        let deliver = format!("{}.replay.{}", self.inbox, self.request_count);
        let mut out = Vec::new();
        encode_sub(&mut out, deliver.as_bytes(), None, REPLAY_SID);
        self.write(&out)?;
        let body = json!({"stream_name": name, "config": {
            "deliver_subject": deliver, "deliver_policy": "by_start_sequence", "opt_start_seq": from,
            "ack_policy": "none", "replay_policy": "instant", "flow_control": true,
            "idle_heartbeat": HEARTBEAT_NS, "inactive_threshold": 30_000_000_000_u64, "mem_storage": true,
            "num_replicas": 1, "max_deliver": 1,
        }});
        let mut expected = from;
        self.start_replay(name, &body, &mut expected, last, &mut each)?;
        out.clear();
        encode_unsub(&mut out, REPLAY_SID, None);
        self.write(&out)?;
        Ok(last)
    }

    /// Deliveries may arrive before the reply to the consumer request, so one loop reads both.
    fn start_replay(
        &mut self,
        name: &str,
        body: &Value,
        expected: &mut u64,
        last: u64,
        each: &mut impl FnMut(&ReplayedMessage<'_>) -> Result<(), String>,
    ) -> Result<(), CollectError> {
        self.request_count += 1;
        let inbox = format!("{}.{}", self.inbox, self.request_count);
        let subject = format!("$JS.API.CONSUMER.CREATE.{name}");
        let mut out = Vec::new();
        let body = body.to_string();
        let reply = Some(inbox.as_bytes());
        Pub { subject: subject.as_bytes(), reply, headers: b"", payload: body.as_bytes() }.encode(&mut out);
        self.write(&out)?;
        let mut replay = ApiReplay { name, expected, last, heartbeats: 0 };
        self.receive_until("replay", |message, answers| {
            if message.sid == REPLY_SID && message.subject == inbox.as_bytes() {
                return replay.answer(message, &subject);
            }
            if message.sid != REPLAY_SID {
                return None;
            }
            let status = Headers::parse(message.headers).ok().and_then(|headers| headers.status());
            match status {
                Some(status) => replay.status(status.code, message, answers),
                None => replay.delivery(message, each),
            }
        })
    }
}

/// Missing sequences reported by the server.
#[derive(Debug)]
struct ReportedGap {
    first: u64,
    last: u64,
    /// They belonged to a write torn by a crash.
    is_torn: bool,
}

impl ReportedGap {
    fn of(headers: &[u8]) -> Option<ReportedGap> {
        let headers = Headers::parse(headers).ok()?;
        let number = |name| std::str::from_utf8(headers.find(name)?).ok()?.parse().ok();
        let is_torn = headers.find(GAP_CAUSE) == Some(b"torn");
        Some(ReportedGap { first: number(GAP_FIRST)?, last: number(GAP_LAST)?, is_torn })
    }
}
