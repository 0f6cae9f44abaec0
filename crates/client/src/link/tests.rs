//! The link in virtual time: each failure, to the millisecond, with every message accounted for.

mod fixture;
mod overload;
mod rejections;

use std::time::Duration;

use fixture::{LinkFixture, config, stored};

use crate::backoff::{BackoffConfig, RetryBudgetConfig};
use crate::config::{PublishMode, SpoolMode};
use crate::connection_error::ConnectionError;
use crate::outcome::{DropReason, PublishOutcome};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn delivered(sequence: u64, duplicate: bool) -> Option<PublishOutcome> {
    Some(PublishOutcome::Delivered { stream: "s".to_owned(), sequence, duplicate })
}

/// Row 0.31: a publisher started before its server works as soon as the server does.
#[test]
fn what_was_submitted_before_the_server_exists_is_delivered_in_order() {
    let mut fixture = LinkFixture::new(config());
    let tickets: Vec<_> = (0..5).map(|number| fixture.submit("a", &[b'0' + number])).collect();
    for _ in 0..3 {
        fixture.refuse_connection();
    }
    assert!(fixture.link.deadline().is_some(), "it tries again by itself");
    fixture.complete_handshake();
    let published = fixture.published();
    let payloads: Vec<&[u8]> = published.iter().map(|one| &one.payload[..]).collect();
    assert_eq!(payloads, [b"0", b"1", b"2", b"3", b"4"]);
    for (at, one) in published.iter().enumerate() {
        fixture.answer(one, "", &stored(at as u64 + 1, false));
        assert_eq!(tickets[at].outcome(), delivered(at as u64 + 1, false));
    }
    fixture.check_nothing_held(5, 0);
}

/// Rows 0.16 and 0.6: failed connection attempts become less frequent, and deliveries restore the rate.
#[test]
fn connect_attempts_follow_the_backoff() {
    let mut fixture = LinkFixture::new(config());
    let mut waits = Vec::new();
    for _ in 0..9 {
        let before = fixture.now;
        fixture.refuse_connection();
        waits.push(fixture.until_connect() - before);
    }
    for (failures, wait) in waits.iter().enumerate() {
        let most = (ms(100) * 2_u32.pow(failures as u32 + 1)).min(Duration::from_secs(10));
        assert!((most / 2..=most).contains(wait), "after {failures}: {wait:?}");
    }
    assert_eq!((fixture.link.backoff.attempts(), fixture.link.backoff.wait()), (1, Duration::from_secs(10)));
    fixture.complete_handshake();
    for number in 1..=9 {
        let _ticket = fixture.submit("a", b"");
        let one = fixture.published().remove(0);
        fixture.answer(&one, "", &stored(number, false));
    }
    assert_eq!((fixture.link.backoff.attempts(), fixture.link.backoff.wait()), (8, ms(100)));
}

/// A lost acknowledgement leads to a duplicate that the server recognises, never to a second record.
#[test]
fn a_message_whose_acknowledgement_is_lost_is_sent_again_under_its_id() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let ticket = fixture.submit("a", b"x");
    let first = fixture.published().remove(0);
    fixture.close(ConnectionError::Closed);
    assert_eq!(ticket.outcome(), None);
    fixture.complete_handshake();
    let second = fixture.published().remove(0);
    assert_eq!((&second.id, &second.payload), (&first.id, &first.payload));
    assert!(!second.id.is_empty());
    fixture.answer(&second, "", &stored(7, true));
    assert_eq!(ticket.outcome(), delivered(7, true));
    let counts = fixture.check_nothing_held(1, 0);
    assert_eq!((counts.duplicates, counts.retried), (1, 1));
}

#[test]
fn a_second_acknowledgement_is_a_stray_and_changes_nothing() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let ticket = fixture.submit("a", b"x");
    let one = fixture.published().remove(0);
    fixture.answer(&one, "", &stored(1, false));
    fixture.answer(&one, "", &stored(2, true));
    fixture.answer_to("_INBOX.someone.else", "", &stored(3, false));
    assert_eq!(ticket.outcome(), delivered(1, false));
    assert_eq!(fixture.check_nothing_held(1, 0).stray_answers, 2);
}

