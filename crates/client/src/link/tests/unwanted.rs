//! Messages that nobody takes cost themselves, not the others, and are not lost before their time.

use std::time::Duration;

use stilling_wire::nats::DISK_HUNG;

use super::rig::{Rig, config, stored};
use super::{delivered, ms};
use crate::config::{Keep, Mode};
use crate::limits::{UNWANTED_MAX, UNWANTED_PASSED_MAX};
use crate::outcome::{Outcome, Reason};
use crate::trouble::Trouble;

const NOBODY: &str = "NATS/1.0 503\r\n\r\n";

/// Gives a message and expects it to be on its way at once.
fn goes_on(rig: &mut Rig, sequence: u64) {
    rig.submit_silently("kept", b"y");
    let published = rig.published();
    let one = published.iter().find(|one| one.subject == "kept").expect("it goes at once");
    rig.answer(one, "", &stored(sequence, false));
}

/// Gives a message and has the server say that nobody takes it.
fn nobodys(rig: &mut Rig) {
    rig.submit_silently("nobody", b"x");
    let published = rig.published();
    let one = published.iter().find(|one| one.subject == "nobody").expect("it goes at once");
    rig.answer(one, NOBODY, b"");
}

/// Row 0.17: a window's worth of others, and another one, go past it.
#[test]
fn one_message_that_nobody_takes_holds_up_none_of_those_behind_it() {
    let mut rig = Rig::new(config());
    rig.greet();
    let nobodys = rig.submit("nobody", b"x");
    let one = rig.published().remove(0);
    rig.answer(&one, NOBODY, b"");
    for sequence in 1..=1000 {
        goes_on(&mut rig, sequence);
    }
    assert_eq!(nobodys.outcome(), None);
    let again = rig.until_published().remove(0);
    assert_eq!((&again.id, &again.reply), (&one.id, &one.reply));
    rig.answer(&again, "", &stored(7, false));
    assert_eq!(nobodys.outcome(), delivered(7, false), "its time is its own");
    rig.check_settled(1001, 0);
}

/// They come ever on: as many lie aside as may, the next ones fill the row, and then all wait. Nothing is lost before its time,
/// and then everything goes on.
#[test]
fn messages_that_nobody_takes_may_come_ever_on() {
    let mut rig = Rig::new(crate::Config { mode: Mode::NoWait, unacknowledged: 100, ..config() });
    rig.greet();
    let begun = rig.now;
    for sequence in 1..=UNWANTED_MAX as u64 {
        nobodys(&mut rig);
        goes_on(&mut rig, sequence);
    }
    for _ in 0..100 {
        nobodys(&mut rig);
    }
    let kept = rig.submit("kept", b"y");
    assert!(rig.published().is_empty(), "the row is full");
    let held = UNWANTED_MAX as u64 + 100;
    while kept.outcome().is_none() {
        assert!(rig.counts().dropped == 0 || rig.now - begun == Duration::from_secs(10));
        for one in rig.until_published() {
            match &one.subject[..] {
                "kept" => rig.answer(&one, "", &stored(7, false)),
                _ => rig.answer(&one, NOBODY, b""),
            }
        }
    }
    assert_eq!(rig.now - begun, Duration::from_secs(10));
    assert!(rig.failures().iter().all(|failure| failure.reason == Reason::NoStream));
    rig.check_settled(UNWANTED_MAX as u64 + 1, held);
}

/// Row 0.17: a stream elects its leader, or its server starts again, while messages come as fast as they can.
#[test]
fn a_stream_that_comes_back_in_time_gets_every_message_however_fast_they_came() {
    for starts_again in [false, true] {
        let mut rig = Rig::new(crate::Config { mode: Mode::NoWait, ..config() });
        rig.greet();
        let (begun, given) = (rig.now, 3 * UNWANTED_MAX as u64);
        for _ in 0..given {
            rig.submit_silently("a", b"x");
        }
        let mut sequence = 0;
        while rig.counts().held > 0 {
            let published = rig.until_published();
            let is_back = rig.now - begun >= Duration::from_secs(3);
            if is_back && starts_again && rig.counts().connection_failures == 0 {
                rig.close(Trouble::Closed);
                rig.greet();
                continue;
            }
            for one in published {
                if is_back {
                    sequence += 1;
                    rig.answer(&one, "", &stored(sequence, false));
                } else {
                    rig.answer(&one, NOBODY, b"");
                }
            }
        }
        rig.check_settled(given, 0);
        assert!(rig.now - begun < Duration::from_secs(10), "{:?}", rig.now - begun);
    }
}

