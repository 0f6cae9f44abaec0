//! A message as its subscribers over WebSocket and SSE receive it.
//!
//! As text it is a JSON object in a single line. The payload is `data` if it is JSON, as it was sent except that line
//! ends between its tokens become blanks; `text` if it is UTF-8; else `base64`. As binary it is the sequence in eight
//! bytes, big-endian, and the payload. Nothing depends on the subscriber.

mod json;
#[cfg(test)]
mod tests;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub use json::{JSON_DEPTH_MAX, is_json};

use crate::resume_position::push_time;

/// Bytes of the sequence before the payload of a binary message.
pub const BINARY_PREFIX_SIZE: usize = 8;

/// A message to encode.
///
/// ```
/// use stilling_wire::message_object::MessageObject;
///
/// let message = MessageObject { sequence: 17, subject: "a.b", time_ns: 1_769_860_800_000_000_000, payload: b"{\"x\":1}" };
/// let mut out = Vec::new();
/// message.encode(&mut out);
/// let expected = r#"{"seq":17,"subject":"a.b","time":"2026-01-31T12:00:00.000000000Z","data":{"x":1}}"#;
/// assert_eq!(String::from_utf8_lossy(&out), expected);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MessageObject<'a> {
    /// Its sequence in the stream; 0 for a message without a stream, whose object has no `seq`.
    pub sequence: u64,
    /// Its subject.
    pub subject: &'a str,
    /// When it was stored, in nanoseconds of Unix time; 0 for a message without a stream, whose object has no `time`.
    pub time_ns: u64,
    /// Its payload.
    pub payload: &'a [u8],
}

impl MessageObject<'_> {
    /// Appends the JSON object to `out`.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        if self.sequence > 0 {
            out.extend_from_slice(b"\"seq\":");
            push_number(out, self.sequence);
            out.push(b',');
        }
        out.extend_from_slice(b"\"subject\":");
        json::push_string(out, self.subject);
        if self.time_ns > 0 {
            out.extend_from_slice(b",\"time\":\"");
            push_time(out, self.time_ns);
            out.push(b'"');
        }
        self.encode_payload(out);
        out.push(b'}');
    }

    fn encode_payload(&self, out: &mut Vec<u8>) {
        match str::from_utf8(self.payload) {
            Ok(text) if json::is_json(text) => {
                out.extend_from_slice(b",\"data\":");
                let start = out.len();
                out.extend_from_slice(self.payload);
                // In JSON line ends are only between tokens.
                for at in memchr::memchr2_iter(b'\n', b'\r', self.payload) {
                    out[start + at] = b' ';
                }
            }
            Ok(text) => {
                out.extend_from_slice(b",\"text\":");
                json::push_string(out, text);
            }
            Err(_) => {
                out.extend_from_slice(b",\"base64\":\"");
                let start = out.len();
                out.resize(start + self.payload.len().div_ceil(3) * 4, 0);
                let written = STANDARD.encode_slice(self.payload, &mut out[start..]);
                debug_assert_eq!(written, Ok(out.len() - start), "the size is exact");
                out.push(b'"');
            }
        }
    }

    /// Appends the binary form to `out`.
    #[inline]
    pub fn encode_binary(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.binary_prefix());
        out.extend_from_slice(self.payload);
    }

    /// Returns the bytes before the payload of the binary form, for callers that send the payload from their own
    /// memory.
    #[must_use]
    pub const fn binary_prefix(&self) -> [u8; BINARY_PREFIX_SIZE] {
        self.sequence.to_be_bytes()
    }
}

/// A range of sequences that a subscriber does not receive, to encode as `{"gap":{"first":…,"last":…,"cause":…}}`.
#[derive(Clone, Copy, Debug)]
pub struct GapObject<'a> {
    /// The first missing sequence.
    pub first: u64,
    /// The last missing sequence.
    pub last: u64,
    /// The cause, as in [`crate::nats::GAP_CAUSE`].
    pub cause: &'a str,
}

impl GapObject<'_> {
    /// Appends the JSON object to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"gap\":{\"first\":");
        push_number(out, self.first);
        out.extend_from_slice(b",\"last\":");
        push_number(out, self.last);
        out.extend_from_slice(b",\"cause\":");
        json::push_string(out, self.cause);
        out.extend_from_slice(b"}}");
    }
}

#[inline]
fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
