//! What is kept of a request to a worker process.

use std::collections::VecDeque;
use std::time::Duration;

use stilling_ring::Time;

use crate::memory::MemoryReservation;
use crate::upstream::{RequestId, ResponsePiece, UpstreamRequest};

/// What is kept of a request to a worker process, outside of the connection's slot.
pub(super) struct ForwardedRequest {
    /// The request, until it is in the queue.
    pub(super) request: Option<Box<UpstreamRequest>>,
    /// Its id, once it is in the queue and until its response has come as a whole. Meanwhile it may have a slot.
    pub(super) id: Option<RequestId>,
    /// The process waits for more of the body.
    pub(super) is_body_wanted: bool,
    /// What has come of the body since the process has had a piece.
    pub(super) body: Vec<u8>,
    /// How long the process has waited for the client, for this body. With the bytes that have come it makes the body's
    /// rate, which counts over the whole of it: a client that trickles holds the slot no longer than its minimum allows.
    pub(super) client_wait: Duration,
    /// The pieces of the response that are on their way to the client.
    pub(super) pieces: VecDeque<ResponsePiece>,
    /// Counts these as held, and the one that the process may add.
    pub(super) reservation: Option<MemoryReservation>,
    /// The next piece of the response is still to be asked for.
    pub(super) next_piece_due: bool,
    /// When the rest of the first piece was offered to the client.
    pub(super) offered_at: Time,
    /// How long the client has taken over what it was offered, and the bytes of that which it has taken.
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
