//! What a thread of the pool may have to itself, and that decides when the thread takes jobs: a worker process,
//! a device, a licence.
//!
//! A thread whose seat is not ready leaves the jobs to the others. It must not keep a wake to itself either: it
//! was woken for a job that it will not take, so it wakes the next idle thread in its place.
// Seats belong to threads, which the model checker does not have.
#![cfg_attr(loom, allow(dead_code))]

use std::any::Any;

use stilling_ring::sync::Arc;

use crate::context::JobContext;
use crate::core::Core;

/// What a worker thread has to itself. Its methods are called by the one thread that has the seat.
pub trait Seat: Any + Send {
    /// Blocks until [`is_ready`](Seat::is_ready), which it must become at the latest when the pool is to end:
    /// then the thread takes the jobs that are left, and they find what they find.
    fn wait(&mut self);

    /// Whether the thread may take a job. Asked before each.
    fn is_ready(&self) -> bool;
}

impl<R> Core<R> {
    /// The life of a worker with a seat: runs jobs while the seat is ready, until the pool is closed and its queue
    /// is empty.
    pub(crate) fn work_seated(core: &Arc<Core<R>>, context: &mut JobContext) {
        loop {
            context.wait_until_ready();
            while context.is_ready()
                && let Some(running) = Core::take(core)
            {
                running.run(context).deliver();
            }
            let ticket = core.idle.listen();
            if !context.is_ready() {
                core.idle.cancel(ticket);
                // A notification may have counted this thread among the sleepers.
                core.idle.notify_one();
            } else if let Some(running) = Core::take(core) {
                core.idle.cancel(ticket);
                running.run(context).deliver();
            } else if core.is_finished() {
                return core.idle.cancel(ticket);
            } else {
                core.idle.wait(ticket);
                if !context.is_ready() {
                    core.idle.notify_one();
                }
            }
        }
    }
}
