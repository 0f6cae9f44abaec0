//! `cargo xtask soak broadcast`: a long fan-out beside slow, flapping, joining and reconnecting subscribers.
//!
//! Every subscriber accounts for every message: the measured ones receive all, and those that resume receive it or a gap
//! notice names it. The stream keeps less than the slow ones miss, so that there are gaps.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use clap::Args;
use serde::Deserialize;

use super::page::SoakSection;
use super::watch::ResourceSample;
use super::{
    SAMPLE_INTERVAL, SoakDriver, SoakVerdict, conclude, joined, level, resource_table, verdict_table,
    wait_for_release,
};
use crate::XtaskResult;
use crate::bench::server::BenchServer;
use crate::bench::{DisturbanceFigures, copy_binary, figures, isolation};
use crate::steps::command_text;
use crate::tree;

const SUBSCRIBERS: u64 = 200;

const STREAM: &str = "bench=bench:memory:retention-bytes=4MiB";

/// The measured subscribers, and all others.
const LOAD: [&str; 8] = [
    "--subscribers=200",
    "--size=64",
    "--window=2048",
    "--slow=12",
    "--flapping=24",
    "--joins=1000",
    "--reconnects=50",
    "--timeout=60",
];

/// Most resident memory in MiB. A slow subscriber is moved to catch-up; only bounded output waits for it.
const MEMORY_MIB_MAX: f64 = 128.0;

/// Seconds from which on a run has a warm-up in which all buffers reach their size.
const LEVEL_FROM_S: f64 = 60.0;

#[derive(Args)]
pub(super) struct BroadcastSoak {
    /// Deliveries to the 200 measured subscribers; 1,000,000,000 is a long run
    #[arg(long, value_name = "N", default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1_000_000..))]
    deliveries: u64,
    /// Driver of the server
    #[arg(long, value_enum, default_value_t = SoakDriver::Uring)]
    driver: SoakDriver,
    /// Write the verdicts into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

#[derive(Deserialize)]
struct BroadcastSoakReport {
    elapsed_s: f64,
    messages: u64,
    deliveries: u64,
    failures: BTreeMap<String, u64>,
    failures_total: u64,
    evidence: BTreeMap<String, String>,
    resuming: ResumingFigures,
    disturbance: DisturbanceFigures,
}

#[derive(Deserialize)]
struct ResumingFigures {
    subscribers: u64,
    published: u64,
    delivered: u64,
    reported: u64,
    gaps: u64,
    resumes: u64,
}

impl BroadcastSoak {
    pub(super) fn soak(&self) -> XtaskResult {
        let folder = tempfile::tempdir_in(tree::target().canonicalize()?)?;
        let binary = copy_binary("stilling", folder.path())?;
        let driver = self.driver.driver();
        let nats = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?;
        let nats_text = nats.to_string();
        let server = BenchServer::stilling(&binary, driver, &["--nats", &nats_text, "--stream", STREAM])?;
        let command = server.command.replace(&nats_text, "ADDRESS");
        println!("`{command}`; TCP congestion control {}", isolation::congestion());
        let before = ResourceSample::at(server.first_process(), 0.0).ok_or("the server has ended")?;
        let start = Instant::now();
        let mut load = self.load(&binary, nats, &server);
        let (report, samples) = observed(&mut load, &server, start)?;
        let after = wait_for_release(server.first_process(), start, &before);
        for (kind, words) in &report.evidence {
            println!("{kind}: {words}");
        }
        let mut verdicts = report.verdicts(self.deliveries);
        verdicts.push(memory_verdict(&samples));
        if report.elapsed_s >= LEVEL_FROM_S {
            verdicts.extend(level("", &samples, report.elapsed_s));
        }
        print!("{}", resource_table(&before, &samples, after.as_ref(), report.elapsed_s));
        print!("{}", verdict_table(&verdicts));
        if self.write {
            let name = driver.option();
            SoakSection {
                title: format!("Broadcast beside resuming subscribers, {name}"),
                command: format!(
                    "cargo xtask soak broadcast --deliveries {} --driver {name} --write",
                    self.deliveries
                ),
                description: self.description(&command),
            }
            .write(&verdicts)?;
        }
        conclude(&verdicts)
    }

    fn load(&self, binary: &Path, nats: SocketAddr, server: &BenchServer) -> Command {
        let mut command = Command::new(binary);
        command.args(["bench", "broadcast", &nats.to_string()]).args(LOAD);
        command.arg(format!("--messages={}", self.deliveries.div_ceil(SUBSCRIBERS)));
        command.arg(format!("--resume-at={}", server.address)).arg("--json");
        command
    }

