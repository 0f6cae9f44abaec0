//! Synchronisation types: std's in a normal build, loom's under `cfg(loom)`.
//!
//! Everything that orders memory between threads is imported from here, also in crates that use the mailboxes, so that
//! one loom model can include their protocols. Two types are defined here: a cell that passes raw pointers to closures
//! (loom has to see each access), and a futex.

#[cfg(not(loom))]
pub use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// A cell that two threads access alternately; the caller guarantees exclusive access.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get().cast_const())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A futex; under loom a mutex and a condition variable with the same meaning (to a waker, the comparison and the sleep
/// are one atomic step).
pub(crate) struct Futex {
    pub(crate) word: AtomicU32,
    #[cfg(loom)]
    gate: Mutex<()>,
    #[cfg(loom)]
    sleepers: Condvar,
}

#[cfg(not(loom))]
impl Futex {
    pub(crate) fn new() -> Futex {
        Futex { word: AtomicU32::new(0) }
    }

    /// Sleeps while the word holds `expected`; may also return spuriously.
    pub(crate) fn wait(&self, expected: u32) {
        atomic_wait::wait(&self.word, expected);
    }

    pub(crate) fn wake_one(&self) {
        atomic_wait::wake_one(&raw const self.word);
    }

    pub(crate) fn wake_all(&self) {
        atomic_wait::wake_all(&raw const self.word);
    }
}

#[cfg(loom)]
impl Futex {
    pub(crate) fn new() -> Futex {
        Futex { word: AtomicU32::new(0), gate: Mutex::new(()), sleepers: Condvar::new() }
    }

    pub(crate) fn wait(&self, expected: u32) {
        let gate = self.gate.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == expected {
            drop(self.sleepers.wait(gate).unwrap());
        }
    }

    pub(crate) fn wake_one(&self) {
        let _gate = self.gate.lock().unwrap();
        self.sleepers.notify_one();
    }

    pub(crate) fn wake_all(&self) {
        let _gate = self.gate.lock().unwrap();
        self.sleepers.notify_all();
    }
}

/// Aligns a value to cache lines of its own (two lines: processors fetch them in pairs).
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);
