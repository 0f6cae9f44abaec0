//! What the HTTP sessions of one shard count.

use stilling_engine::counters::Counter;
use stilling_wire::http1::Status;

/// Counters of one shard's HTTP sessions.
#[derive(Debug)]
#[repr(align(128))]
pub struct HttpCounters {
    /// By place in [`Status::ALL`].
    answers: [Counter; Status::ALL.len()],
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
    /// Handlers that panicked in the shard.
    pub handler_panics: Counter,
    /// Bytes of requests that wait for their bodies or for workers.
    pub requests_held: Counter,
}

impl HttpCounters {
    /// Answers with `status`.
    pub fn answers(&self, status: Status) -> &Counter {
        let at = Status::ALL.iter().position(|counted| *counted == status);
        &self.answers[at.expect("every status stands in the list of all")]
    }

    pub(super) fn count_answer(&self, status: Status) {
        self.answers(status).add(1);
    }
}

impl Default for HttpCounters {
    fn default() -> Self {
        HttpCounters {
            answers: [const { Counter::new() }; Status::ALL.len()],
            jobs: Counter::new(),
            jobs_refused: Counter::new(),
            jobs_expired: Counter::new(),
            jobs_overdue: Counter::new(),
            late_results: Counter::new(),
            requests_shed: Counter::new(),
            handler_panics: Counter::new(),
            requests_held: Counter::new(),
        }
    }
}
