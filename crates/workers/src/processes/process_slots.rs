//! The slots of one process: the supervisor opens and closes them, requests acquire and release them.
//!
//! Acquiring and closing may race: a request increments `in_use` first and checks `open_for` afterwards, the supervisor
//! closes first and checks `in_use` afterwards, both in one total order. When the supervisor has closed the slots and
//! sees none in use, none is, and the process can be stopped without losing a request.
//!
//! A reload retires the slots of a process before those of its successor open, so a client with affinity can be told
//! from clients without a process: it waits for the successor ([`affinity`](super::affinity)).
//!
//! Each run of a process has its own generation, from 1: a request released late cannot kill, or count for, the next
//! generation.
//!
//! An overdue request does not prove that the process hangs, and killing it would lose its other requests. It is
//! considered hung when all its requests are overdue, or when the request was sent after another one became overdue and
//! nothing has been received since. An overdue request keeps its slot, because the process may still work on it.
//! Marking and releasing overdue requests is rare and takes a lock for a few instructions, under which nothing is
//! notified; no other operation locks.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
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
    /// The generation that accepts requests; 0: closed.
    open_for: AtomicU64,
    in_use: AtomicU32,
    /// With affinity: the shard that owns the process, which alone acquires slots.
    ///
    /// | value | means | `is_owned` | `has_client` |
    /// |---|---|---|---|
    /// | 0 | the process is free | no | no |
    /// | 1 + shard | a client of the shard has the process | yes | yes |
    /// | 1 + shard, with [`LEFT`] | its client has left the process, which still has requests | yes | no |
    owner: AtomicUsize,
    /// Whether a reload has closed the process, until it is opened again.
    is_retired: AtomicBool,
    /// Connections, including those being established.
    connections: AtomicU32,
    /// Slots in use that wait for a connection.
    claims: AtomicU32,
    served: ServedCount,
    overdue_state: Mutex<OverdueState>,
    /// Whether the process is suspect until it sends something.
    is_suspect: AtomicBool,
    /// The highest generation for which a kill was requested.
    kill_requested: AtomicU64,
    waker: Arc<SupervisorWaker>,
    admission_queue: Arc<AdmissionQueue>,
    /// Weak, so that the relay ends with its owner.
    notices: OnceLock<Weak<Notices>>,
}

/// Bit of [`ProcessSlots::owner`].
const LEFT: usize = 1 << (usize::BITS - 1);

/// Requests completed by a generation, in one word: the generation's low bits, which distinguish it from the previous
/// one, and the number.
#[derive(Debug, Default)]
struct ServedCount(AtomicU64);

impl ServedCount {
    const COUNT_BITS: u32 = 40;
    const COUNT_MASK: u64 = (1 << Self::COUNT_BITS) - 1;

    fn reset(&self, generation: u64) {
        self.0.store(generation << Self::COUNT_BITS, SeqCst);
    }

    /// Counts one request for the generation, unless it is over. Returns its number of requests.
    fn count(&self, generation: u64) -> Option<u64> {
        let one_more = |word: u64| {
            let is_present = word >> Self::COUNT_BITS == (generation << Self::COUNT_BITS) >> Self::COUNT_BITS;
            (is_present && word & Self::COUNT_MASK != Self::COUNT_MASK).then(|| word + 1)
        };
        self.0.fetch_update(SeqCst, SeqCst, one_more).ok().map(|before| (before & Self::COUNT_MASK) + 1)
    }

    fn requests(&self) -> u64 {
        self.0.load(SeqCst) & Self::COUNT_MASK
    }
}

#[derive(Debug, Default)]
struct OverdueState {
    /// The generation with an overdue request and the time at which the first was noticed; nothing has been received
    /// from the process since.
    suspect: Option<(u64, Time)>,
    /// Overdue requests that hold a slot.
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
            owner: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
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

    /// Supervisor: sets the destination of messages about the process.
    pub(super) fn set_notices(&self, notices: &Arc<Notices>) {
        // Set once, before the first opening.
        let _ = self.notices.set(Arc::downgrade(notices));
    }

    pub(super) fn print_line(&self, text: &str) {
        if let Some(notices) = self.notices.get().and_then(Weak::upgrade) {
            notices.print_line(self.number, text);
        }
    }

    pub(super) fn print_pool_line(&self, text: &str) {
        if let Some(notices) = self.notices.get().and_then(Weak::upgrade) {
            notices.print_pool_line(text);
        }
    }

    pub(super) fn admission_queue(&self) -> &AdmissionQueue {
        &self.admission_queue
    }

