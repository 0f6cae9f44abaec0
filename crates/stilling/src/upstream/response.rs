//! Rewrites the head of a process's response and buffers its body while it is received.
//!
//! ```text
//!   bytes:  head, without framing ┃ room for a chunk's frame ┃ body ┃ end of the chunk
//!           └── head_len ─────────┘                          └ or from here, unframed
//! ```
//!
//! The client's session adds the fields that depend on the connection: persistence and the date.

use std::io::Write;

use stilling_wire::http1::{ResponseBodyLength, ResponseHead};

use super::hop_by_hop::HopByHopFields;
use super::message::{BodyFraming, ResponsePiece, UpstreamEvent, UpstreamResponse};
use super::session_state::is_state_field;

/// Bytes before a chunk: eight hex digits and CRLF; CRLF also follows it (RFC 9112 §7.1). Leading zeros are legal, so
/// the size of the frame does not depend on that of the chunk.
const CHUNK_HEAD: usize = 10;
const CHUNK_END: &[u8] = b"0\r\n\r\n";

/// Collects a response and returns it in pieces.
pub(super) struct ResponseBuilder {
    bytes: Vec<u8>,
    status: u16,
    has_date: bool,
    announced_len: Option<u64>,
    is_bodiless: bool,
    accepts_chunked: bool,
    head_len: usize,
    body_start: usize,
    /// The framing, once a piece has been returned.
    begun: Option<BodyFraming>,
}

impl ResponseBuilder {
    /// Rewrites a head into `out`, a buffer with any content, and adds `fields` of the server. `is_head`: it answers a HEAD request.
    /// `accepts_chunked`: the client understands chunks.
    pub(super) fn new(
        head: &ResponseHead<'_>,
        fields: &str,
        is_head: bool,
        accepts_chunked: bool,
        mut out: Vec<u8>,
    ) -> ResponseBuilder {
        out.clear();
        // Writing to memory does not fail.
        let _ = write!(out, "HTTP/1.1 {} ", head.status);
        out.extend_from_slice(head.reason);
        out.extend_from_slice(b"\r\n");
        let hop_by_hop = HopByHopFields::of(head.headers());
        let is_bodiless = is_head || matches!(head.status, 204 | 304);
        // RFC 9110 §8.6: HEAD and 304 may announce the length that GET would have; a 204 may not.
        let keeps_length = is_bodiless && head.status != 204;
        let mut has_date = false;
        for (name, value) in head.headers() {
            let is_length = name.eq_ignore_ascii_case(b"content-length");
            if is_state_field(name) || hop_by_hop.contains(name) && !(is_length && keeps_length) {
                continue;
            }
            has_date |= name.eq_ignore_ascii_case(b"date");
            for part in [name, b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(fields.as_bytes());
        let announced_len = match head.body {
            ResponseBodyLength::None => Some(0),
            ResponseBodyLength::Sized(length) => Some(length),
            ResponseBodyLength::Chunked | ResponseBodyLength::UntilClose => None,
        };
        let head_len = out.len();
        out.extend_from_slice(&[b'0'; CHUNK_HEAD]);
        let body_start = out.len();
        ResponseBuilder {
            bytes: out,
            status: head.status,
            has_date,
            announced_len,
            is_bodiless,
            accepts_chunked,
            head_len,
            body_start,
            begun: None,
        }
    }

    pub(super) fn push(&mut self, body: &[u8]) {
        self.bytes.extend_from_slice(body);
    }

    /// Bytes of body in the buffer.
    pub(super) fn body_len(&self) -> usize {
        self.bytes.len() - self.body_start
    }

    /// Whether the process has announced the length of the body.
    pub(super) fn has_length(&self) -> bool {
        self.announced_len.is_some()
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Returns the buffered part; `is_last`: the response is complete.
    pub(super) fn take_piece(&mut self, is_last: bool) -> UpstreamEvent {
        let framing = self.begun.unwrap_or_else(|| self.framing(is_last));
        let mut start = self.body_start;
        if framing == BodyFraming::Chunked {
            let size = self.body_len();
            if size > 0 {
                let frame = self.body_start - CHUNK_HEAD;
                // The ten bytes of a chunk head: eight hex digits suffice for the size of any piece.
                let _ = write!(&mut self.bytes[frame..self.body_start], "{size:08x}\r\n");
                self.bytes.extend_from_slice(b"\r\n");
                start = frame;
            }
            if is_last {
                self.bytes.extend_from_slice(CHUNK_END);
            }
        }
        let piece = ResponsePiece { bytes: std::mem::take(&mut self.bytes), start, is_last };
        let is_first = self.begun.replace(framing).is_none();
        if !is_last {
            // The next piece needs a new buffer: the event owns this one.
            self.bytes.resize(CHUNK_HEAD, b'0');
            self.body_start = CHUNK_HEAD;
        }
        if is_first {
            let ResponseBuilder { status, has_date, head_len, .. } = *self;
            UpstreamEvent::Response(UpstreamResponse { status, has_date, framing, head_len, piece })
        } else {
            UpstreamEvent::Piece(piece)
        }
    }

    fn framing(&self, is_last: bool) -> BodyFraming {
        match self.announced_len {
            _ if self.is_bodiless => BodyFraming::Bodiless,
            Some(length) => BodyFraming::Length(length),
            None if is_last => BodyFraming::Length(self.body_len() as u64),
            None if self.accepts_chunked => BodyFraming::Chunked,
            None => BodyFraming::Close,
        }
    }
}
