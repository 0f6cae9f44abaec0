//! The interface of the pool for client sessions of any protocol.

use stilling_engine::Recipient;
use stilling_ring::Time;

use super::message::ClientMessage;
use super::pool::UpstreamPool;
use super::request::UpstreamRequest;
use super::request_table::RequestId;

/// A shard's access to the worker processes. Events of a request are sent to its `reply_to`.
pub(crate) struct UpstreamHandle<'a> {
    pool: &'a mut UpstreamPool,
}

impl<'a> UpstreamHandle<'a> {
    pub(crate) fn new(pool: &'a mut UpstreamPool) -> Self {
        UpstreamHandle { pool }
    }

    /// Queues a request, or gives it to a process at once.
    ///
    /// # Errors
    /// Returns the request if the queue is full.
    pub(crate) fn submit(
        &mut self,
        reply_to: Recipient,
        request: Box<UpstreamRequest>,
        now: Time,
    ) -> Result<RequestId, Box<UpstreamRequest>> {
        self.pool.submit(reply_to, request, now)
    }

    /// Whether the request still waits for a process.
    pub(crate) fn is_queued(&self, id: RequestId) -> bool {
        self.pool.is_queued(id)
    }

    /// Fails the request if the process has used up its time. Called at intervals while the client waits, because the
    /// engine reports no deadline to a connection when the process reads nothing.
    pub(crate) fn check_timeout(&mut self, id: RequestId) {
        self.pool.check_timeout(id);
    }

    /// Sends a message to the connection to the process.
    pub(crate) fn send(&mut self, id: RequestId, message: ClientMessage) {
        self.pool.send(id, message);
    }

    /// Gives up the request: its client has left, or was answered otherwise. `is_late`: the request waited in the
    /// queue for too long.
    pub(crate) fn abandon(&mut self, id: RequestId, is_late: bool) {
        self.pool.abandon(id, is_late);
    }
}
