//! Snapshots: durable before older ones go, found again, and never taken for something else.

use std::io;

use crate::support::{batch, content, open};
use stilling_journal::disk::simulated::{CrashPoint, DiskFaults, EIO, ENOSPC, SimulatedDisk};
use stilling_journal::limits::SNAPSHOT_SIZE_MAX;
use stilling_journal::{Disk, Journal, JournalAnswer, JournalLimits, Log, Snapshot};
use stilling_ring::Wake;

const SEGMENT_SIZE: u64 = 65_536;

fn snapshot(sequence: u64) -> Snapshot {
    let state = (0..5000 + sequence).map(|at| (at ^ sequence) as u8).collect();
    Snapshot { sequence, gate: "auction".to_owned(), state }
}

fn with_records(disk: &SimulatedDisk, count: u64) -> Log<SimulatedDisk> {
    let (mut log, _) = open(disk, SEGMENT_SIZE);
    log.append(&mut [batch(1, log.next(), count, 100)]).expect("nothing fails");
    log
}

fn snapshot_files(disk: &SimulatedDisk) -> Vec<String> {
    let names = disk.files().into_iter().map(|(name, _)| name);
    names.filter(|name| name.ends_with(".snapshot")).collect()
}

/// Row 2.12: the newest snapshot is found again, the older one is removed, and neither is a finding of recovery.
#[test]
fn a_newer_snapshot_replaces_the_older_one() {
    let disk = SimulatedDisk::new();
    let mut log = with_records(&disk, 10);
    assert_eq!(log.find_snapshot("auction").expect("it can be read").usable, None);
    for sequence in [4, 10] {
        log.write_snapshot(&snapshot(sequence)).expect("nothing fails");
        assert_eq!(snapshot_files(&disk), [format!("{sequence:020}.snapshot")]);
    }
    drop(log);
    let (log, recovery) = open(&disk, SEGMENT_SIZE);
    assert!(recovery.findings.is_empty(), "{}", recovery.findings);
    assert_eq!(content(&log.source()).records.len(), 10);
    let found = log.find_snapshot("auction").expect("it can be read");
    assert_eq!((found.usable, found.unusable), (Some(snapshot(10)), vec![]));
}

/// Row 2.12: snapshots of another gate, beyond the records, or damaged ones are not used, each with a
/// reason; one that cannot be read is an error.
#[test]
fn an_unusable_snapshot_is_named_with_its_reason() {
    let disk = SimulatedDisk::new();
    let mut log = with_records(&disk, 10);
    log.write_snapshot(&snapshot(5)).expect("nothing fails");
    let (name, bytes) = disk.files().into_iter().find(|(name, _)| name.ends_with(".snapshot")).expect("one");
    let reason = |gate: &str, expected: &str| {
        let found = log.find_snapshot(gate).expect("it can be read");
        assert!(found.unusable.iter().any(|reason| reason.contains(expected)), "{expected}: {found:?}");
        found.usable.map(|snapshot| snapshot.sequence)
    };
    assert_eq!(reason("other", "it is of the gate auction"), None);
    disk.put("00000000000000000007.snapshot", bytes.clone());
    assert_eq!(reason("auction", "the sequence in its header differs from its name"), Some(5));
    disk.put("00000000000000000008.snapshot", bytes[..5000].to_vec());
    assert_eq!(reason("auction", "0008.snapshot: it is cut off"), Some(5));
    disk.put("00000000000000000009.snapshot", b"noise".repeat(1000));
    assert_eq!(reason("auction", "0009.snapshot: its header is damaged"), Some(5));
    disk.change(&name, |bytes| bytes[4096] ^= 1);
    assert_eq!(reason("auction", "its state is damaged"), None);

    // The stream has lost the records that the snapshot includes.
    let short = SimulatedDisk::new();
    let mut log = with_records(&short, 10);
    log.write_snapshot(&snapshot(10)).expect("nothing fails");
    drop(log);
    let segment = short.files().into_iter().find(|(name, _)| name.ends_with(".segment")).expect("one").0;
    short.change(&segment, |bytes| bytes[4096..].fill(0));
    let (log, _) = open(&short, SEGMENT_SIZE);
    let found = log.find_snapshot("auction").expect("it can be read");
    assert!(found.usable.is_none() && found.unusable[0].contains("the stream ends before it"), "{found:?}");

    short.fail(DiskFaults { reads: Some((0, 1, EIO)), ..DiskFaults::default() });
    let error = log.find_snapshot("auction").expect_err("it cannot be read");
    assert!(error.to_string().contains(".snapshot"), "{error}");
}

