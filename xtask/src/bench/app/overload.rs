//! An app that gets five times the requests of its capacity: alone, behind nginx, behind Stilling.
//!
//! ```text
//!  load    ▁ █ ▁     × rate of a closed loop: ½ 5 ½
//! ```
//!
//! Each request uses a new connection: a synchronous worker waits for silent connections, and the app alone could not
//! be measured otherwise. A client waits a second.

use super::AppBench;
use super::proxies::{self, BackendApp, UpstreamReuse};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::harness;
use crate::bench::load_generator::{LoadPlan, LoadReport, LoadShape, LoadStep, LoadStepFigures};
use crate::bench::overload::{best, recovery};
use crate::bench::server::{BenchDriver, BenchServer};
use crate::bench::targets::BenchTarget;

const TIMEOUT_S: f64 = 1.0;

/// Clients of the closed loop that measures the app's capacity: two per process keep every process busy and waits
/// short.
const CLIENTS: u32 = 2 * proxies::PROCESSES;

/// Connections of the open loop: more than requests arrive within a client's timeout.
const CONNECTIONS: u32 = 4000;

/// The loads, in multiples of the closed loop's rate.
const NORMAL: f64 = 0.5;
const MULTIPLE: f64 = 5.0;

/// Least goodput at that load, as a part of the best goodput.
const GOODPUT_PART_MIN: f64 = 0.9;

/// Most seconds until recovery.
const NORMAL_AGAIN_S: f64 = 1.0;

/// A server, and the app behind it unless the server started it.
type StartedApp = (BenchServer, Option<BackendApp>);

struct AppContender {
    name: &'static str,
    start: fn(&AppBench) -> XtaskResult<StartedApp>,
    has_target: bool,
}

const CONTENDERS: [AppContender; 4] = [
    AppContender {
        name: "stilling uring",
        start: |bench| stilling(bench, BenchDriver::Uring),
        has_target: true,
    },
    AppContender {
        name: "stilling poll",
        start: |bench| stilling(bench, BenchDriver::Poll),
        has_target: true,
    },
    AppContender { name: "nginx", start: nginx, has_target: false },
    AppContender {
        name: "gunicorn alone",
        start: |bench| Ok((proxies::gunicorn_alone(bench.folder())?, None)),
        has_target: false,
    },
];

fn stilling(bench: &AppBench, driver: BenchDriver) -> XtaskResult<StartedApp> {
    let processes = proxies::PROCESSES.to_string();
    let options = ["--processes", &processes];
    let command = format!("exec {}", proxies::gunicorn_command(bench.folder(), "unix:{socket}", 1));
    let server = proxies::stilling(&bench.environment.binary, driver, &options, &command, SHOWN)?;
    Ok((server, None))
}

/// The app as a reader types it.
const SHOWN: &str = "gunicorn --bind unix:{socket} works:answer";

fn nginx(bench: &AppBench) -> XtaskResult<StartedApp> {
    let app = BackendApp::gunicorn(bench.folder())?;
    Ok((proxies::nginx(bench.folder(), &app, UpstreamReuse::Fresh)?, Some(app)))
}

struct OverloadRun {
    /// Most valid responses per second, in the closed loop or in any step.
    best: f64,
    report: LoadReport,
}

impl OverloadRun {
    fn overload(&self) -> &LoadStepFigures {
        &self.report.steps[1]
    }

    fn part(&self) -> f64 {
        self.overload().goodput_per_s / self.best
    }
}

impl AppBench {
    pub(super) fn overload(&self) -> XtaskResult<PageSection> {
        let runs = harness::run_rounds(self.options.rounds, &CONTENDERS, |round, contender| {
            let run = self.overloaded(contender)?;
            let (name, best, goodput) = (contender.name, run.best, run.overload().goodput_per_s);
            let part = 100.0 * run.part();
            println!(
                "overload, round {round}, {name}: best {best:.0}/s, goodput {goodput:.0}/s ({part:.0} %)"
            );
            Ok(run)
        })?;
        let mut table = figures::table(
            "server | best/s | requests/s | goodput/s | of its best | p50 ms | p99 ms | refused (503) | \
             p99 ms of a refusal | failed | not started | recovered after s",
        );
        for (contender, runs) in CONTENDERS.iter().zip(runs) {
            let (row, again) = row(contender.name, &runs);
            if contender.has_target {
                let parts = figures::median(runs.iter().map(OverloadRun::part).collect());
                let what = format!("goodput at {MULTIPLE} × overload, part of the best, {}", contender.name);
                self.targets.add_target(BenchTarget::at_least(what, GOODPUT_PART_MIN, Some(parts), ""));
                let what = format!("recovered after {MULTIPLE} × overload, {}", contender.name);
                self.targets.add_target(BenchTarget::at_most(what, NORMAL_AGAIN_S, again, "s"));
            }
            table.push(row);
        }
        let description = format!(
            "`{probe}` finds a rate. Then the load is {NORMAL} × it, {MULTIPLE} × and {NORMAL} × again, as in \
             `{plan}` where it is 300/s; the table has the middle step. *Best* is that rate, or a step's goodput that \
             was greater. Each request comes over a connection of its own, and its client gives up after {TIMEOUT_S} s. The app is gunicorn with {processes} synchronous workers \
             that sleep 5 ms for each request (`xtask/src/bench/app/works.py`): alone on TCP, behind nginx with \
             `proxy_pass` and no limit, and behind \
             `stilling serve --processes {processes} --app '{SHOWN}'`. *Goodput* counts correct answers that arrived during the \
             step; latencies are those of the correct answers, from the moment at which a request was due; *failed* \
             are requests without an answer in time, or with one that is neither correct nor 503; *not started* those \
             for which no connection was free in time; *recovered after* as under *Overload*.",
            probe = self.probe().command_line("/"),
            plan = self.plan(300.0).command_line("/"),
            processes = proxies::PROCESSES,
        );
        Ok(PageSection { title: "Five times what the app can do".to_owned(), description, table })
    }

