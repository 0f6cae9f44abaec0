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

use super::admission_queue::AdmissionQueue;
use super::output_relay::Notices;
use super::waker::SupervisorWaker;

#[derive(Debug)]
pub(super) struct ProcessSlots {
    pub(super) number: usize,
    slots: u32,
    requests_max: u64,
    /// The life that takes jobs; 0: the door is closed.
    open_for: AtomicU64,
    in_use: AtomicU32,
    /// Connections that there are, or are to be.
    connections: AtomicU32,
    /// Who is inside and finds no room for a connection.
    claims: AtomicU32,
    served: ServedCount,
    overdue_state: Mutex<OverdueState>,
    /// Whether there is a suspicion that an answer would dispel.
    is_suspect: AtomicBool,
    /// The last life that passed a deadline.
    kill_requested: AtomicU64,
    waker: Arc<SupervisorWaker>,
    admission_queue: Arc<AdmissionQueue>,
    /// Weak, so that the relay ends with its owner.
    notices: OnceLock<Weak<Notices>>,
}

/// Requests that a life has done, in one word: the life (its low bits, which tell it from the one before) and their
/// number.
#[derive(Debug, Default)]
struct ServedCount(AtomicU64);

impl ServedCount {
    const NUMBER_BITS: u32 = 40;
    const NUMBER: u64 = (1 << Self::NUMBER_BITS) - 1;

    /// A life begins.
    fn reset(&self, generation: u64) {
        self.0.store(generation << Self::NUMBER_BITS, SeqCst);
    }

    /// Counts one for that life, unless it is over. Returns how many it has done.
    fn count(&self, generation: u64) -> Option<u64> {
        let one_more = |word: u64| {
            let is_present =
                word >> Self::NUMBER_BITS == (generation << Self::NUMBER_BITS) >> Self::NUMBER_BITS;
            (is_present && word & Self::NUMBER != Self::NUMBER).then(|| word + 1)
        };
        self.0.fetch_update(SeqCst, SeqCst, one_more).ok().map(|before| (before & Self::NUMBER) + 1)
    }

    fn requests(&self) -> u64 {
        self.0.load(SeqCst) & Self::NUMBER
    }
}

#[derive(Debug, Default)]
struct OverdueState {
    /// The life of which a request got no answer in time, and when the first of these was noticed; nothing was heard of
    /// the process since.
    suspect: Option<(u64, Time)>,
    /// Requests inside that are late.
    overdue: u32,
}

impl ProcessSlots {
    pub(super) fn new(
        number: usize,
        slots: usize,
        requests_max: u64,
        waker: Arc<SupervisorWaker>,
        admission_queue: Arc<AdmissionQueue>,
    ) -> ProcessSlots {
        ProcessSlots {
            number,
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            requests_max,
            open_for: AtomicU64::new(0),
            in_use: AtomicU32::new(0),
            connections: AtomicU32::new(0),
            claims: AtomicU32::new(0),
            served: ServedCount::default(),
            overdue_state: Mutex::default(),
            is_suspect: AtomicBool::new(false),
            kill_requested: AtomicU64::new(0),
            waker,
            admission_queue,
            notices: OnceLock::new(),
        }
    }

    /// Supervisor: where to say something about the process.
    pub(super) fn set_notices(&self, notices: &Arc<Notices>) {
        // It is handed over once, before the first opening.
        let _ = self.notices.set(Arc::downgrade(notices));
    }

    /// Says something about the process.
    pub(super) fn print_line(&self, text: &str) {
        if let Some(notices) = self.notices.get().and_then(Weak::upgrade) {
            notices.print_line(self.number, text);
        }
    }

    pub(super) fn admission_queue(&self) -> &AdmissionQueue {
        &self.admission_queue
    }

    /// Supervisor: `generation` takes jobs from now on.
    pub(super) fn open(&self, generation: u64) {
        self.served.reset(generation);
        self.open_for.store(generation, SeqCst);
        self.admission_queue.notify_all_shards();
    }

    /// Supervisor: no job enters any more.
    pub(super) fn close(&self) {
        self.open_for.store(0, SeqCst);
        self.admission_queue.notify_all_shards();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_use.load(SeqCst) == 0
    }

