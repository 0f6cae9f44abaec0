//! `cargo xtask bench coap`: CoAP requests to Stilling on both drivers beside libcoap's server, Californium and the bare
//! I/O.
//!
//! Every server has a body of the same size, and gets the same requests from the same generator, which compares every
//! byte of every answer.

mod load;
mod overload;
mod peers;

use clap::Args;

use super::figures::{self, BARE, Column, PageSection, Series};
use super::harness::{self, BenchOptions, is_wanted};
use super::targets::{BenchTarget, BenchTargets};
use super::{enter_namespace, machine};
use crate::steps::{cargo, run};
use crate::{XtaskResult, packages, python};
use load::CoapLoad;
use peers::{CoapPeer, CoapPrograms};

pub(super) const TITLE: &str = "CoAP over UDP";

/// Requests of a small body: with 64 source ports within their message ids.
const SMALL_REQUESTS: u32 = 500_000;

/// Requests of a body of 10 KB: ten messages each.
const LARGE_REQUESTS: u32 = 50_000;

/// The same with loss: 10^6 blocks in three rounds of both drivers.
const LOSSY_REQUESTS: u32 = 17_000;

/// Part of the requests in a reduced load.
const QUICK_DIVISOR: u32 = 20;

#[derive(Args)]
pub(super) struct CoapBenchArguments {
    #[command(flatten)]
    options: BenchOptions,
    /// Only scenarios with this in their title; repeatable
    #[arg(long, value_name = "WORD", conflicts_with = "write")]
    only: Vec<String>,
}

/// One table of the section.
struct CoapScenario {
    title: &'static str,
    load: CoapLoad,
    targets: &'static [CpuTarget],
}

/// Most server CPU per request on each driver, as a multiple of this peer's.
struct CpuTarget(CoapPeer, f64);

const SMALL_TARGETS: [CpuTarget; 3] = [
    CpuTarget(CoapPeer::Bare, 1.4),
    CpuTarget(CoapPeer::Libcoap, 0.45),
    CpuTarget(CoapPeer::Californium, 0.35),
];

/// The window keeps the first burst within the 277 datagrams of the receive buffer that Linux gives by default.
const SMALL: CoapLoad = CoapLoad { size: 64, requests: SMALL_REQUESTS, sockets: 64, window: 4, further: &[] };

/// One transfer per client: libcoap's server fails more of them.
const LARGE: CoapLoad =
    CoapLoad { size: 10_240, requests: LARGE_REQUESTS, sockets: 64, window: 1, further: &[] };

const SCENARIOS: [CoapScenario; 5] = [
    CoapScenario { title: "Confirmable GET, 64 bytes", load: SMALL, targets: &SMALL_TARGETS },
    CoapScenario {
        title: "Non-confirmable GET, 64 bytes",
        load: CoapLoad { further: &["--non-confirmable"], ..SMALL },
        targets: &SMALL_TARGETS,
    },
    CoapScenario {
        title: "Confirmable GET, 64 bytes, 1,024 source ports with one request each",
        load: CoapLoad { requests: SMALL_REQUESTS / 2, sockets: 1024, window: 1, ..SMALL },
        targets: &[],
    },
    CoapScenario { title: "Confirmable GET, 10 KB in ten blocks", load: LARGE, targets: &[] },
    CoapScenario {
        title: "Confirmable GET, 10 KB, with 10 % loss, 5 % duplication and 5 % reordering",
        load: CoapLoad {
            requests: LOSSY_REQUESTS,
            window: 64,
            further: &["--loss=10", "--duplication=5", "--reordering=5"],
            ..LARGE
        },
        targets: &[],
    },
];

struct CoapBench {
    options: BenchOptions,
    programs: CoapPrograms,
    targets: BenchTargets,
}

/// Builds and installs all programs; requires a network.
fn prepare() -> XtaskResult {
    packages::install(&packages::FOR_BENCH_COAP)?;
    peers::install_californium()?;
    python::GUNICORN.install()?;
    run(&mut cargo(["build", "--release", "-p", "stilling-cli", "-p", "stilling-peer-bare"]))
}

impl CoapBenchArguments {
    pub(super) fn run(self) -> XtaskResult {
        let CoapBenchArguments { options, only } = self;
        enter_namespace(prepare)?;
        let (_guard, programs) = CoapPrograms::find()?;
        let bench = CoapBench { options, programs, targets: BenchTargets::default() };
        let mut parts = Vec::new();
        for scenario in SCENARIOS.iter().filter(|scenario| is_wanted(&only, scenario.title)) {
            parts.push(bench.measure(scenario)?);
        }
        parts.extend(bench.with_worker_processes(&only)?);
        let text = harness::of_parts(TITLE, &bench.introduction(), &bench.targets, parts);
        harness::publish(TITLE, &text, bench.options.write)
    }
}

