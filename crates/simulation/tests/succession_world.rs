//! Hot restarts over every case of a matrix: nothing acknowledged is lost, and every publisher gets its answers.

use std::collections::BTreeMap;

use stilling_simulation::streams::succession::{SuccessionCase, SuccessionReport, run};

fn report(seed: u64) -> SuccessionReport {
    run(seed, false).unwrap_or_else(|failure| {
        panic!("{failure}\nreplay: cargo xtask sim --world restarts --seed {seed} --verbose")
    })
}

/// Row 4.37: with predecessor and successor at the same time, whichever is killed at whichever step and whatever the
/// disks do, everything acknowledged is stored once, and every publication completes.
#[test]
fn hot_restarts_lose_nothing_for_any_kill_and_any_disk_fault() {
    let mut killed: BTreeMap<_, u64> = BTreeMap::new();
    let (mut taken_over, mut took_over_after_end, mut released, mut restarts, mut frozen, mut unopened) =
        (0, 0, 0, 0, 0, 0);
    let (mut duplicates, mut refused, mut records) = (0, 0, 0);
    for seed in 0..SuccessionCase::COUNT {
        let SuccessionReport { case, totals, events, .. } = report(seed);
        taken_over += events.taken_over;
        took_over_after_end += events.took_over_after_end;
        released += events.released;
        restarts += events.restarts;
        frozen += events.frozen;
        unopened += events.unopened;
        duplicates += totals.duplicates;
        refused += totals.refused;
        records += events.records;
        if let Some(kill) = case.kill {
            *killed.entry(kill).or_default() += events.killed;
        }
    }
    assert_eq!(killed.len(), 10);
    for (kill, count) in killed {
        assert!(count > 0, "{kill:?} never occurred");
    }
    for (name, count) in [
        ("taken over", taken_over),
        ("taken over after the end", took_over_after_end),
        ("released", released),
        ("restarts", restarts),
        ("frozen streams", frozen),
        ("restarts with a full disk", unopened),
        ("duplicates", duplicates),
        ("refusals", refused),
        ("records", records),
    ] {
        assert!(count > 0, "{name}: never in {} worlds", SuccessionCase::COUNT);
    }
}

#[test]
fn the_same_seed_gives_the_same_world() {
    for seed in 1000..1010 {
        assert_eq!(report(seed).report, report(seed).report);
    }
}
