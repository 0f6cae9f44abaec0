//! The journal thread: group commit over several streams, answers in order, reuse of batches.

use std::sync::Arc;
use std::thread;

use crate::support::{content, open, time_of};
use stilling_journal::disk::simulated::{DiskFaults, EIO, EMFILE, ENOSPC, PANIC, SimulatedDisk};
use stilling_journal::{Disk, Journal, JournalAnswer, JournalLimits, Log, LogRetention, Record};
use stilling_ring::Wake;

struct JournalWriter {
    journal: Journal,
    wake: Arc<Wake>,
    watermarks: Vec<u64>,
    frozen: Vec<bool>,
    retained: usize,
    /// For each stream, the number of `Waiting` and `Resumed` notices.
    waits: Vec<(usize, usize)>,
    failed_writes: usize,
}

impl JournalWriter {
    fn start(logs: Vec<Log<SimulatedDisk>>, limits: JournalLimits) -> JournalWriter {
        let own = thread::current();
        let wake = Arc::new(Wake::new(move || own.unpark()));
        let streams = logs.len();
        let journal = Journal::start(logs, limits, Arc::clone(&wake)).expect("a thread");
        let (watermarks, frozen, waits) = (vec![0; streams], vec![false; streams], vec![(0, 0); streams]);
        JournalWriter { journal, wake, watermarks, frozen, retained: 0, waits, failed_writes: 0 }
    }

    fn handle_answer(&mut self) {
        let answer = loop {
            if let Some(answer) = self.journal.next_answer() {
                break answer;
            }
            self.wake.set_parked();
            if self.journal.is_quiet() {
                thread::park();
            }
            self.wake.clear_parked();
        };
        match answer {
            JournalAnswer::Durable { stream, watermark } => {
                let at = stream as usize;
                assert!(watermark >= self.watermarks[at]);
                self.watermarks[at] = watermark;
            }
            JournalAnswer::Frozen { stream, watermark, frozen, .. } => {
                assert!(!frozen.reason.is_empty() && watermark >= self.watermarks[stream as usize]);
                self.frozen[stream as usize] = true;
            }
            JournalAnswer::Waiting { stream, reason, .. } => {
                assert!(reason.contains("stream events") && reason.contains("segment"), "{reason}");
                self.waits[stream as usize].0 += 1;
            }
            JournalAnswer::Resumed { stream } => self.waits[stream as usize].1 += 1,
            JournalAnswer::WriteFailed { reason, .. } => {
                assert!(reason.starts_with("stream events: writing "), "{reason}");
                self.failed_writes += 1;
            }
            JournalAnswer::Retained { removed, .. } => {
                removed.expect("the disk works");
                self.retained += 1;
            }
            JournalAnswer::SnapshotWritten { outcome, .. } => outcome.expect("the disk refuses nothing"),
        }
    }

    fn append(&mut self, stream: u32, next: &mut u64, count: u64) {
        let mut batch = loop {
            match self.journal.batch() {
                Some(batch) => break batch,
                None => self.handle_answer(),
            }
        };
        batch.begin(*next, time_of(*next));
        for _ in 0..count {
            let payload = format!("{stream}/{next}");
            assert_eq!(batch.push(&Record::new(b"a", payload.as_bytes())), Ok(*next));
            *next += 1;
        }
        while let Err(back) = self.journal.append(stream, batch) {
            batch = back;
            self.handle_answer();
        }
        self.journal.publish();
    }

    fn drain(&mut self) {
        while self.journal.outstanding() > 0 {
            self.handle_answer();
        }
    }
}