    /// Supervisor: `generation` accepts requests from now on.
    pub(super) fn open(&self, generation: u64) {
        self.served.reset(generation);
        self.is_retired.store(false, SeqCst);
        self.open_for.store(generation, SeqCst);
        self.admission_queue.notify_all_shards();
    }

    /// Supervisor: no more slots can be acquired.
    pub(super) fn close(&self) {
        self.open_for.store(0, SeqCst);
        self.admission_queue.notify_all_shards();
    }

    /// Supervisor: closes the slots of a process that a reload replaces; its successor opens next.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, SeqCst);
        self.close();
    }

    /// Whether a reload has closed the process: the clients that have it get its successor.
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(SeqCst)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_use.load(SeqCst) == 0
    }

    pub(super) fn is_due_for_recycling(&self) -> bool {
        self.requests_max > 0 && self.served.requests() >= self.requests_max
    }

    pub(super) fn is_kill_requested(&self, generation: u64) -> bool {
        self.kill_requested.load(SeqCst) == generation
    }

    /// Returns the generation that accepts requests; 0: none.
    pub(super) fn generation(&self) -> u64 {
        self.open_for.load(SeqCst)
    }

    /// Returns the number of slots in use, if one more can be acquired.
    pub(super) fn occupancy(&self) -> Option<u32> {
        let in_use = self.in_use.load(SeqCst);
        (self.generation() != 0 && in_use < self.slots).then_some(in_use)
    }

    pub(super) fn try_acquire(&self) -> Option<u64> {
        let one_more = |in_use: u32| (in_use < self.slots).then_some(in_use + 1);
        self.in_use.fetch_update(SeqCst, SeqCst, one_more).ok()?;
        match self.generation() {
            0 => {
                // A request that found no slot because of this one is notified again at the next opening.
                self.release_unused();
                None
            }
            generation => Some(generation),
        }
    }

    pub(super) fn release(&self, generation: u64) {
        if self.count_done(generation) {
            self.waker.wake();
        }
        self.release_unused();
    }

    /// Returns whether the generation reached `requests_max` with this request.
    fn count_done(&self, generation: u64) -> bool {
        self.requests_max > 0 && self.served.count(generation) == Some(self.requests_max)
    }

    /// Releases a slot without counting a request.
    pub(super) fn release_unused(&self) {
        let is_last = self.in_use.fetch_sub(1, SeqCst) == 1;
        self.notify_release(is_last);
    }

    fn notify_release(&self, is_last: bool) {
        if is_last && self.generation() == 0 {
            self.waker.wake();
        }
        match (self.owner.load(SeqCst) & !LEFT).checked_sub(1) {
            Some(shard) => self.admission_queue.shard_heads[shard].notify(),
            None => self.admission_queue.notify_oldest(),
        }
    }

    /// With affinity: makes a shard the owner of a process without one. Returns the generation that it serves; `None`:
    /// another shard owns it, or it accepts no requests.
    pub(super) fn try_own(&self, shard: usize) -> Option<u64> {
        if self.generation() == 0 {
            return None;
        }
        self.owner.compare_exchange(0, shard + 1, SeqCst, SeqCst).ok()?;
        match self.generation() {
            0 => {
                // The process has closed meanwhile. Another shard may have taken it for one with a client.
                self.disown();
                None
            }
            generation => Some(generation),
        }
    }

    /// With affinity: the client has left the process, which has requests. The caller is the owner.
    pub(super) fn set_left(&self) {
        self.owner.fetch_or(LEFT, SeqCst);
        self.admission_queue.notify_all_shards();
    }

    /// With affinity: whether a client has the process, and has not left it.
    pub(super) fn has_client(&self) -> bool {
        matches!(self.owner.load(SeqCst), owner if owner != 0 && owner & LEFT == 0)
    }

    /// With affinity: ends the ownership; the caller is the owner, and no slot is in use.
    pub(super) fn disown(&self) {
        debug_assert!(self.is_empty(), "a process changes its owner between requests");
        self.owner.store(0, SeqCst);
        self.admission_queue.notify_all_shards();
    }

    pub(super) fn is_owned(&self) -> bool {
        self.owner.load(SeqCst) != 0
    }

    pub(super) fn try_connect(&self) -> bool {
        let one_more = |connections: u32| (connections < self.slots).then_some(connections + 1);
        self.connections.fetch_update(SeqCst, SeqCst, one_more).is_ok()
    }

    pub(super) fn disconnect(&self) {
        self.connections.fetch_sub(1, SeqCst);
        if self.claims() > 0 {
            self.admission_queue.notify_all_shards();
        }
    }

    /// Registers a slot that needs a connection.
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

    /// Clears the suspicion: the generation has sent something.
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

    /// Records that a request of that generation, admitted at `acquired_at`, got no response by `now`; it keeps its
    /// slot until [`release_overdue`](Self::release_overdue). Returns whether the process is to be killed.
    pub(super) fn mark_overdue(&self, generation: u64, acquired_at: Time, now: Time) -> bool {
        let hangs = self.record_overdue(generation, acquired_at, now);
        if hangs {
            self.notify_kill_request();
        }
        hangs
    }

    /// The part of `mark_overdue` under the lock; notifies nothing. Of several requests overdue at once, the last finds
    /// all of them overdue.
    fn record_overdue(&self, generation: u64, acquired_at: Time, now: Time) -> bool {
        let mut overdue_state = self.overdue_state();
        let suspect_since = match overdue_state.suspect {
            Some((suspect, since)) if suspect == generation => Some(since),
            _ => None,
        };
        overdue_state.overdue += 1;
        let all_overdue = self.in_use.load(SeqCst) <= overdue_state.overdue;
        let hangs = all_overdue || suspect_since.is_some_and(|since| since <= acquired_at);
        // An earlier generation's overdue request does not make the current one suspect.
        let is_newer = overdue_state.suspect.is_none_or(|(suspect, _)| suspect < generation);
        if hangs {
            self.mark_for_kill(generation);
        } else if is_newer {
            overdue_state.suspect = Some((generation, now));
            self.is_suspect.store(true, SeqCst);
        }
        hangs
    }

    /// Releases the slot of an overdue request, completed or abandoned.
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

    /// Requests a kill of that generation, which gets no more requests.
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

    /// Row 1.24: a process is stopped only between requests.
    #[test]
    fn closed_slots_are_empty_only_when_the_last_request_is_released() {
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
    fn a_late_job_cannot_mark_the_next_process_hung() {
        let process_slots = process_slots(0);
        process_slots.open(1);
        process_slots.request_kill(1);
        assert!(process_slots.generation() == 0 && process_slots.is_kill_requested(1));
        process_slots.open(2);
        process_slots.request_kill(1);
        assert!(process_slots.generation() == 2 && !process_slots.is_kill_requested(2));
    }

    #[test]
    fn requests_are_counted_per_generation() {
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
    fn an_earlier_generation_does_not_affect_the_next() {
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

    /// Row 1.24: an overdue request affects others only if the process hangs.
    #[test]
    fn a_late_request_marks_a_process_hung_only_without_signs_of_progress() {
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
        // A single request: no other is lost.
        let process_slots = busy(1);
        assert!(
            release_late(&process_slots, 1, at(0), at(60))
                && process_slots.is_kill_requested(1)
                && process_slots.is_empty()
        );
        // All requests overdue, at the same time or one after the other: the last of them causes the kill, whether the
        // others have been released or still hold their slots.
        let process_slots = busy(3);
        assert!(
            !release_late(&process_slots, 1, at(0), at(60)) && !process_slots.mark_overdue(1, at(0), at(61))
        );
        assert!(process_slots.generation() == 1 && release_late(&process_slots, 1, at(0), at(62)));
        // Never all, with nothing received. A request admitted before the first became overdue proves nothing more; one
        // admitted afterwards does.
        let process_slots = busy(3);
        assert!(
            !release_late(&process_slots, 1, at(0), at(60))
                && !release_late(&process_slots, 1, at(59), at(119))
        );
        acquire(&process_slots);
        assert!(release_late(&process_slots, 1, at(60), at(120)));
        // The same with something received in between; it counts for its own generation only.
        for (generation, hangs) in [(1, false), (2, true)] {
            let process_slots = busy(2);
            acquire(&process_slots);
            assert!(!release_late(&process_slots, 1, at(0), at(60)));
            process_slots.clear_suspicion(generation);
            assert_eq!(release_late(&process_slots, 1, at(60), at(120)), hangs);
        }
        // A request of an earlier generation does not delay the current one's suspicion.
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

    /// Rows 1.24, 4.12: a request that the process may still work on holds its slot, however late it is.
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
        // It still counts as one of the process's requests.
        (0..4).for_each(|_| process_slots.release(1));
        assert!(process_slots.is_empty() && process_slots.is_due_for_recycling());
        // A released request no longer counts as overdue.
        assert_eq!((process_slots.try_acquire(), process_slots.try_acquire()), (Some(1), Some(1)));
        assert!(!process_slots.mark_overdue(1, at(0), at(121)));
    }

    /// Row 1.3: no process has more connections than slots, over all shards.
    #[test]
    fn requests_and_connections_never_exceed_the_slots() {
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
