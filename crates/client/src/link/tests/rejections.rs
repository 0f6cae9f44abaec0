//! Messages without a stream do not delay others, and are not dropped before their deadline.

use std::time::Duration;

use stilling_wire::nats::DISK_HUNG;

use super::fixture::{LinkFixture, config, stored};
use super::{delivered, ms};
use crate::config::{PublishMode, SpoolMode};
use crate::connection_error::ConnectionError;
use crate::limits::{PARKED_MAX, PARKED_PASSED_MAX};
use crate::outcome::{DropReason, PublishOutcome};

const NO_RESPONDERS_HEADERS: &str = "NATS/1.0 503\r\n\r\n";

fn submit_accepted(fixture: &mut LinkFixture, sequence: u64) {
    fixture.submit_without_ticket("kept", b"y");
    let published = fixture.published();
    let one = published.iter().find(|one| one.subject == "kept").expect("it goes at once");
    fixture.answer(one, "", &stored(sequence, false));
}

fn submit_rejected(fixture: &mut LinkFixture) {
    fixture.submit_without_ticket("nobody", b"x");
    let published = fixture.published();
    let one = published.iter().find(|one| one.subject == "nobody").expect("it goes at once");
    fixture.answer(one, NO_RESPONDERS_HEADERS, b"");
}

/// Row 0.17: more other messages than the window holds pass it.
#[test]
fn a_rejected_message_does_not_delay_others() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let submit_rejected = fixture.submit("nobody", b"x");
    let one = fixture.published().remove(0);
    fixture.answer(&one, NO_RESPONDERS_HEADERS, b"");
    for sequence in 1..=1000 {
        submit_accepted(&mut fixture, sequence);
    }
    assert_eq!(submit_rejected.outcome(), None);
    let again = fixture.until_published().remove(0);
    assert_eq!((&again.id, &again.reply), (&one.id, &one.reply));
    fixture.answer(&again, "", &stored(7, false));
    assert_eq!(submit_rejected.outcome(), delivered(7, false), "its time is its own");
    fixture.check_nothing_held(1001, 0);
}

/// A continuous series of rejected messages: the maximum is parked, the next ones fill the window, and all others wait.
/// None is dropped before its deadline, and then the others continue.
#[test]
fn a_continuous_series_of_rejected_messages_is_bounded() {
    let mut fixture = LinkFixture::new(crate::PublisherConfig {
        mode: PublishMode::NoWait,
        unacknowledged: 100,
        ..config()
    });
    fixture.complete_handshake();
    let begun = fixture.now;
    for sequence in 1..=PARKED_MAX as u64 {
        submit_rejected(&mut fixture);
        submit_accepted(&mut fixture, sequence);
    }
    for _ in 0..100 {
        submit_rejected(&mut fixture);
    }
    let kept = fixture.submit("kept", b"y");
    assert!(fixture.published().is_empty(), "the window is full");
    let held = PARKED_MAX as u64 + 100;
    while kept.outcome().is_none() {
        assert!(fixture.counts().dropped == 0 || fixture.now - begun == Duration::from_secs(10));
        for one in fixture.until_published() {
            match &one.subject[..] {
                "kept" => fixture.answer(&one, "", &stored(7, false)),
                _ => fixture.answer(&one, NO_RESPONDERS_HEADERS, b""),
            }
        }
    }
    assert_eq!(fixture.now - begun, Duration::from_secs(10));
    assert!(fixture.failures().iter().all(|failure| failure.reason == DropReason::NoStream));
    fixture.check_nothing_held(PARKED_MAX as u64 + 1, held);
}

/// Row 0.17: a stream elects its leader, or its server restarts, while messages are submitted at full rate.
#[test]
fn a_stream_that_comes_back_in_time_gets_every_message_however_fast_they_came() {
    for starts_again in [false, true] {
        let mut fixture = LinkFixture::new(crate::PublisherConfig { mode: PublishMode::NoWait, ..config() });
        fixture.complete_handshake();
        let (begun, given) = (fixture.now, 3 * PARKED_MAX as u64);
        for _ in 0..given {
            fixture.submit_without_ticket("a", b"x");
        }
        let mut sequence = 0;
        while fixture.counts().held > 0 {
            let published = fixture.until_published();
            let is_back = fixture.now - begun >= Duration::from_secs(3);
            if is_back && starts_again && fixture.counts().connection_failures == 0 {
                fixture.close(ConnectionError::Closed);
                fixture.complete_handshake();
                continue;
            }
            for one in published {
                if is_back {
                    sequence += 1;
                    fixture.answer(&one, "", &stored(sequence, false));
                } else {
                    fixture.answer(&one, NO_RESPONDERS_HEADERS, b"");
                }
            }
        }
        fixture.check_nothing_held(given, 0);
        assert!(fixture.now - begun < Duration::from_secs(10), "{:?}", fixture.now - begun);
    }
}

