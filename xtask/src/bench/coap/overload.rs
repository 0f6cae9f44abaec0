//! Worker processes behind CoAP: saturation, overload, and the original's way of one blocking process.
//!
//! ```text
//!  load    ▁ ▂ ▅ █ ▁     × capacity of the workers: ½ 1 2 5 10 ½, one open loop
//! ```

use std::fs;
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::CoapBench;
use super::peers::CoapPrograms;
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::harness::{self, is_wanted};
use crate::bench::load_generator::{LatencySpread, LoadReport, LoadStepFigures, LoadWindowFigures};
use crate::bench::overload::recovery;
use crate::bench::server::{BenchDriver, BenchServer};
use crate::bench::targets::BenchTarget;
use crate::python;
use crate::steps::report;

/// Worker processes of all scenarios, as in the original.
const PROCESSES: u32 = 3;

/// Work of a request in milliseconds of sleep.
const WORK_MS: u32 = 20;

/// Requests per second that so many processes can do.
const CAPACITY: f64 = PROCESSES as f64 * 1000.0 / WORK_MS as f64;

/// Least transactions per second with a worker that does nothing.
const SATURATION_MIN: f64 = 20_000.0;

/// Transactions per second of the original: 7,000 per minute.
const ORIGINAL_PER_S: f64 = 7_000.0 / 60.0;

/// Transactions per minute for which a server of the original was sized.
const SIZED_PER_MINUTE: f64 = 1_500.0;

/// Least headroom over that.
const HEADROOM_MIN: f64 = 4.7;

/// The load of the measurement of refusals, in multiples of [`CAPACITY`]: below the limit of refusals per second.
const SHED_MULTIPLE: f64 = 100.0;

/// The loads, in multiples of [`CAPACITY`]; the first and the last are normal.
const MULTIPLES: [f64; 6] = [0.5, 1.0, 2.0, 5.0, 10.0, 0.5];

/// Least goodput of an overload, as a part of the best step's.
const GOODPUT_PART_MIN: f64 = 0.9;

/// Most seconds until latency is as before the overload.
const RECOVERY_S: f64 = 1.0;

/// Most server CPU of a shed request, as a part of a completed one's.
const SHED_COST_MAX: f64 = 1.0 / 20.0;

/// Least throughput over that of one blocking process.
const BLOCKING_RATIO_MIN: f64 = 2.9;

const SMALL_APPLICATION: &str = "\
def answer(environ, start_response):
    start_response('200 OK', [('Content-Length', '64')])
    return [b'x' * 64]
";

const SATURATION_TITLE: &str = "Three worker processes that do nothing";
const OVERLOAD_TITLE: &str = "Three worker processes with 20 ms of work, overloaded";
const BLOCKING_TITLE: &str = "Three worker processes with 20 ms of work beside one blocking process";

/// The part of a report that these tables show.
#[derive(Clone, Deserialize)]
struct WorkerReport {
    completed: u64,
    completed_per_s: f64,
    shed: u64,
    latency: WorkerLatency,
    steps: Vec<LoadStepFigures>,
    windows: Vec<LoadWindowFigures>,
    cpu_s: f64,
    failures_total: u64,
    server_cpu_s_per_million_answers: Option<f64>,
}

#[derive(Clone, Copy, Deserialize)]
struct WorkerLatency {
    p50_us: f64,
    p99_us: f64,
    stdev_us: f64,
}

/// A load on the resource of the workers.
struct WorkerLoad {
    options: Vec<String>,
}

impl WorkerLoad {
    /// As many requests as the window allows.
    fn closed(sockets: u32, window: u32, seconds: u32) -> WorkerLoad {
        WorkerLoad::new(&[
            format!("--sockets={sockets}"),
            format!("--window={window}"),
            format!("--seconds={seconds}"),
        ])
    }

    /// A burst per second: four fifths of the workers' capacity for a fifth of it, and little in between.
    fn bursts(seconds: u32) -> WorkerLoad {
        let steps = vec!["120:0.2,10:0.8"; seconds as usize].join(",");
        WorkerLoad::new(&["--sockets=64".to_owned(), "--window=4".to_owned(), format!("--steps={steps}")])
    }

    fn stepped(capacity: f64, multiples: &[f64], seconds: f64) -> WorkerLoad {
        let steps = multiples.iter().map(|multiple| format!("{:.0}:{seconds}", capacity * multiple));
        let steps = steps.collect::<Vec<_>>().join(",");
        WorkerLoad::new(&["--sockets=256".to_owned(), "--window=64".to_owned(), format!("--steps={steps}")])
    }

