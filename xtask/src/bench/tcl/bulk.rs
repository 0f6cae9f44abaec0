//! Bulk data through one channel, in both directions.

use std::fs::File;
use std::io::Write;

use super::TclBench;
use super::generator::TcpLoadReport;
use super::peers::{COMPARED, OWN, TclPeer, TclServer};
use crate::XtaskResult;
use crate::bench::figures::{self, Column, PageSection, Series};
use crate::bench::harness;
use crate::bench::sample::BenchSample;
use crate::bench::targets::BenchTarget;

pub(super) const SINK: &str = "Bulk data to the server";

pub(super) const MEMORY: &str = "Bulk data from the server's memory";

pub(super) const FILE: &str = "Bulk data from a file, by fcopy";

pub(super) const SENDFILE: &str = "Bulk data from a file, by stilling::fcopy";

const SCRIPT: &str = "xtask/src/bench/tcl/bulk.tcl";

/// Least rate as a multiple of Tcl's own sockets.
const RATE_FACTOR_MIN: f64 = 1.2;

/// Row 3.18: least rate through a channel in gigabits per second.
const GIGABITS_MIN: f64 = 1.0;

/// Bytes of the copied file.
const FILE_SIZE: usize = 256 * 1024 * 1024;

impl TclBench {
    pub(super) fn sink(&self) -> XtaskResult<PageSection> {
        self.bulk(SINK, "send", &["sink"])
    }

    pub(super) fn memory_source(&self) -> XtaskResult<PageSection> {
        self.bulk(MEMORY, "receive", &["memory"])
    }

    pub(super) fn file_source(&self) -> XtaskResult<PageSection> {
        self.copies_of_file(FILE, "file")
    }

    /// `socket` copies by the core's `fcopy`.
    pub(super) fn sendfile_source(&self) -> XtaskResult<PageSection> {
        self.copies_of_file(SENDFILE, "sendfile")
    }

    fn copies_of_file(&self, title: &'static str, mode: &str) -> XtaskResult<PageSection> {
        let path = self.programs.folder.join("bulk.data");
        let block: Vec<u8> = (0..=u8::MAX).cycle().take(1024 * 1024).collect();
        let mut file = File::create(&path)?;
        for _ in 0..FILE_SIZE / block.len() {
            file.write_all(&block)?;
        }
        let section = self.bulk(title, "receive", &[mode, &path.display().to_string()]);
        std::fs::remove_file(path)?;
        section
    }

    fn bulk(&self, title: &'static str, load: &str, arguments: &[&str]) -> XtaskResult<PageSection> {
        let options = [load.to_owned(), format!("--seconds={}", self.seconds())];
        let peers = self.available(&COMPARED);
        let samples = harness::run_rounds(self.options.rounds, &peers, |round, peer| {
            let server = self.programs.start(*peer, TclServer { script: SCRIPT, arguments })?;
            let (report, cpu_s) = self.programs.load(&server, &options)?;
            let name = peer.name();
            println!("{title}, round {round}, {name}: {:.2} Gbit/s", report.gigabits_per_s);
            Ok(gigabit_sample(&report, cpu_s))
        })?;
        let series = peers.iter().zip(samples).map(|(peer, samples)| Series { server: peer.name(), samples });
        let series: Vec<Series> = series.collect();
        self.judge_bulk(title, &series);
        let description =
            format!("`bulk.tcl … {}`, `tcp {} ADDRESS`, one connection.", arguments[0], options.join(" "));
        Ok(PageSection { title: title.to_owned(), description, table: compared(&series) })
    }

    fn judge_bulk(&self, title: &str, series: &[Series]) {
        let stock = TclPeer::Stock.name();
        for name in OWN.map(TclPeer::name) {
            let Some(own) = series.iter().find(|series| series.server == name) else { continue };
            let ratio = figures::ratio(series, name, stock, |sample| Some(sample.rate));
            let what = format!("bytes per second, {name} ÷ {stock}: {title}");
            self.add_target(BenchTarget::at_least(what, RATE_FACTOR_MIN, ratio, "×"));
            let rate = figures::median(own.samples.iter().map(|sample| sample.rate).collect());
            let what = format!("row 3.18, {name}: {title}");
            self.add_target(BenchTarget::at_least(what, GIGABITS_MIN, Some(rate), "Gbit/s"));
        }
    }
}

/// A sample with gigabits per second, and CPU seconds of the server per gigabyte.
pub(super) fn gigabit_sample(report: &TcpLoadReport, cpu_s: f64) -> BenchSample {
    BenchSample {
        rate: report.gigabits_per_s,
        cpu_s: cpu_s * 1e9 / report.bytes as f64,
        failures: report.failures,
        ..BenchSample::default()
    }
}

/// A table of such samples, with the ratios to Tcl's own sockets if they are in it.
pub(super) fn compared(series: &[Series]) -> Vec<Vec<String>> {
    let columns = [
        Column::of("Gbit/s", |sample| Some(sample.rate), figures::two_places),
        Column::of("server CPU s per GB", |sample| Some(sample.cpu_s), figures::two_places),
        Column::sum("failures", |sample| sample.failures),
    ];
    figures::with_ratios(series, &columns, &OWN.map(|own| (own.name(), TclPeer::Stock.name())))
}
