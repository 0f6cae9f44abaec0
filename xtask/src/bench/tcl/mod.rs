//! `cargo xtask bench tcl`: a Tcl program on the extension's `socket2`, on both drivers, beside the same program on Tcl's
//! own `socket`.

mod bulk;
mod cycles;
mod engine;
mod exchanges;
mod floods;
mod generator;
mod http;
mod idle;
mod link;
mod peers;
mod slow_script;
mod stages;

use clap::Args;

pub(crate) use cycles::cycle_options;
pub(crate) use idle::StatsConnection;
pub(crate) use peers::{TclPeer, TclPrograms, TclServer};

use super::figures::PageSection;
use super::harness::{self, BenchOptions, is_wanted};
use super::targets::{BenchTarget, BenchTargets};
use super::{enter_namespace, machine};
use crate::steps::{cargo, run};
use crate::tcl::{PackageBuild, TclToolchain, TclVersion, install_programs};
use crate::{XtaskResult, packages};

pub(super) const TITLE: &str = "Tcl channels";

#[derive(Args)]
pub(super) struct TclBenchArguments {
    #[command(flatten)]
    options: BenchOptions,
    /// Measure with Tcl 9.0 instead of 8.6
    #[arg(long, conflicts_with = "write")]
    tcl9: bool,
    /// Only parts with this in their title; repeatable
    #[arg(long, value_name = "WORD", conflicts_with = "write")]
    only: Vec<String>,
}

struct TclBench {
    options: BenchOptions,
    programs: TclPrograms,
    targets: BenchTargets,
}

/// A part of the section: its title, and the measurement.
type Part = (&'static str, fn(&TclBench) -> XtaskResult<PageSection>);

const PARTS: [Part; 19] = [
    (exchanges::ONE_CLIENT, TclBench::one_client),
    (exchanges::MANY_CLIENTS, TclBench::many_clients),
    (bulk::SINK, TclBench::sink),
    (bulk::MEMORY, TclBench::memory_source),
    (bulk::FILE, TclBench::file_source),
    (bulk::SENDFILE, TclBench::sendfile_source),
    (engine::TITLE, TclBench::engine_bulk),
    (link::TITLE, TclBench::slow_link),
    (idle::TITLE, TclBench::idle),
    (exchanges::CONNECTIONS, TclBench::connections),
    (http::MODERATE, TclBench::http_moderate),
    (http::MANY, TclBench::http_many),
    (http::TCLLIB_MODERATE, TclBench::tcllib_moderate),
    (http::TCLLIB_MANY, TclBench::tcllib_many),
    (cycles::TITLE, TclBench::cycles),
    (slow_script::CONNECTS, TclBench::connects_to_blocked),
    (slow_script::OTHER_THREAD, TclBench::beside_blocked_thread),
    (stages::TITLE, TclBench::stages),
    (floods::TITLE, TclBench::syn_flood),
];

/// Builds and installs all programs; requires a network.
pub(crate) fn prepare(version: TclVersion) -> XtaskResult {
    packages::install(&packages::FOR_BENCH_TCL)?;
    install_programs()?;
    let toolchain = TclToolchain::find(version)?;
    if toolchain.has_extension() {
        toolchain.build_packages(PackageBuild::Release)?;
    }
    let examples = ["--example", "tcp", "--example", "syn_flood"];
    run(cargo(["build", "--release", "-p", "stilling-bench"]).args(examples))?;
    run(&mut cargo(["build", "--release", "-p", "stilling-engine", "--example", "bulk"]))
}

impl TclBenchArguments {
    pub(super) fn run(self) -> XtaskResult {
        let TclBenchArguments { options, tcl9, only } = self;
        let version = TclVersion::selected(tcl9);
        enter_namespace(|| prepare(version))?;
        let (_guard, programs) = TclPrograms::find(version)?;
        let bench = TclBench { options, programs, targets: BenchTargets::default() };
        let mut parts = Vec::new();
        for (title, measure) in PARTS {
            if is_wanted(&only, title) {
                parts.push(measure(&bench)?);
            }
        }
        let text = harness::of_parts(TITLE, &bench.introduction(), &bench.targets, parts);
        harness::publish(TITLE, &text, bench.options.write)
    }
}

impl TclBench {
    fn introduction(&self) -> String {
        let without = if self.programs.has_extension() {
            ""
        } else {
            " This tree has no extension, so only Tcl's own sockets are in the tables."
        };
        format!(
            "The same Tcl script runs on Tcl's own `socket` and on `socket2` of the extension, in Tcl {}: the servers are \
             the scripts in `xtask/src/bench/tcl`, and `httpd.tcl` and `tcllib_httpd.tcl` in `examples/tcl`, each one process with one event loop. \
             The generator is `cargo run --release -p stilling-bench --example tcp`, which compares every byte; server and \
             generator share the cores. Server CPU is user and system time of all threads of the server's process during the load. \
             `{}` writes this section; rounds are interleaved as above, and each starts each server anew.{without}\n\n{}",
            self.programs.patch_level,
            self.options.command("tcl"),
            machine::listed([]),
        )
    }

    fn add_target(&self, target: BenchTarget) {
        self.targets.add_target(target);
    }

    /// `full`, or a tenth of it with `--quick`.
    fn quick_or_full(&self, full: usize) -> usize {
        if self.options.quick { full / 10 } else { full }
    }

    /// Seconds of one load.
    fn seconds(&self) -> u32 {
        if self.options.quick { 1 } else { 5 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_tell_all_parts_apart() {
        let mut titles: Vec<_> = PARTS.iter().map(|(title, _)| title).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), PARTS.len());
    }
}