    fn new(options: &[String]) -> WorkerLoad {
        let common = ["--timeout=30".to_owned(), "--wait=30".to_owned()];
        WorkerLoad { options: options.iter().cloned().chain(common).collect() }
    }

    fn shown(&self) -> String {
        format!("stilling bench coap URL {}", self.options.join(" "))
    }

    fn run(&self, programs: &CoapPrograms, server: &BenchServer) -> XtaskResult<WorkerReport> {
        let mut command = Command::new(&programs.stilling);
        command.args(["bench", "coap", &format!("coap://{}/work", server.address)]).args(&self.options);
        command.args(server.processes().iter().map(|process| format!("--pid={process}"))).arg("--json");
        report(&mut command)
    }
}

/// The program of the worker processes. Each answers with 64 bytes.
#[derive(Clone, Copy)]
enum WorkerProgram {
    /// `stilling-peer-bare worker`, which sleeps for so many milliseconds.
    Bare(u32),
    /// gunicorn with a function that returns at once.
    Gunicorn,
}

impl WorkerProgram {
    fn command(self, programs: &CoapPrograms) -> XtaskResult<String> {
        let WorkerProgram::Bare(work_ms) = self else {
            let folder = programs.folder.display();
            fs::write(programs.folder.join("small.py"), SMALL_APPLICATION)?;
            let gunicorn = python::GUNICORN.directory().join("bin/gunicorn");
            let gunicorn = gunicorn.display();
            return Ok(format!(
                "exec '{gunicorn}' --no-control-socket --log-level critical --chdir '{folder}' --bind unix:{{socket}} small:answer"
            ));
        };
        Ok(format!("exec '{}' worker '{{socket}}' {work_ms} 64", programs.bare.display()))
    }
}

/// Stilling with a pool for `/work`.
fn with_workers(
    programs: &CoapPrograms,
    driver: BenchDriver,
    worker: WorkerProgram,
) -> XtaskResult<BenchServer> {
    let address = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    let settings = programs.folder.join(format!("workers-{}.toml", address.port()));
    fs::write(&settings, settings_text(&worker.command(programs)?))?;
    let mut command = Command::new(&programs.stilling);
    command.args(["serve", "--accept-threads", "1", "--driver", driver.option(), "--config"]).arg(&settings);
    command.args(["--coap", &address.to_string()]).stdout(Stdio::null());
    let command_line = format!("stilling serve --coap … --driver {} --config …", driver.option());
    BenchServer::with_datagrams(driver.name(), command_line, address, command)
}

fn settings_text(command: &str) -> String {
    format!("[[app]]\nname = 'work'\nmatch = '/work'\ncommand = \"{command}\"\nprocesses = {PROCESSES}\n")
}

/// The original's way: one process that receives, works, sends.
fn blocking(programs: &CoapPrograms) -> XtaskResult<BenchServer> {
    let address = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    let mut command = Command::new(&programs.bare);
    command.args(["coap-blocking", &address.to_string(), "64", &WORK_MS.to_string()]).stdout(Stdio::null());
    let command_line = format!("stilling-peer-bare coap-blocking … 64 {WORK_MS}");
    BenchServer::with_datagrams("one blocking process", command_line, address, command)
}

const DRIVERS: [BenchDriver; 2] = [BenchDriver::Uring, BenchDriver::Poll];

fn medians<T>(runs: &[T], of: impl Fn(&T) -> f64) -> f64 {
    figures::median(runs.iter().map(of).collect())
}

impl CoapBench {
    /// The scenarios with worker processes.
    pub(super) fn with_worker_processes(&self, only: &[String]) -> XtaskResult<Vec<PageSection>> {
        if !self.programs.serves_coap {
            return Ok(Vec::new());
        }
        let mut sections = Vec::new();
        if is_wanted(only, SATURATION_TITLE) {
            sections.push(self.saturated()?);
        }
        if is_wanted(only, OVERLOAD_TITLE) {
            sections.push(self.overloaded()?);
        }
        if is_wanted(only, BLOCKING_TITLE) {
            sections.push(self.beside_blocking()?);
        }
        Ok(sections)
    }

    fn seconds(&self) -> u32 {
        if self.options.quick { 2 } else { 8 }
    }

