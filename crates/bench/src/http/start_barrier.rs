//! A barrier that gives the threads of a run one common start time.
//!
//! The last thread to arrive fixes the time and wakes the others; no thread blocks. A thread that fails cancels the
//! whole run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use stilling_ring::{Time, Wake};

/// Not passed yet.
const CLOSED: u64 = u64::MAX;

pub(crate) struct StartBarrier {
    missing: AtomicUsize,
    at: AtomicU64,
    cancelled: AtomicBool,
    wakes: Vec<Arc<Wake>>,
}

impl StartBarrier {
    /// A barrier for as many threads as there are wakes.
    pub(crate) fn new(wakes: Vec<Arc<Wake>>) -> Self {
        StartBarrier {
            missing: AtomicUsize::new(wakes.len()),
            at: AtomicU64::new(CLOSED),
            cancelled: AtomicBool::new(false),
            wakes,
        }
    }

    /// Registers this thread; each thread calls it once.
    pub(crate) fn arrive(&self, now: Time) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.at.store(now.as_nanos(), Ordering::Release);
            self.wake_all();
        }
    }

    /// Arrival time of the last thread; `None` before.
    pub(crate) fn start_time(&self) -> Option<Time> {
        match self.at.load(Ordering::Acquire) {
            CLOSED => None,
            at => Some(Time::from_nanos(at)),
        }
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.wake_all();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    fn wake_all(&self) {
        for wake in &self.wakes {
            wake.force();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_arrive_fixes_the_time_and_wakes_all() {
        let woken = Arc::new(AtomicUsize::new(0));
        let wake = || {
            let woken = Arc::clone(&woken);
            Arc::new(Wake::new(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            }))
        };
        let point = StartBarrier::new(vec![wake(), wake()]);
        point.arrive(Time::from_nanos(7));
        assert_eq!((point.start_time(), woken.load(Ordering::Relaxed)), (None, 0));
        point.arrive(Time::from_nanos(9));
        assert_eq!((point.start_time(), woken.load(Ordering::Relaxed)), (Some(Time::from_nanos(9)), 2));
    }
}
