//! Runs against faulty servers: each fault is reported under its name, and every other delivery still counts.

use std::time::Duration;

use stilling_bench::broadcast::{self, BroadcastPlan, BroadcastProtocol, BroadcastReport, DeliveryFailure};

use crate::fake::{BroadcastFault, FakeBroadcastServer};
use crate::plan;

/// Timeout for deliveries that never come; longer than the slowest one takes.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);

const MESSAGES: u64 = 40;

fn run(fault: BroadcastFault, change: impl FnOnce(&mut BroadcastPlan)) -> BroadcastReport {
    let fake = FakeBroadcastServer::start(fault);
    let mut plan = BroadcastPlan { messages: Some(MESSAGES), timeout: SHORT_TIMEOUT, ..plan(fake.address) };
    change(&mut plan);
    broadcast::run(&plan).expect("there is a report, whatever the server sends")
}

/// Checks that a fault causes exactly these failures, with equal and with different bytes for the subscribers; `missing`
/// deliveries do not count.
fn check(fault: BroadcastFault, expected: &[DeliveryFailure], missing: u64) {
    for distinct_sids in [false, true] {
        let report = run(fault, |plan| plan.distinct_sids = distinct_sids);
        let context = format!("{fault:?}, distinct {distinct_sids}: {:?}", report.figures.evidence);
        for failure in expected {
            assert_eq!(report.figures.failed(*failure), 1, "{failure:?} of {context}");
        }
        assert_eq!(report.figures.failures_total, expected.len() as u64, "{context}");
        assert_eq!(report.deliveries, 3 * MESSAGES - missing, "{context}");
        assert!(!report.is_good() && report.figures.evidence.len() == expected.len(), "{context}");
    }
}

#[test]
fn a_dropped_message_is_undelivered() {
    check(BroadcastFault::Dropped(5), &[DeliveryFailure::Undelivered], 1);
    // The last one of the run, behind which nothing shows the gap.
    check(BroadcastFault::Dropped(MESSAGES - 1), &[DeliveryFailure::Undelivered], 1);
}

#[test]
fn a_reordered_message_is_late_and_not_undelivered() {
    check(BroadcastFault::Swapped(5), &[DeliveryFailure::Late], 1);
}

#[test]
fn a_repeated_message_counts_once() {
    check(BroadcastFault::Repeated(5), &[DeliveryFailure::Repeated], 0);
}

#[test]
fn changed_bytes_are_no_delivery() {
    check(BroadcastFault::Changed(5), &[DeliveryFailure::WrongPayload, DeliveryFailure::Undelivered], 1);
}

#[test]
fn a_message_that_was_never_sent_is_named() {
    check(BroadcastFault::Invented(5), &[DeliveryFailure::NeverSent], 0);
}

/// The messages of the first subscriber after the end of its connection are undelivered.
#[test]
fn an_error_or_an_end_of_a_connection_leaves_its_messages_undelivered() {
    for (fault, failure) in [
        (BroadcastFault::Error(5), DeliveryFailure::Protocol),
        (BroadcastFault::OtherSid(5), DeliveryFailure::Protocol),
        (BroadcastFault::Closed(5), DeliveryFailure::Broken),
    ] {
        let report = run(fault, |_| {});
        let context = format!("{fault:?}: {:?}", report.figures.evidence);
        assert_eq!(report.figures.failed(failure), 1, "{context}");
        assert_eq!(
            report.deliveries + report.figures.failed(DeliveryFailure::Undelivered),
            3 * MESSAGES,
            "{context}"
        );
        assert_eq!(
            report.figures.failures_total,
            1 + report.figures.failed(DeliveryFailure::Undelivered),
            "{context}"
        );
        // The others receive everything.
        assert_eq!(report.messages, MESSAGES, "{context}");
        assert!(report.figures.failed(DeliveryFailure::Undelivered) >= MESSAGES - 5, "{context}");
    }
}

#[test]
fn faults_are_found_over_http() {
    for protocol in
        [BroadcastProtocol::Sse, BroadcastProtocol::WebSocketRaw, BroadcastProtocol::WebSocketJson]
    {
        let run = |fault| {
            let fake = FakeBroadcastServer::start(fault);
            let publish_to = Some(fake.address);
            let plan = BroadcastPlan { protocol, publish_to, timeout: SHORT_TIMEOUT, ..plan(fake.http) };
            broadcast::run(&plan).expect("there is a report")
        };
        let report = run(BroadcastFault::Dropped(5));
        assert_eq!(
            report.figures.failed(DeliveryFailure::Undelivered),
            1,
            "{protocol:?}: {:?}",
            report.figures.evidence
        );
        assert_eq!(report.figures.failures_total, 1, "{protocol:?}: {:?}", report.figures.evidence);
        let report = run(BroadcastFault::Repeated(5));
        let kinds = [DeliveryFailure::Repeated, DeliveryFailure::WrongSequence];
        assert_eq!(
            kinds.map(|kind| report.figures.failed(kind)),
            [1, 1],
            "{protocol:?}: {:?}",
            report.figures.evidence
        );
        let report = run(BroadcastFault::Swapped(5));
        let kinds = [DeliveryFailure::Late, DeliveryFailure::WrongSequence];
        assert_eq!(
            kinds.map(|kind| report.figures.failed(kind)),
            [1, 1],
            "{protocol:?}: {:?}",
            report.figures.evidence
        );
    }
}

#[test]
fn faults_are_found_among_several_publishers_and_subjects() {
    let report = run(BroadcastFault::Dropped(5), |plan| plan.publishers = 2);
    assert_eq!((report.figures.failures_total, report.figures.failed(DeliveryFailure::Undelivered)), (1, 1));
    let report = run(BroadcastFault::Repeated(5), |plan| plan.publishers = 2);
    assert_eq!((report.figures.failures_total, report.figures.failed(DeliveryFailure::Repeated)), (1, 1));
    let report = run(BroadcastFault::Dropped(8), |plan| plan.subjects = Some(4));
    assert_eq!(
        (report.figures.failures_total, report.deliveries),
        (1, MESSAGES - 1),
        "{:?}",
        report.figures.evidence
    );
}
