//! Cutting the power at every point of a history, with every set of sectors that may have reached the disk.

use stilling_journal::disk::simulated::{CrashPoint, Faults, INPUT_OUTPUT, SimulatedDisk};
use stilling_journal::{GapCause, Log};

use super::{Random, batch, content, open, payload};

/// Most sets of one point that are all tried: of sixteen pending things, or of so many as give fewer.
const EXHAUSTIVE_MAX: u32 = 16;
/// Bytes of the segments: a header and seven blocks.
pub(crate) const SEGMENT_SIZE: u64 = 32_768;

/// What a writer hands over with one call: for each batch its number of records and their size.
pub(crate) type Call<'a> = &'a [(u64, usize)];

/// Writes of one to five blocks, alone and several at a time, over the ends of segments.
pub(crate) const CALLS: [Call<'static>; 10] = [
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

/// Appends as told. What is written is all a function of life and sequence.
pub(crate) fn work(log: &mut Log<SimulatedDisk>, life: u64, calls: &[Call<'_>]) {
    for call in calls {
        let mut next = log.next();
        let mut batches: Vec<_> = call
            .iter()
            .map(|&(count, size)| {
                let batch = batch(life, next, count, size);
                next = batch.next();
                batch
            })
            .collect();
        log.append(&mut batches).expect("the disk refuses nothing");
    }
}

/// A disk that has recorded one life from the beginning, and how many records were written.
pub(crate) fn first_life(calls: &[Call<'_>], is_ended: bool) -> (SimulatedDisk, u64) {
    let disk = SimulatedDisk::recording();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    let source = log.source();
    disk.watch(move || source.durable());
    work(&mut log, 1, calls);
    let written = log.next() - 1;
    if is_ended {
        log.close().expect("the disk refuses nothing");
    }
    (disk, written)
}

/// A disk that has recorded a process whose write `at` could not be synced, and a second process that came after it without a
/// power failure in between: it finds what the first one wrote in the page cache. Returns how many records were written.
pub(crate) fn restarted_life(at: usize) -> (SimulatedDisk, u64) {
    let disk = SimulatedDisk::recording();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    let source = log.source();
    disk.watch(move || source.durable());
    work(&mut log, 1, &CALLS[..at]);
    disk.fail(Faults { syncs: Some((0, INPUT_OUTPUT)), ..Faults::default() });
    let next = log.next();
    let mut batches = [batch(1, next, 2, 700), batch(1, next + 2, 1, 3000)];
    log.append(&mut batches).expect_err("the disk refuses");
    drop(log);
    disk.fail(Faults::default());
    let (log, _) = open(&disk, SEGMENT_SIZE);
    // What a message that is sent again would be told: it is stored.
    let source = log.source();
    disk.watch(move || source.durable());
    (disk, next + 2)
}

/// Calls `state` with each set of pending things that is tried at one point: all if they are few, else the telling
/// ones and `sample` others.
pub(crate) fn sets(
    point: &CrashPoint,
    sample: u64,
    random: &mut Random,
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
        // From almost nothing to almost everything.
        let share = random.below(15) + 1;
        state(&point.disk(|_| random.below(16) < share));
    }
}

/// What is wrong with what recovery makes of a crash of the first life, if anything.
pub(crate) fn complaint(disk: &SimulatedDisk, told: u64, written: u64) -> Option<String> {
    let (log, recovery) = open(disk, SEGMENT_SIZE);
    let read = content(&log.source());
    if let Some(loss) = recovery.findings.kept.iter().find(|finding| finding.is_loss()) {
        return Some(format!("a crash is taken for damage: {loss}"));
    }
    // Behind what counts there may be what the crash cut off.
    let torn = (recovery.last + 1, recovery.next - 1, GapCause::Torn);
    if let Some(gap) = read.gaps.iter().find(|gap| **gap != torn) {
        return Some(format!("{gap:?} among what counts"));
    }
    let last = read.records.len() as u64;
    if last < told || last > written || recovery.last != last || recovery.next <= last {
        return Some(format!("{last} records, and {told} had been told, {written} written: {recovery:?}"));
    }
    for (at, (sequence, bytes)) in read.records.iter().enumerate() {
        let size = bytes.len();
        if *sequence != at as u64 + 1 || *bytes != payload(1, *sequence, size) {
            return Some(format!("record {at} is {sequence}, not what was written"));
        }
    }
    None
}

/// What is wrong after a second life that went on from `first_last` and ended in a crash, if anything: nothing that was
/// cut off the first time may be there now.
pub(crate) fn complaint_of_second(
    disk: &SimulatedDisk,
    told: u64,
    (first_last, began): (u64, u64),
) -> Option<String> {
    let (log, recovery) = open(disk, SEGMENT_SIZE);
    let read = content(&log.source());
    if let Some(loss) = recovery.findings.kept.iter().find(|finding| finding.is_loss()) {
        return Some(format!("a crash is taken for damage: {loss}"));
    }
    let mut expected = 1;
    for (sequence, bytes) in &read.records {
        if expected == first_last + 1 {
            expected = began;
        }
        let life = if *sequence <= first_last { 1 } else { 2 };
        if *sequence != expected || *bytes != payload(life, *sequence, bytes.len()) {
            return Some(format!("record {sequence} is there where {expected} was written"));
        }
        expected += 1;
    }
    let torn = [(first_last + 1, began), (recovery.last + 1, recovery.next)];
    let torn = torn.map(|(first, next)| (first, next - 1, GapCause::Torn));
    let is_torn_gap = |gap: &_| torn.contains(gap);
    if !read.gaps.iter().all(is_torn_gap) || expected <= told {
        return Some(format!("up to {told} was told, there is {expected}; {:?}", read.gaps));
    }
    None
}