    fn description(&self, server: &str) -> String {
        format!(
            "Row 2.18. {} deliveries to 200 NATS subscribers, of which every byte is compared, beside WebSocket and SSE \
             subscribers that read slowly (12) or disconnect again and again (24) and resume behind their last message, \
             1,000 joins and 50 reconnects per second: `stilling bench broadcast ADDRESS {}` on `{server}`.",
            figures::thousands(self.deliveries as f64),
            LOAD.join(" ")
        )
    }
}

/// Runs the load, and samples the server until it ends.
fn observed(
    load: &mut Command,
    server: &BenchServer,
    start: Instant,
) -> XtaskResult<(BroadcastSoakReport, Vec<ResourceSample>)> {
    let words = command_text(load);
    let is_over = AtomicBool::new(false);
    let (output, samples) = std::thread::scope(|scope| {
        let sampling = scope.spawn(|| {
            let mut samples = Vec::new();
            while !is_over.load(Relaxed) {
                samples.extend(ResourceSample::at(server.first_process(), start.elapsed().as_secs_f64()));
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            samples
        });
        let output = load.stderr(Stdio::inherit()).output();
        is_over.store(true, Relaxed);
        (output, joined(sampling))
    });
    let report = serde_json::from_slice(&output?.stdout);
    Ok((report.map_err(|error| format!("`{words}` printed no report: {error}"))?, samples))
}

fn memory_verdict(samples: &[ResourceSample]) -> SoakVerdict {
    let most = samples.iter().map(|sample| sample.resident / (1024.0 * 1024.0)).fold(0.0, f64::max);
    SoakVerdict {
        what: "resident memory, slow subscribers included".to_owned(),
        limit: format!("≤ {MEMORY_MIB_MAX:.0} MiB"),
        holds: most > 0.0 && most <= MEMORY_MIB_MAX,
        measured: format!("{most:.1} MiB at most"),
    }
}

impl BroadcastSoakReport {
    fn verdicts(&self, deliveries: u64) -> Vec<SoakVerdict> {
        let ResumingFigures { subscribers, published, delivered, reported, gaps, resumes } = self.resuming;
        let DisturbanceFigures { joins, reconnects, .. } = self.disturbance;
        let count = |value: u64| figures::thousands(value as f64);
        let failed = |kind: &str| self.failures.get(kind).copied().unwrap_or(0);
        let none = |what: &str, value: u64| SoakVerdict {
            what: what.to_owned(),
            limit: "0".to_owned(),
            holds: value == 0,
            measured: count(value),
        };
        let due = subscribers * published;
        let all = self.messages * SUBSCRIBERS;
        vec![
            SoakVerdict {
                what: "deliveries to the measured subscribers".to_owned(),
                limit: format!("= {}, ≥ {}", count(all), count(deliveries)),
                holds: self.deliveries == all && all >= deliveries,
                measured: format!("{} in {:.0} s", count(self.deliveries), self.elapsed_s),
            },
            SoakVerdict {
                what: "delivered and reported messages of resuming subscribers".to_owned(),
                limit: format!("= {}", count(due)),
                holds: delivered + reported == due && due > 0,
                measured: format!("{} + {} in {} gaps", count(delivered), count(reported), count(gaps)),
            },
            none("repeated messages", failed("repeated")),
            none("messages out of order", failed("late") + failed("wrong_sequence")),
            none("all failures", self.failures_total),
            SoakVerdict {
                what: "resumes, joins and reconnects".to_owned(),
                limit: "> 0 each".to_owned(),
                holds: resumes > 0 && joins > 0 && reconnects > 0,
                measured: [resumes, joins, reconnects].map(count).join(", "),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(delivered: u64, repeated: u64) -> BroadcastSoakReport {
        BroadcastSoakReport {
            elapsed_s: 9.0,
            messages: 5_000,
            deliveries: 1_000_000,
            failures: [("repeated".to_owned(), repeated)].into(),
            failures_total: repeated,
            evidence: BTreeMap::new(),
            resuming: ResumingFigures {
                subscribers: 3,
                published: 5_000,
                delivered,
                reported: 1_000,
                gaps: 7,
                resumes: 4,
            },
            disturbance: DisturbanceFigures { elapsed_s: 9.0, joins: 1, reconnects: 1 },
        }
    }

    #[test]
    fn every_message_is_delivered_or_reported_once() {
        let missed = |report: &BroadcastSoakReport| {
            let verdicts = report.verdicts(1_000_000);
            verdicts
                .into_iter()
                .filter(|verdict| !verdict.holds)
                .map(|verdict| verdict.what)
                .collect::<Vec<_>>()
        };
        assert_eq!(missed(&report(14_000, 0)), [""; 0]);
        assert_eq!(missed(&report(13_999, 0)), ["delivered and reported messages of resuming subscribers"]);
        assert_eq!(missed(&report(14_000, 2)), ["repeated messages", "all failures"]);
        assert_eq!(report(14_000, 0).verdicts(1_000_001).iter().filter(|verdict| !verdict.holds).count(), 1);
    }
}