#[test]
fn beyond_its_part_of_the_spool_what_nobody_takes_keeps_its_place_in_the_row() {
    let mut rig = Rig::new(crate::Config { spool_size: 20_000, unacknowledged: 4, ..config() });
    rig.greet();
    let tickets: Vec<_> = (0..5).map(|_| rig.submit("nobody", &[0; 2000])).collect();
    let mut published = rig.published();
    while !published.is_empty() {
        for one in published {
            rig.answer(&one, NOBODY, b"");
        }
        published = rig.published();
    }
    assert!(tickets.iter().all(|ticket| ticket.outcome().is_none()));
    goes_on(&mut rig, 1);
    let kept = rig.submit("kept", b"y");
    assert!(rig.published().is_empty(), "two lie aside; three and what came behind them are the row");
    while rig.counts().held > 0 {
        for one in rig.until_published() {
            rig.answer(&one, "", &stored(7, false));
        }
    }
    assert_eq!(kept.outcome(), delivered(7, false));
    assert!(tickets.iter().all(|ticket| ticket.outcome() == delivered(7, false)));
    rig.check_settled(7, 0);
}

#[test]
fn on_disk_no_message_keeps_the_room_of_too_many_behind_it() {
    // The rig's own spool lies in memory; only the link looks at what it is told to be.
    let mut rig = Rig::new(crate::Config { keep: Keep::Directory("/nowhere".into()), ..config() });
    rig.greet();
    let nobodys = rig.submit("nobody", b"x");
    let one = rig.published().remove(0);
    rig.answer(&one, NOBODY, b"");
    for sequence in 1..=UNWANTED_PASSED_MAX {
        assert_eq!(nobodys.outcome(), None, "{sequence}");
        goes_on(&mut rig, sequence);
    }
    assert_eq!(nobodys.outcome(), Some(Outcome::Dropped(Reason::NoStream)));
}

/// Bytes, too: a connection that was lost in between does not begin the count anew.
#[test]
fn on_disk_no_message_keeps_more_than_a_part_of_the_spool_behind_it() {
    let keep = Keep::Directory("/nowhere".into());
    let mut rig = Rig::new(crate::Config { keep, spool_size: 40_000, ..config() });
    rig.greet();
    let nobodys = rig.submit("nobody", b"x");
    let mut one = rig.published().remove(0);
    rig.answer(&one, NOBODY, b"");
    let mut passed = 0;
    while nobodys.outcome().is_none() {
        assert!(passed <= 10_000, "a quarter of the spool");
        if passed > 5_000 && rig.counts().connection_failures == 0 {
            rig.close(Trouble::Closed);
            rig.greet();
            one = rig.published().remove(0);
            rig.answer(&one, NOBODY, b"");
        }
        let before = rig.counts().held_bytes;
        rig.submit_silently("kept", b"y");
        passed += rig.counts().held_bytes - before;
        let published = rig.published();
        let kept = published.iter().find(|one| one.subject == "kept").expect("it goes at once");
        rig.answer(kept, "", &stored(passed, false));
    }
    assert!(passed > 10_000 && rig.counts().connection_failures == 1);
    assert_eq!(nobodys.outcome(), Some(Outcome::Dropped(Reason::NoStream)));
    goes_on(&mut rig, 1);
}

