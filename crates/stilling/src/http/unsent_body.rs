//! The unsent rest of a response's body.

use super::response::ResponseBody;
use super::stream::BodyStream;
use crate::memory::MemoryReservation;

pub(super) struct UnsentBody {
    body: ResponseBody,
    /// Bytes sent; of a stream, those of its current piece.
    sent: usize,
    /// Memory for the bytes; a stream has its own reservation.
    _reservation: Option<MemoryReservation>,
}

/// The next step of a response after all available bytes were sent.
pub(super) enum BodyProgress {
    Done,
    /// The next piece is to be read.
    Piece(Box<BodyStream>),
    /// The source has failed: the response cannot be completed.
    Failed,
}

impl UnsentBody {
    pub(super) fn new(body: ResponseBody) -> Box<Self> {
        Self::with_reservation(body, None)
    }

    pub(super) fn with_reservation(body: ResponseBody, reservation: Option<MemoryReservation>) -> Box<Self> {
        Box::new(UnsentBody { body, sent: 0, _reservation: reservation })
    }

    /// A streamed body; its current piece, if any, has already been sent.
    pub(super) fn awaiting_piece(stream: Box<BodyStream>) -> Box<Self> {
        let sent = stream.framed().len();
        Box::new(UnsentBody { body: ResponseBody::Stream(stream), sent, _reservation: None })
    }

    pub(super) fn rest(&self) -> &[u8] {
        let bytes = match &self.body {
            ResponseBody::Static(bytes) => bytes,
            ResponseBody::Bytes(bytes) => &bytes[..],
            ResponseBody::Stream(stream) => stream.framed(),
            ResponseBody::Delegate(_) => &[],
        };
        &bytes[self.sent..]
    }

    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
    }

    pub(super) fn into_progress(self) -> BodyProgress {
        match self.body {
            ResponseBody::Stream(stream) if stream.has_failed() => BodyProgress::Failed,
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
        write!(f, "UnsentBody({} bytes)", self.rest().len())
    }
}
