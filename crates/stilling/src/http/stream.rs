//! A body that is read while it is sent.
//!
//! ```text
//!   worker: fill ── piece ──► session ── send ──► client
//!      ▲                         │ piece sent
//!      └──────── stream ─────────┘
//! ```
//!
//! The stream, its source and its buffer move together between session and workers, so no lock is needed. The buffer
//! holds a piece as it is sent, framed if the response is chunked.

use std::io::{self, Read, Write};

use crate::memory::MemoryReservation;

/// Bytes of body in one piece. A framed piece fits into the output of one call of a session.
pub(super) const PIECE_SIZE: usize = 32 * 1024;

/// Bytes before a chunk: eight hex digits and CRLF; CRLF also follows it (RFC 9112 §7.1). Leading zeros are legal, so
/// the size of the frame does not depend on that of the chunk.
const CHUNK_HEAD: usize = 10;
/// Bytes that a stream reserves: its buffer, with the frame of a chunk and the last chunk.
pub(super) const STREAM_COST: usize = PIECE_SIZE + CHUNK_HEAD + 2 + CHUNK_END.len();
const CHUNK_END: &[u8] = b"0\r\n\r\n";

/// How the client finds the end of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamFraming {
    /// By its length, or by the end of the connection.
    Plain,
    /// By chunks.
    Chunked,
}

#[derive(Debug, PartialEq, Eq)]
enum SourceState {
    More,
    Ended,
    /// The source failed or was shorter than announced.
    Failed,
}

pub(super) struct BodyStream {
    source: Box<dyn Read + Send>,
    length: Option<u64>,
    read: u64,
    buffer: Vec<u8>,
    framing: StreamFraming,
    /// The offset of the bytes to be sent: unframed, they begin after the space for a chunk head.
    start: usize,
    state: SourceState,
    /// Memory for the buffer, once the response is being sent.
    reservation: Option<MemoryReservation>,
}

impl std::fmt::Debug for BodyStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BodyStream({} bytes of {:?}, {:?})", self.read, self.length, self.state)
    }
}

impl BodyStream {
    pub(super) fn new(source: Box<dyn Read + Send>, length: Option<u64>) -> Box<Self> {
        let state = if length == Some(0) { SourceState::Ended } else { SourceState::More };
        Box::new(BodyStream {
            source,
            length,
            read: 0,
            buffer: Vec::new(),
            framing: StreamFraming::Plain,
            start: 0,
            state,
            reservation: None,
        })
    }

    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state == SourceState::Failed
    }

    /// Reads the next piece into the buffer, unframed. May block.
    pub(super) fn fill(&mut self) {
        self.buffer.resize(CHUNK_HEAD, b'0');
        let left = self.length.map_or(u64::MAX, |length| length - self.read);
        let wanted = PIECE_SIZE.min(usize::try_from(left).unwrap_or(usize::MAX));
        // A source of unknown length may be slow, so the bytes of one read are sent at once. With a known length the
        // piece is filled.
        while self.state == SourceState::More && self.piece_len() < wanted {
            let at = self.buffer.len();
            self.buffer.resize(CHUNK_HEAD + wanted, 0);
            let read = self.source.read(&mut self.buffer[at..]);
            self.buffer.truncate(at + read.as_ref().map_or(0, |read| *read));
            match read {
                Ok(0) => {
                    self.state = if self.length.is_some() { SourceState::Failed } else { SourceState::Ended }
                }
                Ok(_) if self.length.is_none() => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.state = SourceState::Failed,
            }
        }
        self.read += self.piece_len() as u64;
        if self.length == Some(self.read) {
            self.state = SourceState::Ended;
        }
    }

    fn piece_len(&self) -> usize {
        self.buffer.len() - CHUNK_HEAD
    }

    /// The whole body, if the first piece contains it.
    pub(super) fn into_complete(mut self: Box<Self>) -> Result<Vec<u8>, Box<Self>> {
        if self.state == SourceState::More && self.length.is_none() && self.piece_len() < PIECE_SIZE / 2 {
            return Err(self);
        }
        if self.state == SourceState::Ended && self.read == self.piece_len() as u64 {
            self.buffer.drain(..CHUNK_HEAD);
            return Ok(std::mem::take(&mut self.buffer));
        }
        Err(self)
    }

    /// Sets the framing before the first piece is sent. A piece already read is framed now.
    pub(super) fn set_framing(&mut self, framing: StreamFraming, reservation: Option<MemoryReservation>) {
        (self.framing, self.reservation) = (framing, reservation);
        if self.has_piece() {
            self.frame();
        }
    }

    pub(super) fn next_piece(&mut self) {
        self.fill();
        self.frame();
    }

    /// Whether a piece was read, even an empty one.
    pub(super) fn has_piece(&self) -> bool {
        !self.buffer.is_empty()
    }

    fn frame(&mut self) {
        let size = self.piece_len();
        self.start = CHUNK_HEAD;
        if self.framing == StreamFraming::Plain {
            return;
        }
        if size > 0 {
            // The ten bytes of a chunk head: eight hex digits suffice for the size of any piece.
            let _ = write!(&mut self.buffer[..CHUNK_HEAD], "{size:08x}\r\n");
            self.buffer.extend_from_slice(b"\r\n");
            self.start = 0;
        }
        if self.state == SourceState::Ended {
            self.buffer.extend_from_slice(CHUNK_END);
        }
    }

    pub(super) fn framed(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    pub(super) fn is_last(&self) -> bool {
        self.state != SourceState::More
    }
}
