//! The door of one process: the supervisor opens and closes it, jobs go in and out.
//!
//! Entering and closing may race: a job counts itself in first and looks at the door afterwards, the supervisor
//! closes first and looks at the count afterwards, both in one total order. So when the supervisor has closed the
//! door and sees nobody inside, nobody is, and the process can be ended without costing a request.
//!
//! Each life of a process has a number of its own, from 1 on: a job that comes out late cannot condemn, or count for,
//! the next life.
//!
//! A request that gets no answer in time does not prove that the process hangs, and others may be inside that would be
//! lost with it. It does when all that are inside are late, or when the request came after another late one and
//! nothing at all was heard of the process since.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
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
    served: Mutex<Served>,
    lateness: Mutex<Lateness>,
    /// Whether there is a suspicion that an answer would dispel.
    is_suspect: AtomicBool,
    /// The last life that passed a deadline.
    condemned: AtomicU64,
    over: AtomicBool,
    opening: Mutex<()>,
    opened: Condvar,
    bell: Arc<Bell>,
    /// Weak, so that the relay ends with its owner.
    notices: OnceLock<Weak<Notices>>,
}

/// Requests that a life has done.
#[derive(Debug, Default)]
struct Served {
    life: u64,
    requests: u64,
}

/// The life of which a request got no answer in time, and when the first of these was noticed; nothing was heard of
/// the process since.
#[derive(Debug, Default)]
struct Lateness {
    suspect: Option<(u64, Instant)>,
}

impl Door {
    pub(super) fn new(number: usize, requests_max: u64, bell: Arc<Bell>) -> Door {
        Door {
            number,
            requests_max,
            open_for: AtomicU64::new(0),
            inside: AtomicU32::new(0),
            served: Mutex::default(),
            lateness: Mutex::default(),
            is_suspect: AtomicBool::new(false),
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
        *lock(&self.served) = Served { life, requests: 0 };
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
        self.requests_max > 0 && lock(&self.served).requests >= self.requests_max
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

    /// Comes out, the request done by that life.
    pub(super) fn leave(&self, life: u64) {
        if self.requests_max > 0 {
            let mut served = lock(&self.served);
            if served.life == life {
                served.requests += 1;
                if served.requests == self.requests_max {
                    self.bell.ring();
                }
            }
        }
        self.go_out();
    }

    /// Something has come from that life: it does not hang.
    pub(super) fn hear(&self, life: u64) {
        if self.is_suspect.load(SeqCst) {
            let mut lateness = lock(&self.lateness);
            lateness.suspect.take_if(|(suspect, _)| *suspect == life);
            self.is_suspect.store(lateness.suspect.is_some(), SeqCst);
        }
    }

    /// Comes out, a request that had gone in at `entered` and got no answer in time from that life, at `now`. Returns
    /// whether the process is condemned for it.
    pub(super) fn leave_late(&self, life: u64, entered: Instant, now: Instant) -> bool {
        // The lock is held until this one is out: of several that are late at once, the last finds itself alone.
        let mut lateness = lock(&self.lateness);
        let is_alone = self.inside.load(SeqCst) == 1;
        let known_since = match lateness.suspect {
            Some((suspect, since)) if suspect == life => Some(since),
            _ => None,
        };
        let hangs = is_alone || known_since.is_some_and(|since| since <= entered);
        if hangs {
            self.condemn(life);
        } else if known_since.is_none() {
            lateness.suspect = Some((life, now));
            self.is_suspect.store(true, SeqCst);
        }
        self.leave(life);
        hangs
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        door.leave(1);
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
                door.leave(life);
            }
            assert!(door.is_worn());
        }
    }

    #[test]
    fn what_a_former_life_did_does_not_count_for_the_next() {
        let door = door(1);
        door.open(1);
        assert_eq!(door.enter(Instant::now()), Some(1));
        door.close();
        door.open(2);
        door.leave(1);
        assert!(!door.is_worn() && door.is_empty());
        assert_eq!(door.enter(Instant::now()), Some(2));
        door.leave(2);
        assert!(door.is_worn());
    }

    /// Row 1.24: a request that is late costs the others something only if the process hangs.
    #[test]
    fn a_late_request_condemns_a_process_only_when_nothing_speaks_for_it() {
        let begun = Instant::now();
        let at = |second: u64| begun + Duration::from_secs(second);
        let enter = |door: &Door| assert_eq!(door.enter(Instant::now()), Some(1));
        let busy = |inside: u32| {
            let door = door(0);
            door.open(1);
            (0..inside).for_each(|_| enter(&door));
            door
        };
        // Alone: nobody else loses anything.
        let door = busy(1);
        assert!(door.leave_late(1, at(0), at(60)) && door.is_condemned(1) && door.is_empty());
        // All that are inside, at the same time: the last of them condemns.
        let door = busy(3);
        assert!(!door.leave_late(1, at(0), at(60)) && !door.leave_late(1, at(0), at(60)));
        assert!(door.answers() && door.leave_late(1, at(0), at(60)));
        // Never alone, and nothing is heard any more. One that was there before the first had been late proves no more
        // than that one; one that came afterwards does.
        let door = busy(3);
        assert!(!door.leave_late(1, at(0), at(60)) && !door.leave_late(1, at(59), at(119)));
        enter(&door);
        assert!(door.leave_late(1, at(60), at(120)));
        // The same, but something was heard in between; of this life, that is.
        for (life, hangs) in [(1, false), (2, true)] {
            let door = busy(2);
            enter(&door);
            assert!(!door.leave_late(1, at(0), at(60)));
            door.hear(life);
            assert_eq!(door.leave_late(1, at(60), at(120)), hangs);
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
