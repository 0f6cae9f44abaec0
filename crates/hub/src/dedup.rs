//! The de-duplication window of a stream: which message ids it has taken lately, and under which sequences.
//!
//! An id is kept for a time, counted by a clock that is never set, so a change of the calendar neither forgets ids nor
//! keeps them. Records without an id do not count. At [`DEDUP_IDS_MAX`] ids the oldest is forgotten early, and counted.
//!
//! After a restart the window is built again from the journal. The span between two batches of one server life is the
//! difference of their times, never less than nothing; the time in which no server ran does not count, so that what a
//! publisher sends again after an outage is still recognised. A calendar that was set forward is taken for time that
//! passed, which is the one case in which a rebuilt window knows less than the lost one did.
//!
//! ```text
//!   entries (a ring)   │ expired, to be removed │ live                            │
//!                      begin                    live_from                         end
//!   marks                                       │ latest │ latest │ … one per 1/128 of the time
//!   slots              name → index in the ring, linear probing, at most half full
//! ```
//!
//! An id is kept as a keyed hash of 128 bits: 24 bytes of an entry and 4 bytes for each of two slots, 32 bytes per id of
//! capacity, which is a power of two. A full window takes 32 MiB.

use std::collections::VecDeque;

use crate::hub::{SteadyNanos, UnixNanos};
use crate::key::HashKey;
use crate::limits::{DEDUP_IDS_MAX, DEDUP_REMOVED_PER_TURN, DISK_PATIENCE_NS};

/// Parts of the time that have one mark each. An id is kept for up to one part longer.
const MARKS: u64 = 128;

/// Entries for which there is room at first.
const CAPACITY_LEAST: usize = 64;

/// A slot that holds nothing. No ring is so long.
const EMPTY: u32 = u32::MAX;

/// The ids of a window.
#[derive(Debug)]
pub(crate) struct DedupWindow {
    key: HashKey,
    /// How long an id is kept; 0: not at all.
    time_ns: u64,
    ids_max: u64,
    ring: Vec<Entry>,
    slots: Vec<u32>,
    /// Numbers of entries, from 0 on: the oldest in the ring, the oldest that is still known, the next.
    begin: u64,
    live_from: u64,
    end: u64,
    marks: VecDeque<Mark>,
    /// The window's own clock: nanoseconds that have passed, of which those before a restart are known from the journal.
    clock_ns: u64,
    observed_ns: Option<SteadyNanos>,
    replayed: Option<(u64, UnixNanos)>,
    evicted: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    name: [u64; 2],
    sequence: u64,
}

/// Entries that came within one part of the time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The number behind the last one.
    end: u64,
    begun_ns: u64,
    /// When the last one came.
    latest_ns: u64,
}

impl DedupWindow {
    /// A window that keeps ids for `time_ns`; with 0 it keeps none.
    pub(crate) fn new(key: HashKey, time_ns: u64) -> DedupWindow {
        DedupWindow {
            key,
            time_ns,
            ids_max: DEDUP_IDS_MAX,
            ring: Vec::new(),
            slots: Vec::new(),
            begin: 0,
            live_from: 0,
            end: 0,
            marks: VecDeque::new(),
            clock_ns: 0,
            observed_ns: None,
            replayed: None,
            evicted: 0,
        }
    }

    /// The number that stands for an id. An empty one is none, and stands for nothing.
    pub(crate) fn name(&self, id: &[u8]) -> Option<u128> {
        (!id.is_empty()).then(|| self.key.wide(id))
    }

    /// The sequence of the record with this id, if it came within the time.
    pub(crate) fn find(&mut self, name: u128, now_ns: SteadyNanos) -> Option<u64> {
        self.observe(now_ns);
        let index = self.slots[self.slot_of(halves(name))?];
        let number = self.number_at(index);
        (number >= self.live_from).then(|| self.ring[index as usize].sequence)
    }

    /// Notes that `sequence` has this id.
    pub(crate) fn note(&mut self, name: u128, sequence: u64, now_ns: SteadyNanos) {
        self.observe(now_ns);
        self.insert(name, sequence);
    }

    /// Begins with a batch that was kept before the start; its records follow, each with [`replay`](Self::replay).
    pub(crate) fn replay_batch(&mut self, epoch: u64, time_ns: UnixNanos) {
        if let Some((_, before_ns)) = self.replayed.filter(|(before, _)| *before == epoch) {
            self.clock_ns = self.clock_ns.saturating_add(time_ns.saturating_sub(before_ns));
            // A batch has the time at which it was begun: ids in it may have come until the next one was, as long as the
            // hub waits for a disk.
            if let Some(mark) = self.marks.back_mut() {
                mark.latest_ns = self.clock_ns.min(mark.latest_ns.saturating_add(DISK_PATIENCE_NS));
            }
            self.expire();
        }
        self.replayed = Some((epoch, time_ns));
    }