#[test]
fn beyond_its_share_of_the_spool_a_rejected_message_keeps_its_position() {
    let mut fixture =
        LinkFixture::new(crate::PublisherConfig { spool_size: 20_000, unacknowledged: 4, ..config() });
    fixture.complete_handshake();
    let tickets: Vec<_> = (0..5).map(|_| fixture.submit("nobody", &[0; 2000])).collect();
    let mut published = fixture.published();
    while !published.is_empty() {
        for one in published {
            fixture.answer(&one, NO_RESPONDERS_HEADERS, b"");
        }
        published = fixture.published();
    }
    assert!(tickets.iter().all(|ticket| ticket.outcome().is_none()));
    submit_accepted(&mut fixture, 1);
    let kept = fixture.submit("kept", b"y");
    assert!(fixture.published().is_empty(), "two are parked; three and the later ones fill the window");
    while fixture.counts().held > 0 {
        for one in fixture.until_published() {
            fixture.answer(&one, "", &stored(7, false));
        }
    }
    assert_eq!(kept.outcome(), delivered(7, false));
    assert!(tickets.iter().all(|ticket| ticket.outcome() == delivered(7, false)));
    fixture.check_nothing_held(7, 0);
}

#[test]
fn on_disk_a_rejected_message_is_dropped_after_too_many_have_passed_it() {
    // The fixture's own spool is in memory; only the link uses the configured mode.
    let mut fixture = LinkFixture::new(crate::PublisherConfig {
        spool_mode: SpoolMode::Directory("/nowhere".into()),
        ..config()
    });
    fixture.complete_handshake();
    let submit_rejected = fixture.submit("nobody", b"x");
    let one = fixture.published().remove(0);
    fixture.answer(&one, NO_RESPONDERS_HEADERS, b"");
    for sequence in 1..=PARKED_PASSED_MAX {
        assert_eq!(submit_rejected.outcome(), None, "{sequence}");
        submit_accepted(&mut fixture, sequence);
    }
    assert_eq!(submit_rejected.outcome(), Some(PublishOutcome::Dropped(DropReason::NoStream)));
}

/// The bound on bytes that pass a parked message: a lost connection does not reset the count.
#[test]
fn on_disk_no_message_keeps_more_than_a_part_of_the_spool_behind_it() {
    let spool_mode = SpoolMode::Directory("/nowhere".into());
    let mut fixture = LinkFixture::new(crate::PublisherConfig { spool_mode, spool_size: 40_000, ..config() });
    fixture.complete_handshake();
    let submit_rejected = fixture.submit("nobody", b"x");
    let mut one = fixture.published().remove(0);
    fixture.answer(&one, NO_RESPONDERS_HEADERS, b"");
    let mut passed = 0;
    while submit_rejected.outcome().is_none() {
        assert!(passed <= 10_000, "a quarter of the spool");
        if passed > 5_000 && fixture.counts().connection_failures == 0 {
            fixture.close(ConnectionError::Closed);
            fixture.complete_handshake();
            one = fixture.published().remove(0);
            fixture.answer(&one, NO_RESPONDERS_HEADERS, b"");
        }
        let before = fixture.counts().held_bytes;
        fixture.submit_without_ticket("kept", b"y");
        passed += fixture.counts().held_bytes - before;
        let published = fixture.published();
        let kept = published.iter().find(|one| one.subject == "kept").expect("it goes at once");
        fixture.answer(kept, "", &stored(passed, false));
    }
    assert!(passed > 10_000 && fixture.counts().connection_failures == 1);
    assert_eq!(submit_rejected.outcome(), Some(PublishOutcome::Dropped(DropReason::NoStream)));
    submit_accepted(&mut fixture, 1);
}

