//! An answer that is longer than what may be sent at once.

use super::response::Body;
use super::stream::Stream;
use crate::memory::MemoryReservation;

/// The rest of an answer's body, on its way to the client.
pub(super) struct Sending {
    body: Body,
    /// Bytes of it that have been sent; of a stream: of its present piece.
    sent: usize,
    /// Counts bytes among the answers that are held. A stream has its own.
    _held: Option<MemoryReservation>,
}

/// What comes after bytes that have all been sent.
pub(super) enum Next {
    /// The answer is complete.
    Done,
    /// Another piece is to be read.
    Piece(Box<Stream>),
    /// The source has failed: the answer cannot be completed.
    Broken,
}

impl Sending {
    pub(super) fn new(body: Body) -> Box<Self> {
        Self::counted(body, None)
    }

    /// The same, counted among the answers that are held.
    pub(super) fn counted(body: Body, held: Option<MemoryReservation>) -> Box<Self> {
        Box::new(Sending { body, sent: 0, _held: held })
    }

    /// A streamed body whose present piece has been sent already, if there was one.
    pub(super) fn unread(stream: Box<Stream>) -> Box<Self> {
        let sent = stream.framed().len();
        Box::new(Sending { body: Body::Stream(stream), sent, _held: None })
    }

    /// What can be sent now.
    pub(super) fn rest(&self) -> &[u8] {
        let bytes = match &self.body {
            Body::Static(bytes) => bytes,
            Body::Bytes(bytes) => &bytes[..],
            Body::Stream(stream) => stream.framed(),
            Body::Delegate(_) => &[],
        };
        &bytes[self.sent..]
    }

    /// So many bytes of [`rest`](Self::rest) are sent.
    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
    }

    /// After everything of [`rest`](Self::rest).
    pub(super) fn next(self) -> Next {
        match self.body {
            Body::Stream(stream) if stream.has_failed() => Next::Broken,
            Body::Stream(stream) if !stream.is_last() => Next::Piece(stream),
            Body::Stream(_) | Body::Static(_) | Body::Bytes(_) | Body::Delegate(_) => Next::Done,
        }
    }
}

impl std::fmt::Debug for Sending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sending({} bytes left)", self.rest().len())
    }
}
