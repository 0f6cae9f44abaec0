//! The door of one process: the supervisor opens and closes it, jobs go in and out.
//!
//! Entering and closing may race: a job counts itself in first and looks at the door afterwards, the supervisor
//! closes first and looks at the count afterwards, both in one total order. So when the supervisor has closed the
//! door and sees nobody inside, nobody is, and the process can be ended without costing a request.
//!
//! Each life of a process has a number of its own, from 1 on: a job that comes out late cannot condemn, or count for,
//! the next life.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use super::bell::Bell;
use super::relay::Notices;

#[derive(Debug)]
pub(super) struct Door {
    pub(super) number: usize,
    requests_max: u64,
    /// The life that takes jobs; 0: the door is closed.
    open_for: AtomicU64,
    inside: AtomicU32,
    /// Requests that the present life has done.
    served: AtomicU64,
    /// The last life that passed a deadline.
    condemned: AtomicU64,
    over: AtomicBool,
    opening: Mutex<()>,
    opened: Condvar,
    bell: Arc<Bell>,
    /// Weak, so that the relay ends with its owner.
    notices: OnceLock<Weak<Notices>>,
}

impl Door {
    pub(super) fn new(number: usize, requests_max: u64, bell: Arc<Bell>) -> Door {
        Door {
            number,
            requests_max,
            open_for: AtomicU64::new(0),
            inside: AtomicU32::new(0),
            served: AtomicU64::new(0),
            condemned: AtomicU64::new(0),
            over: AtomicBool::new(false),
            opening: Mutex::new(()),
            opened: Condvar::new(),
            bell,
            notices: OnceLock::new(),
        }
    }

    /// Supervisor: where to say something about the process.
    pub(super) fn hand_notices(&self, notices: &Arc<Notices>) {
        // It is handed over once, before the first opening.
        let _ = self.notices.set(Arc::downgrade(notices));
    }

    /// Says something about the process.
    pub(super) fn say(&self, text: &str) {
        if let Some(notices) = self.notices.get().and_then(Weak::upgrade) {
            notices.say(self.number, text);
        }
    }

    /// Supervisor: `life` takes jobs from now on.
    pub(super) fn open(&self, life: u64) {
        self.served.store(0, SeqCst);
        self.open_for.store(life, SeqCst);
        self.tell();
    }

    /// Supervisor: no job enters any more.
    pub(super) fn close(&self) {
        self.open_for.store(0, SeqCst);
        self.tell();
    }

    /// It will never open again.
    pub(super) fn end(&self) {
        self.over.store(true, SeqCst);
        self.tell();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inside.load(SeqCst) == 0
    }

    /// Whether the present life has done its number of requests.
    pub(super) fn is_worn(&self) -> bool {
        self.requests_max > 0 && self.served.load(SeqCst) >= self.requests_max
    }

    pub(super) fn is_condemned(&self, life: u64) -> bool {
        self.condemned.load(SeqCst) == life
    }

    /// Whether a job would get in, or hear that it never will.
    pub(super) fn answers(&self) -> bool {
        self.open_for.load(SeqCst) != 0 || self.over.load(SeqCst)
    }

    /// Waits for the door to open or to end for good; `until` bounds the wait.
    pub(super) fn wait(&self, until: Option<Instant>) {
        let mut guard = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.answers() {
            guard = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.opened.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return,
                Some(left) => self.opened.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Waits until that life takes no jobs any more, but not beyond `until`. Returns whether it is so.
    pub(super) fn wait_for_close(&self, life: u64, until: Instant) -> bool {
        let mut guard = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        while self.open_for.load(SeqCst) == life {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            guard = self.opened.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Goes in, as soon as the door opens but not after `until`. Returns the life that takes the job.
    pub(super) fn enter(&self, until: Instant) -> Option<u64> {
        loop {
            self.inside.fetch_add(1, SeqCst);
            match self.open_for.load(SeqCst) {
                0 => {}
                life => return Some(life),
            }
            self.go_out();
            if self.over.load(SeqCst) || Instant::now() >= until {
                return None;
            }
            self.wait(Some(until));
        }
    }

    /// Comes out, the request done.
    pub(super) fn leave(&self) {
        if self.requests_max > 0 && self.served.fetch_add(1, SeqCst) + 1 == self.requests_max {
            self.bell.ring();
        }
        self.go_out();
    }

    /// That life has passed a deadline: it gets no more jobs and is to be killed.
    pub(super) fn condemn(&self, life: u64) {
        let _ = self.open_for.compare_exchange(life, 0, SeqCst, SeqCst);
        self.condemned.fetch_max(life, SeqCst);
        self.bell.ring();
    }

    fn go_out(&self) {
        if self.inside.fetch_sub(1, SeqCst) == 1 && self.open_for.load(SeqCst) == 0 {
            self.bell.ring();
        }
    }

    /// Wakes those who wait. The lock makes sure that none is between its look and its sleep.
    fn tell(&self) {
        drop(self.opening.lock().unwrap_or_else(PoisonError::into_inner));
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(requests_max: u64) -> Door {
        Door::new(0, requests_max, Arc::new(Bell::new().expect("an eventfd")))
    }

    /// Row 1.24: a process is only ended between requests.
    #[test]
    fn a_closed_door_is_empty_only_when_the_last_job_has_left() {
        let door = door(0);
        assert!(!door.answers());
        assert_eq!(door.enter(Instant::now()), None);
        door.open(1);
        assert_eq!(door.enter(Instant::now()), Some(1));
        door.close();
        assert!(!door.is_empty());
        assert_eq!(door.enter(Instant::now()), None);
        door.leave();
        assert!(door.is_empty());
    }

    #[test]
    fn a_late_job_cannot_condemn_the_next_life() {
        let door = door(0);
        door.open(1);
        door.condemn(1);
        assert!(!door.answers() && door.is_condemned(1));
        door.open(2);
        door.condemn(1);
        assert!(door.answers() && !door.is_condemned(2));
    }

    #[test]
    fn requests_are_counted_for_each_life_anew() {
        let door = door(2);
        for life in 1..4 {
            door.open(life);
            for _ in 0..2 {
                assert!(!door.is_worn());
                assert_eq!(door.enter(Instant::now()), Some(life));
                door.leave();
            }
            assert!(door.is_worn());
        }
    }

    #[test]
    fn who_waits_hears_of_the_opening_and_of_the_end() {
        let door = Arc::new(door(0));
        for (act, expected) in
            [(Door::end as fn(&Door), None), (|door| door.open(7), Some(7))].into_iter().rev()
        {
            let waiting = std::thread::spawn({
                let door = Arc::clone(&door);
                move || {
                    door.wait(None);
                    door.enter(Instant::now())
                }
            });
            act(&door);
            assert_eq!(waiting.join().expect("it does not panic"), expected);
            door.close();
        }
    }
}
