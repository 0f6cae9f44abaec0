//! The de-duplication window of a stream: recent message ids and their sequences.
//!
//! The time for which an id is kept is measured by a monotonic clock, so a calendar change neither shortens nor extends
//! it. Records without an id do not count. At [`DEDUP_IDS_MAX`] ids the oldest is forgotten early, and counted.
//!
//! After a restart the window is rebuilt from the journal, by the times of its records:
//!
//! - Between two records of one server run, the difference of their times has passed, at least 0.
//! - Between two runs, and between the newest record and the restart, no time has passed: idle and stopped time is
//!   unknown.
//!
//! An id is therefore recognised for at least the configured time, also after an outage, if retention has kept its
//! record. A rebuilt window may lack ids of the lost one for two reasons: a calendar set forward counts as passed time,
//! and the maximum applies. An id evicted because of the maximum counts as forgotten early only if it has not expired
//! at the end of the rebuild.
//!
//! ```text
//!   numbers   │ expired, to be removed │ live                                        │
//!             begin                    live_from                                     end
//!   marks                              │ latest │ latest │ … one per 1/128 of the time
//!   tables    │ old, until it is empty │ ◀ moved down │ new                          │
//!             begin                             moved                              end
//! ```
//!
//! A table is a ring of entries and slots (name → index in the ring, linear probing, at most half full). A full table
//! is replaced by one of twice the size, and each new id moves [`DEDUP_MOVED_PER_ID`] entries there, so that no
//! insertion moves all entries at once.
//!
//! An id is a keyed hash of 128 bits: 24 bytes per entry and 4 bytes for each of two slots, 32 bytes per id of
//! capacity, which is a power of two. A full window takes 32 MiB, and 48 MiB while entries move to the last table.

use std::collections::VecDeque;

use stilling_journal::BatchView;
use stilling_wire::nats::{Headers, MESSAGE_ID};

use crate::hash_key::HashKey;
use crate::limits::{DEDUP_IDS_MAX, DEDUP_MOVED_PER_ID, DEDUP_REMOVED_PER_TURN, DISK_STALL_TIMEOUT_NS};
use crate::time::{SteadyNanos, UnixNanos};

/// Number of parts of the configured time, with one mark each. An id is kept for up to one part longer.
const DEDUP_MARKS: u64 = 128;

const CAPACITY_MIN: usize = 64;

/// An empty slot; others hold an index plus one. Zeroed memory is not allocated before its first use.
const EMPTY: u32 = 0;

#[derive(Debug)]
pub(crate) struct DedupWindow {
    key: HashKey,
    /// Nanoseconds that an id is kept; 0 disables the window.
    time_ns: u64,
    ids_max: u64,
    table: DedupTable,
    /// The previous, full table: entries from `begin` to `moved`; the other table has those from `moved` on.
    old: DedupTable,
    moved: u64,
    /// Numbers of entries, from 0 on: the oldest in the tables, the oldest live one, the next.
    begin: u64,
    live_from: u64,
    end: u64,
    /// Entries before this one have expired; those from here to `live_from` were evicted because there were too many.
    expired_to: u64,
    marks: VecDeque<DedupMark>,
    /// The window's own clock: nanoseconds passed; before a restart, according to the journal.
    clock_ns: u64,
    observed_ns: Option<SteadyNanos>,
    replayed: Option<(u64, UnixNanos)>,
    evicted: u64,
}

/// The two halves of a name, and a sequence. A vector of zeroed arrays uses no memory before it is written.
type DedupEntry = [u64; 3];

#[derive(Clone, Copy, Debug)]
struct DedupMark {
    end: u64,
    started_ns: u64,
    latest_ns: u64,
}

impl DedupWindow {
    /// Creates a window that keeps ids for `time_ns`; with 0 it keeps none.
    pub(crate) fn new(key: HashKey, time_ns: u64) -> DedupWindow {
        DedupWindow {
            key,
            time_ns,
            ids_max: DEDUP_IDS_MAX,
            table: DedupTable::default(),
            old: DedupTable::default(),
            moved: 0,
            begin: 0,
            live_from: 0,
            end: 0,
            expired_to: 0,
            marks: VecDeque::new(),
            clock_ns: 0,
            observed_ns: None,
            replayed: None,
            evicted: 0,
        }
    }

    /// Returns the hash that stands for an id; `None` for an empty id.
    pub(crate) fn name(&self, id: &[u8]) -> Option<u128> {
        (!id.is_empty()).then(|| self.key.hash_128(id))
    }

