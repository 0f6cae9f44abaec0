//! Power failures at every point of a writer's run, with every set of unsynced sectors: no acknowledged record is lost,
//! no cut-off record returns, the order holds.

use crate::support::crash::{
    CALLS, SEGMENT_SIZE, append_calls, find_violation, find_violation_after_restart, first_run,
    for_each_crash_state, restarted_run,
};
use crate::support::{XorShift64, batch, open};
use stilling_journal::disk::simulated::{DiskFaults, EIO, SimulatedDisk};

/// "≥ 100,000 states, 0 acknowledged lost, 0 seen-but-lost". Readers see exactly what the watermark covers, so one
/// check covers both.
#[test]
fn a_crash_at_any_point_loses_nothing_reported_durable() {
    let mut states = 0;
    let mut random = XorShift64(7);
    for is_ended in [false, true] {
        let (disk, written) = first_run(&CALLS, is_ended);
        let history = disk.history();
        let points: Vec<_> = (0..history.points()).map(|at| history.at(at)).collect();
        // One write of sixteen sectors is tried in all its 65,536 sets.
        let whole = points.iter().position(|point| point.pending() == 16).expect("a write of two blocks");
        for (at, point) in points.iter().enumerate() {
            let sample = if at == whole && !is_ended { u64::MAX } else { 2000 };
            for_each_crash_state(point, sample, &mut random, |disk| {
                states += 1;
                if let Some(violation) = find_violation(disk, point.acknowledged, written) {
                    panic!(
                        "point {at}, state {states}: {violation}\n{:?}",
                        history.events()[at.saturating_sub(1)].0
                    );
                }
            });
        }
        assert_eq!(points.last().expect("there are points").acknowledged, written);
    }
    assert!(states >= 100_000, "{states} states");
}

/// Records cut off by a first crash do not return after a second run, wherever that run ends in a crash, too.
#[test]
fn what_was_cut_off_never_comes_back() {
    let (disk, _) = first_run(&CALLS[..7], false);
    let history = disk.history();
    let mut random = XorShift64(11);
    let mut states = 0;
    for at in 0..history.points() {
        let point = history.at(at);
        for _ in 0..6 {
            let share = random.below(17);
            let disk = point.disk(|_| random.below(16) < share);
            let begin = disk.start_recording();
            let (mut log, recovery) = open(&disk, SEGMENT_SIZE);
            let source = log.source();
            disk.observe_watermark(move || source.durable());
            // Batches as long as those of the first run, so that cut-off batches would fit exactly behind them.
            append_calls(&mut log, 2, &[&[(1, 10)], &[(2, 4000), (3, 40)]]);
            drop(log);
            let second = disk.history();
            let runs = (recovery.last, recovery.next);
            for at_second in begin..second.points() {
                let point = second.at(at_second);
                for_each_crash_state(&point, 12, &mut random, |disk| {
                    states += 1;
                    if let Some(violation) = find_violation_after_restart(disk, point.acknowledged, runs) {
                        panic!("points {at} and {at_second}, state {states}: {violation}");
                    }
                });
            }
        }
    }
    assert!(states > 10_000, "{states} states");
}

/// Invariant 5: records that a process finds in the page cache are made durable before others are appended, also after
/// a failed sync.
#[test]
fn what_a_second_process_reads_is_made_durable_first() {
    let mut random = XorShift64(13);
    let mut found = 0;
    for at in 0..CALLS.len() {
        let (disk, written) = restarted_run(at);
        let history = disk.history();
        for point in (0..history.points()).map(|at| history.at(at)) {
            found += u64::from(point.acknowledged == written);
            for_each_crash_state(&point, 200, &mut random, |disk| {
                if let Some(violation) = find_violation(disk, point.acknowledged, written) {
                    panic!("after {at} calls: {violation}");
                }
            });
        }
    }
    assert!(found >= 5, "unsynced bytes were found and reported {found} times");
}

/// The same when the first process continued in a new segment.
#[test]
fn a_write_that_is_made_again_elsewhere_survives_a_crash_at_any_point() {
    let mut random = XorShift64(17);
    for is_sync in [false, true] {
        for at in 1..CALLS.len() {
            let disk = SimulatedDisk::recording();
            let (mut log, _) = open(&disk, SEGMENT_SIZE);
            let source = log.source();
            disk.observe_watermark(move || source.durable());
            append_calls(&mut log, 1, &CALLS[..at]);
            let fault = Some((0, EIO));
            disk.fail(match is_sync {
                true => DiskFaults { syncs: fault, writes_max: Some(1), ..DiskFaults::default() },
                false => DiskFaults { writes: fault, writes_max: Some(1), ..DiskFaults::default() },
            });
            let mut next = [batch(1, log.next(), 1, 300)];
            if log.append(&mut next).is_err() {
                continue;
            }
            disk.fail(DiskFaults::default());
            append_calls(&mut log, 1, &CALLS[at..]);
            let written = log.next() - 1;
            drop(log);
            let history = disk.history();
            for point in (0..history.points()).map(|at| history.at(at)) {
                for_each_crash_state(&point, 30, &mut random, |disk| {
                    if let Some(violation) = find_violation(disk, point.acknowledged, written) {
                        panic!("after {at} calls: {violation}");
                    }
                });
            }
        }
    }
}
