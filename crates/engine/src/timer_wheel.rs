//! A hierarchical timing wheel over small ids, without allocation per deadline.
//!
//! An id (the index of a connection or listener) has at most one deadline. Postponing it, as every request of a
//! persistent connection does, only writes the new time; the entry moves when its slot is due. Six levels of 64 slots,
//! one tick = 2^20 ns (1.05 ms): a slot of level 0 spans one tick, one of level 1 spans 64, and so on.
//!
//! ```text
//!  level 2  [ 64 × 4096 ticks ]   … an entry moves down a level when its slot is due
//!  level 1  [ 64 × 64 ticks   ]
//!  level 0  [ 64 × 1 tick     ]   ► expires
//! ```
//!
//! A deadline never expires early and at most one tick plus the caller's own delay late.

use stilling_ring::Time;

const TICK_BITS: u32 = 20;
const SLOT_BITS: u32 = 6;
const SLOTS_PER_LEVEL: usize = 1 << SLOT_BITS;
const LEVELS: usize = 6;
/// Ticks that the wheel spans (834 days); a later deadline waits in the last slot and is then linked again.
const SPAN: u64 = 1 << (SLOT_BITS * LEVELS as u32);

const NONE: u32 = u32::MAX;
const UNLINKED: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct TimerEntry {
    previous: u32,
    next: u32,
    deadline: Time,
    /// The tick at which the slot of this entry is due.
    due: u64,
    /// level × 64 + slot, or `UNLINKED`.
    slot_index: u16,
}

const FREE: TimerEntry =
    TimerEntry { previous: NONE, next: NONE, deadline: Time::ZERO, due: 0, slot_index: UNLINKED };

/// The deadlines of a shard.
#[derive(Debug)]
pub struct TimerWheel {
    entries: Vec<TimerEntry>,
    heads: [u32; LEVELS * SLOTS_PER_LEVEL],
    occupied: [u64; LEVELS],
    /// All slots up to this tick have been emptied.
    elapsed: u64,
}

impl TimerWheel {
    /// An empty wheel that starts at `now`, with memory reserved for ids below `ids`; larger ids allocate on first use.
    pub fn new(now: Time, ids: usize) -> Self {
        TimerWheel {
            entries: Vec::with_capacity(ids),
            heads: [NONE; LEVELS * SLOTS_PER_LEVEL],
            occupied: [0; LEVELS],
            elapsed: now.as_nanos() >> TICK_BITS,
        }
    }

    /// Sets the deadline of `id`, replacing the previous one.
    pub fn set(&mut self, id: u32, deadline: Time) {
        let index = id as usize;
        if index >= self.entries.len() {
            self.entries.resize(index + 1, FREE);
        }
        let due = due_tick(deadline);
        let entry = &mut self.entries[index];
        entry.deadline = deadline;
        if entry.slot_index != UNLINKED {
            if entry.due <= due {
                return;
            }
            self.unlink(id);
        }
        self.link(id, due);
    }

    /// Removes the deadline of `id`, if it has one.
    pub fn clear(&mut self, id: u32) {
        if self.entries.get(id as usize).is_some_and(|entry| entry.slot_index != UNLINKED) {
            self.unlink(id);
        }
    }

    /// The time at which to call [`expire`](Self::expire) next; not after the earliest deadline's tick.
    pub fn next(&self) -> Option<Time> {
        let (_, tick) = self.next_slot()?;
        Some(Time::from_nanos(tick << TICK_BITS))
    }

    /// Moves every id with a deadline up to `now` from the wheel into `expired`.
    pub fn expire(&mut self, now: Time, expired: &mut Vec<u32>) {
        let now_tick = now.as_nanos() >> TICK_BITS;
        while let Some((slot_index, tick)) = self.next_slot() {
            if tick > now_tick {
                break;
            }
            self.elapsed = tick;
            let mut id = std::mem::replace(&mut self.heads[slot_index], NONE);
            self.occupied[slot_index / SLOTS_PER_LEVEL] &= !(1 << (slot_index % SLOTS_PER_LEVEL));
            while id != NONE {
                let entry = &mut self.entries[id as usize];
                let next = entry.next;
                entry.slot_index = UNLINKED;
                if entry.deadline <= now {
                    expired.push(id);
                } else {
                    let due = due_tick(entry.deadline);
                    self.link(id, due);
                }
                id = next;
            }
        }
        self.elapsed = self.elapsed.max(now_tick);
    }

