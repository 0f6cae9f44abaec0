//! Overload in an open loop: up to ten times the capacity, each time followed by half of it, in one run.
//!
//! ```text
//!  load    ▁ ▂ ▁ ▄ ▁ ▆ ▁ █ ▁     × capacity: ½ 1 ½ 2 ½ 5 ½ 10 ½
//! ```
//!
//! The work is slow and the workers few, so that the server is the bottleneck and not the generator. A client waits a
//! second: later responses are useless to it and do not count as goodput.

use super::figures::{self, PageSection};
use super::harness;
use super::load_generator::{LoadPlan, LoadReport, LoadShape, LoadStep, LoadStepFigures, LoadWindowFigures};
use super::server::{BenchDriver, BenchServer};
use super::targets::BenchTarget;
use super::{HttpBench, machine};
use crate::XtaskResult;

pub(super) const TITLE: &str = "Overload";

/// Path of the requests, and the server's workers and work time.
const SLOW: &str = "/test/slow";
const WORKERS: u64 = 4;
const WORK_MS: u64 = 5;

/// Capacity of those workers, per second.
const CAPACITY: f64 = (WORKERS * 1000 / WORK_MS) as f64;

const TIMEOUT_S: f64 = 1.0;

/// Part of the capacity that nginx admits: a little less than all of it, because the server behind nginx would slowly
/// fill up otherwise.
const ADMITTED_FACTOR: f64 = 0.95;

/// The loads, in multiples of the capacity, and the load before and between them.
const MULTIPLES: [f64; 4] = [1.0, 2.0, 5.0, 10.0];
const NORMAL: f64 = 0.5;

/// A window is back to normal when its latency is at most this factor of the usual, plus this many milliseconds.
const NORMAL_FACTOR: f64 = 2.0;
const NORMAL_EXTRA_MS: f64 = 1.0;

/// Consecutive normal windows that count as recovery.
const NORMAL_WINDOWS: usize = 5;

/// Least goodput at ten times the capacity, as a part of the best goodput.
const GOODPUT_PART_MIN: f64 = 0.9;

/// Most seconds until recovery.
const NORMAL_AGAIN_S: f64 = 1.0;

struct OverloadContender {
    name: &'static str,
    start: fn(&HttpBench) -> XtaskResult<Vec<BenchServer>>,
}

const CONTENDERS: [OverloadContender; 5] = [
    OverloadContender { name: "stilling uring", start: |bench| stilling(bench, BenchDriver::Uring, &[]) },
    OverloadContender { name: "stilling poll", start: |bench| stilling(bench, BenchDriver::Poll, &[]) },
    OverloadContender {
        name: "stilling uring, --queue-target off",
        start: |bench| stilling(bench, BenchDriver::Uring, &OFF),
    },
    OverloadContender { name: "nginx, limit_req", start: nginx },
    OverloadContender { name: "hyper", start: |bench| Ok(vec![bench.hyper(WORKERS, WORK_MS)?]) },
];

/// Disables overload control: where nginx controls the load instead, and in the contender that shows the effect.
const OFF: [&str; 2] = ["--queue-target", "off"];

fn stilling(bench: &HttpBench, driver: BenchDriver, further: &[&str]) -> XtaskResult<Vec<BenchServer>> {
    let (workers, work) = (WORKERS.to_string(), WORK_MS.to_string());
    let options = [&["-w", &workers, "-D", &work][..], further].concat();
    Ok(vec![bench.stilling(driver, &options)?])
}

/// nginx and the server behind it that does the work.
fn nginx(bench: &HttpBench) -> XtaskResult<Vec<BenchServer>> {
    let behind = stilling(bench, BenchDriver::Uring, &OFF)?.remove(0);
    let rate = (CAPACITY * ADMITTED_FACTOR) as u32;
    let front = BenchServer::nginx(bench.folder(), machine::cores(), Some(behind.address), Some(rate))?;
    Ok(vec![front, behind])
}

