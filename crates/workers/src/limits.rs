//! What bounds a pool of threads.

use std::time::Duration;

use stilling_ring::CAPACITY_MAX;

use crate::growth::Growth;
use crate::queue_target::QueueTarget;

/// The largest [`PoolLimits::queue_max`], and the largest [`PoolLimits::threads`].
pub const QUEUE_MAX_LIMIT: usize = CAPACITY_MAX / 8;

/// What bounds a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolLimits {
    /// How many threads run jobs from the start. Zero is legal: then nobody takes jobs, and the caller runs them
    /// inline instead.
    pub threads: usize,
    /// How many jobs may wait in the whole pool, 1 to [`QUEUE_MAX_LIMIT`]; beyond that they are refused. Withdrawn jobs do not
    /// count, but keep their places in their lane's queue until a worker passes them: a lane has twice as many places, and
    /// refuses jobs while all are taken. Default 4096.
    pub queue_max: usize,
    /// How long a job may wait; one that a worker takes later than that is not run. Default 30 s.
    pub age_max: Duration,
    /// How the number of threads follows the work. By default it does not.
    pub growth: Growth,
    /// How many lanes may run a job in their own thread at the same time, instead of handing it over; the others
    /// submit theirs. Default 0.
    pub inline_max: usize,
    /// The wait that a standing queue is cut to: what has waited twice as long is not run. `None`: only `age_max`
    /// bounds the wait. Default: `None`.
    pub queue_target: Option<QueueTarget>,
}

impl Default for PoolLimits {
    /// One thread per processor that the process may use, 4096 jobs, 30 s.
    fn default() -> PoolLimits {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        PoolLimits {
            threads,
            queue_max: 4096,
            age_max: Duration::from_secs(30),
            growth: Growth::default(),
            inline_max: 0,
            queue_target: None,
        }
    }
}
