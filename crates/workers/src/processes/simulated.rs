//! The supervisor's part in simulations, in which no process runs: the caller decides when each of them is ready, exits
//! and is replaced.

use std::io;
use std::sync::Arc;

use stilling_ring::Wake;

use super::{ProcessLimits, Processes, QueueLimits, ShardAdmissionQueue};
use crate::PoolCounters;

/// Processes whose runs the caller begins and ends.
pub struct SimulatedProcesses {
    processes: Processes,
    /// The current or last run of each; 0: none.
    generations: Vec<u64>,
}

impl SimulatedProcesses {
    /// Creates the slots of the processes, all closed, and an admission queue for each of the shards with these wakes.
    ///
    /// # Errors
    /// Those of [`Processes::new`].
    pub fn new<Q>(
        limits: ProcessLimits,
        queue: QueueLimits,
        wakes: Vec<Arc<Wake>>,
    ) -> io::Result<(SimulatedProcesses, Vec<ShardAdmissionQueue<Q>>)> {
        let generations = vec![0; limits.processes];
        let (processes, queues) = Processes::new(limits, queue, wakes)?;
        Ok((SimulatedProcesses { processes, generations }, queues))
    }

    /// A new run of a process accepts requests.
    pub fn open(&mut self, process: usize) {
        self.generations[process] += 1;
        self.processes.slots_by_process[process].open(self.generations[process]);
    }

    /// A process accepts no more requests: it has exited, or is being replaced.
    pub fn close(&self, process: usize) {
        self.processes.slots_by_process[process].close();
    }

    /// Whether no request has a slot of the process.
    #[must_use]
    pub fn is_idle(&self, process: usize) -> bool {
        self.processes.slots_by_process[process].is_empty()
    }

    /// Whether the current run of a process is to be killed.
    #[must_use]
    pub fn is_kill_requested(&self, process: usize) -> bool {
        self.processes.slots_by_process[process].is_kill_requested(self.generations[process])
    }

    /// See [`Processes::requests`].
    #[must_use]
    pub fn requests(&self) -> PoolCounters {
        self.processes.requests()
    }
}

impl std::fmt::Debug for SimulatedProcesses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedProcesses").field("generations", &self.generations).finish_non_exhaustive()
    }
}
