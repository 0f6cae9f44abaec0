//! A writer with payloads in shared blocks, and readers that refer to the records of written batches.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{Batch, IdleBatches, Journal, JournalLimits, JournalWorker, Record};
use stilling_ring::{BlockWriter, SharedBlock, Wake};

use super::{XorShift64, content, open, payload, time_of};

/// The payload of a record: some are copied at once, most when their batch is built.
pub(crate) fn payload_of(sequence: u64) -> Vec<u8> {
    payload(1, sequence, (sequence * 7919 % 9000) as usize)
}

/// Begins a batch with `count` records and their payloads in two new blocks.
pub(crate) fn fill(batch: &mut Batch, next: &mut u64, count: u64) -> Vec<BlockWriter> {
    batch.begin(*next, time_of(*next));
    let mut blocks = vec![BlockWriter::new(256 * 1024), BlockWriter::new(256 * 1024)];
    for at in 0..count {
        let block = &mut blocks[usize::from(at >= count / 2)];
        let range = block.append(&payload_of(*next)).expect("there is room");
        let shared = block.share();
        let record = Record::new(b"a", shared.bytes(range.clone()));
        assert_eq!(batch.push_shared(&record, &shared, range.clone()), Ok(*next));
        *next += 1;
    }
    blocks
}

/// Records of a written batch, as a delivery refers to them.
struct BatchReference {
    block: SharedBlock,
    records: Vec<(u64, Range<usize>)>,
}

impl BatchReference {
    fn find_violation(&self) -> Option<String> {
        let is_wrong = |(sequence, range): &&(u64, Range<usize>)| {
            self.block.bytes(range.clone()) != payload_of(*sequence)
        };
        self.records.iter().find(is_wrong).map(|(sequence, _)| format!("record {sequence} has changed"))
    }
}

/// Runs a journal in steps; returns the first violation, if any.
pub(crate) fn find_violation(seed: u64) -> Option<String> {
    let disk = SimulatedDisk::new();
    let limits = JournalLimits { batches: 4, batch_size: 128 * 1024 };
    let wake = Arc::new(Wake::new(|| ()));
    let now = Instant::now();
    let (mut journal, mut worker) =
        Journal::stepped(vec![open(&disk, 400_000).0], limits, &wake, now).expect("one stream");
    let mut random = XorShift64(seed + 1);
    let (mut next, mut references) = (1, Vec::new());
    for _ in 0..200 {
        if let Some(mut batch) = journal.batch() {
            fill(&mut batch, &mut next, random.below(9) + 1);
            journal.append(0, batch).expect("there is room");
            journal.publish();
        } else if journal.idle() == IdleBatches::Shared {
            references.remove(0);
        }
        if random.below(3) == 0 {
            worker.turn(now);
        }
        take_answers(&mut journal, &mut random, &mut references);
        if let Some(violation) = references.iter().find_map(BatchReference::find_violation) {
            return Some(violation);
        }
        if random.below(2) == 0 && !references.is_empty() {
            references.remove(0);
        }
    }
    end(journal, worker, now);
    let (log, _) = open(&disk, 400_000);
    let read = content(&log.source()).records;
    let expected: Vec<_> = (1..next).map(|sequence| (sequence, payload_of(sequence))).collect();
    (read != expected).then(|| "the stream has other records".to_owned())
}

fn take_answers(journal: &mut Journal, random: &mut XorShift64, references: &mut Vec<BatchReference>) {
    while let Some((_, batch)) = journal.next_answer_and_batch() {
        let Some(mut batch) = batch else { continue };
        let block = batch.share();
        let range = |(sequence, record)| (sequence, batch.payload_range(&record).expect("it is shared"));
        let records = batch.records().map(range).collect();
        let reference = BatchReference { block, records };
        if random.below(3) > 0 {
            references.push(reference);
        }
        journal.return_batch(batch);
    }
}

fn end(journal: Journal, mut worker: JournalWorker<SimulatedDisk>, now: Instant) {
    drop(journal);
    while worker.turn(now) {}
    assert!(worker.is_closed() && worker.close().is_empty());
}
