//! What the endpoint needs from outside: it has no access to the worker processes and the hub itself.

use stilling_engine::DatagramPath;

use super::bridge::BridgeCall;
use super::pending::PendingId;
use crate::upstream::{PoolIndex, RequestId, UpstreamRequest};

/// A call, made in the order of [`CoapShard::next_call`](super::CoapShard::next_call).
#[derive(Debug)]
pub(crate) enum CoapCall {
    /// Submit a request. Then [`CoapShard::submitted`](super::CoapShard::submitted) or
    /// [`CoapShard::refused`](super::CoapShard::refused) is called.
    Forward {
        exchange: PendingId,
        /// The client: the recipient of the events.
        path: DatagramPath,
        request: Box<UpstreamRequest>,
    },
    /// Log a line about a pool.
    Report { pool: PoolIndex, line: &'static str },
    /// Request the next piece of a response.
    Continue(RequestId),
    /// The answer is no longer needed. `is_late`: the request waited for too long.
    Abandon { request: RequestId, is_late: bool },
    /// For the [`HubBridge`](super::HubBridge).
    Hub(BridgeCall),
}
