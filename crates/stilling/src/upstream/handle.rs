//! The interface of the pool for client sessions of any protocol.

use std::sync::Arc;

use stilling_engine::Recipient;
use stilling_ring::Time;

use super::codec::AppProtocol;
use super::message::ClientMessage;
use super::pools::UpstreamPools;
use super::request::UpstreamRequest;
use super::request_table::{PoolIndex, RequestId};

/// A shard's access to the worker processes. Events of a request are sent to its `reply_to`.
pub(crate) struct UpstreamHandle<'a> {
    pools: &'a mut UpstreamPools,
}

impl<'a> UpstreamHandle<'a> {
    pub(crate) fn new(pools: &'a mut UpstreamPools) -> Self {
        UpstreamHandle { pools }
    }

    /// Queues a request, and dispatches it at once if a slot is free.
    ///
    /// # Errors
    /// Returns the request if the queue is full.
    pub(crate) fn submit(
        &mut self,
        reply_to: Recipient,
        request: Box<UpstreamRequest>,
        now: Time,
    ) -> Result<RequestId, Box<UpstreamRequest>> {
        self.pools.get_mut(request.pool).submit(reply_to, request, now)
    }

    /// Whether the processes get only requests whose body has been received whole.
    pub(crate) fn needs_whole_body(&mut self, request: &UpstreamRequest) -> bool {
        self.pools.get_mut(request.pool).protocol() == AppProtocol::Frames
    }

    /// The name of the cookie of a pool's sessions; `None`: it has no sessions.
    pub(crate) fn session_cookie(&mut self, pool: PoolIndex) -> Option<Arc<str>> {
        self.pools.get_mut(pool).session_cookie()
    }

    /// Whether the request still waits in the queue.
    pub(crate) fn is_queued(&self, id: RequestId) -> bool {
        self.pools.is_queued(id)
    }

    /// Logs a line about a pool.
    pub(crate) fn print_line(&mut self, pool: PoolIndex, text: &str) {
        self.pools.get_mut(pool).print_line(text);
    }

    /// Fails the request if the process's timeout has passed. Called at intervals while the client waits, because the
    /// engine reports no deadline to a connection while its output is blocked.
    pub(crate) fn check_timeout(&mut self, id: RequestId) {
        self.pools.get_mut(id.pool).check_timeout(id);
    }

    /// A client makes no more requests: pools with affinity free its processes.
    pub(crate) fn client_left(&mut self, client: Recipient) {
        self.pools.client_left(client);
    }

    pub(crate) fn send(&mut self, id: RequestId, message: ClientMessage) {
        self.pools.get_mut(id.pool).send(id, message);
    }

    /// Abandons the request: its client has left, or received another response. `is_late`: the request waited in the
    /// queue for too long.
    pub(crate) fn abandon(&mut self, id: RequestId, is_late: bool) {
        self.pools.get_mut(id.pool).abandon(id, is_late);
    }
}
