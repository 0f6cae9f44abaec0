//! Exchanges of 32 bytes with an echo server: one client, many, and a connection for each.

use super::TclBench;
use super::peers::{COMPARED, OWN, TclPeer, TclServer};
use crate::XtaskResult;
use crate::bench::figures::{self, Column, PageSection, Series};
use crate::bench::harness;
use crate::bench::targets::BenchTarget;

pub(super) const ONE_CLIENT: &str = "Echo exchanges, one client";

pub(super) const MANY_CLIENTS: &str = "Echo exchanges, 200 clients";

pub(super) const CONNECTIONS: &str = "A connection per exchange, 50 clients";

const ECHO: TclServer = TclServer { script: "xtask/src/bench/tcl/echo.tcl", arguments: &[] };

/// Targets as multiples of Tcl's own sockets.
#[derive(Clone, Copy)]
struct RatioTargets {
    rate: Option<f64>,
    cpu: Option<f64>,
}

impl TclBench {
    pub(super) fn one_client(&self) -> XtaskResult<PageSection> {
        self.exchanges(ONE_CLIENT, 1, &[], RatioTargets { rate: Some(1.0), cpu: Some(1.0) })
    }

    pub(super) fn many_clients(&self) -> XtaskResult<PageSection> {
        self.exchanges(MANY_CLIENTS, 200, &[], RatioTargets { rate: Some(1.3), cpu: Some(0.8) })
    }

    pub(super) fn connections(&self) -> XtaskResult<PageSection> {
        self.exchanges(CONNECTIONS, 50, &["--close"], RatioTargets { rate: None, cpu: None })
    }

    fn exchanges(
        &self,
        title: &'static str,
        connections: u32,
        further: &[&str],
        wanted: RatioTargets,
    ) -> XtaskResult<PageSection> {
        let mut options = vec![
            "exchange".to_owned(),
            format!("--connections={connections}"),
            format!("--seconds={}", self.seconds()),
        ];
        options.extend(further.iter().map(|option| (*option).to_owned()));
        let series = harness::series(self.options.rounds, title, &self.available(&COMPARED), |peer| {
            let server = self.programs.start(*peer, ECHO)?;
            let (report, cpu_s) = self.programs.load(&server, &options)?;
            Ok(report.sample(cpu_s))
        })?;
        self.judge(title, &series, wanted);
        let description = format!("`tcp {} ADDRESS`, messages of 32 bytes.", options.join(" "));
        Ok(PageSection { title: title.to_owned(), description, table: compared(&series) })
    }

    fn judge(&self, title: &str, series: &[Series], wanted: RatioTargets) {
        let stock = TclPeer::Stock.name();
        for name in OWN.map(TclPeer::name) {
            let Some(own) = series.iter().find(|series| series.server == name) else { continue };
            if let Some(bound) = wanted.rate {
                let ratio = figures::ratio(series, name, stock, |sample| Some(sample.rate));
                let what = format!("exchanges per second, {name} ÷ {stock}: {title}");
                self.add_target(BenchTarget::at_least(what, bound, ratio, "×"));
            }
            if let Some(bound) = wanted.cpu {
                let ratio = figures::ratio(series, name, stock, |sample| Some(sample.cpu_s));
                let what = format!("server CPU per exchange, {name} ÷ {stock}: {title}");
                self.add_target(BenchTarget::at_most(what, bound, ratio, "×"));
            }
            let failures = own.samples.iter().map(|sample| sample.failures as f64).sum();
            let what = format!("failures, {name}: {title}");
            self.add_target(BenchTarget::at_most(what, 0.0, Some(failures), ""));
        }
    }
}

/// A table of samples, with the ratios to Tcl's own sockets.
pub(super) fn compared(series: &[Series]) -> Vec<Vec<String>> {
    let mut columns = vec![
        Column::of("per second", |sample| Some(sample.rate), figures::thousands),
        Column::of("server CPU s per million", |sample| Some(sample.cpu_s), figures::two_places),
    ];
    columns.extend(figures::latencies());
    columns.push(Column::sum("failures", |sample| sample.failures + sample.refused));
    figures::with_ratios(series, &columns, &OWN.map(|own| (own.name(), TclPeer::Stock.name())))
}