/// Rows 0.26 to 0.28: messages refused by an overloaded server are not lost and not retried before the server's hint.
#[test]
fn a_retry_after_hint_is_obeyed() {
    for (headers, payload) in [
        ("NATS/1.0 503 Busy\r\nRetry-After: 2.5\r\n\r\n", ""),
        ("NATS/1.0 429\r\nRetry-After: 2.5\r\n\r\n", ""),
        (
            "NATS/1.0\r\nRetry-After: 2.5\r\n\r\n",
            r#"{"error":{"code":503,"err_code":10023},"stream":"s","seq":0}"#,
        ),
    ] {
        let mut fixture = LinkFixture::new(config());
        fixture.complete_handshake();
        let ticket = fixture.submit("a", b"x");
        let one = fixture.published().remove(0);
        let asked = fixture.now;
        fixture.answer(&one, headers, payload.as_bytes());
        let _other = fixture.submit("b", b"y");
        assert!(fixture.published().is_empty(), "the others wait too");
        let again = fixture.until_published();
        assert_eq!(fixture.now - asked, ms(2500), "{headers}");
        assert_eq!((again[0].id.clone(), again.len()), (one.id.clone(), 2), "it goes first");
        fixture.answer(&again[0], "", &stored(1, false));
        fixture.answer(&again[1], "", &stored(2, false));
        assert_eq!(ticket.outcome(), delivered(1, false));
        assert_eq!(fixture.check_nothing_held(2, 0).deferrals, 1);
    }
}

#[test]
fn a_permanent_rejection_is_reported_at_once() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let ticket = fixture.submit("a", b"x");
    let one = fixture.published().remove(0);
    fixture.answer(
        &one,
        "",
        br#"{"error":{"code":400,"err_code":10054,"description":"too long"},"stream":"s","seq":0}"#,
    );
    let Some(PublishOutcome::Dropped(DropReason::Refused { error_code: 10054, .. })) = ticket.outcome()
    else {
        panic!("{:?}", ticket.outcome())
    };
    fixture.check_nothing_held(0, 1);
}

#[test]
fn a_subject_that_no_stream_keeps_costs_its_own_messages_only() {
    costs_its_own_messages_only("NATS/1.0 503\r\n\r\n", b"", DropReason::NoStream);
}

#[test]
fn a_stream_that_is_frozen_costs_its_own_messages_only() {
    let reason = DropReason::Refused {
        stream: "s".to_owned(),
        code: 503,
        error_code: 10077,
        description: "the stream is frozen".to_owned(),
    };
    let answer =
        br#"{"error":{"code":503,"err_code":10077,"description":"the stream is frozen"},"stream":"s","seq":0}"#;
    costs_its_own_messages_only("", answer, reason);
}

fn costs_its_own_messages_only(headers: &str, answer: &[u8], reason: DropReason) {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let submit_rejected = fixture.submit("nobody", b"x");
    let mut one = fixture.published().remove(0);
    let begun = fixture.now;
    while submit_rejected.outcome().is_none() {
        fixture.answer(&one, headers, answer);
        if submit_rejected.outcome().is_some() {
            break;
        }
        let kept = fixture.submit("kept", b"y");
        let other = fixture.published().remove(0);
        assert_eq!(other.subject, "kept", "the others go on");
        fixture.answer(&other, "", &stored(1, false));
        assert!(matches!(kept.outcome(), Some(PublishOutcome::Delivered { .. })));
        one = fixture.until_published().remove(0);
    }
    assert_eq!(submit_rejected.outcome(), Some(PublishOutcome::Dropped(reason)));
    assert_eq!(fixture.now - begun, Duration::from_secs(10));
    let counts = fixture.counts();
    assert_eq!(counts.dropped, 1);
    assert!((5..=9).contains(&counts.retried), "ever more rarely: {}", counts.retried);
}

