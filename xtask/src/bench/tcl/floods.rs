//! Valid clients before and during a SYN flood, in network namespaces of the measurement's own.

use std::process::Command;

use serde::Deserialize;

use super::TclBench;
use super::peers::{COMPARED, TclPeer, wrapped};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::harness;
use crate::bench::targets::BenchTarget;
use crate::steps::report;

pub(super) const TITLE: &str = "Valid clients during a SYN flood";

const SCRIPT: &str = "xtask/src/bench/tcl/flood.tcl";

/// The server's address in the namespaces of the example `syn_flood`.
const SERVER: &str = "10.77.0.1";

/// Seconds of each phase.
const SECONDS: u32 = 3;

/// Row 3.7: most time of a valid client at the 99th percentile, in milliseconds.
const P99_MS_MAX: f64 = 1000.0;

/// Row 3.9: most time until the flood is noticed, in seconds.
const DETECTION_S_MAX: f64 = 2.0;

/// The report of the example.
#[derive(Debug, Deserialize)]
struct FloodReport {
    quiet: ClientFigures,
    flood: ClientFigures,
    detected_after_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct ClientFigures {
    clients: u64,
    failures: u64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
    repeated_syns: u64,
    evidence: Option<String>,
}

impl FloodReport {
    fn detected_after_s(&self) -> Option<f64> {
        Some(self.detected_after_ms? / 1e3)
    }
}

impl TclBench {
    /// Row 3.7.
    pub(super) fn syn_flood(&self) -> XtaskResult<PageSection> {
        let peers = self.available(&COMPARED);
        let reports = harness::run_rounds(self.options.rounds, &peers, |round, peer| {
            let mut program = Command::new(&self.programs.syn_flood);
            program.arg(format!("--seconds={SECONDS}"));
            let mut script = self.programs.script(*peer, SCRIPT);
            script.arg(SERVER);
            let report: FloodReport = report(&mut wrapped(program, &script))?;
            println!("{TITLE}, round {round}, {}: {report:?}", peer.name());
            Ok(report)
        })?;
        let mut table = figures::table(
            "server | state | clients | failed | repeated SYNs | p50 ms | p99 ms | max ms | noticed after s",
        );
        for (peer, reports) in peers.iter().zip(&reports) {
            table.push(row(peer.name(), "quiet", reports, |report| &report.quiet));
            table.push(row(peer.name(), "flood", reports, |report| &report.flood));
            if *peer != TclPeer::Stock {
                self.judge_flood(peer.name(), reports);
            }
        }
        let description = format!(
            "`syn_flood --seconds={SECONDS} flood.tcl …` of `stilling-bench`: clients of a script that returns each line, one \
             client after another with 2 ms between them, first on a quiet network, then while 5,000 SYNs per second arrive from \
             addresses that no host has. The times are those from the start of a connect to the answer. Server and clients are in \
             network namespaces with the system's defaults, which send SYN cookies. `socket` does not report floods."
        );
        Ok(PageSection { title: TITLE.to_owned(), description, table })
    }

    fn judge_flood(&self, name: &str, reports: &[FloodReport]) {
        let clients: u64 = reports.iter().map(|report| report.flood.clients).sum();
        let failures: u64 = reports.iter().map(|report| report.flood.failures).sum();
        let connected = (clients - failures) as f64 * 100.0 / clients as f64;
        let what = format!("row 3.7, connected, {name}: {TITLE}");
        self.add_target(BenchTarget::at_least(what, 100.0, Some(connected), "%"));
        let p99 = median(reports, |report| report.flood.p99_ms);
        let what = format!("row 3.7, p99, {name}: {TITLE}");
        self.add_target(BenchTarget::at_most(what, P99_MS_MAX, p99, "ms"));
        // A flood that is not noticed misses the target.
        let detected = median(reports, |report| Some(report.detected_after_s().unwrap_or(f64::INFINITY)));
        let what = format!("row 3.9, noticed, {name}: {TITLE}");
        self.add_target(BenchTarget::at_most(what, DETECTION_S_MAX, detected, "s"));
    }
}

fn median(reports: &[FloodReport], of: fn(&FloodReport) -> Option<f64>) -> Option<f64> {
    reports.iter().map(of).collect::<Option<_>>().map(figures::median)
}

fn row(
    name: &str,
    state: &str,
    reports: &[FloodReport],
    phase: fn(&FloodReport) -> &ClientFigures,
) -> Vec<String> {
    let phases = || reports.iter().map(phase);
    for evidence in phases().filter_map(|figures| figures.evidence.as_ref()) {
        println!("{TITLE}: {name}, {state}: {evidence}");
    }
    let sum = |of: fn(&ClientFigures) -> u64| figures::thousands(phases().map(of).sum::<u64>() as f64);
    let spread = |of: fn(&ClientFigures) -> Option<f64>| {
        figures::spread_of_measured(phases().map(of), figures::two_places)
    };
    let detected = match state {
        "flood" => figures::spread_of_measured(
            reports.iter().map(FloodReport::detected_after_s),
            figures::two_places,
        ),
        _ => figures::unknown(),
    };
    vec![
        name.to_owned(),
        state.to_owned(),
        sum(|figures| figures.clients),
        sum(|figures| figures.failures),
        sum(|figures| figures.repeated_syns),
        spread(|figures| figures.p50_ms),
        spread(|figures| figures.p99_ms),
        spread(|figures| figures.max_ms),
        detected,
    ]
}
