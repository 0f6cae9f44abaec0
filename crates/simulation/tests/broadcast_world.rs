//! The world of broadcast over many seeds: what subscribers receive and what is reported to them as missing is
//! everything that was published, whatever happens to servers and connections.

use stilling_simulation::streams::broadcast::{BroadcastReport, BroadcastTotals, run};

/// Worlds per test run.
const SEEDS: u64 = 1000;

fn report(seed: u64) -> BroadcastReport {
    let replay = format!("replay: cargo xtask sim --world broadcast --seed {seed} --verbose");
    run(seed, false).unwrap_or_else(|failure| panic!("{failure}\n{replay}"))
}

fn named_counts(totals: &BroadcastTotals) -> [(&'static str, u64); 21] {
    [
        ("acknowledged", totals.acknowledged),
        ("duplicates", totals.duplicates),
        ("rejected", totals.rejected),
        ("closes", totals.closes),
        ("refused", totals.refused),
        ("delivered", totals.delivered),
        ("missing", totals.missing),
        ("resets", totals.resets),
        ("skipped", totals.skipped),
        ("damaged", totals.damaged),
        ("lost", totals.lost),
        ("fallen behind", totals.fallen_behind),
        ("connections", totals.connections),
        ("departures", totals.departures),
        ("ends", totals.ends),
        ("power failures", totals.power),
        ("kills", totals.kills),
        ("kills in snapshots", totals.snapshot_kills),
        ("restarts", totals.restarts),
        ("cut while draining", totals.crashed_draining),
        ("removals by retention", totals.removals),
    ]
}

/// Rows 2.15, 2.18, 2.19: slow, lapped, leaving and resuming subscribers over SSE, WebSocket and NATS receive each
/// record of their filters once and in order, or its sequence in a gap; nothing that a crash can take back, and nothing
/// that the gate rejected.
#[test]
fn delivered_and_reported_gaps_are_everything_published() {
    let mut sums = named_counts(&BroadcastTotals::default());
    for seed in 0..SEEDS {
        let counts = named_counts(&report(seed).totals);
        sums.iter_mut().zip(counts).for_each(|((_, sum), (_, count))| *sum += count);
    }
    for (name, sum) in sums {
        assert!(sum > 0, "{name} never occurred in {SEEDS} worlds");
    }
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let hashes = || (5000..5010).map(|seed| report(seed).report.trace_hash).collect::<Vec<u64>>();
    let first = hashes();
    assert_eq!(first, hashes());
    let different: std::collections::BTreeSet<&u64> = first.iter().collect();
    assert_eq!(different.len(), first.len());
}