/// A gate's state is never that of records that the stream has lost, whatever has their sequences now.
#[test]
fn a_snapshot_ahead_of_the_stream_is_removed_before_its_sequence_is_used_again() {
    let disk = SimulatedDisk::new();
    let mut log = with_records(&disk, 10);
    log.write_snapshot(&snapshot(10)).expect("nothing fails");
    drop(log);
    let segment = disk.files().into_iter().find(|(name, _)| name.ends_with(".segment")).expect("one").0;
    disk.change(&segment, |bytes| bytes[4096..].fill(0));
    let log = with_records(&disk, 20);
    assert!(snapshot_files(&disk).is_empty());
    drop(log);
    let (log, _) = open(&disk, SEGMENT_SIZE);
    assert!(log.next() > 10);
    assert_eq!(log.find_snapshot("auction").expect("it can be read").usable, None);
}

/// Invariant 5 for snapshots: whatever a crash leaves of a second one, a usable one is found once the first was
/// reported as durable, and it is one of the two, unchanged.
#[test]
fn a_crash_leaves_the_older_snapshot_or_the_newer_one() {
    let disk = SimulatedDisk::recording();
    let mut log = with_records(&disk, 10);
    log.write_snapshot(&snapshot(4)).expect("nothing fails");
    let from = disk.recorded();
    log.write_snapshot(&snapshot(10)).expect("nothing fails");
    let until = disk.recorded();
    drop(log);
    let history = disk.history();
    let (mut older, mut newer) = (0, 0);
    for point in from..=history.points().min(until) {
        let crash: CrashPoint = history.at(point);
        for choice in 0..64_u64 {
            let crashed = crash.disk(|change| (choice >> (change % 6)) & 1 == 1);
            let (log, _) = open(&crashed, SEGMENT_SIZE);
            let found = log.find_snapshot("auction").expect("it can be read");
            match found.usable {
                Some(found) if found == snapshot(4) => older += 1,
                Some(found) if found == snapshot(10) => newer += 1,
                other => panic!("point {point}, choice {choice}: {other:?}"),
            }
        }
    }
    assert!(older > 0 && newer > 0, "{older} {newer}");
}

/// Invariant 5 for snapshots: one that a kill has left in the page cache is durable once it was found, since retention
/// then removes the records that it includes.
#[test]
fn a_found_snapshot_is_durable() {
    let disk = SimulatedDisk::recording();
    let mut log = with_records(&disk, 10);
    let from = disk.recorded();
    log.write_snapshot(&snapshot(10)).expect("nothing fails");
    drop(log);
    let history = disk.history();
    let mut found_count = 0;
    for point in from..history.points() {
        let killed = history.killed_at(point, usize::MAX);
        let (log, _) = open(&killed, SEGMENT_SIZE);
        let found = log.find_snapshot("auction").expect("it can be read").usable;
        drop(log);
        let history = killed.history();
        let crashed = history.at(history.points() - 1).disk(|_| false);
        let (log, _) = open(&crashed, SEGMENT_SIZE);
        if found.is_some() {
            found_count += 1;
            assert_eq!(log.find_snapshot("auction").expect("it can be read").usable, found, "point {point}");
        }
    }
    assert!(found_count > 1, "{found_count}");
}

/// A snapshot that is there already is not replaced: a crash before the new file is durable would leave none.
#[test]
fn the_same_snapshot_is_not_written_again() {
    let disk = SimulatedDisk::recording();
    let mut log = with_records(&disk, 10);
    log.write_snapshot(&snapshot(10)).expect("nothing fails");
    let until = disk.recorded();
    log.write_snapshot(&snapshot(10)).expect("nothing fails");
    assert_eq!(disk.recorded(), until);
    // Another state replaces it.
    log.write_snapshot(&Snapshot { state: vec![7], ..snapshot(10) }).expect("nothing fails");
    assert!(disk.recorded() > until);
}

