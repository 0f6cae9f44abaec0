//! The HTTP world over many seeds: the shipped server with well-behaved and hostile clients on a faulty network.

use std::collections::BTreeMap;

use stilling_engine::CloseReason;
use stilling_simulation::http::{HostileStyle, HttpReport, HttpWorldOptions, WellBehavedStyle, run};
use stilling_simulation::{FaultCounts, NetworkFault};

const SEEDS: u64 = 1200;

fn report(seed: u64) -> HttpReport {
    run(seed, &HttpWorldOptions::default())
        .unwrap_or_else(|failure| panic!("{failure}\nreplay: cargo xtask sim --seed {seed} --verbose"))
}

fn add<K: Ord + Copy, N: Copy + Into<u64>>(sums: &mut BTreeMap<K, u64>, counts: &BTreeMap<K, N>) {
    for (key, count) in counts {
        *sums.entry(*key).or_default() += (*count).into();
    }
}

fn seen<K: Ord + std::fmt::Debug>(what: &str, key: &K, sums: &BTreeMap<K, u64>) {
    let count = sums.get(key).copied().unwrap_or_default();
    assert!(count > 0, "{what} {key:?} never occurred in {SEEDS} worlds");
}

/// Rows 4.3, 4.9, 4.12, 4.16, 4.33, 4.34, 4.35, 4.36, 4.37, 5.5: in every world every well-behaved client gets every
/// response, exact and in order, every connection ends with one reason, and nothing remains. With a hub, every message
/// is in its stream once, in order, at its acknowledged position, and is received before the next PONG. Over all
/// worlds, everything that can happen does.
#[test]
fn every_world_passes_and_every_kind_of_event_occurs() {
    let mut faults = FaultCounts::default();
    let (mut styles, mut hostile_styles, mut closed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let (mut answers, mut retries, mut broken) = (0, 0, 0);
    let (mut messages_received, mut records_audited) = (0, 0);
    for seed in 0..SEEDS {
        let report = report(seed);
        faults.add(&report.report.faults);
        add(&mut styles, &report.styles);
        add(&mut hostile_styles, &report.hostile_styles);
        add(&mut closed, &report.closed);
        (answers, retries) = (answers + report.answers, retries + report.retries);
        broken += report.broken;
        (messages_received, records_audited) =
            (messages_received + report.messages_received, records_audited + report.records_audited);
    }
    for fault in NetworkFault::ALL {
        // This world has no datagrams, and its shards do not connect.
        let absent = matches!(
            fault,
            NetworkFault::DatagramLost | NetworkFault::DatagramTwice | NetworkFault::ConnectFails
        );
        assert_eq!(faults.of(fault) == 0, absent, "{fault:?}");
    }
    WellBehavedStyle::ALL.iter().for_each(|style| seen("style", style, &styles));
    HostileStyle::ALL.iter().for_each(|style| seen("hostile style", style, &hostile_styles));
    for reason in CloseReason::ALL {
        // The shards do not connect, no handler detaches its socket, unread output never fills the store, HTTP is open
        // to all, and there are no custom protocols.
        let absent = matches!(
            reason,
            CloseReason::ConnectFailed
                | CloseReason::Detached
                | CloseReason::OutputFull
                | CloseReason::SlowConsumer
                | CloseReason::Forbidden
                | CloseReason::SessionPanicked
        );
        if absent {
            assert_eq!(closed[&reason], 0, "{reason:?}");
        } else {
            seen("reason", &reason, &closed);
        }
    }
    assert!(answers > 20 * SEEDS, "only {answers} answers");
    assert!(messages_received > 20 * SEEDS, "only {messages_received} messages were received");
    assert!(records_audited > 5 * SEEDS, "only {records_audited} records were read in the end");
    assert!(retries > 0, "no connection of a well-behaved client was ever damaged");
    assert!(broken > 0 && broken * 20 < answers, "{broken} of {answers} answers broke off");
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let hashes = || (5000..5050).map(|seed| report(seed).report.trace_hash).collect::<Vec<u64>>();
    let first = hashes();
    assert_eq!(first, hashes());
    let different: std::collections::BTreeSet<&u64> = first.iter().collect();
    assert_eq!(different.len(), first.len());
}

#[test]
fn recording_the_text_changes_nothing() {
    let report = report(7);
    let verbose = run(7, &HttpWorldOptions { verbose: true }).expect("it ended well without");
    assert_eq!(report.report, verbose.report);
    assert!(report.text.is_empty() && verbose.text.len() > 100);
}
