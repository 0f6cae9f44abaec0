//! What one thread counts. Failures are told apart by kind, and the first of each kind is kept in words.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::limits::FAILURE_RECORDS_MAX;
use crate::statistics::histogram;

macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $number:literal;)*) => {
        /// What went wrong with a message, an acknowledgement or a delivery.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum MessageFailure { $($(#[$doc])* $name,)* }

        impl MessageFailure {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[MessageFailure] = &[$(MessageFailure::$name,)*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self { $(MessageFailure::$name => $text,)* }
            }

            /// The number in `send failed` lines where the system gave none: errno's nearest.
            pub const fn number(self) -> i32 {
                match self { $(MessageFailure::$name => $number,)* }
            }
        }
    };
}

failures! {
    /// A message was not sent, because no connection came about.
    NotSent = "not_sent", 111;
    /// The connection ended with the message in flight.
    Broken = "broken", 104;
    /// No acknowledgement came in time.
    Unacknowledged = "unacknowledged", 110;
    /// The server answered that it did not take the message.
    Refused = "refused", 105;
    /// A later message was acknowledged and this one never was.
    Missing = "missing", 61;
    /// The acknowledgement names another stream.
    WrongStream = "wrong_stream", 71;
    /// The acknowledgement's sequence does not lie above that of an earlier message of the connection.
    WrongSequence = "wrong_sequence", 71;
    /// The acknowledgement calls a message a duplicate that was sent once.
    FalseDuplicate = "false_duplicate", 71;
    /// The acknowledgement cannot be read.
    BadAcknowledgement = "bad_acknowledgement", 71;
    /// An acknowledgement of a message that has had one, or has been given up.
    AcknowledgedTwice = "acknowledged_twice", 71;
    /// An acknowledgement of a message that was never sent.
    NeverSent = "never_sent", 71;
    /// What the server said is not the protocol, or an error.
    Protocol = "protocol", 71;
    /// A payload that nobody sent, or not so.
    WrongPayload = "wrong_payload", 74;
    /// A message that was delivered again, or after a later one.
    DeliveredTwice = "delivered_twice", 74;
    /// A message that was never delivered.
    Undelivered = "undelivered", 74;
}

/// A message that failed, as it is told one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FailureRecord {
    /// The client's number.
    pub client: u16,
    /// What went wrong.
    pub failure: MessageFailure,
    /// The system's number for it, or the nearest one.
    pub error: i32,
}

/// What one thread counted.
#[derive(Debug)]
pub(super) struct CollectTally {
    /// From the write that carried a message to its acknowledgement, or to the system's taking it, in nanoseconds.
    pub(super) send_time: Histogram<u64>,
    /// From the write to the delivery, in nanoseconds.
    pub(super) delivery_time: Histogram<u64>,
    /// Messages that were made and entrusted to a connection, or would have been if there had been one.
    pub(super) queued: u64,
    /// Messages that were acknowledged as they should, or, without waiting, taken by the system.
    pub(super) sends: u64,
    /// Messages of which neither is true.
    pub(super) fails: u64,
    /// Connections that did not come about, attempts counted one by one.
    pub(super) connection_fails: u64,
    /// Connections opened.
    pub(super) connects: u64,
    /// Messages that a subscriber got as they should be.
    pub(super) deliveries: u64,
    failures: [u64; MessageFailure::ALL.len()],
    evidence: [Option<String>; MessageFailure::ALL.len()],
    pub(super) said: Vec<FailureRecord>,
    /// When the last good thing happened, in nanoseconds after the start.
    pub(super) last_ns: u64,
    /// When the system last took something of a message, in nanoseconds after the start.
    pub(super) written_ns: u64,
}

impl CollectTally {
    pub(super) fn new() -> Self {
        CollectTally {
            send_time: histogram(),
            delivery_time: histogram(),
            queued: 0,
            sends: 0,
            fails: 0,
            connection_fails: 0,
            connects: 0,
            deliveries: 0,
            failures: [0; MessageFailure::ALL.len()],
            evidence: [const { None }; MessageFailure::ALL.len()],
            said: Vec::new(),
            last_ns: 0,
            written_ns: 0,
        }
    }