    fn link(&mut self, id: u32, due: u64) {
        let due = due.clamp(self.elapsed + 1, self.elapsed + SPAN - 1);
        // The highest bit in which the due tick differs from now selects the level.
        let differing = (self.elapsed ^ due) | (SLOTS_PER_LEVEL as u64 - 1);
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1) as usize;
        let slot = (due >> (SLOT_BITS * level as u32)) as usize % SLOTS_PER_LEVEL;
        let slot_index = level * SLOTS_PER_LEVEL + slot;
        let head = self.heads[slot_index];
        if head != NONE {
            self.entries[head as usize].previous = id;
        }
        let entry = &mut self.entries[id as usize];
        (entry.previous, entry.next, entry.due, entry.slot_index) = (NONE, head, due, slot_index as u16);
        self.heads[slot_index] = id;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, id: u32) {
        let TimerEntry { previous, next, slot_index, .. } = self.entries[id as usize];
        match previous {
            NONE => self.heads[slot_index as usize] = next,
            previous => self.entries[previous as usize].next = next,
        }
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        if self.heads[slot_index as usize] == NONE {
            self.occupied[slot_index as usize / SLOTS_PER_LEVEL] &=
                !(1 << (slot_index as usize % SLOTS_PER_LEVEL));
        }
        self.entries[id as usize].slot_index = UNLINKED;
    }

    /// The slot that is due next and its first tick. Slots of lower levels are due before those of higher ones.
    fn next_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|level_slots| *level_slots != 0)?;
        let shift = SLOT_BITS * level as u32;
        let here = (self.elapsed >> shift) as u32 % SLOTS_PER_LEVEL as u32;
        let ahead = self.occupied[level].rotate_right(here).trailing_zeros();
        let slot = (here + ahead) as usize % SLOTS_PER_LEVEL;
        let tick = ((self.elapsed >> shift) + u64::from(ahead)) << shift;
        Some((level * SLOTS_PER_LEVEL + slot, tick))
    }
}

fn due_tick(deadline: Time) -> u64 {
    deadline.as_nanos().div_ceil(1 << TICK_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const TICK: u64 = 1 << TICK_BITS;

    #[derive(Clone, Debug)]
    enum WheelOp {
        Set(u32, u64),
        Clear(u32),
        Advance(u64),
    }

    fn wheel_op() -> impl Strategy<Value = WheelOp> {
        let span = prop_oneof![0..3 * TICK, 0..5_000 * TICK, 0..300_000_000 * TICK];
        prop_oneof![
            4 => (0u32..20, span.clone()).prop_map(|(id, after)| WheelOp::Set(id, after)),
            1 => (0u32..20).prop_map(WheelOp::Clear),
            3 => span.prop_map(WheelOp::Advance),
        ]
    }

    proptest! {
        /// Row 4.35: after any sets, clears and moves, every deadline expires once, not early and at most a tick late.
        #[test]
        fn the_wheel_agrees_with_a_sorted_map(start in 0..u64::MAX / 4, wheel_ops in prop::collection::vec(wheel_op(), 1..200)) {
            let mut now = start;
            let mut wheel = TimerWheel::new(Time::from_nanos(now), 0);
            let mut oracle: BTreeMap<u32, u64> = BTreeMap::new();
            for wheel_op in wheel_ops {
                match wheel_op {
                    WheelOp::Set(id, after) => {
                        wheel.set(id, Time::from_nanos(now + after));
                        oracle.insert(id, now + after);
                    }
                    WheelOp::Clear(id) => {
                        wheel.clear(id);
                        oracle.remove(&id);
                    }
                    WheelOp::Advance(by) => {
                        now += by;
                        let mut expired = Vec::new();
                        wheel.expire(Time::from_nanos(now), &mut expired);
                        for id in &expired {
                            let deadline = oracle.remove(id);
                            prop_assert!(deadline.is_some_and(|deadline| deadline <= now), "{id} was early or unknown");
                        }
                        for (id, deadline) in &oracle {
                            prop_assert!(deadline + 2 * TICK > now, "{id} is overdue");
                        }
                    }
                }
                match (wheel.next(), oracle.values().min()) {
                    (None, earliest) => prop_assert_eq!(earliest, None),
                    (Some(next), Some(earliest)) => prop_assert!(next.as_nanos() < earliest.max(&now) + 2 * TICK),
                    (Some(_), None) => prop_assert!(false, "a deadline remains that was not set"),
                }
            }
        }
    }

    #[test]
    fn moving_a_deadline_later_does_not_fire_at_the_old_time() {
        let mut wheel = TimerWheel::new(Time::ZERO, 0);
        wheel.set(1, Time::from_nanos(10 * TICK));
        wheel.set(1, Time::from_nanos(500 * TICK));
        let mut expired = Vec::new();
        wheel.expire(Time::from_nanos(499 * TICK), &mut expired);
        assert_eq!(expired, []);
        wheel.expire(Time::from_nanos(500 * TICK), &mut expired);
        assert_eq!(expired, [1]);
    }
}
