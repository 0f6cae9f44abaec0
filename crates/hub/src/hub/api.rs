//! The subset of the JetStream API for publishers and subscribers of streams: JSON requests and answers on subjects
//! below `$JS.API`. Every other request is answered with an error object.
//!
//! Streams come from the server's configuration; clients cannot create or delete them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use stilling_journal::{Chunk, ReadRequest, Record, RecordKind, StartAt};
use stilling_wire::nats::{Headers, NO_RESPONDERS, Subject, SubjectLimits, strip_status};

use self::api_requests::{ApiError, MessageGet, bad_request, fields, object, unknown_field};
use super::{Hub, Now, OutboundMessage, ShardSenders, StallReason, UnixNanos, describe};
use crate::hash_key::HashKey;
use crate::limits::{
    API_DISK_READS_MAX, API_READ_SIZE_PER_TURN, API_SIZE_PER_TURN, CHUNKS_PER_TURN, READS_PER_CLIENT_MAX,
};
use crate::publication_batch::{ClientId, Publication};
use crate::publish_outcome::RefusalReason;
use crate::registrations::checked;
use crate::storage::Storage;
use crate::stream::Durability;
use crate::time::rfc3339;

mod api_requests;
mod consumer_info;
mod consumer_next;
mod create;
mod streams;

pub(super) const PREFIX: &[u8] = b"$JS.";

/// Unanswered requests for single records of all connections. Further ones are refused (503, `err_code` 10008).
const READS_MAX: usize = 256;

/// Highest bit of a reader id: distinguishes single reads from consumers' reads.
pub(super) const SINGLE_READ_BIT: u64 = 1 << 63;

/// Time that nats-server reports when a stream has no message. Clients reject a state without one.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// Pending reads of single records, and the API's budget per turn.
#[derive(Debug)]
pub(super) struct ApiState {
    key: HashKey,
    reads: Vec<PendingRead>,
    /// Further disk reads must wait: too many are outstanding. Cleared when a chunk arrives.
    pub(super) is_full: bool,
    read_serial: u64,
    /// Bytes of API requests and answers, or of records read for them, in this part of the turn; `has_deferred`: a
    /// request was deferred because they reached the maximum.
    size: usize,
    has_deferred: bool,
}

impl ApiState {
    pub(super) fn new(key: HashKey) -> ApiState {
        ApiState { key, reads: Vec::new(), is_full: false, read_serial: 0, size: 0, has_deferred: false }
    }

    pub(super) fn begin_turn(&mut self) {
        (self.size, self.has_deferred) = (0, false);
    }

    pub(super) fn has_deferred(&self) -> bool {
        self.has_deferred
    }

    /// Returns whether nothing can continue without an event.
    pub(super) fn is_quiet(&self) -> bool {
        !self.has_deferred && self.next_due().is_none()
    }

    /// Returns the first read that can continue. Memory reads do not wait for disk reads.
    fn next_due(&self) -> Option<usize> {
        self.reads.iter().position(|read| read.is_due() && !(self.is_full && read.is_on_disk))
    }
}

#[derive(Debug)]
struct PendingRead {
    client: ClientId,
    reader_id: u64,
    stream: usize,
    is_on_disk: bool,
    /// Next sequence to search from; `None` while a read is outstanding.
    due: Option<u64>,
    reply: Vec<u8>,
    is_direct: bool,
    filter: Option<Box<[u8]>>,
}

