//! The echo world over many seeds: tests the simulator itself.

use stilling_simulation::echo::run;
use stilling_simulation::{FaultCounts, FaultRates, NetworkFault, SplitMix64};

/// Row 4.34: whatever the network does, every echo is exact and every connection ends.
#[test]
fn echoes_are_exact_under_every_fault() {
    let mut seen = FaultCounts::default();
    for seed in 0..300 {
        let faults = FaultRates::draw(&mut SplitMix64::new(seed ^ 0xfa17));
        seen.add(&run(seed, faults).unwrap_or_else(|failure| panic!("{failure}")).faults);
    }
    for fault in NetworkFault::ALL {
        let absent = matches!(
            fault,
            NetworkFault::DatagramLost | NetworkFault::DatagramTwice | NetworkFault::ConnectFails
        );
        assert!(absent || seen.of(fault) > 0, "{fault:?} never struck");
    }
}

/// Row 4.34: each fault alone, and often.
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
    let hash = |seed| run(seed, FaultRates::draw(&mut SplitMix64::new(seed))).expect("runs").trace_hash;
    let first: Vec<u64> = (0..20).map(hash).collect();
    assert_eq!(first, (0..20).map(hash).collect::<Vec<u64>>());
    let different: std::collections::BTreeSet<&u64> = first.iter().collect();
    assert_eq!(different.len(), first.len());
}
