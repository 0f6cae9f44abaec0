//! `cargo xtask soak hostile`: every kind of hostile client at once, beside a valid load that may not fail (row 5.5).
//!
//! ```text
//!  valid, keep-alive connections  ████████████████████████    0 failed
//!  valid, a connection each       ████████████████████████    0 failed
//!  SYN flood, slowloris, resets,    ████████████████████
//!  never reading, oversize,         ████████████████████
//!  more connections than descriptors
//! ```
//!
//! Each kind must prove that it took place. Everything stays in a network namespace of this process; the source
//! addresses of the flood are reserved for benchmarks (RFC 2544), and their responses end in a pair of virtual
//! interfaces there.

mod clients;
mod syn;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::Args;

use super::hostile_traffic::HostileTraffic;
use super::{SoakVerdict, conclude, joined, page, verdict_table};
use crate::XtaskResult;
use crate::bench::load_generator::{LoadPlan, LoadReport, LoadShape, LoadStep};
use crate::bench::server::{BenchDriver, BenchServer};
use crate::bench::{copy_binary, figures, isolation, monitor};
use clients::HostileCounts;
use syn::SynNetwork;

/// Limit of the server's open files: fewer than the connections opened.
const DESCRIPTORS: u32 = 400;

/// The server's options: short timeouts, as for a public server.
const OPTIONS: [&str; 8] = [
    "--demo",
    "-A",
    "1",
    "--first-byte-timeout=1",
    "--head-timeout=2",
    "--write-timeout=2",
    "--queue-target",
    "off",
];

/// The valid load: requests per second on keep-alive connections, and with a connection each.
const KEPT_RATE: f64 = 300.0;
const CLOSED_RATE: f64 = 20.0;

/// Timeout of a valid client in seconds: shorter than the hostile load, so that waiting for its end does not help.
const TIMEOUT_S: f64 = 5.0;

/// Time by which the valid load begins before and ends after the hostile load.
const LEAD_TIME: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(super) struct HostileSoak {
    /// Seconds of the hostile load on each driver
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(10..=3600))]
    seconds: u32,
    /// Write the verdicts into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

