//! Counters of a run. Failures are counted by kind, with evidence of the first of each kind.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::disturbance::{DisturbanceOutcome, DisturbanceReport};
use super::resuming::{ResumingOutcome, ResumingReport};
use crate::statistics::histogram;

macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Failure of a delivery, a connection or a publication.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum DeliveryFailure { $($(#[$doc])* $name,)* }

        impl DeliveryFailure {
            /// All kinds, in the order of their discriminants.
            pub const ALL: &[DeliveryFailure] = &[$(DeliveryFailure::$name,)*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self { $(DeliveryFailure::$name => $text,)* }
            }
        }
    };
}

failures! {
    /// A message that a subscriber never received.
    Undelivered = "undelivered";
    /// A message that a subscriber received again.
    Repeated = "repeated";
    /// A message that a subscriber received after a later one.
    Late = "late";
    /// A delivery of a message that was not sent yet.
    NeverSent = "never_sent";
    /// A payload that no publisher sent, or that belongs to another subscriber.
    WrongPayload = "wrong_payload";
    /// A sequence that does not rise with the messages.
    WrongSequence = "wrong_sequence";
    /// A protocol violation or an error of the server.
    Protocol = "protocol";
    /// A connection that the server closed.
    Broken = "broken";
}

#[derive(Debug)]
pub(super) struct BroadcastTally {
    /// From the write of a batch of messages to its last delivery, in nanoseconds.
    pub(super) latency: Histogram<u64>,
    pub(super) deliveries: u64,
    /// Time of the last delivery, in nanoseconds after the start.
    pub(super) last_ns: u64,
    failures: [u64; DeliveryFailure::ALL.len()],
    evidence: [Option<String>; DeliveryFailure::ALL.len()],
}

impl BroadcastTally {
    pub(super) fn new() -> BroadcastTally {
        BroadcastTally {
            latency: histogram(),
            deliveries: 0,
            last_ns: 0,
            failures: [0; DeliveryFailure::ALL.len()],
            evidence: [const { None }; DeliveryFailure::ALL.len()],
        }
    }

    /// Counts failures. `detail` is called for the first one of a kind only.
    #[cold]
    pub(super) fn fail(&mut self, failure: DeliveryFailure, count: u64, detail: impl FnOnce() -> String) {
        self.failures[failure as usize] += count;
        let evidence = &mut self.evidence[failure as usize];
        if evidence.is_none() && count > 0 {
            *evidence = Some(detail());
        }
    }

    /// Counts a message as late that was counted as undelivered.
    #[cold]
    pub(super) fn arrive_late(&mut self, detail: impl FnOnce() -> String) {
        let undelivered = &mut self.failures[DeliveryFailure::Undelivered as usize];
        *undelivered = undelivered.saturating_sub(1);
        self.fail(DeliveryFailure::Late, 1, detail);
    }

    /// Counts the failures of disturbing subscribers.
    pub(super) fn add_disturbance(&mut self, outcome: DisturbanceOutcome) -> DisturbanceReport {
        for (failure, detail) in outcome.failures {
            self.fail(failure, 1, || detail);
        }
        outcome.report
    }

    /// Counts the failures of resuming subscribers.
    pub(super) fn add_resuming(&mut self, outcome: ResumingOutcome) -> ResumingReport {
        for (failure, count, detail) in outcome.failures {
            self.fail(failure, count, || detail);
        }
        outcome.report
    }

    pub(super) fn failures(&self) -> BTreeMap<&'static str, u64> {
        DeliveryFailure::ALL.iter().map(|kind| (kind.name(), self.failures[*kind as usize])).collect()
    }

    pub(super) fn failures_total(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// Evidence of the kinds that occurred.
    pub(super) fn evidence(&self) -> BTreeMap<&'static str, String> {
        let occurred = DeliveryFailure::ALL.iter().filter(|kind| self.failures[**kind as usize] > 0);
        occurred.filter_map(|kind| Some((kind.name(), self.evidence[*kind as usize].clone()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_number_and_its_name_in_json() {
        for (number, failure) in DeliveryFailure::ALL.iter().enumerate() {
            assert_eq!(*failure as usize, number);
            assert_eq!(serde_json::to_string(failure).unwrap(), format!("\"{}\"", failure.name()));
        }
    }

    #[test]
    fn a_late_message_is_not_undelivered() {
        let mut tally = BroadcastTally::new();
        tally.fail(DeliveryFailure::Undelivered, 1, || "first".to_owned());
        tally.fail(DeliveryFailure::Undelivered, 1, || "second".to_owned());
        assert_eq!(tally.evidence()["undelivered"], "first");
        tally.arrive_late(|| "third".to_owned());
        tally.arrive_late(|| "fourth".to_owned());
        assert_eq!((tally.failures()["late"], tally.failures()["undelivered"]), (2, 0));
        assert!(!tally.evidence().contains_key("undelivered"));
        assert_eq!(tally.failures_total(), 2);
    }
}