/// A snapshot that cannot be written leaves the older one, and the stream goes on.
#[test]
fn a_failed_snapshot_costs_nothing_else() {
    let disk = SimulatedDisk::new();
    let mut log = with_records(&disk, 10);
    log.write_snapshot(&snapshot(4)).expect("nothing fails");
    for faults in [
        DiskFaults { create: Some(EIO), ..DiskFaults::default() },
        DiskFaults { writes: Some((0, EIO)), ..DiskFaults::default() },
        DiskFaults { sync: Some(EIO), ..DiskFaults::default() },
    ] {
        disk.fail(faults);
        let error = log.write_snapshot(&snapshot(10)).expect_err("the disk fails");
        assert!(error.to_string().contains("stream events: writing"), "{error}");
        disk.fail(DiskFaults::default());
        let found = log.find_snapshot("auction").expect("it can be read");
        assert!(found.usable == Some(snapshot(4)), "{found:?}");
    }
    for refused in [snapshot(11), Snapshot { state: vec![0; SNAPSHOT_SIZE_MAX + 1], ..snapshot(10) }] {
        let error = log.write_snapshot(&refused).expect_err("it is not possible");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
    log.append(&mut [batch(1, log.next(), 1, 100)]).expect("the stream goes on");
    log.write_snapshot(&snapshot(11)).expect("nothing fails");
    assert_eq!(snapshot_files(&disk).len(), 1);
}

/// The journal's thread writes a snapshot after the records that it includes, also those queued with it, and at the
/// end; one per stream at a time.
#[test]
fn the_journal_writes_a_snapshot_after_its_records() {
    let disk = SimulatedDisk::new();
    let (log, _) = open(&disk, SEGMENT_SIZE);
    let wake = std::sync::Arc::new(Wake::new(|| ()));
    let limits = JournalLimits { batches: 2, batch_size: 8192 };
    let (mut journal, mut worker) =
        Journal::stepped(vec![log], limits, &wake, std::time::Instant::now()).expect("one stream");
    let append = |journal: &mut Journal, first: u64| {
        let mut batch = journal.batch().expect("one is free");
        batch.begin(first, 1);
        batch.push(&stilling_journal::Record::new(b"a", b"x")).expect("there is room");
        journal.append(0, batch).expect("it came from here");
    };
    append(&mut journal, 1);
    assert!(journal.write_snapshot(0, snapshot(1)) && !journal.write_snapshot(0, snapshot(1)));
    assert!(!journal.write_snapshot(1, snapshot(1)), "there is no such stream");
    journal.publish();
    disk.fail(DiskFaults { create: Some(ENOSPC), ..DiskFaults::default() });
    let mut now = std::time::Instant::now();
    worker.turn(now);
    assert!(snapshot_files(&disk).is_empty(), "its record is not durable");
    disk.fail(DiskFaults::default());
    now += std::time::Duration::from_secs(2);
    worker.turn(now);
    let mut answers = Vec::new();
    while let Some(answer) = journal.next_answer() {
        answers.push(answer);
    }
    let written = |answer: &JournalAnswer| {
        matches!(answer, JournalAnswer::SnapshotWritten { stream: 0, sequence: 1, outcome: Ok(()) })
    };
    assert_eq!(answers.iter().filter(|answer| written(answer)).count(), 1, "{answers:?}");
    append(&mut journal, 2);
    assert!(journal.write_snapshot(0, snapshot(2)));
    journal.publish();
    drop(journal);
    while worker.turn(now) {}
    assert!(worker.close().is_empty());
    let (log, _) = open(&disk, SEGMENT_SIZE);
    assert_eq!(log.find_snapshot("auction").expect("it can be read").usable, Some(snapshot(2)));
    assert!(disk.list().is_ok_and(|files| files.len() == 2), "a segment and a snapshot");
}
