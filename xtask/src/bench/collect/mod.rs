//! `cargo xtask bench collect`: one-way messages to Stilling on both drivers, beside nats-server, Redis and rsyslog.
//!
//! Every server gets the same messages from the same generator, which checks every acknowledgement and accounts for
//! every message. Each round starts each server with a new, empty folder on the same file system, removed afterwards:
//! overwritten files, or files already laid out by a warm server, would give better figures.

mod curves;
mod load;
mod loss;
mod peers;
mod scenarios;
pub(crate) mod tools;

use std::fs;
use std::path::PathBuf;

use clap::Args;

#[cfg(test)]
pub(crate) use loss::CrashFindings;
pub(crate) use loss::{CrashDemands, KILLED_PEERS, kill};
pub(crate) use peers::{CollectPeer, StorageKind};

use super::figures::{self, BARE, Column, PageSection, Series};
use super::harness::{self, BenchOptions, is_wanted};
use super::sample::BenchSample;
use super::targets::{BenchTarget, BenchTargets};
use super::{copy_binary, enter_namespace, machine};
use crate::steps::{cargo, run};
use crate::{XtaskResult, packages, tree};
use load::CollectLoad;
use scenarios::{PeerTarget, SCENARIOS, Scenario};

pub(super) const TITLE: &str = "Collect: one-way messages";

#[derive(Args)]
pub(super) struct CollectBenchArguments {
    #[command(flatten)]
    options: BenchOptions,
    /// Only scenarios with this in their title; repeatable
    #[arg(long, value_name = "WORD", conflicts_with = "write")]
    only: Vec<String>,
}

/// Programs of the servers, and their folder.
pub(crate) struct CollectPrograms {
    /// On the file system under measurement.
    pub(crate) folder: PathBuf,
    pub(crate) stilling: PathBuf,
    /// Whether it supports NATS.
    pub(crate) collects: bool,
    pub(crate) nats_server: PathBuf,
    /// Whether nats-server can sync before it acknowledges.
    pub(crate) syncs_always: bool,
    /// The peer that does only the I/O.
    pub(crate) bare: PathBuf,
}

impl CollectPrograms {
    /// Builds and installs all programs; requires a network.
    pub(crate) fn prepare() -> XtaskResult {
        packages::install(&packages::FOR_BENCH_COLLECT)?;
        tools::NATS_SERVER.install()?;
        run(&mut cargo(["build", "--release", "-p", "stilling-cli", "-p", "stilling-peer-bare"]))
    }

    /// Finds the programs, with a folder that is removed with the guard.
    pub(crate) fn find() -> XtaskResult<(tempfile::TempDir, CollectPrograms)> {
        let target = tree::target();
        fs::create_dir_all(&target)?;
        // Not in the system's temporary folder, which may be in memory.
        let folder = tempfile::tempdir_in(target.canonicalize()?)?;
        let stilling = copy_binary("stilling", folder.path())?;
        let nats_server = tools::NATS_SERVER.path();
        let programs = CollectPrograms {
            folder: folder.path().to_owned(),
            collects: tools::collects(&stilling),
            stilling,
            syncs_always: tools::syncs_always(&nats_server),
            nats_server,
            bare: copy_binary("stilling-peer-bare", folder.path())?,
        };
        Ok((folder, programs))
    }
}

struct CollectBench {
    options: BenchOptions,
    programs: CollectPrograms,
    targets: BenchTargets,
}

