//! Result of a run: all figures and all parameters.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use stilling_engine::driver::choice::SelectedDriver;

use super::plan::{HttpPlan, RunLength};
use super::schedule::{RateSchedule, RateStep};
use super::tally::{HttpTally, RequestFailure};
use super::timeline::{Timeline, WINDOW};
use crate::statistics::{LatencySummary, NANOS_PER_MICRO};

/// Requests of the plan that never started, by reason. They are no failures of the server; the rate was not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DroppedRequests {
    /// Due while the backlog was full.
    pub backlog_full: u64,
    /// Due, but no connection was free within the timeout.
    pub waited_too_long: u64,
    /// Not started when the run ended: the time was over, or the server was unreachable.
    pub at_end: u64,
}

impl DroppedRequests {
    /// All reasons together.
    pub fn total(&self) -> u64 {
        self.backlog_full + self.waited_too_long + self.at_end
    }
}

/// Results of the requests due in one step of an open loop.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HttpStepReport {
    /// Requested rate per second.
    pub rate: f64,
    /// Length of the step in seconds.
    pub span_s: f64,
    /// Requests due by the clock.
    pub due: u64,
    /// Started requests.
    pub requests: u64,
    /// Requests with a correct answer.
    pub ok: u64,
    /// Requests answered 503.
    pub shed: u64,
    /// Started requests with neither.
    pub failed: u64,
    /// Correct answers per second that arrived during the step.
    pub goodput_per_s: f64,
    /// From the intended start to the end of a correct answer.
    pub latency: LatencySummary,
    /// From the intended start to the end of a 503.
    pub refusal_latency: LatencySummary,
}

/// Results of the requests due in a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HttpWindowReport {
    /// Start of the window, in seconds after the start of the run.
    pub at_s: f64,
    /// Requests due by the clock.
    pub due: u64,
    /// Requests with a correct answer.
    pub ok: u64,
    /// Their mean latency.
    pub mean_us: f64,
    /// Their maximum latency.
    pub max_us: f64,
}

/// The figures of each step of a schedule for one thread.
pub(crate) fn step_figures(
    steps: &[RateStep],
    schedule: &RateSchedule,
    timeline: &Timeline,
) -> Vec<HttpStepReport> {
    let mut end = Duration::ZERO;
    let figures = steps.iter().zip(&timeline.steps).map(|(step, tally)| {
        let before = schedule.count_within(end);
        end += step.span;
        HttpStepReport {
            rate: step.rate,
            span_s: step.span.as_secs_f64(),
            due: schedule.count_within(end) - before,
            requests: tally.started,
            ok: tally.ok,
            shed: tally.shed,
            failed: tally.started.saturating_sub(tally.ok + tally.shed),
            goodput_per_s: tally.ok_arrived as f64 / step.span.as_secs_f64(),
            latency: LatencySummary::of(&tally.latency),
            refusal_latency: LatencySummary::of(&tally.refusal_latency),
        }
    });
    figures.collect()
}

/// The figures of each window of a schedule for one thread.
pub(crate) fn window_figures(
    steps: &[RateStep],
    schedule: &RateSchedule,
    timeline: &Timeline,
) -> Vec<HttpWindowReport> {
    let whole: Duration = steps.iter().map(|step| step.span).sum();
    let mut start = Duration::ZERO;
    let figures = timeline.windows.iter().map(|window| {
        let at = start;
        start = whole.min(start + WINDOW);
        HttpWindowReport {
            at_s: at.as_secs_f64(),
            due: schedule.count_within(start) - schedule.count_within(at),
            ok: window.ok,
            mean_us: window.latency_nanos as f64 / window.ok.max(1) as f64 / NANOS_PER_MICRO,
            max_us: window.latency_max_nanos as f64 / NANOS_PER_MICRO,
        }
    });
    figures.collect()
}

/// Parameters of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HttpParameters {
    /// URL of the requests.
    pub url: String,
    /// HTTP method.
    pub method: String,
    /// Bytes of each request body.
    pub body_size: u32,
    /// Concurrent connections.
    pub connections: u32,
    /// Threads of the generator.
    pub threads: u32,
    /// Requests in flight per connection.
    pub pipeline: u16,
    /// Whether connections carry many requests.
    pub keep_alive: bool,
    /// Requests per second of an open loop.
    pub rate: Option<f64>,
    /// Requests that end the run.
    pub requests: Option<u64>,
    /// Seconds after which the run ends.
    pub duration_s: Option<f64>,
    /// Seconds for which idle connections are held.
    pub hold_s: Option<f64>,
    /// Seconds of the warm-up.
    pub warmup_s: f64,
    /// Maximum seconds per answer.
    pub timeout_s: f64,
    /// Status of a successful answer.
    pub expect_status: u16,
    /// Bytes of the expected body.
    pub expect_body_size: usize,
}

