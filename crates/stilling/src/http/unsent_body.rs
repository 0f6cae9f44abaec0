//! An answer that is longer than what may be sent at once.

use super::response::ResponseBody;
use super::stream::BodyStream;
use crate::memory::MemoryReservation;

/// The rest of an answer's body, on its way to the client.
pub(super) struct UnsentBody {
    body: ResponseBody,
    /// Bytes of it that have been sent; of a stream: of its present piece.
    sent: usize,
    /// Counts bytes among the answers that are held. A stream has its own.
    _reservation: Option<MemoryReservation>,
}

/// What comes after bytes that have all been sent.
pub(super) enum BodyProgress {
    /// The answer is complete.
    Done,
    /// Another piece is to be read.
    Piece(Box<BodyStream>),
    /// The source has failed: the answer cannot be completed.
    Broken,
}

impl UnsentBody {
    pub(super) fn new(body: ResponseBody) -> Box<Self> {
        Self::with_reservation(body, None)
    }

    /// The same, counted among the answers that are held.
    pub(super) fn with_reservation(body: ResponseBody, reservation: Option<MemoryReservation>) -> Box<Self> {
        Box::new(UnsentBody { body, sent: 0, _reservation: reservation })
    }

    /// A streamed body whose present piece has been sent already, if there was one.
    pub(super) fn awaiting_piece(stream: Box<BodyStream>) -> Box<Self> {
        let sent = stream.framed().len();
        Box::new(UnsentBody { body: ResponseBody::Stream(stream), sent, _reservation: None })
    }

    /// What can be sent now.
    pub(super) fn rest(&self) -> &[u8] {
        let bytes = match &self.body {
            ResponseBody::Static(bytes) => bytes,
            ResponseBody::Bytes(bytes) => &bytes[..],
            ResponseBody::Stream(stream) => stream.framed(),
            ResponseBody::Delegate(_) => &[],
        };
        &bytes[self.sent..]
    }

    /// So many bytes of [`rest`](Self::rest) are sent.
    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
    }

    /// After everything of [`rest`](Self::rest).
    pub(super) fn into_progress(self) -> BodyProgress {
        match self.body {
            ResponseBody::Stream(stream) if stream.has_failed() => BodyProgress::Broken,
            ResponseBody::Stream(stream) if !stream.is_last() => BodyProgress::Piece(stream),
            ResponseBody::Stream(_)
            | ResponseBody::Static(_)
            | ResponseBody::Bytes(_)
            | ResponseBody::Delegate(_) => BodyProgress::Done,
        }
    }
}

impl std::fmt::Debug for UnsentBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sending({} bytes left)", self.rest().len())
    }
}
