//! Timers of unresponsive disks.
//!
//! A full disk stream parks its publishers: a slow disk causes no loss. Their later requests wait too, even those
//! unrelated to that disk. A disk that completes nothing for [`DISK_STALL_TIMEOUT_NS`] therefore counts as hung; until
//! it responds, its full streams refuse publications.

use crate::limits::{DISK_CHECK_EVERY_NS, DISK_STALL_TIMEOUT_NS};
use crate::time::SteadyNanos;

/// Measures a stall. Time in which the process was stopped does not count.
#[derive(Debug, Default)]
pub(crate) struct DiskStallTimer {
    stall: Option<DiskStall>,
}

#[derive(Debug)]
struct DiskStall {
    waited_ns: u64,
    observed_ns: SteadyNanos,
}

impl DiskStallTimer {
    /// Starts the timer, unless it runs already.
    pub(crate) fn begin(&mut self, now_ns: SteadyNanos) {
        self.stall.get_or_insert(DiskStall { waited_ns: 0, observed_ns: now_ns });
    }

    pub(crate) fn end(&mut self) -> u64 {
        self.stall.take().map_or(0, |stall| stall.waited_ns)
    }

    /// Adds the time since the last call, at most two check intervals.
    pub(crate) fn observe(&mut self, now_ns: SteadyNanos) {
        if let Some(stall) = &mut self.stall {
            stall.waited_ns += now_ns.since(stall.observed_ns).min(2 * DISK_CHECK_EVERY_NS);
            stall.observed_ns = now_ns;
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.stall.is_some()
    }

    pub(crate) fn is_hung(&self) -> bool {
        self.waited_ns() >= DISK_STALL_TIMEOUT_NS
    }

    pub(crate) fn waited_ns(&self) -> u64 {
        self.stall.as_ref().map_or(0, |stall| stall.waited_ns)
    }
}

/// Stall timers of all journals: how long publications have waited without any response.
#[derive(Debug)]
pub(crate) struct WriterStalls {
    /// Timer of streams that are not open yet.
    opening: DiskStallTimer,
    writers: Vec<DiskStallTimer>,
}

impl WriterStalls {
    pub(crate) fn new(streams: usize) -> WriterStalls {
        let timers = (0..streams).map(|_| DiskStallTimer::default());
        WriterStalls { opening: DiskStallTimer::default(), writers: timers.collect() }
    }

    /// Returns the timer of a journal, or with `None` that of streams that are not open.
    pub(crate) fn of(&mut self, writer: Option<usize>) -> &mut DiskStallTimer {
        let timer = writer.and_then(|writer| self.writers.get_mut(writer));
        timer.unwrap_or(&mut self.opening)
    }

    pub(crate) fn observe(&mut self, now_ns: SteadyNanos) {
        self.opening.observe(now_ns);
        self.writers.iter_mut().for_each(|timer| timer.observe(now_ns));
    }

    pub(crate) fn is_any_running(&self) -> bool {
        self.opening.is_running() || self.writers.iter().any(DiskStallTimer::is_running)
    }
}
