//! Counters of one thread. Failures are counted by kind, with evidence of the first of each kind.

use hdrhistogram::Histogram;
use serde::Serialize;
use stilling_engine::counters::Counter;

use super::timeline::Timeline;
use crate::statistics::histogram;

/// Failure of a request or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestFailure {
    /// No connection could be opened.
    ConnectFailed,
    /// The server reset the connection.
    Reset,
    /// The server closed the connection before the end of the answer.
    CutOff,
    /// The next answer, or the announced close of the connection, did not arrive in time.
    Timeout,
    /// The answer is no HTTP response.
    BadResponse,
    /// The status was neither the expected one nor 503.
    UnexpectedStatus,
    /// The body differs from the expected one in length or content.
    WrongBody,
    /// Bytes without a request.
    ExtraBytes,
    /// The generator itself failed: no memory for an answer's head, no descriptor.
    Local,
}

impl RequestFailure {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [RequestFailure; 9] = [
        RequestFailure::ConnectFailed,
        RequestFailure::Reset,
        RequestFailure::CutOff,
        RequestFailure::Timeout,
        RequestFailure::BadResponse,
        RequestFailure::UnexpectedStatus,
        RequestFailure::WrongBody,
        RequestFailure::ExtraBytes,
        RequestFailure::Local,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            RequestFailure::ConnectFailed => "connect_failed",
            RequestFailure::Reset => "reset",
            RequestFailure::CutOff => "cut_off",
            RequestFailure::Timeout => "timeout",
            RequestFailure::BadResponse => "bad_response",
            RequestFailure::UnexpectedStatus => "unexpected_status",
            RequestFailure::WrongBody => "wrong_body",
            RequestFailure::ExtraBytes => "extra_bytes",
            RequestFailure::Local => "local",
        }
    }
}

const STATUS_MIN: u16 = 100;
const STATUSES: usize = 500;

#[derive(Debug)]
pub(crate) struct HttpTally {
    /// From the intended start to the end of the answer; successes only.
    pub(crate) latency: Histogram<u64>,
    /// From sending to the end of the answer, for the same requests.
    pub(crate) service: Histogram<u64>,
    pub(crate) requests: u64,
    pub(crate) ok: u64,
    /// Successes until the planned end of the run.
    pub(crate) ok_in_window: u64,
    pub(crate) shed: u64,
    failures: [u64; RequestFailure::ALL.len()],
    evidence: [Option<String>; RequestFailure::ALL.len()],
    statuses: Box<[u64; STATUSES]>,
    pub(crate) reconnects: u64,
    pub(crate) unsent: u64,
    pub(crate) held: u64,
    pub(crate) last_done: u64,
    pub(crate) timeline: Option<Timeline>,
}

impl HttpTally {
    pub(crate) fn new() -> Self {
        HttpTally {
            latency: histogram(),
            service: histogram(),
            requests: 0,
            ok: 0,
            ok_in_window: 0,
            shed: 0,
            failures: [0; RequestFailure::ALL.len()],
            evidence: [const { None }; RequestFailure::ALL.len()],
            statuses: Box::new([0; STATUSES]),
            reconnects: 0,
            unsent: 0,
            held: 0,
            last_done: 0,
            timeline: None,
        }
    }

    /// Adds `count` failures of a kind. `detail` is called for the first one of a kind only.
    #[cold]
    pub(crate) fn fail(&mut self, failure: RequestFailure, count: u64, detail: impl FnOnce() -> String) {
        self.failures[failure as usize] += count;
        let evidence = &mut self.evidence[failure as usize];
        if evidence.is_none() {
            *evidence = Some(detail());
        }
    }

    /// Counts an answer's status, correct or not.
    pub(crate) fn status(&mut self, status: u16) {
        // The decoder accepts no other status.
        self.statuses[usize::from(status - STATUS_MIN)] += 1;
    }

    pub(crate) fn failures(&self, failure: RequestFailure) -> u64 {
        self.failures[failure as usize]
    }

    pub(crate) fn failures_total(&self) -> u64 {
        self.failures.iter().sum()
    }

    pub(crate) fn evidence(&self, failure: RequestFailure) -> Option<&str> {
        self.evidence[failure as usize].as_deref()
    }

    pub(crate) fn statuses(&self) -> impl Iterator<Item = (u16, u64)> {
        let codes = (STATUS_MIN..).zip(self.statuses.iter().copied());
        codes.filter(|(_, count)| *count > 0)
    }

    pub(crate) fn absorb(&mut self, other: &HttpTally) {
        // Both histograms have the same bounds.
        let _ = self.latency.add(&other.latency);
        let _ = self.service.add(&other.service);
        self.requests += other.requests;
        self.ok += other.ok;
        self.ok_in_window += other.ok_in_window;
        self.shed += other.shed;
        for (at, count) in other.failures.iter().enumerate() {
            self.failures[at] += count;
            if self.evidence[at].is_none() {
                self.evidence[at].clone_from(&other.evidence[at]);
            }
        }
        for (mine, theirs) in self.statuses.iter_mut().zip(other.statuses.iter()) {
            *mine += theirs;
        }
        self.reconnects += other.reconnects;
        self.unsent += other.unsent;
        self.held += other.held;
        self.last_done = self.last_done.max(other.last_done);
        match (&mut self.timeline, &other.timeline) {
            (Some(mine), Some(theirs)) => mine.absorb(theirs),
            (None, Some(theirs)) => self.timeline = Some(theirs.clone()),
            (_, None) => {}
        }
    }
}

/// Counters of a running thread that other threads may read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LiveCounters {
    pub(crate) ok: Counter,
    pub(crate) shed: Counter,
    pub(crate) failures: Counter,
    pub(crate) open: Counter,
    /// Every connection of the thread is held.
    pub(crate) holding: Counter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_index_and_its_json_name() {
        for (number, failure) in RequestFailure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, number);
            assert_eq!(serde_json::to_string(&failure).unwrap(), format!("\"{}\"", failure.name()));
        }
    }

    #[test]
    fn threads_add_up_and_the_first_evidence_stays() {
        let (mut one, mut other) = (HttpTally::new(), HttpTally::new());
        one.fail(RequestFailure::Reset, 2, || "first".to_owned());
        other.fail(RequestFailure::Reset, 1, || "second".to_owned());
        other.fail(RequestFailure::Timeout, 1, || "third".to_owned());
        other.latency.saturating_record(1_000);
        other.status(599);
        one.absorb(&other);
        assert_eq!((one.failures(RequestFailure::Reset), one.failures_total()), (3, 4));
        assert_eq!(one.evidence(RequestFailure::Reset), Some("first"));
        assert_eq!(one.evidence(RequestFailure::Timeout), Some("third"));
        assert_eq!(one.latency.len(), 1);
        assert_eq!(one.statuses().collect::<Vec<_>>(), [(599, 1)]);
    }
}
