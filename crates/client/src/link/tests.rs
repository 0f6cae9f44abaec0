//! The link in virtual time: each failure, to the millisecond, with every message accounted for.

mod flood;
mod rig;
mod unwanted;

use std::time::Duration;

use rig::{Rig, config, stored};

use crate::config::{Keep, Mode};
use crate::ladder::{BudgetConfig, LadderConfig};
use crate::outcome::{Outcome, Reason};
use crate::trouble::Trouble;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn delivered(sequence: u64, duplicate: bool) -> Option<Outcome> {
    Some(Outcome::Delivered { stream: "s".to_owned(), sequence, duplicate })
}

/// Row 0.31: a publisher that is there before its server works as soon as the server does.
#[test]
fn what_was_submitted_before_the_server_exists_is_delivered_in_order() {
    let mut rig = Rig::new(config());
    let tickets: Vec<_> = (0..5).map(|number| rig.submit("a", &[b'0' + number])).collect();
    for _ in 0..3 {
        rig.refuse_connection();
    }
    assert!(rig.link.deadline().is_some(), "it tries again by itself");
    rig.greet();
    let published = rig.published();
    let payloads: Vec<&[u8]> = published.iter().map(|one| &one.payload[..]).collect();
    assert_eq!(payloads, [b"0", b"1", b"2", b"3", b"4"]);
    for (at, one) in published.iter().enumerate() {
        rig.answer(one, "", &stored(at as u64 + 1, false));
        assert_eq!(tickets[at].outcome(), delivered(at as u64 + 1, false));
    }
    rig.check_settled(5, 0);
}

/// Rows 0.16 and 0.6: connections that fail are tried ever more rarely, and deliveries bring the pace back.
#[test]
fn attempts_to_connect_follow_the_ladder() {
    let mut rig = Rig::new(config());
    let mut waits = Vec::new();
    for _ in 0..9 {
        let before = rig.now;
        rig.refuse_connection();
        waits.push(rig.until_connect() - before);
    }
    for (failures, wait) in waits.iter().enumerate() {
        let most = (ms(100) * 2_u32.pow(failures as u32 + 1)).min(Duration::from_secs(10));
        assert!((most / 2..=most).contains(wait), "after {failures}: {wait:?}");
    }
    assert_eq!((rig.link.ladder.attempts(), rig.link.ladder.wait()), (1, Duration::from_secs(10)));
    rig.greet();
    for number in 1..=9 {
        let _ticket = rig.submit("a", b"");
        let one = rig.published().remove(0);
        rig.answer(&one, "", &stored(number, false));
    }
    assert_eq!((rig.link.ladder.attempts(), rig.link.ladder.wait()), (8, ms(100)));
}

/// A lost acknowledgement leads to a duplicate that the server recognises, never to a second record.
#[test]
fn a_message_whose_acknowledgement_is_lost_is_sent_again_under_its_id() {
    let mut rig = Rig::new(config());
    rig.greet();
    let ticket = rig.submit("a", b"x");
    let first = rig.published().remove(0);
    rig.close(Trouble::Closed);
    assert_eq!(ticket.outcome(), None);
    rig.greet();
    let second = rig.published().remove(0);
    assert_eq!((&second.id, &second.payload), (&first.id, &first.payload));
    assert!(!second.id.is_empty());
    rig.answer(&second, "", &stored(7, true));
    assert_eq!(ticket.outcome(), delivered(7, true));
    let counts = rig.check_settled(1, 0);
    assert_eq!((counts.duplicates, counts.retried), (1, 1));
}

#[test]
fn a_second_acknowledgement_is_a_stray_and_changes_nothing() {
    let mut rig = Rig::new(config());
    rig.greet();
    let ticket = rig.submit("a", b"x");
    let one = rig.published().remove(0);
    rig.answer(&one, "", &stored(1, false));
    rig.answer(&one, "", &stored(2, true));
    rig.answer_to("_INBOX.someone.else", "", &stored(3, false));
    assert_eq!(ticket.outcome(), delivered(1, false));
    assert_eq!(rig.check_settled(1, 0).stray_answers, 2);
}