    /// Notes a record of that batch.
    pub(crate) fn replay(&mut self, name: u128, sequence: u64) {
        self.insert(name, sequence);
    }

    /// The sequence from which on records have to be read to know the same after a restart; `next` if there are none.
    pub(crate) fn first(&self, next: u64) -> u64 {
        if self.live_from == self.end { next } else { self.ring[self.index(self.live_from)].sequence }
    }

    /// How many ids it knows.
    pub(crate) fn len(&self) -> u64 {
        self.end - self.live_from
    }

    /// How many ids were forgotten before their time because there were too many.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Frees memory of ids whose time is over, a bounded number at once.
    pub(crate) fn sweep(&mut self, now_ns: SteadyNanos) {
        if self.begin < self.end {
            self.observe(now_ns);
            self.reclaim(DEDUP_REMOVED_PER_TURN);
        }
    }

    /// In how many nanoseconds there is something to [`sweep`](Self::sweep).
    pub(crate) fn sweep_in(&self) -> Option<u64> {
        if self.begin < self.live_from {
            return Some(0);
        }
        let mark = self.marks.front()?;
        Some(mark.latest_ns.saturating_add(self.time_ns).saturating_sub(self.clock_ns))
    }

    fn observe(&mut self, now_ns: SteadyNanos) {
        let before = self.observed_ns.replace(now_ns).unwrap_or(now_ns);
        let passed = now_ns.saturating_sub(before);
        if passed > 0 {
            self.clock_ns = self.clock_ns.saturating_add(passed);
            self.expire();
        }
    }

    fn expire(&mut self) {
        while let Some(mark) = self.marks.front()
            && mark.latest_ns.saturating_add(self.time_ns) <= self.clock_ns
        {
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
            self.evicted += 1;
        }
        // Two for one: what has expired never adds to what is live.
        self.reclaim(2);
        if (self.end - self.begin) as usize == self.ring.len() {
            self.grow();
        }
        let (index, name) = (self.index(self.end), halves(name));
        self.ring[index] = Entry { name, sequence };
        let slot = self.slot_of(name).unwrap_or_else(|| self.free_slot(name));
        self.slots[slot] = index as u32;
        self.end += 1;
        let part = (self.time_ns / MARKS).max(1);
        match self.marks.back_mut().filter(|mark| self.clock_ns - mark.begun_ns < part) {
            Some(mark) => (mark.end, mark.latest_ns) = (self.end, self.clock_ns),
            None => self.marks.push_back(Mark {
                end: self.end,
                begun_ns: self.clock_ns,
                latest_ns: self.clock_ns,
            }),
        }
    }

    /// Removes expired entries, at most so many.
    fn reclaim(&mut self, most: u64) {
        let until = self.live_from.min(self.begin + most);
        while self.begin < until {
            let index = self.index(self.begin);
            self.begin += 1;
            // The same id may have come again meanwhile; its slot leads to the later one.
            let slot = self.slot_of(self.ring[index].name);
            if let Some(slot) = slot.filter(|slot| self.slots[*slot] == index as u32) {
                self.empty_slot(slot);
            }
        }
        if self.begin == self.end && self.ring.len() > CAPACITY_LEAST {
            (self.ring, self.slots) = (Vec::new(), Vec::new());
        }
    }

    fn grow(&mut self) {
        let capacity = (2 * self.ring.len()).max(CAPACITY_LEAST);
        let mut ring = vec![Entry::default(); capacity];
        let numbers = self.begin..self.end;
        for number in numbers.clone() {
            ring[number as usize & (capacity - 1)] = self.ring[self.index(number)];
        }
        self.ring = ring;
        self.slots.clear();
        self.slots = vec![EMPTY; 2 * capacity];
        for number in numbers {
            let index = self.index(number);
            let name = self.ring[index].name;
            let slot = self.slot_of(name).unwrap_or_else(|| self.free_slot(name));
            self.slots[slot] = index as u32;
        }
    }

    /// Where the entry of a number lies; the capacity is a power of two.
    fn index(&self, number: u64) -> usize {
        number as usize & (self.ring.len() - 1)
    }

    /// The number of the entry that lies there.
    fn number_at(&self, index: u32) -> u64 {
        let behind = (u64::from(index).wrapping_sub(self.begin)) & (self.ring.len() as u64 - 1);
        self.begin + behind
    }

    fn home(&self, name: [u64; 2]) -> usize {
        name[0] as usize & (self.slots.len() - 1)
    }

