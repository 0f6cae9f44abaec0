//! Runs against faulty servers: each fault is reported under its name, and none counts as a success.

use std::time::Duration;

use stilling_bench::collect::{self, CollectPlan, CollectRunReport, MessageFailure};

use crate::fake::{CollectFault, FakeCollectServer};
use crate::plan;

const MESSAGES: u64 = 20;

/// Timeout for answers that never come; longer than the slowest answer takes.
const SHORT_TIMEOUT: Duration = Duration::from_secs(3);

fn run(fault: CollectFault, change: impl FnOnce(&mut CollectPlan)) -> CollectRunReport {
    let fake = FakeCollectServer::start(fault);
    let mut plan = plan(fake.address(), MESSAGES);
    change(&mut plan);
    collect::run(&plan).expect("there is a report, whatever the answers are")
}

/// Checks that a fault causes exactly one failure, of this kind, and this number of sends.
fn check(fault: CollectFault, expected: MessageFailure, sends: u64) {
    let waits = matches!(expected, MessageFailure::Unacknowledged);
    let report = run(fault, |plan| {
        if waits {
            plan.timeout = SHORT_TIMEOUT;
        }
    });
    let context = format!("{fault:?}: {:?}", report.evidence);
    assert_eq!(report.failed(expected), 1, "{context}");
    assert_eq!((report.failures_total, report.accounting.sends), (1, sends), "{context}");
    assert_eq!(report.accounting.fails, MESSAGES - sends, "{context}");
    assert!(!report.is_good() && report.evidence.contains_key(expected.name()), "{context}");
    assert_eq!(report.failure_records.len() as u64, report.accounting.fails, "{context}");
}

/// Rows 0.26 and 0.32: a message with a wrong acknowledgement fails and never counts as a send.
#[test]
fn a_wrong_acknowledgement_fails_its_message() {
    check(CollectFault::Silence(5), MessageFailure::Missing, MESSAGES - 1);
    check(CollectFault::Silence(MESSAGES - 1), MessageFailure::Unacknowledged, MESSAGES - 1);
    check(CollectFault::OtherStream(5), MessageFailure::WrongStream, MESSAGES - 1);
    check(CollectFault::OtherStream(0), MessageFailure::WrongStream, MESSAGES - 1);
    check(CollectFault::OldSequence(5), MessageFailure::WrongSequence, MESSAGES - 1);
    check(CollectFault::Duplicate(5), MessageFailure::FalseDuplicate, MESSAGES - 1);
    check(CollectFault::Garbage(5), MessageFailure::BadAcknowledgement, MESSAGES - 1);
    check(CollectFault::Refusal(5), MessageFailure::Refused, MESSAGES - 1);
    check(CollectFault::NoResponders(5), MessageFailure::Refused, MESSAGES - 1);
}

#[test]
fn an_acknowledgement_too_many_is_a_failure_beside_the_right_ones() {
    check(CollectFault::TwiceAcknowledged(5), MessageFailure::AcknowledgedTwice, MESSAGES);
    check(CollectFault::FutureAcknowledgement(5), MessageFailure::NeverSent, MESSAGES);
}

#[test]
fn a_broken_connection_fails_what_was_in_flight_and_the_next_one_continues() {
    for fault in [CollectFault::Close(5), CollectFault::Error(5)] {
        let report = run(fault, |_| {});
        let accounting = report.accounting;
        let context = format!("{fault:?}: {:?} {accounting:?}", report.evidence);
        assert!((1..=4).contains(&accounting.fails), "{context}");
        assert_eq!((accounting.queued, report.connects), (MESSAGES, 2), "{context}");
        assert!(accounting.is_balanced() && !report.is_good(), "{context}");
        let kind =
            if fault == CollectFault::Close(5) { MessageFailure::Broken } else { MessageFailure::Protocol };
        assert!(report.failed(kind) > 0, "{context}");
    }
}

#[test]
fn wrong_acknowledgements_are_noticed_on_a_connection_per_message_too() {
    for (fault, expected) in [
        (CollectFault::OtherStream(5), MessageFailure::WrongStream),
        (CollectFault::OldSequence(5), MessageFailure::WrongSequence),
        (CollectFault::Refusal(5), MessageFailure::Refused),
        (CollectFault::Close(5), MessageFailure::Broken),
        (CollectFault::Error(5), MessageFailure::Protocol),
    ] {
        let report = run(fault, |plan| plan.per_message = true);
        assert_eq!(
            (report.failed(expected), report.failures_total),
            (1, 1),
            "{fault:?}: {:?}",
            report.evidence
        );
        assert_eq!((report.accounting.sends, report.accounting.fails), (MESSAGES - 1, 1), "{fault:?}");
    }
    let report =
        run(CollectFault::Silence(5), |plan| (plan.per_message, plan.timeout) = (true, SHORT_TIMEOUT));
    assert_eq!((report.failed(MessageFailure::Unacknowledged), report.accounting.fails), (1, 1));
}

/// Row 0.32: an acknowledged message that is not in the stream is not accounted for.
#[test]
fn an_acknowledged_message_that_was_not_kept_is_unexplained() {
    for confirmed in [true, false] {
        let report = run(CollectFault::AcknowledgedNotStored(MESSAGES - 1), |plan| {
            (plan.confirmed, plan.timeout) = (confirmed, SHORT_TIMEOUT);
        });
        let accounting = report.accounting;
        assert_eq!((accounting.received, accounting.unexplained), (Some(MESSAGES - 1), 1), "{accounting:?}");
        assert!(!report.is_good());
    }
}

/// Row 0.17: the time until all messages are stored counts from the last write, not from the end of the last publisher.
#[test]
fn the_progress_timeout_counts_from_the_last_write() {
    let report = run(CollectFault::NoPong, |plan| (plan.confirmed, plan.timeout) = (false, SHORT_TIMEOUT));
    assert_eq!(
        (report.accounting.received, report.failed(MessageFailure::Unacknowledged)),
        (Some(MESSAGES), 1)
    );
    assert!(report.stored_after_s >= SHORT_TIMEOUT.as_secs_f64(), "{}", report.stored_after_s);
}

#[test]
fn a_delivery_that_is_missing_repeated_or_changed_is_noticed() {
    let run = |fault, timeout: Duration| {
        run(fault, |plan| {
            *plan = CollectPlan { confirmed: false, stream: None, subscribers: 1, timeout, ..plan.clone() };
        })
    };
    let long = Duration::from_secs(20);
    let report = run(CollectFault::Undelivered(5), long);
    assert_eq!(
        (report.failed(MessageFailure::Undelivered), report.failures_total),
        (1, 1),
        "{:?}",
        report.evidence
    );
    let report = run(CollectFault::Undelivered(MESSAGES - 1), SHORT_TIMEOUT);
    assert_eq!(
        (report.failed(MessageFailure::Undelivered), report.failures_total),
        (1, 1),
        "{:?}",
        report.evidence
    );
    let report = run(CollectFault::DeliveredTwice(5), long);
    assert_eq!(
        (report.failed(MessageFailure::DeliveredTwice), report.failures_total),
        (1, 1),
        "{:?}",
        report.evidence
    );
    let report = run(CollectFault::Corrupted(5), long);
    let (wrong, missing) =
        (report.failed(MessageFailure::WrongPayload), report.failed(MessageFailure::Undelivered));
    assert_eq!((wrong, missing, report.failures_total), (1, 1, 2), "{:?}", report.evidence);
    assert_eq!(report.accounting.received, Some(MESSAGES - 1));
}
