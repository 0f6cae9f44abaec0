//! The migration world over many seeds: connections move between shards, and nothing is lost.

use stilling_simulation::migration::run;
use stilling_simulation::{FaultCounts, FaultRates, NetworkFault, SplitMix64};

/// Rows 4.4, 4.5, 4.34: whatever the network does, every echo is exact and every slot is freed.
#[test]
fn echoes_are_exact_while_their_connections_move() {
    let mut seen = FaultCounts::default();
    let (mut adopted, mut controlled, mut refused, mut carried_bytes, mut ended) = (0, 0, 0, 0, 0);
    for seed in 0..1000 {
        let faults = FaultRates::draw(&mut SplitMix64::new(seed ^ 0xfa17));
        let report = run(seed, faults).unwrap_or_else(|failure| panic!("{failure}"));
        seen.add(&report.report.faults);
        (adopted, controlled) = (adopted + report.adopted, controlled + report.through_control);
        (refused, carried_bytes) = (refused + report.refused, carried_bytes + report.carried_bytes);
        ended += report.ended_detaching;
    }
    for fault in NetworkFault::ALL {
        let absent = matches!(
            fault,
            NetworkFault::DatagramLost | NetworkFault::DatagramTwice | NetworkFault::ConnectFails
        );
        assert!(absent || seen.of(fault) > 0, "{fault:?} never struck");
    }
    assert!(adopted > 10_000 && controlled > 3000, "{adopted} adopted, {controlled} of them by a service");
    assert!(refused > 100, "only {refused} times a shard was full");
    assert!(carried_bytes > 100_000, "only {carried_bytes} bytes were unread when their connection left");
    assert!(ended > 0, "no connection ended otherwise while it was leaving");
}

/// Rows 4.4, 4.5: each fault alone, and often.
#[test]
fn echoes_are_exact_when_one_fault_strikes_half_the_time() {
    for fault in NetworkFault::ALL {
        for seed in 0..10 {
            let faults = FaultRates::NONE.with(fault, 500);
            run(seed, faults).unwrap_or_else(|failure| panic!("{fault:?}: {failure}"));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let hash =
        |seed| run(seed, FaultRates::draw(&mut SplitMix64::new(seed))).expect("runs").report.trace_hash;
    let first: Vec<u64> = (0..20).map(hash).collect();
    assert_eq!(first, (0..20).map(hash).collect::<Vec<u64>>());
    let different: std::collections::BTreeSet<&u64> = first.iter().collect();
    assert_eq!(different.len(), first.len());
}
