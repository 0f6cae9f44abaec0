//! Bytes received ahead of the scripts of all threads, and the return of their memory to the system after a burst.
//!
//! Buffers of many connections lie between other blocks, where the allocator keeps them when they are free. To return
//! them costs system calls, and new pages at the next burst: with 40 senders to one thread, done whenever 256 KiB were
//! free, it raised the CPU time per byte by more than half. So it is done once per [`RETURN_INTERVAL`] at most, by the
//! event loop, which wakes for it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use stilling_engine::{Clock, Time};

/// A peak from which on memory is returned once most of it is free.
const RETURNED_FROM: i64 = 256 * 1024;

/// The part of the peak that may still be in use then: 1 / this.
const USED_PART: i64 = 8;

/// Shortest time between two returns of memory.
const RETURN_INTERVAL: Duration = Duration::from_secs(1);

/// The pool of the process.
pub(crate) static SPECIAL_POOL: SpecialPool = SpecialPool::new();

/// Counts of received bytes.
pub(crate) struct SpecialPool {
    bytes: AtomicI64,
    /// The most bytes since memory was last returned.
    peak: AtomicI64,
    /// When that was, in nanoseconds of the clock.
    returned_at: AtomicU64,
}

impl SpecialPool {
    const fn new() -> SpecialPool {
        SpecialPool { bytes: AtomicI64::new(0), peak: AtomicI64::new(0), returned_at: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, count: usize) {
        let now = self.bytes.fetch_add(count as i64, Ordering::Relaxed) + count as i64;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, count: usize) {
        self.bytes.fetch_sub(count as i64, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the memory of a past burst to the system; `Some`: the time until that may be done again.
    pub(crate) fn return_memory(&self, clock: &Clock) -> Option<Duration> {
        if !self.is_mostly_free() {
            return None;
        }
        let wait = self.time_to_return(clock.now());
        if wait.is_none() {
            return_free_memory();
        }
        wait
    }

    fn is_mostly_free(&self) -> bool {
        let peak = self.peak.load(Ordering::Relaxed);
        peak >= RETURNED_FROM && self.bytes() <= peak / USED_PART
    }

    /// The rest of the interval; `None`: it is over, and the next one begins.
    fn time_to_return(&self, now: Time) -> Option<Duration> {
        let since = now.since(Time::from_nanos(self.returned_at.load(Ordering::Relaxed)));
        let rest = RETURN_INTERVAL.saturating_sub(since);
        if !rest.is_zero() {
            return Some(rest);
        }
        self.returned_at.store(now.as_nanos(), Ordering::Relaxed);
        self.peak.store(self.bytes(), Ordering::Relaxed);
        None
    }
}

fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it only releases pages that the allocator does not use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 3.15: memory is returned once most of it is free, not more often than once per interval, and not without a
    /// burst.
    #[test]
    fn memory_is_returned_once_per_interval_after_bursts() {
        let pool = SpecialPool::new();
        let (clock, time) = Clock::manual();
        time.advance(RETURN_INTERVAL);
        pool.add(RETURNED_FROM as usize - 1);
        pool.remove(RETURNED_FROM as usize - 1);
        assert!(!pool.is_mostly_free(), "no burst");
        for _ in 0..2 {
            pool.add(RETURNED_FROM as usize);
            assert!(!pool.is_mostly_free(), "in use");
            pool.remove(RETURNED_FROM as usize);
            assert!(pool.is_mostly_free());
            assert_eq!(pool.return_memory(&clock), None);
            assert!(!pool.is_mostly_free(), "it was returned");
            pool.add(RETURNED_FROM as usize);
            pool.remove(RETURNED_FROM as usize);
            assert_eq!(pool.return_memory(&clock), Some(RETURN_INTERVAL), "it may be returned later");
            assert!(pool.is_mostly_free());
            time.advance(RETURN_INTERVAL);
        }
        assert_eq!(pool.bytes(), 0);
    }
}
