//! Connections opened and closed again, and what they leave in the server.

use super::TclBench;
use super::peers::{COMPARED, TclPeer, TclServer};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection};
use crate::bench::targets::BenchTarget;

pub(super) const TITLE: &str = "Open and close 100,000 connections";

const ECHO: TclServer = TclServer { script: "xtask/src/bench/tcl/echo.tcl", arguments: &[] };

const CYCLES: usize = 100_000;

/// Connections before the first reading.
const WARM_UP: usize = 1000;

/// Options of the generator for connections that carry one exchange each.
pub(crate) fn cycle_options(count: u64) -> Vec<String> {
    let options = ["exchange", "--close", "--connections=20"];
    options.map(str::to_owned).into_iter().chain([format!("--count={count}")]).collect()
}

impl TclBench {
    pub(super) fn cycles(&self) -> XtaskResult<PageSection> {
        let mut table = figures::table(
            "server | per second | descriptors before | after | memory before | after | failures",
        );
        for peer in self.available(&COMPARED) {
            let server = self.programs.start(peer, ECHO)?;
            self.programs.load(&server, &cycle_options(WARM_UP as u64))?;
            let (descriptors, memory) = (server.descriptors()?, server.memory());
            let (report, cpu_s) =
                self.programs.load(&server, &cycle_options(self.quick_or_full(CYCLES) as u64))?;
            let (descriptors_after, memory_after) = (server.descriptors()?, server.memory());
            let name = peer.name();
            table.push(vec![
                name.to_owned(),
                figures::thousands(report.sample(cpu_s).rate),
                descriptors.to_string(),
                descriptors_after.to_string(),
                figures::mebibytes(memory),
                figures::mebibytes(memory_after),
                report.failures.to_string(),
            ]);
            if peer != TclPeer::Stock {
                let growth = descriptors_after as f64 - descriptors as f64;
                let what = format!("further descriptors, {name}: {TITLE}");
                self.add_target(BenchTarget::at_most(what, 0.0, Some(growth), ""));
            }
        }
        let description = format!(
            "`tcp {}`, after {} connections.",
            cycle_options(self.quick_or_full(CYCLES) as u64).join(" "),
            figures::thousands(WARM_UP as f64)
        );
        Ok(PageSection { title: TITLE.to_owned(), description, table })
    }
}