/// A server that hangs is disconnected; with a slow one the message is retried at growing intervals.
#[test]
fn silence_ends_the_connection_and_slowness_does_not() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let ticket = fixture.submit("a", b"x");
    let first = fixture.published().remove(0);
    fixture.pass(ms(5000));
    assert!(fixture.commands.close, "nothing at all has come");
    assert_eq!(fixture.link.connection_error, Some(ConnectionError::Hung));
    fixture.complete_handshake();
    let second = fixture.published().remove(0);
    assert_eq!(second.id, first.id);
    fixture.pass(ms(3000));
    fixture.server_sends(b"PING\r\n");
    fixture.pass(ms(2000));
    assert!(!fixture.commands.close, "it lives");
    let third = fixture.until_published().remove(0);
    assert_eq!((&third.id, &third.reply), (&first.id, &second.reply));
    fixture.answer(&second, "", &stored(1, false));
    assert_eq!(ticket.outcome(), delivered(1, false), "the answer to any attempt will do");
    fixture.answer(&third, "", &stored(1, true));
    assert_eq!(fixture.check_nothing_held(1, 0).stray_answers, 1);
}

#[test]
fn an_idle_connection_is_pinged() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    fixture.pass(ms(20_000));
    assert_eq!(fixture.pings(), 1);
    fixture.server_sends(b"PONG\r\n");
    fixture.pass(ms(19_999));
    assert_eq!(fixture.pings(), 0);
    fixture.pass(ms(1));
    assert_eq!(fixture.pings(), 1);
    fixture.pass(ms(5000));
    assert!(fixture.commands.close);
    assert_eq!(fixture.link.connection_error, Some(ConnectionError::Hung));
}

/// Row 0.16: as many attempts as the backoff allows, fewer after each failure; then the message is dropped.
#[test]
fn without_a_spool_a_message_is_dropped_after_the_backoff_attempts() {
    let mut fixture =
        LinkFixture::new(crate::PublisherConfig { spool_mode: SpoolMode::Attempts, ..config() });
    let ticket = fixture.submit("a", b"x");
    let mut failures = 0;
    while ticket.outcome().is_none() {
        fixture.refuse_connection();
        failures += 1;
    }
    // 8 attempts at first; 4 after the fourth failure.
    assert_eq!(failures, 4);
    let Some(PublishOutcome::Dropped(DropReason::AttemptsExhausted {
        attempts: 4,
        connection_error: Some(connection_error),
    })) = ticket.outcome()
    else {
        panic!("{:?}", ticket.outcome())
    };
    assert!(connection_error.to_string().contains("no server listens at nats://"), "{connection_error}");
    fixture.check_nothing_held(0, 1);
}

#[test]
fn with_a_spool_the_caller_continues_and_the_message_stays() {
    let mut fixture = LinkFixture::new(config());
    let ticket = fixture.submit("a", b"x");
    for _ in 0..4 {
        assert_eq!(ticket.outcome(), None);
        fixture.refuse_connection();
    }
    assert_eq!(ticket.outcome(), Some(PublishOutcome::Queued));
    fixture.complete_handshake();
    let one = fixture.published().remove(0);
    fixture.answer(&one, "", &stored(1, false));
    fixture.check_nothing_held(1, 0);
}

