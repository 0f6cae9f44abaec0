//! `cargo xtask bench broadcast`: messages to many subscribers, from Stilling on both drivers beside nats-server, Redis,
//! mosquitto and the bare I/O; and auctions in which every client answers every bid.
//!
//! Every server gets the same messages from the same generator, which compares every delivered byte.

mod clients;
mod crowd;
mod disturbed;
mod load;
mod lock_waits;
mod many;
mod peers;
mod scenarios;
mod thrash;
mod web;

pub(crate) use load::DisturbanceFigures;

use clap::Args;

use super::collect::{CollectPrograms, tools};
use super::figures::{self, BARE, Column, PageSection, Series};
use super::harness::{self, BenchOptions, is_wanted};
use super::sample::BenchSample;
use super::targets::{BenchTarget, BenchTargets};
use super::{enter_namespace, machine};
use crate::steps::{cargo, run};
use crate::{XtaskResult, packages};
use clients::MeasuredClients;
use load::FanOutLoad;
use peers::BroadcastPeer;
use scenarios::{BroadcastScenario, BroadcastTarget, SCENARIOS};

pub(super) const TITLE: &str = "Broadcast: messages to many subscribers";

#[derive(Args)]
pub(super) struct BroadcastBenchArguments {
    #[command(flatten)]
    options: BenchOptions,
    /// Only scenarios with this in their title; repeatable
    #[arg(long, value_name = "WORD", conflicts_with = "write")]
    only: Vec<String>,
}

struct BroadcastBench {
    options: BenchOptions,
    programs: CollectPrograms,
    targets: BenchTargets,
}

