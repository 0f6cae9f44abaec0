//! The requests of one shard that wait for a slot of a pool, in the order that the pool has: all in common, or each
//! client's for its own process.

use std::time::Duration;

use stilling_engine::Recipient;
use stilling_ring::Time;
use stilling_workers::processes::{AdmissionOutcome, AdmissionTicket, AffinityQueue, ShardAdmissionQueue};

use super::request_table::RequestId;

pub(crate) enum RequestQueue {
    Common(ShardAdmissionQueue<RequestId>),
    /// With affinity: a client is a connection, or a peer of a datagram socket.
    ByClient(AffinityQueue<Recipient, RequestId>),
}

impl RequestQueue {
    pub(super) fn by_client(
        queue: ShardAdmissionQueue<RequestId>,
        processes: usize,
        idle: Duration,
    ) -> RequestQueue {
        RequestQueue::ByClient(AffinityQueue::new(queue, processes, idle))
    }

    /// Queues a request; false: the queue is full.
    pub(super) fn enqueue(&mut self, now: Time, client: Recipient, id: RequestId) -> Option<AdmissionTicket> {
        match self {
            RequestQueue::Common(queue) => queue.enqueue(now, id).ok(),
            RequestQueue::ByClient(queue) => queue.enqueue(now, client, id).ok(),
        }
    }

    pub(super) fn requeue(&mut self, now: Time, ticket: AdmissionTicket, client: Recipient, id: RequestId) {
        match self {
            RequestQueue::Common(queue) => queue.requeue(now, ticket, id),
            RequestQueue::ByClient(queue) => queue.requeue(now, ticket, client, id),
        }
    }

    pub(super) fn withdraw(
        &mut self,
        client: Recipient,
        ticket: AdmissionTicket,
        is_late: bool,
    ) -> Option<RequestId> {
        match self {
            RequestQueue::Common(queue) => queue.withdraw(ticket, is_late),
            RequestQueue::ByClient(queue) => queue.withdraw(client, ticket, is_late),
        }
    }

    pub(super) fn client_left(&mut self, client: Recipient) {
        if let RequestQueue::ByClient(queue) = self {
            queue.client_left(client);
        }
    }

    pub(super) fn poll_admission(
        &mut self,
        now: Time,
        has_connection: impl Fn(usize) -> bool,
    ) -> Option<AdmissionOutcome<RequestId>> {
        match self {
            RequestQueue::Common(queue) => queue.poll_admission(now, has_connection),
            RequestQueue::ByClient(queue) => queue.poll_admission(now),
        }
    }

    /// When [`poll_admission`](Self::poll_admission) must be called although no notification arrives.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        match self {
            RequestQueue::Common(_) => None,
            RequestQueue::ByClient(queue) => queue.next_deadline(),
        }
    }

    pub(super) fn is_notified(&self) -> bool {
        match self {
            RequestQueue::Common(queue) => queue.is_notified(),
            RequestQueue::ByClient(queue) => queue.shard_queue().is_notified(),
        }
    }

    pub(super) fn take_notification(&self) -> bool {
        match self {
            RequestQueue::Common(queue) => queue.take_notification(),
            RequestQueue::ByClient(queue) => queue.shard_queue().take_notification(),
        }
    }

    pub(super) fn connection_claims(&self, process: usize) -> u32 {
        match self {
            RequestQueue::Common(queue) => queue.connection_claims(process),
            RequestQueue::ByClient(queue) => queue.shard_queue().connection_claims(process),
        }
    }

    pub(super) fn generation(&self, process: usize) -> u64 {
        match self {
            RequestQueue::Common(queue) => queue.generation(process),
            RequestQueue::ByClient(queue) => queue.shard_queue().generation(process),
        }
    }

    pub(super) fn processes(&self) -> usize {
        match self {
            RequestQueue::Common(queue) => queue.processes(),
            RequestQueue::ByClient(queue) => queue.shard_queue().processes(),
        }
    }

    /// Logs a line about the pool.
    pub(super) fn print_line(&self, text: &str) {
        match self {
            RequestQueue::Common(queue) => queue.print_line(text),
            RequestQueue::ByClient(queue) => queue.shard_queue().print_line(text),
        }
    }
}