/// Row 0.18: failures after the caller has stopped waiting are reported and counted.
#[test]
fn a_failure_without_a_waiting_ticket_is_reported() {
    let mut fixture = LinkFixture::new(crate::PublisherConfig { mode: PublishMode::NoWait, ..config() });
    fixture.complete_handshake();
    fixture.submit_without_ticket("a", b"x");
    let one = fixture.published().remove(0);
    fixture.answer(&one, "", br#"{"error":{"code":400,"err_code":10054,"description":"no"}}"#);
    let failures = fixture.failures();
    assert_eq!(failures.len(), 1);
    assert_eq!((&failures[0].subject[..], &failures[0].id), ("a", &one.id));
    fixture.check_nothing_held(0, 1);
}

#[test]
fn no_more_is_unacknowledged_than_allowed_and_the_order_stays() {
    let mut fixture = LinkFixture::new(crate::PublisherConfig { unacknowledged: 3, ..config() });
    fixture.complete_handshake();
    for number in 0..9 {
        fixture.submit_without_ticket("a", &[b'0' + number]);
    }
    let mut seen = Vec::new();
    for round in 0..3 {
        let published = fixture.published();
        assert_eq!(published.len(), 3, "round {round}");
        seen.extend(published.iter().map(|one| one.payload[0]));
        fixture.answer(&published[1], "", &stored(2, false));
        assert!(fixture.published().is_empty(), "the oldest holds its place");
        fixture.answer(&published[2], "", &stored(3, false));
        fixture.answer(&published[0], "", &stored(1, false));
    }
    assert_eq!(seen, b"012345678");
    fixture.check_nothing_held(9, 0);
}

/// Row 0.17: messages of a lost connection are sent at once; a server that accepts connections and does not answer
/// receives no more of them than the budget allows, in order, and all of them after its first answers.
#[test]
fn after_a_failure_no_more_is_sent_again_than_the_budget_allows() {
    let budget = RetryBudgetConfig { percent: 0, per_second: 1, burst: 1 };
    let mut fixture = LinkFixture::new(crate::PublisherConfig { budget, unacknowledged: 6, ..config() });
    let payloads = |published: &[fixture::CapturedPublish]| {
        published.iter().map(|one| one.payload[0]).collect::<Vec<_>>()
    };
    fixture.complete_handshake();
    for number in 0..7 {
        fixture.submit_without_ticket("a", &[number]);
    }
    assert_eq!(fixture.published().len(), 6);
    fixture.close(ConnectionError::Closed);
    fixture.complete_handshake();
    assert_eq!(payloads(&fixture.published()), [0, 1, 2, 3, 4, 5], "the window is free");
    fixture.close(ConnectionError::Closed);
    fixture.complete_handshake();
    let begun = fixture.now;
    assert!(fixture.published().is_empty());
    let seen = fixture.until_published();
    assert!(fixture.now - begun <= ms(1000) && payloads(&seen) == [0], "{seen:?}");
    fixture.answer(&seen[0], "", &stored(1, true));
    let again = fixture.published();
    assert_eq!(payloads(&again), [1, 2], "twice as many with each round trip");
    for one in &again {
        fixture.answer(one, "", &stored(2, true));
    }
    let again = fixture.published();
    assert_eq!(payloads(&again), [3, 4, 5, 6], "and the new one after them");
    for one in &again {
        fixture.answer(one, "", &stored(3, false));
    }
    fixture.check_nothing_held(7, 0);
}

/// Row 0.17: however wide the window is, and however often the server restarts, all messages are sent again promptly.
#[test]
fn a_wide_window_is_sent_again_at_once_after_each_restart() {
    for unacknowledged in [256, 2000] {
        let mut fixture = LinkFixture::new(crate::PublisherConfig { unacknowledged, ..config() });
        fixture.complete_handshake();
        let mut sequence = 0;
        for _ in 0..3 {
            for _ in 0..unacknowledged {
                fixture.submit_without_ticket("a", b"x");
            }
            assert_eq!(fixture.published().len(), unacknowledged);
            fixture.close(ConnectionError::Closed);
            fixture.complete_handshake();
            let begun = fixture.now;
            let again = fixture.published();
            assert_eq!((again.len(), fixture.now), (unacknowledged, begun));
            for one in &again {
                sequence += 1;
                fixture.answer(one, "", &stored(sequence, false));
            }
        }
        fixture.check_nothing_held(sequence, 0);
    }
}

#[test]
fn a_message_that_never_left_is_sent_first_and_costs_no_permission() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    fixture.is_stuck = true;
    for _ in 0..9 {
        fixture.submit_without_ticket("a", b"x");
    }
    fixture.close(ConnectionError::Closed);
    fixture.is_stuck = false;
    fixture.complete_handshake();
    assert_eq!((fixture.published().len(), fixture.counts().retried), (9, 0));
}

