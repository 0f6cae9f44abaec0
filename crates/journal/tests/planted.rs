//! The crash test sees what it is there for: each planted bug is found, and without one nothing is. One test, because
//! the choice is the process's.
#![cfg(stilling_planted)]

#[path = "journal/support/mod.rs"]
#[expect(dead_code, reason = "the other tests of the journal need more")]
mod support;

use stilling_ring::planted;
use support::Random;
use support::crash::{CALLS, complaint, first_life, sets};

fn is_found(bug: Option<&'static str>) -> bool {
    planted::choose(bug);
    let (disk, written) = first_life(&CALLS, false);
    planted::choose(None);
    let history = disk.history();
    let mut random = Random(3);
    let mut is_found = false;
    for at in 0..history.points() {
        let point = history.at(at);
        sets(&point, 20, &mut random, |disk| {
            is_found |= complaint(disk, point.told, written).is_some();
        });
    }
    is_found
}

#[test]
fn a_missing_sync_and_an_early_watermark_are_found() {
    assert!(!is_found(None));
    for bug in ["missing sync", "early watermark", "unsynced directory"] {
        assert!(is_found(Some(bug)), "{bug}");
    }
    assert!(!is_found(Some("another")));
}
