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
//! A process has as many slots as it can do requests at once. A shard that has a request waits at its [`Entrance`] for
//! the permission to ask a process ([`Pass`]), without ever blocking. What it says to the process is its own affair;
//! how a process is started and whether one answers yet, the supervisor asks a [`Program`].
//!
//! - Each process leads a process group of its own. When it has died, or must, the whole group is killed.
//! - One that dies is started again, the later the more often it dies ([`limits`]); one that lived for long, at once.
//! - One that hangs is condemned by the slot that waited, and killed: what counts as hanging stands in `door.rs`.
//! - One that has done its number of requests is replaced when no request is under way, one process at a time; requests
//!   that have not come to their end by then are lost ([`Limits::drain_timeout`]).

mod backoff;
mod bell;
mod counters;
mod door;
mod entrance;
mod hall;
mod keeper;
mod life;
pub mod limits;
mod relay;
mod slot;
mod supervisor;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use stilling_ring::Wake;

pub use counters::ProcessCounters;
pub use entrance::{Called, Entrance, Ticket};
pub use hall::QueueLimits;
pub use limits::Limits;
pub use relay::{Sink, Stream, standard_streams};
pub use slot::{Claim, Line, Pass};

use bell::Bell;
use counters::Tally;
use door::Door;
use hall::Hall;
use supervisor::Supervisor;

/// What is particular about the processes: how one is started, and how it is asked whether it answers.
/// Called by the supervisor's thread alone, which must not be kept waiting.
pub trait Program: Send {
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
    limits: Limits,
    doors: Arc<[Arc<Door>]>,
    hall: Arc<Hall>,
    tally: Arc<Tally>,
    bell: Arc<Bell>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl Processes {
    /// Plans the processes and their slots, and an entrance for each of the shards that these wake; nothing is started
    /// yet, so the caller may still fork.
    ///
    /// # Errors
    /// The system gives no descriptor to wake the supervisor with.
    pub fn new<Q>(
        limits: Limits,
        queue: QueueLimits,
        wakes: Vec<Arc<Wake>>,
    ) -> io::Result<(Processes, Vec<Entrance<Q>>)> {
        let bell = Arc::new(Bell::new()?);
        let shards = wakes.len();
        let hall = Arc::new(Hall::new(queue, wakes));
        let door = |number| {
            let (bell, hall) = (Arc::clone(&bell), Arc::clone(&hall));
            Arc::new(Door::new(number, limits.slots, limits.requests_max, bell, hall))
        };
        let doors: Arc<[Arc<Door>]> = (0..limits.processes).map(door).collect();
        let entrances = (0..shards).map(|shard| Entrance::new(&hall, &doors, shard)).collect();
        let tally = Arc::new(Tally::default());
        Ok((Processes { limits, doors, hall, tally, bell, supervisor: Mutex::new(None) }, entrances))
    }

    /// Starts all processes. `name` goes before their numbers in what is printed, and all that is printed goes
    /// through `sink`.
    ///
    /// # Errors
    /// What the system says when it refuses a thread, a pipe or the keeper; and
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) the second time.
    pub fn start(&self, name: &'static str, program: Box<dyn Program>, sink: Sink) -> io::Result<()> {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if supervisor.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the processes were started before"));
        }
        let life = Supervisor::new(
            name,
            self.limits.clone(),
            self.doors.to_vec(),
            Arc::clone(&self.tally),
            Arc::clone(&self.bell),
            program,
            sink,
        )?;
        *supervisor = Some(std::thread::Builder::new().name("supervisor".to_owned()).spawn(|| life.run())?);
        Ok(())
    }

    /// The counters at about this moment.
    #[must_use]
    pub fn counters(&self) -> ProcessCounters {
        self.tally.snapshot(self.doors.len())
    }

    /// What has become of the requests for them at about this moment. There are no threads among it.
    #[must_use]
    pub fn requests(&self) -> crate::Counters {
        self.hall.counters()
    }

    /// Asks all processes to end (`SIGTERM`), kills those that still live after `grace`, and starts none again.
    /// A second call may shorten the grace.
    pub fn stop(&self, grace: Duration) {
        self.bell.stop(grace);
    }

    /// Waits for the end of all processes, at most for `patience`. Returns whether they have ended.
    #[must_use]
    pub fn join(&self, patience: Duration) -> bool {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = supervisor.take() else { return true };
        if self.tally.wait_until_over(patience) {
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
        let _ = self.join(limits::KILL_PATIENCE);
    }
}
