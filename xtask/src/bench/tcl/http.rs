//! HTTP servers in Tcl under `ab`: a connection per request, as browsers of IOCPSOCK's time had it. One is
//! `examples/tcl/httpd.tcl`; the other is tcllib's package `httpd`, unmodified.

use super::TclBench;
use super::exchanges::compared;
use super::peers::{COMPARED, OWN, TclPeer, TclServer};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection, Series};
use crate::bench::harness;
use crate::bench::load::{BenchEnvironment, HttpLoad};
use crate::bench::sample::BenchSample;
use crate::bench::targets::BenchTarget;

pub(super) const MODERATE: &str = "HTTP in Tcl, ab with 300 connections";

pub(super) const MANY: &str = "HTTP in Tcl, ab with 5,000 connections";

pub(super) const TCLLIB_MODERATE: &str = "tcllib's HTTP server, ab with 300 connections";

pub(super) const TCLLIB_MANY: &str = "tcllib's HTTP server, ab with 5,000 connections";

/// The port 0 lets the system choose one.
pub(super) const HTTPD: TclServer = TclServer { script: "examples/tcl/httpd.tcl", arguments: &["0"] };

pub(super) const TCLLIB_HTTPD: TclServer =
    TclServer { script: "examples/tcl/tcllib_httpd.tcl", arguments: &["0"] };

pub(super) const PATH: &str = "/hello";

const REQUESTS: usize = 50_000;

/// Requests to tcllib's server, whose script takes some ten times as long.
const TCLLIB_REQUESTS: usize = 10_000;

/// Row 3.20: least requests per second of a server with scripts as long as those of tclhttpd.
const TCLLIB_RATE_MIN: f64 = 420.0;

/// One server under `ab`.
#[derive(Clone, Copy)]
struct HttpPart {
    title: &'static str,
    server: TclServer<'static>,
    requests: usize,
    connections: u32,
    /// Least requests per second.
    rate_min: Option<f64>,
}

impl HttpPart {
    const fn example(title: &'static str, connections: u32) -> HttpPart {
        HttpPart { title, server: HTTPD, requests: REQUESTS, connections, rate_min: None }
    }

    const fn tcllib(title: &'static str, connections: u32) -> HttpPart {
        HttpPart {
            title,
            server: TCLLIB_HTTPD,
            requests: TCLLIB_REQUESTS,
            connections,
            rate_min: Some(TCLLIB_RATE_MIN),
        }
    }
}

impl TclBench {
    /// Row 3.4.
    pub(super) fn http_moderate(&self) -> XtaskResult<PageSection> {
        self.http(&HttpPart::example(MODERATE, 300))
    }

    /// Row 3.5: beyond the descriptors that Tcl's own sockets can have.
    pub(super) fn http_many(&self) -> XtaskResult<PageSection> {
        self.http(&HttpPart::example(MANY, 5000))
    }

    /// Rows 3.4 and 3.20 with a server that is not of this project.
    pub(super) fn tcllib_moderate(&self) -> XtaskResult<PageSection> {
        self.tcllib(&HttpPart::tcllib(TCLLIB_MODERATE, 300))
    }

    /// Row 3.5 with a server that is not of this project.
    pub(super) fn tcllib_many(&self) -> XtaskResult<PageSection> {
        self.tcllib(&HttpPart::tcllib(TCLLIB_MANY, 5000))
    }

    fn tcllib(&self, part: &HttpPart) -> XtaskResult<PageSection> {
        let Some(version) = self.programs.package_version("httpd") else {
            let description =
                "The package `httpd` of tcllib does not load in this version of Tcl.".to_owned();
            return Ok(PageSection { title: part.title.to_owned(), description, table: Vec::new() });
        };
        let mut section = self.http(part)?;
        section.description += &format!(
            " It runs the package `httpd` {version} of tcllib unmodified; on `socket2`, `stilling::install` has replaced the \
             command `socket` that the package calls."
        );
        Ok(section)
    }

    fn http(&self, part: &HttpPart) -> XtaskResult<PageSection> {
        let HttpPart { title, server, connections, .. } = *part;
        // Fewer would mostly wait for the clients whose first SYN was dropped.
        let requests = self.quick_or_full(part.requests).max(2 * connections as usize) as u64;
        let load = HttpLoad::Ab { requests, connections, keep: false };
        let environment = self.environment();
        let peers = self.available(&COMPARED);
        let samples = harness::run_rounds(self.options.rounds, &peers, |round, peer| {
            let server = self.programs.start(*peer, server)?;
            let sample = load.measure(&server, PATH, &environment);
            println!("{title}, round {round}, {}: {}", peer.name(), outcome(&sample));
            // Tcl's own sockets end a process that has too many: a result, too.
            if *peer == TclPeer::Stock { Ok(sample.ok()) } else { sample.map(Some) }
        })?;
        let measured = peers.iter().zip(samples).filter_map(|(peer, samples)| {
            Some(Series { server: peer.name(), samples: samples.into_iter().collect::<Option<_>>()? })
        });
        let series: Vec<Series> = measured.collect();
        self.judge_http(part, &series);
        let description = format!("`{}` to `{}`.", load.command_line(PATH), server.script);
        Ok(PageSection { title: title.to_owned(), description, table: with_failed_stock(compared(&series)) })
    }

    /// The environment of `ab`.
    pub(super) fn environment(&self) -> BenchEnvironment {
        BenchEnvironment {
            folder: self.programs.folder.clone(),
            binary: self.programs.generator.clone(),
            counts_instructions: false,
        }
    }

    fn judge_http(&self, part: &HttpPart, series: &[Series]) {
        let title = part.title;
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
            if let Some(bound) = part.rate_min {
                let rate = figures::median(own.samples.iter().map(|sample| sample.rate).collect());
                let what = format!("row 3.20, requests per second, {name}: {title}");
                self.add_target(BenchTarget::at_least(what, bound, Some(rate), ""));
            }
        }
    }
}

fn outcome(sample: &XtaskResult<BenchSample>) -> String {
    match sample {
        Ok(sample) => format!("{:.0}/s, {} failures", sample.rate, sample.failures + sample.refused),
        Err(error) => error.to_string(),
    }
}

/// The table, with a row for a server on Tcl's own sockets that did not get through a round.
fn with_failed_stock(mut table: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let stock = TclPeer::Stock.name();
    if !table.iter().any(|row| row[0] == stock) {
        let mut row = vec![figures::unknown(); table[0].len()];
        row[..2].clone_from_slice(&[stock.to_owned(), "ended by its descriptors".to_owned()]);
        table.insert(1, row);
    }
    table
}
