//! The parts of JetStream used by publishers and consumers: publish acknowledgements, and the reply subject that
//! carries the position of a delivered message.

use std::borrow::Cow;

use serde::Deserialize;

use super::error::{NatsDecodeError, NatsFault};

/// Prefix of every acknowledgement subject.
pub const ACK_PREFIX: &str = "$JS.ACK.";

/// Description in this hub's rejection (503, error 10023) while a stream's disk hangs. Other servers, and the hub in
/// other responses, use this error number for a lack of space: only the description distinguishes the cases.
pub const DISK_HUNG: &str = "the disk does not respond: messages are rejected until it does";

/// Description in the same rejection when the stream's disk is full.
pub const DISK_FULL: &str = "the disk is full: messages are rejected until space is free";

/// Header of this hub's heartbeats: first sequence of a range that the consumer does not receive.
pub const GAP_FIRST: &str = "Stilling-Gap-First";

/// Header with the last sequence of the range.
pub const GAP_LAST: &str = "Stilling-Gap-Last";

/// Header with the cause of the gap: `removed` by retention, `damaged`, or `torn` (cut off by a crash).
pub const GAP_CAUSE: &str = "Stilling-Gap-Cause";

/// The reply subject of a message delivered to a consumer: `$JS.ACK.<stream>.<consumer>.<delivered>.<stream
/// seq>.<consumer seq>.<time>.<pending>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckSubject<'a> {
    /// The stream's name.
    pub stream: &'a str,
    /// The consumer's name.
    pub consumer: &'a str,
    /// Number of deliveries of the message, including this one.
    pub delivered: u64,
    /// The message's sequence in the stream.
    pub stream_sequence: u64,
    /// The message's sequence among the consumer's deliveries.
    pub consumer_sequence: u64,
    /// When the stream stored it, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Number of further messages pending for the consumer.
    pub pending: u64,
}

impl<'a> AckSubject<'a> {
    /// Appends the subject to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(ACK_PREFIX.as_bytes());
        out.extend_from_slice(self.stream.as_bytes());
        out.push(b'.');
        out.extend_from_slice(self.consumer.as_bytes());
        let numbers =
            [self.delivered, self.stream_sequence, self.consumer_sequence, self.time_ns, self.pending];
        for number in numbers {
            out.push(b'.');
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        }
    }

    /// Parses such a subject, also in the longer form, and ignores that form's domain and account before the stream's
    /// name and its tokens after the numbers.
    #[must_use]
    pub fn parse(subject: &'a [u8]) -> Option<Self> {
        /// Tokens after the prefix, in the short form and at least in the long one.
        const SHORT: usize = 7;
        const LONG: usize = 9;
        let rest = core::str::from_utf8(subject).ok()?.strip_prefix(ACK_PREFIX)?;
        let mut tokens = rest.split('.');
        match tokens.clone().count() {
            SHORT => {}
            LONG.. => {
                tokens.next();
                tokens.next();
            }
            _ => return None,
        }
        let mut name = || tokens.next().filter(|name| !name.is_empty());
        let (stream, consumer) = (name()?, name()?);
        let mut number = || number(tokens.next()?);
        Some(Self {
            stream,
            consumer,
            delivered: number()?,
            stream_sequence: number()?,
            consumer_sequence: number()?,
            time_ns: number()?,
            pending: number()?,
        })
    }
}

/// Parses digits only: `str::parse` would also accept a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A stream's acknowledgement of a stored publication: `{"stream":"events","seq":7}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PubAck<'a> {
    /// The stream's name.
    pub stream: Cow<'a, str>,
    /// The message's sequence.
    pub sequence: u64,
    /// The message was already stored, under this sequence.
    pub duplicate: bool,
}

/// A stream's rejection of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PubAckError<'a> {
    /// The stream's name; may be empty.
    pub stream: Cow<'a, str>,
    /// The HTTP-like status code.
    pub code: u16,
    /// The error number, as in nats-server.
    pub error_code: u32,
    /// The error's description.
    pub description: Cow<'a, str>,
}

/// A stream's response to a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PubAckResponse<'a> {
    /// The message is stored.
    Stored(PubAck<'a>),
    /// The message was rejected.
    Rejected(PubAckError<'a>),
}

impl PubAck<'_> {
    /// Appends the JSON to `out`.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"stream\":");
        push_json_text(out, &self.stream);
        out.extend_from_slice(b",\"seq\":");
        out.extend_from_slice(itoa::Buffer::new().format(self.sequence).as_bytes());
        out.extend_from_slice(if self.duplicate { b",\"duplicate\":true}" } else { b"}" });
    }
}

impl PubAckError<'_> {
    /// Appends the JSON to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"error\":{\"code\":");
        out.extend_from_slice(itoa::Buffer::new().format(self.code).as_bytes());
        out.extend_from_slice(b",\"err_code\":");
        out.extend_from_slice(itoa::Buffer::new().format(self.error_code).as_bytes());
        out.extend_from_slice(b",\"description\":");
        push_json_text(out, &self.description);
        out.extend_from_slice(b"},\"stream\":");
        push_json_text(out, &self.stream);
        out.extend_from_slice(b",\"seq\":0}");
    }
}

impl<'a> PubAckResponse<'a> {
    /// Parses a stream's response; allocates only for texts with escapes.
    ///
    /// # Errors
    /// It is not the JSON of such a response.
    pub fn parse(json: &'a [u8]) -> Result<Self, NatsDecodeError> {
        #[derive(Deserialize)]
        struct AckJson<'a> {
            #[serde(borrow, default)]
            stream: Cow<'a, str>,
            #[serde(default)]
            seq: u64,
            #[serde(default)]
            duplicate: bool,
            #[serde(borrow)]
            error: Option<AckErrorJson<'a>>,
        }
        #[derive(Deserialize)]
        struct AckErrorJson<'a> {
            code: u16,
            #[serde(default)]
            err_code: u32,
            #[serde(borrow, default)]
            description: Cow<'a, str>,
        }
        let bad = |at| NatsDecodeError::line(NatsFault::Json, at, json.get(at).copied());
        if json.first() != Some(&b'{') {
            return Err(bad(0));
        }
        let ack: AckJson<'a> =
            serde_json::from_slice(json).map_err(|error| bad(error.column().saturating_sub(1)))?;
        let stream = ack.stream;
        match ack.error {
            Some(AckErrorJson { code, err_code, description }) => {
                Ok(Self::Rejected(PubAckError { stream, code, error_code: err_code, description }))
            }
            // Sequences begin with 1: a response without one, such as a service's reply, confirms nothing.
            None if stream.is_empty() || ack.seq == 0 => Err(bad(json.len())),
            None => Ok(Self::Stored(PubAck { stream, sequence: ack.seq, duplicate: ack.duplicate })),
        }
    }
}

fn push_json_text(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|&byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            byte @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
            byte => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}
