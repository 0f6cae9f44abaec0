//! What the HTTP sessions of one shard count.

use stilling_engine::counters::Counter;
use stilling_wire::http1::Status;

/// The statuses this server answers with, as they are counted.
pub const COUNTED: [Status; 14] = [
    Status::Ok,
    Status::BadRequest,
    Status::NotFound,
    Status::MethodNotAllowed,
    Status::RequestTimeout,
    Status::ContentTooLarge,
    Status::UriTooLong,
    Status::ExpectationFailed,
    Status::RequestHeaderFieldsTooLarge,
    Status::InternalServerError,
    Status::NotImplemented,
    Status::ServiceUnavailable,
    Status::HttpVersionNotSupported,
    Status::Continue,
];

/// Counters of one shard's HTTP sessions.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct HttpCounters {
    answers: [Counter; COUNTED.len()],
    /// Requests whose answer came from a worker, or was to.
    pub jobs: Counter,
    /// Jobs that the worker queue refused because it was full.
    pub jobs_refused: Counter,
    /// Jobs answered 503 because they waited too long.
    pub jobs_expired: Counter,
    /// Results that came when their request had been answered otherwise.
    pub late_results: Counter,
}

impl HttpCounters {
    /// Answers with `status`.
    pub fn answers(&self, status: Status) -> &Counter {
        let at = COUNTED.iter().position(|counted| *counted == status);
        &self.answers[at.expect("every status the sessions use is counted")]
    }
}