    /// Returns the sequence of the record with this id, if the id has not expired.
    pub(crate) fn find(&mut self, name: u128, now_ns: SteadyNanos) -> Option<u64> {
        self.observe(now_ns);
        let name = halves(name);
        let base = self.moved.max(self.begin);
        let (number, sequence) = self.table.find(name, base).or_else(|| self.old.find(name, self.begin))?;
        (number >= self.live_from).then_some(sequence)
    }

    pub(crate) fn note(&mut self, name: u128, sequence: u64, now_ns: SteadyNanos) {
        self.observe(now_ns);
        self.insert(name, sequence);
    }

    /// Restores the ids of a batch from the journal; called in order at the start.
    pub(crate) fn restore_ids(&mut self, batch: BatchView<'_>) {
        self.replay_batch(batch.epoch, UnixNanos::from_nanos(batch.time_ns));
        for (sequence, record) in batch.records {
            let id = Headers::parse(record.headers).ok().and_then(|headers| headers.find(MESSAGE_ID));
            if let Some(name) = id.and_then(|id| self.name(id)) {
                self.replay(name, sequence);
            }
        }
    }

    /// Begins a batch from the journal; its records follow, each with [`replay`](Self::replay).
    fn replay_batch(&mut self, epoch: u64, time_ns: UnixNanos) {
        if let Some((_, before_ns)) = self.replayed.filter(|(before, _)| *before == epoch) {
            self.clock_ns = self.clock_ns.saturating_add(time_ns.since(before_ns));
            // A batch has the time of its beginning: its ids may have arrived until the next batch began, at most the
            // stall timeout of the disk later.
            if let Some(mark) = self.marks.back_mut() {
                mark.latest_ns = self.clock_ns.min(mark.latest_ns.saturating_add(DISK_STALL_TIMEOUT_NS));
            }
            self.expire();
        }
        self.replayed = Some((epoch, time_ns));
    }

    fn replay(&mut self, name: u128, sequence: u64) {
        self.insert(name, sequence);
    }

    /// Returns the sequence from which records must be read to rebuild the window after a restart; `next` if there are
    /// none.
    pub(crate) fn first(&self, next: u64) -> u64 {
        if self.live_from == self.end {
            return next;
        }
        let table = if self.live_from < self.moved { &self.old } else { &self.table };
        let [_, _, sequence] = table.ring[table.index(self.live_from)];
        sequence
    }

    pub(crate) fn len(&self) -> u64 {
        self.end - self.live_from
    }

    /// Number of ids forgotten early because there were too many.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Frees memory of expired ids, a bounded number per call.
    pub(crate) fn sweep(&mut self, now_ns: SteadyNanos) {
        if self.begin < self.end {
            self.observe(now_ns);
            self.reclaim(DEDUP_REMOVED_PER_TURN);
        }
    }

    pub(crate) fn sweep_in(&self) -> Option<u64> {
        if self.begin < self.live_from {
            return Some(0);
        }
        let mark = self.marks.front()?;
        Some(mark.latest_ns.saturating_add(self.time_ns).saturating_sub(self.clock_ns))
    }

    fn observe(&mut self, now_ns: SteadyNanos) {
        let before = self.observed_ns.replace(now_ns).unwrap_or_else(|| {
            // The end of the rebuild: ids that would have expired by now do not count as evicted early.
            self.evicted += self.live_from.saturating_sub(self.expired_to);
            now_ns
        });
        let passed = now_ns.since(before);
        if passed > 0 {
            self.clock_ns = self.clock_ns.saturating_add(passed);
            self.expire();
        }
    }

    fn expire(&mut self) {
        while let Some(mark) = self.marks.front()
            && mark.latest_ns.saturating_add(self.time_ns) <= self.clock_ns
        {
            self.expired_to = mark.end;
            self.live_from = self.live_from.max(mark.end);
            self.marks.pop_front();
        }
    }

    fn insert(&mut self, name: u128, sequence: u64) {
        if self.time_ns == 0 {
            return;
        }
        if self.len() == self.ids_max {
            self.live_from += 1;
            self.evicted += u64::from(self.observed_ns.is_some());
        }
        // Two per insertion, so that the table does not grow while it contains expired entries.
        self.reclaim(2);
        self.move_down(DEDUP_MOVED_PER_ID);
        if (self.end - self.begin) as usize == self.table.ring.len() {
            self.grow();
        }
        let [low, high] = halves(name);
        self.table.put(self.end, [low, high, sequence]);
        self.end += 1;
        let part = (self.time_ns / DEDUP_MARKS).max(1);
        match self.marks.back_mut().filter(|mark| self.clock_ns - mark.started_ns < part) {
            Some(mark) => (mark.end, mark.latest_ns) = (self.end, self.clock_ns),
            None => self.marks.push_back(DedupMark {
                end: self.end,
                started_ns: self.clock_ns,
                latest_ns: self.clock_ns,
            }),
        }
    }

