//! Wakes one consumer that sleeps in its own event loop, as a shard does in its driver.
//!
//! A producer pays no system call while the consumer is awake, and the consumer never sleeps through a message. One
//! flag and two fences achieve both:
//!
//! ```text
//!   consumer                               producer
//!   parked = true                          push, publish
//!   ---- fence ----                        ---- fence ----
//!   check every mailbox again              parked?  clear it and wake
//! ```
//!
//! The side with the later fence sees the other side's write: the consumer finds the message, or the producer finds the
//! flag. Of several producers exactly one clears the flag. Consumers tolerate spurious wakes.
//!
//! Plain stores of the flag would suffice; swaps let the model checker follow its history exactly, and their cost is
//! negligible beside a sleep.

use std::fmt;
use std::sync::atomic::AtomicU64 as Statistic;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use crate::planted;
use crate::sync::{AtomicBool, Ordering, fence};

/// Wakes one consumer for any number of producers. Shared by reference or `Arc`.
pub struct Wake {
    parked: AtomicBool,
    wake_count: Statistic,
    action: Box<dyn Fn() + Send + Sync>,
}

impl Wake {
    /// A wake with an `action` that ends the consumer's sleep: it writes to an eventfd or unparks a thread. The action
    /// runs on the producer's thread and must not block. If the consumer is not asleep yet, it must end the coming
    /// sleep at once (eventfd and `Thread::unpark` both do).
    pub fn new(action: impl Fn() + Send + Sync + 'static) -> Wake {
        Wake { parked: AtomicBool::new(false), wake_count: Statistic::new(0), action: Box::new(action) }
    }

    /// A wake that unparks the thread in `thread`, which must be set before that thread first calls
    /// [`set_parked`](Wake::set_parked): an earlier wake is lost.
    #[must_use]
    pub fn for_thread(thread: &Arc<OnceLock<Thread>>) -> Wake {
        let thread = Arc::clone(thread);
        Wake::new(move || thread.get().into_iter().for_each(Thread::unpark))
    }

    /// Consumer: sets the flag, without sleeping. The consumer then checks all its mailboxes once more, sleeps if they
    /// are empty, and calls [`clear_parked`](Wake::clear_parked) in either case.
    pub fn set_parked(&self) {
        self.parked.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Consumer: clears the flag.
    pub fn clear_parked(&self) {
        self.parked.swap(false, Ordering::AcqRel);
    }

    /// Producer: wakes the consumer if it is parked; called once after each publication. Returns whether the action
    /// ran.
    pub fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        // The plain load keeps the consumer's cache line shared while the consumer is awake, the common case.
        if !self.parked.load(Ordering::Relaxed) || !self.parked.swap(false, Ordering::AcqRel) {
            return false;
        }
        let wake_count = self.wake_count.fetch_add(1, Ordering::Relaxed) + 1;
        if planted!("lost wake") && wake_count.is_multiple_of(8) {
            return false;
        }
        (self.action)();
        true
    }

    /// Runs the action whether or not the consumer is parked, for example to stop it.
    pub fn force(&self) {
        (self.action)();
    }

    /// Number of notifications that found the consumer parked.
    #[must_use]
    pub fn wake_count(&self) -> u64 {
        self.wake_count.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").field("needed", &self.wake_count()).finish_non_exhaustive()
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
        wake.set_parked();
        wake.clear_parked();
        assert!(!wake.notify());
        assert_eq!(runs.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_sleep_is_woken_once_by_many_producers() {
        let (wake, runs) = counted();
        wake.set_parked();
        assert!(wake.notify());
        assert!(!wake.notify());
        assert_eq!((runs.load(Ordering::Relaxed), wake.wake_count()), (1, 1));
    }

    #[test]
    fn force_runs_the_action_always() {
        let (wake, runs) = counted();
        wake.force();
        wake.set_parked();
        wake.force();
        assert_eq!(runs.load(Ordering::Relaxed), 2);
        assert!(wake.notify(), "forcing must not use up the announcement");
    }
}
