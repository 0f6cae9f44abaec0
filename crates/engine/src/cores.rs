//! CPU affinity: the cores that the process may use, and pinning a thread to one.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The numbers of the cores that this process may use; empty if the system does not report them.
pub fn usable_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Pins the calling thread to `core`.
///
/// # Errors
/// The core does not exist or the process may not use it.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}