/// Messages deferred by the server wait only for the budget; new ones continue.
#[test]
fn messages_that_are_tried_again_do_not_hold_up_new_ones() {
    let budget = RetryBudgetConfig { percent: 0, per_second: 1, burst: 1 };
    let mut fixture = LinkFixture::new(crate::PublisherConfig { budget, unacknowledged: 8, ..config() });
    fixture.complete_handshake();
    for _ in 0..6 {
        fixture.submit_without_ticket("nobody", b"x");
    }
    let mut again = fixture.published();
    // Until the bucket is empty and due messages are held back.
    while fixture.counts().retried < 9 {
        for one in again {
            fixture.answer(&one, "NATS/1.0 503\r\n\r\n", b"");
        }
        again = fixture.until_published();
    }
    for one in again {
        fixture.answer(&one, "NATS/1.0 503\r\n\r\n", b"");
    }
    fixture.published();
    let kept = fixture.submit("kept", b"y");
    let one = fixture.published().pop().expect("it goes on");
    assert_eq!(one.subject, "kept");
    fixture.answer(&one, "", &stored(1, false));
    assert_eq!(kept.outcome(), delivered(1, false));
}

/// A message without a stream is dropped at its deadline also while the budget is empty.
#[test]
fn a_message_without_a_stream_is_dropped_in_time_although_it_may_not_be_sent() {
    let mut fixture = LinkFixture::new(crate::PublisherConfig { no_stream_timeout: ms(1500), ..config() });
    fixture.complete_handshake();
    let (submit_rejected, other) = (fixture.submit("nobody", b"x"), fixture.submit("a", b"x"));
    let begun = fixture.now;
    let published = fixture.published();
    fixture.answer(&published[0], "NATS/1.0 503\r\n\r\n", b"");
    fixture.answer(&published[1], "NATS/1.0 429\r\nRetry-After: 60\r\n\r\n", b"");
    while submit_rejected.outcome().is_none() && fixture.now - begun < Duration::from_secs(3) {
        fixture.pass(ms(100));
        fixture.server_sends(b"PING\r\n");
    }
    assert_eq!(
        (submit_rejected.outcome(), fixture.now - begun),
        (Some(PublishOutcome::Dropped(DropReason::NoStream)), ms(1500))
    );
    assert_eq!(other.outcome(), None);
}

#[test]
fn a_lame_duck_server_completes_its_answers_before_the_next_server_is_used() {
    let mut config = config();
    config.servers.push("nats://127.0.0.2:2".parse().expect("an address"));
    let mut fixture = LinkFixture::new(config);
    fixture.complete_handshake();
    let ticket = fixture.submit("a", b"x");
    let one = fixture.published().remove(0);
    fixture.server_sends(b"INFO {\"headers\":true,\"ldm\":true}\r\n");
    let later = fixture.submit("a", b"y");
    assert!(fixture.published().is_empty() && !fixture.commands.close);
    fixture.answer(&one, "", &stored(1, false));
    assert_eq!(ticket.outcome(), delivered(1, false));
    assert!(fixture.commands.close);
    fixture.until_connect();
    let next = fixture.commands.connect.take().expect("a server");
    assert_eq!(next.to_string(), "nats://127.0.0.2:2");
    fixture.accept_handshake();
    let one = fixture.published().remove(0);
    fixture.answer(&one, "", &stored(2, false));
    assert_eq!(later.outcome(), delivered(2, false));
    assert_eq!(fixture.counts().connection_failures, 0, "it was no failure");
}

#[test]
fn err_messages_are_classified() {
    let check = |text: &str, expected: fn(&ConnectionError) -> bool| {
        let mut fixture = LinkFixture::new(config());
        fixture.complete_handshake();
        let ticket = fixture.submit("a", b"x");
        fixture.published();
        fixture.server_sends(text.as_bytes());
        assert!(fixture.commands.close, "{text}");
        let connection_error = fixture.link.connection_error.clone().expect("it is reported");
        assert!(expected(&connection_error), "{text}: {connection_error}");
        assert_eq!(ticket.outcome(), None, "the message is not to blame");
    };
    check("-ERR 'Slow Consumer'\r\n", |connection_error| *connection_error == ConnectionError::SlowConsumer);
    check("-ERR 'Stale Connection'\r\n", |connection_error| {
        matches!(connection_error, ConnectionError::ServerMessage(_))
    });
    check("-ERR 'User Authentication Expired'\r\n", |connection_error| {
        matches!(connection_error, ConnectionError::NotAuthorized(_))
    });
    check("HTTP/1.1 400 Bad Request\r\n", |connection_error| {
        matches!(connection_error, ConnectionError::Protocol(_))
    });
    check("MSG a 1 100000000\r\n", |connection_error| {
        matches!(connection_error, ConnectionError::Protocol(_))
    });
}

