//! A broken disk freezes the stream, a full one makes it wait: acknowledged records stay durable and readable, no
//! others are acknowledged, the process continues.

use std::io::ErrorKind;

use crate::support::{batch, content, open, payload};
use stilling_journal::disk::simulated::{DiskFaults, EDQUOT, EIO, EMFILE, ENOSPC, SimulatedDisk};
use stilling_journal::{AppendError, Log, LogConfig, OpenError};

fn check(faults: DiskFaults, kind: ErrorKind) {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 32_768);
    for _ in 0..3 {
        let batch = batch(1, log.next(), 2, 1000);
        log.append(&mut [batch]).expect("nothing fails yet");
    }
    disk.fail(faults);
    let next = log.next();
    // Enough for another segment.
    let mut batches: Vec<_> = (0..12).map(|at| batch(1, next + at, 1, 4000)).collect();
    let frozen = log.append(&mut batches).expect_err("the disk fails");
    assert_eq!(frozen.kind(), kind, "{frozen}");
    assert!(frozen.to_string().contains("events") && frozen.to_string().contains("segment"), "{frozen}");
    let durable = log.durable();
    // The disk works again, but its content is unknown.
    disk.fail(DiskFaults::default());
    let again = log.append(&mut [batch(1, durable + 1, 1, 10)]).expect_err("it is frozen for good");
    assert_eq!(again.reason(), frozen.reason());
    assert_eq!((log.durable(), log.frozen().is_some()), (durable, true));
    let source = log.source();
    assert_eq!(content(&source).records.len() as u64, durable);
    assert!(log.close().is_err());
    // The next start finds all acknowledged records, and continues after those that may have been written.
    let (mut log, recovery) = open(&disk, 32_768);
    assert!(
        recovery.last >= durable && !recovery.findings.entries.iter().any(stilling_journal::Finding::is_loss)
    );
    assert!(content(&log.source()).records.len() as u64 >= durable);
    let batch = batch(2, log.next(), 1, 10);
    assert!(log.append(&mut [batch]).expect("the disk is well") > durable);
}

/// A failed write is retried in the next segment; if that fails, the state is unknown.
#[test]
fn a_failing_disk_freezes_the_stream_until_it_is_reopened() {
    let kind = std::io::Error::from_raw_os_error(EIO).kind();
    for left in 0..3 {
        check(DiskFaults { writes: Some((left, EIO)), ..DiskFaults::default() }, kind);
        check(DiskFaults { syncs: Some((left, EIO)), ..DiskFaults::default() }, kind);
    }
    check(DiskFaults { create: Some(EIO), ..DiskFaults::default() }, kind);
    check(DiskFaults { sync: Some(EIO), ..DiskFaults::default() }, kind);
}

/// A stream on a full disk: nothing is lost, queued batches are written when there is space.
fn check_waiting(faults: DiskFaults) {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 32_768);
    for _ in 0..3 {
        let batch = batch(1, log.next(), 2, 1000);
        log.append(&mut [batch]).expect("nothing fails yet");
    }
    disk.fail(faults);
    let next = log.next();
    let mut batches: Vec<_> = (0..20).map(|at| batch(1, next + at, 1, 4000)).collect();
    for _ in 0..3 {
        let error = log.append(&mut batches).expect_err("there is no room");
        assert!(matches!(error, AppendError::Waiting { .. }), "{error}");
        assert!(error.reason().contains("stream events") && error.reason().contains("segment"), "{error}");
        let done = batches.iter().take_while(|batch| batch.next() - 1 <= log.durable()).count();
        batches.drain(..done);
        assert!(log.frozen().is_none());
        // Unfinished files are removed.
        let files = disk.files();
        assert!(files.iter().all(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)), "a blank file is left");
        assert_eq!(content(&log.source()).records.len() as u64, log.durable());
    }
    disk.fail(DiskFaults::default());
    assert_eq!(log.append(&mut batches).expect("there is room again"), next + 19);
    assert_eq!(content(&log.source()).records.len() as u64, next + 19);
    log.close().expect("there is room again");
    let (log, recovery) = open(&disk, 32_768);
    assert!(recovery.findings.is_empty(), "{}", recovery.findings);
    let read = content(&log.source());
    assert_eq!((read.records.len() as u64, read.gaps.len()), (next + 19, 0));
    assert!(read.records.iter().all(|(sequence, bytes)| *bytes == payload(1, *sequence, bytes.len())));
}

/// Invariant 5 without a restart: a full disk causes only a delay, whether a segment cannot be created or not be
/// written.
#[test]
fn a_stream_without_room_waits_and_continues() {
    for number in [ENOSPC, EDQUOT] {
        for left in 0..6 {
            check_waiting(DiskFaults { writes: Some((left, number)), ..DiskFaults::default() });
        }
        check_waiting(DiskFaults { sync: Some(number), ..DiskFaults::default() });
    }
    for number in [ENOSPC, EDQUOT, EMFILE] {
        check_waiting(DiskFaults { create: Some(number), ..DiskFaults::default() });
    }
}

/// A single failed write, or its sync, costs a segment: unacknowledged batches are written again into the next one.
#[test]
fn a_write_that_fails_once_is_made_again_in_a_new_segment() {
    for is_sync in [false, true] {
        // The first append of a stream writes a header first.
        for left in 1..7 {
            let disk = SimulatedDisk::new();
            let (mut log, _) = open(&disk, 32_768);
            let mut records = 0;
            for at in 0..12 {
                if at == left {
                    let fault = Some((0, EIO));
                    disk.fail(match is_sync {
                        true => DiskFaults { syncs: fault, writes_max: Some(1), ..DiskFaults::default() },
                        false => DiskFaults { writes: fault, writes_max: Some(1), ..DiskFaults::default() },
                    });
                }
                let first = log.next();
                let mut batches = [batch(1, first, 2, 1000), batch(1, first + 2, 1, 500)];
                records = log.append(&mut batches).expect("the next segment takes it");
                let failed = log.take_failed_write();
                assert_eq!(failed.is_some(), at == left, "{left}: {failed:?}");
            }
            assert_eq!(records, 36);
            let before = content(&log.source());
            drop(log);
            for read in [before, content(&open(&disk, 32_768).0.source())] {
                assert_eq!((read.records.len(), read.gaps.len()), (36, 0));
            }
        }
    }
}

#[test]
fn a_directory_that_cannot_be_read_is_named() {
    let disk = SimulatedDisk::new();
    disk.fail(DiskFaults { list: Some(EIO), ..DiskFaults::default() });
    let error = Log::open(disk.clone(), "events", LogConfig::default()).expect_err("it cannot be read");
    assert!(matches!(error, OpenError::Disk { .. }) && error.to_string().contains("the simulated disk"));
    assert!(matches!(Log::open(disk, "", LogConfig::default()), Err(OpenError::Name(_))));
}

/// "Directory not writable": the path is in the message.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_made_is_named() {
    use stilling_journal::disk::file::FileDisk;
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("file"), "").expect("a file");
    let below = directory.path().join("file/below");
    let error = FileDisk::open_or_create(&below).expect_err("a file is no directory").to_string();
    assert!(error.contains(&below.display().to_string()), "{error}");
    let absent = directory.path().join("absent");
    let error = FileDisk::existing(&absent).expect_err("it is absent").to_string();
    assert!(error.contains(&absent.display().to_string()), "{error}");
}