/// Row 2.15 with many streams: all queued batches become durable, in order, and are present after the close.
#[test]
fn all_streams_become_durable_through_one_thread() {
    let disks: Vec<_> = (0..5).map(|_| SimulatedDisk::new()).collect();
    let logs = disks.iter().map(|disk| open(disk, 200_000).0).collect();
    let mut writer = JournalWriter::start(logs, JournalLimits { batches: 6, batch_size: 16_384 });
    let mut next = [1; 5];
    for round in 0..2000_u64 {
        let stream = (round * round % 5) as usize;
        writer.append(stream as u32, &mut next[stream], round % 4 + 1);
        if round == 1000 {
            writer.drain();
            assert!(writer.journal.retain(1, LogRetention::default(), 0, u64::MAX));
            writer.journal.publish();
        }
    }
    writer.drain();
    assert_eq!(writer.watermarks, next.map(|next| next - 1));
    assert_eq!(writer.retained, 1);
    assert!(writer.journal.close().is_empty());
    for (stream, disk) in disks.iter().enumerate() {
        let (log, recovery) = open(disk, 200_000);
        assert!(recovery.findings.is_empty());
        let read = content(&log.source());
        assert_eq!(read.records.len() as u64, next[stream] - 1);
        let are_right = read
            .records
            .iter()
            .all(|(sequence, bytes)| *bytes == format!("{stream}/{sequence}").into_bytes());
        assert!(are_right);
    }
}

/// Batches queued before the drop are written.
#[test]
fn a_dropped_journal_writes_what_it_was_given() {
    let disk = SimulatedDisk::new();
    let mut writer =
        JournalWriter::start(vec![open(&disk, 200_000).0], JournalLimits { batches: 8, batch_size: 4096 });
    let mut next = 1;
    for _ in 0..8 {
        writer.append(0, &mut next, 3);
    }
    drop(writer);
    assert_eq!(content(&open(&disk, 200_000).0.source()).records.len(), 24);
}

/// "ENOSPC and EIO freeze the stream": only that one, and the others continue.
#[test]
fn a_frozen_stream_leaves_the_others_alone() {
    let disks = [SimulatedDisk::new(), SimulatedDisk::new()];
    let logs = disks.iter().map(|disk| open(disk, 200_000).0).collect();
    let mut writer = JournalWriter::start(logs, JournalLimits { batches: 4, batch_size: 4096 });
    let mut next = [1; 2];
    writer.append(0, &mut next[0], 1);
    writer.append(1, &mut next[1], 1);
    writer.drain();
    disks[0].fail(DiskFaults { writes: Some((0, EIO)), ..DiskFaults::default() });
    for _ in 0..20 {
        writer.append(0, &mut next[0], 1);
        writer.append(1, &mut next[1], 1);
    }
    writer.append(7, &mut 1, 1);
    writer.frozen.resize(8, false);
    writer.watermarks.resize(8, 0);
    writer.waits.resize(8, (0, 0));
    writer.drain();
    assert_eq!(writer.watermarks[..2], [1, 21]);
    assert_eq!(writer.frozen, [true, false, false, false, false, false, false, true]);
    let frozen = writer.journal.close();
    assert!(frozen.len() == 1 && frozen[0].reason.contains("segment"), "{frozen:?}");
}

/// A full disk delays its own stream only: the start and the end of the wait are each reported once, and batches queued
/// meanwhile are written then.
#[test]
fn a_stream_without_room_is_tried_again_while_the_others_are_written() {
    let faults = [
        DiskFaults { create: Some(ENOSPC), ..DiskFaults::default() },
        DiskFaults { create: Some(EMFILE), ..DiskFaults::default() },
        DiskFaults { writes: Some((0, ENOSPC)), ..DiskFaults::default() },
    ];
    for fault in faults {
        let disks = [SimulatedDisk::new(), SimulatedDisk::new()];
        let logs = disks.iter().map(|disk| open(disk, 16_384).0).collect();
        let mut writer = JournalWriter::start(logs, JournalLimits { batches: 40, batch_size: 4096 });
        let mut next = [1; 2];
        writer.append(0, &mut next[0], 1);
        writer.append(1, &mut next[1], 1);
        writer.drain();
        disks[0].fail(fault);
        for _ in 0..9 {
            writer.append(0, &mut next[0], 1);
        }
        while writer.waits[0] == (0, 0) {
            writer.handle_answer();
        }
        for _ in 0..30 {
            writer.append(1, &mut next[1], 1);
        }
        while writer.watermarks[1] < 31 {
            writer.handle_answer();
        }
        assert!(writer.watermarks[0] < 10 && writer.waits == [(1, 0), (0, 0)]);
        disks[0].fail(DiskFaults::default());
        writer.drain();
        while writer.waits[0].1 == 0 {
            writer.handle_answer();
        }
        assert_eq!((writer.watermarks.as_slice(), writer.waits[0]), (&[10, 31][..], (1, 1)));
        assert_eq!(writer.frozen, [false; 2]);
        assert!(writer.journal.close().is_empty());
        assert_eq!(content(&open(&disks[0], 16_384).0.source()).records.len(), 10);
    }
}