#[test]
fn a_permanently_rejected_message_is_not_sent_again() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let (small, large) = (fixture.submit("a", b"x"), fixture.submit("a", &[7; 1000]));
    fixture.published();
    fixture.server_sends(b"-ERR 'Maximum Payload Violation'\r\n");
    assert!(matches!(large.outcome(), Some(PublishOutcome::Dropped(DropReason::TooLarge { .. }))));
    fixture.complete_handshake();
    let one = fixture.published().remove(0);
    fixture.answer(&one, "", &stored(1, false));
    assert_eq!(small.outcome(), delivered(1, false));

    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake_with("{\"headers\":true,\"max_payload\":500}");
    let large = fixture.submit("a", &[7; 1000]);
    assert!(fixture.published().is_empty(), "it is not even sent");
    assert!(matches!(
        large.outcome(),
        Some(PublishOutcome::Dropped(DropReason::TooLarge { size_max: 500, .. }))
    ));
    fixture.check_nothing_held(0, 1);

    let mut fixture = LinkFixture::new(crate::PublisherConfig { mode: PublishMode::OneWay, ..config() });
    fixture.complete_handshake();
    let empty = fixture.submit("a", b"");
    fixture.published();
    fixture.server_sends(b"-ERR 'Maximum Payload Violation'\r\n");
    assert!(matches!(
        empty.outcome(),
        Some(PublishOutcome::Dropped(DropReason::TooLarge { size: 0, size_max: 0 }))
    ));

    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let (forbidden, allowed) = (fixture.submit("a.b", b"x"), fixture.submit("a.c", b"x"));
    fixture.published();
    fixture.server_sends(b"-ERR 'Permissions Violation for Publish to \"a.b\"'\r\n");
    assert!(matches!(forbidden.outcome(), Some(PublishOutcome::Dropped(DropReason::NotPermitted(_)))));
    assert!(allowed.outcome().is_none() && !fixture.commands.close);
}

/// Row 0.3: one-way messages are confirmed only per batch; those possibly in flight when a connection ends are counted,
/// and the others are sent.
#[test]
fn one_way_messages_are_counted_by_how_far_the_server_has_read() {
    let mut fixture = LinkFixture::new(crate::PublisherConfig { mode: PublishMode::OneWay, ..config() });
    fixture.complete_handshake();
    for _ in 0..200 {
        fixture.submit_without_ticket("a", b"x");
    }
    let published = fixture.published();
    assert_eq!(published.len(), 200);
    assert!(published.iter().all(|one| one.reply.is_empty() && one.id.is_empty()));
    assert_eq!(fixture.pings(), 4, "one for the first, one for each 64 after it");
    fixture.server_sends(b"PONG\r\nPONG\r\n");
    assert_eq!(fixture.counts().delivered, 65);
    fixture.server_sends(b"PONG\r\nPONG\r\n");
    assert_eq!((fixture.counts().delivered, fixture.pings()), (193, 1), "one for the rest");
    fixture.server_sends(b"PONG\r\n");
    fixture.check_nothing_held(200, 0);
    fixture.submit_without_ticket("a", b"gone");
    assert_eq!(fixture.published().len(), 1);
    fixture.is_stuck = true;
    fixture.submit_without_ticket("a", b"not gone");
    fixture.close(ConnectionError::Closed);
    fixture.is_stuck = false;
    let failures = fixture.failures();
    assert_eq!(
        failures.iter().map(|failure| failure.reason.clone()).collect::<Vec<_>>(),
        [DropReason::Unconfirmed]
    );
    fixture.complete_handshake();
    assert_eq!(fixture.published().iter().map(|one| &one.payload[..]).collect::<Vec<_>>(), [b"not gone"]);
    fixture.server_sends(b"PONG\r\n");
    fixture.check_nothing_held(201, 1);
}