/// A part of the section, and the function that measures it.
type BroadcastPart = (&'static str, fn(&BroadcastBench) -> XtaskResult<PageSection>);

/// The parts after the scenarios.
const FURTHER: [BroadcastPart; 5] = [
    (crowd::TITLE, BroadcastBench::crowd),
    (disturbed::TITLE, BroadcastBench::disturbed),
    (many::TITLE, BroadcastBench::many),
    (lock_waits::TITLE, BroadcastBench::lock_waits),
    (thrash::TITLE, BroadcastBench::thrash),
];

/// Builds and installs all programs; requires a network.
fn prepare() -> XtaskResult {
    packages::install(&packages::FOR_BENCH_BROADCAST)?;
    tools::NATS_SERVER.install()?;
    tools::CENTRIFUGO.install()?;
    run(&mut cargo(["build", "--release", "-p", "stilling-cli", "-p", "stilling-peer-bare"]))
}

impl BroadcastBenchArguments {
    pub(super) fn run(self) -> XtaskResult {
        let BroadcastBenchArguments { options, only } = self;
        enter_namespace(prepare)?;
        let (_guard, programs) = CollectPrograms::find()?;
        let bench = BroadcastBench { options, programs, targets: BenchTargets::default() };
        let mut parts = Vec::new();
        for scenario in SCENARIOS.iter().filter(|scenario| is_wanted(&only, scenario.title)) {
            parts.push(bench.measure(scenario)?);
        }
        for scenario in web::SCENARIOS.iter().filter(|scenario| is_wanted(&only, scenario.0)) {
            parts.push(bench.web(scenario)?);
        }
        for (_, measure) in FURTHER.iter().filter(|(title, _)| is_wanted(&only, title)) {
            parts.push(measure(&bench)?);
        }
        let text = harness::of_parts(TITLE, &bench.introduction(), &bench.targets, parts);
        harness::publish(TITLE, &text, bench.options.write)
    }
}

impl BroadcastBench {
    fn introduction(&self) -> String {
        let mosquitto = machine::command_output("/usr/sbin/mosquitto", &["-h"]);
        let lines = machine::listed([
            tools::nats_server_version(&self.programs.nats_server),
            format!("Redis: {}", machine::command_output("redis-server", &["-v"])),
            format!("mosquitto: {}", machine::short(&mosquitto)),
            tools::CENTRIFUGO.version_line(),
        ]);
        let servers = peers::ALL.iter().chain(&[BroadcastPeer::Centrifugo]);
        let servers: Vec<_> = servers.map(|peer| format!("*{}*: {}", peer.name(), peer.words())).collect();
        format!(
            "One publisher, many subscribers (rows 2.1 to 2.4). `stilling bench broadcast` is the publisher and all \
             subscribers, in one thread: it knows every byte of every delivery before it arrives and compares all of them. \
             A publisher is never more than the window ahead of the slowest subscriber, and sends half a window at a time; a \
             latency runs from the write of such a batch to its last delivery, so with a window of 1 it is that of a message \
             to the last subscriber. Server CPU is user and system time of all threads of the server's process during the \
             load. Memory is the largest resident memory of the server, shared pages included. Failures are deliveries that \
             are missing, repeated, late or changed, and ends of connections. The columns *÷ bare* say how many times the \
             rate and the CPU of *bare* a server has. Servers and generator share the cores: a fast server is measured \
             together with what the generator costs. Each round starts each server anew. `{}` writes this section; rounds \
             are interleaved as above.\n\n{lines}\nThe servers: {}.\n",
            self.options.command("broadcast"),
            servers.join("; ")
        )
    }

    fn seconds(&self) -> u32 {
        if self.options.quick { 1 } else { 3 }
    }

    fn measure(&self, scenario: &BroadcastScenario) -> XtaskResult<PageSection> {
        let load = FanOutLoad { seconds: self.seconds(), ..scenario.load };
        let clients: Vec<_> = scenario.peers.iter().copied().map(MeasuredClients::usual).collect();
        let series = harness::series(self.options.rounds, scenario.title, &clients, |clients| {
            load.measure(clients, &self.programs)
        })?;
        self.judge(scenario, &series);
        let words = format!("`{}`{}", load.shown(), scenario.words);
        Ok(PageSection { title: scenario.title.to_owned(), description: words, table: compared(&series) })
    }

    /// Compares with the project's targets on each driver, and requires that nothing fails.
    fn judge(&self, scenario: &BroadcastScenario, series: &[Series]) {
        let title = scenario.title;
        for own in [BroadcastPeer::StillingUring, BroadcastPeer::StillingPoll] {
            for target in scenario.targets {
                self.targets.add_target(target.judge(title, own, series));
            }
            self.judge_failures(title, &[own.name()], series);
        }
    }

    /// Requires that nothing fails in these rows.
    fn judge_failures(&self, title: &str, rows: &[&str], series: &[Series]) {
        for row in rows {
            let samples = series.iter().find(|series| series.server == *row);
            let failures = samples.map(|own| own.samples.iter().map(|sample| sample.failures as f64).sum());
            let what = format!("failures, {row}: {title}");
            self.targets.add_target(BenchTarget::at_most(what, 0.0, failures, ""));
        }
    }
}

impl BroadcastTarget {
    fn judge(&self, title: &str, own: BroadcastPeer, series: &[Series]) -> BenchTarget {
        let name = own.name();
        let rate: fn(&BenchSample) -> Option<f64> = |sample| Some(sample.rate);
        let cpu: fn(&BenchSample) -> Option<f64> = |sample| Some(sample.cpu_s);
        let ratio = |peer: BroadcastPeer, of| figures::ratio(series, name, peer.name(), of);
        match *self {
            BroadcastTarget::RateTimes(peer, least) => {
                let what = format!("deliveries/s, {name} ÷ {}: {title}", peer.name());
                BenchTarget::at_least(what, least, ratio(peer, rate), "×")
            }
            BroadcastTarget::CpuTimes(peer, most) => {
                let what = format!("server CPU, {name} ÷ {}: {title}", peer.name());
                BenchTarget::at_most(what, most, ratio(peer, cpu), "×")
            }
            BroadcastTarget::P99Times(peer, most) => {
                let what = format!("p99, {name} ÷ {}: {title}", peer.name());
                BenchTarget::at_most(what, most, ratio(peer, |sample| sample.p99_ms), "×")
            }
            BroadcastTarget::PeersOrBare { nats, redis, bare } => {
                let times = (ratio(BroadcastPeer::NatsServer, rate), ratio(BroadcastPeer::Redis, rate));
                let of_bare = ratio(BroadcastPeer::Bare, rate);
                let what = format!(
                    "deliveries/s, {name}, as a part of {nats} × nats-server and {redis} × Redis, or of {bare} × bare: {title}"
                );
                BenchTarget::at_least(what, 1.0, peers_or_bare(times, of_bare, (nats, redis, bare)), "×")
            }
        }
    }
}

/// The better one of two parts: that of both peers' targets, and that of bare's.
fn peers_or_bare(
    (nats, redis): (Option<f64>, Option<f64>),
    of_bare: Option<f64>,
    (nats_least, redis_least, bare_least): (f64, f64, f64),
) -> Option<f64> {
    let of_peers = nats.zip(redis).map(|(nats, redis)| (nats / nats_least).min(redis / redis_least));
    let of_bare = of_bare.map(|ratio| ratio / bare_least);
    [of_peers, of_bare].into_iter().flatten().reduce(f64::max)
}

/// A table of servers under one load, with the ratios of each to [`BARE`] and those of Stilling to the others.
fn compared(series: &[Series]) -> Vec<Vec<String>> {
    let mut columns = vec![
        Column::of("deliveries/s", |sample| Some(sample.rate), figures::thousands),
        Column::of("server CPU s per million", |sample| Some(sample.cpu_s), four_places),
    ];
    columns.extend(figures::over_bare(series));
    columns.extend([
        Column::of("p50 ms", |sample| sample.p50_ms, figures::two_places),
        Column::of("p99 ms", |sample| sample.p99_ms, figures::two_places),
        Column::of("memory MB", memory_mb, figures::thousands),
        Column::sum("failures", |sample| sample.failures),
    ]);
    let own = [BroadcastPeer::StillingUring.name(), BroadcastPeer::StillingPoll.name()];
    let others = series.iter().map(|series| series.server);
    let others: Vec<_> = others.filter(|server| !own.contains(server) && *server != BARE).collect();
    let pairs: Vec<_> = own.iter().flat_map(|own| others.iter().map(|other| (*own, *other))).collect();
    figures::with_ratios(series, &columns, &pairs)
}

fn memory_mb(sample: &BenchSample) -> Option<f64> {
    sample.memory.map(|bytes| bytes as f64 / 1e6)
}

fn four_places(value: f64) -> String {
    format!("{value:.4}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(peer: BroadcastPeer, rate: f64) -> Series {
        let sample = BenchSample { rate, cpu_s: 0.5, memory: Some(7_000_000), ..BenchSample::default() };
        Series { server: peer.name(), samples: vec![sample] }
    }

    #[test]
    fn a_target_may_be_reached_against_the_peers_or_against_the_bare_io() {
        let check = |nats, redis, bare, expected| {
            assert_eq!(peers_or_bare((nats, redis), bare, (8.0, 6.0, 0.5)), expected);
        };
        check(Some(8.0), Some(9.0), Some(0.1), Some(1.0));
        check(Some(16.0), Some(6.0), None, Some(1.0));
        check(Some(4.0), Some(3.0), Some(0.75), Some(1.5));
        check(Some(4.0), None, Some(0.25), Some(0.5));
        check(None, None, None, None);
    }

    #[test]
    fn both_drivers_are_compared_with_each_other_server() {
        let all = [
            series(BroadcastPeer::StillingUring, 60.0),
            series(BroadcastPeer::StillingPoll, 50.0),
            series(BroadcastPeer::NatsServer, 10.0),
            series(BroadcastPeer::Bare, 100.0),
        ];
        let table = compared(&all);
        assert_eq!(table[1][..5], ["stilling uring", "60", "0.5000", "×0.60", "×1.00"]);
        assert_eq!(table[1][7..], ["7", "0"]);
        assert_eq!(table[5][..2], ["stilling uring ÷ nats-server", "×6.00"]);
        assert_eq!(table[6][..2], ["stilling poll ÷ nats-server", "×5.00"]);
        assert_eq!(table.len(), 7);
        assert!(table.iter().all(|row| row.len() == table[0].len()));
    }
}