    /// Rows 1.19 and 1.20.
    fn saturated(&self) -> XtaskResult<PageSection> {
        let load = WorkerLoad::closed(64, 4, self.seconds());
        let runs = harness::run_rounds(self.options.rounds, &DRIVERS, |round, driver| {
            let server = with_workers(&self.programs, *driver, WorkerProgram::Bare(0))?;
            let run = load.run(&self.programs, &server)?;
            println!("{SATURATION_TITLE}, round {round}, {}: {:.0}/s", driver.name(), run.completed_per_s);
            Ok(run)
        })?;
        let mut table = figures::table(
            "server | transactions/s | × original (117/s) | × sizing (1,500/min) | CPU s per million, server and workers | \
             generator CPU s | p50 ms | p99 ms | shed | failures",
        );
        for (driver, runs) in DRIVERS.iter().zip(&runs) {
            let rate = medians(runs, |run| run.completed_per_s);
            let headroom = rate * 60.0 / SIZED_PER_MINUTE;
            let name = driver.name();
            let what = format!("transactions/s through {PROCESSES} worker processes, {name}");
            self.targets.add_target(BenchTarget::at_least(what, SATURATION_MIN, Some(rate), "/s"));
            let what = format!("headroom over 1,500 transactions per minute, {name}");
            self.targets.add_target(BenchTarget::at_least(what, HEADROOM_MIN, Some(headroom), "×"));
            table.push(vec![
                name.to_owned(),
                figures::thousands(rate),
                figures::two_places(rate / ORIGINAL_PER_S),
                figures::thousands(headroom),
                figures::two_places(medians(runs, |run| {
                    run.server_cpu_s_per_million_answers.unwrap_or(f64::NAN)
                })),
                figures::two_places(medians(runs, |run| run.cpu_s)),
                figures::two_places(medians(runs, |run| run.latency.p50_us / 1e3)),
                figures::two_places(medians(runs, |run| run.latency.p99_us / 1e3)),
                runs.iter().map(|run| run.shed).sum::<u64>().to_string(),
                runs.iter().map(|run| run.failures_total).sum::<u64>().to_string(),
            ]);
        }
        let description = format!(
            "`{}`. The worker is `stilling-peer-bare worker`: a blocking Rust program that answers HTTP/1.1 on its Unix socket, a \
             connection after the other. The generator is included in the two cores. A server of the original was sized for 1,500 \
             transactions per minute and did 7,000 at most; the multiples say how far this is from both.",
            load.shown()
        );
        Ok(PageSection { title: SATURATION_TITLE.to_owned(), description, table })
    }

    /// Rows 1.2 and 1.8.
    fn overloaded(&self) -> XtaskResult<PageSection> {
        let load = WorkerLoad::stepped(CAPACITY, &MULTIPLES, self.seconds().into());
        let trivial = WorkerLoad::closed(64, 4, self.seconds());
        // A client per process: more requests than gunicorn answers in time would be shed.
        let one_each = WorkerLoad::closed(PROCESSES, 1, self.seconds());
        let highest = WorkerLoad::stepped(CAPACITY, &[SHED_MULTIPLE], self.seconds().into());
        let runs = harness::run_rounds(self.options.rounds, &DRIVERS, |round, driver| {
            let served_by = |worker, load: &WorkerLoad| {
                load.run(&self.programs, &with_workers(&self.programs, *driver, worker)?)
            };
            let bare = served_by(WorkerProgram::Bare(0), &trivial)?;
            let gunicorn = served_by(WorkerProgram::Gunicorn, &one_each)?;
            let server = with_workers(&self.programs, *driver, WorkerProgram::Bare(WORK_MS))?;
            let steps = load.run(&self.programs, &server)?;
            let shed = highest.run(&self.programs, &server)?;
            let goodput: Vec<_> = steps.steps.iter().map(|step| step.goodput_per_s.round()).collect();
            println!("{OVERLOAD_TITLE}, round {round}, {}: {goodput:?} per second", driver.name());
            let costs = [shed_cost(&bare, &bare, &shed), shed_cost(&gunicorn, &bare, &shed)];
            Ok(OverloadRun { costs, steps })
        })?;
        let mut table = figures::table(
            "server | × capacity | requests/s | goodput/s | of its best | p50 ms | p99 ms | shed | p99 ms of a refusal | failed",
        );
        for (driver, runs) in DRIVERS.iter().zip(&runs) {
            self.judge_overload(*driver, runs);
            for at in 0..MULTIPLES.len() {
                table.push(step_row(driver.name(), at, runs));
            }
        }
        let description = format!(
            "`{}`: an open loop whose rate is a multiple of what {PROCESSES} workers with {WORK_MS} ms of sleep can do, with the \
             server's default options. *Goodput* counts 2.05 that arrived during the step; *shed* are 4.29 and 5.03. The cost of a shed \
             request is the CPU of server and workers at {SHED_MULTIPLE} ×, less that of the completed requests, over that of a \
             request (`{}`) to a worker that does nothing, and of one (`{}`) to gunicorn with a function that returns at once. A bare \
             echo of datagrams costs more than 1/20 of the former.",
            load.shown(),
            trivial.shown(),
            one_each.shown()
        );
        Ok(PageSection { title: OVERLOAD_TITLE.to_owned(), description, table })
    }

