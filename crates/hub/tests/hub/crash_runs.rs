//! Whole runs of the hub with crashes at any point: see [`crash_simulation`](crate::fixture::crash_simulation).

use crate::fixture::bid_simulation::{BidCounts, simulate_bids};
use crate::fixture::crash_simulation::{RunCounts, simulate_runs};

/// "1,000 seeds of publishers, subscribers, crashes and disk faults with the ledger equation, order and durability as
/// checkers".
#[test]
fn a_thousand_runs_keep_every_invariant() {
    let mut all = RunCounts::default();
    for seed in 0..1000 {
        match simulate_runs(seed) {
            Ok(counts) => all.add(&counts),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    // A check that never occurred proves nothing.
    let RunCounts {
        acknowledged,
        received_records,
        duplicates,
        refused,
        crashes,
        frozen,
        unanswered,
        parked,
        queued,
    } = all;
    for (what, count) in [
        ("acknowledged", acknowledged),
        ("seen", received_records),
        ("duplicates", duplicates),
        ("refused", refused),
        ("crashes", crashes),
        ("frozen", frozen),
        ("unanswered", unanswered),
        ("parked", parked),
        ("queued", queued),
    ] {
        assert!(count > 100, "only {count} {what}");
    }
}

/// See
/// [`bid_simulation`](crate::fixture::bid_simulation).
#[test]
fn a_thousand_runs_of_auctions_keep_every_invariant() {
    let mut sum = BidCounts::default();
    for seed in 0..1000 {
        let counts = simulate_bids(seed).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        sum.acknowledged += counts.acknowledged;
        sum.rejected += counts.rejected;
        sum.repeated += counts.repeated;
        sum.snapshots += counts.snapshots;
        sum.frozen += counts.frozen;
    }
    let BidCounts { acknowledged, rejected, repeated, snapshots, frozen } = sum;
    for count in [acknowledged, rejected, repeated, snapshots, frozen] {
        assert!(count > 100, "{acknowledged} {rejected} {repeated} {snapshots} {frozen}");
    }
}

impl RunCounts {
    fn add(&mut self, other: &RunCounts) {
        self.acknowledged += other.acknowledged;
        self.received_records += other.received_records;
        self.duplicates += other.duplicates;
        self.refused += other.refused;
        self.crashes += other.crashes;
        self.frozen += other.frozen;
        self.unanswered += other.unanswered;
        self.parked += other.parked;
        self.queued += other.queued;
    }
}
