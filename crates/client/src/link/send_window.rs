//! Messages that are sent and unanswered, or due to be sent: in order, each found by the token in its answer.
//!
//! ```text
//!            base                        base + length
//!   │ Due │ │ Sent │ gone │ Due │ Sent │
//!    parked          in flight
//! ```
//!
//! A message keeps its token when it is sent again, so that the answer to any attempt completes it. A message that its
//! stream rejects is parked: it occupies no slot of the queue and does not delay the others. At the limit of parked
//! messages it keeps its slot: the queue then waits for its oldest message, and new messages wait in the spool.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::limits::PARKED_MAX;
use crate::spool_entry::SpoolEntry;

#[derive(Debug)]
pub(super) struct InFlightMessage {
    pub(super) entry: SpoolEntry,
    pub(super) stage: SendStage,
    /// Total cost of all messages pushed before it.
    before: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendStage {
    /// To be sent, not before this time, for this reason.
    Due(Instant, SendCause),
    /// Written and unanswered.
    Sent {
        at: Instant,
        /// Total bytes of the connection's output, the message included.
        end: u64,
        cause: SendCause,
    },
}

/// The reason for a send: determines whether it costs a token of the budget and whether later messages wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendCause {
    /// The first send. Costs no token; later messages wait for it.
    First,
    /// The connection ended before the answer. Costs a token; later messages wait for it.
    Interrupted,
    /// The server declined it, or did not answer in time, on a working connection. Costs a token; no message waits for
    /// it, because the order is already broken.
    Declined,
}

#[derive(Debug, Default)]
pub(super) struct SendWindow {
    base: u64,
    in_flight: VecDeque<Option<InFlightMessage>>,
    parked: BTreeMap<u64, InFlightMessage>,
    parked_cost: u64,
    cost_pushed: u64,
    cost_removed: u64,
    due: usize,
}