impl PendingRead {
    fn is_due(&self) -> bool {
        self.due.is_some()
    }
}

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    pub(super) fn handle_api_request(
        &mut self,
        client: ClientId,
        publication: &Publication<'_>,
        now: Now,
    ) -> Result<(), StallReason> {
        let Publication { subject, reply, payload, .. } = *publication;
        let text = std::str::from_utf8(subject).unwrap_or("");
        if let Some(rest) = text.strip_prefix("$JS.FC.") {
            if let Some((stream, name)) = rest.split_once('.')
                && let Some(stream) = self.streams.named(stream)
            {
                self.delivery().note_flow_ack(stream, name, now.steady_ns);
            }
            return Ok(());
        }
        // Any other subject is an acknowledgement, which no consumer awaits, or a request to another domain.
        let Some(api_request) = text.strip_prefix("$JS.API.") else {
            self.send_status(reply, b"", NO_RESPONDERS);
            return Ok(());
        };
        if self.api.size >= API_SIZE_PER_TURN {
            self.api.has_deferred = true;
            return Err(StallReason::Api);
        }
        self.api.size += payload.len();
        self.dispatch_api_request(client, api_request, (reply, payload.bytes()), now);
        Ok(())
    }

    fn dispatch_api_request(
        &mut self,
        client: ClientId,
        api_request: &str,
        (reply, payload): (&[u8], &[u8]),
        now: Now,
    ) {
        let tokens: Vec<&str> = api_request.split('.').collect();
        let is_order = matches!(tokens.as_slice(), ["CONSUMER", "CREATE" | "DELETE" | "MSG", ..]);
        if !is_order && (reply.is_empty() || !self.router.has_subscriber(reply)) {
            return;
        }
        let (kind, answer) = match tokens.as_slice() {
            ["INFO"] => ("account_info", Ok(self.account())),
            ["STREAM", "NAMES"] => ("stream_names", self.stream_names(payload)),
            ["STREAM", "LIST"] => ("stream_list", self.stream_list(payload, now.unix_ns)),
            ["STREAM", "INFO", name] => ("stream_info", self.stream_info(name, payload, now.unix_ns)),
            ["STREAM", "CREATE", name] => ("stream_create", self.stream_create(name, payload, now.unix_ns)),
            ["STREAM", "UPDATE", name] => ("stream_update", self.stream_update(name, payload, now.unix_ns)),
            ["STREAM", "DELETE", name] => ("stream_delete", Err(self.unchangeable(name))),
            ["STREAM", "PURGE", name] => ("stream_purge", Err(self.unchangeable(name))),
            ["STREAM", "MSG", "DELETE", name] => ("stream_msg_delete", Err(self.unchangeable(name))),
            ["STREAM", "MSG", "GET", name] => {
                match self.read_one((client, name), reply, payload, None, false) {
                    Ok(()) => return,
                    Err(wrong) => ("stream_msg_get", Err(wrong)),
                }
            }
            ["DIRECT", "GET", name, subject @ ..] => {
                let subject = (!subject.is_empty()).then(|| subject.join("."));
                let started = self.read_one((client, name), reply, payload, subject, true);
                return started.unwrap_or_else(|wrong| self.send_error_status(reply, &wrong));
            }
            ["CONSUMER", "CREATE", stream, rest @ ..] => {
                ("consumer_create", self.consumer_create(client, (stream, rest), payload, now))
            }
            ["CONSUMER", "DURABLE", "CREATE", ..] => ("consumer_create", Err(durable())),
            ["CONSUMER", "INFO", stream, name] => (
                "consumer_info",
                self.open_consumer(stream, name).map(|(stream, number)| self.consumer_info(stream, number)),
            ),
            ["CONSUMER", "DELETE", stream, name] => ("consumer_delete", self.consumer_delete(stream, name)),
            ["CONSUMER", "NAMES" | "LIST", stream] => {
                let is_list = tokens[1] == "LIST";
                match self.consumer_list(stream, payload, is_list) {
                    Ok(page) => return self.send_text(reply, &page),
                    Err(wrong) if is_list => ("consumer_list", Err(wrong)),
                    Err(wrong) => ("consumer_names", Err(wrong)),
                }
            }
            ["CONSUMER", "MSG", "NEXT", stream, name] => {
                match self.consumer_next(client, (stream, name), reply, payload, now.steady_ns) {
                    Ok(()) => return,
                    // Answered as without subscribers: clients then create their consumer again at its next message.
                    Err(ApiError(404, ..)) => return self.send_status(reply, b"", NO_RESPONDERS),
                    Err(wrong) => return self.send_error_status(reply, &wrong),
                }
            }
            _ => (
                "unknown",
                Err(ApiError(501, 10000, format!("{api_request} is not supported by this server"))),
            ),
        };
        let mut body = match answer {
            Ok(body) => body,
            Err(wrong) => json!({ "error": wrong.json() }),
        };
        body["type"] = format!("io.nats.jetstream.api.v1.{kind}_response").into();
        self.send_json(reply, &body);
    }

    fn consumer_delete(&mut self, stream: &str, name: &str) -> Result<Value, ApiError> {
        let (_, number) = self.consumer(stream, name)?;
        self.delivery().delete(number);
        Ok(json!({ "success": true }))
    }

    /// Answers with an error as a status, where the client expects messages instead of JSON.
    fn send_error_status(&mut self, to: &[u8], ApiError(code, _, description): &ApiError) {
        let status = format!("NATS/1.0 {code} {description}\r\n\r\n");
        self.send_status(to, b"", status.as_bytes());
    }

    fn send_json(&mut self, to: &[u8], body: &Value) {
        if self.router.has_subscriber(to) {
            self.send_text(to, &body.to_string());
        }
    }

    fn send_text(&mut self, to: &[u8], text: &str) {
        self.api.size += text.len();
        self.send_by_subject(&OutboundMessage {
            subject: to,
            reply: b"",
            headers: b"",
            payload: text.as_bytes().into(),
            position: None,
        });
    }

    /// Returns the number of an open stream. For a closed one, whose records are unknown, the error is retryable.
    fn open_stream(&self, name: &str) -> Result<usize, ApiError> {
        let number = self.streams.named(name).ok_or_else(no_stream)?;
        let Some(reason) = &self.streams[number].closed else { return Ok(number) };
        let (code, error_code, description) =
            describe(RefusalReason::Closed { stream: number as u32 }, Some(reason.as_ref()));
        Err(ApiError(code, error_code, description))
    }

    fn open_consumer(&self, stream: &str, name: &str) -> Result<(usize, u32), ApiError> {
        self.open_stream(stream)?;
        self.consumer(stream, name)
    }

    fn consumer(&self, stream: &str, name: &str) -> Result<(usize, u32), ApiError> {
        let stream = self.streams.named(stream).ok_or_else(no_stream)?;
        let number = self.consumers.table.find(stream, name).ok_or_else(no_consumer)?;
        Ok((stream, number))
    }

    fn read_one(
        &mut self,
        (client, name): (ClientId, &str),
        reply: &[u8],
        payload: &[u8],
        last_of: Option<String>,
        is_direct: bool,
    ) -> Result<(), ApiError> {
        let stream = self.open_stream(name)?;
        let get: MessageGet = if payload.is_empty() {
            MessageGet::default()
        } else {
            let api_request = object(payload).map_err(|_| bad_request("expected a sequence in JSON"))?;
            if let Some(setting) = unknown_field(&api_request, &MessageGet::KNOWN) {
                return Err(unsupported(setting));
            }
            fields(api_request).map_err(|_| bad_request("expected a sequence in JSON"))?
        };
        if get.last_by_subj.is_some() || last_of.is_some() {
            return Err(ApiError(501, 10000, "last_by_subj is not supported by this server".to_owned()));
        }
        let state = &self.streams[stream];
        let first = if get.next_by_subj.is_some() { get.seq.max(state.first) } else { get.seq };
        if first < state.first || first > state.visible || first == 0 {
            return Err(no_message());
        }
        if get.next_by_subj.as_ref().is_some_and(|filter| checked(filter.as_bytes()).is_none()) {
            return Err(bad_request("next_by_subj is not a valid filter"));
        }
        let of_client = self.api.reads.iter().filter(|read| read.client == client).count();
        if self.api.reads.len() >= READS_MAX || of_client >= READS_PER_CLIENT_MAX {
            return Err(too_many_reads());
        }
        if state.config.durability == Durability::None {
            return Err(no_message());
        }
        self.api.read_serial += 1;
        let reader_id = SINGLE_READ_BIT | self.api.read_serial;
        let filter: Option<Box<[u8]>> = get.next_by_subj.map(|filter| filter.into_bytes().into());
        let (reply, is_on_disk) = (reply.to_vec(), state.config.durability == Durability::Disk);
        let read = PendingRead { client, reader_id, stream, is_on_disk, due: None, reply, is_direct, filter };
        self.queue_read(read, first);
        Ok(())
    }

    /// Reads records from `first` on, as soon as a read is possible.
    fn queue_read(&mut self, read: PendingRead, first: u64) {
        let records_max = if read.filter.is_some() { u32::MAX } else { 1 };
        let (reader_id, stream, from) = (read.reader_id, read.stream as u32, StartAt::Sequence(first));
        let read_request = ReadRequest { reader_id, stream, from, records_max };
        let state = &self.streams[read.stream];
        if read.is_on_disk {
            // Outstanding reads; memory reads never are.
            let under_way = self.api.reads.iter().filter(|read| !read.is_due()).count();
            self.api.is_full = under_way >= API_DISK_READS_MAX || !self.storage.read(read_request);
            let due = self.api.is_full.then_some(first);
            self.api.reads.push(PendingRead { due, ..read });
        } else {
            let chunk = state.read_memory(&read_request);
            self.api.size += chunk.size();
            self.api.reads.push(PendingRead { due: None, ..read });
            self.answer_read(chunk);
        }
    }

    /// Continues reads that have not found their record yet, a bounded number per turn: a search through a long stream
    /// does not delay others.
    pub(super) fn resume_reads(&mut self) {
        // A separate budget, so that new requests keep theirs.
        self.api.size = 0;
        for _ in 0..CHUNKS_PER_TURN {
            if !self.may_answer() || self.api.size >= API_READ_SIZE_PER_TURN {
                break;
            }
            let Some(at) = self.api.next_due() else { break };
            let read = self.api.reads.remove(at);
            let first = read.due.unwrap_or(1);
            self.queue_read(read, first);
        }
        self.api.size = 0;
    }

    pub(super) fn answer_read(&mut self, chunk: Chunk) {
        let Some(at) = self.api.reads.iter().position(|read| read.reader_id == chunk.reader_id) else {
            return;
        };
        let read = self.api.reads.remove(at);
        let name = self.streams[chunk.stream as usize].config.name.clone();
        let wants = |record: &Record<'_>| {
            // A loss marker is not a published message.
            if record.kind != RecordKind::Ordinary {
                return false;
            }
            let Some(filter) = &read.filter else { return true };
            let subject = checked(record.subject).and_then(|subject| subject.literal());
            checked(filter).zip(subject).is_some_and(|(filter, subject)| filter.matches(subject))
        };
        let found = (0..chunk.len()).filter_map(|at| chunk.get(at)).find(|(_, _, record)| wants(record));
        let Some((sequence, time_ns, record)) = found else {
            if let Some(failure) = &chunk.failure {
                let description = format!("cannot read the stream: {failure}");
                return self.refuse_read(&read, &ApiError(503, 10008, description));
            }
            if chunk.is_end || read.filter.is_none() {
                return self.refuse_read(&read, &no_message());
            }
            // The record may be behind this chunk. The search ends if the reply subject has no subscriber.
            if self.router.has_subscriber(&read.reply) {
                self.api.reads.push(PendingRead { due: Some(chunk.next), ..read });
            }
            return;
        };
        let time_ns = UnixNanos::from_nanos(time_ns);
        if !read.is_direct {
            let mut message = json!({
                "subject": String::from_utf8_lossy(record.subject), "seq": sequence,
                "data": BASE64.encode(record.payload), "time": rfc3339(time_ns),
            });
            let mut stripped = Vec::new();
            let headers = strip_status(record.headers, &mut stripped);
            if !headers.is_empty() {
                message["hdrs"] = BASE64.encode(headers).into();
            }
            let body =
                json!({ "type": "io.nats.jetstream.api.v1.stream_msg_get_response", "message": message });
            return self.send_json(&read.reply, &body);
        }
        let headers = direct_headers(&name, sequence, time_ns, &record);
        let payload = record.payload.into();
        self.send_by_subject(&OutboundMessage {
            subject: &read.reply,
            reply: b"",
            headers: &headers,
            payload,
            position: None,
        });
    }

    fn refuse_read(&mut self, read: &PendingRead, wrong: &ApiError) {
        if read.is_direct {
            return self.send_error_status(&read.reply, wrong);
        }
        let kind = "io.nats.jetstream.api.v1.stream_msg_get_response";
        self.send_json(&read.reply, &json!({ "type": kind, "error": wrong.json() }));
    }
}

