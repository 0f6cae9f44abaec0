//! `cargo xtask soak burst`: ten times the usual load within a second, for ten seconds, and back (row 5.4).
//!
//! ```text
//!  load    ▁▁▁▁▁▂▄▆██████████▁▁▁▁▁▁▁▁▁▁     a connection per request, opened when the request is due
//! ```
//!
//! At ten times the load the work exceeds the workers' capacity, so the queue grows; it stays below its limit, so no
//! request may be refused.

use std::time::Instant;

use clap::Args;

use super::watch::ResourceSample;
use super::{SoakVerdict, conclude, joined, page, sample_until, verdict_table, wait_for_release};
use crate::XtaskResult;
use crate::bench::load_generator::{LoadPlan, LoadReport, LoadShape, LoadStep};
use crate::bench::server::{BenchDriver, BenchServer};
use crate::bench::{copy_binary, figures, isolation, monitor, overload};

/// The server's options: 2 I/O threads, and 4 workers with 5 ms of work per job, at most 800 jobs per second.
const OPTIONS: [&str; 8] = ["-A", "2", "-w", "4", "-D", "5", "--queue-target", "off"];

/// Requests per second before and after the burst.
const NOMINAL: f64 = 100.0;

/// Load of the burst, in multiples of the nominal load.
const TIMES: u32 = 10;

/// Seconds of the nominal load before the burst, of the burst, and of the nominal load after it.
///
/// The 1,500 requests before the burst use each receive buffer of the `uring` driver at least once: the kernel uses the
/// 512 buffers of each shard in turn, so they become resident at any load and do not count as memory of the burst.
const BEFORE_S: f64 = 15.0;
const BURST_S: f64 = 10.0;
const AFTER_S: f64 = 10.0;

/// Steps of the rise to the full load within a second.
const RISE_STEPS: u32 = 10;

/// Limit of the queue, the default.
const QUEUE_MAX: u64 = 4096;

/// Least queued jobs at the peak; fewer mean that the load was no burst.
const QUEUED_MIN: u64 = 500;

/// Least responses per second at the full load: nine tenths of the workers' capacity.
const GOODPUT_MIN: f64 = 720.0;

/// Most seconds from the fall of the load until latency is back to its level before the burst.
const RECOVERY_S: f64 = 5.0;

/// Bound of resident memory after the burst: a factor of the value before it, plus bytes for the tables of connections
/// that were open for the first time.
const MEMORY_PART: f64 = 1.05;
const MEMORY_EXTRA: f64 = 2.0 * 1024.0 * 1024.0;

/// Gauges that must return to zero.
const GAUGES: [&str; 5] = [
    "jobs_queued",
    "jobs_running",
    "http_requests_held_bytes",
    "http_responses_held_bytes",
    "output_held_bytes",
];