/// Rows 0.26 to 0.28: what an overloaded server refuses is not lost and not hammered: it comes back when the server said.
#[test]
fn a_hint_to_come_back_later_is_obeyed() {
    for (headers, payload) in [
        ("NATS/1.0 503 Busy\r\nRetry-After: 2.5\r\n\r\n", ""),
        ("NATS/1.0 429\r\nRetry-After: 2.5\r\n\r\n", ""),
        (
            "NATS/1.0\r\nRetry-After: 2.5\r\n\r\n",
            r#"{"error":{"code":503,"err_code":10023},"stream":"s","seq":0}"#,
        ),
    ] {
        let mut rig = Rig::new(config());
        rig.greet();
        let ticket = rig.submit("a", b"x");
        let one = rig.published().remove(0);
        let asked = rig.now;
        rig.answer(&one, headers, payload.as_bytes());
        let _other = rig.submit("b", b"y");
        assert!(rig.published().is_empty(), "the others wait too");
        let again = rig.until_published();
        assert_eq!(rig.now - asked, ms(2500), "{headers}");
        assert_eq!((again[0].id.clone(), again.len()), (one.id.clone(), 2), "it goes first");
        rig.answer(&again[0], "", &stored(1, false));
        rig.answer(&again[1], "", &stored(2, false));
        assert_eq!(ticket.outcome(), delivered(1, false));
        assert_eq!(rig.check_settled(2, 0).hints, 1);
    }
}

#[test]
fn a_refusal_for_good_is_told_at_once() {
    let mut rig = Rig::new(config());
    rig.greet();
    let ticket = rig.submit("a", b"x");
    let one = rig.published().remove(0);
    rig.answer(
        &one,
        "",
        br#"{"error":{"code":400,"err_code":10054,"description":"too long"},"stream":"s","seq":0}"#,
    );
    let Some(Outcome::Dropped(Reason::Refused { error_code: 10054, .. })) = ticket.outcome() else {
        panic!("{:?}", ticket.outcome())
    };
    rig.check_settled(0, 1);
}

#[test]
fn a_subject_that_no_stream_keeps_costs_its_own_messages_only() {
    costs_its_own_messages_only("NATS/1.0 503\r\n\r\n", b"", Reason::NoStream);
}

#[test]
fn a_stream_that_is_frozen_costs_its_own_messages_only() {
    let reason = Reason::Refused {
        stream: "s".to_owned(),
        code: 503,
        error_code: 10077,
        description: "the stream is frozen".to_owned(),
    };
    let answer =
        br#"{"error":{"code":503,"err_code":10077,"description":"the stream is frozen"},"stream":"s","seq":0}"#;
    costs_its_own_messages_only("", answer, reason);
}

fn costs_its_own_messages_only(headers: &str, answer: &[u8], reason: Reason) {
    let mut rig = Rig::new(config());
    rig.greet();
    let nobodys = rig.submit("nobody", b"x");
    let mut one = rig.published().remove(0);
    let begun = rig.now;
    while nobodys.outcome().is_none() {
        rig.answer(&one, headers, answer);
        if nobodys.outcome().is_some() {
            break;
        }
        let kept = rig.submit("kept", b"y");
        let other = rig.published().remove(0);
        assert_eq!(other.subject, "kept", "the others go on");
        rig.answer(&other, "", &stored(1, false));
        assert!(matches!(kept.outcome(), Some(Outcome::Delivered { .. })));
        one = rig.until_published().remove(0);
    }
    assert_eq!(nobodys.outcome(), Some(Outcome::Dropped(reason)));
    assert_eq!(rig.now - begun, Duration::from_secs(10));
    let counts = rig.counts();
    assert_eq!(counts.dropped, 1);
    assert!((5..=9).contains(&counts.retried), "ever more rarely: {}", counts.retried);
}