    fn probe(&self) -> LoadPlan {
        let seconds = if self.options.quick { 1.0 } else { 3.0 };
        let manner = LoadShape::Closed { seconds, close: true, pipeline: 1 };
        LoadPlan { connections: CLIENTS, timeout_s: 30.0, manner }
    }

    fn plan(&self, rate: f64) -> LoadPlan {
        let (short, long) = if self.options.quick { (1.0, 2.0) } else { (2.0, 5.0) };
        let step = |multiple, seconds| LoadStep { rate: rate * multiple, seconds };
        let steps = vec![step(NORMAL, short), step(MULTIPLE, long), step(NORMAL, long)];
        LoadPlan { connections: CONNECTIONS, timeout_s: TIMEOUT_S, manner: LoadShape::Clients(steps) }
    }

    fn overloaded(&self, contender: &AppContender) -> XtaskResult<OverloadRun> {
        let (server, _app) = (contender.start)(self)?;
        // The first response also shows that the app is ready.
        proxies::answers(&server)?;
        let (binary, url) = (&self.environment.binary, server.url("/"));
        let probe = self.probe().run(binary, &url)?;
        let closed = probe.rate_per_s;
        if closed < 1.0 || probe.shed + probe.failures_total > 0 {
            return Err(format!(
                "{} does not answer {CLIENTS} clients: {closed:.0}/s, {} refused, {:?}",
                contender.name, probe.shed, probe.evidence
            )
            .into());
        }
        let report = self.plan(closed).run(binary, &url)?;
        Ok(OverloadRun { best: closed.max(best(&report)), report })
    }
}

/// The figures of all runs, and the recovery time.
fn row(name: &str, runs: &[OverloadRun]) -> (Vec<String>, Option<f64>) {
    let all = |of: &dyn Fn(&LoadStepFigures) -> f64| {
        figures::median(runs.iter().map(|run| of(run.overload())).collect())
    };
    let spread = |of: &dyn Fn(&OverloadRun) -> f64, show: fn(f64) -> String| {
        figures::spread(runs.iter().map(of), show)
    };
    let part = |of: fn(&LoadStepFigures) -> u64| {
        format!("{:.1} %", 100.0 * all(&|step| of(step) as f64 / step.due.max(1) as f64))
    };
    let milliseconds = |known: bool, of: fn(&LoadStepFigures) -> f64| {
        if known { figures::two_places(all(&|step| of(step)) / 1e3) } else { figures::unknown() }
    };
    let (answered, refused) = (all(&|step| step.ok as f64) > 0.0, all(&|step| step.shed as f64) > 0.0);
    let reports: Vec<LoadReport> = runs.iter().map(|run| run.report.clone()).collect();
    let again = recovery(&reports, 2);
    let row = vec![
        name.to_owned(),
        spread(&|run| run.best, figures::thousands),
        figures::thousands(all(&|step| step.rate)),
        spread(&|run| run.overload().goodput_per_s, figures::thousands),
        spread(&|run| 100.0 * run.part(), |part| format!("{part:.0} %")),
        milliseconds(answered, |step| step.latency.p50_us),
        milliseconds(answered, |step| step.latency.p99_us),
        part(|step| step.shed),
        milliseconds(refused, |step| step.refusal_latency.p99_us),
        part(|step| step.failed),
        part(|step| step.due.saturating_sub(step.requests)),
        again.map_or_else(
            || format!("> {:.0}", runs[0].report.steps[2].span_s),
            |seconds| format!("{seconds:.1}"),
        ),
    ];
    (row, again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_shown_as_a_part_of_the_best_and_never_of_the_load() {
        let step = |goodput_per_s| LoadStepFigures {
            rate: 1000.0,
            span_s: 2.0,
            due: 100,
            requests: 80,
            ok: 10,
            shed: 60,
            failed: 10,
            goodput_per_s,
            ..LoadStepFigures::default()
        };
        let run = |goodput| OverloadRun {
            best: 200.0,
            report: LoadReport {
                steps: vec![step(100.0), step(goodput), step(100.0)],
                ..LoadReport::default()
            },
        };
        let (row, again) = row("one", &[run(180.0)]);
        assert_eq!(row[..5], ["one", "200", "1,000", "180", "90 %"]);
        assert_eq!(row[7..], ["60.0 %", "0.00", "10.0 %", "20.0 %", "> 2"]);
        assert_eq!(again, None, "no window shows that it became normal");
    }
}
