//! Counters of one thread. Failures are counted by kind, with evidence of the first of each kind.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::limits::FAILURE_RECORDS_MAX;
use crate::statistics::histogram;

macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $number:literal;)*) => {
        /// Failure of a message, an acknowledgement or a delivery.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum MessageFailure { $($(#[$doc])* $name,)* }

        impl MessageFailure {
            /// All kinds, in the order of their discriminants.
            pub const ALL: &[MessageFailure] = &[$(MessageFailure::$name,)*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self { $(MessageFailure::$name => $text,)* }
            }

            /// The number in `send failed` lines if the system gave none: the nearest errno.
            pub const fn number(self) -> i32 {
                match self { $(MessageFailure::$name => $number,)* }
            }
        }
    };
}

failures! {
    /// The message was not sent, because no connection could be opened.
    NotSent = "not_sent", 111;
    /// The connection ended with the message in flight.
    Broken = "broken", 104;
    /// No acknowledgement arrived in time.
    Unacknowledged = "unacknowledged", 110;
    /// The server refused the message.
    Refused = "refused", 105;
    /// A later message was acknowledged, this one never.
    Missing = "missing", 61;
    /// The acknowledgement names another stream.
    WrongStream = "wrong_stream", 71;
    /// The acknowledgement's sequence is not above that of an earlier message of the connection.
    WrongSequence = "wrong_sequence", 71;
    /// The acknowledgement marks a message as a duplicate that was sent once.
    FalseDuplicate = "false_duplicate", 71;
    /// The acknowledgement is malformed.
    BadAcknowledgement = "bad_acknowledgement", 71;
    /// A second acknowledgement, or one of a message that had failed.
    AcknowledgedTwice = "acknowledged_twice", 71;
    /// An acknowledgement of a message that was never sent.
    NeverSent = "never_sent", 71;
    /// A protocol violation or an error of the server.
    Protocol = "protocol", 71;
    /// A payload that no client sent, or with wrong content.
    WrongPayload = "wrong_payload", 74;
    /// A message delivered again, or after a later one.
    DeliveredTwice = "delivered_twice", 74;
    /// A message that was never delivered.
    Undelivered = "undelivered", 74;
}

/// An individually reported failed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FailureRecord {
    /// The client's number.
    pub client: u16,
    /// The kind of failure.
    pub failure: MessageFailure,
    /// The system's error number, or the nearest one.
    pub error: i32,
}

#[derive(Debug)]
pub(super) struct CollectTally {
    /// From the write that carried a message to its acknowledgement, or to its acceptance by the kernel, in
    /// nanoseconds.
    pub(super) send_time: Histogram<u64>,
    /// From the write to the delivery, in nanoseconds.
    pub(super) delivery_time: Histogram<u64>,
    /// Started messages, including those that found no connection.
    pub(super) queued: u64,
    /// Messages acknowledged correctly, or accepted by the kernel without acknowledgements.
    pub(super) sends: u64,
    pub(super) fails: u64,
    pub(super) connection_fails: u64,
    pub(super) connects: u64,
    pub(super) deliveries: u64,
    failures: [u64; MessageFailure::ALL.len()],
    evidence: [Option<String>; MessageFailure::ALL.len()],
    pub(super) failure_records: Vec<FailureRecord>,
    /// Time of the last success, in nanoseconds after the start.
    pub(super) last_ns: u64,
    /// Time when the kernel last accepted a part of a message, in nanoseconds after the start.
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
            failure_records: Vec::new(),
            last_ns: 0,
            written_ns: 0,
        }
    }

    /// Records that the kernel accepted a part of a message.
    #[inline]
    pub(super) fn write(&mut self, now: u64) {
        self.written_ns = self.written_ns.max(now);
    }

    /// Records a success; `begun` and `now` are nanoseconds after the start.
    #[inline]
    pub(super) fn succeed(&mut self, begun: u64, now: u64) {
        self.send_time.saturating_record(now.saturating_sub(begun));
        self.sends += 1;
        self.last_ns = self.last_ns.max(now);
    }

    /// Adds `count` failures that belong to no single message. `detail` is called for the first one of a kind only.
    #[cold]
    pub(super) fn fault(&mut self, failure: MessageFailure, count: u64, detail: impl FnOnce() -> String) {
        self.failures[failure as usize] += count;
        let evidence = &mut self.evidence[failure as usize];
        if evidence.is_none() && count > 0 {
            *evidence = Some(detail());
        }
    }

    /// Fails `count` messages of a client; `error` is the system's error number, if any.
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
        let room = FAILURE_RECORDS_MAX.saturating_sub(self.failure_records.len()) as u64;
        let error = error.unwrap_or(failure.number());
        self.failure_records.extend((0..count.min(room)).map(|_| FailureRecord { client, failure, error }));
    }

    pub(super) fn failures(&self, failure: MessageFailure) -> u64 {
        self.failures[failure as usize]
    }

    pub(super) fn failures_total(&self) -> u64 {
        self.failures.iter().sum()
    }

    pub(super) fn evidence(&self, failure: MessageFailure) -> Option<&str> {
        self.evidence[failure as usize].as_deref()
    }

    pub(super) fn until_last(&self) -> Duration {
        Duration::from_nanos(self.last_ns)
    }

    pub(super) fn absorb(&mut self, other: CollectTally) {
        // All histograms have the same bounds.
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
        self.failure_records.extend(other.failure_records);
        self.failure_records.truncate(FAILURE_RECORDS_MAX);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.written_ns = self.written_ns.max(other.written_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_index_and_its_json_name() {
        for (number, failure) in MessageFailure::ALL.iter().enumerate() {
            assert_eq!(*failure as usize, number);
            assert_eq!(serde_json::to_string(failure).unwrap(), format!("\"{}\"", failure.name()));
        }
    }

    #[test]
    fn thread_counts_add_up_and_individual_reports_are_bounded() {
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
        assert_eq!(one.failure_records.len(), FAILURE_RECORDS_MAX);
        assert_eq!(
            (one.failure_records[0].error, one.failure_records[60].error),
            (32, MessageFailure::Broken.number())
        );
    }
}
