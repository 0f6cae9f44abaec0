//! A bounded pool of threads that runs blocking jobs for shards that never block.
//!
//! ```text
//!   shard 0 ─ JobSubmitter ─ jobs ─▶ ┐                                 ┌ ─▶ results ─ JobSubmitter ─ shard 0
//!   shard 1 ─ JobSubmitter ─ jobs ─▶ ┤ oldest first, under one lock ──▶ ┤ ─▶ results ─ JobSubmitter ─ shard 1
//!                                    ┘ that only workers take          └    then the shard's Wake
//! ```
//!
//! A shard submits a closure of at most 96 bytes, built in place in the queue, and later fetches the result under its
//! ticket. Shards take no lock and allocate nothing; workers may do both. The queue is first in, first out over all
//! shards, and bounded in length (a rejected closure is returned in [`SubmitError::Full`]) and in age (a job that
//! waited longer than [`PoolLimits::age_max`] is answered [`JobResult::Expired`] and not run); a [`QueueTarget`] also
//! sheds old jobs from a standing queue. A panic costs one result ([`JobResult::Panicked`]), never a thread. Every
//! accepted job has exactly one result, unless its submitter [withdraws](JobSubmitter::withdraw) it before a worker
//! takes it: then it is neither run nor answered.
//!
//! Requests for worker processes have a queue with the same order and bounds, and no pool thread: see [`processes`].
//!
//! All threads exist from the start, unless the pool may grow ([`PoolScaling`]): then a [`PoolScaler`] starts more when
//! too few are free, and retires them when they have not been needed for a while. Shards take no part in scaling.
//!
//! ```
//! use std::sync::Arc;
//! use std::thread;
//! use std::time::Duration;
//! use stilling_ring::{Clock, Wake};
//! use stilling_workers::{JobResult, Pool, PoolLimits};
//!
//! let shard = thread::current();
//! let wake = Arc::new(Wake::new(move || shard.unpark()));
//! let limits = PoolLimits { threads: 2, ..PoolLimits::default() };
//! let clock = Clock::real();
//! let (pool, mut submitters) = Pool::new(limits, clock.clone(), vec![Arc::clone(&wake)]);
//! pool.start()?;
//!
//! let submitter = &mut submitters[0];
//! for ticket in 0..3 {
//!     submitter.submit(ticket, move |_context| ticket * 10).expect("three jobs are below every limit");
//! }
//! submitter.publish(); // once per turn: makes the batch visible and wakes as many idle workers as it needs
//!
//! let mut sum = 0;
//! for _ in 0..3 {
//!     sum += loop {
//!         if let Some(completed) = submitter.next_result() {
//!             assert_eq!(completed.outcome, JobResult::Done(completed.ticket * 10));
//!             break completed.ticket;
//!         }
//!         wake.set_parked();
//!         if !submitter.has_result() {
//!             thread::park();
//!         }
//!         wake.clear_parked();
//!     };
//! }
//! assert_eq!(sum, 3);
//!
//! pool.close();
//! pool.join(clock.now().after(Duration::from_secs(5))).expect("nothing is left to do");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A job that captures more than 96 bytes does not compile:
//!
//! ```compile_fail
//! # use std::sync::Arc;
//! # use stilling_ring::{Clock, Wake};
//! # use stilling_workers::{Pool, PoolLimits};
//! # let wake = Arc::new(Wake::new(|| ()));
//! # let (_pool, mut submitters) = Pool::new(PoolLimits::default(), Clock::real(), vec![wake]);
//! let captured = [7_u8; 97];
//! let _ = submitters[0].submit(1, move |_| captured[0]);
//! ```
//!
//! With one byte less it does:
//!
//! ```
//! # use std::sync::Arc;
//! # use stilling_ring::{Clock, Wake};
//! # use stilling_workers::{Pool, PoolLimits};
//! # let wake = Arc::new(Wake::new(|| ()));
//! # let (_pool, mut submitters) = Pool::new(PoolLimits::default(), Clock::real(), vec![wake]);
//! let captured = [7_u8; 96];
//! assert!(submitters[0].submit(1, move |_| captured[0]).is_ok());
//! ```
#![forbid(unsafe_code)]

mod context;
mod counters;
mod job_claims;
mod job_result;
mod limits;
mod pool;
mod pool_core;
mod pool_size;
#[cfg(all(target_os = "linux", not(loom)))]
pub mod processes;
mod queue_target;
mod scaler;
mod scaling;
#[cfg(not(loom))]
pub mod sessions;
mod submitter;
mod threads;

pub use context::JobContext;
pub use counters::PoolCounters;
pub use job_claims::JobPosition;
pub use job_result::{JobCompletion, JobResult};
pub use limits::{PoolLimits, QUEUE_MAX_LIMIT};
pub use pool::Pool;
pub use pool_core::{ClaimedJob, FinishedJob};
pub use queue_target::QueueTarget;
pub use scaler::PoolScaler;
pub use scaling::PoolScaling;
pub use submitter::{JobSubmitter, SubmitError};
pub use threads::JoinTimeout;
