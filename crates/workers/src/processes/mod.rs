//! Supervised worker processes: started, watched, ended and started again, without a word about what they speak.
//!
//! ```text
//!   shard 0 ──► Entrance ─┐ first come,  ┌─► Door of process 0 ─┐
//!   shard 1 ──► Entrance ─┘ first served └─► Door of process 1 ─┤ go in / leave / condemn
//!                 ▲   a knock when it is a shard's turn         │ bell
//!                 └──────────────────────────────────────────── ┤
//!                                                               ▼
//!   supervisor: one thread that starts every process, hears of each death at once (pidfd),
//!   opens a door when the process answers, closes it when it must not get more work
//!      ├─► keeper: ends all processes should this one be killed
//!      └─► relay: what the processes print, line by line, with their names before it
//! ```
//!
//! A process has as many slots as it can do requests at once. A shard that has a request waits at its [`ShardAdmissionQueue`] for
//! the permission to ask a process ([`SlotPermit`]), without ever blocking. What it says to the process is its own affair;
//! how a process is started and whether one answers yet, the supervisor asks a [`WorkerProgram`].
//!
//! - Each process leads a process group of its own. When it has died, or must, the whole group is killed.
//! - One that dies is started again, the later the more often it dies ([`limits`]); one that lived for long, at once.
//! - One that hangs is condemned by the slot that waited, and killed: what counts as hanging stands in `process_slots.rs`.
//! - One that has done its number of requests is replaced when no request is under way, one process at a time; requests
//!   that have not come to their end by then are lost ([`ProcessLimits::drain_timeout`]).

mod admission_queue;
mod backoff;
mod counters;
pub mod limits;
mod managed_process;
mod output_relay;
mod permit;
mod process_slots;
mod reaper;
mod shard_queue;
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
pub use counters::ProcessCounters;
pub use limits::ProcessLimits;
pub use output_relay::{OutputSink, StandardStream, standard_streams};
pub use permit::{ConnectionClaim, ConnectionPermit, SlotPermit};
pub use shard_queue::{AdmissionOutcome, AdmissionTicket, ShardAdmissionQueue};

use admission_queue::AdmissionQueue;
use counters::ProcessTally;
use process_slots::ProcessSlots;
use supervisor::Supervisor;
use waker::SupervisorWaker;

/// What is particular about the processes: how one is started, and how it is asked whether it answers.
/// Called by the supervisor's thread alone, which must not be kept waiting.
pub trait WorkerProgram: Send {
    /// The command that starts process `number`. What a former life of it left behind is removed here. Its standard
    /// streams and its process group are the supervisor's to set.
    ///
    /// # Errors
    /// The process cannot be started now; it counts as one that died.
    fn command(&mut self, number: usize) -> io::Result<Command>;

    /// A folder that serves the processes alone: removed, with all that is in it, if this process is killed and cannot
    /// remove it itself.
    fn folder(&self) -> Option<PathBuf> {
        None
    }

    /// Whether the process answers. Asked again and again from the start on until it does.
    fn is_ready(&mut self, number: usize) -> bool;
}

/// The processes as their owner sees them. Dropping this stops them without grace.
pub struct Processes {
    limits: ProcessLimits,
    slots_by_process: Arc<[Arc<ProcessSlots>]>,
    admission_queue: Arc<AdmissionQueue>,
    tally: Arc<ProcessTally>,
    waker: Arc<SupervisorWaker>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl Processes {
    /// Plans the processes and their slots, and an entrance for each of the shards that these wake; nothing is started
    /// yet, so the caller may still fork.
    ///
    /// # Errors
    /// The system gives no descriptor to wake the supervisor with.
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
        let slots_by_process: Arc<[Arc<ProcessSlots>]> = (0..limits.processes).map(process_slots).collect();
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

    /// Starts all processes. `name` goes before their numbers in what is printed, and all that is printed goes
    /// through `sink`.
    ///
    /// # Errors
    /// What the system says when it refuses a thread, a pipe or the keeper; and
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) the second time.
    pub fn start(
        &self,
        name: &'static str,
        program: Box<dyn WorkerProgram>,
        sink: OutputSink,
    ) -> io::Result<()> {
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

    /// The counters at about this moment.
    #[must_use]
    pub fn counters(&self) -> ProcessCounters {
        self.tally.snapshot(self.slots_by_process.len())
    }

    /// What has become of the requests for them at about this moment. There are no threads among it.
    #[must_use]
    pub fn requests(&self) -> crate::PoolCounters {
        self.admission_queue.counters()
    }

    /// Asks all processes to end (`SIGTERM`), kills those that still live after `grace`, and starts none again.
    /// A second call may shorten the grace.
    pub fn stop(&self, grace: Duration) {
        self.waker.stop(grace);
    }

    /// Waits for the end of all processes, at most for `timeout`. Returns whether they have ended.
    #[must_use]
    pub fn join(&self, timeout: Duration) -> bool {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = supervisor.take() else { return true };
        if self.tally.wait_until_finished(timeout) {
            // A panic of its own has ended the processes, too: the keeper did that.
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
