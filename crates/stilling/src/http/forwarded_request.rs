//! State of a forwarded request that does not fit into the connection's slot.

use std::collections::VecDeque;
use std::time::Duration;

use stilling_ring::Time;

use crate::memory::MemoryReservation;
use crate::upstream::{RequestId, ResponsePiece, UpstreamRequest};

/// State of a request to a worker process, and of its response.
pub(super) struct ForwardedRequest {
    /// The request, until it is queued.
    pub(super) request: Option<Box<UpstreamRequest>>,
    /// Its id, from queueing until the complete response has arrived. Meanwhile it may hold a slot.
    pub(super) id: Option<RequestId>,
    /// The process is ready for more of the body.
    pub(super) is_body_wanted: bool,
    /// Bytes of the body received since the last piece went to the process.
    pub(super) body: Vec<u8>,
    /// How long the process has waited for the client, for this body. Together with the bytes received it gives the
    /// rate over the whole body: a client that trickles holds the slot no longer than the minimum rate allows.
    pub(super) client_wait: Duration,
    /// Pieces of the response that the client has not taken.
    pub(super) pieces: VecDeque<ResponsePiece>,
    /// Counts these pieces, and one more that the process may add, as held.
    pub(super) reservation: Option<MemoryReservation>,
    /// The next piece of the response has not been requested.
    pub(super) next_piece_due: bool,
    /// When the rest of the first piece was offered to the client.
    pub(super) offered_at: Time,
    /// How long the client has taken for the bytes offered to it, and how many of them it has taken.
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