/// Also what makes room in a full spool passes it.
#[test]
fn on_disk_what_is_dropped_for_room_passes_what_nobody_takes() {
    let keep = Keep::Directory("/nowhere".into());
    let mut rig = Rig::new(crate::Config { keep, spool_size: 40_000, unacknowledged: 1, ..config() });
    rig.greet();
    let nobodys = rig.submit("nobody", b"x");
    let one = rig.published().remove(0);
    rig.answer(&one, NOBODY, b"");
    rig.submit_silently("a", b"x");
    rig.submit_silently("a", &[0; 10_000]);
    assert_eq!(nobodys.outcome(), None);
    assert!(rig.link.drop_oldest().is_some());
    rig.published();
    assert_eq!(nobodys.outcome(), Some(Outcome::Dropped(Reason::NoStream)));
}

/// A server's refusal when a stream's disk hangs.
fn hung() -> Vec<u8> {
    let error = format!(r#"{{"code":503,"err_code":10023,"description":"{DISK_HUNG}"}}"#);
    format!(r#"{{"error":{error},"stream":"hung","seq":0}}"#).into_bytes()
}

/// Row 0.17: the disk answers after a minute; until then the other streams go on at their pace, and nothing is lost.
#[test]
fn a_stream_whose_disk_hangs_holds_up_no_other_and_gets_its_messages_in_the_end() {
    let mut rig = Rig::new(config());
    rig.greet();
    let waits = rig.submit("hung", b"x");
    let begun = rig.now;
    let mut sequence = 1;
    while rig.now - begun < Duration::from_secs(60) {
        for one in rig.until_published() {
            rig.answer(&one, "", &hung());
        }
        sequence += 1;
        goes_on(&mut rig, sequence);
        assert_eq!((rig.rung(), rig.counts().dropped), (0, 0));
    }
    assert_eq!(waits.outcome(), Some(Outcome::Queued), "its caller goes on after the ladder's attempts");
    let one = rig.until_published().remove(0);
    rig.answer(&one, "", &stored(1, false));
    rig.check_settled(sequence, 0);
}

/// It is not dropped for the room that it keeps: what comes waits for it.
#[test]
fn on_disk_others_pass_a_stream_whose_disk_hangs_up_to_their_part_of_the_spool() {
    let keep = Keep::Directory("/nowhere".into());
    let mut rig = Rig::new(crate::Config { keep, spool_size: 40_000, ..config() });
    rig.greet();
    rig.submit_silently("hung", b"x");
    let one = rig.published().remove(0);
    rig.answer(&one, "", &hung());
    let mut passed = 0;
    let waits = loop {
        assert!(passed < 200);
        let kept = rig.submit("kept", b"y");
        let Some(one) = rig.published().pop() else { break kept };
        passed += 1;
        rig.answer(&one, "", &stored(passed, false));
    };
    assert!(passed > 50, "{passed}");
    let again = rig.until_published().remove(0);
    assert_eq!((again.id, waits.outcome()), (one.id, None));
    rig.answer_to(&again.reply, "", &stored(1, false));
    let kept = rig.published().remove(0);
    rig.answer(&kept, "", &stored(2, false));
    assert_eq!(waits.outcome(), delivered(2, false));
    rig.check_settled(passed + 2, 0);
}

/// What lay aside when the connection ended goes to the next server with all the others, in its order.
#[test]
fn the_next_server_is_asked_again_for_what_the_last_one_did_not_take() {
    let mut rig = Rig::new(config());
    rig.greet();
    let nobodys = rig.submit("nobody", b"x");
    let one = rig.published().remove(0);
    rig.answer(&one, NOBODY, b"");
    let other = rig.submit("a", b"y");
    rig.published();
    rig.close(Trouble::Closed);
    rig.greet();
    let published = rig.published();
    assert_eq!(published.iter().map(|one| &one.subject[..]).collect::<Vec<_>>(), ["nobody", "a"]);
    rig.pass(ms(1));
    rig.answer(&published[0], "", &stored(1, false));
    rig.answer(&published[1], "", &stored(2, false));
    assert_eq!((nobodys.outcome(), other.outcome()), (delivered(1, false), delivered(2, false)));
    rig.check_settled(2, 0);
}
