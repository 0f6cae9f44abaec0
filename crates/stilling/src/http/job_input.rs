//! Data of a queued job, shared with the session, which frees it when it withdraws the job.
//!
//! A withdrawn job stays in the queue until a worker skips it, possibly only after another job has finished. The memory
//! of its request is freed at once.

use std::sync::{Arc, Mutex, PoisonError};

use super::buffered_request::BufferedRequest;
use super::stream::BodyStream;

/// A value taken by the job when it begins, or dropped by the session when the job is withdrawn.
#[derive(Debug)]
pub(super) struct CancellableInput<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for CancellableInput<T> {
    fn clone(&self) -> Self {
        CancellableInput(Arc::clone(&self.0))
    }
}

impl<T> CancellableInput<T> {
    pub(super) fn new(value: T) -> Self {
        CancellableInput(Arc::new(Mutex::new(Some(value))))
    }

    /// Takes the value when the job begins. `None`: the job was withdrawn.
    pub(super) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Drops the value. Never waits: a withdrawn job does not run, so nothing else holds the lock.
    fn release(&self) {
        if let Ok(mut value) = self.0.try_lock() {
            *value = None;
        }
    }
}

/// The data of a job that may be withdrawn.
#[derive(Debug)]
pub(super) enum JobInput {
    /// A buffered request for a handler.
    Request(CancellableInput<Box<BufferedRequest>>),
    /// A body whose next piece is to be read.
    Stream(CancellableInput<Box<BodyStream>>),
}

impl JobInput {
    pub(super) fn release(self) {
        match self {
            JobInput::Request(request) => request.release(),
            JobInput::Stream(stream) => stream.release(),
        }
    }
}
