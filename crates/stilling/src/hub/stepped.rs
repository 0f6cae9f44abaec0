//! The journal of a simulated server: no threads, on simulated disks.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use stilling_hub::Threads;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{Journal, Limits, Log, Replay, ReplayWorker, Worker};
use stilling_ring::Wake;

use super::limits::READ_ORDERS_MAX;

/// The journal's two threads as steps, for a simulation.
#[derive(Debug)]
pub struct SteppedJournal {
    /// Writes batches.
    pub writer: Worker<SimulatedDisk>,
    /// Reads records.
    pub reader: ReplayWorker<SimulatedDisk>,
}

/// As [`start_threads`](super::opened::start_threads), without threads.
pub(crate) fn start_stepped(
    logs: Vec<Log<SimulatedDisk>>,
    limits: Limits,
    (wake, now): (&Arc<Wake>, Instant),
) -> io::Result<(Threads, SteppedJournal)> {
    let sources = logs.iter().map(Log::source).collect();
    let (journal, writer) = Journal::stepped(logs, limits, wake, now)?;
    let (replay, reader) = Replay::stepped(sources, READ_ORDERS_MAX, Arc::clone(wake));
    Ok((Threads::new(journal, replay), SteppedJournal { writer, reader }))
}