#[test]
fn callers_that_have_gone_leave_nothing_behind() {
    let mut fixture =
        LinkFixture::new(crate::PublisherConfig { spool_mode: SpoolMode::Attempts, ..config() });
    let (gone, stays) = (fixture.submit("a", b"x"), fixture.submit("a", b"y"));
    gone.slot().expect("it waits").cancel();
    fixture.complete_handshake();
    let published = fixture.published();
    assert_eq!(published.iter().map(|one| &one.payload[..]).collect::<Vec<_>>(), [b"y"]);
    fixture.answer(&published[0], "", &stored(1, false));
    assert_eq!(stays.outcome(), delivered(1, false));
    fixture.check_nothing_held(1, 1);
}

#[test]
fn closing_drops_unspooled_messages_and_reports_them() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let (sent, waiting) = (fixture.submit("a", b"x"), fixture.submit("a", b"y"));
    fixture.published();
    fixture.link.close(fixture.now, 0);
    for ticket in [sent, waiting] {
        assert_eq!(ticket.outcome(), Some(PublishOutcome::Dropped(DropReason::Closed)));
    }
    fixture.check_nothing_held(0, 2);
}

/// With any order of events each message completes once, and the counters balance.
#[test]
fn no_sequence_of_failures_loses_count_of_a_message() {
    for seed in 0..300 {
        let mut random = crate::backoff::JitterRng::new(seed);
        let spool_mode = if seed.is_multiple_of(3) { SpoolMode::Attempts } else { SpoolMode::Memory };
        let mode = if seed.is_multiple_of(5) { PublishMode::OneWay } else { PublishMode::Confirmed };
        let backoff = BackoffConfig { attempts: 4, ..BackoffConfig::default() };
        let unacknowledged = 1 + random.next_u64() as usize % 8;
        let mut fixture = LinkFixture::new(crate::PublisherConfig {
            spool_mode,
            mode,
            backoff,
            unacknowledged,
            ..config()
        });
        let (mut given, mut open, mut sequence) = (0, Vec::new(), 0);
        for _ in 0..200 {
            match random.next_u64() % 12 {
                0..=3 => {
                    given += 1;
                    fixture.submit_without_ticket(if given % 7 == 0 { "nobody" } else { "a" }, b"payload");
                }
                4 => fixture.pass(Duration::from_millis(random.next_u64() % 8000)),
                5 => fixture.close(ConnectionError::Closed),
                6 => fixture.server_sends(b"PONG\r\n"),
                7 if random.next_u64().is_multiple_of(4) => fixture.server_sends(b"-ERR 'Slow Consumer'\r\n"),
                _ if fixture.commands.connect.is_some() => fixture.accept_handshake(),
                _ => {
                    open.extend(fixture.published());
                    if !open.is_empty() {
                        let one: fixture::CapturedPublish =
                            open.swap_remove(random.next_u64() as usize % open.len());
                        sequence += 1;
                        match random.next_u64() % 6 {
                            0 => {}
                            1 => fixture.answer(&one, "NATS/1.0 429\r\nRetry-After: 0.1\r\n\r\n", b""),
                            _ if one.subject == "nobody" => fixture.answer(&one, "NATS/1.0 503\r\n\r\n", b""),
                            _ => fixture.answer(&one, "", &stored(sequence, false)),
                        }
                    }
                }
            }
            let counts = fixture.counts();
            assert_eq!(counts.submitted, given);
            assert!(counts.is_balanced(), "seed {seed}: {counts:?}");
        }
        fixture.link.close(fixture.now, 0);
        let counts = fixture.counts();
        assert!(
            counts.held == 0 && counts.held_bytes == 0 && counts.is_balanced(),
            "seed {seed}: {counts:?}"
        );
    }
}

#[test]
fn a_failure_is_reported_exactly_once() {
    let refusal = br#"{"error":{"code":400,"err_code":10054,"description":"no"}}"#;
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let (waits, leaves) = (fixture.submit("a", b"x"), fixture.submit("a", b"y"));
    drop(leaves);
    for one in fixture.published() {
        fixture.answer(&one, "", refusal);
    }
    assert!(matches!(waits.outcome(), Some(PublishOutcome::Dropped(_))));
    let reported: Vec<String> = fixture.failures().into_iter().map(|failure| failure.id).collect();
    assert_eq!(reported, ["id-2"]);
    fixture.check_nothing_held(0, 2);
}
