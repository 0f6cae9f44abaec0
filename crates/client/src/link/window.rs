//! The messages that are with the server, or on their way to it again: in order, found by the token of their answers.
//!
//! ```text
//!          base                        base + length
//!   │ Due │ │ Sent │ gone │ Due │ Sent │
//!    aside          in the row
//! ```
//!
//! A message keeps its token when it is sent again, so that the answer to any of its attempts ends it. One that its stream
//! does not take is put aside: it takes no place in the row, so that it costs the others nothing. Where no more may lie aside,
//! it keeps its place: the row waits for its oldest message, and what is new waits in the spool.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::entry::Entry;
use crate::limits::UNWANTED_MAX;

/// A message in the window.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) entry: Entry,
    pub(super) stage: Stage,
    /// What all that came before it count.
    before: u64,
}

/// Where a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// It is to be sent, not before this time, and for this reason.
    Due(Instant, Cause),
    /// It was written at this time, and ends at this byte of the connection's output.
    Sent {
        /// When.
        at: Instant,
        /// How many bytes the connection's output had, the message included.
        end: u64,
        /// Why it was written.
        cause: Cause,
    },
}

/// Why a message is sent: what it costs, and what has to wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// No server has had it. It costs nothing; later ones go after it.
    First,
    /// The connection ended before its answer came. It costs a permission; later ones go after it.
    Interrupted,
    /// The server did not take it, or not in time, on a connection that lives. It costs a permission, and nobody waits for
    /// it: the server has broken the order already.
    Declined,
}

/// Messages by their tokens.
#[derive(Debug, Default)]
pub(super) struct Window {
    base: u64,
    flights: VecDeque<Option<Flight>>,
    aside: BTreeMap<u64, Flight>,
    /// What those aside count.
    aside_cost: u64,
    /// What all count that have come.
    come: u64,
    /// What those of them count that are gone.
    gone: u64,
    due: usize,
}

impl Window {
    /// Tokens from the oldest message of the row on, those of messages that are gone between them included.
    pub(super) fn span(&self) -> usize {
        self.flights.len()
    }

    /// How many are to be sent again.
    pub(super) fn due(&self) -> usize {
        self.due
    }

    /// The token that the next message will have.
    pub(super) fn next_token(&self) -> u64 {
        self.base + self.flights.len() as u64
    }

    /// The place in the spool of the oldest message; beyond all places if there is none.
    pub(super) fn low(&self) -> u64 {
        // The oldest one of the row is never gone: `take` has cut off those before it.
        let first = self.flights.front().and_then(Option::as_ref);
        let aside = self.aside.values().next();
        first.into_iter().chain(aside).map(|flight| flight.entry.id).min().unwrap_or(u64::MAX)
    }

    pub(super) fn push(&mut self, entry: Entry, stage: Stage) {
        self.due += usize::from(matches!(stage, Stage::Due(..)));
        let before = self.come;
        self.come += entry.cost;
        self.flights.push_back(Some(Flight { entry, stage, before }));
    }

    /// Counts a message that comes behind all the others and is gone at once.
    pub(super) fn skip(&mut self, cost: u64) {
        self.come += cost;
        self.gone += cost;
    }

    /// What those count that came after this message and are gone; for one that is not the oldest, perhaps less.
    pub(super) fn passed(&self, flight: &Flight) -> u64 {
        // All that came before the oldest one is gone, too.
        self.gone.saturating_sub(flight.before)
    }

    /// What those count that came after the oldest message aside and are gone.
    pub(super) fn passed_aside(&self) -> u64 {
        self.aside.values().next().map_or(0, |flight| self.passed(flight))
    }

    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut Flight> {
        match self.place(token).and_then(|at| self.flights.get_mut(at)?.as_mut()) {
            Some(flight) => Some(flight),
            None => self.aside.get_mut(&token),
        }
    }

    /// Puts a message aside; false: as many lie there as may, or as many bytes, and it stays where it is.
    pub(super) fn set_aside(&mut self, token: u64, cost_max: u64) -> bool {
        if self.aside.contains_key(&token) {
            return true;
        }
        let Some(cost) = self.get_mut(token).map(|flight| flight.entry.cost) else { return false };
        let is_full = self.aside.len() >= UNWANTED_MAX || self.aside_cost.saturating_add(cost) > cost_max;
        if is_full && !self.aside.is_empty() {
            return false;
        }
        if let Some(flight) = self.take_from_row(token) {
            self.aside_cost += cost;
            self.aside.insert(token, flight);
        }
        true
    }

    /// Moves a message to another stage.
    pub(super) fn set(&mut self, token: u64, stage: Stage) {
        if let Some(flight) = self.get_mut(token) {
            let before = std::mem::replace(&mut flight.stage, stage);
            self.due += usize::from(matches!(stage, Stage::Due(..)));
            self.due -= usize::from(matches!(before, Stage::Due(..)));
        }
    }

    /// Takes a message out; nothing if it is gone already or never was.
    pub(super) fn take(&mut self, token: u64) -> Option<Flight> {
        let flight = match self.aside.remove(&token) {
            Some(flight) => {
                self.aside_cost -= flight.entry.cost;
                flight
            }
            None => self.take_from_row(token)?,
        };
        self.due -= usize::from(matches!(flight.stage, Stage::Due(..)));
        self.gone += flight.entry.cost;
        Some(flight)
    }