impl HttpBench {
    pub(super) fn overload(&self) -> XtaskResult<Vec<PageSection>> {
        let runs = harness::run_rounds(self.options.rounds, &CONTENDERS, |round, contender| {
            println!("overload, round {round}, {}", contender.name);
            self.overloaded(contender)
        })?;
        let mut table = figures::table(
            "server | load | requests/s | goodput/s | of its best | p50 ms | p99 ms | p99.9 ms | refused (503) | \
             p99 ms of a refusal | timed out | not started | recovered after s",
        );
        for (contender, runs) in CONTENDERS.iter().zip(&runs) {
            table.extend((0..runs[0].steps.len()).filter_map(|at| row(contender.name, runs, at)));
        }
        self.judge_overload(&runs);
        let description = format!(
            "`{plan}`: keep-alive connections and requests by the clock, at {NORMAL} × the capacity and then at {multiples} \
             times it, each time followed by {NORMAL} × again. The capacity is what the server answers to 64 clients \
             in a closed loop, measured before. Work takes {WORK_MS} ms and there are {WORKERS} workers (`-w {WORKERS} \
             -D {WORK_MS}`), about {CAPACITY} requests/s, so that the server is the bottleneck and the generator can \
             send ten times as much. A client gives up after {TIMEOUT_S} s. *Goodput* counts correct answers that arrived during the \
             step; latencies are those of the correct answers, from the moment at which a request was due; *timed \
             out* are requests without an answer in time; *not started* those for which no connection was free in \
             time. *Recovered after* is the time from the fall of the load to the first half second in which \
             all requests are answered and the mean latency is at most {NORMAL_FACTOR} × the one before the overload \
             (+ {NORMAL_EXTRA_MS} ms). With `--queue-target off` Stilling queues up to 4096 jobs for up to 30 s, \
             more than such clients wait. nginx has no work of its own: it passes requests on to a `stilling serve` with \
             `--queue-target off`, and \
             `limit_req` lets {let_through:.0} % of the capacity through and refuses the rest: it must be configured with the capacity, which the others \
             determine themselves. hyper queues without a limit (`spawn_blocking`).",
            plan = self.overload_plan(CAPACITY).command_line(SLOW),
            multiples = MULTIPLES.map(|multiple| multiple.to_string()).join(", "),
            let_through = ADMITTED_FACTOR * 100.0,
        );
        Ok(vec![PageSection { title: TITLE.to_owned(), description, table }])
    }

    fn overload_plan(&self, capacity: f64) -> LoadPlan {
        let (short, long) = if self.options.quick { (1.0, 1.5) } else { (2.0, 4.0) };
        let normal = LoadStep { rate: capacity * NORMAL, seconds: short };
        let mut steps = vec![normal];
        for multiple in MULTIPLES {
            steps.push(LoadStep {
                rate: capacity * multiple,
                seconds: if multiple > 5.0 { long } else { short },
            });
            // Long enough to see the end of a slow recovery.
            steps.push(LoadStep { seconds: if multiple > 5.0 { 2.0 * long } else { long }, ..normal });
        }
        LoadPlan { connections: 10_000, timeout_s: TIMEOUT_S, manner: LoadShape::Steps(steps) }
    }

    fn overloaded(&self, contender: &OverloadContender) -> XtaskResult<LoadReport> {
        let servers = (contender.start)(self)?;
        let url = servers[0].url(SLOW);
        let seconds = if self.options.quick { 0.5 } else { 2.0 };
        let manner = LoadShape::Closed { seconds, close: false, pipeline: 1 };
        let probe = LoadPlan { connections: 64, timeout_s: 30.0, manner }.run(self.binary(), &url)?;
        // Refusals of nginx do not count as capacity: a refusing server answers as fast as requests arrive.
        let capacity = if probe.shed > 0 { probe.rate_per_s.min(CAPACITY) } else { probe.rate_per_s };
        if capacity < 1.0 {
            return Err(format!("{} answers nothing: {:?}", contender.name, probe.evidence).into());
        }
        self.overload_plan(capacity).run(self.binary(), &url)
    }

