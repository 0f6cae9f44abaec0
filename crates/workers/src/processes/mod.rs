//! Supervised worker processes: started, monitored, stopped and restarted, independent of their protocol.
//!
//! ```text
//!   shard 0 ──► ShardAdmissionQueue ─┐ first in,  ┌─► ProcessSlots 0 ─┐
//!   shard 1 ──► ShardAdmissionQueue ─┘ first out  └─► ProcessSlots 1 ─┤ acquire / release / request kill
//!                 ▲   notification when it is a shard's turn          │ wake
//!                 └───────────────────────────────────────────────────┤
//!                                                                     ▼
//!   supervisor: one thread that starts every process, detects each exit at once (pidfd),
//!   opens the slots of a ready process, closes them when it must not get more work
//!      ├─► reaper: kills all processes if this process is killed
//!      └─► output relay: forwards the processes' output line by line, prefixed with their names
//! ```
//!
//! A process has as many slots as concurrent requests. A shard's request waits in its [`ShardAdmissionQueue`] for a
//! [`SlotPermit`], without ever blocking the shard. The shard defines the protocol to the process; a [`WorkerProgram`]
//! defines how a process is started and checked for readiness.
//!
//! With an [`AffinityQueue`] in place of it, each client has a process of its own.
//!
//! - Each process leads its own process group. When it exits or is killed, the whole group is killed.
//! - An exited process is started again, with a growing delay if it keeps exiting ([`limits`]), at once after a stable
//!   uptime.
//! - A hung process is detected by a slot with an overdue request, and killed; `process_slots.rs` defines the criteria.
//! - A process that has reached its number of requests, or exceeds its memory, is replaced when it has no requests, one
//!   process at a time; requests that do not end in time are lost ([`ProcessLimits::drain_timeout`]).
//! - A reload starts a second set of processes beside the first. When all of the second are ready, the first retires,
//!   and the second serves. Process `n` of one set is the successor of process `n` of the other.

mod admission_queue;
mod affinity;
mod backoff;
mod counters;
pub mod limits;
mod managed_process;
mod memory;
mod output_relay;
mod permit;
mod process_set;
mod process_slots;
mod reaper;
mod shard_queue;
mod simulated;
mod supervisor;
#[cfg(test)]
mod tests;
mod waker;

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use stilling_ring::Wake;

pub use admission_queue::QueueLimits;
pub use affinity::{AffinityCounters, AffinityQueue};
pub use counters::ProcessCounters;
pub use limits::ProcessLimits;
pub use output_relay::{OutputSink, StandardStream, standard_streams};
pub use permit::{ConnectionClaim, ConnectionPermit, SlotPermit};
pub use shard_queue::{AdmissionOutcome, AdmissionTicket, ShardAdmissionQueue};
pub use simulated::SimulatedProcesses;

use admission_queue::AdmissionQueue;
use counters::ProcessTally;
use process_slots::ProcessSlots;
use supervisor::Supervisor;
use waker::SupervisorWaker;

/// Sets of processes: the current one, and one that starts or ends during a reload.
pub const PROCESS_SETS: usize = 2;

/// Start command and readiness check of the processes. Called only by the supervisor's thread, which must not block.
pub trait WorkerProgram: Send {
    /// Returns the command that starts process `number` for the run `generation`, after removing the remains of an
    /// earlier run. The supervisor sets its standard streams and process group.
    ///
    /// # Errors
    /// The process cannot be started now; it counts as exited.
    fn command(&mut self, number: usize, generation: u64) -> io::Result<Command>;

    /// Whether the command has standard input and output of its own. Otherwise the process has no input, and its output
    /// goes to the log, as the standard error always does.
    fn sets_input_and_output(&self) -> bool {
        false
    }

    /// A folder used by the processes alone: the reaper removes it with its contents if this process is killed.
    fn folder(&self) -> Option<PathBuf> {
        None
    }

    /// Whether the process is ready. Called repeatedly after the start until it returns true.
    ///
    /// # Errors
    /// The process does not become ready: it is killed, and the reason printed.
    fn is_ready(&mut self, number: usize) -> Result<bool, String>;
}

