//! Auctions in which every client answers every bid.

use std::time::Duration;

use stilling_bench::broadcast::{self, DeliveryFailure, ThrashPlan, ThrashReport};

use crate::TIMEOUT;
use crate::fake::{BroadcastFault, FakeBroadcastServer};

fn run(fault: BroadcastFault, timeout: Duration) -> ThrashReport {
    let fake = FakeBroadcastServer::start(fault);
    let plan = ThrashPlan { clients: 5, bids: Some(100), timeout, ..ThrashPlan::new(fake.address) };
    broadcast::thrash(&plan).expect("there is a report")
}

/// Rows 2.1 to 2.3: each client answers each bid; every accepted bid reaches every client.
#[test]
fn accepted_bids_reach_all_clients() {
    for fault in [BroadcastFault::Nothing, BroadcastFault::Pieces, BroadcastFault::Ping(30)] {
        let report = run(fault, TIMEOUT);
        assert!(report.is_good(), "{fault:?}: {:?}", report.figures.evidence);
        assert!(report.bids_accepted >= 100, "{report:?}");
        assert_eq!(report.bids_out, 5 * report.bids_accepted, "{report:?}");
        // Four of five clients answer a bid, until the last ones.
        assert!(report.bids_in > 3 * 100 && report.figures.latency.max_us > 0.0, "{report:?}");
        assert!(report.out_peak_per_s > 0 && report.in_peak_per_s > 0);
    }
}

#[test]
fn a_missing_or_repeated_bid_is_a_failure() {
    // The opening is message 0.
    let report = run(BroadcastFault::Dropped(30), TIMEOUT);
    assert_eq!((report.figures.failures_total, report.figures.failed(DeliveryFailure::Undelivered)), (1, 1));
    let report = run(BroadcastFault::Repeated(30), TIMEOUT);
    assert_eq!((report.figures.failures_total, report.figures.failed(DeliveryFailure::Repeated)), (1, 1));
}

/// Row 2.19: the price must rise.
#[test]
fn a_bid_that_does_not_beat_the_price_must_not_be_delivered() {
    let report = run(BroadcastFault::EqualBid(30), TIMEOUT);
    assert_eq!(report.figures.failed(DeliveryFailure::Repeated), 5, "{:?}", report.figures.evidence);
    assert_eq!(report.figures.failures_total, 5, "{:?}", report.figures.evidence);
}