struct HostileObservation {
    driver: BenchDriver,
    valid: [(&'static str, LoadReport); 2],
    /// Evidence of each kind of hostile load, with its count.
    counts: Vec<(&'static str, u64)>,
    ended_well: bool,
}

impl HostileSoak {
    pub(super) fn soak(&self) -> XtaskResult {
        if !isolation::is_in_namespace() {
            return Err("a SYN flood needs its own network namespace: run as root".into());
        }
        let network = SynNetwork::set_up()?;
        let folder = tempfile::tempdir()?;
        let binary = copy_binary("stilling", folder.path())?;
        let mut verdicts = Vec::new();
        for driver in [BenchDriver::Uring, BenchDriver::Poll] {
            verdicts.extend(self.watched(&network, &binary, driver)?.verdicts());
        }
        print!("{}", verdict_table(&verdicts));
        if self.write {
            let description = format!(
                "Row 5.5. A valid load of {KEPT_RATE} requests/s on keep-alive connections and {CLOSED_RATE}/s with a connection \
                 each, on `stilling serve {}` with {DESCRIPTORS} open files, beside all kinds of hostile clients at once.",
                OPTIONS.join(" ")
            );
            let command = format!("cargo xtask soak hostile --seconds {} --write", self.seconds);
            page::SoakSection { title: "Hostile clients beside valid ones".to_owned(), command, description }
                .write(&verdicts)?;
        }
        conclude(&verdicts)
    }

    fn watched(
        &self,
        network: &SynNetwork,
        binary: &Path,
        driver: BenchDriver,
    ) -> XtaskResult<HostileObservation> {
        let server = start(binary, driver)?;
        println!("`{}`", server.command);
        let (hostile_traffic, counts, over) =
            (HostileTraffic::default(), HostileCounts::default(), AtomicBool::new(false));
        let (address, url) = (server.address, server.url("/test/fast"));
        let before = network.counters()?;
        let (reports, flood) = std::thread::scope(|threads| {
            let valid = self.valid().map(|(name, plan)| {
                let url = &url;
                let run = move || plan.run(binary, url).map_err(|error| error.to_string());
                (name, threads.spawn(run))
            });
            std::thread::sleep(LEAD_TIME);
            threads.spawn(|| hostile_traffic.reset(address, &over));
            threads.spawn(|| hostile_traffic.trickle(address, &over));
            threads.spawn(|| counts.never_read(address, &over));
            threads.spawn(|| counts.oversize(address, &over));
            threads.spawn(|| counts.exhaust(address, &over));
            let flood = threads.spawn(|| network.flood(address, &over).map_err(|error| error.to_string()));
            std::thread::sleep(Duration::from_secs(self.seconds.into()));
            over.store(true, Relaxed);
            (valid.map(|(name, thread)| (name, joined(thread))), joined(flood))
        });
        let [(kept, kept_report), (closed, closed_report)] = reports;
        let valid = [(kept, kept_report?), (closed, closed_report?)];
        let counters = network.counters()?;
        let paused = monitor::figure(address, "accept_pauses_total")?;
        let count = |of: &std::sync::atomic::AtomicU64| of.load(Relaxed);
        let counts = vec![
            ("SYNs from sources that do not answer", flood?),
            ("SYN cookies sent for them", counters.cookies - before.cookies),
            ("slowloris: connections that the server ended", count(&hostile_traffic.ended)),
            ("connections reset", count(&hostile_traffic.resets)),
            ("connections full of answers that are never read", count(&counts.unread)),
            ("oversize heads and bodies refused", count(&counts.refused)),
            ("connections beyond the descriptors", count(&counts.beyond_limits)),
            ("pauses of accepting for want of descriptors", paused),
        ];
        Ok(HostileObservation { driver, valid, counts, ended_well: server.end() })
    }

    fn valid(&self) -> [(&'static str, LoadPlan); 2] {
        let seconds = f64::from(self.seconds) + 2.0 * LEAD_TIME.as_secs_f64();
        let steps = |rate| vec![LoadStep { rate, seconds }];
        let plan = |connections, manner| LoadPlan { connections, timeout_s: TIMEOUT_S, manner };
        [
            ("keep-alive connections", plan(20, LoadShape::Steps(steps(KEPT_RATE)))),
            ("a connection each", plan(1000, LoadShape::Clients(steps(CLOSED_RATE)))),
        ]
    }
}

/// Starts a server with few descriptors, in the network of the flood.
fn start(binary: &Path, driver: BenchDriver) -> XtaskResult<BenchServer> {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}")).arg(binary);
    let listen = format!("{}:0", syn::SERVER);
    command.args(["serve", "--listen", &listen, "--driver", driver.option()]).args(OPTIONS);
    let command_line =
        format!("stilling serve --listen {listen} --driver {} {}", driver.option(), OPTIONS.join(" "));
    BenchServer::announced(driver.option(), command_line, command)
}

impl HostileObservation {
    fn verdicts(&self) -> Vec<SoakVerdict> {
        let name = self.driver.option();
        let mut verdicts = Vec::new();
        let mut judge = |what: String, limit: &str, holds: bool, measured: String| {
            verdicts.push(SoakVerdict {
                what: format!("{name}: {what}"),
                limit: limit.to_owned(),
                holds,
                measured,
            });
        };
        for (load, report) in &self.valid {
            let due: u64 = report.steps.iter().map(|step| step.due).sum();
            let failures: String =
                report.evidence.iter().map(|(kind, first)| format!("; {kind}: {first}")).collect();
            judge(
                format!("valid load failed or refused, {load}"),
                "0",
                due > 0 && report.ok == due && report.failures_total + report.shed == 0,
                format!(
                    "{} failed, {} refused, {} of {due} answered; p99 {} ms, longest {} ms{failures}",
                    report.failures_total,
                    report.shed,
                    report.ok,
                    figures::two_places(report.latency.p99_us / 1e3),
                    figures::two_places(report.latency.max_us / 1e3)
                ),
            );
        }
        for (what, count) in &self.counts {
            judge(format!("took place: {what}"), "≥ 1", *count > 0, count.to_string());
        }
        let measured = if self.ended_well { "status 0" } else { "it did not" };
        judge("the server stops on SIGTERM".to_owned(), "status 0", self.ended_well, measured.to_owned());
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::load_generator::LoadStepFigures;

    /// Row 5.5: one failure of the valid load is a miss, and so is a hostile load that did not take place.
    #[test]
    fn one_failure_and_missing_harm_are_misses() {
        let report = LoadReport {
            ok: 5,
            steps: vec![LoadStepFigures { due: 5, ..LoadStepFigures::default() }],
            ..LoadReport::default()
        };
        let observation = |change: fn(&mut HostileObservation)| -> Vec<String> {
            let mut observation = HostileObservation {
                driver: BenchDriver::Uring,
                valid: [("kept", report.clone()), ("closed", report.clone())],
                counts: vec![("resets", 1)],
                ended_well: true,
            };
            change(&mut observation);
            let missed = observation.verdicts().into_iter().filter(|verdict| !verdict.holds);
            missed.map(|verdict| verdict.what).collect()
        };
        assert!(observation(|_| ()).is_empty());
        assert_eq!(
            observation(|observation| observation.valid[0].1.failures_total = 1),
            ["uring: valid load failed or refused, kept"]
        );
        assert_eq!(
            observation(|observation| observation.valid[1].1.ok = 4),
            ["uring: valid load failed or refused, closed"]
        );
        assert_eq!(observation(|observation| observation.counts[0].1 = 0), ["uring: took place: resets"]);
    }
}
