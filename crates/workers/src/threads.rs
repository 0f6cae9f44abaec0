//! The pool's threads: created at the start, or later by the scaler; joined with a deadline.
//!
//! The model checker has no threads and calls `Pool::run_worker` instead; hence plain std here.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::context::JobContext;
use crate::counters::count;
use crate::pool_core::PoolCore;
use crate::scaler::PoolScaler;

/// Worker threads were still running at the deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JoinTimeout {
    /// Number of running threads.
    pub threads: usize,
}

impl fmt::Display for JoinTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} worker thread(s) still run a job at the deadline", self.threads)
    }
}

impl std::error::Error for JoinTimeout {}

pub(crate) struct WorkerThreads {
    count: usize,
    group: Arc<ThreadGroup>,
}

#[derive(Default)]
struct ThreadGroup {
    group_state: Mutex<ThreadGroupState>,
    thread_ended: Condvar,
}

#[derive(Default)]
struct ThreadGroupState {
    started: bool,
    alive: usize,
    /// The next worker's number, for its thread name.
    number: u64,
    handles: Vec<JoinHandle<()>>,
}

impl ThreadGroup {
    fn group_state(&self) -> MutexGuard<'_, ThreadGroupState> {
        self.group_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(not(loom))]
    fn start_worker<R: Send + 'static>(self: &Arc<Self>, core: &Arc<PoolCore<R>>) -> io::Result<()> {
        let mut group_state = self.group_state();
        let name = format!("worker-{}", group_state.number);
        let core = Arc::clone(core);
        self.spawn_member(&mut group_state, name, move || {
            PoolCore::run_worker(&core, &mut JobContext::real());
        })?;
        group_state.number += 1;
        Ok(())
    }

    /// Creates one thread and counts it as alive until it has ended.
    #[cfg(not(loom))]
    fn spawn_member(
        self: &Arc<Self>,
        group_state: &mut ThreadGroupState,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let group_of_thread = Arc::clone(self);
        let thread = std::thread::Builder::new().name(name);
        let handle = thread.spawn(move || {
            let _exit_guard = ExitGuard(group_of_thread);
            body();
        })?;
        group_state.alive += 1;
        // Retired threads need no join.
        group_state.handles.retain(|handle| !handle.is_finished());
        group_state.handles.push(handle);
        Ok(())
    }
}

impl WorkerThreads {
    pub(crate) fn new(count: usize) -> WorkerThreads {
        WorkerThreads { count, group: Arc::default() }
    }

    #[cfg(not(loom))]
    pub(crate) fn start<R: Send + 'static>(
        &self,
        core: &Arc<PoolCore<R>>,
        scaler: Option<PoolScaler<R>>,
    ) -> io::Result<()> {
        if std::mem::replace(&mut self.group.group_state().started, true) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the worker pool was started before"));
        }
        for _ in 0..self.count {
            self.group.start_worker(core)?;
            count(&core.tally.threads_started);
        }
        let Some(scaler) = scaler else { return Ok(()) };
        let (group, core) = (Arc::clone(&self.group), Arc::clone(core));
        self.group.spawn_member(&mut self.group.group_state(), "scaler".to_owned(), move || {
            scaler.run(|| group.start_worker(&core));
        })
    }

    pub(crate) fn join(&self, timeout: Duration) -> Result<(), JoinTimeout> {
        let (mut group_state, _) = self
            .group
            .thread_ended
            .wait_timeout_while(self.group.group_state(), timeout, |group_state| group_state.alive > 0)
            .unwrap_or_else(PoisonError::into_inner);
        if group_state.alive > 0 {
            return Err(JoinTimeout { threads: group_state.alive });
        }
        let handles = std::mem::take(&mut group_state.handles);
        drop(group_state);
        for handle in handles {
            // A worker catches every panic of its jobs, so its result carries nothing.
            drop(handle.join());
        }
        Ok(())
    }
}

/// Counts the thread out, however it ends; a thread that ends before `spawn_member` has counted it waits for the lock.
struct ExitGuard(Arc<ThreadGroup>);

impl Drop for ExitGuard {
    fn drop(&mut self) {
        let mut group_state = self.0.group_state();
        group_state.alive -= 1;
        drop(group_state);
        self.0.thread_ended.notify_all();
    }
}
