//! What comes back from a process: its head rewritten, the body as far as it goes.
//!
//! ```text
//!   bytes:  head, without framing ┃ room for a chunk's frame ┃ body ┃ end of the chunk
//!           └── head_len ─────────┘                          └ or from here, unframed
//! ```
//!
//! The session adds what only it knows when the answer leaves: whether the connection persists, and the date.

use std::io::Write;

use stilling_wire::http1::{ReplyLength, ResponseHead};

use super::hop::Hop;

/// The frame of a chunk: eight hex digits and CRLF before it, CRLF behind it (RFC 9112 §7.1). Leading zeros are
/// legal, so its size does not depend on the chunk's.
const CHUNK_HEAD: usize = 10;
/// The last chunk and the empty trailer section.
const CHUNK_END: &[u8] = b"0\r\n\r\n";

/// What an exchange says to the client's session.
#[derive(Debug)]
pub(crate) enum Said {
    /// A whole answer, or the first part of one.
    Answer(Answer),
    /// The next part of the answer.
    Piece(Piece),
    /// The process takes more of the request's body.
    Ask,
    /// No process has taken the request in time.
    Expired,
    /// There is no answer.
    Refused(Refusal),
    /// The answer had begun and cannot be completed.
    Broken,
}

/// What the client's session replies.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It has gone to the client: the next one, please.
    More,
    /// More of the request's body; and whether that was the last of it.
    Body(Vec<u8>, bool),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No process takes requests, or this side has no place for a connection: 503.
    Unavailable,
    /// The process died or does not speak HTTP: 502.
    Bad,
    /// It did not answer in time: 504.
    Late,
}

/// How the client is told where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// By its length.
    Length(u64),
    /// By chunks.
    Chunked,
    /// By the end of the connection.
    Close,
    /// There is none, and no field says so; or the fields say what a body would be (HEAD, 304).
    Bodiless,
}

/// An answer, or its beginning.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) has_date: bool,
    pub(crate) framing: BodyFraming,
    pub(crate) head_len: usize,
    pub(crate) piece: Piece,
}

/// A piece of a body as it is sent, behind whatever else lies in the buffer.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    /// Where it begins.
    pub(crate) start: usize,
    /// Nothing comes behind it.
    pub(crate) is_last: bool,
}

/// An answer while it comes in.
pub(super) struct Draft {
    pub(super) bytes: Vec<u8>,
    status: u16,
    has_date: bool,
    /// The length that the process told, if there is a body and it told one.
    told: Option<u64>,
    bodiless: bool,
    takes_chunks: bool,
    head_len: usize,
    body_start: usize,
    /// The framing of an answer that is sent in several pieces, once the first has gone.
    begun: Option<BodyFraming>,
}

impl Draft {
    /// Rewrites a head into `out`, a buffer that may have been used before.
    pub(super) fn new(head: &ResponseHead<'_>, is_head: bool, takes_chunks: bool, mut out: Vec<u8>) -> Draft {
        out.clear();
        // Writing to memory does not fail.
        let _ = write!(out, "HTTP/1.1 {} ", head.status);
        out.extend_from_slice(head.reason);
        out.extend_from_slice(b"\r\n");
        let hop = Hop::of(head.headers());
        let bodiless = is_head || matches!(head.status, 204 | 304);
        // What the length of a body would be, is told where there is none for another reason than its absence.
        let tells_length = bodiless && head.status != 204;
        let mut has_date = false;
        for (name, value) in head.headers() {
            let is_length = name.eq_ignore_ascii_case(b"content-length");
            if hop.ends(name) && !(is_length && tells_length) {
                continue;
            }
            has_date |= name.eq_ignore_ascii_case(b"date");
            for part in [name, b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
        let told = match head.body {
            ReplyLength::None => Some(0),
            ReplyLength::Sized(length) => Some(length),
            ReplyLength::Chunked | ReplyLength::UntilClose => None,
        };
        let head_len = out.len();
        out.extend_from_slice(&[b'0'; CHUNK_HEAD]);
        let body_start = out.len();
        Draft {
            bytes: out,
            status: head.status,
            has_date,
            told,
            bodiless,
            takes_chunks,
            head_len,
            body_start,
            begun: None,
        }
    }

    /// Bytes of body that are ready.
    pub(super) fn body_len(&self) -> usize {
        self.bytes.len() - self.body_start
    }

    /// The body that the process has told is so long; `None`: it has told no length.
    pub(super) fn told(&self) -> Option<u64> {
        self.told
    }

    /// Whether something has been passed on.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Makes what has come ready to be passed on; `is_last`: it is all there is.
    pub(super) fn pass_on(&mut self, is_last: bool) -> Said {
        let framing = self.begun.unwrap_or_else(|| self.framing(is_last));
        let mut start = self.body_start;
        if framing == BodyFraming::Chunked {
            let size = self.body_len();
            if size > 0 {
                let frame = self.body_start - CHUNK_HEAD;
                // Ten bytes: a piece is shorter than eight hex digits can say.
                let _ = write!(&mut self.bytes[frame..self.body_start], "{size:08x}\r\n");
                self.bytes.extend_from_slice(b"\r\n");
                start = frame;
            }
            if is_last {
                self.bytes.extend_from_slice(CHUNK_END);
            }
        }
        let piece = Piece { bytes: std::mem::take(&mut self.bytes), start, is_last };
        let is_first = self.begun.replace(framing).is_none();
        if !is_last {
            // The next piece has a buffer of its own, since this one is on its way.
            self.bytes.resize(CHUNK_HEAD, b'0');
            self.body_start = CHUNK_HEAD;
        }
        if is_first {
            let Draft { status, has_date, head_len, .. } = *self;
            Said::Answer(Answer { status, has_date, framing, head_len, piece })
        } else {
            Said::Piece(piece)
        }
    }

    fn framing(&self, is_last: bool) -> BodyFraming {
        match self.told {
            _ if self.bodiless => BodyFraming::Bodiless,
            Some(length) => BodyFraming::Length(length),
            None if is_last => BodyFraming::Length(self.body_len() as u64),
            None if self.takes_chunks => BodyFraming::Chunked,
            None => BodyFraming::Close,
        }
    }
}
