//! `cargo xtask soak`: a long load of many kinds at once; afterwards all resources must be back at their earlier level.
//!
//! The submodules put load on the server; this module samples and judges it.

mod broadcast;
mod burst;
mod coap;
mod collect;
mod hostile;
mod hostile_traffic;
mod http;
pub(crate) mod page;
mod parallel;
mod schedule;
mod side;
mod succession;
mod tcl;
mod watch;
mod well_behaved;

use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};

use crate::XtaskResult;
use crate::bench::server::BenchDriver;
use crate::bench::{enter_namespace, figures};
use crate::packages;
use crate::steps::{cargo, run};
use watch::{MEASURES, ResourceSample};

const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Time for the server to return to its state before the load: longer than its timeout for a head and its lingering.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Args)]
pub(crate) struct SoakArguments {
    #[command(subcommand)]
    what: SoakCommand,
}

#[derive(Subcommand)]
enum SoakCommand {
    /// The HTTP server under clients of many kinds
    Http(http::HttpSoak),
    /// Only slow and fast requests, as in server-demo's one-hour test
    Parallel(parallel::ParallelSoak),
    /// Streams, with publishers faster than the server
    Collect(collect::CollectSoak),
    /// Fan-out beside subscribers that are slow, flap and resume
    Broadcast(broadcast::BroadcastSoak),
    /// Ten times the usual load within a second, and back
    Burst(burst::BurstSoak),
    /// Overload of CoAP worker processes, and block transfers with loss
    Coap(coap::CoapSoak),
    /// Hostile clients of every kind beside a valid load
    Hostile(hostile::HostileSoak),
    /// A Tcl server through many connections, and under clients that send faster than it reads
    Tcl(tcl::TclSoak),
}

#[derive(Args)]
struct SoakOptions {
    /// Duration of the load in minutes
    #[arg(long, value_name = "M", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    minutes: u32,
    /// Driver of the server
    #[arg(long, value_enum, default_value_t = SoakDriver::Uring)]
    driver: SoakDriver,
    /// Write the verdicts into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

impl SoakOptions {
    fn driver(&self) -> BenchDriver {
        self.driver.driver()
    }

    fn total_s(&self) -> f64 {
        f64::from(self.minutes) * 60.0
    }