/// The owner's handle to the processes. Dropping it kills them without grace.
pub struct Processes {
    limits: ProcessLimits,
    slots_by_process: Arc<[Arc<ProcessSlots>]>,
    admission_queue: Arc<AdmissionQueue>,
    tally: Arc<ProcessTally>,
    waker: Arc<SupervisorWaker>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl Processes {
    /// Creates the slots of the processes, and an admission queue for each of the shards with these wakes. Starts
    /// nothing, so the caller may still fork.
    ///
    /// # Errors
    /// The system provides no descriptor to wake the supervisor with.
    pub fn new<Q>(
        limits: ProcessLimits,
        queue: QueueLimits,
        wakes: Vec<Arc<Wake>>,
    ) -> io::Result<(Processes, Vec<ShardAdmissionQueue<Q>>)> {
        let waker = Arc::new(SupervisorWaker::new()?);
        let shards = wakes.len();
        let admission_queue = Arc::new(AdmissionQueue::new(queue, wakes));
        let process_slots = |number| {
            let (waker, admission_queue) = (Arc::clone(&waker), Arc::clone(&admission_queue));
            Arc::new(ProcessSlots::new(number, limits.slots, limits.requests_max, waker, admission_queue))
        };
        let slots_by_process: Arc<[Arc<ProcessSlots>]> =
            (0..PROCESS_SETS * limits.processes).map(process_slots).collect();
        let shard_queues = (0..shards)
            .map(|shard| ShardAdmissionQueue::new(&admission_queue, &slots_by_process, shard))
            .collect();
        let tally = Arc::new(ProcessTally::default());
        Ok((
            Processes {
                limits,
                slots_by_process,
                admission_queue,
                tally,
                waker,
                supervisor: Mutex::new(None),
            },
            shard_queues,
        ))
    }

    /// Starts all processes. `name` precedes their numbers in the output, which goes through `sink`.
    ///
    /// # Errors
    /// The system's error when it refuses a thread, a pipe or the reaper;
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) the second time.
    pub fn start(&self, name: &str, program: Box<dyn WorkerProgram>, sink: OutputSink) -> io::Result<()> {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if supervisor.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the processes were started before"));
        }
        let new_supervisor = Supervisor::new(
            name,
            self.limits.clone(),
            self.slots_by_process.to_vec(),
            Arc::clone(&self.tally),
            Arc::clone(&self.waker),
            program,
            sink,
        )?;
        *supervisor =
            Some(std::thread::Builder::new().name("supervisor".to_owned()).spawn(|| new_supervisor.run())?);
        Ok(())
    }

    /// Replaces all processes by those of `program`, without losing a request: they start beside the present ones, which
    /// get no more requests once all new ones are ready, and then end. If a new one ends or is late before that, the
    /// present ones remain. During a reload, only the latest further one is kept.
    pub fn reload(&self, program: Box<dyn WorkerProgram>) {
        self.waker.request_reload(program);
    }

    /// Returns a snapshot of the counters.
    #[must_use]
    pub fn counters(&self) -> ProcessCounters {
        self.tally.snapshot(self.limits.processes)
    }

    /// Returns a snapshot of the request counters. Its thread counts are zero.
    #[must_use]
    pub fn requests(&self) -> crate::PoolCounters {
        self.admission_queue.counters()
    }

    /// Returns a snapshot of the counters of affinity: zero without an [`AffinityQueue`].
    #[must_use]
    pub fn affinity(&self) -> AffinityCounters {
        self.admission_queue.affinity.snapshot()
    }

    /// Stops all processes (`SIGTERM`), kills the remaining ones after `grace`, and restarts none. A second call may
    /// shorten the grace.
    pub fn stop(&self, grace: Duration) {
        self.waker.stop(grace);
    }

    /// Waits at most `timeout` for the end of all processes. Returns whether they have ended.
    #[must_use]
    pub fn join(&self, timeout: Duration) -> bool {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = supervisor.take() else { return true };
        if self.tally.wait_until_finished(timeout) {
            // After a panic of the supervisor, the reaper has killed the processes.
            drop(thread.join());
            return true;
        }
        *supervisor = Some(thread);
        false
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
        let _ = self.join(limits::KILL_TIMEOUT);
    }
}
