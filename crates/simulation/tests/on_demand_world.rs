//! The world of on-demand connections over many seeds.

use stilling_simulation::on_demand::{OnDemandReport, run};
use stilling_simulation::{FaultRates, NetworkFault, SplitMix64};

fn drawn(seed: u64) -> OnDemandReport {
    run(seed, FaultRates::draw(&mut SplitMix64::new(seed ^ 0xfa17)))
        .unwrap_or_else(|failure| panic!("{failure}"))
}

/// Row 3.32: every requested call comes once, no other does, and nothing is lost, whatever the network does.
#[test]
fn requested_calls_come_under_every_fault() {
    let (mut readable, mut writable, mut requested_again, mut moved, mut listener_moved) = (0, 0, 0, 0, 0);
    for seed in 0..500 {
        let report = drawn(seed);
        readable += report.readable;
        writable += report.writable;
        requested_again += report.requested_again;
        moved += report.moved;
        listener_moved += report.listener_moved;
    }
    let counts = [readable, writable, requested_again, moved, listener_moved];
    assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
}

/// Row 3.32: each fault alone, and often.
#[test]
fn requested_calls_come_when_one_fault_strikes_half_the_time() {
    for fault in NetworkFault::ALL {
        for seed in 0..10 {
            let faults = FaultRates::NONE.with(fault, 500);
            run(seed, faults).unwrap_or_else(|failure| panic!("{fault:?}: {failure}"));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let hash = |seed| drawn(seed).report.expect("it has ended").trace_hash;
    let first: Vec<u64> = (0..20).map(hash).collect();
    assert_eq!(first, (0..20).map(hash).collect::<Vec<u64>>());
    let different: std::collections::BTreeSet<&u64> = first.iter().collect();
    assert_eq!(different.len(), first.len());
}
