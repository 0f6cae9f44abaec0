//! Messages that nobody takes cost themselves, not the others.

use std::time::Duration;

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

/// They come ever on: as many wait as may, the others are dropped at once, and what is kept goes on at its pace.
#[test]
fn messages_that_nobody_takes_may_come_ever_on() {
    let mut rig = Rig::new(crate::Config { mode: Mode::NoWait, ..config() });
    rig.greet();
    let too_many = 100;
    for sequence in 1..=UNWANTED_MAX as u64 + too_many {
        rig.submit_silently("nobody", b"x");
        let published = rig.published();
        let one = published.iter().find(|one| one.subject == "nobody").expect("it goes at once");
        rig.answer(one, NOBODY, b"");
        goes_on(&mut rig, sequence);
    }
    let counts = rig.counts();
    assert_eq!((counts.dropped, counts.held), (too_many, UNWANTED_MAX as u64));
    assert!(rig.failures().iter().all(|failure| failure.reason == Reason::NoStream));
    let begun = rig.now;
    while rig.counts().held > 0 {
        for one in rig.until("it goes on", |rig| {
            Some(rig.published()).filter(|seen| !seen.is_empty() || rig.counts().held == 0)
        }) {
            rig.answer(&one, NOBODY, b"");
        }
    }
    assert_eq!(rig.now - begun, Duration::from_secs(10));
    rig.check_settled(UNWANTED_MAX as u64 + too_many, UNWANTED_MAX as u64 + too_many);
}

#[test]
fn messages_that_nobody_takes_leave_the_spool_its_room() {
    let mut rig = Rig::new(crate::Config { spool_size: 20_000, ..config() });
    rig.greet();
    let tickets: Vec<_> = (0..5).map(|_| rig.submit("nobody", &[0; 2000])).collect();
    for one in rig.published() {
        rig.answer(&one, NOBODY, b"");
    }
    let told: Vec<_> = tickets.iter().map(crate::ticket::Ticket::outcome).collect();
    let dropped = Some(Outcome::Dropped(Reason::NoStream));
    assert_eq!(told, [None, None, dropped.clone(), dropped.clone(), dropped]);
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