/// Messages dropped for room count as messages that passed the parked one.
#[test]
fn on_disk_dropping_for_space_passes_rejected_messages() {
    let spool_mode = SpoolMode::Directory("/nowhere".into());
    let mut fixture = LinkFixture::new(crate::PublisherConfig {
        spool_mode,
        spool_size: 40_000,
        unacknowledged: 1,
        ..config()
    });
    fixture.complete_handshake();
    let submit_rejected = fixture.submit("nobody", b"x");
    let one = fixture.published().remove(0);
    fixture.answer(&one, NO_RESPONDERS_HEADERS, b"");
    fixture.submit_without_ticket("a", b"x");
    fixture.submit_without_ticket("a", &[0; 10_000]);
    assert_eq!(submit_rejected.outcome(), None);
    assert!(fixture.link.drop_oldest().is_some());
    fixture.published();
    assert_eq!(submit_rejected.outcome(), Some(PublishOutcome::Dropped(DropReason::NoStream)));
}

fn hung() -> Vec<u8> {
    let error = format!(r#"{{"code":503,"err_code":10023,"description":"{DISK_HUNG}"}}"#);
    format!(r#"{{"error":{error},"stream":"hung","seq":0}}"#).into_bytes()
}

/// Row 0.17: the disk responds after a minute; until then the other streams continue at their rate, and nothing is
/// lost.
#[test]
fn a_stream_whose_disk_hangs_holds_up_no_other_and_gets_its_messages_in_the_end() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let waits = fixture.submit("hung", b"x");
    let begun = fixture.now;
    let mut sequence = 1;
    while fixture.now - begun < Duration::from_secs(60) {
        for one in fixture.until_published() {
            fixture.answer(&one, "", &hung());
        }
        sequence += 1;
        submit_accepted(&mut fixture, sequence);
        assert_eq!((fixture.exponent(), fixture.counts().dropped), (0, 0));
    }
    assert_eq!(
        waits.outcome(),
        Some(PublishOutcome::Queued),
        "its caller stops waiting after the attempts of the backoff"
    );
    let one = fixture.until_published().remove(0);
    fixture.answer(&one, "", &stored(1, false));
    fixture.check_nothing_held(sequence, 0);
}

/// A message for a hung disk is not dropped for the space that it keeps: new messages wait for it.
#[test]
fn on_disk_others_pass_a_stream_whose_disk_hangs_up_to_their_part_of_the_spool() {
    let spool_mode = SpoolMode::Directory("/nowhere".into());
    let mut fixture = LinkFixture::new(crate::PublisherConfig { spool_mode, spool_size: 40_000, ..config() });
    fixture.complete_handshake();
    fixture.submit_without_ticket("hung", b"x");
    let one = fixture.published().remove(0);
    fixture.answer(&one, "", &hung());
    let mut passed = 0;
    let waits = loop {
        assert!(passed < 200);
        let kept = fixture.submit("kept", b"y");
        let Some(one) = fixture.published().pop() else { break kept };
        passed += 1;
        fixture.answer(&one, "", &stored(passed, false));
    };
    assert!(passed > 50, "{passed}");
    let again = fixture.until_published().remove(0);
    assert_eq!((again.id, waits.outcome()), (one.id, None));
    fixture.answer_to(&again.reply, "", &stored(1, false));
    let kept = fixture.published().remove(0);
    fixture.answer(&kept, "", &stored(2, false));
    assert_eq!(waits.outcome(), delivered(2, false));
    fixture.check_nothing_held(passed + 2, 0);
}

/// Messages parked when the connection ended are sent to the next server with all the others, in order.
#[test]
fn the_next_server_is_asked_again_for_what_the_last_one_did_not_take() {
    let mut fixture = LinkFixture::new(config());
    fixture.complete_handshake();
    let submit_rejected = fixture.submit("nobody", b"x");
    let one = fixture.published().remove(0);
    fixture.answer(&one, NO_RESPONDERS_HEADERS, b"");
    let other = fixture.submit("a", b"y");
    fixture.published();
    fixture.close(ConnectionError::Closed);
    fixture.complete_handshake();
    let published = fixture.published();
    assert_eq!(published.iter().map(|one| &one.subject[..]).collect::<Vec<_>>(), ["nobody", "a"]);
    fixture.pass(ms(1));
    fixture.answer(&published[0], "", &stored(1, false));
    fixture.answer(&published[1], "", &stored(2, false));
    assert_eq!((submit_rejected.outcome(), other.outcome()), (delivered(1, false), delivered(2, false)));
    fixture.check_nothing_held(2, 0);
}
