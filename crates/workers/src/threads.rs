//! The pool's threads: all created at once, waited for with a deadline.
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
    handles: Vec<JoinHandle<()>>,
}

impl Crew {
    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Threads {
    pub(crate) fn new(count: usize) -> Threads {
        Threads { count, crew: Arc::default() }
    }

    #[cfg(not(loom))]
    pub(crate) fn start<R: Send + 'static>(&self, core: &Arc<Core<R>>) -> io::Result<()> {
        let mut roster = self.crew.roster();
        if roster.started {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the worker pool was started before"));
        }
        roster.started = true;
        for number in 0..self.count {
            let (core, crew) = (Arc::clone(core), Arc::clone(&self.crew));
            let handle = std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                let _leaving = Leaving(crew);
                Core::work(&core, &mut JobContext::real());
            })?;
            roster.alive += 1;
            roster.handles.push(handle);
        }
        Ok(())
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
