//! Checks "Heap allocations per message after warm-up: 0", from the record to its watermark, with a counting allocator.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::thread;

use stilling_journal::disk::file::FileDisk;
use stilling_journal::{
    Batch, Journal, JournalAnswer, JournalLimits, Log, LogConfig, ReadOutcome, Record, StartAt,
};
use stilling_probe::allocations::{CountingAllocator, process_allocations, run_until_allocation_free};
use stilling_ring::{BlockWriter, Wake};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The process has one test, because others would allocate in between.
#[test]
fn a_record_costs_no_allocation_from_batch_to_watermark_and_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = FileDisk::open_or_create(directory.path()).expect("it can be made");
    let (log, _) = Log::open(disk, "events", LogConfig { segment_size: 64 << 20, ..LogConfig::default() })
        .expect("an empty one opens");
    let source = log.source();
    let own = thread::current();
    let wake = Arc::new(Wake::new(move || own.unpark()));
    let limits = JournalLimits { batches: 8, batch_size: 65_536 };
    let mut journal = Journal::start(vec![log], limits, Arc::clone(&wake)).expect("a thread");
    let (mut next, mut durable) = (1, 0);
    let mut block = BlockWriter::new(4096);
    let range = block.append(&[8; 3000]).expect("there is room");
    let shared = block.share();
    // One of three payloads is in a block and copied when its batch is built.
    let push = |batch: &mut Batch, next: u64| match next % 3 {
        0 => {
            let record = Record::new(b"events.a", shared.bytes(range.clone()));
            batch.push_shared(&record, &shared, range.clone()).is_ok()
        }
        _ => batch.push(&Record::new(b"events.a", &[7; 1000])).is_ok(),
    };
    let mut write = |until: u64| {
        while durable + 1 < until {
            while next < until
                && let Some(mut batch) = journal.batch()
            {
                batch.begin(next, 1);
                while next < until && push(&mut batch, next) {
                    next += 1;
                }
                journal.append(0, batch).expect("it came from here");
            }
            journal.publish();
            match journal.next_answer() {
                Some(JournalAnswer::Durable { watermark, .. }) => durable = watermark,
                Some(other) => panic!("{other:?}"),
                None => {
                    wake.set_parked();
                    if journal.is_quiet() {
                        thread::park();
                    }
                    wake.clear_parked();
                }
            }
        }
    };
    // Lists grow when more batches than ever before are in flight, and keep that size.
    let mut until = 2000;
    write(until);
    let settled = run_until_allocation_free(8, || {
        until += 5000;
        write(until);
    });
    assert_eq!(settled, Ok(()), "allocations of 5,000 records each");
    let mut reader = source.read_from(StartAt::Sequence(1));
    let mut records = 0;
    let mut read = |most: usize| {
        while let Ok(ReadOutcome::Batch(batch)) = reader.read() {
            records += batch.records.count();
            if records > most {
                break;
            }
        }
    };
    read(1000);
    let before = process_allocations();
    read(usize::MAX);
    assert_eq!(process_allocations(), before);
    assert_eq!(records as u64, until - 1);
}
