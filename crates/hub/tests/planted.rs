//! The simulation finds each planted bug within a thousand seeds, and reports nothing without one. One test, because
//! planting affects the whole process.
#![cfg(stilling_planted)]

mod fixture;

use fixture::crash_simulation::simulate_runs;
use stilling_ring::planted;

fn is_found(bug: Option<&'static str>) -> bool {
    planted::choose(bug);
    let is_found = (0..1000).any(|seed| simulate_runs(seed).is_err());
    planted::choose(None);
    is_found
}

#[test]
fn planted_bugs_are_found() {
    assert!(!is_found(None));
    let syncs = ["missing sync", "early watermark", "double acknowledgement", "early visibility"];
    let others = ["overtaken publication", "dropped delivery", "early subscription", "early unsubscription"];
    for bug in syncs.into_iter().chain(others) {
        assert!(is_found(Some(bug)), "{bug}");
    }
}
