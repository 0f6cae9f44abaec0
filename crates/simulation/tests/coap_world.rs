//! The CoAP world over many seeds: requests with an effect are executed once, and each client gets the bytes of its own
//! requests, whatever the network and the processes do.

use stilling_simulation::coap::{CoapReport, CoapTotals, run};
use stilling_simulation::{FaultCounts, NetworkFault};

/// Worlds per test run.
const SEEDS: u64 = 1000;

fn report(seed: u64) -> CoapReport {
    let replay = format!("replay: cargo xtask sim --world coap --seed {seed} --verbose");
    run(seed, false).unwrap_or_else(|failure| panic!("{failure}\n{replay}"))
}

fn named_counts(totals: &CoapTotals) -> [(&'static str, u64); 15] {
    [
        ("answers", totals.answers),
        ("long answers", totals.long_answers),
        ("long requests", totals.long_requests),
        ("failures", totals.failures),
        ("abandoned requests", totals.abandoned),
        ("executions", totals.executions),
        ("duplicates", totals.duplicates),
        ("separate responses", totals.separate_responses),
        ("Echo required", totals.echo_required),
        ("overloads", totals.overloads),
        ("worker failures", totals.worker_failures),
        ("worker timeouts", totals.worker_timeouts),
        ("deaths", totals.deaths),
        ("notifications", totals.notifications),
        ("versions", totals.versions),
    ]
}

/// Rows 1.1, 1.11, 1.12, 1.14, 1.24: requests and answers of many blocks over a network that loses, repeats and reorders
/// datagrams, with processes that die, hang and answer garbage.
#[test]
fn requests_are_executed_once_and_answers_reach_their_clients() {
    let mut sums = named_counts(&CoapTotals::default());
    let mut faults = FaultCounts::default();
    for seed in 0..SEEDS {
        let report = report(seed);
        faults.add(&report.report.faults);
        let counts = named_counts(&report.totals);
        sums.iter_mut().zip(counts).for_each(|((_, sum), (_, count))| *sum += count);
    }
    for (name, sum) in sums {
        assert!(sum > 0, "{name} never occurred in {SEEDS} worlds");
    }
    for fault in [NetworkFault::DatagramLost, NetworkFault::DatagramTwice, NetworkFault::Reset] {
        assert!(faults.of(fault) > 0, "{fault:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let hashes = || (5000..5020).map(|seed| report(seed).report.trace_hash).collect::<Vec<u64>>();
    let first = hashes();
    assert_eq!(first, hashes());
    let different: std::collections::BTreeSet<&u64> = first.iter().collect();
    assert_eq!(different.len(), first.len());
}
