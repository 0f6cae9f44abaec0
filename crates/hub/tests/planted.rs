//! The simulation finds each planted bug within a thousand seeds, and reports nothing without one. One test, because
//! planting affects the whole process.
#![cfg(stilling_planted)]

mod fixture;

use fixture::bid_simulation::simulate_bids;
use fixture::crash_simulation::simulate_runs;
use fixture::feed_simulation::simulate_feeds;
use fixture::slow_simulation::simulate_slow_subscribers;
use stilling_ring::planted;

fn is_found(bug: Option<&'static str>, is_wrong: impl FnMut(u64) -> bool) -> bool {
    planted::choose(bug);
    let is_found = (0..1000).any(is_wrong);
    planted::choose(None);
    is_found
}

fn are_runs_wrong(seed: u64) -> bool {
    simulate_runs(seed).is_err()
}

fn are_bids_wrong(seed: u64) -> bool {
    simulate_bids(seed).is_err()
}

fn are_feeds_wrong(seed: u64) -> bool {
    simulate_feeds(seed).is_err()
}

fn are_slow_subscribers_wrong(seed: u64) -> bool {
    simulate_slow_subscribers(seed).is_err()
}

#[test]
fn planted_bugs_are_found() {
    assert!(!is_found(None, are_runs_wrong) && !is_found(None, are_bids_wrong));
    let syncs = ["missing sync", "early watermark", "double acknowledgement", "early visibility"];
    let others = ["overtaken publication", "dropped delivery", "early subscription", "early unsubscription"];
    for bug in syncs.into_iter().chain(others) {
        assert!(is_found(Some(bug), are_runs_wrong), "{bug}");
    }
    assert!(!is_found(None, are_feeds_wrong));
    for bug in ["overtaken feed", "missing sid"] {
        assert!(is_found(Some(bug), are_feeds_wrong), "{bug}");
    }
    assert!(!is_found(None, are_slow_subscribers_wrong));
    for bug in ["resumed late", "feed position ignored", "early live records", "early feed"] {
        assert!(is_found(Some(bug), are_slow_subscribers_wrong), "{bug}");
    }
    for bug in ["early rejection", "rejected id remembered"] {
        assert!(is_found(Some(bug), are_bids_wrong), "{bug}");
    }
}