    /// Whether the present life has done its number of requests.
    pub(super) fn is_due_for_recycling(&self) -> bool {
        self.requests_max > 0 && self.served.requests() >= self.requests_max
    }

    pub(super) fn is_kill_requested(&self, generation: u64) -> bool {
        self.kill_requested.load(SeqCst) == generation
    }

    /// The life that takes jobs; 0: none does.
    pub(super) fn generation(&self) -> u64 {
        self.open_for.load(SeqCst)
    }

    /// How many are inside, if one more might go in.
    pub(super) fn occupancy(&self) -> Option<u32> {
        let in_use = self.in_use.load(SeqCst);
        (self.generation() != 0 && in_use < self.slots).then_some(in_use)
    }

    /// Goes in, if the door is open and there is room. Returns the life that takes the job.
    pub(super) fn try_acquire(&self) -> Option<u64> {
        let one_more = |in_use: u32| (in_use < self.slots).then_some(in_use + 1);
        self.in_use.fetch_update(SeqCst, SeqCst, one_more).ok()?;
        match self.generation() {
            0 => {
                // Whoever found no room because of this one has another chance when the door opens.
                self.release_unused();
                None
            }
            generation => Some(generation),
        }
    }

    /// Comes out, the request done by that life.
    pub(super) fn release(&self, generation: u64) {
        if self.count_done(generation) {
            self.waker.wake();
        }
        self.release_unused();
    }

    /// Returns whether the life has done its number of requests with this one.
    fn count_done(&self, generation: u64) -> bool {
        self.requests_max > 0 && self.served.count(generation) == Some(self.requests_max)
    }

    /// Comes out as if it had never been in.
    pub(super) fn release_unused(&self) {
        let is_last = self.in_use.fetch_sub(1, SeqCst) == 1;
        self.notify_release(is_last);
    }

