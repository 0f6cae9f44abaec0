//! Target, actual and busy thread counts of an elastic pool, and the wake-up of its scaler.
//!
//! Workers detect a shortage of threads, because a thread becomes busy only by taking a job; only the scaler sets the
//! target and starts threads. Shards take no part. The protocols:
//!
//! ```text
//!   worker takes a job                     scaler runs
//!   busy += 1                              scale_requested = false
//!   ---- fence ----                        ---- fence ----
//!   short of the target?                   busy, target: more threads, or fewer: then
//!   scale_requested was false?  wake       ---- fence ---- and busy once more
//! ```
//!
//! *Requesting.* `scale_requested` is changed by swaps alone: a worker that finds it set precedes the scaler's next
//! run, which therefore sees the worker's job. *Shrinking* races with taking a job: one of the two fences comes second,
//! and its side sees the other's write; either the worker requests scaling, or the scaler grows again by itself.
//! *Retiring.* Thread count and target are halves of one word: of many idle workers exactly the surplus retires.

use std::sync::PoisonError;
use std::sync::atomic::AtomicU64 as Statistic;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use stilling_ring::sync::{AtomicBool, AtomicU64, Condvar, Mutex, Ordering, fence};

use crate::scaling::PoolScaling;

pub(crate) struct PoolSize {
    pub(crate) scaling: PoolScaling,
    /// The target in the upper half, the threads that exist or are being started in the lower.
    word: AtomicU64,
    busy: AtomicU64,
    /// Peak of `busy` since the scaler's last read.
    busy_max: Statistic,
    scale_requested: AtomicBool,
    is_woken: Mutex<bool>,
    condvar: Condvar,
}

fn target_of(word: u64) -> u64 {
    word >> 32
}

fn threads_of(word: u64) -> u64 {
    word & u64::from(u32::MAX)
}

impl PoolSize {
    pub(crate) fn new(scaling: PoolScaling, base: u64) -> PoolSize {
        PoolSize {
            scaling,
            word: AtomicU64::new(base << 32 | base),
            busy: AtomicU64::new(0),
            busy_max: Statistic::new(0),
            scale_requested: AtomicBool::new(false),
            is_woken: Mutex::new(false),
            condvar: Condvar::new(),
        }
    }

    /// Counts a worker that has taken a job; wakes the scaler if the pool is short of threads.
    pub(crate) fn job_started(&self) {
        let busy = self.busy.fetch_add(1, Ordering::AcqRel) + 1;
        self.busy_max.fetch_max(busy, Relaxed);
        fence(Ordering::SeqCst);
        let target = self.target();
        if target < self.scaling.threads_max as u64
            && self.scaling.is_short(target, busy)
            && !self.scale_requested.swap(true, Ordering::AcqRel)
        {
            self.wake_scaler();
        }
    }

    pub(crate) fn job_finished(&self) {
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn has_surplus(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        threads_of(word) > target_of(word)
    }

    pub(crate) fn try_retire(&self) -> bool {
        let one_less = |word: u64| (threads_of(word) > target_of(word)).then(|| word - 1);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }

    pub(crate) fn target(&self) -> u64 {
        target_of(self.word.load(Ordering::Acquire))
    }

    pub(crate) fn threads(&self) -> u64 {
        threads_of(self.word.load(Ordering::Acquire))
    }

    /// Scaler: sets the target. The caller starts missing threads, counting each with
    /// [`add_thread`](PoolSize::add_thread); surplus threads retire.
    pub(crate) fn set_target(&self, target: u64) {
        self.change(|word| target << 32 | threads_of(word));
        fence(Ordering::SeqCst);
    }

    /// Scaler: counts a thread about to be started.
    pub(crate) fn add_thread(&self) {
        self.change(|word| word + 1);
    }

    /// Scaler: uncounts a thread that did not start, and lowers the target to the actual number.
    pub(crate) fn start_failed(&self) {
        self.change(|word| (threads_of(word) - 1) << 32 | (threads_of(word) - 1));
    }

    fn change(&self, change: impl Fn(u64) -> u64) {
        // The closure never returns `None`, so the update cannot fail.
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(change(word)));
    }

    pub(crate) fn busy(&self) -> u64 {
        self.busy.load(Ordering::Acquire)
    }

    /// Scaler: returns the peak of `busy` since the last call.
    pub(crate) fn take_busy_max(&self) -> u64 {
        let busy_max = self.busy_max.swap(0, Relaxed);
        let busy = self.busy();
        self.busy_max.fetch_max(busy, Relaxed);
        busy_max.max(busy)
    }

    pub(crate) fn is_scale_requested(&self) -> bool {
        self.scale_requested.load(Ordering::Acquire)
    }

    /// Scaler: clears the request before a run.
    pub(crate) fn clear_request(&self) {
        self.scale_requested.swap(false, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Scaler: suppresses requests, because the next run is already scheduled.
    pub(crate) fn suppress_requests(&self) {
        self.scale_requested.swap(true, Ordering::AcqRel);
    }

    /// Ends the scaler's sleep, or its next one.
    pub(crate) fn wake_scaler(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condvar.notify_one();
    }

    /// Scaler: sleeps until woken, or for `timeout`.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) {
        let mut is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_woken {
            is_woken = match timeout {
                None => self.condvar.wait(is_woken).unwrap_or_else(PoisonError::into_inner),
                // A spurious wake-up only causes one more run of the scaler.
                Some(timeout) => {
                    self.condvar.wait_timeout(is_woken, timeout).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            if timeout.is_some() {
                break;
            }
        }
        *is_woken = false;
    }
}