/// A server that hangs is left; one that is merely slow is asked again, ever more rarely.
#[test]
fn silence_ends_the_connection_and_slowness_does_not() {
    let mut rig = Rig::new(config());
    rig.greet();
    let ticket = rig.submit("a", b"x");
    let first = rig.published().remove(0);
    rig.pass(ms(5000));
    assert!(rig.order.close, "nothing at all has come");
    assert_eq!(rig.link.trouble, Some(Trouble::Hung));
    rig.greet();
    let second = rig.published().remove(0);
    assert_eq!(second.id, first.id);
    rig.pass(ms(3000));
    rig.say(b"PING\r\n");
    rig.pass(ms(2000));
    assert!(!rig.order.close, "it lives");
    let third = rig.until_published().remove(0);
    assert_eq!((&third.id, &third.reply), (&first.id, &second.reply));
    rig.answer(&second, "", &stored(1, false));
    assert_eq!(ticket.outcome(), delivered(1, false), "the answer to any attempt will do");
    rig.answer(&third, "", &stored(1, true));
    assert_eq!(rig.check_settled(1, 0).stray_answers, 1);
}

#[test]
fn an_idle_connection_is_asked_whether_it_lives() {
    let mut rig = Rig::new(config());
    rig.greet();
    rig.pass(ms(20_000));
    assert_eq!(rig.pings(), 1);
    rig.say(b"PONG\r\n");
    rig.pass(ms(19_999));
    assert_eq!(rig.pings(), 0);
    rig.pass(ms(1));
    assert_eq!(rig.pings(), 1);
    rig.pass(ms(5000));
    assert!(rig.order.close);
    assert_eq!(rig.link.trouble, Some(Trouble::Hung));
}

/// Row 0.16: as many attempts as the ladder allows, fewer each time; then nothing keeps the message.
#[test]
fn without_a_spool_a_message_is_dropped_after_the_ladders_attempts() {
    let mut rig = Rig::new(crate::Config { keep: Keep::Attempts, ..config() });
    let ticket = rig.submit("a", b"x");
    let mut failures = 0;
    while ticket.outcome().is_none() {
        rig.refuse_connection();
        failures += 1;
    }
    // 8 attempts allowed at first; after the fourth failure 4 are.
    assert_eq!(failures, 4);
    let Some(Outcome::Dropped(Reason::GaveUp { attempts: 4, trouble: Some(trouble) })) = ticket.outcome()
    else {
        panic!("{:?}", ticket.outcome())
    };
    assert!(trouble.to_string().contains("no server listens at nats://"), "{trouble}");
    rig.check_settled(0, 1);
}

#[test]
fn with_a_spool_its_caller_goes_on_and_the_message_stays() {
    let mut rig = Rig::new(config());
    let ticket = rig.submit("a", b"x");
    for _ in 0..4 {
        assert_eq!(ticket.outcome(), None);
        rig.refuse_connection();
    }
    assert_eq!(ticket.outcome(), Some(Outcome::Queued));
    rig.greet();
    let one = rig.published().remove(0);
    rig.answer(&one, "", &stored(1, false));
    rig.check_settled(1, 0);
}

