//! Signals: counts them and wakes the shards; blocks them in helper threads.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stilling_ring::Wake;

/// Leaves all signals to the program's other threads.
pub fn block_thread_signals() {
    // SAFETY: all zeros is a valid value of this plain structure, and both calls only change it and this thread's mask.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// Installs handlers for `signals` (numbers as in signal(7)), until the process ends: each signal adds one to `count`
/// and runs the actions of all `wakes`.
///
/// # Errors
/// The system rejects a handler for one of them.
pub fn count_signals(signals: &[i32], count: &Arc<AtomicU32>, wakes: &[Arc<Wake>]) -> io::Result<()> {
    for signal in signals {
        let (count, wakes) = (Arc::clone(count), wakes.to_vec());
        let handler = move || {
            count.fetch_add(1, Ordering::AcqRel);
            for wake in &wakes {
                wake.force();
            }
        };
        // SAFETY: the handler only changes atomics and runs wake actions, which are required to be safe in a signal
        // handler (a write to an eventfd); it neither allocates nor locks.
        unsafe { signal_hook::low_level::register(*signal, handler) }?;
    }
    Ok(())
}