    /// Writes the section if requested, and fails with all missed verdicts.
    fn conclude(
        &self,
        name: &str,
        title: &str,
        description: String,
        verdicts: &[SoakVerdict],
    ) -> XtaskResult {
        if self.write {
            let driver = self.driver().option();
            let command =
                format!("cargo xtask soak {name} --minutes {} --driver {driver} --write", self.minutes);
            page::SoakSection { title: format!("{title}, {driver}"), command, description }
                .write(verdicts)?;
        }
        conclude(verdicts)
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum SoakDriver {
    Uring,
    Poll,
}

impl SoakDriver {
    fn driver(self) -> BenchDriver {
        match self {
            SoakDriver::Uring => BenchDriver::Uring,
            SoakDriver::Poll => BenchDriver::Poll,
        }
    }
}

/// A verdict: a criterion, its limit, and whether it holds.
struct SoakVerdict {
    what: String,
    limit: String,
    holds: bool,
    measured: String,
}

impl SoakVerdict {
    /// Whether the server has stopped on SIGTERM with status 0.
    fn of_stop(ended_well: bool) -> SoakVerdict {
        SoakVerdict {
            what: "the server stops on SIGTERM".to_owned(),
            limit: "status 0".to_owned(),
            holds: ended_well,
            measured: if ended_well { "status 0" } else { "it did not" }.to_owned(),
        }
    }
}

impl SoakArguments {
    pub(crate) fn run(self) -> XtaskResult {
        enter_namespace(|| self.what.prepare())?;
        match self.what {
            SoakCommand::Http(soak) => soak.soak(),
            SoakCommand::Parallel(soak) => soak.soak(),
            SoakCommand::Collect(soak) => soak.soak(),
            SoakCommand::Broadcast(soak) => soak.soak(),
            SoakCommand::Burst(soak) => soak.soak(),
            SoakCommand::Coap(soak) => soak.soak(),
            SoakCommand::Hostile(soak) => soak.soak(),
            SoakCommand::Tcl(soak) => soak.soak(),
        }
    }
}

impl SoakCommand {
    /// Builds and installs the programs.
    fn prepare(&self) -> XtaskResult {
        if matches!(self, SoakCommand::Tcl(_)) {
            return tcl::TclSoak::prepare();
        }
        packages::install(&packages::FOR_SOAK)?;
        if matches!(self, SoakCommand::Coap(_)) {
            coap::CoapSoak::prepare()?;
        }
        run(&mut cargo(["build", "--release", "-p", "stilling-cli"]))
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Samples the server until the time is over or the process has ended; prints a status line once a minute if `talks`.
fn sample_until(process: u32, start: Instant, total_s: f64, talks: bool) -> Vec<ResourceSample> {
    let mut resource_samples = Vec::new();
    let mut minute = 0;
    loop {
        let at_s = start.elapsed().as_secs_f64();
        if at_s >= total_s {
            return resource_samples;
        }
        let Some(look) = ResourceSample::at(process, at_s) else {
            println!("the server ended after {at_s:.0} s");
            return resource_samples;
        };
        if talks && at_s as u64 / 60 >= minute {
            let row: Vec<_> = MEASURES
                .iter()
                .map(|measure| format!("{} {}", measure.name, measure.format_value((measure.of)(&look))))
                .collect();
            println!("minute {minute}: {}", row.join(", "));
            minute += 1;
        }
        resource_samples.push(look);
        std::thread::sleep(SAMPLE_INTERVAL);
    }
}

/// Waits, for a bounded time, until the server has no more descriptors than before the load.
fn wait_for_release(process: u32, start: Instant, before: &ResourceSample) -> Option<ResourceSample> {
    let end = Instant::now() + RELEASE_TIMEOUT;
    loop {
        let look = ResourceSample::at(process, start.elapsed().as_secs_f64())?;
        if look.descriptors <= before.descriptors || Instant::now() >= end {
            return Some(look);
        }
        std::thread::sleep(SAMPLE_INTERVAL);
    }
}

/// Judges whether the resources of a server stay level.
fn level(whose: &str, resource_samples: &[ResourceSample], total_s: f64) -> Vec<SoakVerdict> {
    let (warm, end) = (schedule::warm(total_s), schedule::end(total_s));
    let judged = |measure: &watch::ResourceMeasure| {
        let (warm, end) =
            (measure.median_in(resource_samples, warm), measure.median_in(resource_samples, end));
        let bound = measure.format_value(measure.bound(warm));
        SoakVerdict {
            what: format!("level{whose}: {}", measure.name),
            limit: format!("≤ {bound} at the end"),
            holds: measure.is_level(warm, end),
            measured: format!(
                "{} after the warm-up, {} at the end",
                measure.format_value(warm),
                measure.format_value(end)
            ),
        }
    };
    MEASURES.iter().map(judged).collect()
}

fn resource_table(
    before: &ResourceSample,
    resource_samples: &[ResourceSample],
    after: Option<&ResourceSample>,
    total_s: f64,
) -> String {
    let mut text = String::new();
    text += "\n| server | before | after the warm-up | at the end | most | after all clients disconnected |\n|---|---|---|---|---|---|\n";
    let (warm, end) = (schedule::warm(total_s), schedule::end(total_s));
    for measure in MEASURES {
        let most = resource_samples.iter().map(measure.of).fold(0.0, f64::max);
        let cells = [
            measure.format_value((measure.of)(before)),
            measure.format_value(measure.median_in(resource_samples, warm)),
            measure.format_value(measure.median_in(resource_samples, end)),
            measure.format_value(most),
            after.map_or_else(figures::unknown, |after| measure.format_value((measure.of)(after))),
        ];
        text += &format!("| {} | {} |\n", measure.name, cells.join(" | "));
    }
    text
}

fn verdict_table(verdicts: &[SoakVerdict]) -> String {
    let mut text = "\n| criterion | limit | measured | verdict |\n|---|---|---|---|\n".to_owned();
    for SoakVerdict { what, limit, holds, measured } in verdicts {
        let verdict = if *holds { "met" } else { "**missed**" };
        text += &format!("| {what} | {limit} | {measured} | {verdict} |\n");
    }
    text
}

fn conclude(verdicts: &[SoakVerdict]) -> XtaskResult {
    let missed: Vec<&str> =
        verdicts.iter().filter(|verdict| !verdict.holds).map(|verdict| verdict.what.as_str()).collect();
    if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join("; ")).into()) }
}
