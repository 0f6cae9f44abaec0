//! How many threads an elastic pool has, is to have, and uses; and the bell that its keeper sleeps by.
//!
//! Workers know when threads run short, since only taking a job makes one busy; the keeper alone says how many
//! there shall be (the aim) and starts them. So no shard has a part in it. The protocols:
//!
//! ```text
//!   worker takes a job                     keeper looks
//!   busy += 1                              called = false
//!   ---- fence ----                        ---- fence ----
//!   short of the aim?                      busy, aim: more threads, or fewer: then
//!   called was false?  ring                ---- fence ---- and busy once more
//! ```
//!
//! *Calling.* `scale_requested` is changed by swaps alone: a worker that finds it raised stands before the keeper's next
//! look, which therefore sees the worker's job. *Shrinking* against taking: one of the two fences comes second,
//! and its side sees the other's write; either the worker calls, or the keeper grows again by itself.
//! *Leaving.* Threads and aim are halves of one word: of many idle workers exactly the surplus goes.

use std::sync::PoisonError;
use std::sync::atomic::AtomicU64 as Statistic;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use stilling_ring::sync::{AtomicBool, AtomicU64, Condvar, Mutex, Ordering, fence};

use crate::growth::Growth;

pub(crate) struct PoolSize {
    pub(crate) growth: Growth,
    /// The aim in the upper half, the threads that are there or being started in the lower.
    word: AtomicU64,
    busy: AtomicU64,
    /// The most that were busy at once since the keeper last asked.
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
    pub(crate) fn new(growth: Growth, base: u64) -> PoolSize {
        PoolSize {
            growth,
            word: AtomicU64::new(base << 32 | base),
            busy: AtomicU64::new(0),
            busy_max: Statistic::new(0),
            scale_requested: AtomicBool::new(false),
            is_woken: Mutex::new(false),
            condvar: Condvar::new(),
        }
    }

    /// A worker has taken a job.
    pub(crate) fn job_started(&self) {
        let busy = self.busy.fetch_add(1, Ordering::AcqRel) + 1;
        self.busy_max.fetch_max(busy, Relaxed);
        fence(Ordering::SeqCst);
        let target = self.target();
        if target < self.growth.threads_max as u64
            && self.growth.is_short(target, busy)
            && !self.scale_requested.swap(true, Ordering::AcqRel)
        {
            self.wake_scaler();
        }
    }

    /// A worker's job is answered.
    pub(crate) fn job_finished(&self) {
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether some worker is to leave.
    pub(crate) fn has_surplus(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        threads_of(word) > target_of(word)
    }

    /// Counts the calling worker out, if one is to leave.
    pub(crate) fn try_retire(&self) -> bool {
        let one_less = |word: u64| (threads_of(word) > target_of(word)).then(|| word - 1);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }

    /// How many threads there are to be.
    pub(crate) fn target(&self) -> u64 {
        target_of(self.word.load(Ordering::Acquire))
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> u64 {
        threads_of(self.word.load(Ordering::Acquire))
    }

    /// Keeper: there are to be `target` threads. What is missing, the caller starts, counting each with
    /// [`add_thread`](PoolSize::add_thread); what is too much, leaves.
    pub(crate) fn set_target(&self, target: u64) {
        self.change(|word| target << 32 | threads_of(word));
        fence(Ordering::SeqCst);
    }

    /// Keeper: starts one thread more.
    pub(crate) fn add_thread(&self) {
        self.change(|word| word + 1);
    }

    /// Keeper: the thread did not start, and no other is to come.
    pub(crate) fn start_failed(&self) {
        self.change(|word| (threads_of(word) - 1) << 32 | (threads_of(word) - 1));
    }

    fn change(&self, change: impl Fn(u64) -> u64) {
        // Never refused, so there is no other case.
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(change(word)));
    }

    /// How many workers run a job.
    pub(crate) fn busy(&self) -> u64 {
        self.busy.load(Ordering::Acquire)
    }

    /// Keeper: the most that were busy at once since the last call.
    pub(crate) fn take_busy_max(&self) -> u64 {
        let busy_max = self.busy_max.swap(0, Relaxed);
        let busy = self.busy();
        self.busy_max.fetch_max(busy, Relaxed);
        busy_max.max(busy)
    }

    /// Whether a worker has called since the keeper's last look.
    pub(crate) fn is_scale_requested(&self) -> bool {
        self.scale_requested.load(Ordering::Acquire)
    }

    /// Keeper: is about to look.
    pub(crate) fn clear_request(&self) {
        self.scale_requested.swap(false, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Keeper: nobody needs to call, it will look by itself.
    pub(crate) fn suppress_requests(&self) {
        self.scale_requested.swap(true, Ordering::AcqRel);
    }

    /// Ends the keeper's sleep, or its next one.
    pub(crate) fn wake_scaler(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condvar.notify_one();
    }

    /// Keeper: sleeps until the bell rings, or for `timeout`.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) {
        let mut is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_woken {
            is_woken = match timeout {
                None => self.condvar.wait(is_woken).unwrap_or_else(PoisonError::into_inner),
                // Waking early for no reason only makes the keeper look once more.
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
