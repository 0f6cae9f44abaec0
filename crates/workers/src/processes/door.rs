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
//! lost with it. It does when all that are inside are late, or when the request came after another late one and nothing
//! at all was heard of the process since. One that is late may stay inside, because the process may work on it still:
//! then it is inside as one that is overdue. To judge that is rare, and takes a lock for a few instructions, under which
//! nobody is woken; so does the way out of what is overdue; nothing else does.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use stilling_ring::Time;

use super::bell::Bell;
use super::hall::Hall;
use super::relay::Notices;

#[derive(Debug)]
pub(super) struct Door {
    pub(super) number: usize,
    slots: u32,
    requests_max: u64,
    /// The life that takes jobs; 0: the door is closed.
    open_for: AtomicU64,
    inside: AtomicU32,
    /// Connections that there are, or are to be.
    connections: AtomicU32,
    /// Who is inside and finds no room for a connection.
    claims: AtomicU32,
    served: Served,
    lateness: Mutex<Lateness>,
    /// Whether there is a suspicion that an answer would dispel.
    is_suspect: AtomicBool,
    /// The last life that passed a deadline.
    condemned: AtomicU64,
    bell: Arc<Bell>,
    hall: Arc<Hall>,
    /// Weak, so that the relay ends with its owner.
    notices: OnceLock<Weak<Notices>>,
}

/// Requests that a life has done, in one word: the life (its low bits, which tell it from the one before) and their
/// number.
#[derive(Debug, Default)]
struct Served(AtomicU64);

impl Served {
    const NUMBER_BITS: u32 = 40;
    const NUMBER: u64 = (1 << Self::NUMBER_BITS) - 1;

    /// A life begins.
    fn begin(&self, life: u64) {
        self.0.store(life << Self::NUMBER_BITS, SeqCst);
    }

    /// Counts one for that life, unless it is over. Returns how many it has done.
    fn count(&self, life: u64) -> Option<u64> {
        let one_more = |word: u64| {
            let is_present = word >> Self::NUMBER_BITS == (life << Self::NUMBER_BITS) >> Self::NUMBER_BITS;
            (is_present && word & Self::NUMBER != Self::NUMBER).then(|| word + 1)
        };
        self.0.fetch_update(SeqCst, SeqCst, one_more).ok().map(|before| (before & Self::NUMBER) + 1)
    }

    fn requests(&self) -> u64 {
        self.0.load(SeqCst) & Self::NUMBER
    }
}

#[derive(Debug, Default)]
struct Lateness {
    /// The life of which a request got no answer in time, and when the first of these was noticed; nothing was heard of
    /// the process since.
    suspect: Option<(u64, Time)>,
    /// Requests inside that are late.
    overdue: u32,
}

