//! The answer to a job, as its lane fetches it.

use crate::job_claims::LanePosition;

/// What became of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobResult<R> {
    /// It ran and returned this.
    Done(R),
    /// It panicked, or its worker gave it up. Answer the peer with 500 or the like.
    Panicked,
    /// It waited longer than [`PoolLimits::age_max`](crate::PoolLimits::age_max), or too long in a queue that stands (see
    /// [`QueueTarget`](crate::QueueTarget)), and was not run. Answer with 503 or the
    /// like and say when to retry.
    Expired,
}

/// The answer to one submitted job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobCompletion<R> {
    /// The ticket that the job was submitted with.
    pub ticket: u64,
    /// Where it was queued: no other job of the lane has, had or will have this position.
    pub position: LanePosition,
    /// What became of it.
    pub outcome: JobResult<R>,
}