impl HttpParameters {
    fn of(plan: &HttpPlan, expected_body: &[u8]) -> Self {
        let seconds = |span: Duration| Some(span.as_secs_f64());
        let (requests, duration_s, hold_s) = match plan.length {
            RunLength::Requests(count) => (Some(count), None, None),
            RunLength::Duration(span) => (None, seconds(span), None),
            RunLength::Hold(span) => (None, None, seconds(span)),
        };
        HttpParameters {
            url: plan.url.as_str().to_owned(),
            method: plan.method.clone(),
            body_size: plan.body_size,
            connections: plan.connections,
            threads: plan.threads,
            pipeline: plan.pipeline,
            keep_alive: plan.keep_alive,
            rate: plan.rate,
            requests,
            duration_s,
            hold_s,
            warmup_s: plan.warmup.as_secs_f64(),
            timeout_s: plan.timeout.as_secs_f64(),
            expect_status: plan.expect_status,
            expect_body_size: expected_body.len(),
        }
    }
}

/// Report of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HttpBenchReport {
    /// Parameters of the run.
    pub parameters: HttpParameters,
    /// The driver of the generator: `uring` or `poll`.
    pub driver: String,
    /// Reason why it is not the preferred driver.
    pub driver_fallback: Option<String>,
    /// Measured seconds: the planned duration, else until the last answer.
    pub elapsed_s: f64,
    /// Requests started in that time.
    pub requests: u64,
    /// Answers that are correct in every byte.
    pub ok: u64,
    /// Correct answers per second; of a run with a planned duration, those within it.
    pub rate_per_s: f64,
    /// Answers with status 503 where another was expected: the server sheds load. No failures.
    pub shed: u64,
    /// Failures by kind, all kinds, including those of the warm-up. A request that is neither correct nor shed counts
    /// once, as does a connection that fails without a request.
    pub failures: BTreeMap<&'static str, u64>,
    /// All failures.
    pub failures_total: u64,
    /// First evidence of each kind.
    pub evidence: BTreeMap<&'static str, String>,
    /// Requests that never started.
    pub dropped: DroppedRequests,
    /// Answers by status, including those of the warm-up.
    pub statuses: BTreeMap<u16, u64>,
    /// From the intended start (closed loop: from sending) to the end of the answer; correct answers only.
    pub latency: LatencySummary,
    /// From sending to the end of the answer; open loop only.
    pub service_time: Option<LatencySummary>,
    /// Results per step; empty without steps.
    pub steps: Vec<HttpStepReport>,
    /// Results per tenth of a second; empty without steps.
    pub windows: Vec<HttpWindowReport>,
    /// Received bytes in total.
    pub bytes_received: u64,
    /// Sent bytes in total.
    pub bytes_sent: u64,
    /// Opened connections in total.
    pub connected: u64,
    /// Keep-alive connections that were opened again.
    pub reconnects: u64,
    /// Open connections at the end of holding.
    pub held: u64,
    /// CPU time of the generator's process during the run, in seconds.
    pub cpu_s: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) connected: u64,
}

impl HttpBenchReport {
    pub(crate) fn new(
        plan: &HttpPlan,
        expected_body: &[u8],
        driver: &SelectedDriver,
        tally: &HttpTally,
        dropped: DroppedRequests,
        traffic: Traffic,
        cpu: Duration,
    ) -> HttpBenchReport {
        let until_last = Duration::from_nanos(tally.last_done);
        let (elapsed, counted) = match plan.length {
            RunLength::Duration(span) => (span, tally.ok_in_window),
            RunLength::Requests(_) | RunLength::Hold(_) => (until_last, tally.ok),
        };
        let elapsed_s = elapsed.as_secs_f64();
        let evidence = |failure| {
            tally.evidence(failure).map(|detail| (RequestFailure::name(failure), detail.to_owned()))
        };
        let timed = plan.schedule(0, 1).zip(tally.timeline.as_ref());
        let (steps, windows) = timed.map_or_else(Default::default, |(schedule, timeline)| {
            let steps = &plan.steps;
            (step_figures(steps, &schedule, timeline), window_figures(steps, &schedule, timeline))
        });
        HttpBenchReport {
            parameters: HttpParameters::of(plan, expected_body),
            driver: driver.kind.to_string(),
            driver_fallback: driver.fallback.clone(),
            elapsed_s,
            requests: tally.requests,
            ok: tally.ok,
            rate_per_s: if elapsed_s > 0.0 { counted as f64 / elapsed_s } else { 0.0 },
            shed: tally.shed,
            failures: RequestFailure::ALL.map(|failure| (failure.name(), tally.failures(failure))).into(),
            failures_total: tally.failures_total(),
            evidence: RequestFailure::ALL.into_iter().filter_map(evidence).collect(),
            dropped,
            statuses: tally.statuses().collect(),
            latency: LatencySummary::of(&tally.latency),
            service_time: plan.is_open_loop().then(|| LatencySummary::of(&tally.service)),
            steps,
            windows,
            bytes_received: traffic.received,
            bytes_sent: traffic.sent,
            connected: traffic.connected,
            reconnects: tally.reconnects,
            held: tally.held,
            cpu_s: cpu.as_secs_f64(),
        }
    }

    /// Failures of one kind.
    pub fn failed(&self, failure: RequestFailure) -> u64 {
        self.failures.get(failure.name()).copied().unwrap_or(0)
    }

    /// Returns whether nothing failed and something succeeded. Shed and dropped requests are expected in a planned
    /// overload and do not count.
    pub fn is_good(&self) -> bool {
        self.failures_total == 0 && self.ok > 0
    }
}