#[derive(Args)]
pub(super) struct BurstSoak {
    /// Write the verdicts into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

struct BurstObservation {
    driver: BenchDriver,
    report: LoadReport,
    queued_max: u64,
    gauges: Vec<u64>,
    /// Resident memory before the burst, its maximum, and after the burst.
    memory: [f64; 3],
    ended_well: bool,
}

impl BurstSoak {
    pub(super) fn soak(&self) -> XtaskResult {
        let folder = tempfile::tempdir()?;
        let binary = copy_binary("stilling", folder.path())?;
        println!("TCP congestion control {}", isolation::congestion());
        let mut verdicts = Vec::new();
        for driver in [BenchDriver::Uring, BenchDriver::Poll] {
            let server = BenchServer::stilling(&binary, driver, &OPTIONS)?;
            println!("`{}`", server.command);
            verdicts.extend(watched(server, &binary, driver)?.verdicts());
        }
        print!("{}", verdict_table(&verdicts));
        if self.write {
            let description = format!(
                "Row 5.4. `{}` on `stilling serve {}`, whose workers do at most 800 jobs per second: the queue takes the rest.",
                plan().command_line("/test/slow"),
                OPTIONS.join(" ")
            );
            let title = "A burst of ten times the load".to_owned();
            page::SoakSection { title, command: "cargo xtask soak burst --write".to_owned(), description }
                .write(&verdicts)?;
        }
        conclude(&verdicts)
    }
}

fn plan() -> LoadPlan {
    let step = |times: u32, seconds: f64| LoadStep { rate: NOMINAL * f64::from(times), seconds };
    let mut steps = vec![step(1, BEFORE_S)];
    let rise = 1.0 / f64::from(RISE_STEPS);
    steps.extend((1..=RISE_STEPS).map(|at| step(at * TIMES / RISE_STEPS, rise)));
    steps.extend([step(TIMES, BURST_S), step(1, AFTER_S)]);
    LoadPlan { connections: 10_000, timeout_s: 30.0, manner: LoadShape::Clients(steps) }
}

fn watched(
    server: BenchServer,
    binary: &std::path::Path,
    driver: BenchDriver,
) -> XtaskResult<BurstObservation> {
    let (process, url, start) = (server.first_process(), server.url("/test/slow"), Instant::now());
    let idle = ResourceSample::at(process, 0.0).ok_or("the server ended before the load began")?;
    let total_s = BEFORE_S + 1.0 + BURST_S + AFTER_S;
    let (resource_samples, report) = std::thread::scope(|threads| {
        let generator = threads.spawn(|| plan().run(binary, &url).map_err(|error| error.to_string()));
        (sample_until(process, start, total_s, false), joined(generator))
    });
    let report = report?;
    let after = wait_for_release(process, start, &idle).ok_or("the server ended during the load")?;
    let before = resource_samples.iter().filter(|look| look.at_s < BEFORE_S).map(|look| look.resident);
    let memory = [
        before.fold(idle.resident, f64::max),
        resource_samples.iter().map(|look| look.resident).fold(0.0, f64::max),
        after.resident,
    ];
    let figure = |name: &str| monitor::figure(server.address, name);
    let queued_max = figure("jobs_queued_max")?;
    let gauges = GAUGES.iter().map(|name| figure(name)).collect::<XtaskResult<_>>()?;
    Ok(BurstObservation { driver, report, queued_max, gauges, memory, ended_well: server.end() })
}

impl BurstObservation {
    fn verdicts(&self) -> Vec<SoakVerdict> {
        let name = self.driver.option();
        let mut verdicts = Vec::new();
        let mut judge = |what: &str, limit: String, holds: bool, measured: String| {
            verdicts.push(SoakVerdict { what: format!("{name}: {what}"), limit, holds, measured });
        };
        let LoadReport { ok, shed, failures_total, steps, .. } = &self.report;
        let due: u64 = steps.iter().map(|step| step.due).sum();
        judge(
            "refused or failed",
            "0".to_owned(),
            due > 0 && *ok == due && shed + failures_total == 0,
            format!("{shed} refused, {failures_total} failed, {ok} of {due} answered"),
        );
        judge(
            "most jobs in the queue",
            format!("{QUEUED_MIN} … {QUEUE_MAX}"),
            (QUEUED_MIN..=QUEUE_MAX).contains(&self.queued_max),
            self.queued_max.to_string(),
        );
        let last = steps.len().saturating_sub(1);
        let goodput = last.checked_sub(1).map_or(0.0, |full| steps[full].goodput_per_s);
        judge(
            "no collapse: answers per second at the full load",
            format!("≥ {GOODPUT_MIN}"),
            goodput >= GOODPUT_MIN,
            figures::thousands(goodput),
        );
        let recovery = overload::recovery(std::slice::from_ref(&self.report), last);
        judge(
            "latency is as before again",
            format!("< {RECOVERY_S} s"),
            recovery.is_some_and(|seconds| seconds < RECOVERY_S),
            recovery.map_or_else(|| "not".to_owned(), |seconds| format!("{seconds:.1} s")),
        );
        let [before, most, after] = self.memory;
        let (limit, mib) = (before * MEMORY_PART + MEMORY_EXTRA, |bytes: f64| bytes / (1024.0 * 1024.0));
        judge(
            "resident memory after the burst",
            format!("≤ {:.1} MiB", mib(limit)),
            after <= limit,
            format!("{:.1} MiB; {:.1} before, {:.1} at most", mib(after), mib(before), mib(most)),
        );
        judge(
            "queues and held bytes after the burst",
            "0".to_owned(),
            self.gauges.iter().all(|&value| value == 0) && self.gauges.len() == GAUGES.len(),
            format!("{:?}", self.gauges),
        );
        let measured = if self.ended_well { "status 0" } else { "it did not" };
        judge("the server stops on SIGTERM", "status 0".to_owned(), self.ended_well, measured.to_owned());
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::load_generator::{LoadStepFigures, LoadWindowFigures};

    fn observation() -> BurstObservation {
        let window =
            |at: u32| LoadWindowFigures { at_s: f64::from(at) / 10.0, due: 2, ok: 2, mean_us: 100.0 };
        let span = |step: &LoadStep| LoadStepFigures {
            span_s: step.seconds,
            due: 5,
            goodput_per_s: 790.0,
            ..LoadStepFigures::default()
        };
        let LoadShape::Clients(steps) = plan().manner else { panic!("clients") };
        let report = LoadReport {
            ok: 5 * steps.len() as u64,
            steps: steps.iter().map(span).collect(),
            windows: (0..360).map(window).collect(),
            ..LoadReport::default()
        };
        BurstObservation {
            driver: BenchDriver::Poll,
            report,
            queued_max: 2000,
            gauges: vec![0; GAUGES.len()],
            memory: [5e6, 9e6, 5e6],
            ended_well: true,
        }
    }

    /// Row 5.4: each criterion is judged separately.
    #[test]
    fn every_criterion_of_a_burst_is_checked() {
        let missed = |change: fn(&mut BurstObservation)| -> Vec<String> {
            let mut observation = observation();
            change(&mut observation);
            let missed = observation.verdicts().into_iter().filter(|verdict| !verdict.holds);
            missed.map(|verdict| verdict.what).collect()
        };
        assert!(missed(|_| ()).is_empty());
        assert_eq!(missed(|observation| observation.report.shed = 1), ["poll: refused or failed"]);
        assert_eq!(missed(|observation| observation.report.ok -= 1), ["poll: refused or failed"]);
        assert_eq!(missed(|observation| observation.queued_max = 9), ["poll: most jobs in the queue"]);
        assert_eq!(
            missed(|observation| observation.memory[2] = 9e6),
            ["poll: resident memory after the burst"]
        );
        assert_eq!(
            missed(|observation| observation.gauges[1] = 1),
            ["poll: queues and held bytes after the burst"]
        );
        let slow = |observation: &mut BurstObservation| {
            for window in observation.report.windows.iter_mut().skip(160) {
                window.mean_us = 90_000.0;
            }
        };
        assert_eq!(missed(slow), ["poll: latency is as before again"]);
    }

    #[test]
    fn the_load_rises_to_ten_times_within_a_second() {
        let LoadShape::Clients(steps) = plan().manner else { panic!("clients") };
        let rise = &steps[1..steps.len() - 2];
        assert!((rise.iter().map(|step| step.seconds).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(rise.windows(2).all(|two| two[0].rate < two[1].rate));
        let full = steps[steps.len() - 2];
        assert!((full.rate - 10.0 * steps[0].rate).abs() < 1e-9 && (full.seconds - 10.0).abs() < 1e-9);
    }
}
