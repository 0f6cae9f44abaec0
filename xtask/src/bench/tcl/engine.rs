//! Bulk data through the engine alone, without Tcl.

use std::process::Command;

use super::TclBench;
use super::bulk::{compared, gigabit_sample};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection, Series};
use crate::bench::harness;
use crate::bench::server::BenchServer;
use crate::bench::targets::BenchTarget;

pub(super) const TITLE: &str = "Bulk data through the engine alone";

/// Row 3.18: least rate of the engine in gigabits per second.
const GIGABITS_MIN: f64 = 10.0;

/// A driver, and the direction of the data.
struct EngineBulk {
    name: &'static str,
    /// Arguments of the example.
    arguments: [&'static str; 2],
    /// The load of the generator.
    load: &'static str,
}

const CASES: [EngineBulk; 4] = [
    EngineBulk { name: "uring, receives", arguments: ["uring", "sink"], load: "send" },
    EngineBulk { name: "poll, receives", arguments: ["poll", "sink"], load: "send" },
    EngineBulk { name: "uring, sends", arguments: ["uring", "source"], load: "receive" },
    EngineBulk { name: "poll, sends", arguments: ["poll", "source"], load: "receive" },
];

impl TclBench {
    /// Row 3.18.
    pub(super) fn engine_bulk(&self) -> XtaskResult<PageSection> {
        let seconds = format!("--seconds={}", self.seconds());
        let samples = harness::run_rounds(self.options.rounds, &CASES, |round, case| {
            let mut command = Command::new(&self.programs.engine_bulk);
            command.args(case.arguments);
            let command_line = format!("bulk {}", case.arguments.join(" "));
            let server = BenchServer::announced(case.name, command_line, command)?;
            let (report, cpu_s) = self.programs.load(&server, &[case.load.to_owned(), seconds.clone()])?;
            println!("{TITLE}, round {round}, {}: {:.2} Gbit/s", case.name, report.gigabits_per_s);
            Ok(gigabit_sample(&report, cpu_s))
        })?;
        let series = CASES.iter().zip(samples).map(|(case, samples)| Series { server: case.name, samples });
        let series: Vec<Series> = series.collect();
        for Series { server, samples } in &series {
            let rate = figures::median(samples.iter().map(|sample| sample.rate).collect());
            let what = format!("row 3.18, {server}: {TITLE}");
            self.add_target(BenchTarget::at_least(what, GIGABITS_MIN, Some(rate), "Gbit/s"));
        }
        let description = format!(
            "The example `bulk` of `stilling-engine`: one shard, which receives into nothing, or sends a shared block of \
             256 KiB again and again. The other side is `tcp send|receive {seconds} ADDRESS`, one connection, which compares \
             every byte that it receives.",
        );
        Ok(PageSection { title: TITLE.to_owned(), description, table: compared(&series) })
    }
}