    fn judge_overload(&self, runs: &[Vec<LoadReport>]) {
        let last = 2 * MULTIPLES.len() - 1;
        for (contender, runs) in CONTENDERS.iter().zip(runs).take(2) {
            let parts = runs.iter().map(|run| run.steps[last].goodput_per_s / best(run)).collect();
            let part = Some(figures::median(parts));
            let what = format!("goodput at 10 × overload, part of the best, {}", contender.name);
            self.add_target(BenchTarget::at_least(what, GOODPUT_PART_MIN, part, ""));
            let what = format!("recovered after 10 × overload, {}", contender.name);
            self.add_target(BenchTarget::at_most(what, NORMAL_AGAIN_S, recovery(runs, last + 1), "s"));
        }
    }
}

/// The best goodput of any step of a run.
pub(super) fn best(report: &LoadReport) -> f64 {
    report.steps.iter().map(|step| step.goodput_per_s).fold(0.0, f64::max)
}

/// The figures of one step over all runs; `None` for recovery steps, which are shown with the load before them.
fn row(name: &str, runs: &[LoadReport], at: usize) -> Option<Vec<String>> {
    let all = |of: &dyn Fn(&LoadReport, &LoadStepFigures) -> f64| {
        runs.iter().map(|run| of(run, &run.steps[at])).collect::<Vec<f64>>()
    };
    if at > 0 && at.is_multiple_of(2) {
        return None;
    }
    let multiple = if at == 0 { NORMAL } else { MULTIPLES[at / 2] };
    let milliseconds = |of: fn(&LoadStepFigures) -> f64| {
        figures::spread(all(&|_, step| of(step) / 1e3), figures::two_places)
    };
    let part = |of: fn(&LoadStepFigures) -> u64| {
        let parts = all(&|_, step| of(step) as f64 / step.due.max(1) as f64);
        figures::spread(parts, |part| format!("{:.1} %", 100.0 * part))
    };
    let refused = figures::median(all(&|_, step| step.shed as f64));
    let answered = figures::median(all(&|_, step| step.ok as f64)) > 0.0;
    let latency =
        |of: fn(&LoadStepFigures) -> f64| if answered { milliseconds(of) } else { figures::unknown() };
    let again = if at == 0 {
        String::new()
    } else {
        recovery(runs, at + 1).map_or_else(
            || format!("> {:.0}", runs[0].steps[at + 1].span_s),
            |seconds| format!("{seconds:.1}"),
        )
    };
    Some(vec![
        name.to_owned(),
        format!("{multiple} ×"),
        figures::spread(all(&|_, step| step.rate), figures::thousands),
        figures::spread(all(&|_, step| step.goodput_per_s), figures::thousands),
        figures::spread(all(&|run, step| step.goodput_per_s / best(run).max(1.0)), |part| {
            format!("{:.0} %", 100.0 * part)
        }),
        latency(|step| step.latency.p50_us),
        latency(|step| step.latency.p99_us),
        latency(|step| step.latency.p999_us),
        part(|step| step.shed),
        if refused > 0.0 { milliseconds(|step| step.refusal_latency.p99_us) } else { figures::unknown() },
        part(|step| step.failed),
        part(|step| step.due.saturating_sub(step.requests)),
        again,
    ])
}

/// Median recovery time in a step; `None` if half of the runs or more did not recover.
pub(crate) fn recovery(runs: &[LoadReport], at: usize) -> Option<f64> {
    let seconds = runs.iter().map(|report| {
        let before: f64 = report.steps[..at].iter().map(|step| step.span_s).sum();
        let first = report.steps[0].span_s;
        let usual = usual_ms(&report.windows, first)?;
        let end = before + report.steps[at].span_s;
        normal_again(&report.windows, before, end, usual)
    });
    let median = figures::median(seconds.map(|found| found.unwrap_or(f64::INFINITY)).collect());
    median.is_finite().then_some(median)
}

