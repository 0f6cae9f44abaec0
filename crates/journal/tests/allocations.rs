//! "Heap allocations per message after warm-up: 0", from the record to its watermark: an allocator that counts proves
//! it.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use stilling_journal::disk::file::FileDisk;
use stilling_journal::{Answer, From, Journal, Limits, Read, Record};
use stilling_ring::Wake;
use support::open;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on unchanged; the counter is plain data that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises hold for the system's allocator too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The process has one test: another would allocate in between.
#[test]
fn a_record_costs_no_allocation_from_batch_to_watermark_and_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = FileDisk::make(directory.path()).expect("it can be made");
    let (log, _) = open(&disk, 64 << 20);
    let source = log.source();
    let own = thread::current();
    let wake = Arc::new(Wake::new(move || own.unpark()));
    let limits = Limits { batches: 8, batch_size: 65_536 };
    let mut journal = Journal::start(vec![log], limits, Arc::clone(&wake)).expect("a thread");
    let (mut next, mut durable) = (1, 0);
    let mut write = |until: u64| {
        while durable + 1 < until {
            while next < until
                && let Some(mut batch) = journal.batch()
            {
                batch.begin(next, 1);
                while next < until && batch.push(&Record::new(b"events.a", &[7; 1000])).is_ok() {
                    next += 1;
                }
                journal.append(0, batch).expect("it came from here");
            }
            journal.publish();
            match journal.next_answer() {
                Some(Answer::Durable { watermark, .. }) => durable = watermark,
                Some(other) => panic!("{other:?}"),
                None => {
                    wake.park();
                    if journal.is_quiet() {
                        thread::park();
                    }
                    wake.unpark();
                }
            }
        }
    };
    write(2000);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    write(20_000);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
    let mut reader = source.read_from(From::Sequence(1));
    let mut records = 0;
    let mut read = |most: usize| {
        while let Ok(Read::Batch(batch)) = reader.read() {
            records += batch.records.count();
            if records > most {
                break;
            }
        }
    };
    read(1000);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    read(usize::MAX);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
    assert_eq!(records, 19_999);
}
