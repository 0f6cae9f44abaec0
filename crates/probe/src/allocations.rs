//! An allocator that counts, for tests that prove that something allocates nothing.
//!
//! It counts for each thread and, beside, for all threads together. A test program takes it as its own:
//!
//! ```
//! use stilling_probe::allocations::{self, Counting};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! let before = allocations::of_this_thread();
//! drop(std::hint::black_box(Box::new(7)));
//! assert_eq!(allocations::of_this_thread() - before, 1);
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

/// Allocations of the calling thread so far; a longer life of what there is counts as one.
pub fn thread_allocations() -> u64 {
    THREAD_ALLOCATIONS.get()
}

/// Allocations of all threads so far, but for those of threads that were left out.
pub fn process_allocations() -> u64 {
    PROCESS_ALLOCATIONS.load(Ordering::Relaxed)
}

/// From now on the calling thread does not count among all threads: it plays the other side.
pub fn exclude_this_thread() {
    IS_EXCLUDED.set(true);
}

fn count() {
    THREAD_ALLOCATIONS.set(THREAD_ALLOCATIONS.get() + 1);
    if !IS_EXCLUDED.get() {
        PROCESS_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The system's allocator, counted.
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

// SAFETY: every call is passed on unchanged; the counts are plain data that needs no allocation and no drop.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises hold for the system's allocator too.
        unsafe { System.alloc(layout) }
    }

    // Not by way of `alloc`: that would write to all of it, and memory that is only reserved would become resident.
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

/// Rounds without an allocation, one behind the other, after which a program has shown that it allocates nothing.
const CLEAN_ROUNDS: usize = 3;

/// Repeats a round until three in a row have allocated nothing: what is allocated for each message is seen in all of them,
/// what grows for good only in the rounds before.
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