/// A stream that still waits when the journal closes is not acknowledged, and does not delay the close.
#[test]
fn a_stream_without_room_does_not_keep_the_journal_from_ending() {
    let disk = SimulatedDisk::new();
    let mut writer =
        JournalWriter::start(vec![open(&disk, 16_384).0], JournalLimits { batches: 4, batch_size: 4096 });
    disk.fail(DiskFaults { create: Some(ENOSPC), ..DiskFaults::default() });
    let mut next = 1;
    writer.append(0, &mut next, 1);
    while writer.waits[0].0 == 0 {
        writer.handle_answer();
    }
    let frozen = writer.journal.close();
    assert!(frozen.len() == 1 && frozen[0].reason.contains("No space"), "{frozen:?}");
    assert_eq!(writer.watermarks, [0]);
}

/// A single failed write is reported although the stream continues.
#[test]
fn a_write_that_failed_and_was_made_again_is_reported() {
    let disk = SimulatedDisk::new();
    let mut writer =
        JournalWriter::start(vec![open(&disk, 200_000).0], JournalLimits { batches: 4, batch_size: 4096 });
    let mut next = 1;
    writer.append(0, &mut next, 1);
    writer.drain();
    let writes = Some((0, EIO));
    disk.fail(DiskFaults { writes, writes_max: Some(1), ..DiskFaults::default() });
    writer.append(0, &mut next, 1);
    writer.drain();
    while writer.failed_writes == 0 {
        writer.handle_answer();
    }
    assert_eq!((writer.watermarks.as_slice(), writer.frozen[0]), (&[2][..], false));
    assert_eq!((writer.failed_writes, writer.waits[0]), (1, (0, 0)), "nothing was waited for");
}

/// A failed write that finds no space when retried is reported as both, and so is the end of the wait.
#[test]
fn a_failed_write_that_then_waits_for_room_is_reported_as_both() {
    let disk = SimulatedDisk::new();
    let mut writer =
        JournalWriter::start(vec![open(&disk, 200_000).0], JournalLimits { batches: 4, batch_size: 4096 });
    let mut next = 1;
    writer.append(0, &mut next, 1);
    writer.drain();
    let (writes, create) = (Some((0, EIO)), Some(ENOSPC));
    disk.fail(DiskFaults { writes, writes_max: Some(1), create, ..DiskFaults::default() });
    writer.append(0, &mut next, 1);
    while writer.waits[0].0 == 0 {
        writer.handle_answer();
    }
    assert_eq!((writer.failed_writes, writer.waits[0]), (1, (1, 0)));
    disk.fail(DiskFaults::default());
    writer.drain();
    while writer.waits[0].1 == 0 {
        writer.handle_answer();
    }
    assert_eq!((writer.failed_writes, writer.waits[0], writer.frozen[0]), (1, (1, 1), false));
    assert_eq!(writer.watermarks, [2]);
}

/// Changes by another program to the files of an idle stream are reported, too, once and without a batch.
#[test]
fn files_that_are_gone_are_noticed_while_nothing_is_written() {
    let disk = SimulatedDisk::new();
    let mut writer =
        JournalWriter::start(vec![open(&disk, 200_000).0], JournalLimits { batches: 4, batch_size: 4096 });
    let mut next = 1;
    writer.append(0, &mut next, 1);
    writer.drain();
    let (file, _) = disk.files().pop().expect("there is a segment");
    disk.remove(&file).expect("it is there");
    while !writer.frozen[0] {
        writer.handle_answer();
    }
    writer.append(0, &mut next, 1);
    writer.drain();
    assert_eq!(writer.watermarks, [1]);
    let frozen = writer.journal.close();
    assert!(frozen.len() == 1 && frozen[0].reason.contains("gone"), "{frozen:?}");
}

