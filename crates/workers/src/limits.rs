//! Bounds of a thread pool.

use std::time::Duration;

use stilling_ring::CAPACITY_MAX;

use crate::queue_target::QueueTarget;
use crate::scaling::PoolScaling;

/// The largest [`PoolLimits::queue_max`], and the largest [`PoolLimits::threads`].
pub const QUEUE_MAX_LIMIT: usize = CAPACITY_MAX / 8;

/// Bounds of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolLimits {
    /// Initial number of worker threads. With zero, no worker takes jobs, and the caller runs them inline.
    pub threads: usize,
    /// Maximum number of queued jobs in the whole pool, 1 to [`QUEUE_MAX_LIMIT`]; further jobs are rejected. Withdrawn
    /// jobs do not count, but hold their slots in their submitter's queue until a worker passes them: a submitter has
    /// twice `queue_max` slots, and rejects jobs while all are in use. Default 4096.
    pub queue_max: usize,
    /// Maximum queueing time; a job taken later is not run. Default 30 s.
    pub age_max: Duration,
    /// Dynamic number of threads. Off by default.
    pub scaling: PoolScaling,
    /// Maximum number of submitters that run a job in their own thread at the same time instead of submitting it.
    /// Default 0.
    pub inline_max: usize,
    /// Target wait of a standing queue: jobs that have waited twice as long are not run. `None`: only `age_max` bounds
    /// the wait. Default: `None`.
    pub queue_target: Option<QueueTarget>,
}

impl Default for PoolLimits {
    /// One thread per processor available to the process, 4096 jobs, 30 s.
    fn default() -> PoolLimits {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        PoolLimits {
            threads,
            queue_max: 4096,
            age_max: Duration::from_secs(30),
            scaling: PoolScaling::default(),
            inline_max: 0,
            queue_target: None,
        }
    }
}
