//! What the HTTP sessions of one shard count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stilling_engine::counters::Counter;
use stilling_wire::http1::Status;

/// Counters of one shard's HTTP sessions.
#[derive(Debug)]
#[repr(align(128))]
pub struct HttpCounters {
    /// By place in [`Status::ALL`].
    answers: [Counter; Status::ALL.len()],
    /// Answers of worker processes with a status that has no counter of its own.
    pub answers_other: Counter,
    /// Requests that a worker process had still when nobody waited for their answers any more.
    pub app_leftovers: Counter,
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
    /// Given back by whoever drops a request, which may be a worker.
    requests_held: AtomicU64,
    /// Given back by whoever drops an answer, which may be a worker.
    answers_held: AtomicU64,
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
        self.requests_held.load(Ordering::Relaxed)
    }

    /// Bytes of handlers' answers that wait for their clients to take them.
    pub fn answers_held(&self) -> u64 {
        self.answers_held.load(Ordering::Relaxed)
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
            app_leftovers: Counter::new(),
            jobs: Counter::new(),
            jobs_refused: Counter::new(),
            jobs_expired: Counter::new(),
            jobs_overdue: Counter::new(),
            late_results: Counter::new(),
            requests_shed: Counter::new(),
            answers_shed: Counter::new(),
            unavailable: Counter::new(),
            handler_panics: Counter::new(),
            requests_held: AtomicU64::new(0),
            answers_held: AtomicU64::new(0),
            delegated: AtomicU64::new(0),
        }
    }
}

/// Counts one connection as delegated until it is dropped.
#[derive(Debug)]
pub(super) struct DelegatedNow(Arc<HttpCounters>);

impl DelegatedNow {
    pub(super) fn new(counters: &Arc<HttpCounters>) -> Self {
        counters.delegated.fetch_add(1, Ordering::Relaxed);
        DelegatedNow(Arc::clone(counters))
    }
}

impl Drop for DelegatedNow {
    fn drop(&mut self) {
        self.0.delegated.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What bytes are held for.
#[derive(Clone, Copy, Debug)]
enum Sort {
    Request,
    Answer,
}

/// Bytes that count as held for one request, or one answer, until it is dropped, wherever it is then: a request whose
/// client has gone may still lie in the workers' queue, and the source of an answer may be with a worker.
#[derive(Debug)]
pub(crate) struct Held {
    counters: Arc<HttpCounters>,
    sort: Sort,
    bytes: u64,
}

impl Held {
    /// Nothing yet of a request.
    pub(crate) fn new(counters: &Arc<HttpCounters>) -> Self {
        Held { counters: Arc::clone(counters), sort: Sort::Request, bytes: 0 }
    }

    /// So many bytes of an answer; `None` when all answers together would have more than `max`.
    pub(super) fn of_answer(counters: &Arc<HttpCounters>, bytes: usize, max: usize) -> Option<Self> {
        let mut held = Held { counters: Arc::clone(counters), sort: Sort::Answer, bytes: 0 };
        held.grow(bytes, max).then_some(held)
    }

    /// Makes room for more bytes; false when all together would be more than `max`.
    pub(crate) fn grow(&mut self, bytes: usize, max: usize) -> bool {
        // Only the shard adds, so what others give back meanwhile makes more room, never less.
        let fits = self.has_room(bytes, max);
        if fits {
            self.add(bytes);
        }
        fits
    }

    /// Whether all together could grow by so many bytes without being more than `max`.
    pub(crate) fn has_room(&self, bytes: usize, max: usize) -> bool {
        self.all().load(Ordering::Relaxed).saturating_add(bytes as u64) <= max as u64
    }

    /// Counts bytes for which there was [room](Self::has_room).
    pub(super) fn add(&mut self, bytes: usize) {
        self.all().fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes += bytes as u64;
    }

    /// Gives bytes back that were counted.
    pub(super) fn release(&mut self, bytes: usize) {
        let bytes = self.bytes.min(bytes as u64);
        self.all().fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }

    /// Bytes that this counts.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What all of the same sort hold.
    fn all(&self) -> &AtomicU64 {
        match self.sort {
            Sort::Request => &self.counters.requests_held,
            Sort::Answer => &self.counters.answers_held,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all().fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