/// Usual latency: the median of the mean latencies of the windows before `end_s`.
fn usual_ms(windows: &[LoadWindowFigures], end_s: f64) -> Option<f64> {
    let means = windows.iter().filter(|window| window.at_s < end_s - 0.05 && window.ok > 0);
    let means: Vec<f64> = means.map(|window| window.mean_us / 1e3).collect();
    (!means.is_empty()).then(|| figures::median(means))
}

/// Seconds from `from_s` until windows are as usual and stay so for a while.
fn normal_again(windows: &[LoadWindowFigures], from_s: f64, until_s: f64, usual_ms: f64) -> Option<f64> {
    let bound_ms = usual_ms * NORMAL_FACTOR + NORMAL_EXTRA_MS;
    // A window that begins before the load falls still contains a part of it.
    let after: Vec<_> = windows
        .iter()
        .filter(|window| window.at_s > from_s - 0.001 && window.at_s < until_s - 0.001)
        .collect();
    let is_normal = |window: &&LoadWindowFigures| window.ok == window.due && window.mean_us / 1e3 <= bound_ms;
    let first = after.windows(NORMAL_WINDOWS).position(|run| run.iter().all(is_normal))?;
    Some((after[first].at_s - from_s).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows from (valid responses of ten, mean in ms).
    fn windows(all: &[(u64, f64)]) -> Vec<LoadWindowFigures> {
        let window = |(at, (ok, mean)): (usize, &(u64, f64))| LoadWindowFigures {
            at_s: at as f64 / 10.0,
            due: 10,
            ok: *ok,
            mean_us: mean * 1e3,
        };
        all.iter().enumerate().map(window).collect()
    }

    #[test]
    fn recovery_means_all_requests_are_answered_as_fast_as_before_and_that_lasts() {
        let usual = [(10, 5.0); 3];
        let flood = [(1, 40.0); 2];
        let back = [(9, 5.0), (10, 5.0), (10, 12.0), (10, 11.0), (10, 5.0), (10, 5.0), (10, 5.0), (10, 5.0)];
        let all = windows(&[&usual[..], &flood, &back].concat());
        let before = usual_ms(&all, 0.3).expect("there are answers");
        assert_eq!(before, 5.0);
        let again = normal_again(&all, 0.5, 1.3, before).expect("the last five are normal");
        assert!((again - 0.3).abs() < 1e-9, "{again}");
        assert_eq!(normal_again(&all, 0.5, 1.2, before), None, "four are not enough");
        assert_eq!(usual_ms(&windows(&[(0, 0.0)]), 0.1), None);
    }

    #[test]
    fn a_row_stands_for_a_load_and_the_way_back_from_it() {
        let step = |rate: f64, goodput_per_s: f64| LoadStepFigures {
            rate,
            span_s: 0.5,
            due: 100,
            requests: 90,
            ok: 60,
            shed: 20,
            failed: 10,
            goodput_per_s,
            ..LoadStepFigures::default()
        };
        let report = LoadReport {
            steps: vec![step(5.0, 4.0), step(10.0, 9.0), step(5.0, 5.0)],
            windows: windows(&[(10, 5.0); 15]),
            ..LoadReport::default()
        };
        let runs = [report];
        let load = row("one", &runs, 1).expect("it is a load");
        assert_eq!(load[..5], ["one", "1 ×", "10", "9", "100 %"]);
        assert_eq!(load[8..], ["20.0 %", "0.00", "10.0 %", "10.0 %", "0.0"]);
        assert_eq!(row("one", &runs, 0).expect("it is a load")[12], "");
        assert_eq!(row("one", &runs, 2), None);
    }
}
