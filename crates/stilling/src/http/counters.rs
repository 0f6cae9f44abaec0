//! What the HTTP sessions of one shard count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stilling_engine::counters::Counter;
use stilling_wire::http1::Status;

use crate::memory::{MemoryReservation, MemoryUsage};

/// Counters of one shard's HTTP sessions.
#[derive(Debug)]
#[repr(align(128))]
pub struct HttpCounters {
    /// By place in [`Status::ALL`].
    answers: [Counter; Status::ALL.len()],
    /// Answers of worker processes with a status that has no counter of its own.
    pub answers_other: Counter,
    /// Requests that a worker process had still when nobody waited for their answers any more.
    pub app_requests_abandoned: Counter,
    /// Events of requests to worker processes for peers of datagram sockets whose protocol takes none.
    pub app_replies_dropped: Counter,
    /// Requests whose answer came from a worker, or was to.
    pub jobs: Counter,
    /// Jobs that the worker queue refused because it was full.
    pub jobs_refused: Counter,
    /// Jobs answered 503 because they waited too long.
    pub jobs_expired: Counter,
    /// Jobs answered 503, or whose answer broke off, because they ran too long.
    pub jobs_overdue: Counter,
    /// Results that came when their request had been answered otherwise.
    pub late_results: Counter,
    /// Requests answered 503 because those that wait for their bodies or for workers hold all the memory
    /// that they may.
    pub requests_shed: Counter,
    /// Requests answered 503 because the answers that wait for slow clients hold all the memory that they may.
    pub answers_shed: Counter,
    /// Answers 503 that are no refusal by the server: of `/readyz`, of handlers and of worker processes.
    pub unavailable: Counter,
    /// Handlers that panicked in the shard.
    pub handler_panics: Counter,
    requests_held: Arc<MemoryUsage>,
    answers_held: Arc<MemoryUsage>,
    /// Taken back by the workers that serve them.
    delegated: AtomicU64,
}

impl HttpCounters {
    /// Connections that are in a worker's hands now, or wait for one.
    pub fn delegated(&self) -> u64 {
        self.delegated.load(Ordering::Relaxed)
    }

    /// Bytes of requests that wait for their bodies or for workers, or are with a worker.
    pub fn requests_held(&self) -> u64 {
        self.requests_held.bytes()
    }

    /// Bytes of handlers' answers that wait for their clients to take them.
    pub fn answers_held(&self) -> u64 {
        self.answers_held.bytes()
    }

    /// Memory for a request, none yet.
    pub(super) fn reserve_for_request(&self) -> MemoryReservation {
        MemoryReservation::new(&self.requests_held)
    }

    /// Memory for an answer; `None` when all answers together would hold more than `max`.
    pub(super) fn reserve_for_answer(&self, bytes: usize, max: usize) -> Option<MemoryReservation> {
        let mut reservation = MemoryReservation::new(&self.answers_held);
        reservation.grow(bytes, max).then_some(reservation)
    }

    /// Answers with `status`.
    pub fn answers(&self, status: Status) -> &Counter {
        let at = Status::ALL.iter().position(|counted| *counted == status);
        &self.answers[at.expect("every status stands in the list of all")]
    }

    /// All final answers.
    pub(crate) fn all_answers(&self) -> u64 {
        let counted = Status::ALL.iter().zip(&self.answers).filter(|(status, _)| status.code() >= 200);
        counted.map(|(_, count)| count.get()).sum::<u64>() + self.answers_other.get()
    }

    pub(super) fn count_answer(&self, status: Status) {
        self.answers(status).add(1);
    }

    /// The same of a response, by which the server may refuse.
    pub(super) fn count_response(&self, status: Status, is_refusal: bool) {
        self.count_answer(status);
        self.unavailable.add(u64::from(status == Status::ServiceUnavailable && !is_refusal));
    }

    /// The same of a worker process, with a status that may be any.
    pub(super) fn count_app_answer(&self, code: u16) {
        let at = Status::ALL.iter().position(|counted| counted.code() == code);
        at.map_or(&self.answers_other, |at| &self.answers[at]).add(1);
        self.unavailable.add(u64::from(code == Status::ServiceUnavailable.code()));
    }
}

impl Default for HttpCounters {
    fn default() -> Self {
        HttpCounters {
            answers: [const { Counter::new() }; Status::ALL.len()],
            answers_other: Counter::new(),
            app_requests_abandoned: Counter::new(),
            app_replies_dropped: Counter::new(),
            jobs: Counter::new(),
            jobs_refused: Counter::new(),
            jobs_expired: Counter::new(),
            jobs_overdue: Counter::new(),
            late_results: Counter::new(),
            requests_shed: Counter::new(),
            answers_shed: Counter::new(),
            unavailable: Counter::new(),
            handler_panics: Counter::new(),
            requests_held: Arc::default(),
            answers_held: Arc::default(),
            delegated: AtomicU64::new(0),
        }
    }
}

/// Counts one connection as delegated until it is dropped.
#[derive(Debug)]
pub(super) struct DelegatedGuard(Arc<HttpCounters>);

impl DelegatedGuard {
    pub(super) fn new(counters: &Arc<HttpCounters>) -> Self {
        counters.delegated.fetch_add(1, Ordering::Relaxed);
        DelegatedGuard(Arc::clone(counters))
    }
}

impl Drop for DelegatedGuard {
    fn drop(&mut self) {
        self.0.delegated.fetch_sub(1, Ordering::Relaxed);
    }
}
