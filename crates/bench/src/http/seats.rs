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
pub(crate) struct Moment {
    /// When it should have begun; in a closed loop the same as `sent`.
    pub(crate) intended: Time,
    /// When it was sent; with a connection per request, when the connection was begun.
    pub(crate) sent: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No connection.
    Empty,
    /// A connection is being opened or open.
    Taken,
    /// Open: it can be sent on.
    Open(Token),
}

#[derive(Clone, Copy, Debug)]
struct Seat {
    state: State,
    first: u16,
    in_flight: u16,
    /// A connection for it has been tried.
    tried: bool,
    /// It stands in the row of those that may take a request.
    in_row: bool,
}

#[derive(Debug)]
pub(crate) struct Seats {
    seats: Vec<Seat>,
    moments: Vec<Moment>,
    pipeline: u16,
    /// Open seats with room for a request, the longest waiting first; entries may be out of date.
    row: VecDeque<u32>,
    in_flight: u64,
}

impl Seats {
    pub(crate) fn new(count: u32, pipeline: u16) -> Self {
        let seat = Seat { state: State::Empty, first: 0, in_flight: 0, tried: false, in_row: false };
        let moment = Moment { intended: Time::ZERO, sent: Time::ZERO };
        Seats {
            seats: vec![seat; count as usize],
            moments: vec![moment; count as usize * usize::from(pipeline)],
            pipeline,
            row: VecDeque::with_capacity(count as usize),
            in_flight: 0,
        }
    }

    /// A connection is being opened for the seat.
    pub(crate) fn take(&mut self, seat: u32) {
        self.seats[seat as usize].state = State::Taken;
    }

    /// Its first attempt at a connection is over. True the first time.
    pub(crate) fn note_tried(&mut self, seat: u32) -> bool {
        !std::mem::replace(&mut self.seats[seat as usize].tried, true)
    }

    /// Its connection is open.
    pub(crate) fn open(&mut self, seat: u32, token: Token) {
        self.seats[seat as usize].state = State::Open(token);
    }

    /// It can take no more requests: the connection ends.
    pub(crate) fn shut(&mut self, seat: u32) {
        self.seats[seat as usize].state = State::Taken;
    }

    /// Its connection is gone.
    pub(crate) fn vacate(&mut self, seat: u32) {
        self.seats[seat as usize].state = State::Empty;
    }

    /// Whether another request may be sent on it.
    pub(crate) fn has_room(&self, seat: u32) -> bool {
        let seat = &self.seats[seat as usize];
        matches!(seat.state, State::Open(_)) && seat.in_flight < self.pipeline
    }

    /// Puts an open seat with room into the row.
    pub(crate) fn line_up(&mut self, seat: u32) {
        if self.has_room(seat) && !std::mem::replace(&mut self.seats[seat as usize].in_row, true) {
            self.row.push_back(seat);
        }
    }

    /// Whether somebody may stand in the row.
    pub(crate) fn has_row(&self) -> bool {
        !self.row.is_empty()
    }

    /// The first in the row that still has room.
    pub(crate) fn next_in_row(&mut self) -> Option<(u32, Token)> {
        while let Some(seat) = self.row.pop_front() {
            self.seats[seat as usize].in_row = false;
            if let (State::Open(token), true) = (self.seats[seat as usize].state, self.has_room(seat)) {
                return Some((seat, token));
            }
        }
        None
    }

    /// A request begins. The seat must have room for it.
    pub(crate) fn begin(&mut self, seat: u32, moment: Moment) {
        let (base, seat) = (seat as usize * usize::from(self.pipeline), &mut self.seats[seat as usize]);
        assert!(seat.in_flight < self.pipeline, "a seat took more requests than it has room for");
        let at = (usize::from(seat.first) + usize::from(seat.in_flight)) % usize::from(self.pipeline);
        seat.in_flight += 1;
        self.in_flight += 1;
        self.moments[base + at] = moment;
    }

    /// The oldest request in flight is over; returns when it began.
    pub(crate) fn end(&mut self, seat: u32) -> Option<Moment> {
        let (base, seat) = (seat as usize * usize::from(self.pipeline), &mut self.seats[seat as usize]);
        if seat.in_flight == 0 {
            return None;
        }
        let moment = self.moments[base + usize::from(seat.first)];
        seat.first = (seat.first + 1) % self.pipeline;
        seat.in_flight -= 1;
        self.in_flight -= 1;
        Some(moment)
    }

    /// The newest request in flight is taken back; returns when it began.
    pub(crate) fn take_back(&mut self, seat: u32) -> Option<Moment> {
        let (base, seat) = (seat as usize * usize::from(self.pipeline), &mut self.seats[seat as usize]);
        seat.in_flight = seat.in_flight.checked_sub(1)?;
        self.in_flight -= 1;
        let at = (usize::from(seat.first) + usize::from(seat.in_flight)) % usize::from(self.pipeline);
        Some(self.moments[base + at])
    }

    /// Requests in flight on one seat.
    pub(crate) fn in_flight(&self, seat: u32) -> u16 {
        self.seats[seat as usize].in_flight
    }

    /// Requests in flight on all seats.
    pub(crate) fn in_flight_total(&self) -> u64 {
        self.in_flight
    }

    /// Seats.
    pub(crate) fn count(&self) -> u32 {
        self.seats.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(nanos: u64) -> Moment {
        Moment { intended: Time::from_nanos(nanos), sent: Time::from_nanos(nanos) }
    }

    #[test]
    fn requests_end_in_the_order_in_which_they_began_and_are_taken_back_in_reverse() {
        let mut seats = Seats::new(2, 3);
        seats.open(1, Token::new(20, 0));
        for round in 0..5 {
            for nanos in 0..3 {
                assert!(seats.has_room(1));
                seats.begin(1, moment(round * 10 + nanos));
            }
            assert!(!seats.has_room(1));
            assert_eq!(seats.end(1), Some(moment(round * 10)));
            assert_eq!(seats.take_back(1), Some(moment(round * 10 + 2)));
            assert_eq!(seats.end(1), Some(moment(round * 10 + 1)));
            assert_eq!((seats.end(1), seats.take_back(1), seats.in_flight_total()), (None, None, 0));
        }
    }

    #[test]
    fn the_row_holds_each_open_seat_once_and_skips_those_that_closed() {
        let mut seats = Seats::new(3, 1);
        for seat in 0..3 {
            seats.open(seat, Token::new(20 + seat, 0));
            seats.line_up(seat);
            seats.line_up(seat);
        }
        seats.vacate(0);
        seats.open(0, Token::new(30, 1));
        seats.line_up(0);
        seats.vacate(1);
        assert_eq!(seats.next_in_row(), Some((0, Token::new(30, 1))));
        assert_eq!(seats.next_in_row(), Some((2, Token::new(22, 0))));
        assert_eq!(seats.next_in_row(), None);
    }
}
