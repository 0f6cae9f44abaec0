//! The messages that are with the server, or on their way to it again: in order, found by the token of their answers.
//!
//! ```text
//!   base                        base + length
//!    │ Sent │ gone │ Due │ Sent │
//! ```
//!
//! A message keeps its token when it is sent again, so that the answer to any of its attempts ends it.

use std::collections::VecDeque;
use std::time::Instant;

use crate::entry::Entry;

/// A message in the window.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) entry: Entry,
    pub(super) stage: Stage,
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
    due: usize,
}

impl Window {
    /// Tokens from the oldest message on, those of messages that are gone between them included.
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
        // The oldest one is never gone: `take` has cut off those before it.
        self.flights.front().and_then(Option::as_ref).map_or(u64::MAX, |flight| flight.entry.id)
    }

    pub(super) fn push(&mut self, entry: Entry, stage: Stage) {
        self.due += usize::from(matches!(stage, Stage::Due(..)));
        self.flights.push_back(Some(Flight { entry, stage }));
    }

    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut Flight> {
        let at = usize::try_from(token.checked_sub(self.base)?).ok()?;
        self.flights.get_mut(at)?.as_mut()
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
        let at = usize::try_from(token.checked_sub(self.base)?).ok()?;
        let flight = self.flights.get_mut(at)?.take()?;
        self.due -= usize::from(matches!(flight.stage, Stage::Due(..)));
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

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Flight)> {
        let base = self.base;
        self.flights
            .iter()
            .enumerate()
            .filter_map(move |(at, flight)| Some((base + at as u64, flight.as_ref()?)))
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
}
