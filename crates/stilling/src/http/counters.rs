//! Counters of one shard's HTTP sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stilling_engine::counters::Counter;
use stilling_wire::http1::Status;

use crate::memory::{MemoryReservation, MemoryUsage};

/// Counters of one shard's HTTP sessions.
#[derive(Debug)]
#[repr(align(128))]
pub struct HttpCounters {
    /// By index in [`Status::ALL`].
    responses: [Counter; Status::ALL.len()],
    /// Responses of worker processes with a status that has no counter of its own.
    pub responses_other: Counter,
    /// Requests that a worker process had when their clients left or timed out.
    pub app_requests_abandoned: Counter,
    /// Events of worker processes' responses to datagrams, dropped because the protocol of the socket accepts none.
    pub app_replies_dropped: Counter,
    /// Requests submitted to a worker or a worker process.
    pub jobs: Counter,
    /// Jobs refused because the worker queue was full.
    pub jobs_refused: Counter,
    /// Jobs answered 503 because they waited too long.
    pub jobs_expired: Counter,
    /// Jobs that ran too long: answered 503, or their response was cut off.
    pub jobs_overdue: Counter,
    /// Results of jobs that arrived after another response had been sent.
    pub late_results: Counter,
    /// Requests answered 503 because the memory for requests that wait for bodies or workers was exhausted.
    pub requests_shed: Counter,
    /// Requests answered 503 because the memory for responses that wait for slow clients was exhausted.
    pub responses_shed: Counter,
    /// 503 responses of `/readyz`, handlers and worker processes, which do not count as refusals by the server.
    pub unavailable: Counter,
    /// Handlers that panicked in the shard.
    pub handler_panics: Counter,
    requests_held: Arc<MemoryUsage>,
    responses_held: Arc<MemoryUsage>,
    /// Decremented by the workers that serve the connections.
    delegated: AtomicU64,
}

impl HttpCounters {
    /// Connections that a worker serves, or that wait for a worker.
    pub fn delegated(&self) -> u64 {
        self.delegated.load(Ordering::Relaxed)
    }

    /// Bytes of requests that wait for their bodies or for workers, or that workers process.
    pub fn requests_held(&self) -> u64 {
        self.requests_held.bytes()
    }

    /// Bytes of responses that wait for their clients.
    pub fn responses_held(&self) -> u64 {
        self.responses_held.bytes()
    }

    pub(super) fn reserve_for_request(&self) -> MemoryReservation {
        MemoryReservation::new(&self.requests_held)
    }

    /// A reservation for a response; `None` if all responses together would hold more than `max` bytes.
    pub(super) fn reserve_for_response(&self, bytes: usize, max: usize) -> Option<MemoryReservation> {
        let mut reservation = MemoryReservation::new(&self.responses_held);
        reservation.grow(bytes, max).then_some(reservation)
    }

    /// The number of responses with `status`.
    pub fn responses(&self, status: Status) -> &Counter {
        let at = Status::ALL.iter().position(|counted| *counted == status);
        &self.responses[at.expect("`ALL` lists every status")]
    }

    /// The number of final responses.
    pub(crate) fn all_responses(&self) -> u64 {
        let counted = Status::ALL.iter().zip(&self.responses).filter(|(status, _)| status.code() >= 200);
        counted.map(|(_, count)| count.get()).sum::<u64>() + self.responses_other.get()
    }

    pub(super) fn count_status(&self, status: Status) {
        self.responses(status).add(1);
    }

    /// Counts a response. `is_refusal`: the server itself refuses the request.
    pub(super) fn count_response(&self, status: Status, is_refusal: bool) {
        self.count_status(status);
        self.unavailable.add(u64::from(status == Status::ServiceUnavailable && !is_refusal));
    }

    pub(super) fn count_app_response(&self, code: u16) {
        let at = Status::ALL.iter().position(|counted| counted.code() == code);
        at.map_or(&self.responses_other, |at| &self.responses[at]).add(1);
        self.unavailable.add(u64::from(code == Status::ServiceUnavailable.code()));
    }
}

impl Default for HttpCounters {
    fn default() -> Self {
        HttpCounters {
            responses: [const { Counter::new() }; Status::ALL.len()],
            responses_other: Counter::new(),
            app_requests_abandoned: Counter::new(),
            app_replies_dropped: Counter::new(),
            jobs: Counter::new(),
            jobs_refused: Counter::new(),
            jobs_expired: Counter::new(),
            jobs_overdue: Counter::new(),
            late_results: Counter::new(),
            requests_shed: Counter::new(),
            responses_shed: Counter::new(),
            unavailable: Counter::new(),
            handler_panics: Counter::new(),
            requests_held: Arc::default(),
            responses_held: Arc::default(),
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
