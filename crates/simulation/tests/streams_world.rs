//! The world of disk streams over many seeds: nothing acknowledged is lost, whatever happens to server and disks.

use stilling_simulation::streams::{
    ClientTotals, ScenarioBias, StreamsEventCounts, StreamsOptions, StreamsReport, run,
};

/// Worlds of each bias per test run.
const SEEDS: u64 = 150;

fn report(seed: u64, bias: ScenarioBias) -> StreamsReport {
    let world = if bias == ScenarioBias::Mixed { "streams" } else { "sequential" };
    let replay = format!("replay: cargo xtask sim --world {world} --seed {seed} --verbose");
    let options = StreamsOptions { bias, verbose: false };
    run(seed, &options).unwrap_or_else(|failure| panic!("{failure}\n{replay}"))
}

/// Sums over all worlds; each event count with its name.
fn sums(bias: ScenarioBias) -> (ClientTotals, Vec<(&'static str, u64)>) {
    let (mut totals, mut sums) = (ClientTotals::default(), Vec::new());
    for seed in 0..SEEDS {
        let report = report(seed, bias);
        totals.acknowledged += report.totals.acknowledged;
        totals.duplicates += report.totals.duplicates;
        totals.refused += report.totals.refused;
        totals.unknown += report.totals.unknown;
        totals.seen += report.totals.seen;
        totals.followed += report.totals.followed;
        totals.skipped += report.totals.skipped;
        for (name, count) in named_counts(&report.events) {
            match sums.iter_mut().find(|(other, _)| *other == name) {
                Some((_, sum)) => *sum += count,
                None => sums.push((name, count)),
            }
        }
    }
    (totals, sums)
}

fn named_counts(events: &StreamsEventCounts) -> [(&'static str, u64); 19] {
    [
        ("power failures", events.power),
        ("kills", events.kills),
        ("restarts", events.restarts),
        ("cut while draining", events.crashed_draining),
        ("cut while sealing", events.crashed_sealing),
        ("cut after opening", events.crashed_opened),
        ("restarts of empty streams", events.empty),
        ("failures of disks", events.failures),
        ("full disks", events.full),
        ("short hangs", events.short_hangs),
        ("long hangs", events.long_hangs),
        ("frozen streams", events.frozen),
        ("openings that could not read", events.unread_openings),
        ("openings that could not list", events.unlisted_openings),
        ("removed segments", events.removed_segments),
        ("flipped bytes", events.flipped),
        ("lost records", events.lost),
        ("removals by retention", events.removals),
        ("records", events.records),
    ]
}

/// Rows 0.2, 0.13, 2.6, 2.15: in every world everything acknowledged or received is on disk once, in order and
/// complete, through power failures, kills, restarts and disk faults; over all worlds, all of these happen.
#[test]
fn nothing_acknowledged_or_received_is_lost_under_any_fault() {
    let (totals, sums) = sums(ScenarioBias::Mixed);
    for (name, count) in sums {
        assert!(count > 0, "{name} never occurred in {SEEDS} worlds");
    }
    assert!(totals.acknowledged > 50 * SEEDS, "{totals:?}");
    for count in
        [totals.duplicates, totals.refused, totals.unknown, totals.seen, totals.followed, totals.skipped]
    {
        assert!(count > 0, "{totals:?}");
    }
}

/// Row 4.37: restarts under load lose nothing, also when the old or new server is cut off at one of the steps.
#[test]
fn restarts_under_load_lose_nothing_at_any_interrupted_step() {
    let (totals, sums) = sums(ScenarioBias::Restarts);
    let steps = [
        "restarts",
        "cut while draining",
        "cut while sealing",
        "cut after opening",
        "restarts of empty streams",
    ];
    for (name, count) in sums.into_iter().filter(|(name, _)| steps.contains(name)) {
        assert!(count > 0, "{name} never occurred in {SEEDS} worlds");
    }
    assert!(totals.acknowledged > 50 * SEEDS && totals.duplicates > 0, "{totals:?}");
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let hashes = || {
        let hash = |seed| report(seed, ScenarioBias::Mixed).report.trace_hash;
        (5000..5020).map(hash).collect::<Vec<u64>>()
    };
    let first = hashes();
    assert_eq!(first, hashes());
    let different: std::collections::BTreeSet<&u64> = first.iter().collect();
    assert_eq!(different.len(), first.len());
}
