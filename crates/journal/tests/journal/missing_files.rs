//! Files that another program removes, moves or truncates: no write to them is acknowledged.

use crate::support::{batch, content, open};
use stilling_journal::disk::simulated::{DiskFaults, SimulatedDisk};
use stilling_journal::{Disk, Log};

const SEGMENT_SIZE: u64 = 32_768;

fn log() -> (SimulatedDisk, Log<SimulatedDisk>, Vec<String>) {
    let disk = SimulatedDisk::new();
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    for _ in 0..23 {
        let batch = batch(1, log.next(), 1, 4000);
        log.append(&mut [batch]).expect("nothing fails");
    }
    let files: Vec<_> = disk.files().into_iter().map(|(name, _)| name).collect();
    assert_eq!(files.len(), 4);
    log.check_files().expect("all is there");
    (disk, log, files)
}

/// Checks that the next batch is not acknowledged, and that the error contains these words.
#[track_caller]
fn check_append(mut log: Log<SimulatedDisk>, words: &[&str]) {
    let durable = log.durable();
    let next = batch(1, log.next(), 1, 100);
    let error = log.append(&mut [next]).expect_err("what is gone takes nothing");
    let text = error.to_string();
    assert!(text.contains("frozen") && words.iter().all(|word| text.contains(word)), "{text}");
    assert_eq!(log.durable(), durable);
    assert!(log.check_files().is_err() && log.frozen().is_some());
}

#[track_caller]
fn check_detected(mut log: Log<SimulatedDisk>, words: &[&str]) {
    let text = log.check_files().expect_err("something is gone").to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    let next = batch(1, log.next(), 1, 100);
    log.append(&mut [next]).expect_err("it is frozen");
}

/// The active segment is checked before each group is acknowledged.
#[test]
fn nothing_is_acknowledged_into_a_segment_that_is_gone_or_cut() {
    let (disk, log, files) = log();
    disk.remove(&files[3]).expect("it is there");
    check_append(log, &[&files[3], "gone", "restart"]);
    for left in [0, 4096, 20_000, SEGMENT_SIZE as usize - 1] {
        let (disk, log, files) = self::log();
        disk.change(&files[3], |bytes| bytes.truncate(left));
        check_append(log, &[&files[3], "instead of 32768", "restart"]);
    }
}

/// The older segments and the directory are checked once a second.
#[test]
fn a_segment_or_folder_that_is_gone_is_noticed_without_a_write() {
    for at in 0..4 {
        let (disk, log, files) = log();
        disk.remove(&files[at]).expect("it is there");
        check_detected(log, &[&files[at], "gone"]);
        let (disk, log, files) = self::log();
        disk.change(&files[at], |bytes| bytes.truncate(8192));
        check_detected(log, &[&files[at], "8192 bytes"]);
    }
    let (disk, log, _) = log();
    disk.fail(DiskFaults { is_moved: true, ..DiskFaults::default() });
    check_detected(log, &["directory", "gone"]);
}

/// Removals by retention and the cut of a clean close are no findings.
#[test]
fn what_the_log_itself_removes_is_not_missed() {
    let (disk, mut log, _) = log();
    let retention = stilling_journal::LogRetention { records: Some(1), ..Default::default() };
    assert!(log.retain(&retention, 0, u64::MAX).expect("nothing fails").segments > 0);
    log.check_files().expect("nothing is missing");
    log.close().expect("nothing fails");
    let (mut log, _) = open(&disk, SEGMENT_SIZE);
    log.check_files().expect("nothing is missing");
    let next = batch(1, log.next(), 1, 100);
    log.append(&mut [next]).expect("nothing fails");
    log.check_files().expect("nothing is missing");
    assert!(content(&log.source()).gaps.is_empty());
}