fn is_subject(text: &str) -> bool {
    Subject::parse(text.as_bytes(), &SubjectLimits::default()).is_ok()
}

fn no_stream() -> ApiError {
    ApiError(404, 10059, "stream not found".to_owned())
}

fn no_consumer() -> ApiError {
    ApiError(404, 10014, "consumer not found".to_owned())
}

fn durable() -> ApiError {
    ApiError(400, 10000, "this server has no durable consumers: use an ordered consumer".to_owned())
}

/// Maximum characters of a client's name repeated in an answer. The rest is omitted.
const QUOTED_NAME_MAX: usize = 100;

/// An unsupported setting, by name. The answer may be a header block, so control characters are removed from the name.
fn unsupported(setting: &str) -> ApiError {
    let quoted: String =
        setting.chars().filter(|letter| !letter.is_control()).take(QUOTED_NAME_MAX).collect();
    bad_request(&format!("{quoted} is not supported by this server"))
}

fn too_many_reads() -> ApiError {
    ApiError(503, 10008, "too many requests wait for records".to_owned())
}

fn no_message() -> ApiError {
    ApiError(404, 10037, "Message Not Found".to_owned())
}

/// Headers with stream, subject, sequence and time, followed by the record's own headers if these are valid.
fn direct_headers(stream: &str, sequence: u64, time_ns: UnixNanos, record: &Record<'_>) -> Vec<u8> {
    let mut out = b"NATS/1.0\r\n".to_vec();
    let subject = String::from_utf8_lossy(record.subject);
    for (name, value) in [
        ("Nats-Stream", stream),
        ("Nats-Subject", &subject),
        ("Nats-Sequence", &sequence.to_string()),
        ("Nats-Time-Stamp", &rfc3339(time_ns)),
    ] {
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    let mut stripped = Vec::new();
    if let Ok(headers) = Headers::parse(strip_status(record.headers, &mut stripped)) {
        for (name, value) in headers {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
    out
}