    fn judge_overload(&self, driver: BenchDriver, runs: &[OverloadRun]) {
        let name = driver.name();
        for (at, multiple) in MULTIPLES.iter().enumerate().filter(|(_, multiple)| **multiple > 1.0) {
            let part = medians(runs, |run| run.part(at));
            let what = format!("goodput at {multiple} × capacity, part of the best, {name}");
            self.targets.add_target(BenchTarget::at_least(what, GOODPUT_PART_MIN, Some(part), ""));
        }
        for (at, worker) in ["a worker that does nothing", "gunicorn"].into_iter().enumerate() {
            let cost = medians(runs, |run| run.costs[at].unwrap_or(f64::INFINITY));
            let what = format!("server CPU of a shed ÷ of a request to {worker}, {name}");
            self.targets.add_target(BenchTarget::at_most(what, SHED_COST_MAX, Some(cost), ""));
        }
        let reports: Vec<_> = runs.iter().map(|run| run.steps.load_report()).collect();
        let again = recovery(&reports, MULTIPLES.len() - 1);
        let what = format!("seconds until latency is normal after 10 × capacity, {name}");
        self.targets.add_target(BenchTarget::at_most(what, RECOVERY_S, again, "s"));
    }

    /// Row 1.21.
    fn beside_blocking(&self) -> XtaskResult<PageSection> {
        // Two clients per process keep every process busy.
        let load = WorkerLoad::closed(2 * PROCESSES, 1, self.seconds());
        let bursts = WorkerLoad::bursts(self.seconds());
        let contenders = [Some(BenchDriver::Uring), Some(BenchDriver::Poll), None];
        let name_of = |driver: Option<BenchDriver>| driver.map_or("one blocking process", BenchDriver::name);
        let runs = harness::run_rounds(self.options.rounds, &contenders, |round, driver| {
            let server = match driver {
                Some(driver) => with_workers(&self.programs, *driver, WorkerProgram::Bare(WORK_MS))?,
                None => blocking(&self.programs)?,
            };
            let (full, bursts) = (load.run(&self.programs, &server)?, bursts.run(&self.programs, &server)?);
            println!("{BLOCKING_TITLE}, round {round}, {}: {:.1}/s", server.name, full.completed_per_s);
            Ok(BlockingRun { rate: full.completed_per_s, bursts })
        })?;
        let tail = |run: &BlockingRun| run.bursts.latency.p99_us / run.bursts.latency.p50_us;
        let deviation = |run: &BlockingRun| run.bursts.latency.stdev_us / 1e3;
        let mut table = figures::table(
            "server | transactions/s | ÷ one blocking process | p50 ms | p99 ms | p99 ÷ p50 | standard deviation ms | shed or failed",
        );
        let blocking = &runs[2];
        for (driver, runs) in contenders.iter().zip(&runs) {
            let name = name_of(*driver);
            let ratio = medians(runs, |run| run.rate) / medians(blocking, |run| run.rate);
            if driver.is_some() {
                let what = |what: &str| format!("{what}, {name} beside one blocking process");
                let targets = &self.targets;
                targets.add_target(BenchTarget::at_least(
                    what("throughput"),
                    BLOCKING_RATIO_MIN,
                    Some(ratio),
                    "×",
                ));
                let (own, other) = (medians(runs, tail), medians(blocking, tail));
                targets.add_target(BenchTarget::at_most(what("p99 ÷ p50"), other, Some(own), ""));
                let (own, other) = (medians(runs, deviation), medians(blocking, deviation));
                targets.add_target(BenchTarget::at_most(what("standard deviation"), other, Some(own), "ms"));
            }
            table.push(vec![
                name.to_owned(),
                figures::two_places(medians(runs, |run| run.rate)),
                figures::two_places(ratio),
                figures::two_places(medians(runs, |run| run.bursts.latency.p50_us / 1e3)),
                figures::two_places(medians(runs, |run| run.bursts.latency.p99_us / 1e3)),
                figures::two_places(medians(runs, tail)),
                figures::two_places(medians(runs, deviation)),
                runs.iter().map(|run| run.bursts.failures_total + run.bursts.shed).sum::<u64>().to_string(),
            ]);
        }
        let description = format!(
            "Throughput: `{}`; latencies: `{}`, bursts that the workers can serve and one process cannot. Against `stilling serve` with {PROCESSES} worker processes that sleep {WORK_MS} ms, and against \
             `stilling-peer-bare coap-blocking`, which receives a request, sleeps and answers, one after the other.",
            load.shown(),
            bursts.shown()
        );
        Ok(PageSection { title: BLOCKING_TITLE.to_owned(), description, table })
    }
}

