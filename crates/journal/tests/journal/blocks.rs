//! Payloads in shared blocks: copied beside the writer's thread, in order, and never pinned by a disk.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::blocks::{fill, find_violation, payload_of};
use crate::support::{content, open};
use stilling_journal::disk::simulated::{DiskFaults, PANIC, SimulatedDisk};
use stilling_journal::{IdleBatches, Journal, JournalAnswer, JournalLimits};
use stilling_probe::eventually;
use stilling_ring::{BlockWriter, Wake};

const LIMITS: JournalLimits = JournalLimits { batches: 8, batch_size: 256 * 1024 };

fn start(disk: &SimulatedDisk) -> Journal {
    Journal::start(vec![open(disk, 4 << 20).0], LIMITS, Arc::new(Wake::new(|| ()))).expect("threads")
}

/// Queues a batch of `count` records. Returns the blocks with their payloads.
fn append(journal: &mut Journal, next: &mut u64, count: u64) -> Vec<BlockWriter> {
    let mut batch = loop {
        match journal.batch() {
            Some(batch) => break batch,
            None if journal.next_answer().is_none() => thread::yield_now(),
            None => {}
        }
    };
    let blocks = fill(&mut batch, next, count);
    journal.append(0, batch).expect("it came from here");
    journal.publish();
    blocks
}

fn drain(journal: &mut Journal) {
    while journal.outstanding() > 0 {
        if journal.next_answer().is_none() {
            thread::yield_now();
        }
    }
}

fn assert_released(blocks: &[BlockWriter]) {
    eventually("nothing refers to the blocks", || (!blocks.iter().any(BlockWriter::is_shared)).then_some(()));
}

/// Makes the disk's writes hang until the returned sender is dropped.
fn hang(disk: &SimulatedDisk) -> Sender<()> {
    let (resume, waiting) = channel::<()>();
    let waiting = Mutex::new(waiting);
    disk.observe_watermark(move || {
        let _ = waiting.lock().expect("no panic").recv();
        0
    });
    resume
}

/// Batches with much to copy take another channel than those with little; the stream has them in sequence order.
#[test]
fn batches_are_written_in_order_whether_they_were_built_by_a_thread_or_at_once() {
    let disk = SimulatedDisk::new();
    let mut journal = start(&disk);
    let mut next = 1;
    for round in 0..600 {
        append(&mut journal, &mut next, [1, 30, 2, 40, 1, 1][round % 6]);
        if round % 50 == 0 {
            drain(&mut journal);
        }
    }
    drain(&mut journal);
    assert!(journal.close().is_empty());
    let read = content(&open(&disk, 4 << 20).0.source()).records;
    let expected: Vec<_> = (1..next).map(|sequence| (sequence, payload_of(sequence))).collect();
    assert!(read == expected, "{} of {} records", read.len(), expected.len());
}

#[test]
fn a_disk_that_hangs_holds_no_block() {
    let disk = SimulatedDisk::recording();
    let mut journal = start(&disk);
    let mut next = 1;
    append(&mut journal, &mut next, 3);
    drain(&mut journal);
    let resume = hang(&disk);
    let mut blocks = append(&mut journal, &mut next, 1);
    while journal.idle() == IdleBatches::Free {
        blocks.extend(append(&mut journal, &mut next, 40));
    }
    assert_eq!((journal.idle(), journal.outstanding()), (IdleBatches::None, LIMITS.batches));
    assert_released(&blocks);
    assert!(journal.next_answer().is_none(), "nothing is written");
    drop(resume);
    drain(&mut journal);
    assert!(journal.close().is_empty());
    assert_eq!(content(&open(&disk, 4 << 20).0.source()).records.len() as u64, next - 1);
}

#[test]
fn batches_whose_records_are_referred_to_come_back_and_are_not_free() {
    let disk = SimulatedDisk::new();
    let mut journal = start(&disk);
    let (mut next, mut references) = (1, Vec::new());
    for _ in 0..LIMITS.batches {
        append(&mut journal, &mut next, 2);
        let batch = loop {
            match journal.next_answer_and_batch() {
                Some((JournalAnswer::Durable { .. }, batch)) => break batch,
                Some((answer, _)) => panic!("{answer:?}"),
                None => thread::yield_now(),
            }
        };
        let mut batch = batch.expect("each answer has its batch");
        references.push((batch.share(), batch.last_range(payload_of(next - 1).len()), next - 1));
        journal.return_batch(batch);
    }
    assert_eq!(journal.idle(), IdleBatches::Shared);
    assert!(journal.batch().is_none());
    let (block, range, sequence) = references.swap_remove(3);
    assert_eq!(block.bytes(range), payload_of(sequence));
    drop(block);
    assert_eq!(journal.idle(), IdleBatches::Free);
    append(&mut journal, &mut next, 1);
    assert!(journal.batch().is_none());
    for (block, range, sequence) in references {
        assert_eq!(block.bytes(range), payload_of(sequence));
    }
    drain(&mut journal);
    assert!(journal.close().is_empty());
}

#[test]
fn a_writer_that_panics_releases_its_blocks() {
    let disk = SimulatedDisk::new();
    let mut journal = start(&disk);
    let mut next = 1;
    disk.fail(DiskFaults { writes: Some((0, PANIC)), ..DiskFaults::default() });
    let mut blocks = Vec::new();
    for _ in 0..LIMITS.batches {
        blocks.extend(append(&mut journal, &mut next, 40));
    }
    let mut frozen = 0;
    while journal.outstanding() > 0 {
        match journal.next_answer() {
            Some(JournalAnswer::Frozen { watermark: 0, .. }) => frozen += 1,
            Some(other) => panic!("{other:?}"),
            None => thread::yield_now(),
        }
    }
    assert_eq!(frozen, LIMITS.batches);
    assert_released(&blocks);
}

#[test]
fn references_to_written_records_never_see_others() {
    for seed in 0..20 {
        assert_eq!(find_violation(seed), None, "seed {seed}");
    }
}
