//! The report of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::executions::CoapExecutions;
use super::faults::FaultInjector;
use super::plan::CoapPlan;
use super::tally::CoapTally;
use crate::http::{HttpStepReport, HttpWindowReport, step_figures, window_figures};
use crate::statistics::LatencySummary;

/// Parameters of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoapParameters {
    /// Address of the server.
    pub to: String,
    /// Path and query.
    pub resource: String,
    /// The method.
    pub method: &'static str,
    /// Whether requests are confirmable.
    pub confirmable: bool,
    /// Source ports in use at a time.
    pub sockets: u16,
    /// Requests in flight per source port.
    pub window: u16,
    /// Requests per second, if paced.
    pub rate: Option<f64>,
    /// Least and greatest size of a body in bytes.
    pub body_bytes: (usize, usize),
}

/// Results besides the tally.
#[derive(Debug)]
pub(super) struct CoapRunFigures {
    pub(super) started: u64,
    pub(super) ports: u64,
    pub(super) body_bytes: (usize, usize),
    pub(super) executions: Option<CoapExecutions>,
    pub(super) generator_cpu: Duration,
    pub(super) server_cpu: Option<Duration>,
}

/// Report of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoapReport {
    /// Parameters of the run.
    pub parameters: CoapParameters,
    /// From the start to the last response, in seconds.
    pub elapsed_s: f64,
    /// Started requests.
    pub started: u64,
    /// Requests with a complete and correct response.
    pub completed: u64,
    /// Complete responses per second.
    pub completed_per_s: f64,
    /// Server CPU seconds per million requests, whether completed or shed.
    pub server_cpu_s_per_million_answers: Option<f64>,
    /// Correct messages with a body or block.
    pub blocks: u64,
    /// Requests answered with 4.29 or 5.03.
    pub shed: u64,
    /// Due requests for which no slot was free; in no latency.
    pub not_sent: u64,
    /// Requests without a response while loss is injected: non-confirmable ones, and confirmable ones after all their
    /// retransmissions.
    pub lost: u64,
    /// Messages that were sent again.
    pub retransmissions: u64,
    /// Answers to messages that were answered before.
    pub duplicates: u64,
    /// Executions that the server counted, of requests with and without a response.
    pub executions: Option<CoapExecutions>,
    /// Datagrams that this system refused to send.
    pub unsent: u64,
    /// Datagrams that were dropped, sent twice, and sent late on purpose.
    pub injected: (u64, u64, u64),
    /// Source ports used.
    pub ports: u64,
    /// Times from the intended start of a request to the end of its response.
    pub latency: LatencySummary,
    /// Times from the intended start of a request to its 4.29 or 5.03.
    pub refusal_latency: LatencySummary,
    /// Results of each step of a changing rate.
    pub steps: Vec<HttpStepReport>,
    /// Results of each tenth of a second of a changing rate.
    pub windows: Vec<HttpWindowReport>,
    /// CPU seconds of the generator.
    pub cpu_s: f64,
    /// CPU seconds of the server, if its processes were given.
    pub server_cpu_s: Option<f64>,
    /// The same per million completed requests.
    pub server_cpu_s_per_million: Option<f64>,
    /// Failures by kind.
    pub failures: BTreeMap<&'static str, u64>,
    /// All failures.
    pub failures_total: u64,
    /// The first failure of each kind.
    pub evidence: BTreeMap<&'static str, String>,
}

impl CoapReport {
    pub(super) fn new(
        plan: &CoapPlan,
        tally: &CoapTally,
        faults: &FaultInjector,
        figures: &CoapRunFigures,
    ) -> CoapReport {
        let elapsed_s = Duration::from_nanos(tally.last_ns).as_secs_f64();
        let per = |count: u64, of: f64| if of > 0.0 { count as f64 / of } else { 0.0 };
        let server_cpu_s = figures.server_cpu.map(|time| time.as_secs_f64());
        let failures = tally.failures();
        let timed = plan.schedule().zip(tally.timeline.as_ref());
        let (steps, windows) = timed.map_or_else(Default::default, |(schedule, timeline)| {
            let steps = &plan.steps;
            (step_figures(steps, &schedule, timeline), window_figures(steps, &schedule, timeline))
        });
        CoapReport {
            parameters: CoapParameters {
                to: plan.to.to_string(),
                resource: shown(plan),
                method: if plan.counts_executions { "POST" } else { "GET" },
                confirmable: plan.is_confirmable,
                sockets: plan.sockets,
                window: plan.window,
                rate: plan.rate,
                body_bytes: figures.body_bytes,
            },
            elapsed_s,
            started: figures.started,
            completed: tally.completed,
            server_cpu_s_per_million_answers: server_cpu_s
                .filter(|_| tally.completed + tally.shed > 0)
                .map(|seconds| seconds * 1e6 / (tally.completed + tally.shed) as f64),
            completed_per_s: per(tally.completed, elapsed_s),
            blocks: tally.blocks,
            shed: tally.shed,
            not_sent: tally.not_sent,
            lost: tally.lost,
            retransmissions: tally.retransmissions,
            duplicates: tally.duplicates,
            executions: figures.executions,
            unsent: tally.unsent,
            injected: (faults.lost, faults.duplicated, faults.reordered),
            ports: figures.ports,
            latency: LatencySummary::of(&tally.latency),
            refusal_latency: LatencySummary::of(&tally.refusal_latency),
            steps,
            windows,
            cpu_s: figures.generator_cpu.as_secs_f64(),
            server_cpu_s,
            server_cpu_s_per_million: server_cpu_s
                .filter(|_| tally.completed > 0)
                .map(|seconds| seconds * 1e6 / tally.completed as f64),
            failures_total: failures.values().sum(),
            failures,
            evidence: tally.evidence(),
        }
    }

    /// Returns whether nothing failed and a request was completed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.failures_total == 0 && self.completed > 0
    }
}

fn shown(plan: &CoapPlan) -> String {
    let query = if plan.query.is_empty() { String::new() } else { format!("?{}", plan.query.join("&")) };
    format!("/{}{query}", plan.path.join("/"))
}