struct BlockingRun {
    /// Transactions per second of a closed loop.
    rate: f64,
    bursts: WorkerReport,
}

struct OverloadRun {
    steps: WorkerReport,
    /// CPU of a shed over that of a request to the bare worker, and to gunicorn.
    costs: [Option<f64>; 2],
}

impl OverloadRun {
    /// Goodput of a step, as a part of the best step's.
    fn part(&self, at: usize) -> f64 {
        let best = self.steps.steps.iter().map(|step| step.goodput_per_s).fold(0.0, f64::max);
        self.steps.steps.get(at).map_or(0.0, |step| step.goodput_per_s / best)
    }
}

impl WorkerReport {
    /// CPU seconds of server and workers during the load.
    fn server_cpu_s(&self) -> Option<f64> {
        Some(self.server_cpu_s_per_million_answers? * (self.completed + self.shed) as f64 / 1e6)
    }

    fn load_report(&self) -> LoadReport {
        LoadReport { steps: self.steps.clone(), windows: self.windows.clone(), ..LoadReport::default() }
    }
}

/// CPU of a shed request over that of `request`; `None` without sheds. `completed` costs as much as the completed requests
/// of the overload.
fn shed_cost(request: &WorkerReport, completed: &WorkerReport, overload: &WorkerReport) -> Option<f64> {
    let cpu_s = |report: &WorkerReport| Some(report.server_cpu_s_per_million_answers? / 1e6);
    let of_completed = cpu_s(completed)? * overload.completed as f64;
    let of_sheds = (overload.server_cpu_s()? - of_completed).max(0.0);
    (overload.shed > 0).then_some(of_sheds / overload.shed as f64 / cpu_s(request)?)
}

fn step_row(name: &str, at: usize, runs: &[OverloadRun]) -> Vec<String> {
    let all = |of: &dyn Fn(&LoadStepFigures) -> f64| medians(runs, |run| of(&run.steps.steps[at]));
    let ms = |of: fn(&LatencySpread) -> f64, latency: fn(&LoadStepFigures) -> LatencySpread| {
        figures::two_places(all(&|step| of(&latency(step)) / 1e3))
    };
    vec![
        name.to_owned(),
        MULTIPLES[at].to_string(),
        figures::thousands(all(&|step| step.rate)),
        figures::thousands(all(&|step| step.goodput_per_s)),
        figures::two_places(medians(runs, |run| run.part(at))),
        ms(|latency| latency.p50_us, |step| step.latency),
        ms(|latency| latency.p99_us, |step| step.latency),
        figures::thousands(all(&|step| step.shed as f64)),
        ms(|latency| latency.p99_us, |step| step.refusal_latency),
        figures::thousands(all(&|step| step.failed as f64)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(completed: u64, shed: u64, cpu: f64) -> WorkerReport {
        WorkerReport {
            completed,
            completed_per_s: 1.0,
            shed,
            latency: WorkerLatency { p50_us: 1.0, p99_us: 1.0, stdev_us: 1.0 },
            steps: Vec::new(),
            windows: Vec::new(),
            cpu_s: 0.0,
            failures_total: 0,
            server_cpu_s_per_million_answers: Some(cpu),
        }
    }

    /// Row 1.8: the CPU of completed requests is no cost of the shed ones.
    #[test]
    fn the_cost_of_a_shed_is_what_completed_requests_leave() {
        let request = measured(1_000, 0, 40.0);
        // 100 requests of 40 µs, and 900 sheds of 2 µs.
        let overload = measured(100, 900, (100.0 * 40.0 + 900.0 * 2.0) / 1_000.0);
        let cost = shed_cost(&request, &request, &overload).expect("there are sheds");
        assert!((cost - SHED_COST_MAX).abs() < 1e-9, "{cost}");
        let slower = measured(1_000, 0, 80.0);
        let cost = shed_cost(&slower, &request, &overload).expect("there are sheds");
        assert!((cost - SHED_COST_MAX / 2.0).abs() < 1e-9, "{cost}");
        assert_eq!(shed_cost(&request, &request, &request), None);
    }

    #[test]
    fn steps_are_multiples_of_the_capacity() {
        let load = WorkerLoad::stepped(CAPACITY, &MULTIPLES, 2.0);
        assert!(load.shown().contains("--steps=75:2,150:2,300:2,750:2,1500:2,75:2 "), "{}", load.shown());
    }
}
