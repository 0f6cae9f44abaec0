//! The parts of JetStream that every publisher and follower of a stream meets: the acknowledgement of a publication, and
//! the reply subject that says where in a stream a delivered message stands.

use std::borrow::Cow;

use serde::Deserialize;

use super::error::{NatsDecodeError, NatsFault};

/// What every acknowledgement subject begins with.
pub const ACK_PREFIX: &str = "$JS.ACK.";

/// What a stream of this hub says in its refusal (503, error 10023) when its disk hangs. Other servers, and the hub in other
/// answers, say under this number that they have no room at all: the words alone tell the one from the other.
pub const DISK_HUNG: &str = "the disk does not answer: nothing more is taken before it does";

/// The same of a stream whose disk has no room.
pub const DISK_FULL: &str = "the disk has no room: nothing more is taken before it has";

/// Headers of a heartbeat of this hub that says which sequences a consumer does not get, and why: `removed` by retention,
/// `damaged`, or `torn` (cut off by a crash). The first of them.
pub const GAP_FIRST: &str = "Stilling-Gap-First";

/// The last of them.
pub const GAP_LAST: &str = "Stilling-Gap-Last";

/// Why they are not there.
pub const GAP_CAUSE: &str = "Stilling-Gap-Cause";

/// The reply subject of a message that a consumer of a stream gets:
/// `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckSubject<'a> {
    /// The stream's name.
    pub stream: &'a str,
    /// The consumer's name.
    pub consumer: &'a str,
    /// How often the message has been delivered, this time included.
    pub delivered: u64,
    /// The message's sequence in the stream.
    pub stream_sequence: u64,
    /// Its place among what the consumer got.
    pub consumer_sequence: u64,
    /// When the stream took it, in nanoseconds since 1970.
    pub time_ns: u64,
    /// How many messages for the consumer come behind it.
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

    /// Reads such a subject, also in the longer form with domain and account before the stream's name, which are passed
    /// over, and whatever follows the numbers.
    #[must_use]
    pub fn parse(subject: &'a [u8]) -> Option<Self> {
        /// Tokens behind the prefix, in the short form and at least in the long one.
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

/// Digits alone: `parse` would also take a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A stream's answer to a publication that it took: `{"stream":"events","seq":7}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PubAck<'a> {
    /// The stream's name.
    pub stream: Cow<'a, str>,
    /// The message's sequence.
    pub sequence: u64,
    /// The message was there already, under this sequence.
    pub duplicate: bool,
}

/// A stream's answer to a publication that it did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PubAckError<'a> {
    /// The stream's name; empty when none is to blame.
    pub stream: Cow<'a, str>,
    /// The kind of error, as in HTTP.
    pub code: u16,
    /// The error, as nats-server numbers them.
    pub error_code: u32,
    /// What it is in words.
    pub description: Cow<'a, str>,
}

/// A stream's answer to a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PubAckResponse<'a> {
    /// It took it.
    Stored(PubAck<'a>),
    /// It did not.
    Refused(PubAckError<'a>),
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
    /// Reads a stream's answer; allocates only for texts with escapes.
    ///
    /// # Errors
    /// It is not the JSON of such an answer.
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
                Ok(Self::Refused(PubAckError { stream, code, error_code: err_code, description }))
            }
            // Sequences begin with 1: an answer without one, a service's own for example, confirms nothing.
            None if stream.is_empty() || ack.seq == 0 => Err(bad(json.len())),
            None => Ok(Self::Stored(PubAck { stream, sequence: ack.seq, duplicate: ack.duplicate })),
        }
    }
}

/// Appends `text` as a JSON string.
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
