//! What came of a run: all figures and all parameters, for people and for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::error::CollectError;
use super::monitor::MonitoredCounters;
use super::plan::CollectPlan;
use super::tally::{CollectTally, FailureRecord, MessageFailure};
use crate::statistics::LatencySummary;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectParameters {
    /// Where the server listens.
    pub to: String,
    /// What it speaks.
    pub protocol: &'static str,
    /// Publishing connections.
    pub clients: u16,
    /// Threads that share them.
    pub threads: u16,
    /// Bytes of each payload.
    pub size: u32,
    /// Messages in flight on each connection.
    pub window: u32,
    /// Waits for acknowledgements.
    pub confirmed: bool,
    /// A connection for each message.
    pub per_message: bool,
    /// Connections that read along.
    pub subscribers: u16,
    /// The stream whose acknowledgements are right.
    pub stream: Option<String>,
}

/// Whether every message is accounted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageAccounting {
    /// Messages that began.
    pub queued: u64,
    /// Those that were acknowledged, or taken by the system where nobody waits.
    pub sends: u64,
    /// Those of which neither is true.
    pub fails: u64,
    /// Messages that the server has, as its stream, its subscribers or its file show; a gap where nothing shows it.
    pub received: Option<u64>,
    /// Messages that failed and that the server has all the same.
    pub received_of_fails: u64,
    /// Sends that the server says it lost.
    pub in_ledger: u64,
    /// Sends that the server neither has nor names as lost.
    pub unexplained: u64,
    /// Messages that the server has beyond all that began.
    pub invented: u64,
}

impl MessageAccounting {
    fn new(tally: &CollectTally, received: Option<u64>, in_ledger: u64) -> MessageAccounting {
        let CollectTally { queued, sends, fails, .. } = *tally;
        let had = received.unwrap_or(sends);
        let missing = sends.saturating_sub(had);
        let beyond = had.saturating_sub(sends);
        MessageAccounting {
            queued,
            sends,
            fails,
            received,
            received_of_fails: beyond.min(fails),
            in_ledger: in_ledger.min(missing),
            unexplained: missing.saturating_sub(in_ledger),
            invented: beyond.saturating_sub(fails),
        }
    }