impl CoapBench {
    fn introduction(&self) -> String {
        let lines = machine::listed([
            format!("Java: {}", machine::command_output("java", &["-version"])),
            "Californium: 3.14.0".to_owned(),
        ]);
        let without = if self.programs.serves_coap {
            ""
        } else {
            " This build of Stilling has no CoAP listener, so it is not in the tables."
        };
        let servers: Vec<_> =
            peers::ALL.iter().map(|peer| format!("*{}*: {}", peer.name(), peer.words())).collect();
        format!(
            "Clients read a resource over UDP. `stilling bench coap` is all clients, in one thread: it checks token, message id \
             and every byte of each answer. A source port has 65,536 message ids per 247 seconds; no id is repeated. Server CPU is \
             user and system time of all threads of the server's process during the load, Java's compiler included. Failures \
             are requests without a correct answer, and repeated answers; if faults are injected, only wrong answers, since all \
             transmissions of a request can be lost. Servers and generator \
             share the cores. Each round starts each server anew. `{}` writes this section; rounds are interleaved as \
             above.{without}\n\n{lines}\nThe servers: {}.\n",
            self.options.command("coap"),
            servers.join("; ")
        )
    }

    fn measure(&self, scenario: &CoapScenario) -> XtaskResult<PageSection> {
        let divisor = if self.options.quick { QUICK_DIVISOR } else { 1 };
        let load = CoapLoad { requests: scenario.load.requests / divisor, ..scenario.load };
        let available = peers::ALL.iter().copied();
        let is_available = |peer: &CoapPeer| match load.injects_faults() {
            // The generator's retransmissions determine its figures, which say nothing of other servers.
            true => matches!(peer, CoapPeer::StillingUring | CoapPeer::StillingPoll),
            false => peer.is_available(&self.programs, load.size),
        };
        let available: Vec<_> = available.filter(is_available).collect();
        let series = harness::series(self.options.rounds, scenario.title, &available, |peer| {
            load.measure(*peer, &self.programs)
        })?;
        if self.programs.serves_coap {
            self.judge(scenario, &series);
        }
        let description = format!("`{}`", load.shown());
        Ok(PageSection { title: scenario.title.to_owned(), description, table: compared(&series) })
    }

    /// Compares with the project's targets on each driver, and requires that nothing fails.
    fn judge(&self, scenario: &CoapScenario, series: &[Series]) {
        let title = scenario.title;
        for own in [CoapPeer::StillingUring.name(), CoapPeer::StillingPoll.name()] {
            for CpuTarget(peer, most) in scenario.targets {
                let ratio = figures::ratio(series, own, peer.name(), |sample| Some(sample.cpu_s));
                let what = format!("server CPU, {own} ÷ {}: {title}", peer.name());
                self.targets.add_target(BenchTarget::at_most(what, *most, ratio, "×"));
            }
            let samples = series.iter().find(|series| series.server == own);
            let failures = samples.map(|own| own.samples.iter().map(|sample| sample.failures as f64).sum());
            let what = format!("failures, {own}: {title}");
            self.targets.add_target(BenchTarget::at_most(what, 0.0, failures, ""));
        }
    }
}

/// A table of servers under one load, with their ratios to [`BARE`] and those of Stilling to the others.
fn compared(series: &[Series]) -> Vec<Vec<String>> {
    let mut columns = vec![
        Column::of("requests/s", |sample| Some(sample.rate), figures::thousands),
        Column::of("server CPU s per million", |sample| Some(sample.cpu_s), figures::two_places),
    ];
    columns.extend(figures::over_bare(series));
    columns.extend(figures::latencies());
    columns.push(Column::of(
        "memory MB",
        |sample| sample.memory.map(|bytes| bytes as f64 / 1e6),
        figures::thousands,
    ));
    columns.push(Column::sum("failures", |sample| sample.failures));
    let own = [CoapPeer::StillingUring.name(), CoapPeer::StillingPoll.name()];
    let others = series.iter().map(|series| series.server);
    let others: Vec<_> = others.filter(|server| !own.contains(server) && *server != BARE).collect();
    let pairs: Vec<_> = own.iter().flat_map(|own| others.iter().map(|other| (*own, *other))).collect();
    figures::with_ratios(series, &columns, &pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_tell_all_scenarios_apart() {
        let mut titles: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.title).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), SCENARIOS.len());
    }

    /// RFC 7252 §4.4: a run needs fewer message ids than its source ports have, so that none is replaced.
    #[test]
    fn no_scenario_needs_more_message_ids_than_its_ports_have() {
        for scenario in &SCENARIOS {
            let load = scenario.load;
            let messages = u64::from(load.requests) * u64::from(load.size.div_ceil(1024));
            assert!(messages < u64::from(load.sockets) * 57_000, "{}", scenario.title);
        }
    }
}
