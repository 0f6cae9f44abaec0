//! The connections' places: who is connected, and when each request in flight began.
//!
//! A seat outlives its connection: when one closes, the next one takes the same seat. All memory is
//! taken at the start.
//!
//! ```text
//!  seat 0 [token, in flight 2, first 1] ──► moments [ _ ][ b ][ c ][ _ ]   pipeline = 4
//!  seat 1 [token, in flight 0]          ──► moments [ _ ][ _ ][ _ ][ _ ]
//! ```

use std::collections::VecDeque;

use stilling_engine::Token;
use stilling_ring::Time;

/// When a request began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestTimes {
    /// When it should have begun; in a closed loop the same as `sent`.
    pub(crate) intended: Time,
    /// When it was sent; with a connection per request, when the connection was begun.
    pub(crate) sent: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionSlotState {
    /// No connection.
    Empty,
    /// A connection is being opened or open.
    Busy,
    /// Open: it can be sent on.
    Open(Token),
}

#[derive(Clone, Copy, Debug)]
struct ConnectionSlot {
    state: ConnectionSlotState,
    first: u16,
    in_flight: u16,
    /// A connection for it has been tried.
    tried: bool,
    /// It stands in the row of those that may take a request.
    is_ready: bool,
}

#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    slots: Vec<ConnectionSlot>,
    request_times: Vec<RequestTimes>,
    pipeline: u16,
    /// Open seats with room for a request, the longest waiting first; entries may be out of date.
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

    /// A connection is being opened for the seat.
    pub(crate) fn mark_connecting(&mut self, slot: u32) {
        self.slots[slot as usize].state = ConnectionSlotState::Busy;
    }

    /// Its first attempt at a connection is over. True the first time.
    pub(crate) fn record_attempt(&mut self, slot: u32) -> bool {
        !std::mem::replace(&mut self.slots[slot as usize].tried, true)
    }

    /// Its connection is open.
    pub(crate) fn open(&mut self, slot: u32, token: Token) {
        self.slots[slot as usize].state = ConnectionSlotState::Open(token);
    }

    /// It can take no more requests: the connection ends.
    pub(crate) fn mark_closing(&mut self, slot: u32) {
        self.slots[slot as usize].state = ConnectionSlotState::Busy;
    }

    /// Its connection is gone.
    pub(crate) fn mark_empty(&mut self, slot: u32) {
        self.slots[slot as usize].state = ConnectionSlotState::Empty;
    }

    /// Whether another request may be sent on it.
    pub(crate) fn has_room(&self, slot: u32) -> bool {
        let slot = &self.slots[slot as usize];
        matches!(slot.state, ConnectionSlotState::Open(_)) && slot.in_flight < self.pipeline
    }

    /// Puts an open seat with room into the row.
    pub(crate) fn mark_ready(&mut self, slot: u32) {
        if self.has_room(slot) && !std::mem::replace(&mut self.slots[slot as usize].is_ready, true) {
            self.ready.push_back(slot);
        }
    }

    /// Whether somebody may stand in the row.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The first in the row that still has room.
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

    /// A request begins. The seat must have room for it.
    pub(crate) fn begin(&mut self, slot: u32, times: RequestTimes) {
        let (base, slot) = (slot as usize * usize::from(self.pipeline), &mut self.slots[slot as usize]);
        assert!(slot.in_flight < self.pipeline, "a seat took more requests than it has room for");
        let at = (usize::from(slot.first) + usize::from(slot.in_flight)) % usize::from(self.pipeline);
        slot.in_flight += 1;
        self.in_flight += 1;
        self.request_times[base + at] = times;
    }

    /// The oldest request in flight is over; returns when it began.
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

    /// The newest request in flight is taken back; returns when it began.
    pub(crate) fn requeue(&mut self, slot: u32) -> Option<RequestTimes> {
        let (base, slot) = (slot as usize * usize::from(self.pipeline), &mut self.slots[slot as usize]);
        slot.in_flight = slot.in_flight.checked_sub(1)?;
        self.in_flight -= 1;
        let at = (usize::from(slot.first) + usize::from(slot.in_flight)) % usize::from(self.pipeline);
        Some(self.request_times[base + at])
    }

    /// Requests in flight on one seat.
    pub(crate) fn in_flight(&self, slot: u32) -> u16 {
        self.slots[slot as usize].in_flight
    }

    /// Requests in flight on all seats.
    pub(crate) fn in_flight_total(&self) -> u64 {
        self.in_flight
    }

    /// Seats.
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
    fn requests_end_in_the_order_in_which_they_began_and_are_taken_back_in_reverse() {
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
    fn the_row_holds_each_open_seat_once_and_skips_those_that_closed() {
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
