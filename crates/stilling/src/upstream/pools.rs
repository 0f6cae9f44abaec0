//! All pools of one shard.

use stilling_engine::Recipient;
use stilling_ring::Time;

use super::outbox::UpstreamDelivery;
use super::pool::{ConnectAttempt, ConnectTarget, UpstreamPool};
use super::request_table::{PoolIndex, RequestId};

/// The pools of one shard, in the order of the configuration.
#[derive(Default)]
pub(crate) struct UpstreamPools {
    pools: Vec<UpstreamPool>,
    /// The pool whose deliveries are next: one with many does not delay the others.
    next: usize,
}

impl UpstreamPools {
    pub(crate) fn new(pools: Vec<UpstreamPool>) -> UpstreamPools {
        UpstreamPools { pools, next: 0 }
    }

    /// The pool with this index. Indexes come from [`AppRoutes`](super::AppRoutes) and requests of the same server.
    pub(crate) fn get_mut(&mut self, pool: PoolIndex) -> &mut UpstreamPool {
        &mut self.pools[usize::from(pool.0)]
    }

    pub(crate) fn is_queued(&self, id: RequestId) -> bool {
        self.pools[usize::from(id.pool.0)].is_queued(id)
    }

    pub(crate) fn client_left(&mut self, client: Recipient) {
        self.pools.iter_mut().for_each(|pool| pool.client_left(client));
    }

    pub(crate) fn next_delivery(&mut self) -> Option<UpstreamDelivery> {
        for _ in 0..self.pools.len() {
            self.next = (self.next + 1) % self.pools.len();
            if let Some(delivery) = self.pools[self.next].next_delivery() {
                return Some(delivery);
            }
        }
        None
    }

    /// Whether there is work for a turn; checked before the shard sleeps.
    pub(crate) fn has_work(&self) -> bool {
        self.pools.iter().any(UpstreamPool::has_work)
    }

    /// Does the work that is due. Returns when to call again at the latest.
    pub(crate) fn turn(&mut self, now: Time) -> Option<Time> {
        self.pools.iter_mut().filter_map(|pool| pool.turn(now)).min()
    }

    /// Connections to be opened.
    pub(crate) fn connects(&mut self) -> impl Iterator<Item = (ConnectTarget, ConnectAttempt)> + use<'_> {
        self.pools.iter_mut().flat_map(UpstreamPool::connects)
    }

    /// The number of connections to worker processes with abandoned requests.
    pub(crate) fn abandoned_requests_open(&self) -> u32 {
        self.pools.iter().map(UpstreamPool::abandoned_requests_open).sum()
    }
}
