//! Planted bugs: the crash test detects each one, and reports nothing without one. One test, because the choice applies
//! to the process.
#![cfg(stilling_planted)]

#[path = "journal/support/mod.rs"]
#[expect(dead_code, reason = "the other tests of the journal need more")]
mod support;

use stilling_ring::planted;
use support::XorShift64;
use support::blocks;
use support::crash::{CALLS, find_violation, first_run, for_each_crash_state, restarted_run};

fn is_found(bug: Option<&'static str>) -> bool {
    planted::choose(bug);
    let runs = [first_run(&CALLS, false), restarted_run(2)];
    planted::choose(None);
    let mut random = XorShift64(3);
    let mut is_found = false;
    for (disk, written) in runs {
        let history = disk.history();
        for at in 0..history.points() {
            let point = history.at(at);
            for_each_crash_state(&point, 20, &mut random, |disk| {
                is_found |= find_violation(disk, point.acknowledged, written).is_some();
            });
        }
    }
    is_found
}

/// Whether a bug is found with payloads in shared blocks and deliveries that refer to written batches.
fn is_found_in_blocks(bug: Option<&'static str>) -> bool {
    planted::choose(bug);
    let is_found = (0..100).any(|seed| blocks::find_violation(seed).is_some());
    planted::choose(None);
    is_found
}

#[test]
fn each_planted_bug_is_found() {
    assert!(!is_found(None));
    for bug in ["missing sync", "early watermark", "unsynced directory", "unsynced parent", "unsynced tail"] {
        assert!(is_found(Some(bug)), "{bug}");
    }
    assert!(!is_found(Some("another")));
    assert!(!is_found_in_blocks(None));
    for bug in ["early reuse", "unbuilt payload"] {
        assert!(is_found_in_blocks(Some(bug)), "{bug}");
    }
}