    fn notify_release(&self, is_last: bool) {
        if is_last && self.generation() == 0 {
            self.waker.wake();
        }
        self.admission_queue.notify_oldest();
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
            self.admission_queue.notify_all_shards();
        }
    }

    /// Somebody inside needs a connection.
    pub(super) fn claim(&self) {
        self.claims.fetch_add(1, SeqCst);
        self.admission_queue.notify_all_shards();
    }

    pub(super) fn release_claim(&self) {
        self.claims.fetch_sub(1, SeqCst);
    }

    pub(super) fn claims(&self) -> u32 {
        self.claims.load(SeqCst)
    }

    /// Something has come from that life: it does not hang.
    pub(super) fn clear_suspicion(&self, generation: u64) {
        if self.is_suspect.load(SeqCst) {
            let mut overdue_state = self.overdue_state();
            overdue_state.suspect.take_if(|(suspect, _)| *suspect == generation);
            self.is_suspect.store(overdue_state.suspect.is_some(), SeqCst);
        }
    }

    fn overdue_state(&self) -> MutexGuard<'_, OverdueState> {
        self.overdue_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request that had gone in at `acquired_at` got no answer in time from that life, at `now`; it stays inside, overdue,
    /// until [`release_overdue`](Self::release_overdue). Returns whether the process is condemned for it.
    pub(super) fn mark_overdue(&self, generation: u64, acquired_at: Time, now: Time) -> bool {
        let hangs = self.judge_overdue(generation, acquired_at, now);
        if hangs {
            self.notify_kill_request();
        }
        hangs
    }

    /// The part of that for which the lock is held; it wakes nobody. Of several that are late at once, the last finds
    /// that nobody else is not.
    fn judge_overdue(&self, generation: u64, acquired_at: Time, now: Time) -> bool {
        let mut overdue_state = self.overdue_state();
        let suspect_since = match overdue_state.suspect {
            Some((suspect, since)) if suspect == generation => Some(since),
            _ => None,
        };
        overdue_state.overdue += 1;
        let are_all_late = self.in_use.load(SeqCst) <= overdue_state.overdue;
        let hangs = are_all_late || suspect_since.is_some_and(|since| since <= acquired_at);
        // What a former life did not answer says nothing of the present one.
        let is_news = overdue_state.suspect.is_none_or(|(suspect, _)| suspect < generation);
        if hangs {
            self.mark_for_kill(generation);
        } else if is_news {
            overdue_state.suspect = Some((generation, now));
            self.is_suspect.store(true, SeqCst);
        }
        hangs
    }

    /// Comes out, overdue, the request done by that life or given up.
    pub(super) fn release_overdue(&self, generation: u64) {
        if self.count_done(generation) {
            self.waker.wake();
        }
        let is_last = {
            let mut overdue_state = self.overdue_state();
            overdue_state.overdue -= 1;
            self.in_use.fetch_sub(1, SeqCst) == 1
        };
        self.notify_release(is_last);
    }

    /// That life has passed a deadline: it gets no more jobs and is to be killed.
    pub(super) fn request_kill(&self, generation: u64) {
        self.mark_for_kill(generation);
        self.notify_kill_request();
    }

    fn mark_for_kill(&self, generation: u64) {
        let _ = self.open_for.compare_exchange(generation, 0, SeqCst, SeqCst);
        self.kill_requested.fetch_max(generation, SeqCst);
    }

    fn notify_kill_request(&self) {
        self.admission_queue.notify_all_shards();
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::admission_queue::QueueLimits;
    use super::*;

    fn process_slots(requests_max: u64) -> ProcessSlots {
        let admission_queue = Arc::new(AdmissionQueue::new(QueueLimits::default(), Vec::new()));
        ProcessSlots::new(
            0,
            4,
            requests_max,
            Arc::new(SupervisorWaker::new().expect("an eventfd")),
            admission_queue,
        )
    }

    /// Row 1.24: a process is only ended between requests.
    #[test]
    fn a_closed_door_is_empty_only_when_the_last_job_has_left() {
        let process_slots = process_slots(0);
        assert_eq!(process_slots.generation(), 0);
        assert_eq!(process_slots.try_acquire(), None);
        process_slots.open(1);
        assert_eq!(process_slots.try_acquire(), Some(1));
        process_slots.close();
        assert!(!process_slots.is_empty());
        assert_eq!(process_slots.try_acquire(), None);
        process_slots.release(1);
        assert!(process_slots.is_empty());
    }

    #[test]
    fn a_late_job_cannot_condemn_the_next_life() {
        let process_slots = process_slots(0);
        process_slots.open(1);
        process_slots.request_kill(1);
        assert!(process_slots.generation() == 0 && process_slots.is_kill_requested(1));
        process_slots.open(2);
        process_slots.request_kill(1);
        assert!(process_slots.generation() == 2 && !process_slots.is_kill_requested(2));
    }

    #[test]
    fn requests_are_counted_for_each_life_anew() {
        let process_slots = process_slots(2);
        for generation in 1..4 {
            process_slots.open(generation);
            for _ in 0..2 {
                assert!(!process_slots.is_due_for_recycling());
                assert_eq!(process_slots.try_acquire(), Some(generation));
                process_slots.release(generation);
            }
            assert!(process_slots.is_due_for_recycling());
        }
    }

    #[test]
    fn what_a_former_life_did_does_not_count_for_the_next() {
        let process_slots = process_slots(1);
        process_slots.open(1);
        assert_eq!(process_slots.try_acquire(), Some(1));
        process_slots.close();
        process_slots.open(2);
        process_slots.release(1);
        assert!(!process_slots.is_due_for_recycling() && process_slots.is_empty());
        assert_eq!(process_slots.try_acquire(), Some(2));
        process_slots.release(2);
        assert!(process_slots.is_due_for_recycling());
    }

    /// Row 1.24: a request that is late costs the others something only if the process hangs.
    #[test]
    fn a_late_request_condemns_a_process_only_when_nothing_speaks_for_it() {
        let at = |second: u64| Time::ZERO.after(Duration::from_secs(second));
        let acquire = |process_slots: &ProcessSlots| assert_eq!(process_slots.try_acquire(), Some(1));
        let busy = |in_use: u32| {
            let process_slots = process_slots(0);
            process_slots.open(1);
            (0..in_use).for_each(|_| acquire(&process_slots));
            process_slots
        };
        let release_late = |process_slots: &ProcessSlots, generation, acquired_at, now| {
            let hangs = process_slots.mark_overdue(generation, acquired_at, now);
            process_slots.release_overdue(generation);
            hangs
        };
        // Alone: nobody else loses anything.
        let process_slots = busy(1);
        assert!(
            release_late(&process_slots, 1, at(0), at(60))
                && process_slots.is_kill_requested(1)
                && process_slots.is_empty()
        );
        // All that are inside, at the same time or one after the other: the last of them condemns, whether the others have
        // left or are still worked on.
        let process_slots = busy(3);
        assert!(
            !release_late(&process_slots, 1, at(0), at(60)) && !process_slots.mark_overdue(1, at(0), at(61))
        );
        assert!(process_slots.generation() == 1 && release_late(&process_slots, 1, at(0), at(62)));
        // Never all, and nothing is heard any more. One that was there before the first had been late proves no more
        // than that one; one that came afterwards does.
        let process_slots = busy(3);
        assert!(
            !release_late(&process_slots, 1, at(0), at(60))
                && !release_late(&process_slots, 1, at(59), at(119))
        );
        acquire(&process_slots);
        assert!(release_late(&process_slots, 1, at(60), at(120)));
        // The same, but something was heard in between; of this life, that is.
        for (generation, hangs) in [(1, false), (2, true)] {
            let process_slots = busy(2);
            acquire(&process_slots);
            assert!(!release_late(&process_slots, 1, at(0), at(60)));
            process_slots.clear_suspicion(generation);
            assert_eq!(release_late(&process_slots, 1, at(60), at(120)), hangs);
        }
        // A request of a former life does not put the suspicion of the present one off.
        let process_slots = busy(2);
        process_slots.open(2);
        assert_eq!((process_slots.try_acquire(), process_slots.try_acquire()), (Some(2), Some(2)));
        assert!(
            !release_late(&process_slots, 2, at(0), at(60))
                && !release_late(&process_slots, 1, at(0), at(61))
        );
        assert_eq!(process_slots.try_acquire(), Some(2));
        assert!(release_late(&process_slots, 2, at(60), at(120)) && process_slots.is_kill_requested(2));
    }

    /// Rows 1.24, 4.12: what a process may work on still takes the room of the next request, however late it is.
    #[test]
    fn an_overdue_request_keeps_its_slot_until_it_leaves() {
        let at = |second: u64| Time::ZERO.after(Duration::from_secs(second));
        let process_slots = process_slots(5);
        process_slots.open(1);
        (0..4).for_each(|_| assert_eq!(process_slots.try_acquire(), Some(1)));
        assert!(!process_slots.mark_overdue(1, at(0), at(60)));
        assert_eq!((process_slots.occupancy(), process_slots.try_acquire()), (None, None));
        process_slots.release_overdue(1);
        assert_eq!((process_slots.occupancy(), process_slots.try_acquire()), (Some(3), Some(1)));
        // It has been one of the process's requests all the same.
        (0..4).for_each(|_| process_slots.release(1));
        assert!(process_slots.is_empty() && process_slots.is_due_for_recycling());
        // What has left does not count as late any more.
        assert_eq!((process_slots.try_acquire(), process_slots.try_acquire()), (Some(1), Some(1)));
        assert!(!process_slots.mark_overdue(1, at(0), at(121)));
    }

    /// Row 1.3: no process has more connections than it has slots, whichever shard made them.
    #[test]
    fn there_are_no_more_inside_and_no_more_connections_than_slots() {
        let process_slots = process_slots(0);
        process_slots.open(1);
        for slot in 0..4 {
            assert_eq!((process_slots.occupancy(), process_slots.try_connect()), (Some(slot), true));
            assert_eq!(process_slots.try_acquire(), Some(1));
        }
        assert_eq!(
            (process_slots.occupancy(), process_slots.try_acquire(), process_slots.try_connect()),
            (None, None, false)
        );
        process_slots.release(1);
        process_slots.disconnect();
        assert_eq!((process_slots.try_acquire(), process_slots.try_connect()), (Some(1), true));
    }
}