impl Door {
    pub(super) fn new(
        number: usize,
        slots: usize,
        requests_max: u64,
        bell: Arc<Bell>,
        hall: Arc<Hall>,
    ) -> Door {
        Door {
            number,
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            requests_max,
            open_for: AtomicU64::new(0),
            inside: AtomicU32::new(0),
            connections: AtomicU32::new(0),
            claims: AtomicU32::new(0),
            served: Served::default(),
            lateness: Mutex::default(),
            is_suspect: AtomicBool::new(false),
            condemned: AtomicU64::new(0),
            bell,
            hall,
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

    pub(super) fn hall(&self) -> &Hall {
        &self.hall
    }

    /// Supervisor: `life` takes jobs from now on.
    pub(super) fn open(&self, life: u64) {
        self.served.begin(life);
        self.open_for.store(life, SeqCst);
        self.hall.knock_for_all();
    }

    /// Supervisor: no job enters any more.
    pub(super) fn close(&self) {
        self.open_for.store(0, SeqCst);
        self.hall.knock_for_all();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inside.load(SeqCst) == 0
    }

    /// Whether the present life has done its number of requests.
    pub(super) fn is_worn(&self) -> bool {
        self.requests_max > 0 && self.served.requests() >= self.requests_max
    }

    pub(super) fn is_condemned(&self, life: u64) -> bool {
        self.condemned.load(SeqCst) == life
    }

    /// The life that takes jobs; 0: none does.
    pub(super) fn life(&self) -> u64 {
        self.open_for.load(SeqCst)
    }

    /// How many are inside, if one more might go in.
    pub(super) fn load(&self) -> Option<u32> {
        let inside = self.inside.load(SeqCst);
        (self.life() != 0 && inside < self.slots).then_some(inside)
    }

    /// Goes in, if the door is open and there is room. Returns the life that takes the job.
    pub(super) fn try_enter(&self) -> Option<u64> {
        let one_more = |inside: u32| (inside < self.slots).then_some(inside + 1);
        self.inside.fetch_update(SeqCst, SeqCst, one_more).ok()?;
        match self.life() {
            0 => {
                // Whoever found no room because of this one has another chance when the door opens.
                self.come_out();
                None
            }
            life => Some(life),
        }
    }

    /// Comes out, the request done by that life.
    pub(super) fn leave(&self, life: u64) {
        if self.count_done(life) {
            self.bell.ring();
        }
        self.come_out();
    }

    /// Returns whether the life has done its number of requests with this one.
    fn count_done(&self, life: u64) -> bool {
        self.requests_max > 0 && self.served.count(life) == Some(self.requests_max)
    }

    /// Comes out as if it had never been in.
    pub(super) fn come_out(&self) {
        let is_last = self.inside.fetch_sub(1, SeqCst) == 1;
        self.tell_of_the_way_out(is_last);
    }

    fn tell_of_the_way_out(&self, is_last: bool) {
        if is_last && self.life() == 0 {
            self.bell.ring();
        }
        self.hall.knock_for_oldest();
    }

    /// Counts one more connection, if there may be one.
    pub(super) fn try_connect(&self) -> bool {
        let one_more = |connections: u32| (connections < self.slots).then_some(connections + 1);
        self.connections.fetch_update(SeqCst, SeqCst, one_more).is_ok()
    }

    /// A connection is closed.
    pub(super) fn disconnect(&self) {
        self.connections.fetch_sub(1, SeqCst);
        if self.claims() > 0 {
            self.hall.knock_for_all();
        }
    }

    /// Somebody inside needs a connection.
    pub(super) fn claim(&self) {
        self.claims.fetch_add(1, SeqCst);
        self.hall.knock_for_all();
    }

    pub(super) fn unclaim(&self) {
        self.claims.fetch_sub(1, SeqCst);
    }

    pub(super) fn claims(&self) -> u32 {
        self.claims.load(SeqCst)
    }

    /// Something has come from that life: it does not hang.
    pub(super) fn hear(&self, life: u64) {
        if self.is_suspect.load(SeqCst) {
            let mut lateness = self.lateness();
            lateness.suspect.take_if(|(suspect, _)| *suspect == life);
            self.is_suspect.store(lateness.suspect.is_some(), SeqCst);
        }
    }

    fn lateness(&self) -> MutexGuard<'_, Lateness> {
        self.lateness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request that had gone in at `entered` got no answer in time from that life, at `now`; it stays inside, overdue,
    /// until [`leave_overdue`](Self::leave_overdue). Returns whether the process is condemned for it.
    pub(super) fn be_late(&self, life: u64, entered: Time, now: Time) -> bool {
        let hangs = self.judge_late(life, entered, now);
        if hangs {
            self.tell_of_the_condemned();
        }
        hangs
    }

    /// The part of that for which the lock is held; it wakes nobody. Of several that are late at once, the last finds
    /// that nobody else is not.
    fn judge_late(&self, life: u64, entered: Time, now: Time) -> bool {
        let mut lateness = self.lateness();
        let known_since = match lateness.suspect {
            Some((suspect, since)) if suspect == life => Some(since),
            _ => None,
        };
        lateness.overdue += 1;
        let are_all_late = self.inside.load(SeqCst) <= lateness.overdue;
        let hangs = are_all_late || known_since.is_some_and(|since| since <= entered);
        // What a former life did not answer says nothing of the present one.
        let is_news = lateness.suspect.is_none_or(|(suspect, _)| suspect < life);
        if hangs {
            self.mark_condemned(life);
        } else if is_news {
            lateness.suspect = Some((life, now));
            self.is_suspect.store(true, SeqCst);
        }
        hangs
    }

    /// Comes out, overdue, the request done by that life or given up.
    pub(super) fn leave_overdue(&self, life: u64) {
        if self.count_done(life) {
            self.bell.ring();
        }
        let is_last = {
            let mut lateness = self.lateness();
            lateness.overdue -= 1;
            self.inside.fetch_sub(1, SeqCst) == 1
        };
        self.tell_of_the_way_out(is_last);
    }

    /// That life has passed a deadline: it gets no more jobs and is to be killed.
    pub(super) fn condemn(&self, life: u64) {
        self.mark_condemned(life);
        self.tell_of_the_condemned();
    }

    fn mark_condemned(&self, life: u64) {
        let _ = self.open_for.compare_exchange(life, 0, SeqCst, SeqCst);
        self.condemned.fetch_max(life, SeqCst);
    }

    fn tell_of_the_condemned(&self) {
        self.hall.knock_for_all();
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::hall::QueueLimits;
    use super::*;

    fn door(requests_max: u64) -> Door {
        let hall = Arc::new(Hall::new(QueueLimits::default(), Vec::new()));
        Door::new(0, 4, requests_max, Arc::new(Bell::new().expect("an eventfd")), hall)
    }

    /// Row 1.24: a process is only ended between requests.
    #[test]
    fn a_closed_door_is_empty_only_when_the_last_job_has_left() {
        let door = door(0);
        assert_eq!(door.life(), 0);
        assert_eq!(door.try_enter(), None);
        door.open(1);
        assert_eq!(door.try_enter(), Some(1));
        door.close();
        assert!(!door.is_empty());
        assert_eq!(door.try_enter(), None);
        door.leave(1);
        assert!(door.is_empty());
    }

    #[test]
    fn a_late_job_cannot_condemn_the_next_life() {
        let door = door(0);
        door.open(1);
        door.condemn(1);
        assert!(door.life() == 0 && door.is_condemned(1));
        door.open(2);
        door.condemn(1);
        assert!(door.life() == 2 && !door.is_condemned(2));
    }

    #[test]
    fn requests_are_counted_for_each_life_anew() {
        let door = door(2);
        for life in 1..4 {
            door.open(life);
            for _ in 0..2 {
                assert!(!door.is_worn());
                assert_eq!(door.try_enter(), Some(life));
                door.leave(life);
            }
            assert!(door.is_worn());
        }
    }

    #[test]
    fn what_a_former_life_did_does_not_count_for_the_next() {
        let door = door(1);
        door.open(1);
        assert_eq!(door.try_enter(), Some(1));
        door.close();
        door.open(2);
        door.leave(1);
        assert!(!door.is_worn() && door.is_empty());
        assert_eq!(door.try_enter(), Some(2));
        door.leave(2);
        assert!(door.is_worn());
    }

    /// Row 1.24: a request that is late costs the others something only if the process hangs.
    #[test]
    fn a_late_request_condemns_a_process_only_when_nothing_speaks_for_it() {
        let at = |second: u64| Time::ZERO.after(Duration::from_secs(second));
        let enter = |door: &Door| assert_eq!(door.try_enter(), Some(1));
        let busy = |inside: u32| {
            let door = door(0);
            door.open(1);
            (0..inside).for_each(|_| enter(&door));
            door
        };
        let leave_late = |door: &Door, life, entered, now| {
            let hangs = door.be_late(life, entered, now);
            door.leave_overdue(life);
            hangs
        };
        // Alone: nobody else loses anything.
        let door = busy(1);
        assert!(leave_late(&door, 1, at(0), at(60)) && door.is_condemned(1) && door.is_empty());
        // All that are inside, at the same time or one after the other: the last of them condemns, whether the others have
        // left or are still worked on.
        let door = busy(3);
        assert!(!leave_late(&door, 1, at(0), at(60)) && !door.be_late(1, at(0), at(61)));
        assert!(door.life() == 1 && leave_late(&door, 1, at(0), at(62)));
        // Never all, and nothing is heard any more. One that was there before the first had been late proves no more
        // than that one; one that came afterwards does.
        let door = busy(3);
        assert!(!leave_late(&door, 1, at(0), at(60)) && !leave_late(&door, 1, at(59), at(119)));
        enter(&door);
        assert!(leave_late(&door, 1, at(60), at(120)));
        // The same, but something was heard in between; of this life, that is.
        for (life, hangs) in [(1, false), (2, true)] {
            let door = busy(2);
            enter(&door);
            assert!(!leave_late(&door, 1, at(0), at(60)));
            door.hear(life);
            assert_eq!(leave_late(&door, 1, at(60), at(120)), hangs);
        }
        // A request of a former life does not put the suspicion of the present one off.
        let door = busy(2);
        door.open(2);
        assert_eq!((door.try_enter(), door.try_enter()), (Some(2), Some(2)));
        assert!(!leave_late(&door, 2, at(0), at(60)) && !leave_late(&door, 1, at(0), at(61)));
        assert_eq!(door.try_enter(), Some(2));
        assert!(leave_late(&door, 2, at(60), at(120)) && door.is_condemned(2));
    }

    /// Rows 1.24, 4.12: what a process may work on still takes the room of the next request, however late it is.
    #[test]
    fn an_overdue_request_keeps_its_slot_until_it_leaves() {
        let at = |second: u64| Time::ZERO.after(Duration::from_secs(second));
        let door = door(5);
        door.open(1);
        (0..4).for_each(|_| assert_eq!(door.try_enter(), Some(1)));
        assert!(!door.be_late(1, at(0), at(60)));
        assert_eq!((door.load(), door.try_enter()), (None, None));
        door.leave_overdue(1);
        assert_eq!((door.load(), door.try_enter()), (Some(3), Some(1)));
        // It has been one of the process's requests all the same.
        (0..4).for_each(|_| door.leave(1));
        assert!(door.is_empty() && door.is_worn());
        // What has left does not count as late any more.
        assert_eq!((door.try_enter(), door.try_enter()), (Some(1), Some(1)));
        assert!(!door.be_late(1, at(0), at(121)));
    }

    /// Row 1.3: no process has more connections than it has slots, whichever shard made them.
    #[test]
    fn there_are_no_more_inside_and_no_more_connections_than_slots() {
        let door = door(0);
        door.open(1);
        for slot in 0..4 {
            assert_eq!((door.load(), door.try_connect()), (Some(slot), true));
            assert_eq!(door.try_enter(), Some(1));
        }
        assert_eq!((door.load(), door.try_enter(), door.try_connect()), (None, None, false));
        door.leave(1);
        door.disconnect();
        assert_eq!((door.try_enter(), door.try_connect()), (Some(1), true));
    }
}
