//! Power failures at every point of a history, with every set of sectors that may have reached the disk.

use stilling_journal::disk::simulated::{CrashPoint, DiskFaults, EIO, SimulatedDisk};
use stilling_journal::{GapCause, Log};

use super::{XorShift64, batch, content, open, payload};

/// Largest number of pending changes of which all sets are tried.
const EXHAUSTIVE_MAX: u32 = 16;
/// Bytes of a segment: a header and seven blocks.
pub(crate) const SEGMENT_SIZE: u64 = 32_768;

/// The batches of one call: for each its number of records and their size.
pub(crate) type AppendCall<'a> = &'a [(u64, usize)];

/// Writes of one to five blocks, alone and several at a time, over the ends of segments.
pub(crate) const CALLS: [AppendCall<'static>; 10] = [
    &[(2, 100)],
    &[(1, 5000)],
    &[(3, 50), (2, 200), (1, 1)],
    &[(1, 10)],
    &[(2, 4000), (3, 40)],
    &[(1, 300)],
    &[(1, 2000), (1, 2000), (1, 2000), (1, 2000)],
    &[(4, 900)],
    &[(1, 12_000)],
    &[(2, 20), (1, 30)],
];

/// Appends these calls. All content is a function of run and sequence.
pub(crate) fn append_calls(log: &mut Log<SimulatedDisk>, run: u64, calls: &[AppendCall<'_>]) {
    for call in calls {
        let mut next = log.next();
        let mut batches: Vec<_> = call
            .iter()
            .map(|&(count, size)| {
                let batch = batch(run, next, count, size);
                next = batch.next();
                batch
            })
            .collect();
        log.append(&mut batches).expect("the disk works");
    }
}

/// A disk that has recorded one run from the beginning, and the number of records written.
pub(crate) fn first_run(calls: &[AppendCall<'_>], is_ended: bool) -> (SimulatedDisk, u64) {
    let disk = SimulatedDisk::recording();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    let source = log.source();
    disk.observe_watermark(move || source.durable());
    append_calls(&mut log, 1, calls);
    let written = log.next() - 1;
    if is_ended {
        log.close().expect("the disk works");
    }
    (disk, written)
}

/// A disk that has recorded a process that failed to sync write `at`, followed by a second process without a power
/// failure in between: it finds the bytes of the first one in the page cache. Returns the number of records written.
pub(crate) fn restarted_run(at: usize) -> (SimulatedDisk, u64) {
    let disk = SimulatedDisk::recording();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    let source = log.source();
    disk.observe_watermark(move || source.durable());
    append_calls(&mut log, 1, &CALLS[..at]);
    disk.fail(DiskFaults { syncs: Some((0, EIO)), ..DiskFaults::default() });
    let next = log.next();
    let mut batches = [batch(1, next, 2, 700), batch(1, next + 2, 1, 3000)];
    log.append(&mut batches).expect_err("the disk fails");
    drop(log);
    disk.fail(DiskFaults::default());
    let (log, _) = open(&disk, SEGMENT_SIZE);
    // A retried message would be acknowledged as stored.
    let source = log.source();
    disk.observe_watermark(move || source.durable());
    (disk, next + 2)
}

/// Calls `state` with the sets of pending changes at one point: all if they are few, else the edge cases and `sample`
/// others.
pub(crate) fn for_each_crash_state(
    point: &CrashPoint,
    sample: u64,
    random: &mut XorShift64,
    mut state: impl FnMut(&SimulatedDisk),
) {
    let pending = point.pending();
    if pending <= EXHAUSTIVE_MAX as usize && (pending <= 8 || sample == u64::MAX) {
        for set in 0..1_u32 << pending {
            state(&point.disk(|at| set >> at & 1 == 1));
        }
        return;
    }
    for edge in 0..=pending {
        state(&point.disk(|at| at < edge));
        state(&point.disk(|at| at >= edge));
        state(&point.disk(|at| at == edge));
        state(&point.disk(|at| at != edge));
    }
    for _ in 0..sample.min(2000) {
        // From few changes to nearly all.
        let share = random.below(15) + 1;
        state(&point.disk(|_| random.below(16) < share));
    }
}

/// A violation in the recovery from a crash of the first run, if any.
pub(crate) fn find_violation(disk: &SimulatedDisk, acknowledged: u64, written: u64) -> Option<String> {
    let (log, recovery) = open(disk, SEGMENT_SIZE);
    let read = content(&log.source());
    if let Some(loss) = recovery.findings.entries.iter().find(|finding| finding.is_loss()) {
        return Some(format!("a crash is reported as damage: {loss}"));
    }
    // The cut-off write may follow the valid content.
    let torn = (recovery.last + 1, recovery.next - 1, GapCause::Torn);
    if let Some(gap) = read.gaps.iter().find(|gap| **gap != torn) {
        return Some(format!("{gap:?} among the valid records"));
    }
    let last = read.records.len() as u64;
    if last < acknowledged || last > written || recovery.last != last || recovery.next <= last {
        return Some(format!("{last} records, {acknowledged} acknowledged, {written} written: {recovery:?}"));
    }
    for (at, (sequence, bytes)) in read.records.iter().enumerate() {
        let size = bytes.len();
        if *sequence != at as u64 + 1 || *bytes != payload(1, *sequence, size) {
            return Some(format!("record {at} is {sequence}, not what was written"));
        }
    }
    None
}

/// A violation after a second run that continued from `first_last` and ended in a crash, if any: records cut off the
/// first time must not exist.
pub(crate) fn find_violation_after_restart(
    disk: &SimulatedDisk,
    acknowledged: u64,
    (first_last, began): (u64, u64),
) -> Option<String> {
    let (log, recovery) = open(disk, SEGMENT_SIZE);
    let read = content(&log.source());
    if let Some(loss) = recovery.findings.entries.iter().find(|finding| finding.is_loss()) {
        return Some(format!("a crash is reported as damage: {loss}"));
    }
    let mut expected = 1;
    for (sequence, bytes) in &read.records {
        if expected == first_last + 1 {
            expected = began;
        }
        let run = if *sequence <= first_last { 1 } else { 2 };
        if *sequence != expected || *bytes != payload(run, *sequence, bytes.len()) {
            return Some(format!("record {sequence} is there where {expected} was written"));
        }
        expected += 1;
    }
    let torn = [(first_last + 1, began), (recovery.last + 1, recovery.next)];
    let torn = torn.map(|(first, next)| (first, next - 1, GapCause::Torn));
    let is_torn_gap = |gap: &_| torn.contains(gap);
    if !read.gaps.iter().all(is_torn_gap) || expected <= acknowledged {
        return Some(format!("{acknowledged} acknowledged, records end before {expected}; {:?}", read.gaps));
    }
    None
}
