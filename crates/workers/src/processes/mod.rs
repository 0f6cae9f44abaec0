//! Supervised worker processes: started, watched, ended and started again, without a word about what they speak.
//!
//! ```text
//!   pool ──► thread with a ProcessSlot ──► Door of process 0 ─┐
//!        ──► thread with a ProcessSlot ──► Door of process 0 ─┤ enter / leave / condemn
//!        ──► thread with a ProcessSlot ──► Door of process 1 ─┘        │ bell
//!                                                                      ▼
//!   supervisor: one thread that starts every process, hears of each death at once (pidfd),
//!   opens a door when the process answers, closes it when it must not get more work
//!      ├─► keeper: ends all processes should this one be killed
//!      └─► relay: what the processes print, line by line, with their names before it
//! ```
//!
//! A process has as many slots as it can do requests at once. A slot is a [`Seat`](crate::Seat) of the pool: while
//! its process is down, its thread takes no jobs. What a job says to its process is the user's, who brings it as an
//! [`Exchange`]; the supervisor only asks it how to start a process and whether one answers yet.
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
mod keeper;
mod life;
pub mod limits;
mod relay;
mod slot;
mod supervisor;
#[cfg(test)]
mod tests;

use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use counters::ProcessCounters;
pub use limits::Limits;
pub use relay::{Sink, Stream, standard_streams};
pub use slot::{Pass, ProcessSlot};

use bell::Bell;
use counters::Tally;
use door::Door;
use supervisor::Supervisor;

/// What is particular about the processes: how one is started, and how it is asked whether it answers.
/// Called by the supervisor's thread alone, which must not be kept waiting.
pub trait Exchange: Send {
    /// The command that starts process `number`. What a former life of it left behind is removed here. Its standard
    /// streams and its process group are the supervisor's to set.
    ///
    /// # Errors
    /// The process cannot be started now; it counts as one that died.
    fn command(&mut self, number: usize) -> io::Result<Command>;

    /// Whether the process answers. Asked again and again from the start on until it does.
    fn is_ready(&mut self, number: usize) -> bool;
}

/// The processes as their owner sees them. Dropping this stops them without grace.
pub struct Processes {
    limits: Limits,
    doors: Vec<Arc<Door>>,
    tally: Arc<Tally>,
    bell: Arc<Bell>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl Processes {
    /// Plans the processes and their slots; nothing is started yet, so the caller may still fork.
    ///
    /// # Errors
    /// The system gives no descriptor to wake the supervisor with.
    pub fn new(limits: Limits) -> io::Result<(Processes, Vec<ProcessSlot>)> {
        let bell = Arc::new(Bell::new()?);
        let doors: Vec<Arc<Door>> = (0..limits.processes)
            .map(|number| Arc::new(Door::new(number, limits.requests_max, Arc::clone(&bell))))
            .collect();
        let slot = |door: &Arc<Door>| ProcessSlot::new(Arc::clone(door));
        // Slot by slot over all processes, so that the first jobs spread.
        let slots = (0..limits.slots).flat_map(|_| doors.iter().map(slot)).collect();
        let tally = Arc::new(Tally::default());
        Ok((Processes { limits, doors, tally, bell, supervisor: Mutex::new(None) }, slots))
    }

    /// Starts all processes. `name` goes before their numbers in what is printed, and all that is printed goes
    /// through `sink`.
    ///
    /// # Errors
    /// What the system says when it refuses a thread, a pipe or the keeper; and
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) the second time.
    pub fn start(&self, name: &'static str, exchange: Box<dyn Exchange>, sink: Sink) -> io::Result<()> {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if supervisor.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the processes were started before"));
        }
        let life = Supervisor::new(
            name,
            self.limits.clone(),
            self.doors.clone(),
            Arc::clone(&self.tally),
            Arc::clone(&self.bell),
            exchange,
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

    /// Asks all processes to end (`SIGTERM`), kills those that still live after `grace`, and starts none again.
    /// Slots that wait for a process wait no longer. A second call may shorten the grace.
    pub fn stop(&self, grace: Duration) {
        for door in &self.doors {
            door.end();
        }
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
