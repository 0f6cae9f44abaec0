//! Bytes that the system cannot read are neither blank nor torn nor damaged: opening fails, readers retry, and nothing
//! is cut off.

use crate::support::{LogContent, batch, content, open};
use stilling_journal::disk::simulated::{DiskFaults, EIO, SimulatedDisk};
use stilling_journal::inspect::Inspection;
use stilling_journal::{
    Disk, Finding, Gap, GapCause, Log, LogConfig, LogSource, OpenError, ReadOutcome, ReadRequest, StartAt,
    read_chunk,
};

const SEGMENT_SIZE: u64 = 65_536;
/// More than any of these tests reads.
const READS_MAX: u32 = 40;

/// A stream of several segments that was not closed, and its content.
fn written() -> (SimulatedDisk, LogContent) {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    for size in [100, 5000, 20_000, 3000].repeat(6) {
        let batch = batch(1, log.next(), 2, size);
        log.append(&mut [batch]).expect("nothing fails");
    }
    let content = content(&log.source());
    (disk, content)
}

/// Fails two reads in a row, since a failed long read is retried as a short one.
fn failing(disk: &SimulatedDisk, after: u32) {
    disk.fail(DiskFaults { reads: Some((after, 2, EIO)), ..DiskFaults::default() });
}

fn copy(disk: &SimulatedDisk) -> SimulatedDisk {
    SimulatedDisk::with_files(disk.files())
}

/// For each failing read of an opening: it returns the error, changes nothing, and the next opening finds everything.
#[test]
fn an_opening_that_cannot_read_fails_and_cuts_nothing_off() {
    let (disk, before) = written();
    let mut failed = 0;
    for after in 0..READS_MAX {
        let disk = copy(&disk);
        failing(&disk, after);
        let outcome = Log::open(disk.clone(), "events", LogConfig::default());
        let files = disk.files();
        disk.fail(DiskFaults::default());
        match outcome {
            Ok((mut log, recovery)) => {
                assert!(recovery.findings.is_empty(), "{after}: {}", recovery.findings);
                let next = batch(1, log.next(), 1, 10);
                log.append(&mut [next]).expect("nothing fails");
                assert_eq!(content(&log.source()).records[..before.records.len()], before.records[..]);
            }
            Err(error) => {
                failed += 1;
                assert!(matches!(error, OpenError::Disk { .. } | OpenError::Write { .. }), "{error}");
                let text = error.to_string();
                assert!(text.starts_with("cannot read") && text.contains(".segment at "), "{text}");
                assert_eq!(files, copy(&disk).files());
            }
        }
        let (log, recovery) = open(&disk, SEGMENT_SIZE);
        assert!(recovery.findings.is_empty(), "{after}: {}", recovery.findings);
        assert_eq!(content(&log.source()).records[..before.records.len()], before.records[..]);
    }
    assert!(failed >= 6, "{failed} openings failed");
}

fn read_with_retries<D: Disk>(source: &LogSource<D>) -> (LogContent, u32) {
    let mut reader = source.read_from(StartAt::Sequence(1));
    let (mut content, mut failures) = (LogContent::default(), 0);
    loop {
        match reader.read() {
            Err(error) => {
                assert!(error.to_string().contains(".segment at "), "{error}");
                failures += 1;
            }
            Ok(ReadOutcome::End) => return (content, failures),
            Ok(ReadOutcome::Gap(Gap { first, last, cause })) => content.gaps.push((first, last, cause)),
            Ok(ReadOutcome::Batch(batch)) => {
                content.records.extend(batch.records.map(|(sequence, r)| (sequence, r.payload.to_vec())));
            }
        }
    }
}

/// For each failing read of a reader: the next call continues at the same position, and nothing is skipped.
#[test]
fn a_reader_that_cannot_read_tries_again_and_passes_nothing_over() {
    let (disk, before) = written();
    let (log, _) = open(&disk, SEGMENT_SIZE);
    let mut failed = 0;
    for after in 0..READS_MAX {
        failing(&disk, after);
        let (read, failures) = read_with_retries(&log.source());
        assert_eq!(read, before, "after {after} reads");
        failed += failures;
    }
    assert!(failed >= 6, "{failed} reads failed");
}

