//! How long a disk has not answered.
//!
//! When a stream on disk can take no more, its publishers are parked, and slowed down: nothing is lost to a disk that is slow.
//! But their later requests, which may have nothing to do with that disk, wait with them. So a disk that has not answered for
//! [`DISK_STALL_TIMEOUT_NS`] counts as hung; until it answers, its streams refuse what they cannot take, as a frozen stream does.

use crate::limits::{DISK_CHECK_EVERY_NS, DISK_STALL_TIMEOUT_NS};
use crate::time::SteadyNanos;

/// Measures a stall. Time in which the process stood still does not count.
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
    /// Starts with something that has to wait until the disk has written, unless the timer runs.
    pub(crate) fn begin(&mut self, now_ns: SteadyNanos) {
        self.stall.get_or_insert(DiskStall { waited_ns: 0, observed_ns: now_ns });
    }

    /// Stops because the disk has answered. Returns how long it had not.
    pub(crate) fn end(&mut self) -> u64 {
        self.stall.take().map_or(0, |stall| stall.waited_ns)
    }

    /// Lets time pass, since the last call at most two intervals of observation.
    pub(crate) fn observe(&mut self, now_ns: SteadyNanos) {
        if let Some(stall) = &mut self.stall {
            stall.waited_ns += now_ns.since(stall.observed_ns).min(2 * DISK_CHECK_EVERY_NS);
            stall.observed_ns = now_ns;
        }
    }

    /// Whether something waits.
    pub(crate) fn is_running(&self) -> bool {
        self.stall.is_some()
    }

    /// Whether the disk counts as hung.
    pub(crate) fn is_hung(&self) -> bool {
        self.waited_ns() >= DISK_STALL_TIMEOUT_NS
    }

    /// How long it has waited, in nanoseconds.
    pub(crate) fn waited_ns(&self) -> u64 {
        self.stall.as_ref().map_or(0, |stall| stall.waited_ns)
    }
}

/// How long publications have waited for each journal, which has answered nothing since.
#[derive(Debug)]
pub(crate) struct WriterStalls {
    /// Of streams that are not open yet.
    opening: DiskStallTimer,
    /// By index of the journal.
    writers: Vec<DiskStallTimer>,
}

impl WriterStalls {
    pub(crate) fn new(streams: usize) -> WriterStalls {
        let timers = (0..streams).map(|_| DiskStallTimer::default());
        WriterStalls { opening: DiskStallTimer::default(), writers: timers.collect() }
    }

    /// The timer of a journal; without one, that of streams which are not open.
    pub(crate) fn of(&mut self, writer: Option<usize>) -> &mut DiskStallTimer {
        let timer = writer.and_then(|writer| self.writers.get_mut(writer));
        timer.unwrap_or(&mut self.opening)
    }

    /// Lets time pass.
    pub(crate) fn observe(&mut self, now_ns: SteadyNanos) {
        self.opening.observe(now_ns);
        self.writers.iter_mut().for_each(|timer| timer.observe(now_ns));
    }

    /// Whether a publication waits for one of them.
    pub(crate) fn is_any_running(&self) -> bool {
        self.opening.is_running() || self.writers.iter().any(DiskStallTimer::is_running)
    }
}
