//! What one client has in flight, and whether each acknowledgement is the right one.
//!
//! ```text
//!   messages:  0 … next          …          sent
//!              settled │ in flight, oldest first │ to come
//! ```
//!
//! A server acknowledges the messages of one connection in their order. One that is passed over is missing for good:
//! if its acknowledgement comes later after all, that is one for a message that has been given up.

use super::tally::{Failure, Tally};

/// A place in a stream. NATS counts; the ids of Redis are a time and a number.
pub(super) type Place = (u64, u64);

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    /// The message; `None` where answers carry no name and come in order.
    pub(super) counter: Option<u64>,
    pub(super) place: Place,
}

/// One client's messages in flight.
#[derive(Debug)]
pub(super) struct Acks {
    client: u16,
    /// When each message in flight was written, in nanoseconds after the start; its place is `counter % window`.
    begun: Box<[u64]>,
    next: u64,
    sent: u64,
    last: Option<Place>,
}

impl Acks {
    pub(super) fn new(client: u16, window: u32) -> Acks {
        Acks { client, begun: vec![0; window.max(1) as usize].into(), next: 0, sent: 0, last: None }
    }

    /// The number of the next message.
    pub(super) fn counter(&self) -> u64 {
        self.sent
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.sent - self.next
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight() < self.begun.len() as u64
    }

    /// The next message is about to be written. There is room.
    pub(super) fn send(&mut self, now: u64) {
        let at = (self.sent % self.begun.len() as u64) as usize;
        self.begun[at] = now;
        self.sent += 1;
    }

    /// The message that the next acknowledgement is about, by its name or by the order.
    fn turn_to(&mut self, counter: Option<u64>, tally: &mut Tally) -> Option<u64> {
        let client = self.client;
        let counter = counter.unwrap_or(self.next);
        if counter >= self.sent {
            let words = || format!("client {client}: an answer for message {counter}, of {} sent", self.sent);
            tally.fault(Failure::NeverSent, 1, words);
            return None;
        }
        if counter < self.next {
            let words = || format!("client {client}: another answer for message {counter}");
            tally.fault(Failure::AcknowledgedTwice, 1, words);
            return None;
        }
        let skipped = counter - self.next;
        if skipped > 0 {
            let from = self.next;
            let words = || format!("client {client}: messages {from} to {} were passed over", counter - 1);
            tally.fail(client, Failure::Missing, skipped, None, words);
        }
        self.next = counter + 1;
        Some(counter)
    }

    /// Judges an acknowledgement that names the right stream.
    #[inline]
    pub(super) fn settle(&mut self, ack: Ack, now: u64, tally: &mut Tally) {
        let Some(counter) = self.turn_to(ack.counter, tally) else { return };
        if let Some(last) = self.last.filter(|last| ack.place <= *last) {
            let client = self.client;
            let words = || format!("client {client}: {:?} after {last:?} for message {counter}", ack.place);
            tally.fail(client, Failure::WrongSequence, 1, None, words);
            return;
        }
        self.last = Some(ack.place);
        tally.succeed(self.begun[(counter % self.begun.len() as u64) as usize], now);
    }

    /// An answer that settles its message, but not well.
    pub(super) fn reject(
        &mut self,
        counter: Option<u64>,
        failure: Failure,
        words: impl FnOnce() -> String,
        tally: &mut Tally,
    ) {
        if self.turn_to(counter, tally).is_some() {
            tally.fail(self.client, failure, 1, None, words);
        }
    }

    /// All that is in flight has failed.
    pub(super) fn give_up(
        &mut self,
        failure: Failure,
        error: Option<i32>,
        words: impl FnOnce() -> String,
        tally: &mut Tally,
    ) {
        let count = self.in_flight();
        self.next = self.sent;
        if count > 0 {
            tally.fail(self.client, failure, count, error, words);
        }
    }

    /// Without waiting: all that was written by now is as good as sent.
    pub(super) fn taken(&mut self, now: u64, tally: &mut Tally) {
        for counter in self.next..self.sent {
            tally.succeed(self.begun[(counter % self.begun.len() as u64) as usize], now);
        }
        self.next = self.sent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_sent() -> (Acks, Tally) {
        let (mut acks, tally) = (Acks::new(7, 4), Tally::new());
        for at in 0..3 {
            acks.send(at);
        }
        (acks, tally)
    }

    fn ack(counter: u64, sequence: u64) -> Ack {
        Ack { counter: Some(counter), place: (0, sequence) }
    }

    /// Settles these in turn; tells the successes and the failures.
    fn check(answers: &[Ack], sends: u64, expected: &[(Failure, u64)]) {
        let (mut acks, mut tally) = three_sent();
        for answer in answers {
            acks.settle(*answer, 10, &mut tally);
        }
        let expected_total: u64 = expected.iter().map(|(_, count)| count).sum();
        assert_eq!((tally.sends, tally.failures_total()), (sends, expected_total), "{answers:?}");
        for (failure, count) in expected {
            assert_eq!(tally.failures(*failure), *count, "{failure:?} of {answers:?}");
        }
        acks.give_up(Failure::Unacknowledged, None, String::new, &mut tally);
        assert_eq!(tally.sends + tally.fails, 3, "{answers:?}");
    }

    #[test]
    fn only_rising_acknowledgements_in_order_count() {
        check(&[ack(0, 5), ack(1, 6), ack(2, 9)], 3, &[]);
        check(&[Ack { counter: None, place: (1, 1) }, Ack { counter: None, place: (2, 0) }], 2, &[]);
        check(&[ack(0, 5), ack(2, 6)], 2, &[(Failure::Missing, 1)]);
        check(&[ack(0, 5), ack(0, 5)], 1, &[(Failure::AcknowledgedTwice, 1)]);
        check(
            &[ack(0, 5), ack(2, 6), ack(1, 7)],
            2,
            &[(Failure::Missing, 1), (Failure::AcknowledgedTwice, 1)],
        );
        check(&[ack(0, 5), ack(1, 5)], 1, &[(Failure::WrongSequence, 1)]);
        check(&[ack(0, 5), ack(1, 4), ack(2, 6)], 2, &[(Failure::WrongSequence, 1)]);
        check(&[ack(3, 5)], 0, &[(Failure::NeverSent, 1)]);
    }

    #[test]
    fn a_refusal_settles_its_message_and_nothing_more() {
        let (mut acks, mut tally) = three_sent();
        acks.reject(Some(0), Failure::Refused, String::new, &mut tally);
        acks.settle(ack(1, 1), 9, &mut tally);
        assert_eq!((tally.sends, tally.fails, acks.in_flight()), (1, 1, 1));
        assert_eq!(tally.send_time.len(), 1);
    }

    #[test]
    fn the_window_is_full_when_so_many_are_in_flight() {
        let (mut acks, mut tally) = three_sent();
        assert!(acks.has_room());
        acks.send(3);
        assert!(!acks.has_room());
        acks.taken(8, &mut tally);
        assert_eq!((tally.sends, acks.in_flight(), acks.counter()), (4, 0, 4));
    }
}
