//! Servers that lie: each lie is a failure with its name, and no lie counts as a success.

use std::time::Duration;

use stilling_bench::collect::{self, Failure, Plan, Report};

use crate::fake::{Fake, Lie};
use crate::plan;

const MESSAGES: u64 = 20;

/// For those who wait in vain; longer than anybody here waits for an answer that comes.
const BRIEF: Duration = Duration::from_secs(3);

fn run(lie: Lie, change: impl FnOnce(&mut Plan)) -> Report {
    let fake = Fake::start(lie);
    let mut plan = plan(fake.address(), MESSAGES);
    change(&mut plan);
    collect::run(&plan).expect("there is a report, whatever the answers are")
}

/// This lie leads to one failure of this kind and no other, and to so many sends.
fn check(lie: Lie, expected: Failure, sends: u64) {
    let waits = matches!(expected, Failure::Unacknowledged);
    let report = run(lie, |plan| {
        if waits {
            plan.timeout = BRIEF;
        }
    });
    let context = format!("{lie:?}: {:?}", report.evidence);
    assert_eq!(report.failed(expected), 1, "{context}");
    assert_eq!((report.failures_total, report.accounting.sends), (1, sends), "{context}");
    assert_eq!(report.accounting.fails, MESSAGES - sends, "{context}");
    assert!(!report.is_good() && report.evidence.contains_key(expected.name()), "{context}");
    assert_eq!(report.said.len() as u64, report.accounting.fails, "{context}");
}

/// Rows 0.26 and 0.32: what is not confirmed as it should be is a failed message and never a send.
#[test]
fn a_wrong_acknowledgement_fails_its_message() {
    check(Lie::Silence(5), Failure::Missing, MESSAGES - 1);
    check(Lie::Silence(MESSAGES - 1), Failure::Unacknowledged, MESSAGES - 1);
    check(Lie::OtherStream(5), Failure::WrongStream, MESSAGES - 1);
    check(Lie::OtherStream(0), Failure::WrongStream, MESSAGES - 1);
    check(Lie::OldSequence(5), Failure::WrongSequence, MESSAGES - 1);
    check(Lie::Duplicate(5), Failure::FalseDuplicate, MESSAGES - 1);
    check(Lie::Garbage(5), Failure::BadAcknowledgement, MESSAGES - 1);
    check(Lie::Refusal(5), Failure::Refused, MESSAGES - 1);
    check(Lie::NoResponders(5), Failure::Refused, MESSAGES - 1);
}

#[test]
fn an_acknowledgement_too_many_is_a_failure_beside_the_right_ones() {
    check(Lie::TwiceAcknowledged(5), Failure::AcknowledgedTwice, MESSAGES);
    check(Lie::Prophecy(5), Failure::NeverSent, MESSAGES);
}

#[test]
fn a_broken_connection_fails_what_was_in_flight_and_the_next_one_goes_on() {
    for lie in [Lie::Close(5), Lie::Error(5)] {
        let report = run(lie, |_| {});
        let accounting = report.accounting;
        let context = format!("{lie:?}: {:?} {accounting:?}", report.evidence);
        assert!((1..=4).contains(&accounting.fails), "{context}");
        assert_eq!((accounting.queued, report.connects), (MESSAGES, 2), "{context}");
        assert!(accounting.is_balanced() && !report.is_good(), "{context}");
        let kind = if lie == Lie::Close(5) { Failure::Broken } else { Failure::Protocol };
        assert!(report.failed(kind) > 0, "{context}");
    }
}

#[test]
fn wrong_acknowledgements_are_noticed_on_a_connection_per_message_too() {
    for (lie, expected) in [
        (Lie::OtherStream(5), Failure::WrongStream),
        (Lie::OldSequence(5), Failure::WrongSequence),
        (Lie::Refusal(5), Failure::Refused),
        (Lie::Close(5), Failure::Broken),
        (Lie::Error(5), Failure::Protocol),
    ] {
        let report = run(lie, |plan| plan.per_message = true);
        assert_eq!(
            (report.failed(expected), report.failures_total),
            (1, 1),
            "{lie:?}: {:?}",
            report.evidence
        );
        assert_eq!((report.accounting.sends, report.accounting.fails), (MESSAGES - 1, 1), "{lie:?}");
    }
    let report = run(Lie::Silence(5), |plan| (plan.per_message, plan.timeout) = (true, BRIEF));
    assert_eq!((report.failed(Failure::Unacknowledged), report.accounting.fails), (1, 1));
}

/// Row 0.32: what was acknowledged and is not in the stream is not accounted for.
#[test]
fn an_acknowledged_message_that_was_not_kept_is_unexplained() {
    for confirmed in [true, false] {
        let report = run(Lie::Forgotten(MESSAGES - 1), |plan| {
            (plan.confirmed, plan.timeout) = (confirmed, BRIEF);
        });
        let accounting = report.accounting;
        assert_eq!((accounting.received, accounting.unexplained), (Some(MESSAGES - 1), 1), "{accounting:?}");
        assert!(!report.is_good());
    }
}

/// Row 0.17: all of it counts that the server is behind: from the last write, not from when the last publisher has ended.
#[test]
fn what_a_server_takes_its_time_for_counts_from_the_last_write() {
    let report = run(Lie::NoPong, |plan| (plan.confirmed, plan.timeout) = (false, BRIEF));
    assert_eq!((report.accounting.received, report.failed(Failure::Unacknowledged)), (Some(MESSAGES), 1));
    assert!(report.settled_s >= BRIEF.as_secs_f64(), "{}", report.settled_s);
}

#[test]
fn a_delivery_that_is_missing_repeated_or_changed_is_noticed() {
    let run = |lie, timeout: Duration| {
        run(lie, |plan| {
            *plan = Plan { confirmed: false, stream: None, subscribers: 1, timeout, ..plan.clone() };
        })
    };
    let long = Duration::from_secs(20);
    let report = run(Lie::Undelivered(5), long);
    assert_eq!((report.failed(Failure::Undelivered), report.failures_total), (1, 1), "{:?}", report.evidence);
    let report = run(Lie::Undelivered(MESSAGES - 1), BRIEF);
    assert_eq!((report.failed(Failure::Undelivered), report.failures_total), (1, 1), "{:?}", report.evidence);
    let report = run(Lie::DeliveredTwice(5), long);
    assert_eq!(
        (report.failed(Failure::DeliveredTwice), report.failures_total),
        (1, 1),
        "{:?}",
        report.evidence
    );
    let report = run(Lie::Corrupted(5), long);
    let (wrong, missing) = (report.failed(Failure::WrongPayload), report.failed(Failure::Undelivered));
    assert_eq!((wrong, missing, report.failures_total), (1, 1, 2), "{:?}", report.evidence);
    assert_eq!(report.accounting.received, Some(MESSAGES - 1));
}
