//! Connection slots of a thread: the state of each connection, and the start of each request in flight.
//!
//! A slot outlives its connection: the next connection uses the same slot. All memory is allocated at the start.
//!
//! ```text
//!  slot 0 [token, in flight 2, first 1] ──► request_times [ _ ][ b ][ c ][ _ ]   pipeline = 4
//!  slot 1 [token, in flight 0]          ──► request_times [ _ ][ _ ][ _ ][ _ ]
//! ```

use std::collections::VecDeque;

use stilling_engine::Token;
use stilling_ring::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestTimes {
    /// Intended start; in a closed loop the same as `sent`.
    pub(crate) intended: Time,
    /// Time of sending; with a connection per request, the start of the connect.
    pub(crate) sent: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionSlotState {
    Empty,
    /// The connection is opening or closing.
    Busy,
    Open(Token),
}

#[derive(Clone, Copy, Debug)]
struct ConnectionSlot {
    state: ConnectionSlotState,
    first: u16,
    in_flight: u16,
    /// The first connection attempt is over.
    tried: bool,
    is_ready: bool,
}

#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    slots: Vec<ConnectionSlot>,
    request_times: Vec<RequestTimes>,
    pipeline: u16,
    /// Open slots with room for a request, longest waiting first; entries may be stale.
    ready: VecDeque<u32>,
    in_flight: u64,
}

impl ConnectionSlots {
    pub(crate) fn new(count: u32, pipeline: u16) -> Self {
        let slot = ConnectionSlot {
            state: ConnectionSlotState::Empty,
            first: 0,
            in_flight: 0,
            tried: false,
            is_ready: false,
        };
        let times = RequestTimes { intended: Time::ZERO, sent: Time::ZERO };
        ConnectionSlots {
            slots: vec![slot; count as usize],
            request_times: vec![times; count as usize * usize::from(pipeline)],
            pipeline,
            ready: VecDeque::with_capacity(count as usize),
            in_flight: 0,
        }
    }

    pub(crate) fn mark_connecting(&mut self, slot: u32) {
        self.slots[slot as usize].state = ConnectionSlotState::Busy;
    }

    /// Records a finished connection attempt; returns true for the first one.
    pub(crate) fn record_attempt(&mut self, slot: u32) -> bool {
        !std::mem::replace(&mut self.slots[slot as usize].tried, true)
    }

    pub(crate) fn open(&mut self, slot: u32, token: Token) {
        self.slots[slot as usize].state = ConnectionSlotState::Open(token);
    }

    /// Marks the connection as closing: the slot accepts no more requests.
    pub(crate) fn mark_closing(&mut self, slot: u32) {
        self.slots[slot as usize].state = ConnectionSlotState::Busy;
    }

    pub(crate) fn mark_empty(&mut self, slot: u32) {
        self.slots[slot as usize].state = ConnectionSlotState::Empty;
    }

    pub(crate) fn has_room(&self, slot: u32) -> bool {
        let slot = &self.slots[slot as usize];
        matches!(slot.state, ConnectionSlotState::Open(_)) && slot.in_flight < self.pipeline
    }

    pub(crate) fn mark_ready(&mut self, slot: u32) {
        if self.has_room(slot) && !std::mem::replace(&mut self.slots[slot as usize].is_ready, true) {
            self.ready.push_back(slot);
        }
    }

    /// Returns whether the ready queue has entries, which may be stale.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Removes and returns the first ready slot that still has room.
    pub(crate) fn next_ready(&mut self) -> Option<(u32, Token)> {
        while let Some(slot) = self.ready.pop_front() {
            self.slots[slot as usize].is_ready = false;
            if let (ConnectionSlotState::Open(token), true) =
                (self.slots[slot as usize].state, self.has_room(slot))
            {
                return Some((slot, token));
            }
        }
        None
    }

    /// Starts a request. The slot must have room for it.
    pub(crate) fn begin(&mut self, slot: u32, times: RequestTimes) {
        let (base, slot) = (slot as usize * usize::from(self.pipeline), &mut self.slots[slot as usize]);
        assert!(slot.in_flight < self.pipeline, "a slot has more requests than room");
        let at = (usize::from(slot.first) + usize::from(slot.in_flight)) % usize::from(self.pipeline);
        slot.in_flight += 1;
        self.in_flight += 1;
        self.request_times[base + at] = times;
    }

    /// Ends the oldest request in flight; returns its start.
    pub(crate) fn end(&mut self, slot: u32) -> Option<RequestTimes> {
        let (base, slot) = (slot as usize * usize::from(self.pipeline), &mut self.slots[slot as usize]);
        if slot.in_flight == 0 {
            return None;
        }
        let times = self.request_times[base + usize::from(slot.first)];
        slot.first = (slot.first + 1) % self.pipeline;
        slot.in_flight -= 1;
        self.in_flight -= 1;
        Some(times)
    }

    /// Removes the newest request in flight; returns its start.
    pub(crate) fn requeue(&mut self, slot: u32) -> Option<RequestTimes> {
        let (base, slot) = (slot as usize * usize::from(self.pipeline), &mut self.slots[slot as usize]);
        slot.in_flight = slot.in_flight.checked_sub(1)?;
        self.in_flight -= 1;
        let at = (usize::from(slot.first) + usize::from(slot.in_flight)) % usize::from(self.pipeline);
        Some(self.request_times[base + at])
    }

    pub(crate) fn in_flight(&self, slot: u32) -> u16 {
        self.slots[slot as usize].in_flight
    }

    pub(crate) fn in_flight_total(&self) -> u64 {
        self.in_flight
    }

    pub(crate) fn count(&self) -> u32 {
        self.slots.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(nanos: u64) -> RequestTimes {
        RequestTimes { intended: Time::from_nanos(nanos), sent: Time::from_nanos(nanos) }
    }

    #[test]
    fn requests_end_in_start_order_and_are_requeued_in_reverse() {
        let mut slots = ConnectionSlots::new(2, 3);
        slots.open(1, Token::new(20, 0));
        for round in 0..5 {
            for nanos in 0..3 {
                assert!(slots.has_room(1));
                slots.begin(1, times(round * 10 + nanos));
            }
            assert!(!slots.has_room(1));
            assert_eq!(slots.end(1), Some(times(round * 10)));
            assert_eq!(slots.requeue(1), Some(times(round * 10 + 2)));
            assert_eq!(slots.end(1), Some(times(round * 10 + 1)));
            assert_eq!((slots.end(1), slots.requeue(1), slots.in_flight_total()), (None, None, 0));
        }
    }

    #[test]
    fn the_ready_queue_has_each_open_slot_once_and_skips_closed_ones() {
        let mut slots = ConnectionSlots::new(3, 1);
        for slot in 0..3 {
            slots.open(slot, Token::new(20 + slot, 0));
            slots.mark_ready(slot);
            slots.mark_ready(slot);
        }
        slots.mark_empty(0);
        slots.open(0, Token::new(30, 1));
        slots.mark_ready(0);
        slots.mark_empty(1);
        assert_eq!(slots.next_ready(), Some((0, Token::new(30, 1))));
        assert_eq!(slots.next_ready(), Some((2, Token::new(22, 0))));
        assert_eq!(slots.next_ready(), None);
    }
}
