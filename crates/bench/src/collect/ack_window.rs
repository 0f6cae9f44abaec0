//! The messages that one client has in flight, and the check of each acknowledgement.
//!
//! ```text
//!   messages:  0 … next           …          sent
//!              settled │ in flight, oldest first │ to come
//! ```
//!
//! A server acknowledges the messages of one connection in order. A skipped message counts as missing, and a later
//! acknowledgement of it is a failure, too (`AcknowledgedTwice`).

use super::tally::{CollectTally, MessageFailure};

/// A position in a stream: NATS has a sequence, Redis a time and a number.
pub(super) type AckPosition = (u64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    /// Number of the message; `None` if answers carry no number and arrive in order.
    pub(super) counter: Option<u64>,
    pub(super) position: AckPosition,
}

#[derive(Debug)]
pub(super) struct AckWindow {
    client: u16,
    /// Write time of each message in flight, in nanoseconds after the start; its index is `counter % window`.
    started_at: Box<[u64]>,
    next: u64,
    sent: u64,
    last: Option<AckPosition>,
}

impl AckWindow {
    pub(super) fn new(client: u16, window: u32) -> AckWindow {
        AckWindow { client, started_at: vec![0; window.max(1) as usize].into(), next: 0, sent: 0, last: None }
    }

    pub(super) fn counter(&self) -> u64 {
        self.sent
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.sent - self.next
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight() < self.started_at.len() as u64
    }

    /// Registers the next message before it is written. The window must have room.
    pub(super) fn send(&mut self, now: u64) {
        let at = (self.sent % self.started_at.len() as u64) as usize;
        self.started_at[at] = now;
        self.sent += 1;
    }

    /// Matches an acknowledgement to its message, by number or else by order.
    fn match_message(&mut self, counter: Option<u64>, tally: &mut CollectTally) -> Option<u64> {
        let client = self.client;
        let counter = counter.unwrap_or(self.next);
        if counter >= self.sent {
            let detail =
                || format!("client {client}: an answer for message {counter}, of {} sent", self.sent);
            tally.fault(MessageFailure::NeverSent, 1, detail);
            return None;
        }
        if counter < self.next {
            let detail = || format!("client {client}: another answer for message {counter}");
            tally.fault(MessageFailure::AcknowledgedTwice, 1, detail);
            return None;
        }
        let skipped = counter - self.next;
        if skipped > 0 {
            let from = self.next;
            let detail =
                || format!("client {client}: messages {from} to {} were not acknowledged", counter - 1);
            tally.fail(client, MessageFailure::Missing, skipped, None, detail);
        }
        self.next = counter + 1;
        Some(counter)
    }

    /// Checks an acknowledgement that names the right stream.
    #[inline]
    pub(super) fn acknowledge(&mut self, ack: Ack, now: u64, tally: &mut CollectTally) {
        let Some(counter) = self.match_message(ack.counter, tally) else { return };
        if let Some(last) = self.last.filter(|last| ack.position <= *last) {
            let client = self.client;
            let detail =
                || format!("client {client}: {:?} after {last:?} for message {counter}", ack.position);
            tally.fail(client, MessageFailure::WrongSequence, 1, None, detail);
            return;
        }
        self.last = Some(ack.position);
        tally.succeed(self.started_at[(counter % self.started_at.len() as u64) as usize], now);
    }

    pub(super) fn reject(
        &mut self,
        counter: Option<u64>,
        failure: MessageFailure,
        detail: impl FnOnce() -> String,
        tally: &mut CollectTally,
    ) {
        if self.match_message(counter, tally).is_some() {
            tally.fail(self.client, failure, 1, None, detail);
        }
    }

    pub(super) fn fail_in_flight(
        &mut self,
        failure: MessageFailure,
        error: Option<i32>,
        detail: impl FnOnce() -> String,
        tally: &mut CollectTally,
    ) {
        let count = self.in_flight();
        self.next = self.sent;
        if count > 0 {
            tally.fail(self.client, failure, count, error, detail);
        }
    }

    /// Counts all messages in flight as sent, in runs without acknowledgements.
    pub(super) fn complete_sent(&mut self, now: u64, tally: &mut CollectTally) {
        for counter in self.next..self.sent {
            tally.succeed(self.started_at[(counter % self.started_at.len() as u64) as usize], now);
        }
        self.next = self.sent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_in_flight() -> (AckWindow, CollectTally) {
        let (mut acks, tally) = (AckWindow::new(7, 4), CollectTally::new());
        for at in 0..3 {
            acks.send(at);
        }
        (acks, tally)
    }

    fn ack(counter: u64, sequence: u64) -> Ack {
        Ack { counter: Some(counter), position: (0, sequence) }
    }

    fn check(answers: &[Ack], sends: u64, expected: &[(MessageFailure, u64)]) {
        let (mut acks, mut tally) = three_in_flight();
        for answer in answers {
            acks.acknowledge(*answer, 10, &mut tally);
        }
        let expected_total: u64 = expected.iter().map(|(_, count)| count).sum();
        assert_eq!((tally.sends, tally.failures_total()), (sends, expected_total), "{answers:?}");
        for (failure, count) in expected {
            assert_eq!(tally.failures(*failure), *count, "{failure:?} of {answers:?}");
        }
        acks.fail_in_flight(MessageFailure::Unacknowledged, None, String::new, &mut tally);
        assert_eq!(tally.sends + tally.fails, 3, "{answers:?}");
    }

    #[test]
    fn only_rising_acknowledgements_in_order_count() {
        check(&[ack(0, 5), ack(1, 6), ack(2, 9)], 3, &[]);
        check(&[Ack { counter: None, position: (1, 1) }, Ack { counter: None, position: (2, 0) }], 2, &[]);
        check(&[ack(0, 5), ack(2, 6)], 2, &[(MessageFailure::Missing, 1)]);
        check(&[ack(0, 5), ack(0, 5)], 1, &[(MessageFailure::AcknowledgedTwice, 1)]);
        check(
            &[ack(0, 5), ack(2, 6), ack(1, 7)],
            2,
            &[(MessageFailure::Missing, 1), (MessageFailure::AcknowledgedTwice, 1)],
        );
        check(&[ack(0, 5), ack(1, 5)], 1, &[(MessageFailure::WrongSequence, 1)]);
        check(&[ack(0, 5), ack(1, 4), ack(2, 6)], 2, &[(MessageFailure::WrongSequence, 1)]);
        check(&[ack(3, 5)], 0, &[(MessageFailure::NeverSent, 1)]);
    }

    #[test]
    fn a_refusal_settles_its_message_and_nothing_more() {
        let (mut acks, mut tally) = three_in_flight();
        acks.reject(Some(0), MessageFailure::Refused, String::new, &mut tally);
        acks.acknowledge(ack(1, 1), 9, &mut tally);
        assert_eq!((tally.sends, tally.fails, acks.in_flight()), (1, 1, 1));
        assert_eq!(tally.send_time.len(), 1);
    }

    #[test]
    fn the_window_is_full_when_so_many_are_in_flight() {
        let (mut acks, mut tally) = three_in_flight();
        assert!(acks.has_room());
        acks.send(3);
        assert!(!acks.has_room());
        acks.complete_sent(8, &mut tally);
        assert_eq!((tally.sends, acks.in_flight(), acks.counter()), (4, 0, 4));
    }
}