impl SendWindow {
    /// Length of the queue, including gaps of removed messages.
    pub(super) fn span(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn due(&self) -> usize {
        self.due
    }

    pub(super) fn next_token(&self) -> u64 {
        self.base + self.in_flight.len() as u64
    }

    /// Spool position of the oldest message; `u64::MAX` if there is none.
    pub(super) fn oldest_id(&self) -> u64 {
        // The queue never begins with a gap: `remove_from_queue` cuts them off.
        let first = self.in_flight.front().and_then(Option::as_ref);
        let parked = self.parked.values().next();
        first.into_iter().chain(parked).map(|flight| flight.entry.id).min().unwrap_or(u64::MAX)
    }

    pub(super) fn push(&mut self, entry: SpoolEntry, stage: SendStage) {
        self.due += usize::from(matches!(stage, SendStage::Due(..)));
        let before = self.cost_pushed;
        self.cost_pushed += entry.cost;
        self.in_flight.push_back(Some(InFlightMessage { entry, stage, before }));
    }

    /// Counts a message that was dropped before it entered the window.
    pub(super) fn skip(&mut self, cost: u64) {
        self.cost_pushed += cost;
        self.cost_removed += cost;
    }

    /// Cost of the removed messages that were pushed after this one; a lower bound unless it is the oldest.
    pub(super) fn cost_passed(&self, flight: &InFlightMessage) -> u64 {
        // All messages before the oldest one are removed, too.
        self.cost_removed.saturating_sub(flight.before)
    }

    /// Cost of the removed messages that were pushed after the oldest parked one.
    pub(super) fn cost_passed_parked(&self) -> u64 {
        self.parked.values().next().map_or(0, |flight| self.cost_passed(flight))
    }

    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut InFlightMessage> {
        match self.index_of(token).and_then(|at| self.in_flight.get_mut(at)?.as_mut()) {
            Some(flight) => Some(flight),
            None => self.parked.get_mut(&token),
        }
    }

    /// Parks a message. Returns false if the limit on number or bytes is reached; it then keeps its slot.
    pub(super) fn park(&mut self, token: u64, cost_max: u64) -> bool {
        if self.parked.contains_key(&token) {
            return true;
        }
        let Some(cost) = self.get_mut(token).map(|flight| flight.entry.cost) else { return false };
        let is_full = self.parked.len() >= PARKED_MAX || self.parked_cost.saturating_add(cost) > cost_max;
        if is_full && !self.parked.is_empty() {
            return false;
        }
        if let Some(flight) = self.remove_from_queue(token) {
            self.parked_cost += cost;
            self.parked.insert(token, flight);
        }
        true
    }

    pub(super) fn set(&mut self, token: u64, stage: SendStage) {
        if let Some(flight) = self.get_mut(token) {
            let before = std::mem::replace(&mut flight.stage, stage);
            self.due += usize::from(matches!(stage, SendStage::Due(..)));
            self.due -= usize::from(matches!(before, SendStage::Due(..)));
        }
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<InFlightMessage> {
        let flight = match self.parked.remove(&token) {
            Some(flight) => {
                self.parked_cost -= flight.entry.cost;
                flight
            }
            None => self.remove_from_queue(token)?,
        };
        self.due -= usize::from(matches!(flight.stage, SendStage::Due(..)));
        self.cost_removed += flight.entry.cost;
        Some(flight)
    }

    fn index_of(&self, token: u64) -> Option<usize> {
        usize::try_from(token.checked_sub(self.base)?).ok()
    }

    fn remove_from_queue(&mut self, token: u64) -> Option<InFlightMessage> {
        let at = self.index_of(token)?;
        let flight = self.in_flight.get_mut(at)?.take()?;
        while let Some(None) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.base += 1;
        }
        Some(flight)
    }

    pub(super) fn tokens(&self) -> Vec<u64> {
        self.iter().map(|(token, _)| token).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &InFlightMessage)> {
        let base = self.base;
        let in_flight = self.in_flight.iter().enumerate();
        let mut in_flight =
            in_flight.filter_map(move |(at, flight)| Some((base + at as u64, flight.as_ref()?))).peekable();
        let mut parked = self.parked.iter().map(|(token, flight)| (*token, flight)).peekable();
        std::iter::from_fn(move || match (parked.peek(), in_flight.peek()) {
            (Some((one, _)), Some((other, _))) if one > other => in_flight.next(),
            (Some(_), _) => parked.next(),
            (None, _) => in_flight.next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool_entry::OutgoingMessage;

    #[test]
    fn a_message_can_be_removed_once_by_its_token() {
        let now = Instant::now();
        let mut window = SendWindow::default();
        for id in 0..4 {
            let mut entry = SpoolEntry::new(OutgoingMessage::new(b"s", b"", b""), 1);
            entry.id = 10 + id;
            window.push(entry, SendStage::Sent { at: now, end: id, cause: SendCause::First });
        }
        assert_eq!((window.span(), window.next_token(), window.oldest_id()), (4, 4, 10));
        assert!(window.remove(1).is_some());
        assert!(window.remove(1).is_none(), "twice");
        assert_eq!((window.span(), window.oldest_id()), (4, 10));
        window.set(2, SendStage::Due(now, SendCause::Declined));
        window.set(1, SendStage::Due(now, SendCause::Declined));
        assert_eq!(window.due(), 1);
        assert!(window.remove(0).is_some());
        assert_eq!((window.span(), window.oldest_id(), window.tokens()), (2, 12, vec![2, 3]));
        assert!(window.remove(2).is_some() && window.remove(3).is_some());
        assert!(window.span() == 0 && window.remove(4).is_none());
        assert_eq!((window.due(), window.oldest_id(), window.next_token()), (0, u64::MAX, 4));
    }

    #[test]
    fn what_has_passed_a_message_is_counted_from_the_oldest_one_on() {
        let now = Instant::now();
        let mut window = SendWindow::default();
        for cost in [1, 2, 4, 8, 16] {
            let entry = SpoolEntry::new(OutgoingMessage::new(b"s", b"", b""), cost);
            window.push(entry, SendStage::Due(now, SendCause::Declined));
        }
        assert!(window.remove(0).is_some());
        assert_eq!(window.cost_passed_parked(), 0, "none is aside");
        assert!(window.park(1, 100) && window.park(3, 100));
        assert_eq!(window.cost_passed_parked(), 0, "none has passed");
        assert!(window.remove(2).is_some());
        assert_eq!(window.cost_passed_parked(), 4);
        window.skip(32);
        assert_eq!(window.cost_passed_parked(), 36);
        assert!(window.remove(4).is_some());
        assert_eq!(window.cost_passed_parked(), 52);
        assert!(window.remove(1).is_some());
        assert_eq!(window.cost_passed_parked(), 48);
        assert!(window.remove(3).is_some());
        assert_eq!(window.cost_passed_parked(), 0);
    }

    #[test]
    fn a_message_aside_takes_no_place_and_is_found_all_the_same() {
        let now = Instant::now();
        let mut window = SendWindow::default();
        for id in 0..6 {
            let mut entry = SpoolEntry::new(OutgoingMessage::new(b"s", b"", b""), 1);
            entry.id = 10 + id;
            window.push(entry, SendStage::Due(now, SendCause::Declined));
        }
        assert!(window.park(0, 2) && window.park(3, 2) && window.park(3, 2));
        assert!(!window.park(4, 2), "there is no room");
        assert!(!window.park(9, 2), "it never was");
        assert_eq!((window.span(), window.due(), window.oldest_id()), (5, 6, 10));
        assert_eq!(window.tokens(), [0, 1, 2, 3, 4, 5]);
        assert!(window.remove(1).is_some() && window.remove(2).is_some());
        assert_eq!((window.span(), window.oldest_id(), window.tokens()), (2, 10, vec![0, 3, 4, 5]));
        window.set(3, SendStage::Sent { at: now, end: 1, cause: SendCause::Declined });
        assert_eq!(window.due(), 3);
        assert!(window.remove(0).is_some() && window.remove(0).is_none());
        assert_eq!((window.due(), window.oldest_id()), (2, 13));
        assert!(window.park(4, 2), "there is room again");
        assert!(window.remove(5).is_some());
        assert_eq!((window.span(), window.next_token(), window.tokens()), (0, 6, vec![3, 4]));
        assert!(window.remove(3).is_some() && window.remove(4).is_some());
        assert_eq!((window.due(), window.oldest_id()), (0, u64::MAX));
        let large = SpoolEntry::new(OutgoingMessage::new(b"s", b"", b""), 9);
        window.push(large, SendStage::Due(now, SendCause::Declined));
        assert!(window.park(6, 2), "one alone always may");
    }
}
