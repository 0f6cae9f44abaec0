//! An event count: wakes some of many idle threads, such as workers that wait for a job.
//!
//! It makes "check, and sleep if there is no work" safe against a lost wake, without a lock on the producer's side. A
//! sleeper gets a ticket, checks once more, and waits unless there has been a notification since the ticket. A producer
//! reads one counter and makes a system call only if a thread sleeps.
//!
//! ```text
//!   sleeper                                producer
//!   sleepers += 1                          publish the work
//!   ---- fence ----                        ---- fence ----
//!   ticket = epoch                         sleepers == 0?  done
//!   check again: work? cancel              epoch += 1
//!   sleep while epoch == ticket            wake as many as there is work
//! ```
//!
//! Sleepers tolerate spurious wakes. The epoch has 32 bits: a sleeper that stalls between `listen` and `wait` for
//! exactly a multiple of 2^32 notifications sleeps until the next one.

use crate::sync::{AtomicU32, CachePadded, Futex, Ordering, fence};

/// A wait queue for idle threads, with any number of sleepers and producers.
pub struct EventCount {
    sleepers: CachePadded<AtomicU32>,
    epoch: Futex,
}

/// The epoch from before the last check for work, to [`wait`](EventCount::wait) on or [`cancel`](EventCount::cancel).
#[must_use = "a ticket counts as a sleeper until it is waited on or cancelled"]
#[derive(Debug)]
pub struct WaitTicket(u32);

impl EventCount {
    /// An event count without sleepers.
    #[must_use]
    pub fn new() -> EventCount {
        EventCount { sleepers: CachePadded(AtomicU32::new(0)), epoch: Futex::new() }
    }

    /// Registers a sleeper. The caller checks for work once more, then calls [`wait`](EventCount::wait) or
    /// [`cancel`](EventCount::cancel).
    pub fn listen(&self) -> WaitTicket {
        self.sleepers.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Acquire: a thread that reads the epoch of a notification also sees the work published before it.
        WaitTicket(self.epoch.word.load(Ordering::Acquire))
    }

    /// Sleeps until a notification after `listen`; may also return spuriously.
    pub fn wait(&self, ticket: WaitTicket) {
        self.epoch.wait(ticket.0);
        self.sleepers.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Unregisters the sleeper: the last check found work.
    pub fn cancel(&self, ticket: WaitTicket) {
        let WaitTicket(_) = ticket;
        self.sleepers.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes one sleeper. Returns false if there is none.
    pub fn notify_one(&self) -> bool {
        self.notify(1) == 1
    }

    /// Wakes up to `count` sleepers, one per published piece of work. Returns how many sleepers were registered, at
    /// most `count`.
    pub fn notify(&self, count: usize) -> usize {
        fence(Ordering::SeqCst);
        let woken = count.min(self.sleepers());
        if woken > 0 {
            self.epoch.word.fetch_add(1, Ordering::AcqRel);
            for _ in 0..woken {
                self.epoch.wake_one();
            }
        }
        woken
    }

    /// Wakes every sleeper.
    pub fn notify_all(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers() > 0 {
            self.epoch.word.fetch_add(1, Ordering::AcqRel);
            self.epoch.wake_all();
        }
    }

    /// Number of threads that hold a ticket or sleep.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.sleepers.0.load(Ordering::Relaxed) as usize
    }
}

impl Default for EventCount {
    fn default() -> EventCount {
        EventCount::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    #[test]
    fn a_notification_after_listen_makes_wait_return() {
        let events = EventCount::new();
        assert!(!events.notify_one(), "no thread sleeps");
        let ticket = events.listen();
        assert!(events.notify_one());
        events.wait(ticket);
        assert_eq!(events.sleepers(), 0);
    }

    #[test]
    fn no_more_are_woken_than_sleep() {
        let events = EventCount::new();
        let tickets = [events.listen(), events.listen()];
        assert_eq!(events.notify(5), 2);
        for ticket in tickets {
            events.cancel(ticket);
        }
        assert_eq!(events.notify(5), 0);
    }

    #[test]
    fn every_piece_of_work_is_consumed_although_all_consumers_sleep() {
        const WORKERS: usize = 3;
        const WORK: usize = 20_000;
        let events = Arc::new(EventCount::new());
        let open = Arc::new(AtomicUsize::new(0));
        let take = |open: &AtomicUsize| {
            open.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1)).is_ok()
        };
        let (answered, answers) = std::sync::mpsc::channel();
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let (events, open, answered) = (Arc::clone(&events), Arc::clone(&open), answered.clone());
                thread::spawn(move || {
                    loop {
                        if !take(&open) {
                            let ticket = events.listen();
                            if take(&open) {
                                events.cancel(ticket);
                            } else {
                                events.wait(ticket);
                                continue;
                            }
                        }
                        if answered.send(()).is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        for _ in 0..WORK {
            open.fetch_add(1, Ordering::Release);
            events.notify_one();
            answers.recv().unwrap();
        }
        drop(answers);
        open.fetch_add(WORKERS, Ordering::Release);
        events.notify_all();
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(open.load(Ordering::Relaxed), 0);
    }
}
