//! The result of a job, as fetched by its submitter.

use crate::job_claims::JobPosition;

/// Outcome of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobResult<R> {
    /// The job's return value.
    Done(R),
    /// The job panicked, or its worker dropped it. Answer the peer with 500 or the like.
    Panicked,
    /// The job waited longer than [`PoolLimits::age_max`](crate::PoolLimits::age_max), or too long in a standing queue
    /// (see [`QueueTarget`](crate::QueueTarget)), and was not run. Answer with 503 or the like and a time to retry.
    Expired,
}

/// The result of one submitted job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobCompletion<R> {
    /// The ticket passed to `submit`.
    pub ticket: u64,
    /// The job's position, unique within the submitter.
    pub position: JobPosition,
    /// The job's outcome.
    pub outcome: JobResult<R>,
}
