//! A counting allocator, for tests that prove the absence of allocations.
//!
//! It counts per thread, and in total over all threads. A test program installs it as its global allocator:
//!
//! ```
//! use stilling_probe::allocations::{self, CountingAllocator};
//!
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//!
//! let before = allocations::thread_allocations();
//! drop(std::hint::black_box(Box::new(7)));
//! assert_eq!(allocations::thread_allocations() - before, 1);
//! ```
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

static PROCESS_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static IS_EXCLUDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the calling thread's allocations so far; a reallocation counts as one.
pub fn thread_allocations() -> u64 {
    THREAD_ALLOCATIONS.get()
}

/// Returns the allocations of all threads so far, except those of excluded threads.
pub fn process_allocations() -> u64 {
    PROCESS_ALLOCATIONS.load(Ordering::Relaxed)
}

/// Excludes the calling thread, such as the test's peer, from the total from now on.
pub fn exclude_this_thread() {
    IS_EXCLUDED.set(true);
}

fn count() {
    THREAD_ALLOCATIONS.set(THREAD_ALLOCATIONS.get() + 1);
    if !IS_EXCLUDED.get() {
        PROCESS_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The system's allocator with counters.
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

// SAFETY: every call is passed on unchanged; the counters are plain data that needs no allocation and no drop.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees hold for the system's allocator too.
        unsafe { System.alloc(layout) }
    }

    // Not implemented with `alloc`: zeroing would write to all of the memory, and reserved memory would become
    // resident.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

const CLEAN_ROUNDS: usize = 3;

/// Repeats a round until three in a row have allocated nothing: an allocation per message occurs in every round, the
/// growth of a buffer only in early ones.
///
/// # Errors
/// The allocations of each round, if that has not happened within `rounds_max` rounds.
pub fn run_until_allocation_free(rounds_max: usize, mut round: impl FnMut()) -> Result<(), Vec<u64>> {
    let (mut counts, mut clean) = (Vec::with_capacity(rounds_max), 0);
    while clean < CLEAN_ROUNDS {
        if counts.len() == rounds_max {
            return Err(counts);
        }
        let before = process_allocations();
        round();
        let count = process_allocations() - before;
        clean = if count == 0 { clean + 1 } else { 0 };
        counts.push(count);
    }
    Ok(())
}
