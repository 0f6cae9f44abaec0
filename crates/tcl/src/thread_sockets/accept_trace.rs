//! Pauses of accepting and dropped connections for `stilling::trace`: the engine only counts them.

use stilling_engine::counters::EngineCounters;

use super::ThreadSockets;
use crate::tcl::EventSource;
use crate::trace::{self, TraceEvent};

/// What a shard has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AcceptCounts {
    pauses_full: u64,
    pauses_failed: u64,
    /// Those of `pauses_failed` for lack of descriptors.
    pauses_descriptors: u64,
    dropped_full: u64,
    dropped_descriptors: u64,
}

impl AcceptCounts {
    fn of(counters: &EngineCounters) -> Self {
        AcceptCounts {
            pauses_full: counters.gate_closed.get(),
            pauses_failed: counters.accept_errors.get(),
            pauses_descriptors: counters.accept_errors_descriptors.get(),
            dropped_full: counters.refused_full.get(),
            dropped_descriptors: counters.refused_descriptors.get(),
        }
    }
}

impl ThreadSockets {
    /// The trace of this thread begins: only what happens from now on is reported.
    pub(crate) fn begin_trace() {
        let Some(sockets) = Self::current() else { return };
        for entry in sockets.shards.borrow_mut().iter_mut() {
            entry.traced = AcceptCounts::of(entry.shard.counters());
        }
    }

    /// Records what a shard has counted since the last call.
    pub(super) fn trace_counts(&self, shard: usize) {
        trace::record_watch_changes();
        let (former, counts) = {
            let entry = &mut self.shards.borrow_mut()[shard];
            let counts = AcceptCounts::of(entry.shard.counters());
            (std::mem::replace(&mut entry.traced, counts), counts)
        };
        if former == counts {
            return;
        }
        let of_descriptors = counts.pauses_descriptors - former.pauses_descriptors;
        let other_failures = counts.pauses_failed - former.pauses_failed - of_descriptors;
        let dropped_descriptors = counts.dropped_descriptors - former.dropped_descriptors;
        for (event, count, reason) in [
            (TraceEvent::AcceptPaused, counts.pauses_full - former.pauses_full, "no room for connections"),
            (TraceEvent::AcceptPaused, of_descriptors, "accepting failed: no descriptors"),
            (TraceEvent::AcceptPaused, other_failures, "accepting failed"),
            (TraceEvent::AcceptDropped, counts.dropped_full - former.dropped_full, "no room for connections"),
            (TraceEvent::AcceptDropped, dropped_descriptors, "no descriptors"),
        ] {
            if count > 0 {
                trace::record(event, None, || format!("{count} times: {reason}"));
            }
        }
    }
}