    fn reclaim(&mut self, most: u64) {
        let until = self.live_from.min(self.begin + most);
        while self.begin < until {
            let table = if self.begin < self.moved { &mut self.old } else { &mut self.table };
            table.remove(self.begin);
            self.begin += 1;
        }
        self.drop_old();
        if self.begin == self.end && self.table.ring.len() > CAPACITY_MIN {
            self.table = DedupTable::default();
        }
    }

    /// Moves at most `most` entries of the old table, the latest first.
    fn move_down(&mut self, most: u64) {
        let until = self.begin.max(self.moved.saturating_sub(most));
        while self.moved > until {
            self.moved -= 1;
            let entry = self.old.ring[self.old.index(self.moved)];
            self.table.put_first(self.moved, entry);
        }
        self.drop_old();
    }

    fn drop_old(&mut self) {
        if self.moved <= self.begin && !self.old.ring.is_empty() {
            self.old = DedupTable::default();
        }
    }

    fn grow(&mut self) {
        let capacity = (2 * self.table.ring.len()).max(CAPACITY_MIN);
        // Nothing remains to be moved: the insertions since the last growth have moved all entries.
        self.move_down(u64::MAX);
        self.old = std::mem::replace(&mut self.table, DedupTable::new(capacity));
        self.moved = self.end;
        self.drop_old();
    }
}

/// Entries of consecutive numbers up to the capacity, and their positions by name. Of entries with the same name the
/// slots refer to the latest.
#[derive(Debug, Default)]
struct DedupTable {
    /// An entry's index is its number modulo the capacity, a power of two.
    ring: Vec<DedupEntry>,
    slots: Vec<u32>,
}

impl DedupTable {
    fn new(capacity: usize) -> DedupTable {
        DedupTable { ring: vec![[0; 3]; capacity], slots: vec![EMPTY; 2 * capacity] }
    }

    /// Returns number and sequence of the latest entry with this name. No number is below `base`.
    fn find(&self, name: [u64; 2], base: u64) -> Option<(u64, u64)> {
        let index = self.slots[self.slot_of(name)?] - 1;
        let behind = u64::from(index).wrapping_sub(base) & (self.ring.len() as u64 - 1);
        Some((base + behind, self.ring[index as usize][2]))
    }

    fn put(&mut self, number: u64, entry: DedupEntry) {
        let (index, name) = (self.index(number), name_of(entry));
        self.ring[index] = entry;
        let slot = self.slot_of(name).unwrap_or_else(|| self.free_slot(name));
        self.slots[slot] = index as u32 + 1;
    }

    /// Adds an entry before all others.
    fn put_first(&mut self, number: u64, entry: DedupEntry) {
        let (index, name) = (self.index(number), name_of(entry));
        self.ring[index] = entry;
        if self.slot_of(name).is_none() {
            let slot = self.free_slot(name);
            self.slots[slot] = index as u32 + 1;
        }
    }

    fn remove(&mut self, number: u64) {
        let index = self.index(number);
        // A later entry with the same id keeps its slot.
        let slot = self.slot_of(name_of(self.ring[index]));
        if let Some(slot) = slot.filter(|slot| self.slots[*slot] == index as u32 + 1) {
            self.empty_slot(slot);
        }
    }

    fn index(&self, number: u64) -> usize {
        number as usize & (self.ring.len() - 1)
    }

    fn home(&self, name: [u64; 2]) -> usize {
        name[0] as usize & (self.slots.len() - 1)
    }

    fn name_at(&self, slot: usize) -> Option<[u64; 2]> {
        let index = self.slots[slot].checked_sub(1)?;
        Some(name_of(self.ring[index as usize]))
    }

    fn slot_of(&self, name: [u64; 2]) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.home(name);
        while self.name_at(slot)? != name {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        Some(slot)
    }