    fn slot_of(&self, name: [u64; 2]) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.home(name);
        loop {
            match self.slots[slot] {
                EMPTY => return None,
                index if self.ring[index as usize].name == name => return Some(slot),
                _ => slot = (slot + 1) & (self.slots.len() - 1),
            }
        }
    }

    fn free_slot(&self, name: [u64; 2]) -> usize {
        let mut slot = self.home(name);
        while self.slots[slot] != EMPTY {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    /// Empties a slot and moves up what would not be found behind it any more.
    fn empty_slot(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut slot = hole;
        loop {
            slot = (slot + 1) & mask;
            let index = self.slots[slot];
            if index == EMPTY {
                break;
            }
            let home = self.home(self.ring[index as usize].name);
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(hole) & mask {
                self.slots[hole] = index;
                hole = slot;
            }
        }
        self.slots[hole] = EMPTY;
    }
}

fn halves(name: u128) -> [u64; 2] {
    [name as u64, (name >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn window(seconds: u64) -> DedupWindow {
        DedupWindow::new(HashKey(1, 2), seconds * SECOND)
    }

    #[test]
    fn an_id_is_known_for_the_time_however_many_records_come() {
        let mut window = window(120);
        let name = window.key.wide(b"a");
        assert_eq!(window.find(name, 5 * SECOND), None);
        window.note(name, 10, 5 * SECOND);
        assert_eq!(window.find(name, 6 * SECOND), Some(10));
        assert_eq!(window.first(1_000_000), 10);
        assert_eq!(window.find(name, 125 * SECOND - 1), Some(10));
        assert_eq!(window.find(name, 125 * SECOND), None);
        assert_eq!((window.first(77), window.len(), window.evicted()), (77, 0, 0));
        window.sweep(125 * SECOND);
        assert_eq!((window.begin, window.sweep_in()), (window.end, None));
    }

    #[test]
    fn without_a_time_nothing_is_known() {
        let mut window = window(0);
        let name = window.key.wide(b"a");
        window.note(name, 1, 0);
        assert_eq!((window.find(name, 0), window.first(2)), (None, 2));
    }

    #[test]
    fn at_the_maximum_the_oldest_is_forgotten_and_counted() {
        let mut window = window(120);
        window.ids_max = 100;
        for number in 0..250_u64 {
            window.note(number.into(), number, number);
        }
        assert_eq!((window.len(), window.evicted()), (100, 150));
        assert_eq!((window.find(149, 250), window.find(150, 250)), (None, Some(150)));
        assert_eq!((window.first(250), window.ring.len()), (150, 128));
    }

    /// The memory of many ids that expire at once is freed bit by bit, and none of them is known meanwhile.
    #[test]
    fn what_has_expired_is_unknown_at_once_and_freed_later() {
        let mut window = window(1);
        let count = 2 * DEDUP_REMOVED_PER_TURN + 1;
        for number in 0..count {
            window.note(number.into(), number, 0);
        }
        assert_eq!(window.find(0, SECOND), None);
        assert_eq!((window.sweep_in(), window.len()), (Some(0), 0));
        window.note(0, count, SECOND);
        assert_eq!(window.find(0, SECOND), Some(count), "the later one of the same id");
        for _ in 0..3 {
            window.sweep(SECOND);
        }
        assert_eq!((window.begin, window.end), (count, count + 1));
        assert_eq!(window.find(0, SECOND), Some(count));
        window.sweep(2 * SECOND);
        assert!(window.ring.is_empty() && window.slots.is_empty());
    }

    /// Against a table and a list, with ids that come again, at many times, below and at the maximum.
    #[test]
    fn it_knows_what_a_plain_table_knows() {
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
            // All of one home are neighbours in the table.
            let name = u128::from((random >> 20) % 700 % 64) | u128::from((random >> 20) % 700) << 64;
            let expected = known.get(&name).copied();
            match (window.find(name, now), expected) {
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
                window.note(name, sequence, now);
                (sequence, now)
            });
            window.sweep(now);
        }
        assert!(window.ring.len() <= 1024, "{}", window.ring.len());
    }

    #[test]
    fn a_replayed_window_counts_neither_time_without_a_server_nor_a_calendar_that_was_set_back() {
        let mut window = window(120);
        window.replay_batch(1, 1000 * SECOND);
        window.replay(1, 1);
        // The calendar is set back by 900 seconds.
        window.replay_batch(1, 100 * SECOND);
        window.replay(2, 2);
        window.replay_batch(1, 219 * SECOND);
        window.replay(3, 3);
        // An hour without a server.
        window.replay_batch(2, 3819 * SECOND);
        window.replay(4, 4);
        let start = 7 * SECOND;
        let known = |window: &mut DedupWindow, now| [1, 2, 3, 4].map(|name| window.find(name, now));
        assert_eq!(known(&mut window, start), [Some(1), Some(2), Some(3), Some(4)]);
        // The second batch may have been open for a while when its id came, but not for 119 seconds.
        let open_ns = DISK_PATIENCE_NS;
        assert_eq!(known(&mut window, start + open_ns), [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(known(&mut window, start + SECOND + open_ns), [None, None, Some(3), Some(4)]);
        assert_eq!(known(&mut window, start + 120 * SECOND), [None; 4]);
    }
}
