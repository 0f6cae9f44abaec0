//! The pool's threads: created at the start, or later by the keeper; waited for with a deadline.
//!
//! Threads do not exist in the model checker, which plays the workers with `Pool::work`; hence plain std here.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::context::JobContext;
use crate::core::Core;
use crate::counters::count;
use crate::keeper::Keeper;

/// Worker threads were still running at the deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unfinished {
    /// How many.
    pub threads: usize,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} worker thread(s) still run a job at the deadline", self.threads)
    }
}

impl std::error::Error for Unfinished {}

pub(crate) struct Threads {
    count: usize,
    crew: Arc<Crew>,
}

#[derive(Default)]
struct Crew {
    roster: Mutex<Roster>,
    one_left: Condvar,
}

#[derive(Default)]
struct Roster {
    started: bool,
    alive: usize,
    /// The next worker's, for its name.
    number: u64,
    handles: Vec<JoinHandle<()>>,
}

impl Crew {
    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(not(loom))]
    fn start_worker<R: Send + 'static>(self: &Arc<Self>, core: &Arc<Core<R>>) -> io::Result<()> {
        let mut roster = self.roster();
        let name = format!("worker-{}", roster.number);
        let core = Arc::clone(core);
        self.enlist(&mut roster, name, move || Core::work(&core, &mut JobContext::real()))?;
        roster.number += 1;
        Ok(())
    }

    /// Creates one thread and counts it as alive until it has ended.
    #[cfg(not(loom))]
    fn enlist(
        self: &Arc<Self>,
        roster: &mut Roster,
        name: String,
        life: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let leaving = Arc::clone(self);
        let thread = std::thread::Builder::new().name(name);
        let handle = thread.spawn(move || {
            let _leaving = Leaving(leaving);
            life();
        })?;
        roster.alive += 1;
        // Those who left a pool that shrank need nobody to wait for them.
        roster.handles.retain(|handle| !handle.is_finished());
        roster.handles.push(handle);
        Ok(())
    }
}

impl Threads {
    pub(crate) fn new(count: usize) -> Threads {
        Threads { count, crew: Arc::default() }
    }

    #[cfg(not(loom))]
    pub(crate) fn start<R: Send + 'static>(
        &self,
        core: &Arc<Core<R>>,
        keeper: Option<Keeper<R>>,
    ) -> io::Result<()> {
        if std::mem::replace(&mut self.crew.roster().started, true) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the worker pool was started before"));
        }
        for _ in 0..self.count {
            self.crew.start_worker(core)?;
            count(&core.tally.threads_started);
        }
        let Some(keeper) = keeper else { return Ok(()) };
        let (crew, core) = (Arc::clone(&self.crew), Arc::clone(core));
        self.crew.enlist(&mut self.crew.roster(), "keeper".to_owned(), move || {
            keeper.keep(|| crew.start_worker(&core));
        })
    }

    pub(crate) fn join(&self, timeout: Duration) -> Result<(), Unfinished> {
        let (mut roster, _) = self
            .crew
            .one_left
            .wait_timeout_while(self.crew.roster(), timeout, |roster| roster.alive > 0)
            .unwrap_or_else(PoisonError::into_inner);
        if roster.alive > 0 {
            return Err(Unfinished { threads: roster.alive });
        }
        let handles = std::mem::take(&mut roster.handles);
        drop(roster);
        for handle in handles {
            // A worker contains every panic of its jobs, so there is nothing to hear from it.
            drop(handle.join());
        }
        Ok(())
    }
}

/// Signs the thread off, however it ends; one that ends before `start` has counted it waits for the roster.
struct Leaving(Arc<Crew>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut roster = self.0.roster();
        roster.alive -= 1;
        drop(roster);
        self.0.one_left.notify_all();
    }
}
