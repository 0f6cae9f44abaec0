//! Result of a run: all figures and all parameters.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::error::CollectError;
use super::monitor::MonitoredCounters;
use super::plan::CollectPlan;
use super::tally::{CollectTally, FailureRecord, MessageFailure};
use crate::statistics::LatencySummary;

/// Parameters of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectParameters {
    /// Address of the server.
    pub to: String,
    /// Protocol of the server.
    pub protocol: &'static str,
    /// Publishing connections.
    pub clients: u16,
    /// Threads shared by the connections.
    pub threads: u16,
    /// Bytes of each payload.
    pub size: u32,
    /// Messages in flight on each connection.
    pub window: u32,
    /// Whether acknowledgements are awaited.
    pub confirmed: bool,
    /// Whether each message has its own connection.
    pub per_message: bool,
    /// Subscribing connections.
    pub subscribers: u16,
    /// The stream that acknowledges the messages.
    pub stream: Option<String>,
}

/// Accounting of all messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageAccounting {
    /// Started messages.
    pub queued: u64,
    /// Messages that were acknowledged, or accepted by the kernel without acknowledgements.
    pub sends: u64,
    /// Messages that failed.
    pub fails: u64,
    /// Messages that the server has, by its stream, its subscribers or its file; `None` without such a source.
    pub received: Option<u64>,
    /// Failed messages that the server has anyway.
    pub received_of_fails: u64,
    /// Sends that the server reports as lost.
    pub reported_lost: u64,
    /// Sends that the server neither has nor reports as lost.
    pub unexplained: u64,
    /// Messages of the server beyond all started ones.
    pub invented: u64,
}

impl MessageAccounting {
    fn new(tally: &CollectTally, received: Option<u64>, reported_lost: u64) -> MessageAccounting {
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
            reported_lost: reported_lost.min(missing),
            unexplained: missing.saturating_sub(reported_lost),
            invented: beyond.saturating_sub(fails),
        }
    }

    /// Returns whether queued = sends + fails, and sends = received + the losses that the server reports.
    pub fn is_balanced(&self) -> bool {
        self.queued == self.sends + self.fails && self.unexplained == 0 && self.invented == 0
    }
}

/// Report of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectRunReport {
    /// Parameters of the run.
    pub parameters: CollectParameters,
    /// From the start to the last acknowledgement, delivery or arrival, in seconds.
    pub elapsed_s: f64,
    /// Seconds from the kernel's acceptance of the last message until all messages had arrived, or until the wait for
    /// them ended: the time of messages in sockets and in the server.
    pub stored_after_s: f64,
    /// Accounting of all messages.
    pub accounting: MessageAccounting,
    /// Successful messages per second: acknowledged, delivered to every subscriber, or arrived.
    pub rate_per_s: f64,
    /// Megabytes of their payloads per second.
    pub megabytes_per_s: f64,
    /// Opened connections.
    pub connects: u64,
    /// Failed connection attempts.
    pub connection_fails: u64,
    /// Correct deliveries of all subscribers.
    pub deliveries: u64,
    /// Failures by kind.
    pub failures: BTreeMap<&'static str, u64>,
    /// All failures.
    pub failures_total: u64,
    /// First evidence of each kind.
    pub evidence: BTreeMap<&'static str, String>,
    /// The first failed messages.
    pub failure_records: Vec<FailureRecord>,
    /// From the write of a message to its acknowledgement; without acknowledgements, to its acceptance by the kernel.
    pub send_time: LatencySummary,
    /// From the write of a message to its delivery.
    pub delivery_time: LatencySummary,
    /// The server's own figures.
    pub server: Option<MonitoredCounters>,
    /// CPU time of the generator's process during the run, in seconds.
    pub cpu_s: f64,
}

pub(super) struct CollectFindings {
    /// Messages in the server's stream or file.
    pub(super) stored: Option<u64>,
    /// Time from the last write of a message to the end of the wait for `stored`.
    pub(super) stored_after: Duration,
    /// Messages that every subscriber received.
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
            // A requested figure that is missing is a failure, not a zero.
            evidence.insert("monitor", error.to_string());
            failures.insert("monitor", 1);
            failures_total += 1;
            None
        });
        let reported_lost = server.and_then(|figures| figures.lost).unwrap_or(0);
        let accounting = MessageAccounting::new(tally, found.stored.or(found.read), reported_lost);
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
            stored_after_s: found.stored_after.as_secs_f64(),
            accounting,
            rate_per_s: per_s(good as f64),
            megabytes_per_s: per_s(good as f64 * f64::from(plan.size) / 1e6),
            connects: tally.connects,
            connection_fails: tally.connection_fails,
            deliveries: tally.deliveries,
            failures,
            failures_total,
            evidence,
            failure_records: tally.failure_records.clone(),
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

    /// Returns whether nothing failed, something succeeded, and every message is accounted for.
    pub fn is_good(&self) -> bool {
        self.failures_total == 0 && self.accounting.sends > 0 && self.accounting.is_balanced()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 0.32: a message that is not accounted for is reported, with the side at fault.
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
        assert_eq!((told.is_balanced(), told.reported_lost), (true, 2));
        assert_eq!(account(10, 10, 0, Some(11), 0).invented, 1);
        assert!(!account(10, 8, 1, None, 0).is_balanced());
    }
}
