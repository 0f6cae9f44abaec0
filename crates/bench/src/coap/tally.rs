//! Counters of a run. Failures are counted by kind, with evidence of the first of each kind.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use stilling_ring::Time;

use crate::http::Timeline;
use crate::statistics::histogram;

macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Failure of a request or of a datagram.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum CoapFailure { $($(#[$doc])* $name,)* }

        impl CoapFailure {
            /// All kinds, in the order of their discriminants.
            pub const ALL: &[CoapFailure] = &[$(CoapFailure::$name,)*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self { $(CoapFailure::$name => $text,)* }
            }
        }
    };
}

failures! {
    /// A request without a complete response in time.
    Timeout = "timeout";
    /// A datagram that is no CoAP message.
    Malformed = "malformed";
    /// An answer to a request of another source port.
    Misdirected = "misdirected";
    /// An answer with a token that was never sent.
    UnknownToken = "unknown_token";
    /// An acknowledgement with the right token and another message id.
    WrongId = "wrong_id";
    /// A body or block with other bytes than the first response had.
    WrongBody = "wrong_body";
    /// A block that was not requested, or of another representation.
    WrongBlock = "wrong_block";
    /// A response code other than 2.05 (2.04 if executions are counted), 4.29 and 5.03.
    UnexpectedCode = "unexpected_code";
    /// A reset.
    Reset = "reset";
    /// The port of the server is closed.
    Refused = "refused";
    /// A request that the server executed more than once.
    ExecutedTwice = "executed_twice";
    /// A request with a response that the server did not execute.
    NotExecuted = "not_executed";
    /// A source port had no message id left for a block.
    IdsExhausted = "ids_exhausted";
}

/// A time of the run, which starts at zero.
fn time(ns: u64) -> Time {
    Time::ZERO.after(Duration::from_nanos(ns))
}

#[derive(Debug)]
pub(super) struct CoapTally {
    /// From the intended start of a request to the end of its response, in nanoseconds.
    pub(super) latency: Histogram<u64>,
    /// From the intended start of a request to its 4.29 or 5.03, in nanoseconds.
    pub(super) refusal_latency: Histogram<u64>,
    /// Results of the steps of a plan.
    pub(super) timeline: Option<Timeline>,
    pub(super) completed: u64,
    /// Messages with a part of a completed or unfinished body.
    pub(super) blocks: u64,
    /// Requests answered with 4.29 or 5.03.
    pub(super) shed: u64,
    /// Due requests for which no slot was free.
    pub(super) not_sent: u64,
    /// Requests without a response while loss is injected: non-confirmable ones, and confirmable ones after all their
    /// retransmissions.
    pub(super) lost: u64,
    pub(super) retransmissions: u64,
    /// Answers to messages that were answered before.
    pub(super) duplicates: u64,
    /// Datagrams that this system refused to send.
    pub(super) unsent: u64,
    /// Time of the last completion in nanoseconds of the run.
    pub(super) last_ns: u64,
    failures: [u64; CoapFailure::ALL.len()],
    evidence: [Option<String>; CoapFailure::ALL.len()],
}

impl CoapTally {
    pub(super) fn new() -> CoapTally {
        CoapTally {
            latency: histogram(),
            refusal_latency: histogram(),
            timeline: None,
            completed: 0,
            blocks: 0,
            shed: 0,
            not_sent: 0,
            lost: 0,
            retransmissions: 0,
            duplicates: 0,
            unsent: 0,
            last_ns: 0,
            failures: [0; CoapFailure::ALL.len()],
            evidence: [const { None }; CoapFailure::ALL.len()],
        }
    }

    /// Counts a failure. `detail` is called for the first one of a kind only.
    #[cold]
    pub(super) fn fail(&mut self, failure: CoapFailure, detail: impl FnOnce() -> String) {
        self.fail_times(failure, 1, detail);
    }

    /// Counts `count` failures.
    #[cold]
    pub(super) fn fail_times(&mut self, failure: CoapFailure, count: u64, detail: impl FnOnce() -> String) {
        if count > 0 {
            self.failures[failure as usize] += count;
            self.evidence[failure as usize].get_or_insert_with(detail);
        }
    }

    pub(super) fn complete(&mut self, intended_ns: u64, now_ns: u64) {
        self.completed += 1;
        self.last_ns = now_ns;
        self.latency.saturating_record(now_ns.saturating_sub(intended_ns));
        if let Some(timeline) = &mut self.timeline {
            timeline.record_success(time(intended_ns), time(now_ns));
        }
    }

    /// Counts a request that the server refused because of its load.
    pub(super) fn shed(&mut self, intended_ns: u64, now_ns: u64) {
        self.shed += 1;
        self.refusal_latency.saturating_record(now_ns.saturating_sub(intended_ns));
        if let Some(timeline) = &mut self.timeline {
            timeline.record_shed(time(intended_ns), time(now_ns));
        }
    }

    pub(super) fn start(&mut self, intended_ns: u64) {
        if let Some(timeline) = &mut self.timeline {
            timeline.record_started(time(intended_ns));
        }
    }

    pub(super) fn failures(&self) -> BTreeMap<&'static str, u64> {
        let counted = CoapFailure::ALL.iter().map(|kind| (kind.name(), self.failures[*kind as usize]));
        counted.filter(|(_, count)| *count > 0).collect()
    }

    pub(super) fn evidence(&self) -> BTreeMap<&'static str, String> {
        let all = CoapFailure::ALL.iter();
        all.filter_map(|kind| Some((kind.name(), self.evidence[*kind as usize].clone()?))).collect()
    }
}
