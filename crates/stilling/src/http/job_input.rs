//! What a job in the workers' queue needs: shared with the session, which frees it if the job is withdrawn.
//!
//! A withdrawn job keeps its place in the queue until a worker passes it, which may be a job's length later. The
//! memory of its request must not wait for that.

use std::sync::{Arc, Mutex, PoisonError};

use super::buffered_request::BufferedRequest;
use super::stream::BodyStream;

/// A value that the job takes when it begins, or the session when the job is withdrawn.
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

    /// The job has begun. `None`: it was withdrawn.
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

/// What a job that may be withdrawn holds.
#[derive(Debug)]
pub(super) enum JobInput {
    /// The request that a handler is to answer.
    Request(CancellableInput<Box<BufferedRequest>>),
    /// The body of which a piece is to be read.
    Stream(CancellableInput<Box<BodyStream>>),
}

impl JobInput {
    /// Frees what a withdrawn job holds.
    pub(super) fn release(self) {
        match self {
            JobInput::Request(request) => request.release(),
            JobInput::Stream(stream) => stream.release(),
        }
    }
}
