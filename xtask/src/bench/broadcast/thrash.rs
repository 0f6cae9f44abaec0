//! Rows 2.1 to 2.3: auctions in which every client answers every bid.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde::Deserialize;

use super::BroadcastBench;
use super::load::LatencyFigures;
use super::peers::{BroadcastPeer, BroadcastStream, RunningPeer};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::harness;
use crate::bench::targets::BenchTarget;
use crate::steps::report;

pub(super) const TITLE: &str = "An auction with 200 clients that answer every bid";

const CLIENTS: u32 = 200;

/// Least deliveries of accepted bids per second, on average.
const OUT_IN_MEMORY_MIN: f64 = 100_000.0;
const OUT_ON_DISK_MIN: f64 = 70_000.0;

/// Row 2.3: least deliveries in the best second.
const OUT_PEAK_MIN: f64 = 52_000.0;

#[derive(Deserialize)]
pub(super) struct ThrashFigures {
    in_per_s: f64,
    in_peak_per_s: u64,
    pub(super) out_per_s: f64,
    out_peak_per_s: u64,
    latency: LatencyFigures,
    pub(super) failures_total: u64,
    evidence: BTreeMap<String, String>,
    server_cpu_s_per_million: Option<f64>,
}

/// A server with the storage of its auctions.
struct AuctionServer {
    peer: BroadcastPeer,
    stream: BroadcastStream,
    storage: &'static str,
    out_min: f64,
}

const fn server(peer: BroadcastPeer, is_on_disk: bool) -> AuctionServer {
    if is_on_disk {
        let stream = BroadcastStream::AuctionOnDisk;
        AuctionServer { peer, stream, storage: "disk", out_min: OUT_ON_DISK_MIN }
    } else {
        let stream = BroadcastStream::AuctionInMemory;
        AuctionServer { peer, stream, storage: "memory", out_min: OUT_IN_MEMORY_MIN }
    }
}

const SERVERS: [AuctionServer; 4] = [
    server(BroadcastPeer::StillingUring, false),
    server(BroadcastPeer::StillingPoll, false),
    server(BroadcastPeer::StillingUring, true),
    server(BroadcastPeer::StillingPoll, true),
];

/// The generator's options.
pub(super) fn options(seconds: u32) -> String {
    format!("--thrash --clients={CLIENTS} --seconds={seconds}")
}

impl BroadcastBench {
    pub(super) fn thrash(&self) -> XtaskResult<PageSection> {
        let seconds = if self.options.quick { 1 } else { 10 };
        let options = options(seconds);
        let found = harness::run_rounds(self.options.rounds, &SERVERS, |round, server| {
            let figures = self.measure_auction(server, &options)?;
            let (name, storage, out) = (server.peer.name(), server.storage, figures.out_per_s);
            println!("{TITLE}, round {round}, {name}, {storage}: {out:.0} deliveries/s");
            Ok(figures)
        })?;
        let mut table = figures::table(
            "server | stream | bids in/s | in the best second | accepted/s | deliveries/s | in the best second | p50 ms | p99 ms | server CPU s per million | failures",
        );
        for (server, found) in SERVERS.iter().zip(&found) {
            self.judge_auction(server, found);
            table.push(row(server, found));
        }
        let words = format!(
            "`stilling bench broadcast ADDRESS {options}` on a stream with the gate `auction`: each client answers each accepted \
             bid of another one with a bid that is higher by 1, which most often comes too late and is rejected. Every client \
             must receive every price once and in order. Only deliveries of accepted bids count. The auction server that \
             Stilling is measured against reported 180 bids in and 18,000 out per second, and 52,000 out at its peak, on \
             another, older machine (rows 2.2 and 2.3). A latency runs from the write of an accepted bid to its delivery to \
             its bidder."
        );
        Ok(PageSection { title: TITLE.to_owned(), description: words, table })
    }

    fn measure_auction(&self, server: &AuctionServer, options: &str) -> XtaskResult<ThrashFigures> {
        let folder = self.programs.folder.join("data");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let running = server.peer.start(&self.programs, &folder, server.stream, &[])?;
        let figures = self.bid(server.peer, &running, options)?;
        drop(running);
        fs::remove_dir_all(&folder)?;
        Ok(figures)
    }

    /// Runs the auction on a started server.
    ///
    /// # Errors
    /// If there is no report.
    pub(super) fn bid(
        &self,
        peer: BroadcastPeer,
        running: &RunningPeer,
        options: &str,
    ) -> XtaskResult<ThrashFigures> {
        let server = &running.server;
        let mut command = Command::new(&self.programs.stilling);
        command.args(["bench", "broadcast", &server.address.to_string()]).args(options.split(' '));
        command.arg(format!("--pid={}", server.first_process())).arg("--json");
        let figures: ThrashFigures = report(&mut command)?;
        for (kind, words) in &figures.evidence {
            println!("  {}: {kind}: {words}", peer.name());
        }
        Ok(figures)
    }

    fn judge_auction(&self, server: &AuctionServer, found: &[ThrashFigures]) {
        let name = format!("{}, {}", server.peer.name(), server.storage);
        let median = |of: fn(&ThrashFigures) -> f64| Some(figures::median(found.iter().map(of).collect()));
        let out = median(|figures| figures.out_per_s);
        let what = format!("deliveries of accepted bids per second, {name}");
        self.targets.add_target(BenchTarget::at_least(what, server.out_min, out, ""));
        let peak = median(|figures| figures.out_peak_per_s as f64);
        let what = format!("the same in the best second, {name}");
        self.targets.add_target(BenchTarget::at_least(what, OUT_PEAK_MIN, peak, ""));
        let failures = found.iter().map(|figures| figures.failures_total as f64).sum();
        let what = format!("failures, {name}: {TITLE}");
        self.targets.add_target(BenchTarget::at_most(what, 0.0, Some(failures), ""));
    }
}

fn row(server: &AuctionServer, found: &[ThrashFigures]) -> Vec<String> {
    let spread =
        |of: fn(&ThrashFigures) -> f64, show: fn(f64) -> String| figures::spread(found.iter().map(of), show);
    let accepted = |figures: &ThrashFigures| figures.out_per_s / f64::from(CLIENTS);
    let cpu = found.iter().map(|figures| figures.server_cpu_s_per_million);
    vec![
        server.peer.name().to_owned(),
        server.storage.to_owned(),
        spread(|figures| figures.in_per_s, figures::thousands),
        spread(|figures| figures.in_peak_per_s as f64, figures::thousands),
        spread(accepted, figures::thousands),
        spread(|figures| figures.out_per_s, figures::thousands),
        spread(|figures| figures.out_peak_per_s as f64, figures::thousands),
        spread(|figures| figures.latency.p50_us / 1e3, figures::two_places),
        spread(|figures| figures.latency.p99_us / 1e3, figures::two_places),
        figures::spread_of_measured(cpu, figures::two_places),
        found.iter().map(|figures| figures.failures_total).sum::<u64>().to_string(),
    ]
}
