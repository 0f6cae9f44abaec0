//! Waking the one consumer that sleeps somewhere of its own: a shard inside its driver's wait.
//!
//! The producer must not pay a system call when the consumer is awake, and the consumer must not sleep through
//! a message. Both follow from one flag and two fences:
//!
//! ```text
//!   consumer                               producer
//!   parked = true                          push, publish
//!   ---- fence ----                        ---- fence ----
//!   look into every mailbox again          parked?  take it and wake
//! ```
//!
//! Whichever fence comes second, its side sees what the other one wrote: the consumer finds the message, or the
//! producer finds the flag. Of several producers exactly one takes the flag. A wake may still arrive when the
//! consumer has already looked up by itself: consumers tolerate wakes for nothing.
//!
//! The flag is changed by read-modify-write only. Plain stores would be enough, but swaps make its history one
//! chain that the model checker can follow exactly, and beside a sleep they cost nothing.

use std::fmt;
use std::sync::atomic::AtomicU64 as Statistic;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use crate::planted;
use crate::sync::{AtomicBool, Ordering, fence};

/// How producers wake one consumer. Shared by reference or `Arc`; any number of producers, one consumer.
pub struct Wake {
    parked: AtomicBool,
    needed: Statistic,
    action: Box<dyn Fn() + Send + Sync>,
}

impl Wake {
    /// A wake whose `action` ends the consumer's sleep: writes to its eventfd, unparks its thread. The action
    /// runs on the producer's thread; it must not block, and when the consumer is not asleep yet it has to make
    /// the coming sleep end at once (eventfd and `Thread::unpark` both do).
    pub fn new(action: impl Fn() + Send + Sync + 'static) -> Wake {
        Wake { parked: AtomicBool::new(false), needed: Statistic::new(0), action: Box::new(action) }
    }

    /// A wake that unparks the thread in `thread`, which has to be set before that thread [parks](Wake::park) for the first time: a
    /// wake without it is lost.
    #[must_use]
    pub fn of_thread(thread: &Arc<OnceLock<Thread>>) -> Wake {
        let thread = Arc::clone(thread);
        Wake::new(move || thread.get().into_iter().for_each(Thread::unpark))
    }

    /// Consumer: announces that it is about to sleep. It then looks into all its mailboxes once more, sleeps
    /// only if they are empty, and calls [`unpark`](Wake::unpark) afterwards in either case.
    pub fn park(&self) {
        self.parked.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Consumer: is awake again and needs no wake.
    pub fn unpark(&self) {
        self.parked.swap(false, Ordering::AcqRel);
    }

    /// Producer: wakes the consumer if it is parked; call it once after each publication. Returns whether the
    /// action ran.
    pub fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        // The plain load keeps the consumer's cache line shared while it is awake, which is the common case.
        if !self.parked.load(Ordering::Relaxed) || !self.parked.swap(false, Ordering::AcqRel) {
            return false;
        }
        let needed = self.needed.fetch_add(1, Ordering::Relaxed) + 1;
        if planted!("lost wake") && needed.is_multiple_of(8) {
            return false;
        }
        (self.action)();
        true
    }

    /// Runs the action whether or not the consumer is parked: for control, such as asking it to stop.
    pub fn force(&self) {
        (self.action)();
    }

    /// How many notifications found the consumer parked.
    #[must_use]
    pub fn needed(&self) -> u64 {
        self.needed.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").field("needed", &self.needed()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn counted() -> (Wake, Arc<AtomicUsize>) {
        let runs = Arc::new(AtomicUsize::new(0));
        let wake = Wake::new({
            let runs = Arc::clone(&runs);
            move || {
                runs.fetch_add(1, Ordering::Relaxed);
            }
        });
        (wake, runs)
    }

    #[test]
    fn a_consumer_that_is_awake_costs_no_action() {
        let (wake, runs) = counted();
        assert!(!wake.notify());
        wake.park();
        wake.unpark();
        assert!(!wake.notify());
        assert_eq!(runs.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_sleep_is_woken_once_by_many_producers() {
        let (wake, runs) = counted();
        wake.park();
        assert!(wake.notify());
        assert!(!wake.notify());
        assert_eq!((runs.load(Ordering::Relaxed), wake.needed()), (1, 1));
    }

    #[test]
    fn force_runs_the_action_always() {
        let (wake, runs) = counted();
        wake.force();
        wake.park();
        wake.force();
        assert_eq!(runs.load(Ordering::Relaxed), 2);
        assert!(wake.notify(), "forcing must not use up the announcement");
    }
}