    /// Whether queued = sends + fails, and sends = received + every loss that the server's ledger names.
    pub fn is_balanced(&self) -> bool {
        self.queued == self.sends + self.fails && self.unexplained == 0 && self.invented == 0
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectRunReport {
    /// What was asked for.
    pub parameters: CollectParameters,
    /// From the start to the last acknowledgement, delivery or arrival, in seconds.
    pub elapsed_s: f64,
    /// Seconds from the moment when the system had taken the last message until everything that was sent had arrived, or
    /// nothing came any more: with it goes what waited in sockets and in the server.
    pub settled_s: f64,
    /// Whether every message is accounted for.
    pub accounting: MessageAccounting,
    /// Messages per second that did what they should: acknowledged, delivered to every subscriber, or arrived.
    pub rate_per_s: f64,
    /// Megabytes of their payloads per second.
    pub megabytes_per_s: f64,
    /// Connections opened.
    pub connects: u64,
    /// Attempts to connect that failed.
    pub connection_fails: u64,
    /// Messages that subscribers got as they should, all together.
    pub deliveries: u64,
    /// Failures by kind.
    pub failures: BTreeMap<&'static str, u64>,
    /// All of them.
    pub failures_total: u64,
    /// The first of each kind in words.
    pub evidence: BTreeMap<&'static str, String>,
    /// The first failed messages one by one.
    pub said: Vec<FailureRecord>,
    /// From the write of a message to its acknowledgement; without waiting, until the system took it.
    pub send_time: LatencySummary,
    /// From the write of a message to its delivery.
    pub delivery_time: LatencySummary,
    /// The server's own figures.
    pub server: Option<MonitoredCounters>,
    /// Processor time that the generator's process used during the run, in seconds.
    pub cpu_s: f64,
}

/// What was found at the server.
pub(super) struct CollectFindings {
    /// Messages that its stream or its file has.
    pub(super) stored: Option<u64>,
    /// How long that took, from the last write of a message.
    pub(super) settled: Duration,
    /// Messages that each subscriber got.
    pub(super) read: Option<u64>,
    pub(super) server: Result<Option<MonitoredCounters>, CollectError>,
}

impl CollectRunReport {
    pub(super) fn new(
        plan: &CollectPlan,
        tally: &CollectTally,
        found: CollectFindings,
        cpu: Duration,
    ) -> CollectRunReport {
        let evidence = |failure: &MessageFailure| {
            tally.evidence(*failure).map(|detail| (failure.name(), detail.to_owned()))
        };
        let mut evidence: BTreeMap<_, _> = MessageFailure::ALL.iter().filter_map(evidence).collect();
        let mut failures: BTreeMap<_, _> =
            MessageFailure::ALL.iter().map(|failure| (failure.name(), tally.failures(*failure))).collect();
        let mut failures_total = tally.failures_total();
        let server = found.server.unwrap_or_else(|error| {
            // Whoever asks for these figures is not to take a gap for a zero.
            evidence.insert("monitor", error.to_string());
            failures.insert("monitor", 1);
            failures_total += 1;
            None
        });
        let in_ledger = server.and_then(|figures| figures.lost).unwrap_or(0);
        let accounting = MessageAccounting::new(tally, found.stored.or(found.read), in_ledger);
        let good = match (plan.confirmed, found.read.or(found.stored)) {
            (false, Some(had)) => had.min(accounting.sends),
            _ => accounting.sends,
        };
        let elapsed_s = tally.until_last().as_secs_f64();
        let per_s = |count: f64| if elapsed_s > 0.0 { count / elapsed_s } else { 0.0 };
        CollectRunReport {
            parameters: CollectParameters {
                to: plan.to.to_string(),
                protocol: plan.protocol.name(),
                clients: plan.clients,
                threads: plan.publishing_threads(),
                size: plan.size,
                window: plan.window,
                confirmed: plan.confirmed,
                per_message: plan.per_message,
                subscribers: plan.subscribers,
                stream: plan.stream.clone(),
            },
            elapsed_s,
            settled_s: found.settled.as_secs_f64(),
            accounting,
            rate_per_s: per_s(good as f64),
            megabytes_per_s: per_s(good as f64 * f64::from(plan.size) / 1e6),
            connects: tally.connects,
            connection_fails: tally.connection_fails,
            deliveries: tally.deliveries,
            failures,
            failures_total,
            evidence,
            said: tally.said.clone(),
            send_time: LatencySummary::of(&tally.send_time),
            delivery_time: LatencySummary::of(&tally.delivery_time),
            server,
            cpu_s: cpu.as_secs_f64(),
        }
    }

    /// Failures of one kind.
    pub fn failed(&self, failure: MessageFailure) -> u64 {
        self.failures.get(failure.name()).copied().unwrap_or(0)
    }

    /// Whether nothing failed, something succeeded, and every message is accounted for.
    pub fn is_good(&self) -> bool {
        self.failures_total == 0 && self.accounting.sends > 0 && self.accounting.is_balanced()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 0.32: what is not accounted for is named, and on which side.
    #[test]
    fn messages_are_accounted_for_or_named() {
        let account = |queued, sends, fails, received, ledger| {
            let mut tally = CollectTally::new();
            (tally.queued, tally.sends, tally.fails) = (queued, sends, fails);
            MessageAccounting::new(&tally, received, ledger)
        };
        assert!(account(10, 10, 0, Some(10), 0).is_balanced());
        assert!(account(10, 10, 0, None, 0).is_balanced());
        let some_failed = account(10, 7, 3, Some(9), 0);
        assert_eq!((some_failed.is_balanced(), some_failed.received_of_fails), (true, 2));
        let lost = account(10, 10, 0, Some(8), 0);
        assert_eq!((lost.is_balanced(), lost.unexplained), (false, 2));
        let told = account(10, 10, 0, Some(8), 2);
        assert_eq!((told.is_balanced(), told.in_ledger), (true, 2));
        assert_eq!(account(10, 10, 0, Some(11), 0).invented, 1);
        assert!(!account(10, 8, 1, None, 0).is_balanced());
    }
}