/// Invariant 5: a thread that has panicked acknowledges nothing and leaves no caller waiting: batches at the thread and
/// later ones are answered.
#[test]
fn a_thread_that_panics_freezes_all_streams_and_leaves_nothing_unanswered() {
    for others in 0..3 {
        let disks = [SimulatedDisk::new(), SimulatedDisk::new()];
        let logs = disks.iter().map(|disk| open(disk, 200_000).0).collect();
        let mut writer = JournalWriter::start(logs, JournalLimits { batches: 4, batch_size: 4096 });
        let mut next = [1; 2];
        writer.append(0, &mut next[0], 3);
        writer.drain();
        disks[1].fail(DiskFaults { writes: Some((0, PANIC)), ..DiskFaults::default() });
        writer.append(1, &mut next[1], 1);
        for _ in 0..others {
            writer.append(0, &mut next[0], 1);
        }
        while writer.frozen != [true; 2] || writer.journal.outstanding() > 0 {
            writer.handle_answer();
        }
        assert!(writer.journal.is_quiet() && writer.journal.next_answer().is_none());
        let watermarks = writer.watermarks.clone();
        assert!(watermarks[0] >= 3 && watermarks[1] == 0, "{watermarks:?}");
        // More than the mailbox holds, which is not read any more.
        for _ in 0..10 {
            writer.frozen = vec![false; 2];
            writer.append(0, &mut next[0], 1);
            writer.drain();
            assert_eq!(writer.frozen, [true, false]);
        }
        assert_eq!(writer.watermarks, watermarks);
        let there = content(&open(&disks[0], 200_000).0.source()).records.len() as u64;
        assert!(there >= watermarks[0], "the stream has all records reported durable");
    }
}

/// Invariant 5: records found in the directory do not acknowledge a batch that begins with an earlier sequence.
#[test]
fn records_of_another_numbering_acknowledge_nothing() {
    let disk = SimulatedDisk::new();
    let mut next = 1;
    let mut writer =
        JournalWriter::start(vec![open(&disk, 200_000).0], JournalLimits { batches: 4, batch_size: 4096 });
    writer.append(0, &mut next, 20);
    writer.drain();
    drop(writer);
    let mut writer =
        JournalWriter::start(vec![open(&disk, 200_000).0], JournalLimits { batches: 4, batch_size: 4096 });
    let mut batch = writer.journal.batch().expect("none is in use");
    batch.begin(1, 1);
    batch.push(&Record::new(b"a", b"x")).expect("there is room");
    writer.journal.append(0, batch).expect("none is in use");
    writer.journal.publish();
    let answer = loop {
        if let Some(answer) = writer.journal.next_answer() {
            break answer;
        }
        writer.wake.set_parked();
        if writer.journal.is_quiet() {
            thread::park();
        }
        writer.wake.clear_parked();
    };
    assert!(matches!(answer, JournalAnswer::Frozen { stream: 0, watermark: 0, .. }), "{answer:?}");
}

/// Row 2.15: the start of the window of message ids matches the durable records, whichever segment is the last after a
/// crash.
#[test]
fn a_segment_carries_the_window_of_what_was_durable_before_it() {
    let disk = SimulatedDisk::new();
    // One batch per segment.
    let (log, _) = open(&disk, 8192);
    let mut journal =
        Journal::start(vec![log], JournalLimits { batches: 4, batch_size: 4096 }, Arc::new(Wake::new(|| ())))
            .expect("a thread");
    let mut hand_over = |windows: &[u64], next: &mut u64| {
        for &from in windows {
            let mut batch = journal.batch().expect("one is free");
            batch.begin(*next, time_of(*next));
            for _ in 0..5 {
                assert_eq!(batch.push(&Record::new(b"a", b"x")), Ok(*next));
                *next += 1;
            }
            journal.append_with_dedup_start(0, batch, from).expect("there is room");
        }
        // Both batches are in one round.
        journal.publish();
        while journal.outstanding() > 0 {
            if journal.next_answer().is_none() {
                thread::yield_now();
            }
        }
    };
    let mut next = 1;
    hand_over(&[3, 8], &mut next);
    let crashed =
        |disk: &SimulatedDisk| open(&SimulatedDisk::with_files(disk.files()), 8192).1.deduplicate_from;
    assert_eq!(crashed(&disk), 0, "the second batch might not have been written");
    hand_over(&[13], &mut next);
    assert_eq!(crashed(&disk), 8);
}