/// A chunk distinguishes a failure from a gap and from the end, and has the sequence to continue at.
#[test]
fn a_chunk_that_cannot_be_read_is_neither_a_gap_nor_the_end() {
    let (disk, before) = written();
    let (log, _) = open(&disk, SEGMENT_SIZE);
    let mut failed = 0;
    for after in 0..READS_MAX {
        failing(&disk, after);
        let (mut next, mut sequences) = (1, Vec::new());
        loop {
            let request =
                ReadRequest { reader_id: 1, stream: 0, from: StartAt::Sequence(next), records_max: 7 };
            let chunk = read_chunk(&mut log.source().read_from(request.from), &request);
            assert_eq!(chunk.gap, None);
            sequences.extend((0..chunk.len()).filter_map(|at| chunk.get(at)).map(|record| record.0));
            next = chunk.next;
            if let Some(failure) = &chunk.failure {
                assert!(!chunk.is_end && failure.to_string().starts_with("cannot read"), "{failure}");
                failed += 1;
            } else if chunk.is_end {
                break;
            }
        }
        let all: Vec<_> = before.records.iter().map(|record| record.0).collect();
        assert_eq!(sequences, all, "after {after} reads");
    }
    assert!(failed >= 6, "{failed} chunks failed");
}

/// `verify` reports no success when it could not read.
#[test]
fn what_cannot_be_read_is_not_verified() {
    let (disk, _) = written();
    let mut failed = 0;
    for after in 0..READS_MAX {
        failing(&disk, after);
        let outcome = Inspection::of(disk.clone()).and_then(|inspection| inspection.verify());
        match outcome {
            Ok(verdict) => assert!(verdict.is_intact(), "{verdict}"),
            Err(error) => {
                failed += 1;
                assert!(error.to_string().starts_with("cannot read"), "{error}");
            }
        }
    }
    assert!(failed >= 6, "{failed} looks failed");
}

/// A damaged last batch looks like a write that a crash cut off, but it may have been acknowledged: `verify` reports it
/// also after the stream has continued.
#[test]
fn a_damaged_last_batch_is_reported_after_later_starts_too() {
    let (disk, before) = written();
    let last = before.records.len() as u64;
    let (file, bytes) = disk.files().pop().expect("there are files");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("there are bytes");
    disk.change(&file, |bytes| bytes[end] ^= 1);
    let (log, recovery) = open(&copy(&disk), SEGMENT_SIZE);
    let gaps = content(&log.source()).gaps;
    assert_eq!(gaps, [(last - 1, recovery.next - 1, GapCause::Torn)], "nothing is written behind it yet");
    for run in 0..3 {
        let verdict = Inspection::of(disk.clone()).expect("it can be read").verify().expect("it can be read");
        let is_it = |finding: &&Finding| {
            matches!(finding, Finding::Torn { file: its, sequences, .. }
                if *its == file && sequences.0 == last - 1 && sequences.1 >= last)
        };
        let found = verdict.findings.entries.iter().find(is_it);
        assert!(!verdict.is_intact() && found.is_some(), "run {run}: {verdict}");
        assert!(found.expect("it is there").to_string().contains("may have been acknowledged"), "{verdict}");
        let (mut log, _) = open(&disk, SEGMENT_SIZE);
        let next = batch(2, log.next(), 1, 10);
        log.append(&mut [next]).expect("nothing fails");
        log.close().expect("nothing fails");
    }
    let gaps = content(&open(&disk, SEGMENT_SIZE).0.source()).gaps;
    assert!(matches!(gaps[..], [(first, _, GapCause::Torn)] if first == last - 1), "{gaps:?}");
}

/// A segment of another stream that is newer than all others takes their place and hides them: that is damage.
#[test]
fn a_foreign_segment_that_hides_others_is_damage() {
    let (disk, _) = written();
    let other = SimulatedDisk::new();
    // Another stream of this name: its id is drawn again.
    let _ = other.random_u64();
    let (mut log, _) = open(&other, SEGMENT_SIZE);
    let first = batch(1, 1, 1, 10);
    log.append(&mut [first]).expect("nothing fails");
    for _ in 0..60 {
        let next = batch(1, log.next(), 1, 4000);
        log.append(&mut [next]).expect("nothing fails");
    }
    let (name, bytes) = other.files().pop().expect("there are segments");
    assert!(disk.files().iter().all(|(its, _)| *its < name), "it is the newest one");
    disk.put(&name, bytes);
    let verdict = Inspection::of(disk.clone()).expect("it can be read").verify().expect("it can be read");
    let hidden = |finding: &Finding| matches!(finding, Finding::Hidden { by, .. } if *by == name);
    let count = verdict.findings.entries.iter().filter(|finding| hidden(finding)).count();
    assert_eq!((verdict.is_intact(), count), (false, disk.files().len() - 1), "{verdict}");
    assert!(verdict.to_string().contains("move away"), "{verdict}");
}