/// A part of the section, and the function that measures it.
type CollectPart = (&'static str, fn(&CollectBench) -> XtaskResult<PageSection>);

/// The parts after the scenarios.
const FURTHER: [CollectPart; 4] = [
    (scenarios::UNCONFIRMED_TITLE, CollectBench::unconfirmed),
    (scenarios::BACKLOG, CollectBench::backlog),
    (scenarios::CURVE, CollectBench::curve),
    (loss::TITLE, CollectBench::loss),
];

impl CollectBenchArguments {
    pub(super) fn run(self) -> XtaskResult {
        let CollectBenchArguments { options, only } = self;
        enter_namespace(CollectPrograms::prepare)?;
        let (_guard, programs) = CollectPrograms::find()?;
        let bench = CollectBench { options, programs, targets: BenchTargets::default() };
        let mut parts = Vec::new();
        for scenario in SCENARIOS.iter().filter(|scenario| is_wanted(&only, scenario.title)) {
            parts.push(bench.measure(scenario)?);
        }
        for (_, measure) in FURTHER.iter().filter(|(title, _)| is_wanted(&only, title)) {
            parts.push(measure(&bench)?);
        }
        let text = harness::of_parts(TITLE, &bench.introduction(), &bench.targets, parts);
        harness::publish(TITLE, &text, bench.options.write)
    }
}

impl CollectBench {
    fn introduction(&self) -> String {
        let lines = machine::listed([
            tools::nats_server_version(&self.programs.nats_server),
            format!("Redis: {}", machine::command_output("redis-server", &["-v"])),
            format!("rsyslog: {}", machine::command_output("/usr/sbin/rsyslogd", &["-v"])),
        ]);
        let without = if self.programs.collects {
            ""
        } else {
            " This build of Stilling does not speak NATS, so it is not in the tables."
        };
        format!(
            "Many clients publish messages that the server stores. `stilling bench collect` is the client of every server: it writes \
             as many messages with one call as its window allows, checks each acknowledgement (stream, message, rising \
             sequence, none missing, none twice) and each delivered byte, and accounts for every message: sent = received + the losses that the server reports. A latency runs from the write that carried a message to the read \
             that brought its acknowledgement. Send time (mean and max, row 0.28) ends with the \
             acknowledgement or, unconfirmed, when the kernel has accepted the message. Server CPU is user and system time of all processes of the server, the \
             kernel's threads for io_uring among them; what the kernel does later on its own, such as writing back its page \
             cache, belongs to no process and is left out. Context switches are those of all threads of the server, voluntary or \
             not. System calls are those of Stilling's drivers, which count them (`driver_system_calls` in \
             its metrics); those of the journal's thread are not included, and the \
             other servers do not report theirs. The columns *÷ bare* are the rate and the CPU of a server \
             divided by those of *bare*. Failures are messages without the right acknowledgement, deliveries that \
             are missing, repeated or changed, and messages that are not accounted for. Servers and generator share the \
             cores. Each round starts each server with an empty directory on the \
             same file system. \
             `{}` writes this section; rounds are interleaved as \
             above.{without}\n\n{lines}\nThe servers: {}.\n",
            self.options.command("collect"),
            peers::ALL
                .iter()
                .map(|peer| format!("*{}*: {}", peer.name(), peer.description()))
                .collect::<Vec<_>>()
                .join("; ")
        )
    }

    fn available_peers(&self, peers: &[CollectPeer]) -> Vec<CollectPeer> {
        peers.iter().copied().filter(|peer| peer.is_available(&self.programs)).collect()
    }

    fn measure(&self, scenario: &Scenario) -> XtaskResult<PageSection> {
        let peers = self.available_peers(scenario.peers);
        let load =
            CollectLoad { seconds: if self.options.quick { 1 } else { scenario.seconds }, ..scenario.load };
        let rounds = if scenario.once { 1 } else { self.options.rounds };
        let series =
            harness::series(rounds, scenario.title, &peers, |peer| load.measure(*peer, &self.programs))?;
        if !scenario.targets_wanted.is_empty() {
            self.judge(scenario, &series);
        }
        let description = format!("`{}`{}", load.command_line(), scenario.description);
        Ok(PageSection { title: scenario.title.to_owned(), description, table: compared(&series, load.size) })
    }

    /// Compares with the project's targets on each driver, and requires that nothing fails.
    fn judge(&self, scenario: &Scenario, series: &[Series]) {
        let title = scenario.title;
        for name in [CollectPeer::StillingUring.name(), CollectPeer::StillingPoll.name()] {
            let own = series.iter().find(|series| series.server == name);
            for targets_wanted in scenario.targets_wanted {
                self.targets.add_target(match targets_wanted {
                    PeerTarget::CpuTimes(peer, most) => {
                        let ratio = figures::ratio(series, name, peer.name(), |sample| Some(sample.cpu_s));
                        let what = format!("server CPU, {name} ÷ {}: {title}", peer.name());
                        BenchTarget::at_most(what, *most, ratio, "×")
                    }
                    PeerTarget::RateTimes(peer, least) => {
                        let ratio = figures::ratio(series, name, peer.name(), |sample| Some(sample.rate));
                        let what = format!("messages/s, {name} ÷ {}: {title}", peer.name());
                        BenchTarget::at_least(what, *least, ratio, "×")
                    }
                    PeerTarget::Rate(least) => {
                        let rates = own.map(|own| own.samples.iter().map(|sample| sample.rate).collect());
                        let what = format!("messages/s, {name}: {title}");
                        BenchTarget::at_least(what, *least, rates.map(figures::median), "")
                    }
                    PeerTarget::SendMs(most) => {
                        let slowest = own.and_then(|own| slowest_send_ms(&own.samples));
                        BenchTarget::at_most(format!("slowest send, {name}: {title}"), *most, slowest, "ms")
                    }
                });
            }
            let failures = own.map(|own| own.samples.iter().map(|sample| sample.failures as f64).sum());
            self.targets.add_target(BenchTarget::at_most(
                format!("failures, {name}: {title}"),
                0.0,
                failures,
                "",
            ));
        }
    }
}

/// The slowest send of all rounds in milliseconds; `None` without a round, or if one was not timed.
fn slowest_send_ms(samples: &[BenchSample]) -> Option<f64> {
    let all: Option<Vec<f64>> = samples.iter().map(|sample| sample.max_ms).collect();
    all?.into_iter().reduce(f64::max)
}

/// A table of servers under one load with messages of `size` bytes, with the ratios of each to [`BARE`] and those of
/// the first to the others.
fn compared(series: &[Series], size: u32) -> Vec<Vec<String>> {
    let rate: fn(&BenchSample) -> Option<f64> = |sample| Some(sample.rate);
    let megabytes = move |samples: &[BenchSample]| {
        let rates = samples.iter().map(|sample| sample.rate).collect();
        figures::thousands(figures::median(rates) * f64::from(size) / 1e6)
    };
    let mut columns = vec![
        Column::of("messages/s", rate, figures::thousands),
        Column::of("MB/s", rate, figures::thousands).with_cell(megabytes),
        Column::of("server CPU s per million", |sample| Some(sample.cpu_s), figures::two_places),
    ];
    columns.extend(figures::over_bare(series));
    columns.extend([
        Column::of("context switches per thousand", |sample| sample.switches, figures::two_places),
        Column::of("system calls per thousand", |sample| sample.system_calls, figures::two_places),
    ]);
    columns.extend(figures::latencies());
    columns.extend([
        Column::of("mean send ms", |sample| sample.mean_ms, figures::two_places),
        Column::of("max send ms", |sample| sample.max_ms, figures::two_places),
        Column::sum("failures", |sample| sample.failures),
    ]);
    let first = CollectPeer::StillingUring.name();
    let others = series.iter().map(|series| series.server).filter(|server| ![first, BARE].contains(server));
    let pairs: Vec<_> = others.map(|other| (first, other)).collect();
    figures::with_ratios(series, &columns, &pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_stand_below_the_servers_that_were_there() {
        let series = |server, rate| Series {
            server,
            samples: vec![BenchSample { rate, cpu_s: 2.0, failures: 1, ..BenchSample::default() }],
        };
        let table = compared(&[series("stilling uring", 4000.0), series("JetStream", 1000.0)], 1000);
        assert_eq!(table[1][..4], ["stilling uring", "4,000", "4", "2.00"]);
        assert_eq!(table[3][..4], ["stilling uring ÷ JetStream", "×4.00", "×4.00", "×1.00"]);
        assert_eq!(table[1][11], "1");
        assert!(table.iter().all(|row| row.len() == table[0].len()));
        assert_eq!(compared(&[series("JetStream", 1.0), series("Redis", 1.0)], 1).len(), 3);
    }

    #[test]
    fn ratios_to_bare_stand_in_columns_and_not_below() {
        let series = |server, rate| Series {
            server,
            samples: vec![BenchSample { rate, cpu_s: 2.0, ..BenchSample::default() }],
        };
        let table = compared(&[series("stilling uring", 4000.0), series(BARE, 8000.0)], 1000);
        assert_eq!(table[0][3..6], ["server CPU s per million", "rate ÷ bare", "CPU ÷ bare"]);
        assert_eq!(table[1][3..6], ["2.00", "×0.50", "×1.00"]);
        assert_eq!(table.len(), 3);
    }
}
