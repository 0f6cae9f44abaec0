//! Old records go by bytes, count and age; the newest segment and what a snapshot needs stay.

use crate::support::{batch, content, content_from, open, time_of};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{From, Gap, GapCause, Log, Read, Removed, Retention};

const SEGMENT_SIZE: u64 = 16_384;

/// Ten segments of three batches with two records each: the segment at `n` begins with `6n + 1`.
fn ten_segments() -> (SimulatedDisk, Log<SimulatedDisk>) {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    for _ in 0..30 {
        let batch = batch(1, log.next(), 2, 1000);
        log.append(&mut [batch]).expect("nothing fails");
    }
    assert_eq!(disk.files().len(), 10);
    (disk, log)
}

#[track_caller]
fn check(retention: Retention, now_ns: u64, keep_from: u64, segments_left: usize) {
    let (disk, log) = ten_segments();
    let removed = log.retain(&retention, now_ns, keep_from).expect("the disk refuses nothing");
    assert_eq!(disk.files().len(), segments_left);
    let gone = 10 - segments_left;
    assert_eq!(removed, Removed { segments: gone, bytes: gone as u64 * SEGMENT_SIZE });
    assert_eq!(log.bytes(), segments_left as u64 * SEGMENT_SIZE);
    let first = 6 * gone as u64 + 1;
    assert_eq!(log.source().first(), Some(first));
    let read = content_from(&log.source(), From::Sequence(1));
    let gaps: &[_] = if gone > 0 { &[(1, first - 1, GapCause::Removed)] } else { &[] };
    assert_eq!(read.gaps, gaps);
    assert_eq!(read.records.len() as u64, 61 - first);
    // What is left opens without a complaint.
    drop(log);
    let (log, recovery) = open(&disk, SEGMENT_SIZE);
    assert!(recovery.findings.is_empty() && recovery.first == first, "{}", recovery.findings);
    assert_eq!(content(&log.source()).records.len() as u64, 61 - first);
}

#[test]
fn whole_segments_go_by_bytes_count_and_age() {
    let all = Retention::default();
    let far = u64::MAX;
    check(all, far, far, 10);
    check(Retention { bytes_max: Some(5 * SEGMENT_SIZE), ..all }, 0, far, 5);
    check(Retention { bytes_max: Some(5 * SEGMENT_SIZE - 1), ..all }, 0, far, 4);
    check(Retention { bytes_max: Some(0), ..all }, 0, far, 1);
    check(Retention { records: Some(12), ..all }, 0, far, 2);
    check(Retention { records: Some(13), ..all }, 0, far, 3);
    check(Retention { records: Some(0), ..all }, 0, far, 1);
    // The newest batch of the segment at `n` is of the time of `6n + 5`.
    check(Retention { age_ns: Some(1000), ..all }, time_of(17) + 1000, far, 8);
    check(Retention { age_ns: Some(1000), ..all }, time_of(17) + 1001, far, 7);
    check(Retention { age_ns: Some(0), ..all }, far, far, 1);
}

/// "Retention never trims past the last snapshot."
#[test]
fn nothing_goes_that_a_snapshot_needs() {
    let none = Retention { bytes_max: Some(0), ..Retention::default() };
    check(none, 0, 1, 10);
    check(none, 0, 18, 10 - 2);
    check(none, 0, 19, 10 - 3);
}

#[test]
fn a_reader_in_a_removed_segment_finishes_it() {
    let (_, log) = ten_segments();
    let mut reader = log.source().read_from(From::Sequence(1));
    assert!(matches!(reader.read(), Ok(Read::Batch(_))));
    log.retain(&Retention { records: Some(6), ..Retention::default() }, 0, u64::MAX)
        .expect("nothing refuses");
    for _ in 0..2 {
        assert!(matches!(reader.read(), Ok(Read::Batch(_))));
    }
    assert!(matches!(reader.read(), Ok(Read::Gap(Gap { first: 7, last: 54, cause: GapCause::Removed }))));
    assert!(matches!(reader.read(), Ok(Read::Batch(_))));
}

/// Wherever the power goes during a round of retention, what is left is the newest records without a hole.
#[test]
fn a_crash_during_retention_leaves_no_hole() {
    let (disk, log) = ten_segments();
    drop(log);
    let begin = disk.record();
    let (log, _) = open(&disk, SEGMENT_SIZE);
    log.retain(&Retention { records: Some(24), ..Retention::default() }, 0, u64::MAX)
        .expect("nothing refuses");
    let history = disk.history();
    let mut firsts = Vec::new();
    for at in begin..history.points() {
        let point = history.at(at);
        for set in 0..1_u32 << point.pending() {
            let (log, recovery) = open(&point.disk(|at| set >> at & 1 == 1), SEGMENT_SIZE);
            assert!(recovery.findings.is_empty(), "{}", recovery.findings);
            let read = content(&log.source());
            assert_eq!((read.gaps.len(), recovery.last), (0, 60));
            firsts.push(recovery.first);
        }
    }
    firsts.dedup();
    assert!(firsts.len() > 5 && firsts.last() == Some(&37), "{firsts:?}");
}