    /// The system has taken something of a message.
    #[inline]
    pub(super) fn write(&mut self, now: u64) {
        self.written_ns = self.written_ns.max(now);
    }

    /// A message went well: since `begun`, at `now`, both in nanoseconds after the start.
    #[inline]
    pub(super) fn succeed(&mut self, begun: u64, now: u64) {
        self.send_time.saturating_record(now.saturating_sub(begun));
        self.sends += 1;
        self.last_ns = self.last_ns.max(now);
    }

    /// `count` failures of a kind that are no message's own. The words are asked for the first time only.
    #[cold]
    pub(super) fn fault(&mut self, failure: MessageFailure, count: u64, detail: impl FnOnce() -> String) {
        self.failures[failure as usize] += count;
        let evidence = &mut self.evidence[failure as usize];
        if evidence.is_none() && count > 0 {
            *evidence = Some(detail());
        }
    }

    /// `count` messages of a client failed; `error` is the system's number where it gave one.
    #[cold]
    pub(super) fn fail(
        &mut self,
        client: u16,
        failure: MessageFailure,
        count: u64,
        error: Option<i32>,
        detail: impl FnOnce() -> String,
    ) {
        self.fault(failure, count, detail);
        self.fails += count;
        let room = FAILURE_RECORDS_MAX.saturating_sub(self.said.len()) as u64;
        let error = error.unwrap_or(failure.number());
        self.said.extend((0..count.min(room)).map(|_| FailureRecord { client, failure, error }));
    }

    pub(super) fn failures(&self, failure: MessageFailure) -> u64 {
        self.failures[failure as usize]
    }

    pub(super) fn failures_total(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// The first failure of a kind in words.
    pub(super) fn evidence(&self, failure: MessageFailure) -> Option<&str> {
        self.evidence[failure as usize].as_deref()
    }

    /// When the last good thing happened.
    pub(super) fn until_last(&self) -> Duration {
        Duration::from_nanos(self.last_ns)
    }

    /// Adds what another thread counted.
    pub(super) fn absorb(&mut self, other: CollectTally) {
        // All have the same bounds.
        let _ = self.send_time.add(&other.send_time);
        let _ = self.delivery_time.add(&other.delivery_time);
        self.queued += other.queued;
        self.sends += other.sends;
        self.fails += other.fails;
        self.connection_fails += other.connection_fails;
        self.connects += other.connects;
        self.deliveries += other.deliveries;
        for (at, count) in other.failures.into_iter().enumerate() {
            self.failures[at] += count;
        }
        for (mine, theirs) in self.evidence.iter_mut().zip(other.evidence) {
            *mine = mine.take().or(theirs);
        }
        self.said.extend(other.said);
        self.said.truncate(FAILURE_RECORDS_MAX);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.written_ns = self.written_ns.max(other.written_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_stands_at_its_number_with_the_name_it_has_in_json() {
        for (number, failure) in MessageFailure::ALL.iter().enumerate() {
            assert_eq!(*failure as usize, number);
            assert_eq!(serde_json::to_string(failure).unwrap(), format!("\"{}\"", failure.name()));
        }
    }

    #[test]
    fn threads_add_up_and_what_is_told_one_by_one_is_bounded() {
        let (mut one, mut other) = (CollectTally::new(), CollectTally::new());
        one.fail(1, MessageFailure::Broken, 60, Some(32), || "first".to_owned());
        other.fail(2, MessageFailure::Broken, 1000, None, || "second".to_owned());
        other.fault(MessageFailure::NeverSent, 1, || "third".to_owned());
        other.succeed(5, 9);
        other.write(7);
        one.write(6);
        one.absorb(other);
        assert_eq!(one.written_ns, 7);
        assert_eq!((one.fails, one.failures_total(), one.sends, one.last_ns), (1060, 1061, 1, 9));
        assert_eq!(one.evidence(MessageFailure::Broken), Some("first"));
        assert_eq!(one.said.len(), FAILURE_RECORDS_MAX);
        assert_eq!((one.said[0].error, one.said[60].error), (32, MessageFailure::Broken.number()));
    }
}
