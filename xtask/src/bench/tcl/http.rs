//! `examples/tcl/httpd.tcl` under `ab`: a connection per request, as browsers of IOCPSOCK's time had it.

use super::TclBench;
use super::exchanges::compared;
use super::peers::{COMPARED, OWN, TclPeer, TclServer};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection, Series};
use crate::bench::harness;
use crate::bench::load::{BenchEnvironment, HttpLoad};
use crate::bench::targets::BenchTarget;

pub(super) const MODERATE: &str = "HTTP in Tcl, ab with 300 connections";

pub(super) const MANY: &str = "HTTP in Tcl, ab with 5,000 connections";

/// The port 0 lets the system choose one.
const HTTPD: TclServer = TclServer { script: "examples/tcl/httpd.tcl", arguments: &["0"] };

const PATH: &str = "/hello";

const REQUESTS: usize = 50_000;

impl TclBench {
    /// Row 3.4.
    pub(super) fn http_moderate(&self) -> XtaskResult<PageSection> {
        self.http(MODERATE, 300, &COMPARED)
    }

    /// Row 3.5: beyond the descriptors that Tcl's own sockets can have.
    pub(super) fn http_many(&self) -> XtaskResult<PageSection> {
        self.http(MANY, 5000, &OWN)
    }

    fn http(&self, title: &'static str, connections: u32, peers: &[TclPeer]) -> XtaskResult<PageSection> {
        let requests = self.quick_or_full(REQUESTS).max(connections as usize) as u64;
        let load = HttpLoad::Ab { requests, connections, keep: false };
        let environment = BenchEnvironment {
            folder: self.programs.folder.clone(),
            binary: self.programs.generator.clone(),
            counts_instructions: false,
        };
        let series = harness::series(self.options.rounds, title, &self.available(peers), |peer| {
            let server = self.start(*peer, HTTPD)?;
            load.measure(&server, PATH, &environment)
        })?;
        self.judge_http(title, &series);
        let description = format!("`{}` to `examples/tcl/httpd.tcl`.", load.command_line(PATH));
        Ok(PageSection { title: title.to_owned(), description, table: compared(&series) })
    }

    fn judge_http(&self, title: &str, series: &[Series]) {
        let stock = TclPeer::Stock.name();
        for name in OWN.map(TclPeer::name) {
            let Some(own) = series.iter().find(|series| series.server == name) else { continue };
            let failed = own.samples.iter().map(|sample| (sample.failures + sample.refused) as f64).sum();
            let what = format!("failed requests, {name}: {title}");
            self.add_target(BenchTarget::at_most(what, 0.0, Some(failed), ""));
            if let Some(ratio) = figures::ratio(series, name, stock, |sample| Some(sample.rate)) {
                let what = format!("requests per second, {name} ÷ {stock}: {title}");
                self.add_target(BenchTarget::at_least(what, 1.0, Some(ratio), "×"));
            }
        }
    }
}