    fn free_slot(&self, name: [u64; 2]) -> usize {
        let mut slot = self.home(name);
        while self.slots[slot] != EMPTY {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    /// Empties a slot and moves up the entries that a probe would no longer reach.
    fn empty_slot(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut slot = (hole + 1) & mask;
        while let Some(name) = self.name_at(slot) {
            if slot.wrapping_sub(self.home(name)) & mask >= slot.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[slot];
                hole = slot;
            }
            slot = (slot + 1) & mask;
        }
        self.slots[hole] = EMPTY;
    }
}

fn name_of([low, high, _]: DedupEntry) -> [u64; 2] {
    [low, high]
}

fn halves(name: u128) -> [u64; 2] {
    [name as u64, (name >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(nanos: u64) -> SteadyNanos {
        SteadyNanos::from_nanos(nanos)
    }

    fn on(nanos: u64) -> UnixNanos {
        UnixNanos::from_nanos(nanos)
    }

    fn window(seconds: u64) -> DedupWindow {
        DedupWindow::new(HashKey(1, 2), seconds * SECOND)
    }

    #[test]
    fn an_id_is_known_for_the_time_however_many_records_come() {
        let mut window = window(120);
        let name = window.key.hash_128(b"a");
        assert_eq!(window.find(name, at(5 * SECOND)), None);
        window.note(name, 10, at(5 * SECOND));
        assert_eq!(window.find(name, at(6 * SECOND)), Some(10));
        assert_eq!(window.first(1_000_000), 10);
        assert_eq!(window.find(name, at(125 * SECOND - 1)), Some(10));
        assert_eq!(window.find(name, at(125 * SECOND)), None);
        assert_eq!((window.first(77), window.len(), window.evicted()), (77, 0, 0));
        window.sweep(at(125 * SECOND));
        assert_eq!((window.begin, window.sweep_in()), (window.end, None));
    }

    #[test]
    fn without_a_time_nothing_is_known() {
        let mut window = window(0);
        let name = window.key.hash_128(b"a");
        window.note(name, 1, at(0));
        assert_eq!((window.find(name, at(0)), window.first(2)), (None, 2));
    }

    #[test]
    fn at_the_maximum_the_oldest_is_forgotten_and_counted() {
        let mut window = window(120);
        window.ids_max = 100;
        for number in 0..250_u64 {
            window.note(number.into(), number, at(number));
        }
        assert_eq!((window.len(), window.evicted()), (100, 150));
        assert_eq!((window.find(149, at(250)), window.find(150, at(250))), (None, Some(150)));
        assert_eq!((window.first(250), window.table.ring.len()), (150, 128));
    }

    /// Many ids that expire at once are unknown at once, and their memory is freed in bounded steps.
    #[test]
    fn what_has_expired_is_unknown_at_once_and_freed_later() {
        let mut window = window(1);
        let count = 2 * DEDUP_REMOVED_PER_TURN + 1;
        for number in 0..count {
            window.note(number.into(), number, at(0));
        }
        assert_eq!(window.find(0, at(SECOND)), None);
        assert_eq!((window.sweep_in(), window.len()), (Some(0), 0));
        window.note(0, count, at(SECOND));
        assert_eq!(window.find(0, at(SECOND)), Some(count), "the later one of the same id");
        for _ in 0..3 {
            window.sweep(at(SECOND));
        }
        assert_eq!((window.begin, window.end), (count, count + 1));
        assert_eq!(window.find(0, at(SECOND)), Some(count));
        window.sweep(at(2 * SECOND));
        assert!(window.table.ring.is_empty() && window.table.slots.is_empty());
    }

    /// Compared with a plain map: repeated ids at many times, below and at the maximum.
    #[test]
    fn the_window_agrees_with_a_plain_table() {
        const TIME: u64 = 12_800;
        let mut window = DedupWindow::new(HashKey(3, 4), TIME);
        window.ids_max = 500;
        let mut known: HashMap<u128, (u64, u64)> = HashMap::new();
        let (mut random, mut now) = (9_u64, 0);
        for sequence in 1..60_000_u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            now += random % 40 * u64::from(random.is_multiple_of(3));
            // Ids with the same home are neighbours in the table.
            let name = u128::from((random >> 20) % 700 % 64) | u128::from((random >> 20) % 700) << 64;
            let expected = known.get(&name).copied();
            match (window.find(name, at(now)), expected) {
                (Some(found), Some((original, at))) => {
                    assert_eq!(found, original);
                    assert!(now - at < TIME + TIME / 128 + 1);
                }
                (None, Some((_, at))) => {
                    assert!(now - at >= TIME || window.evicted() > 0, "{at} {now}");
                    known.remove(&name);
                }
                (None, None) => {}
                (Some(found), None) => panic!("{found} is not known"),
            }
            known.entry(name).or_insert_with(|| {
                window.note(name, sequence, at(now));
                (sequence, now)
            });
            window.sweep(at(now));
        }
        assert!(window.table.ring.len() <= 1024, "{}", window.table.ring.len());
    }

    /// A growing table moves a bounded number of entries per new id and finds all of them meanwhile, also while ids
    /// expire.
    #[test]
    fn a_window_that_grows_moves_a_bounded_number_of_ids_at_once() {
        // Several ids share each home.
        let name =
            |number: u64| u128::from(number) << 64 | u128::from((number / 3).wrapping_mul(0x9e37_79b9));
        for seconds in [120, 1] {
            let mut window = window(seconds);
            let (mut growths, mut now) = (0, 0);
            for number in 0..100_000_u64 {
                // In the second case 20,000 ids are live.
                now += SECOND / 20_000;
                let (capacity, moved) = (window.table.ring.len(), window.moved);
                window.note(name(number), number, at(now));
                if window.table.ring.len() == capacity {
                    assert!(moved - window.moved <= DEDUP_MOVED_PER_ID, "{moved} {}", window.moved);
                } else {
                    growths += 1;
                }
                for back in [0, 1, 63, 500, 9_000, 19_000] {
                    let Some(known) = number.checked_sub(back) else { continue };
                    assert_eq!(window.find(name(known), at(now)), Some(known), "{known} at {number}");
                }
            }
            assert!(growths >= 10 && window.old.ring.is_empty(), "{growths} growths");
        }
    }

    /// Ids beyond the maximum count as forgotten early only if their time is not over at the end of the rebuild.
    #[test]
    fn a_rebuild_counts_early_evictions() {
        for (later, evicted) in [(60, 50), (400, 0)] {
            let mut window = window(120);
            window.ids_max = 100;
            window.replay_batch(1, on(SECOND));
            (0..150_u64).for_each(|number| window.replay(number.into(), number));
            window.replay_batch(1, on(later * SECOND));
            assert_eq!(window.find(149, at(7 * SECOND)).is_some(), evicted > 0);
            assert_eq!(window.evicted(), evicted, "the next batch is of second {later}");
            (1000..1100_u64).for_each(|number| window.note(number.into(), number, at(7 * SECOND)));
            let live = if evicted > 0 { 100 } else { 0 };
            assert_eq!(window.evicted(), evicted + live, "evictions of the running server count");
        }
    }

    /// An id is recognised for its time across restarts and idle times.
    #[test]
    fn a_rebuilt_window_recognises_an_id_for_at_least_the_window_time() {
        let mut window = window(120);
        window.replay_batch(1, on(1000 * SECOND));
        window.replay(1, 1);
        // A day without a server, then two records of another run, 100 seconds apart.
        window.replay_batch(2, on(90_000 * SECOND));
        window.replay_batch(2, on(90_100 * SECOND));
        window.replay(2, 2);
        // An idle hour and another restart.
        let start = 7 * SECOND;
        assert_eq!((window.find(1, at(start)), window.find(2, at(start))), (Some(1), Some(2)));
        // At least 20 seconds remain for one id, and the whole time for the other.
        let left = start + 20 * SECOND - 1;
        assert_eq!((window.find(1, at(left)), window.find(2, at(left))), (Some(1), Some(2)));
        let later = start + 20 * SECOND + DISK_STALL_TIMEOUT_NS;
        assert_eq!((window.find(1, at(later)), window.find(2, at(later))), (None, Some(2)));
        assert_eq!(window.find(2, at(start + 120 * SECOND - 1)), Some(2));
        assert_eq!(window.find(2, at(start + 120 * SECOND + DISK_STALL_TIMEOUT_NS)), None);
    }

    #[test]
    fn a_replayed_window_counts_neither_time_without_a_server_nor_a_calendar_that_was_set_back() {
        let mut window = window(120);
        window.replay_batch(1, on(1000 * SECOND));
        window.replay(1, 1);
        window.replay_batch(1, on(100 * SECOND));
        window.replay(2, 2);
        window.replay_batch(1, on(219 * SECOND));
        window.replay(3, 3);
        window.replay_batch(2, on(3819 * SECOND));
        window.replay(4, 4);
        let start = 7 * SECOND;
        let known = |window: &mut DedupWindow, now| [1, 2, 3, 4].map(|name| window.find(name, at(now)));
        assert_eq!(known(&mut window, start), [Some(1), Some(2), Some(3), Some(4)]);
        // The second batch may have been open when its id arrived, but not for 119 seconds.
        let open_ns = DISK_STALL_TIMEOUT_NS;
        assert_eq!(known(&mut window, start + open_ns), [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(known(&mut window, start + SECOND + open_ns), [None, None, Some(3), Some(4)]);
        assert_eq!(known(&mut window, start + 120 * SECOND), [None; 4]);
    }
}
