//! A disk that is full or broken freezes the stream: nothing more is told, what was told stays true and readable, the
//! process lives.

use std::io::ErrorKind;

use crate::support::{batch, content, open};
use stilling_journal::disk::simulated::{Faults, INPUT_OUTPUT, NO_SPACE, SimulatedDisk};
use stilling_journal::{Config, Log, OpenError};

fn check(faults: Faults, kind: ErrorKind) {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, 32_768);
    for _ in 0..3 {
        let batch = batch(1, log.next(), 2, 1000);
        log.append(&mut [batch]).expect("nothing fails yet");
    }
    disk.fail(faults);
    let next = log.next();
    // Far enough for a segment to be needed.
    let mut batches: Vec<_> = (0..12).map(|at| batch(1, next + at, 1, 4000)).collect();
    let frozen = log.append(&mut batches).expect_err("the disk refuses");
    assert_eq!(frozen.kind(), kind, "{frozen}");
    assert!(frozen.to_string().contains("events") && frozen.to_string().contains("segment"), "{frozen}");
    let durable = log.durable();
    // The disk is well again, but what it has is unknown.
    disk.fail(Faults::default());
    let again = log.append(&mut [batch(1, durable + 1, 1, 10)]).expect_err("it is frozen for good");
    assert_eq!(again.reason(), frozen.reason());
    assert_eq!((log.durable(), log.frozen().is_some()), (durable, true));
    let source = log.source();
    assert_eq!(content(&source).records.len() as u64, durable);
    assert!(log.close().is_err());
    // The next start finds everything that was told, and goes on behind what may have been written.
    let (mut log, recovery) = open(&disk, 32_768);
    assert!(
        recovery.last >= durable && !recovery.findings.kept.iter().any(stilling_journal::Finding::is_loss)
    );
    assert!(content(&log.source()).records.len() as u64 >= durable);
    let batch = batch(2, log.next(), 1, 10);
    assert!(log.append(&mut [batch]).expect("the disk is well") > durable);
}

#[test]
fn a_disk_that_refuses_freezes_the_stream_for_good() {
    for (number, kind) in [
        (NO_SPACE, ErrorKind::StorageFull),
        (INPUT_OUTPUT, std::io::Error::from_raw_os_error(INPUT_OUTPUT).kind()),
    ] {
        for left in 0..3 {
            check(Faults { writes: Some((left, number)), ..Faults::default() }, kind);
        }
        check(Faults { create: Some(number), ..Faults::default() }, kind);
        check(Faults { sync: Some(number), ..Faults::default() }, kind);
    }
}

#[test]
fn a_directory_that_cannot_be_read_is_named() {
    let disk = SimulatedDisk::new();
    disk.fail(Faults { list: Some(INPUT_OUTPUT), ..Faults::default() });
    let error = Log::open(disk.clone(), "events", Config::default()).expect_err("it cannot be read");
    assert!(matches!(error, OpenError::Disk { .. }) && error.to_string().contains("the simulated disk"));
    assert!(matches!(Log::open(disk, "", Config::default()), Err(OpenError::Name(_))));
}

/// "Directory not writable": the path is in the message.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_made_is_named() {
    use stilling_journal::disk::file::FileDisk;
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("file"), "").expect("a file");
    let below = directory.path().join("file/below");
    let error = FileDisk::make(&below).expect_err("a file is no directory").to_string();
    assert!(error.contains(&below.display().to_string()), "{error}");
    let absent = directory.path().join("absent");
    let error = FileDisk::existing(&absent).expect_err("it is absent").to_string();
    assert!(error.contains(&absent.display().to_string()), "{error}");
}
