//! State of a request to a worker process, and of its response, that does not fit into the connection's slot.

use std::collections::VecDeque;
use std::time::Duration;

use stilling_ring::Time;

use crate::memory::MemoryReservation;
use crate::upstream::{RequestId, ResponsePiece, UpstreamRequest};

pub(super) struct ForwardedRequest {
    /// The request, until it is queued.
    pub(super) request: Option<Box<UpstreamRequest>>,
    /// Its id, from queueing until the response is complete; during that time it may hold a slot.
    pub(super) id: Option<RequestId>,
    pub(super) is_body_wanted: bool,
    /// Bytes of the body received and not yet passed to the process.
    pub(super) body: Vec<u8>,
    /// How long the process has waited for the client's body so far. With the bytes received it gives the rate of the
    /// whole body, so that a client cannot restart the minimum rate with each piece.
    pub(super) client_wait: Duration,
    /// Pieces of the response that were not sent yet.
    pub(super) pieces: VecDeque<ResponsePiece>,
    /// Reserves memory for these pieces, and for the next one.
    pub(super) reservation: Option<MemoryReservation>,
    pub(super) next_piece_due: bool,
    /// When the rest of the first piece was offered to the client.
    pub(super) offered_at: Time,
    /// How long the client took to receive offered bytes, and how many of them were sent.
    pub(super) send_duration: Duration,
    pub(super) sent_bytes: u64,
}

impl std::fmt::Debug for ForwardedRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForwardedRequest").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ForwardedRequest {
    pub(super) fn new(request: Option<Box<UpstreamRequest>>, id: Option<RequestId>) -> Box<ForwardedRequest> {
        Box::new(ForwardedRequest {
            request,
            id,
            is_body_wanted: false,
            body: Vec::new(),
            client_wait: Duration::ZERO,
            pieces: VecDeque::new(),
            reservation: None,
            next_piece_due: false,
            offered_at: Time::ZERO,
            send_duration: Duration::ZERO,
            sent_bytes: 0,
        })
    }
}