    fn place(&self, token: u64) -> Option<usize> {
        usize::try_from(token.checked_sub(self.base)?).ok()
    }

    fn take_from_row(&mut self, token: u64) -> Option<Flight> {
        let at = self.place(token)?;
        let flight = self.flights.get_mut(at)?.take()?;
        while let Some(None) = self.flights.front() {
            self.flights.pop_front();
            self.base += 1;
        }
        Some(flight)
    }

    /// The tokens of those that are there, the oldest first.
    pub(super) fn tokens(&self) -> Vec<u64> {
        self.iter().map(|(token, _)| token).collect()
    }

    /// All of them, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Flight)> {
        let base = self.base;
        let row = self.flights.iter().enumerate();
        let mut row =
            row.filter_map(move |(at, flight)| Some((base + at as u64, flight.as_ref()?))).peekable();
        let mut aside = self.aside.iter().map(|(token, flight)| (*token, flight)).peekable();
        std::iter::from_fn(move || match (aside.peek(), row.peek()) {
            (Some((one, _)), Some((other, _))) if one > other => row.next(),
            (Some(_), _) => aside.next(),
            (None, _) => row.next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Message;

    #[test]
    fn a_message_is_found_by_its_token_until_it_is_taken_once() {
        let now = Instant::now();
        let mut window = Window::default();
        for id in 0..4 {
            let mut entry = Entry::new(Message::new(b"s", b"", b""), 1);
            entry.id = 10 + id;
            window.push(entry, Stage::Sent { at: now, end: id, cause: Cause::First });
        }
        assert_eq!((window.span(), window.next_token(), window.low()), (4, 4, 10));
        assert!(window.take(1).is_some());
        assert!(window.take(1).is_none(), "twice");
        assert_eq!((window.span(), window.low()), (4, 10));
        window.set(2, Stage::Due(now, Cause::Declined));
        window.set(1, Stage::Due(now, Cause::Declined));
        assert_eq!(window.due(), 1);
        assert!(window.take(0).is_some());
        assert_eq!((window.span(), window.low(), window.tokens()), (2, 12, vec![2, 3]));
        assert!(window.take(2).is_some() && window.take(3).is_some());
        assert!(window.span() == 0 && window.take(4).is_none());
        assert_eq!((window.due(), window.low(), window.next_token()), (0, u64::MAX, 4));
    }

    #[test]
    fn what_has_passed_a_message_is_counted_from_the_oldest_one_on() {
        let now = Instant::now();
        let mut window = Window::default();
        for cost in [1, 2, 4, 8, 16] {
            let entry = Entry::new(Message::new(b"s", b"", b""), cost);
            window.push(entry, Stage::Due(now, Cause::Declined));
        }
        assert!(window.take(0).is_some());
        assert_eq!(window.passed_aside(), 0, "none is aside");
        assert!(window.set_aside(1, 100) && window.set_aside(3, 100));
        assert_eq!(window.passed_aside(), 0, "none has passed");
        assert!(window.take(2).is_some());
        assert_eq!(window.passed_aside(), 4);
        window.skip(32);
        assert_eq!(window.passed_aside(), 36);
        assert!(window.take(4).is_some());
        assert_eq!(window.passed_aside(), 52);
        assert!(window.take(1).is_some());
        assert_eq!(window.passed_aside(), 48);
        assert!(window.take(3).is_some());
        assert_eq!(window.passed_aside(), 0);
    }

    #[test]
    fn a_message_aside_takes_no_place_and_is_found_all_the_same() {
        let now = Instant::now();
        let mut window = Window::default();
        for id in 0..6 {
            let mut entry = Entry::new(Message::new(b"s", b"", b""), 1);
            entry.id = 10 + id;
            window.push(entry, Stage::Due(now, Cause::Declined));
        }
        assert!(window.set_aside(0, 2) && window.set_aside(3, 2) && window.set_aside(3, 2));
        assert!(!window.set_aside(4, 2), "there is no room");
        assert!(!window.set_aside(9, 2), "it never was");
        assert_eq!((window.span(), window.due(), window.low()), (5, 6, 10));
        assert_eq!(window.tokens(), [0, 1, 2, 3, 4, 5]);
        assert!(window.take(1).is_some() && window.take(2).is_some());
        assert_eq!((window.span(), window.low(), window.tokens()), (2, 10, vec![0, 3, 4, 5]));
        window.set(3, Stage::Sent { at: now, end: 1, cause: Cause::Declined });
        assert_eq!(window.due(), 3);
        assert!(window.take(0).is_some() && window.take(0).is_none());
        assert_eq!((window.due(), window.low()), (2, 13));
        assert!(window.set_aside(4, 2), "there is room again");
        assert!(window.take(5).is_some());
        assert_eq!((window.span(), window.next_token(), window.tokens()), (0, 6, vec![3, 4]));
        assert!(window.take(3).is_some() && window.take(4).is_some());
        assert_eq!((window.due(), window.low()), (0, u64::MAX));
        let large = Entry::new(Message::new(b"s", b"", b""), 9);
        window.push(large, Stage::Due(now, Cause::Declined));
        assert!(window.set_aside(6, 2), "one alone always may");
    }
}
