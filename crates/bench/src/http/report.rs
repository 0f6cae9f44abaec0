//! What came of a run: all figures and all parameters, for people and for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use stilling_engine::driver::choice::SelectedDriver;

use super::plan::{HttpPlan, RunLength};
use super::tally::{HttpTally, RequestFailure};
use super::timeline::{Timeline, WINDOW};
use crate::statistics::{LatencySummary, NANOS_PER_MICRO};

/// Requests of the plan that never began, by reason. They are no failures of the server's, but a
/// rate that was not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DroppedRequests {
    /// Due, but as many as may wait were waiting for a connection already.
    pub backlog_full: u64,
    /// Due, but no connection was free for as long as the timeout.
    pub waited_too_long: u64,
    /// Not begun when the run ended: the time was over, or nobody could be reached any more.
    pub at_end: u64,
}

impl DroppedRequests {
    /// All together.
    pub fn total(&self) -> u64 {
        self.backlog_full + self.waited_too_long + self.at_end
    }
}

/// What became of the requests that should have begun in one step of an open loop.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HttpStepReport {
    /// Requests per second that were asked for.
    pub rate: f64,
    /// Seconds.
    pub span_s: f64,
    /// Requests that the clock asked for.
    pub due: u64,
    /// Those that began.
    pub requests: u64,
    /// Those that were answered rightly.
    pub ok: u64,
    /// Those that were answered 503.
    pub shed: u64,
    /// Those that began and were neither.
    pub failed: u64,
    /// Right answers per second that came during the step.
    pub goodput_per_s: f64,
    /// From the intended start to the end of a right answer.
    pub latency: LatencySummary,
    /// From the intended start to the end of a 503.
    pub refusal: LatencySummary,
}

/// What became of the requests that should have begun in a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HttpWindowReport {
    /// When it began, in seconds after the start.
    pub at_s: f64,
    /// Requests that the clock asked for.
    pub due: u64,
    /// Those that were answered rightly.
    pub ok: u64,
    /// Mean latency of these.
    pub mean_us: f64,
    /// The longest latency of these.
    pub max_us: f64,
}

fn step_figures(plan: &HttpPlan, timeline: &Timeline) -> Vec<HttpStepReport> {
    let Some(schedule) = plan.schedule(0, 1) else { return Vec::new() };
    let mut end = Duration::ZERO;
    let figures = plan.steps.iter().zip(&timeline.steps).map(|(step, tally)| {
        let before = schedule.count_within(end);
        end += step.span;
        HttpStepReport {
            rate: step.rate,
            span_s: step.span.as_secs_f64(),
            due: schedule.count_within(end) - before,
            requests: tally.begun,
            ok: tally.ok,
            shed: tally.shed,
            failed: tally.begun.saturating_sub(tally.ok + tally.shed),
            goodput_per_s: tally.ok_meanwhile as f64 / step.span.as_secs_f64(),
            latency: LatencySummary::of(&tally.latency),
            refusal: LatencySummary::of(&tally.refusal),
        }
    });
    figures.collect()
}

fn window_figures(plan: &HttpPlan, timeline: &Timeline) -> Vec<HttpWindowReport> {
    let Some(schedule) = plan.schedule(0, 1) else { return Vec::new() };
    let whole: Duration = plan.steps.iter().map(|step| step.span).sum();
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

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HttpParameters {
    /// The URL.
    pub url: String,
    /// The method.
    pub method: String,
    /// Bytes of each request's body.
    pub body_size: u32,
    /// Connections at once.
    pub connections: u32,
    /// Threads.
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
    /// Seconds before anything is counted.
    pub warmup_s: f64,
    /// Seconds that an answer may take.
    pub timeout_s: f64,
    /// The status that is a success.
    pub expect_status: u16,
    /// Bytes of the body that is expected.
    pub expect_body_size: usize,
}

impl HttpParameters {
    fn of(plan: &HttpPlan, expected_body: &[u8]) -> Self {
        let seconds = |span: Duration| Some(span.as_secs_f64());
        let (requests, duration_s, hold_s) = match plan.length {
            RunLength::Requests(count) => (Some(count), None, None),
            RunLength::For(span) => (None, seconds(span), None),
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

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HttpBenchReport {
    /// What was asked for.
    pub parameters: HttpParameters,
    /// The driver of the generator: `uring` or `poll`.
    pub driver: String,
    /// Why it is not the first choice.
    pub driver_fallback: Option<String>,
    /// Seconds for which requests were counted: the planned duration, else until the last answer.
    pub elapsed_s: f64,
    /// Requests begun in that time.
    pub requests: u64,
    /// Answers that were right in every byte.
    pub ok: u64,
    /// Right answers per second; of a run with a planned duration, those that came within it.
    pub rate_per_s: f64,
    /// Answers with status 503 where another was expected: the server sheds load. No failures.
    pub shed: u64,
    /// Failures by kind, every kind; those of the warm-up count as well. A request that has neither a
    /// right answer nor was shed is in here once; so is a connection that failed without a request.
    pub failures: BTreeMap<&'static str, u64>,
    /// All failures.
    pub failures_total: u64,
    /// The first failure of each kind in words.
    pub evidence: BTreeMap<&'static str, String>,
    /// Requests that never began.
    pub dropped: DroppedRequests,
    /// Answers by status, those of the warm-up as well.
    pub statuses: BTreeMap<u16, u64>,
    /// From the intended start (in a closed loop: from sending) to the end of the answer; right
    /// answers only.
    pub latency: LatencySummary,
    /// From sending to the end of the answer, whatever the schedule said; open loop only.
    pub service_time: Option<LatencySummary>,
    /// Step by step; empty without steps.
    pub steps: Vec<HttpStepReport>,
    /// Each tenth of a second of the steps; empty without steps.
    pub windows: Vec<HttpWindowReport>,
    /// Bytes received, all in all.
    pub bytes_received: u64,
    /// Bytes sent, all in all.
    pub bytes_sent: u64,
    /// Connections opened, all in all.
    pub connected: u64,
    /// Kept connections that had to be opened again.
    pub reconnects: u64,
    /// Connections that were open at the end of holding.
    pub held: u64,
    /// Processor time that the generator's process used during the run, in seconds.
    pub cpu_s: f64,
}

/// What the engines counted.
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
            RunLength::For(span) => (span, tally.ok_in_window),
            RunLength::Requests(_) | RunLength::Hold(_) => (until_last, tally.ok),
        };
        let elapsed_s = elapsed.as_secs_f64();
        let evidence = |failure| {
            tally.evidence(failure).map(|detail| (RequestFailure::name(failure), detail.to_owned()))
        };
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
            steps: tally.timeline.as_ref().map_or_else(Vec::new, |line| step_figures(plan, line)),
            windows: tally.timeline.as_ref().map_or_else(Vec::new, |line| window_figures(plan, line)),
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

    /// Whether nothing failed and something succeeded. Shed and dropped requests do not count against
    /// it: whoever plans an overload expects them.
    pub fn is_good(&self) -> bool {
        self.failures_total == 0 && self.ok > 0
    }
}
