//! A pool without processes, for simulations: the caller listens at the processes' addresses.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stilling_ring::Wake;
use stilling_workers::processes::{ProcessLimits, QueueLimits, SimulatedProcesses};

use super::pool::ProcessEndpoints;
use super::request_queue::RequestQueue;
use super::{AppRoutes, PathPattern, PoolIndex, UpstreamPool, UpstreamPools};

/// The pool of a server with one shard.
pub struct SimulatedPool {
    pub(crate) pools: UpstreamPools,
    pub(crate) routes: AppRoutes,
    pub(crate) slots: usize,
}

impl SimulatedPool {
    /// A pool that answers `paths` by processes at `addresses`, one for each, and waits `timeout` for a response.
    ///
    /// # Errors
    /// The system provides no descriptor.
    pub fn new(
        paths: &PathPattern,
        addresses: Vec<PathBuf>,
        (slots, timeout): (usize, Duration),
        queue: QueueLimits,
        wake: Arc<Wake>,
    ) -> io::Result<(SimulatedPool, SimulatedProcesses)> {
        let processes = addresses.len();
        let limits = ProcessLimits { processes, slots, ..ProcessLimits::default() };
        let (handle, queues) = SimulatedProcesses::new(limits, queue, vec![wake])?;
        let routes = AppRoutes::new(std::iter::once(paths));
        let pool = |queue| {
            let (queue, endpoints) =
                (RequestQueue::Common(queue), ProcessEndpoints::Paths(addresses.clone()));
            let index = PoolIndex::all().next()?;
            Some(UpstreamPool::new(index, queue, None, endpoints, timeout))
        };
        let pools = UpstreamPools::new(queues.into_iter().filter_map(pool).collect());
        Ok((SimulatedPool { pools, routes, slots: processes * slots }, handle))
    }
}

impl std::fmt::Debug for SimulatedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedPool").field("slots", &self.slots).finish_non_exhaustive()
    }
}