/// Row 0.18: what goes wrong after the caller has gone on is told and counted.
#[test]
fn a_failure_that_nobody_waits_for_is_reported() {
    let mut rig = Rig::new(crate::Config { mode: Mode::NoWait, ..config() });
    rig.greet();
    rig.submit_silently("a", b"x");
    let one = rig.published().remove(0);
    rig.answer(&one, "", br#"{"error":{"code":400,"err_code":10054,"description":"no"}}"#);
    let failures = rig.failures();
    assert_eq!(failures.len(), 1);
    assert_eq!((&failures[0].subject[..], &failures[0].id), ("a", &one.id));
    rig.check_settled(0, 1);
}

#[test]
fn no_more_is_unacknowledged_than_allowed_and_the_order_stays() {
    let mut rig = Rig::new(crate::Config { unacknowledged: 3, ..config() });
    rig.greet();
    for number in 0..9 {
        rig.submit_silently("a", &[b'0' + number]);
    }
    let mut seen = Vec::new();
    for round in 0..3 {
        let published = rig.published();
        assert_eq!(published.len(), 3, "round {round}");
        seen.extend(published.iter().map(|one| one.payload[0]));
        rig.answer(&published[1], "", &stored(2, false));
        assert!(rig.published().is_empty(), "the oldest holds its place");
        rig.answer(&published[2], "", &stored(3, false));
        rig.answer(&published[0], "", &stored(1, false));
    }
    assert_eq!(seen, b"012345678");
    rig.check_settled(9, 0);
}

/// Row 0.17: what a lost connection leaves goes at once; a server that takes connections and answers nothing gets no more of
/// it than the budget gives, in order, and with its first answers all of it.
#[test]
fn after_a_failure_no_more_is_sent_again_than_the_budget_allows() {
    let budget = BudgetConfig { percent: 0, per_second: 1, burst: 1 };
    let mut rig = Rig::new(crate::Config { budget, unacknowledged: 6, ..config() });
    let payloads =
        |published: &[rig::Published]| published.iter().map(|one| one.payload[0]).collect::<Vec<_>>();
    rig.greet();
    for number in 0..7 {
        rig.submit_silently("a", &[number]);
    }
    assert_eq!(rig.published().len(), 6);
    rig.close(Trouble::Closed);
    rig.greet();
    assert_eq!(payloads(&rig.published()), [0, 1, 2, 3, 4, 5], "the window is free");
    rig.close(Trouble::Closed);
    rig.greet();
    let begun = rig.now;
    assert!(rig.published().is_empty());
    let seen = rig.until_published();
    assert!(rig.now - begun <= ms(1000) && payloads(&seen) == [0], "{seen:?}");
    rig.answer(&seen[0], "", &stored(1, true));
    let again = rig.published();
    assert_eq!(payloads(&again), [1, 2], "twice as many with each round trip");
    for one in &again {
        rig.answer(one, "", &stored(2, true));
    }
    let again = rig.published();
    assert_eq!(payloads(&again), [3, 4, 5, 6], "and the new one after them");
    for one in &again {
        rig.answer(one, "", &stored(3, false));
    }
    rig.check_settled(7, 0);
}

/// Row 0.17: however wide the window is, and however often the server restarts, all of it is there again in no time.
#[test]
fn a_wide_window_is_sent_again_at_once_after_each_restart() {
    for unacknowledged in [256, 2000] {
        let mut rig = Rig::new(crate::Config { unacknowledged, ..config() });
        rig.greet();
        let mut sequence = 0;
        for _ in 0..3 {
            for _ in 0..unacknowledged {
                rig.submit_silently("a", b"x");
            }
            assert_eq!(rig.published().len(), unacknowledged);
            rig.close(Trouble::Closed);
            rig.greet();
            let begun = rig.now;
            let again = rig.published();
            assert_eq!((again.len(), rig.now), (unacknowledged, begun));
            for one in &again {
                sequence += 1;
                rig.answer(one, "", &stored(sequence, false));
            }
        }
        rig.check_settled(sequence, 0);
    }
}

/// What the socket never took is no second attempt.
#[test]
fn a_message_that_never_left_is_sent_first_and_costs_no_permission() {
    let mut rig = Rig::new(config());
    rig.greet();
    rig.is_stuck = true;
    for _ in 0..9 {
        rig.submit_silently("a", b"x");
    }
    rig.close(Trouble::Closed);
    rig.is_stuck = false;
    rig.greet();
    assert_eq!((rig.published().len(), rig.counts().retried), (9, 0));
}

/// What the server puts off waits for the budget alone; what is new goes on.
#[test]
fn messages_that_are_tried_again_do_not_hold_up_new_ones() {
    let budget = BudgetConfig { percent: 0, per_second: 1, burst: 1 };
    let mut rig = Rig::new(crate::Config { budget, unacknowledged: 8, ..config() });
    rig.greet();
    for _ in 0..6 {
        rig.submit_silently("nobody", b"x");
    }
    let mut again = rig.published();
    // Until the bucket is empty: what is due is not sent for a while.
    while rig.counts().retried < 9 {
        for one in again {
            rig.answer(&one, "NATS/1.0 503\r\n\r\n", b"");
        }
        again = rig.until_published();
    }
    for one in again {
        rig.answer(&one, "NATS/1.0 503\r\n\r\n", b"");
    }
    rig.published();
    let kept = rig.submit("kept", b"y");
    let one = rig.published().pop().expect("it goes on");
    assert_eq!(one.subject, "kept");
    rig.answer(&one, "", &stored(1, false));
    assert_eq!(kept.outcome(), delivered(1, false));
}

/// Without a permission, too, a message that no stream keeps goes when its time is over.
#[test]
fn a_message_without_a_stream_is_dropped_in_time_although_it_may_not_be_sent() {
    let mut rig = Rig::new(crate::Config { no_stream_timeout: ms(1500), ..config() });
    rig.greet();
    let (nobodys, other) = (rig.submit("nobody", b"x"), rig.submit("a", b"x"));
    let begun = rig.now;
    let published = rig.published();
    rig.answer(&published[0], "NATS/1.0 503\r\n\r\n", b"");
    rig.answer(&published[1], "NATS/1.0 429\r\nRetry-After: 60\r\n\r\n", b"");
    while nobodys.outcome().is_none() && rig.now - begun < Duration::from_secs(3) {
        rig.pass(ms(100));
        rig.say(b"PING\r\n");
    }
    assert_eq!((nobodys.outcome(), rig.now - begun), (Some(Outcome::Dropped(Reason::NoStream)), ms(1500)));
    assert_eq!(other.outcome(), None);
}

#[test]
fn a_lame_duck_gives_its_answers_and_is_left_for_the_next_server() {
    let mut config = config();
    config.servers.push("nats://127.0.0.2:2".parse().expect("an address"));
    let mut rig = Rig::new(config);
    rig.greet();
    let ticket = rig.submit("a", b"x");
    let one = rig.published().remove(0);
    rig.say(b"INFO {\"headers\":true,\"ldm\":true}\r\n");
    let later = rig.submit("a", b"y");
    assert!(rig.published().is_empty() && !rig.order.close);
    rig.answer(&one, "", &stored(1, false));
    assert_eq!(ticket.outcome(), delivered(1, false));
    assert!(rig.order.close);
    rig.until_connect();
    let next = rig.order.connect.take().expect("a server");
    assert_eq!(next.to_string(), "nats://127.0.0.2:2");
    rig.welcome();
    let one = rig.published().remove(0);
    rig.answer(&one, "", &stored(2, false));
    assert_eq!(later.outcome(), delivered(2, false));
    assert_eq!(rig.counts().connection_failures, 0, "it was no failure");
}

#[test]
fn what_the_server_says_in_anger_is_understood() {
    let check = |said: &str, expected: fn(&Trouble) -> bool| {
        let mut rig = Rig::new(config());
        rig.greet();
        let ticket = rig.submit("a", b"x");
        rig.published();
        rig.say(said.as_bytes());
        assert!(rig.order.close, "{said}");
        let trouble = rig.link.trouble.clone().expect("it is told");
        assert!(expected(&trouble), "{said}: {trouble}");
        assert_eq!(ticket.outcome(), None, "the message is not to blame");
    };
    check("-ERR 'Slow Consumer'\r\n", |trouble| *trouble == Trouble::SlowConsumer);
    check("-ERR 'Stale Connection'\r\n", |trouble| matches!(trouble, Trouble::Said(_)));
    check("-ERR 'User Authentication Expired'\r\n", |trouble| matches!(trouble, Trouble::NotAuthorized(_)));
    check("HTTP/1.1 400 Bad Request\r\n", |trouble| matches!(trouble, Trouble::Protocol(_)));
    check("MSG a 1 100000000\r\n", |trouble| matches!(trouble, Trouble::Protocol(_)));
}

#[test]
fn a_message_that_the_server_will_never_take_does_not_come_back() {
    let mut rig = Rig::new(config());
    rig.greet();
    let (small, large) = (rig.submit("a", b"x"), rig.submit("a", &[7; 1000]));
    rig.published();
    rig.say(b"-ERR 'Maximum Payload Violation'\r\n");
    assert!(matches!(large.outcome(), Some(Outcome::Dropped(Reason::TooLarge { .. }))));
    rig.greet();
    let one = rig.published().remove(0);
    rig.answer(&one, "", &stored(1, false));
    assert_eq!(small.outcome(), delivered(1, false));

    let mut rig = Rig::new(config());
    rig.greet_with("{\"headers\":true,\"max_payload\":500}");
    let large = rig.submit("a", &[7; 1000]);
    assert!(rig.published().is_empty(), "it is not even sent");
    assert!(matches!(large.outcome(), Some(Outcome::Dropped(Reason::TooLarge { size_max: 500, .. }))));
    rig.check_settled(0, 1);

    let mut rig = Rig::new(crate::Config { mode: Mode::OneWay, ..config() });
    rig.greet();
    let empty = rig.submit("a", b"");
    rig.published();
    rig.say(b"-ERR 'Maximum Payload Violation'\r\n");
    assert!(matches!(empty.outcome(), Some(Outcome::Dropped(Reason::TooLarge { size: 0, size_max: 0 }))));

    let mut rig = Rig::new(config());
    rig.greet();
    let (forbidden, allowed) = (rig.submit("a.b", b"x"), rig.submit("a.c", b"x"));
    rig.published();
    rig.say(b"-ERR 'Permissions Violation for Publish to \"a.b\"'\r\n");
    assert!(matches!(forbidden.outcome(), Some(Outcome::Dropped(Reason::NotPermitted(_)))));
    assert!(allowed.outcome().is_none() && !rig.order.close);
}

/// Row 0.3: nothing comes back for one-way messages but now and then a word that the server has read them; what may have
/// been on its way when a connection ends is counted, and what was not is sent.
#[test]
fn one_way_messages_are_counted_by_how_far_the_server_has_read() {
    let mut rig = Rig::new(crate::Config { mode: Mode::OneWay, ..config() });
    rig.greet();
    for _ in 0..200 {
        rig.submit_silently("a", b"x");
    }
    let published = rig.published();
    assert_eq!(published.len(), 200);
    assert!(published.iter().all(|one| one.reply.is_empty() && one.id.is_empty()));
    assert_eq!(rig.pings(), 4, "one for the first, one for each 64 after it");
    rig.say(b"PONG\r\nPONG\r\n");
    assert_eq!(rig.counts().delivered, 65);
    rig.say(b"PONG\r\nPONG\r\n");
    assert_eq!((rig.counts().delivered, rig.pings()), (193, 1), "one for the rest");
    rig.say(b"PONG\r\n");
    rig.check_settled(200, 0);
    rig.submit_silently("a", b"gone");
    assert_eq!(rig.published().len(), 1);
    rig.is_stuck = true;
    rig.submit_silently("a", b"not gone");
    rig.close(Trouble::Closed);
    rig.is_stuck = false;
    let failures = rig.failures();
    assert_eq!(failures.iter().map(|failure| failure.reason.clone()).collect::<Vec<_>>(), [Reason::Unsure]);
    rig.greet();
    assert_eq!(rig.published().iter().map(|one| &one.payload[..]).collect::<Vec<_>>(), [b"not gone"]);
    rig.say(b"PONG\r\n");
    rig.check_settled(201, 1);
}

#[test]
fn callers_that_have_gone_leave_nothing_behind() {
    let mut rig = Rig::new(crate::Config { keep: Keep::Attempts, ..config() });
    let (gone, stays) = (rig.submit("a", b"x"), rig.submit("a", b"y"));
    gone.slot().expect("it waits").abandon();
    rig.greet();
    let published = rig.published();
    assert_eq!(published.iter().map(|one| &one.payload[..]).collect::<Vec<_>>(), [b"y"]);
    rig.answer(&published[0], "", &stored(1, false));
    assert_eq!(stays.outcome(), delivered(1, false));
    rig.check_settled(1, 1);
}

#[test]
fn closing_drops_what_nothing_keeps_and_says_so() {
    let mut rig = Rig::new(config());
    rig.greet();
    let (sent, waiting) = (rig.submit("a", b"x"), rig.submit("a", b"y"));
    rig.published();
    rig.link.close(rig.now, 0);
    for ticket in [sent, waiting] {
        assert_eq!(ticket.outcome(), Some(Outcome::Dropped(Reason::Closed)));
    }
    rig.check_settled(0, 2);
}

/// Whatever happens in whatever order, each message ends once, and the figures add up.
#[test]
fn no_play_of_failures_loses_count_of_a_message() {
    for seed in 0..300 {
        let mut random = crate::ladder::Random::new(seed);
        let keep = if seed.is_multiple_of(3) { Keep::Attempts } else { Keep::Memory };
        let mode = if seed.is_multiple_of(5) { Mode::OneWay } else { Mode::Confirmed };
        let ladder = LadderConfig { attempts: 4, ..LadderConfig::default() };
        let unacknowledged = 1 + random.draw() as usize % 8;
        let mut rig = Rig::new(crate::Config { keep, mode, ladder, unacknowledged, ..config() });
        let (mut given, mut open, mut sequence) = (0, Vec::new(), 0);
        for _ in 0..200 {
            match random.draw() % 12 {
                0..=3 => {
                    given += 1;
                    rig.submit_silently(if given % 7 == 0 { "nobody" } else { "a" }, b"payload");
                }
                4 => rig.pass(Duration::from_millis(random.draw() % 8000)),
                5 => rig.close(Trouble::Closed),
                6 => rig.say(b"PONG\r\n"),
                7 if random.draw().is_multiple_of(4) => rig.say(b"-ERR 'Slow Consumer'\r\n"),
                _ if rig.order.connect.is_some() => rig.welcome(),
                _ => {
                    open.extend(rig.published());
                    if !open.is_empty() {
                        let one: rig::Published = open.swap_remove(random.draw() as usize % open.len());
                        sequence += 1;
                        match random.draw() % 6 {
                            0 => {}
                            1 => rig.answer(&one, "NATS/1.0 429\r\nRetry-After: 0.1\r\n\r\n", b""),
                            _ if one.subject == "nobody" => rig.answer(&one, "NATS/1.0 503\r\n\r\n", b""),
                            _ => rig.answer(&one, "", &stored(sequence, false)),
                        }
                    }
                }
            }
            let counts = rig.counts();
            assert_eq!(counts.submitted, given);
            assert!(counts.is_balanced(), "seed {seed}: {counts:?}");
        }
        rig.link.close(rig.now, 0);
        let counts = rig.counts();
        assert!(
            counts.held == 0 && counts.held_bytes == 0 && counts.is_balanced(),
            "seed {seed}: {counts:?}"
        );
    }
}

/// What somebody was told was queued, and somebody who did not wait, both hear of a failure all the same.
#[test]
fn a_failure_is_told_once_to_whoever_is_there_to_hear_it() {
    let refusal = br#"{"error":{"code":400,"err_code":10054,"description":"no"}}"#;
    let mut rig = Rig::new(config());
    rig.greet();
    let (waits, leaves) = (rig.submit("a", b"x"), rig.submit("a", b"y"));
    drop(leaves);
    for one in rig.published() {
        rig.answer(&one, "", refusal);
    }
    assert!(matches!(waits.outcome(), Some(Outcome::Dropped(_))));
    let told: Vec<String> = rig.failures().into_iter().map(|failure| failure.id).collect();
    assert_eq!(told, ["id-2"]);
    rig.check_settled(0, 2);
}
