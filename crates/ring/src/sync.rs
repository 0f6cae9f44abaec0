//! The one switch between the real world and the model checker.
//!
//! Everything that carries an ordering between threads is imported from here: std's types in a normal build,
//! loom's under `cfg(loom)`. Crates built on the mailboxes import from here too, so that their own protocols can
//! be modelled together with these. Two shapes are ours: a cell that lends out raw pointers (loom has to see
//! each access), and a word that threads can sleep on.

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

/// A place that two threads take turns to use; the caller proves whose turn it is.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// Lends a pointer to read through.
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get().cast_const())
    }

    /// Lends a pointer to write through.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A word that threads can sleep on until it changes: a futex, or under loom a mutex and a condition variable
/// with the same meaning (the comparison and the falling asleep are one step as seen by a waker).
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

    /// Sleeps while the word holds `expected`; may also return for no reason.
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

/// Keeps what two threads write on cache lines of their own (two lines: processors fetch them in pairs).
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);
